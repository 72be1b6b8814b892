//! One request to all nodes, and their answers so far.

use redisson::script::LockDetails;
use redisson::{HolderId, Lease, LockName, Moment};

use crate::core::ids::{ReplyTo, WaiterId};
use crate::core::ops::verb::{Attempt, Ending, HoldUpdate};
use crate::protocol::resp::Frame;
use crate::types::{End, Number};

/// The change that is requested.
#[derive(Debug)]
pub(in crate::core) enum QuorumRequest {
    /// To take the lock for a waiter.
    Acquire(Attempt),
    /// To change one hold's count or lease for its owner.
    Update(HoldUpdate),
    /// To end a hold.
    Release(Ending),
    /// To take back a number that nobody holds.
    Undo(Undoing),
    /// To tell what stands there.
    Show(ReplyTo, LockName),
    /// To tell what stands there to an operator who wants it released, from this holder where one is named.
    Look(ReplyTo, LockName, Option<Vec<u8>>, bool),
    /// To release it for an operator where it was seen: what each node showed, if anything is to be released there.
    Force(ReplyTo, LockName, Vec<Option<Box<LockDetails>>>, bool),
}

/// The number to remove.
#[derive(Debug)]
pub(in crate::core) struct Undoing {
    pub(in crate::core) name: LockName,
    pub(in crate::core) number: Number,
    pub(in crate::core) lease: Lease,
    /// The waiter of the attempt.
    pub(in crate::core) waiter: Option<WaiterId>,
    /// It was in the way of a waiter, which then tries at once.
    pub(in crate::core) wakes: bool,
}

/// The answer of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) enum Answer {
    Awaited,
    /// It is so, and stays so until then.
    Yes(Moment),
    /// It is not.
    No(No),
    /// That stands there.
    Shown(Box<LockDetails>),
    /// It cannot tell, for this reason. In doubt the script may have run, or may yet run.
    Failed {
        said: String,
        may_have_run: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::core) enum No {
    /// Others hold the lock there.
    Held { pttl_ms: Option<u64>, holders: Vec<HolderId> },
    /// The key is not such a lock, as this error says.
    Unfit(String),
    /// The hold is not there any more.
    Gone(End),
}

/// The state of a quorum operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A majority said yes.
    Won,
    /// No majority can come about any more.
    Lost,
    Open,
}

/// One question on its way.
#[derive(Debug)]
pub(in crate::core) struct QuorumOp {
    pub(in crate::core) request: QuorumRequest,
    /// The instant at which it was sent. What it sets is valid from then.
    pub(in crate::core) sent: Moment,
    pub(in crate::core) answers: Vec<Answer>,
    /// The latest errors of nodes that have not answered.
    pub(in crate::core) troubles: Vec<Option<String>>,
    /// The reply to a command that no longer waits for it, due once nothing is left of the attempt.
    pub(in crate::core) last_word: Option<(ReplyTo, Frame)>,
    /// The deadline that is set.
    pub(super) armed: Moment,
}

impl QuorumOp {
    pub(super) fn new(request: QuorumRequest, sent: Moment, nodes: usize) -> Self {
        Self {
            request,
            sent,
            answers: vec![Answer::Awaited; nodes],
            troubles: vec![None; nodes],
            last_word: None,
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
            _ => None,
        })
    }

    /// Returns the nodes that may have done, or may yet do, what was requested.
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
    pub(super) fn verdict(&self, majority: usize) -> Verdict {
        let yes = self.yes().count();
        if yes >= majority {
            Verdict::Won
        } else if yes + self.awaited().count() < majority {
            Verdict::Lost
        } else {
            Verdict::Open
        }
    }

    /// The end that a majority of answers makes certain, if one does.
    pub(super) fn gone(&self, majority: usize) -> Option<End> {
        let ends: Vec<_> = self
            .answers
            .iter()
            .filter_map(|answer| match answer {
                Answer::No(No::Gone(end)) => Some(*end),
                _ => None,
            })
            .collect();
        // So many nodes without it that the others are no majority.
        let certain = ends.len() > self.answers.len() - majority;
        certain.then(|| if ends.contains(&End::Stolen) { End::Stolen } else { End::Missing })
    }
}
