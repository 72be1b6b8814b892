//! Events that a session receives about its holds.

use redisson::{Kind, LockName};

use crate::protocol::resp::Frame;
use crate::types::End;

/// Something a session hears about one of its holds.
#[derive(Debug, Clone)]
pub(in crate::core) enum Event {
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
    pub(in crate::core) fn frames(&self, pushed: bool, name: &LockName, kind: Kind) -> Vec<Frame> {
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
