//! Replies, independent of RESP2 and RESP3.

use std::borrow::Cow;

/// One value of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// `+OK` and the like.
    Simple(&'static str),
    /// `-CODE sentence`; the code is the first word.
    Error(String),
    Int(i64),
    Bulk(Cow<'static, [u8]>),
    /// Null as a whole reply: `_`, in RESP2 `*-1`.
    Null,
    /// Null within a map or list: `_`, in RESP2 `$-1`.
    NullValue,
    Array(Vec<Self>),
    /// In RESP2 a flat list of keys and values.
    Map(Vec<(&'static str, Self)>),
}

impl Frame {
    /// Returns the number of bytes of its texts that are allocated for it.
    #[must_use]
    pub fn allocated(&self) -> usize {
        match self {
            Self::Error(text) => text.len(),
            Self::Bulk(Cow::Owned(text)) => text.len(),
            Self::Array(items) => items.iter().map(Self::allocated).sum(),
            Self::Map(pairs) => pairs.iter().map(|(_, value)| value.allocated()).sum(),
            Self::Simple(_)
            | Self::Int(_)
            | Self::Bulk(Cow::Borrowed(_))
            | Self::Null
            | Self::NullValue => 0,
        }
    }

    /// Returns a bulk string of static text.
    #[must_use]
    pub fn word(text: &'static str) -> Self {
        Self::Bulk(Cow::Borrowed(text.as_bytes()))
    }

    /// Returns a bulk string of owned bytes.
    #[must_use]
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(Cow::Owned(bytes.into()))
    }

    /// Returns a count or a duration, capped at `i64::MAX`.
    #[must_use]
    pub fn count(n: u64) -> Self {
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }

    /// Returns an array of bulk strings.
    #[must_use]
    pub fn list(items: impl IntoIterator<Item: Into<Vec<u8>>>) -> Self {
        Self::Array(items.into_iter().map(Self::bytes).collect())
    }

    #[must_use]
    pub fn or_null(value: Option<Self>) -> Self {
        value.unwrap_or(Self::NullValue)
    }
}

/// The protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// The initial version, until the client sends HELLO 3.
    #[default]
    Resp2,
    Resp3,
}

/// An item for a connection to write, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    /// The reply to the oldest unanswered command.
    Reply(Frame),
    /// A reply with which the connection switches to another version, starting with this reply (HELLO).
    Switch(Protocol, Frame),
    /// A push for a RESP3 session that enabled them. The first element is its type.
    Push(Vec<Frame>),
    /// A push that reports the loss of a hold.
    Loss(Vec<Frame>),
    /// Closes the connection once everything is written (QUIT).
    Close,
}
