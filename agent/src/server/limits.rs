//! How many files the process may have open, and what that leaves for sessions.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are never given to sessions: Redis, HTTP, logs, the runtime.
const RESERVED: usize = 128;

/// How many descriptors sessions may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// For their sockets.
    pub sessions: usize,
    /// For watching the processes that have them.
    pub processes: usize,
}

/// Raises the soft limit of open files to the hard one, as the kernel lets every process do, and returns it.
pub fn raise_open_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    // None at all means that there is no limit.
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Shares `open_files` out. Fewer than `max_sessions` where they do not suffice: three quarters of them are for
/// sessions then, since most processes have more than one, and the rest for watching processes.
#[must_use]
pub fn room(open_files: usize, max_sessions: usize) -> Room {
    let free = open_files.saturating_sub(RESERVED);
    let sessions = max_sessions.min(free / 4 * 3).max(1);
    Room { sessions, processes: free.saturating_sub(sessions).min(max_sessions) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_the_hard_one() {
        let limit = raise_open_files();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        assert!(limit > RESERVED);
    }

    #[test]
    fn something_is_left_for_redis() {
        assert_eq!(room(usize::MAX, 20_000), Room { sessions: 20_000, processes: 20_000 });
        assert_eq!(room(65_536, 20_000), Room { sessions: 20_000, processes: 20_000 });
        assert_eq!(room(1_024, 100), Room { sessions: 100, processes: 100 });
        let few = room(1_024, 20_000);
        assert_eq!(few, Room { sessions: 672, processes: 224 });
        assert_eq!(few.sessions + few.processes + RESERVED, 1_024);
        assert_eq!(room(10, 20_000), Room { sessions: 1, processes: 0 });
    }
}
