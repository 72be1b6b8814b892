//! One request to all nodes, and their answers so far.

use redisson::script::LockDetails;
use redisson::{HolderId, LockName, Moment};

use crate::core::ids::{ReplyTo, WaiterId};
use crate::core::ops::verb::{Attempt, Ending, HoldUpdate, Look, Seen, Show};
use crate::protocol::resp::Frame;
use crate::types::{End, Number};

/// The requested change.
#[derive(Debug)]
pub(in crate::core) enum QuorumRequest {
    /// Acquires the lock for a waiter.
    Acquire(Attempt),
    /// Changes one hold's count or lease for its owner.
    Update(HoldUpdate),
    /// Ends a hold.
    Release(Ending),
    /// Removes a number that nobody holds.
    Undo(Undoing),
    /// Reads the state of the lock.
    Show(Show),
    /// Reads the state of the lock for an operator who wants it released.
    Look(Look),
    /// Releases the lock for an operator on each node.
    Force {
        look: Look,
        /// The state that was seen on each node; `None` where nothing is to be released.
        seen: Vec<Option<Seen>>,
    },
}

/// The number to remove.
#[derive(Debug)]
pub(in crate::core) struct Undoing {
    pub(in crate::core) name: LockName,
    pub(in crate::core) number: Number,
    /// The waiter whose attempt is removed. Without one, the number blocked a waiter, which then tries at once.
    pub(in crate::core) waiter: Option<WaiterId>,
}

/// The answer of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) enum Answer {
    Awaited,
    /// The request is satisfied, and stays so until then.
    Yes(Moment),
    /// The request is not satisfied.
    No(No),
    /// The state of the lock on the node.
    Shown(Box<LockDetails>),
    /// The node has no answer, for this reason. With `may_have_run` the script may have run, or may yet run.
    Failed {
        reason: String,
        may_have_run: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) enum No {
    /// Others hold the lock there.
    Held { pttl_ms: Option<u64>, holders: Vec<HolderId> },
    /// The key is not such a lock, according to this error.
    Unfit(String),
    /// The hold no longer exists there.
    Gone(End),
}

/// The state of a quorum operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuorumState {
    /// A majority said yes.
    Won,
    /// A majority is no longer possible.
    Lost,
    Open,
}

/// A quorum operation in flight.
#[derive(Debug)]
pub(in crate::core) struct QuorumOp {
    pub(in crate::core) request: QuorumRequest,
    /// The instant at which it was sent. Everything it sets is valid from then.
    pub(in crate::core) sent: Moment,
    pub(in crate::core) answers: Vec<Answer>,
    /// The latest errors of nodes that have not answered.
    pub(in crate::core) errors: Vec<Option<String>>,
    /// The reply to a command that no longer waits for the operation, due once nothing of the attempt is left.
    pub(in crate::core) final_reply: Option<(ReplyTo, Frame)>,
    /// The deadline that is set.
    pub(super) armed: Moment,
}

impl Answer {
    /// Returns the answer of a node that has none, for this reason, and has changed nothing.
    pub(super) fn unchanged(reason: impl Into<String>) -> Self {
        Self::Failed { reason: reason.into(), may_have_run: false }
    }
}

impl QuorumOp {
    pub(super) fn new(request: QuorumRequest, sent: Moment, nodes: usize) -> Self {
        Self {
            request,
            sent,
            answers: vec![Answer::Awaited; nodes],
            errors: vec![None; nodes],
            final_reply: None,
            armed: Moment::NEVER,
        }
    }

    pub(super) fn awaited(&self) -> impl Iterator<Item = usize> {
        let answers = self.answers.iter().enumerate();
        answers.filter(|(_, answer)| **answer == Answer::Awaited).map(|(node, _)| node)
    }

    pub(super) fn yes(&self) -> impl Iterator<Item = (usize, Moment)> {
        self.answers.iter().enumerate().filter_map(|(node, answer)| match answer {
            Answer::Yes(until) => Some((node, *until)),
            Answer::Awaited | Answer::No(_) | Answer::Shown(_) | Answer::Failed { .. } => None,
        })
    }

    /// Returns the nodes that may have done, or may yet do, the requested change.
    pub(super) fn may_have_done(&self) -> impl Iterator<Item = usize> {
        self.answers.iter().enumerate().filter_map(|(node, answer)| {
            let may = matches!(
                answer,
                Answer::Awaited | Answer::Yes(_) | Answer::Failed { may_have_run: true, .. }
            );
            may.then_some(node)
        })
    }

    /// Returns its state.
    pub(super) fn verdict(&self, majority: usize) -> QuorumState {
        let yes = self.yes().count();
        if yes >= majority {
            QuorumState::Won
        } else if yes + self.awaited().count() < majority {
            QuorumState::Lost
        } else {
            QuorumState::Open
        }
    }

    /// Returns whether the answers so far suffice.
    pub(super) fn is_decided(&self, majority: usize) -> bool {
        let all_answered = || self.awaited().next().is_none();
        let won = || self.verdict(majority) == QuorumState::Won;
        match self.request {
            // The last answers are worth the wait: they show the holder, and the nodes whose grant must be undone.
            QuorumRequest::Acquire(_) => won() || all_answered(),
            QuorumRequest::Update(_) => self.verdict(majority) != QuorumState::Open,
            QuorumRequest::Release(_) => won() || self.gone(majority).is_some(),
            QuorumRequest::Undo(_)
            | QuorumRequest::Show(_)
            | QuorumRequest::Look(_)
            | QuorumRequest::Force { .. } => all_answered(),
        }
    }

    /// Returns the end that a majority of answers makes certain, if any.
    pub(super) fn gone(&self, majority: usize) -> Option<End> {
        let ends: Vec<_> = self
            .answers
            .iter()
            .filter_map(|answer| match answer {
                Answer::No(No::Gone(end)) => Some(*end),
                _ => None,
            })
            .collect();
        // So many nodes lack it that the rest are not a majority.
        let certain = ends.len() > self.answers.len() - majority;
        certain.then(|| if ends.contains(&End::Stolen) { End::Stolen } else { End::Missing })
    }
}
