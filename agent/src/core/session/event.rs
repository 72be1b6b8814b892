//! Events that a session receives about its holds.

use redisson::{Kind, LockName, Moment};

use crate::protocol::resp::Frame;
use crate::types::End;

/// An event of a hold that its session is notified of.
#[derive(Debug, Clone)]
pub(in crate::core) enum Event {
    /// Renewals fail.
    Jeopardy(Validity),
    /// Renewals succeed again.
    Safe,
    /// The hold ended without its owner's action.
    Lost(End),
    /// The hold was renewed.
    Valid(Validity),
}

/// The remaining validity of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct Validity {
    pub(in crate::core) ms: u64,
    pub(in crate::core) until: Moment,
}

impl Event {
    /// Returns its word in the reply to EVENTS.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Jeopardy(_) => "jeopardy",
            Self::Safe => "safe",
            Self::Lost(_) => "lost",
            Self::Valid(_) => "valid",
        }
    }

    /// Returns its word in a push.
    pub(super) fn push_word(&self) -> &'static str {
        match self {
            Self::Jeopardy(_) => "lock-jeopardy",
            Self::Safe => "lock-safe",
            Self::Lost(_) => "lock-lost",
            Self::Valid(_) => "lock-valid",
        }
    }

    /// Returns the parts of the event: that word, the name, the kind, and details.
    pub(super) fn frames(&self, word: &'static str, name: &LockName, kind: Kind) -> Vec<Frame> {
        let mut frames =
            vec![Frame::word(word), Frame::bytes(name.as_bytes()), Frame::word(kind.as_str())];
        match self {
            Self::Jeopardy(Validity { ms, until }) | Self::Valid(Validity { ms, until }) => {
                frames.extend([Frame::count(*ms), Frame::count(until.as_nanos())]);
            }
            Self::Lost(end) => frames.push(Frame::word(end.as_str())),
            Self::Safe => {}
        }
        frames
    }
}
