//! What a session is told unasked, and why holds end.

use redisson::{Kind, LockName};

use crate::resp::Frame;

/// Why a hold ended: one table for events, metrics and pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// Its owner released it.
    Released,
    /// Its session ended.
    Disconnected,
    /// Its explicit lease ran out.
    Expired,
    /// Validity ran out with Redis out of reach.
    Unconfirmed,
    /// Gone from Redis.
    Missing,
    /// Another holder has it.
    Stolen,
    /// An operator released it.
    Forced,
    /// Its worker was stopped, and it was let lapse.
    Frozen,
    /// The agent ended before its worker did.
    Drained,
}

impl End {
    /// Those that count as lost.
    pub const LOST: [Self; 6] =
        [Self::Unconfirmed, Self::Missing, Self::Stolen, Self::Forced, Self::Frozen, Self::Drained];

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Disconnected => "disconnected",
            Self::Expired => "expired",
            Self::Unconfirmed => "unconfirmed",
            Self::Missing => "missing",
            Self::Stolen => "stolen",
            Self::Forced => "forced",
            Self::Frozen => "frozen",
            Self::Drained => "drained",
        }
    }

    /// Whether the owner lost it while it believed to hold it.
    #[must_use]
    pub fn is_loss(self) -> bool {
        Self::LOST.contains(&self)
    }

    /// What happened, as the rest of a sentence.
    pub(super) fn explained(self) -> &'static str {
        match self {
            Self::Released => "it was released",
            Self::Disconnected => "its session ended",
            Self::Expired => "its explicit lease ran out",
            Self::Unconfirmed => "its validity ran out while Redis could not be reached",
            Self::Missing => {
                "it is gone from Redis (expired early, deleted, evicted, or lost in a restart or failover)"
            }
            Self::Stolen => "another holder has it",
            Self::Forced => "an operator released it",
            Self::Frozen => "its process was stopped for longer than the lease (--frozen lapse)",
            Self::Drained => "the agent was shut down",
        }
    }
}

/// Something a session hears about one of its holds.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// It is not renewed; still valid for that many milliseconds.
    Jeopardy(u64),
    /// Renewed again after that.
    Safe,
    /// Ended without its owner's doing.
    Lost(End),
    /// Renewed: valid for that many milliseconds.
    Valid(u64),
}

impl Event {
    fn word(&self) -> &'static str {
        match self {
            Self::Jeopardy(_) => "jeopardy",
            Self::Safe => "safe",
            Self::Lost(_) => "lost",
            Self::Valid(_) => "valid",
        }
    }

    fn push_word(&self) -> &'static str {
        match self {
            Self::Jeopardy(_) => "lock-jeopardy",
            Self::Safe => "lock-safe",
            Self::Lost(_) => "lock-lost",
            Self::Valid(_) => "lock-valid",
        }
    }

    /// As EVENTS answers it: word, name, kind, and what there is to say.
    pub(super) fn frames(&self, pushed: bool, name: &LockName, kind: Kind) -> Vec<Frame> {
        let word = if pushed { self.push_word() } else { self.word() };
        let mut frames =
            vec![Frame::word(word), Frame::bytes(name.as_bytes()), Frame::word(kind.as_str())];
        match self {
            Self::Jeopardy(ms) | Self::Valid(ms) => frames.push(Frame::count(*ms)),
            Self::Lost(end) => frames.push(Frame::word(end.as_str())),
            Self::Safe => {}
        }
        frames
    }
}
