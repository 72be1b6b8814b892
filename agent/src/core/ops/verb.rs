//! The data of each verb, from which its script is built. Its behaviour is the `Operation` impl in the file of the
//! verb; `Look`'s is in `force.rs`, `HolderLook`'s in `show.rs`, `NodeOp`'s in `red/node_op.rs`.

use redisson::script::{self, Call, HolderEntry, LockDetails, MissingMarkers, QueueEntry};
use redisson::shape::Holder;
use redisson::{ClientId, HolderId, Kind, Lease, LockName, Moment};
use service_kit::trace::TraceParent;
use tracing::Span;

use crate::core::ids::{HoldIndex, OpId, Owner, ReplyTo, WaiterId};
use crate::journal::HoldRecord;
use crate::types::{End, Number};

/// One waiter's attempt at a lock.
#[derive(Debug, Clone)]
pub(in crate::core) struct Attempt {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) waiter: WaiterId,
    pub(in crate::core) number: Number,
    pub(in crate::core) lease: Lease,
    /// The owner's write hold, under which it reads.
    pub(in crate::core) under: Option<Number>,
}

/// A change of one hold, for its owner.
#[derive(Debug, Clone)]
pub(in crate::core) struct HoldUpdate {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) number: Number,
    pub(in crate::core) change: Change,
    /// The count after the change.
    pub(in crate::core) count: u32,
    pub(in crate::core) owner: Owner,
    pub(in crate::core) reply_to: ReplyTo,
    /// For a read hold. Only a reentry needs another marker.
    pub(in crate::core) missing: MissingMarkers,
    /// The span of a reentering LOCK; disabled for other updates, which the hold's span records.
    pub(in crate::core) span: Span,
}

/// The requested change.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) enum Change {
    /// One more entry. With a lease the hold stays fixed; without one the watchdog renews it from now on.
    Reenter(Option<Lease>),
    /// One entry fewer.
    Partial,
    /// A fixed lease from now, or renewal by the watchdog.
    Extend(Option<Lease>),
}

impl Change {
    /// Returns the requested lease, if any.
    pub(in crate::core) fn lease(self) -> Option<Lease> {
        match self {
            Self::Reenter(lease) | Self::Extend(lease) => lease,
            Self::Partial => None,
        }
    }
}

/// A hold that has ended for its owner and is being removed from Redis.
#[derive(Debug, Clone)]
pub(in crate::core) struct Ending {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) number: Number,
    pub(in crate::core) end: End,
    /// The command that waits for the end.
    pub(in crate::core) reply_to: Option<ReplyTo>,
    /// Before this instant, a repeated release that finds no field counts as the one that removed it. One that is sent
    /// later and finds none proves no loss.
    pub(in crate::core) valid_until: Moment,
    /// The longest lease for which Redis may still keep it.
    pub(in crate::core) longest: Lease,
    /// True if its last lease is shorter, so that a server with older data may keep it beyond its end.
    pub(in crate::core) shortened: bool,
    /// The servers of a red lock that may have it.
    pub(in crate::core) nodes: Vec<usize>,
    /// The span of the hold, as the parent of the release's.
    pub(in crate::core) trace_parent: TraceParent,
    /// A message has reported its forced release.
    pub(in crate::core) claimed_forced: bool,
}

/// The release of a hold that has ended.
#[derive(Debug, Clone)]
pub(in crate::core) struct Release(pub(in crate::core) Ending);

/// A hold to be renewed, in its state at the time of sending.
#[derive(Debug, Clone)]
pub(in crate::core) struct Renewal {
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) number: Number,
    pub(in crate::core) index: HoldIndex,
}

/// The properties that holds of one renewal script share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) struct RenewalForm {
    /// For read holds, whose markers must be renewed.
    pub(in crate::core) reads: Option<MissingMarkers>,
    /// For holds that are verified and not extended: their lease is fixed, or their worker is stopped.
    pub(in crate::core) verify: bool,
    /// The hold count of each of them.
    pub(in crate::core) count: u32,
}

impl RenewalForm {
    /// Returns the script. Each hold comes with the rest of its own lease, if that is fixed; `lease` is that of the others.
    pub(in crate::core) fn call<'a>(
        self,
        holds: impl IntoIterator<Item = (&'a LockName, HolderId, Option<Lease>)>,
        lease: Lease,
    ) -> Call {
        if let (Some(missing), true) = (self.reads, self.verify) {
            return script::verify_read(holds, self.count, missing);
        }
        let holds = holds.into_iter().map(|(name, holder, _)| (name, holder));
        let lease = (!self.verify).then_some(lease);
        match self.reads {
            Some(missing) => script::renew_read(holds, self.count, lease, missing),
            None => script::renew(holds, self.count, lease),
        }
    }
}

/// A batch of renewals in one script.
#[derive(Debug, Clone)]
pub(in crate::core) struct Renewals {
    pub(in crate::core) form: RenewalForm,
    pub(in crate::core) holds: Vec<Renewal>,
    pub(in crate::core) span: Span,
}

/// A hand-over from a hold that has ended to a waiter.
#[derive(Debug, Clone)]
pub(in crate::core) struct HandOver {
    pub(in crate::core) from: Ending,
    pub(in crate::core) to: Attempt,
}

/// A hand-over whose successor already holds the lock, within the rest of the predecessor's validity. Until Redis has
/// answered, further holds of this agent may follow one another.
#[derive(Debug, Clone)]
pub(in crate::core) struct EarlyHandOver {
    pub(in crate::core) from: Ending,
    /// The number that Redis is to store.
    pub(in crate::core) to: Number,
    pub(in crate::core) lease: Lease,
    /// The holds that have begun and ended meanwhile; `to` is the first of them.
    pub(in crate::core) ended: Vec<Ending>,
}

