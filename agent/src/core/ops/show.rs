//! Show: a look at a lock in Redis.

use std::time::Duration;

use redisson::script::{self, BadReply, Call, LockDetails, Value};
use redisson::{HolderId, LockName};

use super::operation::Operation;
use super::{Failure, Op};
use crate::core::Core;
use crate::core::ids::{OpId, ReplyTo};
use crate::core::ops::verb::{HolderLook, Show, Verb};
use crate::core::report::list::show_frame;
use crate::core::report::process::HolderProcess;
use crate::protocol::resp::Frame;

/// The maximum number of other agents' holders to look up, one after the other.
const MAX_LOOKS: usize = 16;

impl Operation for Show {
    fn call(&self, _: &Core) -> Call {
        script::show(&self.name)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, _: &Op, reply: &Value) -> Result<(), BadReply> {
        let shown = script::parse_show(reply)?;
        core.shown(self, shown);
        Ok(())
    }

    fn command(&self) -> Option<(ReplyTo, &LockName)> {
        Some((self.reply_to, &self.name))
    }
}

impl Operation for HolderLook {
    fn call(&self, _: &Core) -> Call {
        script::holder_entry(self.holders.last().expect("a look is sent for a holder"))
    }

    fn on_reply(&self, core: &mut Core, _: OpId, _: &Op, reply: &Value) -> Result<(), BadReply> {
        let entry = script::parse_holder_entry(reply)?;
        let mut look = self.clone();
        if let Some(holder) = look.holders.pop() {
            look.found.push((holder, entry));
        }
        core.look_at_holders(look);
        Ok(())
    }

    /// Answers without the remaining entries.
    fn on_failure(&self, core: &mut Core, id: OpId, _: &Failure, _: Duration) {
        core.take_op(id);
        core.look_at_holders(Self { holders: Vec::new(), ..self.clone() });
    }

    fn command(&self) -> Option<(ReplyTo, &LockName)> {
        Some((self.reply_to, &self.name))
    }
}

impl Core {
    /// Starts SHOW. The name may be a red lock of other agents; then the Redis of all other kinds has nothing.
    pub(in crate::core) fn show(&mut self, reply_to: ReplyTo, name: LockName) {
        if let Some(refusal) = self.look_refusal(reply_to, &name) {
            return self.answer(reply_to, refusal);
        }
        if self.is_red_only(&name) {
            return self.show_red(Show { name, reply_to });
        }
        if let Some(refusal) = self.slot_refusal(&name) {
            return self.answer(reply_to, refusal);
        }
        self.send(Verb::Show(Show { name, reply_to }), Duration::MAX);
    }

    /// Handles the state of a lock that Redis reported.
    fn shown(&mut self, show: &Show, shown: LockDetails) {
        let Show { name, reply_to } = show.clone();
        if shown.key_type == "none" && shown.queue_length == 0 {
            return match &self.settings.red {
                Some(_) => self.show_red(Show { name, reply_to }),
                None => self.answer(reply_to, Frame::Null),
            };
        }
        let holders = shown.hash.holders.iter().map(|holder| holder.id);
        let holders =
            holders.filter(|id| self.numbers.is_of_other_agent(id)).take(MAX_LOOKS).collect();
        let shown = Box::new(shown);
        self.look_at_holders(HolderLook { name, reply_to, shown, holders, found: Vec::new() });
    }

    /// Looks up the next holder of another agent, or answers.
    fn look_at_holders(&mut self, look: HolderLook) {
        if !look.holders.is_empty() {
            self.send(Verb::LookAtHolders(look), Duration::MAX);
            return;
        }
        let only_uid = self.sees_only(look.reply_to.connection);
        let process = |id: &HolderId| {
            let published = look.found.iter().find(|(holder, _)| holder == id);
            match published {
                Some((_, entry)) => Some(HolderProcess::published(entry, only_uid)),
                None => self.known(id, only_uid).map(HolderProcess::from),
            }
        };
        let reply = show_frame(&look.name, &look.shown, process, |id| self.own_hold(id));
        self.answer(look.reply_to, reply);
    }
}
