//! Show: a look at a lock in Redis.

use std::time::Duration;

use redisson::script::{self, BadReply, Call, LockDetails, Value};
use redisson::{Family, LockName};

use super::operation::{Operation, Silence};
use super::{Failure, Op, no_answer};
use crate::core::Core;
use crate::core::ids::{OpId, Slot};
use crate::core::ops::verb::{Show, Verb};
use crate::core::report::list::show_frame;
use crate::protocol::resp::Frame;

impl Operation for Show {
    fn call(&self, _: &Core) -> Call {
        script::show(&self.name)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, _: &Op, reply: &Value) -> Result<(), BadReply> {
        let shown = script::parse_show(reply)?;
        core.shown(self.slot, &self.name, &shown);
        Ok(())
    }

    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        core.retry_unless_refused(id, failure, pause, self.slot, &self.name);
    }

    fn is_awaited(&self) -> bool {
        true
    }

    fn silence(&mut self, why: &str) -> Option<Silence> {
        Some(no_answer(self.slot, &self.name, why))
    }
}

impl Core {
    /// SHOW. What is no red lock here may be one elsewhere: then the one Redis of the other kinds has nothing.
    pub(in crate::core) fn show(&mut self, slot: Slot, name: LockName) {
        if self.family(&name) == Some(Family::Red) {
            return self.show_red(slot, &name);
        }
        if let Some(refusal) = self.slot_refusal(&name) {
            return self.answer(slot, refusal);
        }
        self.send(Verb::Show(Show { name, slot }), Duration::MAX);
    }

    /// Redis told what a lock looks like.
    fn shown(&mut self, slot: Slot, name: &LockName, shown: &LockDetails) {
        let reply = if shown.key_type == "none" && shown.queue_length == 0 {
            if self.settings.red.is_some() {
                return self.show_red(slot, name);
            }
            Frame::Null
        } else {
            let only_uid = self.sees_only(slot.connection);
            let known = |id: &_| self.known(id, only_uid);
            show_frame(name, shown, known, |holder| self.count_of(holder))
        };
        self.answer(slot, reply);
    }
}
