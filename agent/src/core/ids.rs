//! The identifiers by which tables refer to each other's entries.

use redisson::LockName;

use crate::core::side::Side;
use crate::types::{ConnectionId, Number};

/// The number of an op, unique within this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// The index of a hold in memory as long as the hold lasts. Another hold may use it afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::core) struct HoldIndex(pub(in crate::core) usize);

/// The id of a waiter: the first number drawn for it.
pub(in crate::core) type WaiterId = Number;

/// One owner of one session: a holder of locks, for the agent. Its session is identified by its current or last
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::core) struct Owner {
    pub(in crate::core) connection: ConnectionId,
    pub(in crate::core) owner: i64,
}

/// The key of a hold within its session. An owner may have a shared hold under its own exclusive one.
pub(in crate::core) type HoldKey = (i64, LockName, Side);

/// The address of one reply: its session, by the connection, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::core) struct ReplyTo {
    pub(in crate::core) connection: ConnectionId,
    pub(in crate::core) seq: u64,
    /// The index of the lock within its MLOCK or MUNLOCK; `None` for other commands.
    pub(in crate::core) member: Option<usize>,
}

impl ReplyTo {
    /// Returns the owner with that number in its session.
    pub(in crate::core) fn owner(self, owner: i64) -> Owner {
        Owner { connection: self.connection, owner }
    }

    /// Returns where the part for one member of an MLOCK or MUNLOCK belongs.
    pub(in crate::core) fn of_member(self, index: usize) -> Self {
        Self { member: Some(index), ..self }
    }
}
