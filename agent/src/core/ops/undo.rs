//! Undo: the removal of a number that nobody holds.

use redisson::script::{self, BadReply, Call, Value};

use super::Op;
use super::operation::Operation;
use super::release::release_call;
use crate::core::Core;
use crate::core::ids::OpId;
use crate::core::ops::verb::Undo;
use crate::journal::Record;
use crate::types::Number;

impl Operation for Undo {
    fn call(&self, core: &Core) -> Call {
        release_call(core, &self.name, self.kind, self.number)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, _: &Op, reply: &Value) -> Result<(), BadReply> {
        script::parse_release(reply)?;
        core.note_message(&self.name, reply);
        core.on_released(&self.name, self.kind, self.number);
        Ok(())
    }

    fn on_give_up(&mut self, core: &mut Core, _: OpId) {
        core.on_released(&self.name, self.kind, self.number);
    }

    fn each_number(&self, visit: &mut dyn FnMut(Number)) {
        visit(self.number);
    }

    fn records(&self) -> Vec<Record> {
        vec![Record::orphan(self.number, &self.name, self.kind, self.after)]
    }
}
