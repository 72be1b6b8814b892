//! Batches: scripts of commands that are ready at the same time share a call of Redis, if they may.
//!
//! Each of them keeps its own outcome. A call whose reply is lost leaves as many unknown outcomes as it has scripts,
//! just as a lost connection does for its calls. A script that the batch left aside, for example because its lock is
//! not free, is sent again alone.

use redisson::script::{self, Call, parse_batch};
use service_kit::trace::TraceParent;

use super::outcome::{Outcome, Reply};
use super::turns::User;
use crate::core::{Failure, Lane, Node, OpId};

/// A script of a command.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) user: User,
    pub(super) op: OpId,
    pub(super) call: Call,
}

/// Scripts that are sent together.
#[derive(Debug)]
pub(super) enum ScriptBatch {
    Alone(Node, Lane, Script, TraceParent),
    /// Scripts for the main server, at least two, each of which may share a call.
    Shared(Vec<Script>),
}

impl ScriptBatch {
    /// Takes the scripts for the main server that may share a call, if any.
    pub(super) fn take(scripts: &mut Vec<Script>) -> Option<Self> {
        match scripts.len() {
            0 | 1 => scripts.pop().map(Self::alone),
            // Leaves room for as many.
            _ => Some(Self::Shared(scripts.split_off(0))),
        }
    }

    /// Returns a batch of one script for the main server.
    pub(super) fn alone(script: Script) -> Self {
        Self::Alone(Node::Main, Lane::Commands, script, TraceParent::default())
    }
}

/// The outcome of a script, or the scripts of a batch with theirs; `None` for a script to be called alone.
pub(super) enum Answers {
    Alone(User, Outcome),
    Batch(Vec<(Script, Option<Result<Reply, Failure>>)>),
    /// Redis refused a batch, so nothing was done. One of its scripts may be the reason.
    Refused(Vec<Script>),
}

/// Joins scripts, each of which may share a call.
pub(super) fn join(scripts: &[Script]) -> Call {
    script::batch(scripts.iter().map(|script| &script.call))
}

/// Splits the outcome of a joint call.
pub(super) fn split(scripts: Vec<Script>, outcome: Result<Reply, Failure>) -> Answers {
    let replies = match outcome {
        Ok(Reply::Plain(value) | Reply::Confirmed(value, _)) => {
            parse_batch(&value, scripts.len()).ok()
        }
        Err(Failure::Refused(_)) => return Answers::Refused(scripts),
        Err(failure) => {
            let lost = |script| (script, Some(Err(failure.clone())));
            return Answers::Batch(scripts.into_iter().map(lost).collect());
        }
    };
    // If the reply is not our script's, each is sent alone.
    let replies = replies.unwrap_or_else(|| vec![None; scripts.len()]);
    let answer = |reply: Option<_>| reply.map(|value| Ok(Reply::Plain(value)));
    Answers::Batch(scripts.into_iter().zip(replies.into_iter().map(answer)).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redisson::script::{Publish, Value};
    use redisson::{ClientId, HolderId, Lease, LockName};

    use super::*;

    fn scripts() -> Vec<Script> {
        let lease = Lease::new(Duration::from_secs(30)).unwrap();
        let holder = |number| HolderId::new(ClientId::from_random([7; 16]), number);
        let name = LockName::new(*b"a").unwrap();
        let release = script::release(&name, &holder(1), Publish::Plain);
        let acquire = script::acquire(&name, &holder(2), lease);
        let script = |(id, call)| Script { user: Some(1000), op: OpId(id), call };
        [(1, release), (2, acquire)].map(script).into()
    }

    /// Returns the number of each operation with its outcome; `None` if it is called alone.
    fn outcomes(outcome: Result<Reply, Failure>) -> Vec<(OpId, Option<bool>)> {
        let Answers::Batch(scripts) = split(scripts(), outcome) else { return Vec::new() };
        scripts
            .iter()
            .map(|(script, result)| (script.op, result.as_ref().map(Result::is_ok)))
            .collect()
    }

    #[test]
    fn each_script_of_a_batch_has_a_separate_outcome() {
        let reply = |left: &[i64]| {
            let left_aside = left.iter().copied().map(Value::Int).collect();
            Ok(Reply::Plain(Value::Array(left_aside)))
        };
        let both = |result| vec![(OpId(1), result), (OpId(2), result)];
        assert_eq!(outcomes(reply(&[])), both(Some(true)));
        assert_eq!(outcomes(reply(&[2])), [(OpId(1), Some(true)), (OpId(2), None)]);
        assert_eq!(outcomes(reply(&[1, 2])), both(None));
        assert_eq!(outcomes(Ok(Reply::Plain(Value::Int(1)))), both(None), "a script of others");
        let refused = split(scripts(), Err(Failure::Refused("OOM".into())));
        assert!(matches!(refused, Answers::Refused(scripts) if scripts.len() == 2));
        assert_eq!(outcomes(Err(Failure::Lost("timeout".into()))), both(Some(false)));
        assert_eq!(outcomes(Err(Failure::Unsent("down".into()))), both(Some(false)));
    }

    #[test]
    fn a_single_script_is_not_sent_as_a_batch() {
        let mut sharing = scripts();
        assert!(
            matches!(ScriptBatch::take(&mut sharing), Some(ScriptBatch::Shared(scripts)) if scripts.len() == 2)
        );
        assert!(ScriptBatch::take(&mut sharing).is_none());
        sharing.extend(scripts().pop());
        assert!(
            matches!(ScriptBatch::take(&mut sharing), Some(ScriptBatch::Alone(_, _, script, _)) if script.op == OpId(2))
        );
        assert!(sharing.is_empty());
    }
}
