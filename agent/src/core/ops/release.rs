//! Release: the end of a hold in Redis.

use redisson::script::{self, BadReply, Call, Publish, ReleaseOutcome, Value};
use redisson::{Kind, LockName, Moment};
use service_kit::trace::TraceParent;

use super::operation::{Operation, Silence};
use super::{FAIR_WAIT, Op};
use crate::core::ids::OpId;
use crate::core::ops::verb::{Ending, Release};
use crate::core::{Core, LogLine, Report};
use crate::journal::Record;
use crate::protocol::resp::Frame;
use crate::types::{End, Number};

impl Ending {
    /// Returns the end of a hold that this script did not find in Redis: a loss, unless the script was sent when the hold
    /// was no longer valid anyway, as after an outage.
    pub(super) fn lost(&self, op: &Op, end: End) -> Option<End> {
        (op.sent < self.valid_until).then_some(end)
    }

    /// Returns the instant until which its owner may rely on the hold. If the owner has not released it, that is the end of
    /// its validity.
    pub(in crate::core) fn relied_on_until(&self) -> Moment {
        match self.end {
            End::Unconfirmed | End::Expired | End::Frozen => self.valid_until,
            End::Released
            | End::Disconnected
            | End::Missing
            | End::Stolen
            | End::Forced
            | End::Drained
            | End::Restarted => Moment::default(),
        }
    }

    /// Takes the waiting command, and returns the answer to it: Redis does not confirm that the hold is gone.
    pub(in crate::core) fn silence(&mut self, why: &str) -> Option<Silence> {
        let reply = Core::unconfirmed_end(&self.name, why);
        self.reply_to.take().map(|reply_to| Silence {
            reply_to: vec![reply_to],
            reply,
            goes_on: true,
        })
    }
}

/// Returns the script that removes a number.
pub(in crate::core) fn release_call(
    core: &Core,
    name: &LockName,
    kind: Kind,
    number: Number,
) -> Call {
    let (holder, publish) = (core.numbers.field(kind, number), core.publish_of(kind));
    match kind {
        Kind::Lock | Kind::Fenced | Kind::Red => script::release(name, &holder, publish),
        Kind::Write => script::release_write(name, &holder, publish),
        Kind::Read => script::release_read(name, &holder, publish),
        Kind::Fair => {
            let first = core.numbers.first_of_run();
            script::release_fair(name, &holder, FAIR_WAIT, &first, publish)
        }
    }
}

impl Operation for Release {
    fn call(&self, core: &Core) -> Call {
        release_call(core, &self.0.name, self.0.kind, self.0.number)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, op: &Op, reply: &Value) -> Result<(), BadReply> {
        let released = script::parse_release(reply)?;
        core.note_message(&self.0.name, reply);
        core.apply_release(&self.0, op, released);
        Ok(())
    }

    fn on_give_up(&mut self, core: &mut Core, _: OpId) {
        core.on_ended(&self.0);
    }

    fn is_awaited(&self) -> bool {
        self.0.reply_to.is_some()
    }

    fn may_be_abandoned(&self, _: &Core) -> bool {
        // Its lease expires.
        self.0.end == End::Expired
    }

    fn silence(&mut self, why: &str) -> Option<Silence> {
        self.0.silence(why)
    }

    fn each_number(&self, visit: &mut dyn FnMut(Number)) {
        visit(self.0.number);
    }

    fn ends_hold(&self) -> Option<Number> {
        Some(self.0.number)
    }

    fn trace_parent(&self, _: &Core) -> TraceParent {
        self.0.trace_parent.clone()
    }

    fn records(&self) -> Vec<Record> {
        let ending @ Ending { name, kind, number, .. } = &self.0;
        vec![Record::orphan(*number, name, *kind, ending.relied_on_until())]
    }
}

impl Core {
    /// Returns how releases of locks of that kind are published. The servers of red locks are never in the cluster.
    pub(in crate::core) fn publish_of(&self, kind: Kind) -> Publish {
        if kind == Kind::Red { Publish::Plain } else { self.settings.publish }
    }

    /// Logs that Redis refused the message about a release, if its reply says so.
    pub(in crate::core) fn note_message(&mut self, name: &LockName, reply: &Value) {
        if let Some(error) = script::unannounced(reply) {
            let lock = name.clone();
            self.effects.log(self.now, LogLine::ReleaseUnannounced { lock, error });
        }
    }

    /// Applies the reply to a release.
    fn apply_release(&mut self, ending: &Ending, op: &Op, released: ReleaseOutcome) {
        let end = match released {
            ReleaseOutcome::Released => None,
            // An earlier copy of it may have removed the hold; while it was valid nothing else can have.
            _ if op.may_have_run && self.now < ending.valid_until => None,
            ReleaseOutcome::Missing | ReleaseOutcome::WrongType => ending.lost(op, End::Missing),
            ReleaseOutcome::Stolen => ending.lost(op, End::Stolen),
        };
        self.confirm(ending, end);
        self.on_ended(ending);
    }

    /// Reports to the waiting command that the hold has ended, or that it had been lost before.
    pub(in crate::core) fn confirm(&mut self, ending: &Ending, lost: Option<End>) {
        let reply = match lost {
            // A fixed lease or a lost hold would have ended anyway.
            Some(end) if !ending.end.is_loss() && ending.end != End::Expired => {
                let forced = ending.claimed_forced && matches!(end, End::Missing | End::Stolen);
                let end = if forced { End::Forced } else { end };
                let group = self.group_label(&ending.name);
                self.effects.report(Report::Lost { group, end });
                Self::lost(&ending.name, end)
            }
            _ => Frame::Int(0),
        };
        if let Some(reply_to) = ending.reply_to {
            self.answer(reply_to, reply);
        }
    }
}
