//! Replies, before they are written in RESP2 or RESP3.

use std::borrow::Cow;

/// One value of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// `+OK` and the like.
    Simple(&'static str),
    /// `-CODE sentence`; the code is the first word.
    Error(String),
    /// A whole number.
    Int(i64),
    /// A string of any bytes.
    Bulk(Cow<'static, [u8]>),
    /// Nothing, where a whole reply is expected: `_`, in RESP2 `*-1`.
    Null,
    /// Nothing within a map or list: `_`, in RESP2 `$-1`.
    NullValue,
    Array(Vec<Self>),
    /// Pairs: a map, in RESP2 a flat list.
    Map(Vec<(&'static str, Self)>),
}

impl Frame {
    /// A string that the program itself spells.
    #[must_use]
    pub fn word(text: &'static str) -> Self {
        Self::Bulk(Cow::Borrowed(text.as_bytes()))
    }

    /// A string made at run time.
    #[must_use]
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(Cow::Owned(bytes.into()))
    }

    /// A count or a duration; beyond 2^63 it stays there.
    #[must_use]
    pub fn count(n: u64) -> Self {
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }

    /// `value` or nothing.
    #[must_use]
    pub fn or_null(value: Option<Self>) -> Self {
        value.unwrap_or(Self::NullValue)
    }
}

/// Which version of the protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2, until a client says HELLO 3.
    #[default]
    Resp2,
    Resp3,
}

/// What a connection is given to write, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    /// The reply to the oldest command not yet answered.
    Reply(Frame),
    /// The same, after which the connection speaks another version, its own reply included (HELLO).
    Switch(Protocol, Frame),
    /// Something unasked, for a RESP3 session that asked for pushes. The first element names it.
    Push(Vec<Frame>),
    /// Nothing more follows: write what there is, then close (QUIT).
    Close,
}