/// The removal of a number that nobody holds.
#[derive(Debug, Clone)]
pub(in crate::core) struct Undo {
    /// The instant before which it is not sent.
    pub(in crate::core) after: Moment,
    pub(in crate::core) name: LockName,
    pub(in crate::core) kind: Kind,
    pub(in crate::core) number: Number,
}

/// A worker's SHOW.
#[derive(Debug, Clone)]
pub(in crate::core) struct Show {
    pub(in crate::core) name: LockName,
    pub(in crate::core) reply_to: ReplyTo,
}

/// A lookup of what other agents publish about the holders of a lock, one after the other, before the reply to SHOW.
#[derive(Debug, Clone)]
pub(in crate::core) struct HolderLook {
    pub(in crate::core) name: LockName,
    pub(in crate::core) reply_to: ReplyTo,
    pub(in crate::core) shown: Box<LockDetails>,
    /// The holders to look up; the last one is next.
    pub(in crate::core) holders: Vec<HolderId>,
    pub(in crate::core) found: Vec<(HolderId, HolderEntry)>,
}

/// The state that a forced release expects in Redis, and the hold that it ends.
#[derive(Debug, Clone)]
pub(in crate::core) struct Seen {
    /// The lock as the operator saw it.
    pub(in crate::core) shown: Box<LockDetails>,
    /// The only holder that loses its hold, if others have the lock too.
    pub(in crate::core) only: Option<Holder>,
}

/// A forced release, compared with the state in Redis at that moment.
#[derive(Debug, Clone)]
pub(in crate::core) struct Force {
    pub(in crate::core) name: LockName,
    pub(in crate::core) reply_to: ReplyTo,
    pub(in crate::core) seen: Seen,
    /// The waiters in its fair queue that will never come.
    pub(in crate::core) dead: Vec<QueueEntry>,
    /// The reply also reports the removed waiters.
    pub(in crate::core) report: bool,
}

/// A check that other agents still publish their entries, one after the other.
#[derive(Debug, Clone)]
pub(in crate::core) struct AgentCheck {
    /// The agents to check; the last one is next.
    pub(in crate::core) agents: Vec<ClientId>,
    pub(in crate::core) vanished: Vec<ClientId>,
    pub(in crate::core) next: AfterCheck,
}

/// The purpose of an [`AgentCheck`].
#[derive(Debug, Clone)]
pub(in crate::core) enum AfterCheck {
    Force(Force),
    /// Removes the agent's waiters from this lock's queue.
    Purge(LockName),
}

/// A look at a fair queue in which a vanished agent is ahead.
#[derive(Debug, Clone)]
pub(in crate::core) struct QueueLook {
    pub(in crate::core) name: LockName,
    pub(in crate::core) vanished: ClientId,
}

/// The removal of waiters that will never come.
#[derive(Debug, Clone)]
pub(in crate::core) struct Purge {
    pub(in crate::core) name: LockName,
    pub(in crate::core) vanished: ClientId,
    pub(in crate::core) dead: Vec<QueueEntry>,
}

/// A look at a lock that an operator wants released.
#[derive(Debug, Clone)]
pub(in crate::core) struct Look {
    pub(in crate::core) name: LockName,
    pub(in crate::core) reply_to: ReplyTo,
    /// The holder to release it from, if one is named.
    pub(in crate::core) holder: Option<Vec<u8>>,
    /// The reply also reports the removed waiters.
    pub(in crate::core) report: bool,
}

/// Holds of an earlier run that Redis is asked about. The script also renews them, unless their lease is fixed.
#[derive(Debug, Clone)]
pub(in crate::core) struct Adoption {
    pub(in crate::core) form: RenewalForm,
    pub(in crate::core) holds: Vec<HoldRecord>,
}

/// One script for one node.
#[derive(Debug, Clone)]
pub(in crate::core) struct NodeOp {
    pub(in crate::core) node: usize,
    pub(in crate::core) verb: NodeVerb,
}

/// The verb, in its form for one node.
#[derive(Debug, Clone)]
pub(in crate::core) enum NodeVerb {
    Acquire {
        quorum: OpId,
        attempt: Attempt,
    },
    Update {
        quorum: OpId,
        update: HoldUpdate,
    },
    /// Removes a number. A script that finds nothing counts as the release if it is a retry before `valid_until`, or was
    /// sent later.
    Release {
        quorum: OpId,
        name: LockName,
        number: Number,
        valid_until: Moment,
        /// The instant until which its former owner may rely on it.
        after: Moment,
    },
    Renew(RenewalForm, Vec<Renewal>),
    Show {
        quorum: OpId,
        name: LockName,
    },
    /// Releases for an operator the state that was seen there.
    Force {
        quorum: OpId,
        name: LockName,
        seen: Seen,
    },
    /// Restores a hold, with this lease, where it is missing and nobody else holds the lock.
    Restore(Renewal, Lease),
}

/// All verbs.
#[derive(Debug, Clone)]
pub(in crate::core) enum Verb {
    Acquire(Attempt),
    Adopt(Adoption),
    Update(HoldUpdate),
    Renew(Renewals),
    Release(Release),
    HandOver(HandOver),
    EarlyHandOver(EarlyHandOver),
    Undo(Undo),
    Show(Show),
    LookAtHolders(HolderLook),
    Look(Look),
    Force(Force),
    CheckAgents(AgentCheck),
    LookAtQueue(QueueLook),
    Purge(Purge),
    /// One server's share of a quorum operation.
    Node(NodeOp),
}
