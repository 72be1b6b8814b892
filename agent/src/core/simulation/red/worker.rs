//! Workers that acquire red locks, hold them, and leave.

use redisson::{Kind, Lease};

use super::super::requests::{hold_request, lock_request};
use super::World;
use super::invariants::NAMES;
use crate::protocol::command::{Command, Wait};
use crate::protocol::resp::Frame;
use crate::types::ConnectionId;

/// A connection with one command at a time.
#[derive(Debug, Default)]
pub(in crate::core) struct Worker {
    /// The lock that it holds according to the replies, and the hold count.
    held: Option<(&'static str, u32)>,
    pending: Option<Pending>,
}

/// A command without a reply.
#[derive(Debug, Clone, Copy)]
enum Pending {
    Lock(&'static str),
    Unlock,
    Extend,
}

pub(in crate::core) fn red_lock(lock: &str, wait: Wait, lease: Option<Lease>) -> Command {
    Command::Lock(lock_request(lock, Kind::Red, wait, lease))
}

impl World {
    pub(super) fn choose_command(&mut self, agent: usize, connection: ConnectionId) {
        let Some(worker) = self.workers.get(&(agent, connection)) else { return };
        if worker.pending.is_some() {
            return;
        }
        let held = worker.held;
        if self.working && self.rng.one_in(30) {
            self.leave(agent, connection);
            return self.join(agent);
        }
        let (pending, command) = match held {
            None if !self.working => return self.leave(agent, connection),
            Some((lock, _)) if self.working && self.rng.one_in(5) => {
                (Pending::Lock(lock), self.lock_command(lock))
            }
            Some((lock, _)) if self.working && self.rng.one_in(5) => {
                let lease = if self.rng.one_in(2) { self.lease() } else { None };
                (Pending::Extend, Command::Extend(hold_request(lock), lease))
            }
            Some((lock, _)) => (Pending::Unlock, Command::Unlock(hold_request(lock))),
            None => {
                let lock = self.rng.pick(&NAMES);
                (Pending::Lock(lock), self.lock_command(lock))
            }
        };
        if let Some(worker) = self.workers.get_mut(&(agent, connection)) {
            worker.pending = Some(pending);
        }
        self.command(agent, connection, command);
    }

    fn lock_command(&mut self, lock: &'static str) -> Command {
        let wait = self.wait();
        let lease = if self.rng.one_in(3) { self.lease() } else { None };
        red_lock(lock, wait, lease)
    }

    pub(super) fn handle_reply(&mut self, agent: usize, connection: ConnectionId, reply: &Frame) {
        let pause = self.think();
        let Some(worker) = self.workers.get_mut(&(agent, connection)) else { return };
        let Some(pending) = worker.pending.take() else {
            self.violation = Some(format!("{reply:?} answers no command"));
            return;
        };
        match (pending, reply) {
            (Pending::Lock(lock), Frame::Map(pairs)) => {
                let holds = pairs.iter().find(|(key, _)| *key == "holds").map(|(_, value)| value);
                let Some(Frame::Int(count)) = holds else {
                    self.violation = Some(format!("no hold count in {reply:?}"));
                    return;
                };
                worker.held = Some((lock, u32::try_from(*count).unwrap_or(0)));
                self.grants += 1;
            }
            (Pending::Unlock, Frame::Int(left)) => {
                let lock = worker.held.map(|(lock, _)| lock);
                worker.held = lock
                    .filter(|_| *left > 0)
                    .map(|lock| (lock, u32::try_from(*left).unwrap_or(0)));
            }
            // For this worker the hold is over: released, lost, or never granted.
            (_, Frame::Error(text)) if !text.starts_with("UNAVAILABLE") => worker.held = None,
            (Pending::Unlock, Frame::Error(_)) => {
                let left = worker.held.filter(|(_, count)| *count > 1);
                worker.held = left.map(|(lock, count)| (lock, count - 1));
            }
            _ => {}
        }
        self.act_after(pause, agent, connection);
    }
}
