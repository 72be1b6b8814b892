//! The limit of open files, and the number of sessions that it allows.

use service_kit::http::most_connections;

use crate::http::CONNECTIONS;
use crate::server::accept::MAX_REJECTED;

/// Descriptors reserved for Redis, HTTP, logs, the runtime and rejected connections.
const RESERVED: usize = 128 + most_connections(CONNECTIONS) + MAX_REJECTED;

/// The budget of file descriptors for sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileBudget {
    /// Descriptors for the sockets of sessions.
    pub sessions: usize,
    /// Descriptors for watching worker processes.
    pub processes: usize,
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
    fn descriptors_are_reserved_for_redis() {
        assert_eq!(budget(usize::MAX, 20_000), FileBudget { sessions: 20_000, processes: 20_000 });
        assert_eq!(budget(65_536, 20_000), FileBudget { sessions: 20_000, processes: 20_000 });
        assert_eq!(budget(1_024, 100), FileBudget { sessions: 100, processes: 100 });
        let few = budget(1_024, 20_000);
        assert_eq!(few, FileBudget { sessions: 384, processes: 128 });
        assert_eq!(few.sessions + few.processes + RESERVED, 1_024);
        assert_eq!(budget(10, 20_000), FileBudget { sessions: 1, processes: 0 });
    }
}
