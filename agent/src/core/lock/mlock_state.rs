//! The progress of an MLOCK or MUNLOCK.

use redisson::{LockName, Moment};

use crate::core::ids::ReplyTo;
use crate::core::session::reply::{Grant, Reply};
use crate::protocol::command::LockRequest;
use crate::protocol::resp::Frame;

/// An MLOCK or MUNLOCK in progress.
#[derive(Debug)]
pub(in crate::core) struct MultiLock {
    pub(super) reply_to: ReplyTo,
    pub(super) goal: Goal,
    /// The request for each member; empty for MUNLOCK.
    pub(super) requests: Vec<LockRequest>,
    /// The members, in the order in which the worker named them.
    pub(super) members: Vec<Member>,
    /// The order in which they are acquired.
    pub(super) order: Vec<usize>,
    pub(super) since: Moment,
    /// The end of its wait.
    pub(super) until: Moment,
    /// The leases run from now on, all from the same instant.
    pub(super) leased: bool,
    /// The deadline that is set for its limited wait.
    pub(in crate::core) armed: Moment,
}

/// The aim of an MLOCK or MUNLOCK.
#[derive(Debug)]
pub(super) enum Goal {
    Take,
    /// Release what was acquired, then send this reply.
    GiveUp(Frame),
    /// Release what the worker wants to release.
    GiveBack,
}

/// The progress of one member.
#[derive(Debug)]
pub(super) enum Member {
    Wanted,
    /// The LOCK is not answered yet.
    Asked,
    Taken(Grant),
    /// The lease is being set.
    Leasing(Grant),
    /// The UNLOCK is not answered yet.
    Leaving,
    /// The lock is released, or was not held: the reply about it.
    Left(Reply),
}

impl MultiLock {
    pub(super) fn is_busy(&self) -> bool {
        self.members
            .iter()
            .any(|m| matches!(m, Member::Asked | Member::Leasing(_) | Member::Leaving))
    }

    pub(super) fn taken(&self) -> impl Iterator<Item = (usize, &Grant)> {
        self.members.iter().enumerate().filter_map(|(index, member)| match member {
            Member::Taken(grant) => Some((index, grant)),
            _ => None,
        })
    }

    /// Returns the locks that it waits for without a limit.
    pub(in crate::core) fn awaited(&self) -> impl Iterator<Item = &LockName> {
        let awaits = matches!(self.goal, Goal::Take) && self.until == Moment::NEVER;
        self.requests.iter().zip(&self.members).filter_map(move |(request, member)| {
            (awaits && matches!(member, Member::Wanted | Member::Asked)).then_some(&request.name)
        })
    }
}
