//! Workers that acquire locks of all kinds but red, one or two at once, hold them, and leave.

use std::time::Duration;

use redisson::Kind;

use super::super::requests::{hold_request, lock_request};
use super::World;
use crate::protocol::command::{Command, HoldRequest, Wait};
use crate::protocol::resp::Frame;
use crate::types::ConnectionId;

/// Names by family: plain, read-write, fair. There are two of each, so that a worker can acquire several at once.
pub(super) const NAMES: [[&str; 2]; 3] = [["p", "q"], ["r", "s"], ["f", "g"]];

/// A connection with one command at a time.
#[derive(Debug, Default)]
pub(in crate::core) struct Worker {
    /// The locks that it holds according to the replies, and the hold counts.
    pub(super) held: Vec<(&'static str, Kind, u32)>,
    pub(super) pending: Option<Pending>,
}

#[derive(Debug, Clone)]
pub(super) enum Pending {
    Lock(&'static str, Kind),
    /// Sent by a worker that holds nothing.
    Several([&'static str; 2], Kind),
    Unlock(&'static str, Kind),
    UnlockSeveral,
    Extend,
}

fn hold_of(lock: &str, kind: Kind) -> HoldRequest {
    HoldRequest { kind: Some(kind), ..hold_request(lock) }
}

impl World {
    pub(super) fn choose_command(&mut self, agent: usize, connection: ConnectionId) {
        let Some(worker) = self.workers.get(&(agent, connection)) else { return };
        if worker.pending.is_some() {
            return;
        }
        let held = worker.held.clone();
        if self.working && self.rng.one_in(40) {
            self.leave(agent, connection);
            return self.join(agent);
        }
        if held.is_empty() && !self.working {
            return self.leave(agent, connection);
        }
        let (pending, command) =
            if held.is_empty() { self.first_command() } else { self.next_command(&held) };
        self.log(|| format!("agent {agent} connection {connection:?} wants {pending:?}"));
        if let Some(worker) = self.workers.get_mut(&(agent, connection)) {
            worker.pending = Some(pending);
        }
        self.command(agent, connection, command);
    }

    /// Chooses a command for a worker that holds nothing.
    fn first_command(&mut self) -> (Pending, Command) {
        let family = self.rng.index(NAMES.len());
        let kind = match family {
            0 => self.rng.pick(&[Kind::Lock, Kind::Fenced]),
            1 => self.rng.pick(&[Kind::Read, Kind::Read, Kind::Write]),
            _ => Kind::Fair,
        };
        let wait = self.wait();
        let lease = if self.rng.one_in(4) { self.lease() } else { None };
        if self.rng.one_in(3) {
            let names = NAMES[family];
            let each = names.map(|lock| lock_request(lock, kind, wait, lease));
            return (Pending::Several(names, kind), Command::LockAll(each.to_vec()));
        }
        let lock = self.rng.pick(&NAMES[family]);
        (Pending::Lock(lock, kind), Command::Lock(lock_request(lock, kind, wait, lease)))
    }

    /// Chooses a command for a worker that holds something: reentry, a read under its write hold, a release. Its waits are
    /// limited, since two such workers could wait for each other.
    fn next_command(&mut self, held: &[(&'static str, Kind, u32)]) -> (Pending, Command) {
        let (lock, kind, _) = self.rng.pick(held);
        let soon = Wait::AtMost(Duration::from_micros(self.think()));
        match self.rng.within(0..10) {
            0 | 1 if self.working => {
                let request = lock_request(lock, kind, soon, None);
                (Pending::Lock(lock, kind), Command::Lock(request))
            }
            2 | 3 if self.working && kind == Kind::Write => {
                let request = lock_request(lock, Kind::Read, soon, None);
                (Pending::Lock(lock, Kind::Read), Command::Lock(request))
            }
            4 if self.working => {
                let lease = if self.rng.one_in(2) { self.lease() } else { None };
                (Pending::Extend, Command::Extend(hold_of(lock, kind), lease))
            }
            5 | 6 if held.iter().all(|(_, _, count)| *count == 1) => {
                let each = held.iter().map(|(lock, kind, _)| hold_of(lock, *kind)).collect();
                (Pending::UnlockSeveral, Command::UnlockAll(each))
            }
            _ => (Pending::Unlock(lock, kind), Command::Unlock(hold_of(lock, kind))),
        }
    }

    pub(super) fn handle_reply(&mut self, agent: usize, connection: ConnectionId, reply: &Frame) {
        let pause = self.think();
        let Some(worker) = self.workers.get_mut(&(agent, connection)) else { return };
        let Some(pending) = worker.pending.take() else {
            self.violation = Some(format!("{reply:?} answers no command"));
            return;
        };
        let unavailable = matches!(reply, Frame::Error(text) if text.starts_with("UNAVAILABLE"));
        let mut grants = Vec::new();
        match (pending, reply) {
            (Pending::Lock(lock, kind), Frame::Map(pairs)) => {
                grants.push((lock, kind, count(pairs)));
            }
            (Pending::Several(names, kind), Frame::Array(maps)) => {
                for (lock, map) in names.into_iter().zip(maps) {
                    let Frame::Map(pairs) = map else { continue };
                    grants.push((lock, kind, count(pairs)));
                }
                if grants.len() < names.len() {
                    self.violation = Some(format!("some and not all were granted: {reply:?}"));
                }
                self.scenario.coverage.several += 1;
            }
            (Pending::Several(names, _), _) => {
                let core = &self.agents[agent].core;
                let left = core.leases.iter().find(|hold| hold.owner.connection == connection);
                if let Some(hold) = left {
                    self.violation =
                        Some(format!("{reply:?} for {names:?}, and {} is held", hold.name));
                }
            }
            (Pending::Unlock(lock, kind), _) => {
                let left = match reply {
                    Frame::Int(left) => u32::try_from(*left).unwrap_or(0),
                    // The agent has released it once, and Redis will follow.
                    _ if unavailable => {
                        let hold = worker.held.iter().find(|(l, k, _)| (*l, *k) == (lock, kind));
                        hold.map_or(0, |(.., count)| count - 1)
                    }
                    _ => 0,
                };
                worker.held.retain(|(l, k, _)| (*l, *k) != (lock, kind));
                if left > 0 {
                    worker.held.push((lock, kind, left));
                }
            }
            (Pending::UnlockSeveral, _) => worker.held.clear(),
            // The hold was lost, or the lock not granted. The worker releases what it holds one by one.
            (Pending::Lock(..) | Pending::Extend, _) => {}
        }
        self.record_grants(agent, connection, &grants);
        self.act_after(pause, agent, connection);
    }

    fn record_grants(
        &mut self,
        agent: usize,
        connection: ConnectionId,
        grants: &[(&'static str, Kind, u32)],
    ) {
        for &(lock, kind, count) in grants {
            self.grants += 1;
            self.scenario.coverage.count(kind);
            if let Some(worker) = self.workers.get_mut(&(agent, connection)) {
                worker.held.retain(|(l, k, _)| (*l, *k) != (lock, kind));
                worker.held.push((lock, kind, count));
            }
        }
    }
}

/// Returns the hold count in a grant.
fn count(pairs: &[(&'static str, Frame)]) -> u32 {
    let holds = pairs.iter().find(|(key, _)| *key == "holds").map(|(_, value)| value);
    match holds {
        Some(Frame::Int(count)) => u32::try_from(*count).unwrap_or(0),
        other => panic!("a grant without a count: {other:?}"),
    }
}
