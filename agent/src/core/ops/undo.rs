//! Undo: the removal of a number that nobody holds.

use std::time::Duration;

use redisson::Moment;
use redisson::script::{self, BadReply, Call, Value};

use super::operation::Operation;
use super::release::release_call;
use super::{Failure, Op};
use crate::core::Core;
use crate::core::ids::OpId;
use crate::core::ops::verb::Undo;
use crate::journal::Record;
use crate::types::Number;

/// The multiple of the usual pause before a refused undo is repeated.
const REFUSED_PAUSES: u32 = 5;

impl Undo {
    /// Returns whether new waiters wait for this undo. They do not wait for one that is planned for a later instant: the lock
    /// may expire long before.
    pub(in crate::core) fn keeps_out(&self) -> bool {
        self.after == Moment::default()
    }

    fn end(&self, core: &mut Core) {
        if self.keeps_out() {
            core.on_released(&self.name, self.kind, self.number);
        } else {
            core.on_removed(&self.name, self.number);
        }
    }
}

impl Operation for Undo {
    fn call(&self, core: &Core) -> Call {
        release_call(core, &self.name, self.kind, self.number)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, _: &Op, reply: &Value) -> Result<(), BadReply> {
        script::parse_release(reply)?;
        core.note_message(&self.name, reply);
        self.end(core);
        Ok(())
    }

    /// Repeats rarely what Redis refuses for this lock alone: there may be many such locks, and some undos never end.
    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        let refused = failure.is_about_one_lock();
        core.retry(id, if refused { pause * REFUSED_PAUSES } else { pause });
    }

    fn on_give_up(&mut self, core: &mut Core, _: OpId) {
        self.end(core);
    }

    fn each_number(&self, visit: &mut dyn FnMut(Number)) {
        visit(self.number);
    }

    fn records(&self) -> Vec<Record> {
        vec![Record::orphan(self.number, &self.name, self.kind, self.after)]
    }
}
