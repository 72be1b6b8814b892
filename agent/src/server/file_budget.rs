//! The limit of open files, and the number of sessions that it allows.

use crate::server::accept::MAX_REJECTED;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved for Redis, HTTP, logs, the runtime and rejected connections.
const RESERVED: usize = 128 + MAX_REJECTED;

/// The budget of file descriptors for sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileBudget {
    /// Descriptors for the sockets of sessions.
    pub sessions: usize,
    /// Descriptors for watching worker processes.
    pub processes: usize,
}

/// Raises the soft limit of open files to the hard limit and returns it.
pub fn raise_open_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
    // `None` means unlimited.
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Divides `open_files` between sessions and process watches. If there are too few for `max_sessions`, sessions get three
/// quarters, since most processes have several.
#[must_use]
pub fn budget(open_files: usize, max_sessions: usize) -> FileBudget {
    let free = open_files.saturating_sub(RESERVED);
    let sessions = max_sessions.min(free / 4 * 3).max(1);
    FileBudget { sessions, processes: free.saturating_sub(sessions).min(max_sessions) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        let limit = raise_open_files();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        assert!(limit > RESERVED);
    }

    #[test]
    fn descriptors_are_reserved_for_redis() {
        assert_eq!(budget(usize::MAX, 20_000), FileBudget { sessions: 20_000, processes: 20_000 });
        assert_eq!(budget(65_536, 20_000), FileBudget { sessions: 20_000, processes: 20_000 });
        assert_eq!(budget(1_024, 100), FileBudget { sessions: 100, processes: 100 });
        let few = budget(1_024, 20_000);
        assert_eq!(few, FileBudget { sessions: 624, processes: 208 });
        assert_eq!(few.sessions + few.processes + RESERVED, 1_024);
        assert_eq!(budget(10, 20_000), FileBudget { sessions: 1, processes: 0 });
    }
}
