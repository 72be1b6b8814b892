//! Workers that take red locks, hold them, and go; and what goes wrong meanwhile.

use std::time::Duration;

use redisson::{Kind, Lease, LockName};

use super::super::host::micros;
use super::World;
use super::laws::NAMES;
use crate::protocol::command::{Command, HoldRequest, LockRequest, Wait};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::SessionId;

/// One connection whose commands come one after another.
#[derive(Debug, Default)]
pub(in crate::core::simulation) struct Worker {
    /// The lock it was told that it holds, and how often.
    held: Option<(&'static str, u32)>,
    asked: Option<Asked>,
}

#[derive(Debug, Clone, Copy)]
enum Asked {
    Lock(&'static str),
    Unlock,
    Extend,
}

pub(in crate::core) fn lock_name(lock: &str) -> LockName {
    LockName::new(lock.as_bytes()).expect("a short name")
}

pub(in crate::core) fn red_lock(lock: &str, wait: Wait, lease: Option<Lease>) -> Command {
    Command::Lock(LockRequest {
        name: lock_name(lock),
        kind: Kind::Red,
        wait,
        lease,
        owner: 0,
        session: None,
        traceparent: None,
    })
}

pub(in crate::core) fn hold_request(lock: &str) -> HoldRequest {
    HoldRequest { name: lock_name(lock), kind: None, owner: 0, session: None }
}

impl World {
    pub(in crate::core::simulation) fn join(&mut self, agent: usize) {
        let session = self.open(agent);
        self.agents[agent].workers.insert(session, Worker::default());
        let pause = self.think();
        self.act_after(pause, agent, session);
    }

    pub(in crate::core::simulation) fn think(&mut self) -> u64 {
        let lease = micros(self.settings.lease.duration());
        let most = match self.dice.within(0..10) {
            0..4 => 1000,
            4..7 => 60_000,
            7..9 => lease / 3,
            _ => lease * 3 / 2,
        };
        self.dice.within(20..most)
    }

    /// One worker's next deed.
    pub(in crate::core::simulation) fn act(&mut self, agent: usize, session: SessionId) {
        let Some(worker) = self.agents[agent].workers.get_mut(&session) else { return };
        if worker.asked.is_some() {
            return;
        }
        let held = worker.held;
        if self.working && self.dice.one_in(30) {
            self.agents[agent].workers.remove(&session);
            self.close(agent, session);
            return self.join(agent);
        }
        let (asked, command) = match held {
            None if !self.working => {
                self.agents[agent].workers.remove(&session);
                return self.close(agent, session);
            }
            Some((lock, _)) if self.working && self.dice.one_in(5) => {
                (Asked::Lock(lock), self.wish_for(lock))
            }
            Some((lock, _)) if self.working && self.dice.one_in(5) => {
                let lease = if self.dice.one_in(2) { self.lease() } else { None };
                (Asked::Extend, Command::Extend(hold_request(lock), lease))
            }
            Some((lock, _)) => (Asked::Unlock, Command::Unlock(hold_request(lock))),
            None => {
                let lock = self.dice.pick(&NAMES);
                (Asked::Lock(lock), self.wish_for(lock))
            }
        };
        if let Some(worker) = self.agents[agent].workers.get_mut(&session) {
            worker.asked = Some(asked);
        }
        self.command(agent, session, command);
    }

    fn wish_for(&mut self, lock: &'static str) -> Command {
        let wait = match self.dice.within(0..4) {
            0 | 1 => Wait::Forever,
            2 => Wait::AtMost(Duration::ZERO),
            _ => Wait::AtMost(Duration::from_micros(self.think())),
        };
        let lease = if self.dice.one_in(3) { self.lease() } else { None };
        red_lock(lock, wait, lease)
    }

    pub(in crate::core::simulation) fn lease(&mut self) -> Option<Lease> {
        let most = self.dice.pick(&[300, 2000, 5000]);
        Lease::new(Duration::from_millis(self.dice.within(100..most)))
    }

    /// A worker hears something.
    pub(in crate::core::simulation) fn told(
        &mut self,
        agent: usize,
        session: SessionId,
        outgoing: Outgoing,
    ) {
        let Outgoing::Reply(frame) = outgoing else { return };
        let pause = self.think();
        let Some(worker) = self.agents[agent].workers.get_mut(&session) else { return };
        let Some(asked) = worker.asked.take() else {
            self.breach = Some(format!("{frame:?} answers nothing"));
            return;
        };
        match (asked, &frame) {
            (Asked::Lock(lock), Frame::Map(pairs)) => {
                let holds = pairs.iter().find(|(key, _)| *key == "holds").map(|(_, value)| value);
                let Some(Frame::Int(count)) = holds else {
                    self.breach = Some(format!("no count in {frame:?}"));
                    return;
                };
                worker.held = Some((lock, u32::try_from(*count).unwrap_or(0)));
                self.grants += 1;
            }
            (Asked::Unlock, Frame::Int(left)) => {
                let lock = worker.held.map(|(lock, _)| lock);
                worker.held = lock
                    .filter(|_| *left > 0)
                    .map(|lock| (lock, u32::try_from(*left).unwrap_or(0)));
            }
            // It is over, as far as this worker is concerned: released, lost, or not to be told.
            (_, Frame::Error(text)) if !text.starts_with("UNAVAILABLE") => worker.held = None,
            (Asked::Unlock, Frame::Error(_)) => {
                let left = worker.held.filter(|(_, count)| *count > 1);
                worker.held = left.map(|(lock, count)| (lock, count - 1));
            }
            _ => {}
        }
        self.act_after(pause, agent, session);
    }

    /// Something goes wrong with a minority of the servers, as a rule.
    pub(in crate::core::simulation) fn fault(&mut self) {
        if !self.faulty {
            return;
        }
        let lease = micros(self.settings.lease.duration());
        let node = self.dice.index(self.servers.len());
        let longest = self.dice.pick(&[100_000, lease / 2, lease * 2]);
        let time = self.dice.within(1000..longest);
        match self.dice.within(0..12) {
            0..3 => self.freeze(node, Duration::from_micros(time)),
            3..5 if self.servers[node].up => self.kill(node, false),
            5 if self.servers[node].up && self.forgetful => self.kill(node, true),
            3..8 => self.start(node),
            8 => self.servers[node].slow = self.dice.pick(&[1000, 30_000, 80_000]),
            9 => self.servers[node].slow = 0,
            10 => {
                let agent = self.dice.index(self.agents.len());
                self.stall(agent, time);
            }
            _ => {
                let full = self.servers[node].redis.full;
                self.servers[node].redis.full = !full;
            }
        }
        let pause = self.dice.within(1000..lease);
        self.fault_after(pause);
    }

    /// Everything is well from now on.
    pub(in crate::core::simulation) fn heal(&mut self) {
        self.log(|| "everything is mended".to_owned());
        self.faulty = false;
        self.calm_since = self.now;
        for node in 0..self.servers.len() {
            self.servers[node].frozen_until = self.now;
            self.servers[node].slow = 0;
            self.servers[node].redis.full = false;
            self.start(node);
            self.thaw(node);
        }
    }
}
