//! The limit of open files, which counts connections too.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit and returns it.
pub fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
    // `None` means unlimited.
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let fewer = maximum.map_or(4_096, |most| most - 1);
        setrlimit(Resource::Nofile, Rlimit { current: Some(fewer), maximum }).unwrap();
        let limit = raise();
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: maximum, maximum });
        assert!(u64::try_from(limit).unwrap() > fewer);
    }
}
