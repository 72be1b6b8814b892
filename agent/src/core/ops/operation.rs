//! The description of a verb: its script, and the effect of each outcome. Each verb has one file with one description.

use std::time::Duration;

use redisson::LockName;
use redisson::script::{BadReply, Call, Value};
use service_kit::trace::TraceParent;

use super::{Failure, NO_ANSWER, Op};
use crate::core::ids::{OpId, ReplyTo};
use crate::core::ops::verb::Verb;
use crate::core::{Core, Lane, Node};
use crate::journal::Record;
use crate::protocol::resp::Frame;
use crate::types::Number;

/// The answer to the commands for which Redis stayed silent.
pub(in crate::core) struct Silence {
    pub(in crate::core) reply_to: Vec<ReplyTo>,
    pub(in crate::core) reply: Frame,
    /// The script is repeated nevertheless.
    pub(in crate::core) goes_on: bool,
}

/// One script: its arguments, its connection, and the consequences of each outcome.
pub(in crate::core) trait Operation {
    /// Returns the script and its arguments.
    fn call(&self, core: &Core) -> Call;

    /// Handles the reply.
    ///
    /// # Errors
    /// Fails if none of our scripts gives such a reply; the script then counts as refused.
    fn on_reply(&self, core: &mut Core, id: OpId, op: &Op, reply: &Value) -> Result<(), BadReply>;

    /// Handles a failure. `pause` is the backoff before a retry.
    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        match (self.command(), failure) {
            (Some((reply_to, name)), Failure::Refused(_)) => {
                // An earlier copy of the script may have run.
                if core.take_op(id).is_some_and(|op| op.may_have_run) {
                    self.on_unknown(core);
                }
                core.answer(reply_to, Core::unavailable_for(name, failure.text()));
            }
            _ => core.retry(id, pause),
        }
    }

    /// Handles the case where the affected lease has expired, so that a retry is useless. The operation is no longer in
    /// flight.
    fn on_give_up(&mut self, core: &mut Core, _id: OpId) {
        self.on_silence(core);
        if let Some(silence) = self.silence(NO_ANSWER) {
            core.answer_all(silence);
        }
    }

    /// Returns the server and the connection to send the script to.
    fn route(&self, _core: &Core) -> (Node, Lane) {
        (Node::Main, Lane::Commands)
    }

    /// Returns the command that the script serves, with the name of its lock, if the script is not repeated once that
    /// command is answered.
    fn command(&self) -> Option<(ReplyTo, &LockName)> {
        None
    }

    /// Returns whether a worker waits for the reply: for the response timeout, and a little longer if the agent is held up.
    fn is_awaited(&self) -> bool {
        self.command().is_some()
    }

    /// Handles the end of the time in which Redis should have answered, before the waiting commands are answered.
    fn on_silence(&self, _core: &mut Core) {}

    /// Handles the end of the attempts at a script that may have run, before the waiting commands are answered.
    fn on_unknown(&self, _core: &mut Core) {}

    /// Takes the waiting commands, and returns the answer to them. `why` describes what Redis did instead of answering.
    fn silence(&mut self, why: &str) -> Option<Silence> {
        let (reply_to, name) = self.command()?;
        let reply = Core::unavailable_for(name, why);
        Some(Silence { reply_to: vec![reply_to], reply, goes_on: false })
    }

    /// Visits the numbers whose fields the script may write or remove. They do not change while it is in flight.
    fn each_number(&self, _visit: &mut dyn FnMut(Number)) {}

    /// Returns the hold that the script ends. The journal must record the end before the script is sent: a successor
    /// that finds a hold there but not in Redis reports it as lost.
    fn ends_hold(&self) -> Option<Number> {
        None
    }

    /// Returns whether a reply from before a sleep of the agent may be outdated, so that Redis is asked again.
    fn is_stale_after_sleep(&self, _core: &Core) -> bool {
        false
    }

    /// Returns whether the agent may end without knowing the outcome.
    fn may_be_abandoned(&self, _core: &Core) -> bool {
        false
    }

    /// Returns the span that the script is part of.
    fn trace_parent(&self, _core: &Core) -> TraceParent {
        TraceParent::default()
    }

    /// Returns the journal records that a successor needs about it.
    fn records(&self) -> Vec<Record> {
        Vec::new()
    }
}

/// Returns what a verb contains.
macro_rules! content {
    ($verb:expr) => {
        match $verb {
            Verb::Acquire(verb) => verb,
            Verb::Adopt(verb) => verb,
            Verb::Update(verb) => verb,
            Verb::Renew(verb) => verb,
            Verb::Release(verb) => verb,
            Verb::HandOver(verb) => verb,
            Verb::EarlyHandOver(verb) => verb,
            Verb::Undo(verb) => verb,
            Verb::Show(verb) => verb,
            Verb::LookAtHolders(verb) => verb,
            Verb::Look(verb) => verb,
            Verb::Force(verb) => verb,
            Verb::CheckAgents(verb) => verb,
            Verb::LookAtQueue(verb) => verb,
            Verb::Purge(verb) => verb,
            Verb::Node(verb) => verb,
        }
    };
}

impl Verb {
    pub(in crate::core) fn operation(&self) -> &dyn Operation {
        content!(self)
    }

    pub(in crate::core) fn operation_mut(&mut self) -> &mut dyn Operation {
        content!(self)
    }
}
