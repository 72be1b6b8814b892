//! Log lines of the core, and a bound on those about single holds.

use std::collections::BTreeMap;
use std::time::Duration;

use redisson::{ClientId, HolderId, LockName, Moment};

use crate::types::{End, Peer, SessionId};

/// The maximum number of lines of one kind about single holds per second. When a hundred thousand locks are lost at
/// once, a line for each would stall the agent.
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
    /// A fixed lease ran out before its owner released the hold.
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
    /// Too few replicas confirmed a grant, a reentry or an extension.
    TooFewReplicas {
        lock: LockName,
        replicas: u32,
        wanted: u32,
        refusal: Option<String>,
    },
    /// Redis refused the message about a release.
    ReleaseUnannounced {
        lock: LockName,
        error: String,
    },
    JournalFailed {
        why: String,
    },
    /// An operator released a lock by force.
    ForcedRelease {
        lock: LockName,
        /// Redis has confirmed it; otherwise its reply was lost.
        confirmed: bool,
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
    /// The beginning of the message of a kind of line, and the number of those that the bound withheld.
    Withheld(&'static str, u64),
}

impl LogLine {
    /// Returns the beginning of the message of a line that may exist once per hold, session or grant. Each such kind has a
    /// separate bound, so no flood of one kind hides another.
    pub(super) fn bounded(&self) -> Option<&'static str> {
        match self {
            Self::Jeopardy { .. } => Some("lock in jeopardy"),
            Self::LockLost { .. } => Some("lock lost"),
            Self::LeaseOverrun { .. } => Some("lease overrun"),
            Self::WorkerStopped { .. } => Some("worker stopped by a signal"),
            Self::SessionLapsed { .. } => Some("session grace expired"),
            Self::TooFewReplicas { .. } => Some("too few replicas"),
            Self::ReleaseUnannounced { .. } => Some("Redis refuses the message about a release"),
            Self::JournalFailed { .. } => Some("the journal cannot be written"),
            Self::Slept { .. }
            | Self::ForcedRelease { .. }
            | Self::WaitersRemoved { .. }
            | Self::SessionKicked { .. }
            | Self::NodeRestored { .. }
            | Self::Withheld(..) => None,
        }
    }
}

/// Counts bounded lines by their kind, in windows of a second.
#[derive(Debug, Default)]
pub(super) struct LogLimits(BTreeMap<&'static str, Window>);

/// The latest window of one kind of line.
#[derive(Debug)]
struct Window {
    begin: Moment,
    lines: u32,
    /// The number of withheld lines that no line has reported yet.
    withheld: u64,
}

impl LogLimits {
    /// Returns whether to log a line of this kind, and counts it.
    pub(super) fn admit(&mut self, kind: &'static str, now: Moment) -> bool {
        let window = self.0.entry(kind).or_insert(Window { begin: now, lines: 0, withheld: 0 });
        if now.since(window.begin) >= WINDOW {
            (window.begin, window.lines) = (now, 0);
        }
        window.lines += 1;
        let admitted = window.lines <= LINES;
        window.withheld += u64::from(!admitted);
        admitted
    }

    /// Returns the end of the first window in which lines were withheld.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let windows = self.0.values().filter(|window| window.withheld > 0);
        windows.map(|window| window.begin + WINDOW).min()
    }

    /// Takes the number of withheld lines of a kind whose window has ended.
    pub(super) fn pop_due(&mut self, now: Moment) -> Option<(&'static str, u64)> {
        let due = |window: &Window| window.withheld > 0 && window.begin + WINDOW <= now;
        let (kind, window) = self.0.iter_mut().find(|(_, window)| due(window))?;
        Some((*kind, std::mem::take(&mut window.withheld)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifty_lines_of_a_kind_are_admitted_in_a_second_and_the_rest_is_counted() {
        let (mut limits, now) = (LogLimits::default(), Moment::from_micros(5_000_000));
        let mut admitted = |kind, count| (0..count).filter(|_| limits.admit(kind, now)).count();
        assert_eq!(admitted("too few replicas", 80), 50);
        assert_eq!(admitted("lock lost", 60), 50);
        assert_eq!(admitted("lock in jeopardy", 20), 20);
        let end = now + WINDOW;
        assert_eq!(limits.next_deadline(), Some(end));
        assert_eq!(limits.pop_due(now), None);
        assert_eq!(limits.pop_due(end), Some(("lock lost", 10)));
        assert_eq!(limits.pop_due(end), Some(("too few replicas", 30)));
        assert_eq!((limits.pop_due(end), limits.next_deadline()), (None, None));
        assert!(limits.admit("lock lost", end));
    }
}
