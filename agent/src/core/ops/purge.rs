//! The removal of fair waiters that will never come: those of vanished agents.
//!
//! An agent has vanished if its entry in Redis has expired, but not the trace that it leaves for a day. An agent that never
//! published an entry may be alive.

use std::collections::BTreeSet;
use std::time::Duration;

use redisson::script::{self, AgentState, BadReply, Call, QueueEntry, Value};
use redisson::{ClientId, HolderId, LockName};

use super::force::WORTH;
use super::operation::Operation;
use super::{Failure, Op};
use crate::core::ids::{OpId, ReplyTo};
use crate::core::ops::verb::{AfterCheck, AgentCheck, Force, Purge, QueueLook, Verb};
use crate::core::{Core, LogLine};

impl Operation for AgentCheck {
    fn call(&self, _: &Core) -> Call {
        script::agent_state(self.agents.last().expect("a check is sent for an agent"))
    }

    fn on_reply(&self, core: &mut Core, _: OpId, _: &Op, reply: &Value) -> Result<(), BadReply> {
        core.on_agent_checked(self.clone(), script::parse_agent_state(reply)?);
        Ok(())
    }

    fn on_failure(&self, core: &mut Core, id: OpId, failure: &Failure, pause: Duration) {
        if matches!(failure, Failure::Refused(_)) {
            core.take_op(id);
            return core.on_agent_checked(self.clone(), AgentState::Unknown);
        }
        core.retry(id, pause);
    }

    fn command(&self) -> Option<(ReplyTo, &LockName)> {
        match &self.next {
            AfterCheck::Force(Force { reply_to, name, .. }) => Some((*reply_to, name)),
            AfterCheck::Purge(_) => None,
        }
    }

    fn may_be_abandoned(&self, _: &Core) -> bool {
        !self.is_awaited()
    }
}

impl Operation for QueueLook {
    fn call(&self, _: &Core) -> Call {
        script::show(&self.name)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, _: &Op, reply: &Value) -> Result<(), BadReply> {
        let dead = dead_waiters(&script::parse_show(reply)?.queue, &[self.vanished]);
        if !dead.is_empty() {
            let Self { name, vanished } = self.clone();
            core.send(Verb::Purge(Purge { name, vanished, dead }), WORTH);
        }
        Ok(())
    }

    fn may_be_abandoned(&self, _: &Core) -> bool {
        true
    }
}

impl Operation for Purge {
    fn call(&self, core: &Core) -> Call {
        script::purge_queue(&self.name, &self.dead, core.settings.publish)
    }

    fn on_reply(&self, core: &mut Core, _: OpId, _: &Op, reply: &Value) -> Result<(), BadReply> {
        let waiters = script::parse_purged(reply)?;
        core.note_message(&self.name, reply);
        if waiters > 0 {
            let (lock, agent) = (self.name.clone(), self.vanished);
            core.effects.log(core.now, LogLine::WaitersRemoved { lock, agent, waiters });
        }
        Ok(())
    }

    fn may_be_abandoned(&self, _: &Core) -> bool {
        true
    }
}

impl Core {
    /// Checks the agent of the waiter ahead of a fair waiter, and removes its waiters once it has certainly vanished.
    pub(in crate::core) fn suspect(&mut self, ahead: &HolderId, name: &LockName) {
        let other = self.numbers.is_of_other_agent(ahead);
        if other && self.vanished.begin_check(ahead.client, self.now) {
            self.check_agents(AgentCheck {
                agents: vec![ahead.client],
                vanished: Vec::new(),
                next: AfterCheck::Purge(name.clone()),
            });
        }
    }

    /// Returns the other agents in a fair queue.
    pub(in crate::core) fn other_agents(&self, queue: &[QueueEntry]) -> Vec<ClientId> {
        let agents: BTreeSet<ClientId> = queue
            .iter()
            .filter_map(|entry| HolderId::parse(&entry.waiter))
            .filter(|id| self.numbers.is_of_other_agent(id))
            .map(|id| id.client)
            .collect();
        agents.into_iter().collect()
    }

    /// Sends the check of the next agent, or continues with the result.
    pub(in crate::core) fn check_agents(&mut self, check: AgentCheck) {
        if !check.agents.is_empty() {
            self.send(Verb::CheckAgents(check), WORTH);
            return;
        }
        if let AfterCheck::Force(mut force) = check.next {
            force.dead = dead_waiters(&force.seen.shown.queue, &check.vanished);
            self.send(Verb::Force(force), WORTH);
        }
    }

    fn on_agent_checked(&mut self, mut check: AgentCheck, state: AgentState) {
        let Some(agent) = check.agents.pop() else { return };
        let vanished = state == AgentState::Vanished;
        if let AfterCheck::Purge(name) = &check.next {
            // An entry also expires while Redis is down, and its agent publishes it again soon.
            if self.vanished.on_checked(agent, vanished, self.now) {
                let look = QueueLook { name: name.clone(), vanished: agent };
                self.send(Verb::LookAtQueue(look), WORTH);
            }
            return;
        }
        if vanished {
            check.vanished.push(agent);
        }
        self.check_agents(check);
    }
}

fn dead_waiters(queue: &[QueueEntry], vanished: &[ClientId]) -> Vec<QueueEntry> {
    let is_dead = |entry: &&QueueEntry| {
        HolderId::parse(&entry.waiter)
            .is_some_and(|id| id.looks_like_agent() && vanished.contains(&id.client))
    };
    queue.iter().filter(is_dead).cloned().collect()
}
