//! Log lines of the core, and a bound on those about single holds.

use std::time::Duration;

use redisson::{ClientId, HolderId, LockName, Moment};

use crate::types::{End, Peer, SessionId};

/// The most lines about single holds per second. When a hundred thousand locks are lost at once, a line for each would
/// stall the agent.
const LINES: u32 = 50;
const WINDOW: Duration = Duration::from_secs(1);

/// A log line as facts; the runtime writes it.
#[derive(Debug, Clone)]
pub enum LogLine {
    Jeopardy {
        lock: LockName,
        pid: Option<i32>,
        trace: String,
        valid_ms: u64,
        why: &'static str,
    },
    LockLost {
        lock: LockName,
        holder: HolderId,
        pid: Option<i32>,
        trace: String,
        end: End,
    },
    /// An explicit lease ran out before its owner released the hold.
    LeaseOverrun {
        lock: LockName,
        holder: HolderId,
        pid: Option<i32>,
        trace: String,
    },
    /// The agent or its host slept for so long that every hold is verified.
    Slept {
        gap_ms: u64,
    },
    WorkerStopped {
        pid: Option<i32>,
        holds: usize,
    },
    /// The grace of a session ended before a RESUME.
    SessionLapsed {
        session: SessionId,
        holds: usize,
        grace_ms: u64,
    },
    TooFewReplicas {
        replicas: u32,
        wanted: u32,
        refusal: Option<String>,
    },
    JournalFailed {
        why: String,
    },
    /// An operator released a lock by force.
    ForcedRelease {
        lock: LockName,
        holders: String,
        /// The waiters removed from its fair queue.
        dead_waiters: u64,
        by: Option<Peer>,
    },
    /// An agent that has vanished was ahead of a fair waiter, and its waiters were removed.
    WaitersRemoved {
        lock: LockName,
        agent: ClientId,
        waiters: u64,
    },
    /// An operator ended a session.
    SessionKicked {
        session: String,
        peer: Peer,
        holds: usize,
        age_ms: u64,
        by: Option<Peer>,
    },
    /// A server that had lost its part of a red lock has it again.
    NodeRestored {
        lock: LockName,
        node: Option<String>,
    },
    /// The number of lines that the bound withheld.
    Withheld(u64),
}

/// Counts bounded lines in windows of a second.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    window: Moment,
    lines: u32,
    withheld: u64,
}

/// The decision about one bounded line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admission {
    pub(super) admitted: bool,
    /// The number of lines withheld in a window that has just ended; 0 otherwise.
    pub(super) withheld_before: u64,
}

impl LogLimit {
    pub(super) fn admit(&mut self, now: Moment) -> Admission {
        let mut withheld_before = 0;
        if now.since(self.window) >= WINDOW {
            withheld_before = self.withheld;
            *self = Self { window: now, lines: 0, withheld: 0 };
        }
        self.lines += 1;
        let admitted = self.lines <= LINES;
        self.withheld += u64::from(!admitted);
        Admission { admitted, withheld_before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifty_lines_a_second_are_admitted_and_the_rest_is_counted() {
        let mut limit = LogLimit::default();
        let now = Moment::from_micros(5_000_000);
        assert_eq!((0..80).filter(|_| limit.admit(now).admitted).count(), 50);
        let next = limit.admit(now + WINDOW);
        assert_eq!(next, Admission { admitted: true, withheld_before: 30 });
    }
}
