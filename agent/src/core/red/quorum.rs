//! One question to all nodes, and what they have answered so far.

use redisson::script::LockDetails;
use redisson::{HolderId, Lease, LockName, Moment};

use crate::core::lock::release::Ending;
use crate::core::lock::waiter::WaiterId;
use crate::core::ops::{Asked, Attempt, Change};
use crate::core::session::Slot;
use crate::protocol::resp::Frame;
use crate::types::End;
use crate::types::Number;

/// What is asked.
#[derive(Debug)]
pub(in crate::core) enum QuorumRequest {
    /// To take the lock for a waiter.
    Take(Attempt),
    /// To change one hold's count or lease for its owner.
    Keep(Asked, Change),
    /// To end a hold.
    Release(Ending),
    /// To take back a number that nobody holds.
    Undo(Undoing),
    /// To tell what stands there.
    Show(Slot, LockName),
    /// To tell what stands there to an operator who wants it released, from this holder where one is named.
    Look(Slot, LockName, Option<Vec<u8>>),
    /// To release it for an operator where it was seen: what each node showed, if anything is to be released there.
    Force(Slot, LockName, Vec<Option<Box<LockDetails>>>),
}

/// What is taken back.
#[derive(Debug)]
pub(in crate::core) struct Undoing {
    pub(in crate::core) name: LockName,
    pub(in crate::core) number: Number,
    pub(in crate::core) lease: Lease,
    /// Whose attempt it was.
    pub(in crate::core) waiter: Option<WaiterId>,
    /// Whether it stood in the way of who waits, who then tries at once.
    pub(in crate::core) wakes: bool,
}

/// What a node answered.
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
    /// What stands there is no such lock, as this error says.
    Unfit(String),
    /// The hold is not there any more.
    Gone(End),
}

/// How a ballot stands.
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
    /// When it was sent; what it sets is valid from then.
    pub(in crate::core) sent: Moment,
    pub(in crate::core) answers: Vec<Answer>,
    /// What went wrong last with nodes that are still being asked.
    pub(in crate::core) troubles: Vec<Option<String>>,
    /// What to tell the worker who no longer waits for it, once nothing is left of the attempt.
    pub(in crate::core) last_word: Option<(Slot, Frame)>,
    /// Where its deadline stands among the timers.
    pub(in crate::core) armed: Moment,
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

    /// Whether a node may have done, or may yet do, what it was asked.
    pub(super) fn may_have_done(&self) -> impl Iterator<Item = usize> {
        self.answers.iter().enumerate().filter_map(|(node, answer)| {
            let may = matches!(
                answer,
                Answer::Awaited | Answer::Yes(_) | Answer::Failed { may_have_run: true, .. }
            );
            may.then_some(node)
        })
    }

    /// How it stands.
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
