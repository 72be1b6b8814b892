//! Workers that take locks of all kinds but red, one or two at once, hold them, and go.

use std::time::Duration;

use redisson::Kind;

use super::super::red::{hold_request, lock_name};
use super::super::world::World;
use crate::protocol::command::{Command, HoldRequest, LockRequest, Wait};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::SessionId;

/// Names by family: plain, read-write, fair. Two of each, so that several can be taken at once.
pub(super) const NAMES: [[&str; 2]; 3] = [["p", "q"], ["r", "s"], ["f", "g"]];

/// One connection whose commands come one after another.
#[derive(Debug, Default)]
pub(in crate::core::simulation) struct Player {
    /// What it was told that it holds, and how often.
    pub(super) held: Vec<(&'static str, Kind, u32)>,
    pub(super) asked: Option<Asked>,
}

#[derive(Debug, Clone)]
pub(super) enum Asked {
    Lock(&'static str, Kind),
    /// With nothing in its hands.
    Several([&'static str; 2], Kind),
    Unlock(&'static str, Kind),
    UnlockSeveral,
    Extend,
}

fn request(lock: &str, kind: Kind, wait: Wait) -> LockRequest {
    LockRequest {
        name: lock_name(lock),
        kind,
        wait,
        lease: None,
        owner: 0,
        session: None,
        traceparent: None,
    }
}

fn held(lock: &str, kind: Kind) -> HoldRequest {
    HoldRequest { kind: Some(kind), ..hold_request(lock) }
}

impl World {
    pub(super) fn join_player(&mut self, agent: usize) {
        let session = self.open(agent);
        self.agents[agent].players.insert(session, Player::default());
        let pause = self.think();
        self.act_after(pause, agent, session);
    }

    /// One player's next deed.
    pub(in crate::core::simulation) fn play_on(&mut self, agent: usize, session: SessionId) {
        let Some(player) = self.agents[agent].players.get(&session) else { return };
        if player.asked.is_some() {
            return;
        }
        let had = player.held.clone();
        if self.working && self.dice.one_in(40) {
            self.agents[agent].players.remove(&session);
            self.close(agent, session);
            return self.join_player(agent);
        }
        if had.is_empty() && !self.working {
            self.agents[agent].players.remove(&session);
            return self.close(agent, session);
        }
        let (asked, command) =
            if had.is_empty() { self.something_new() } else { self.go_on_with(&had) };
        self.log(|| format!("agent {agent} session {session:?} wants {asked:?}"));
        if let Some(player) = self.agents[agent].players.get_mut(&session) {
            player.asked = Some(asked);
        }
        self.command(agent, session, command);
    }

    /// What somebody wants who holds nothing.
    fn something_new(&mut self) -> (Asked, Command) {
        let family = self.dice.index(NAMES.len());
        let kind = match family {
            0 => self.dice.pick(&[Kind::Lock, Kind::Fenced]),
            1 => self.dice.pick(&[Kind::Read, Kind::Read, Kind::Write]),
            _ => Kind::Fair,
        };
        let wait = match self.dice.within(0..4) {
            0 | 1 => Wait::Forever,
            2 => Wait::AtMost(Duration::ZERO),
            _ => Wait::AtMost(Duration::from_micros(self.think())),
        };
        let lease = if self.dice.one_in(4) { self.lease() } else { None };
        if self.dice.one_in(3) {
            let names = NAMES[family];
            let each = names.map(|lock| LockRequest { lease, ..request(lock, kind, wait) });
            return (Asked::Several(names, kind), Command::LockAll(each.to_vec()));
        }
        let lock = self.dice.pick(&NAMES[family]);
        (Asked::Lock(lock, kind), Command::Lock(LockRequest { lease, ..request(lock, kind, wait) }))
    }

    /// What somebody does who holds something: enters again, reads under its write hold, lets go. It waits for nothing
    /// without a limit, or two could wait for one another for ever.
    fn go_on_with(&mut self, had: &[(&'static str, Kind, u32)]) -> (Asked, Command) {
        let (lock, kind, _) = self.dice.pick(had);
        let soon = Wait::AtMost(Duration::from_micros(self.think()));
        match self.dice.within(0..10) {
            0 | 1 if self.working => {
                let request = request(lock, kind, soon);
                (Asked::Lock(lock, kind), Command::Lock(request))
            }
            2 | 3 if self.working && kind == Kind::Write => {
                let request = request(lock, Kind::Read, soon);
                (Asked::Lock(lock, Kind::Read), Command::Lock(request))
            }
            4 if self.working => {
                let lease = if self.dice.one_in(2) { self.lease() } else { None };
                (Asked::Extend, Command::Extend(held(lock, kind), lease))
            }
            5 | 6 if had.iter().all(|(_, _, count)| *count == 1) => {
                let each = had.iter().map(|(lock, kind, _)| held(lock, *kind)).collect();
                (Asked::UnlockSeveral, Command::UnlockAll(each))
            }
            _ => (Asked::Unlock(lock, kind), Command::Unlock(held(lock, kind))),
        }
    }

    /// A player hears something.
    pub(in crate::core::simulation) fn told_player(
        &mut self,
        agent: usize,
        session: SessionId,
        outgoing: Outgoing,
    ) {
        let Outgoing::Reply(frame) = outgoing else { return };
        let pause = self.think();
        let Some(player) = self.agents[agent].players.get_mut(&session) else { return };
        let Some(asked) = player.asked.take() else {
            self.breach = Some(format!("{frame:?} answers nothing"));
            return;
        };
        let unavailable = matches!(&frame, Frame::Error(text) if text.starts_with("UNAVAILABLE"));
        let mut grants = Vec::new();
        match (asked, &frame) {
            (Asked::Lock(lock, kind), Frame::Map(pairs)) => grants.push((lock, kind, count(pairs))),
            (Asked::Several(names, kind), Frame::Array(maps)) => {
                for (lock, map) in names.into_iter().zip(maps) {
                    let Frame::Map(pairs) = map else { continue };
                    grants.push((lock, kind, count(pairs)));
                }
                if grants.len() < names.len() {
                    self.breach = Some(format!("some and not all: {frame:?}"));
                }
                self.turns.several += 1;
            }
            (Asked::Several(names, _), _) => {
                let core = &self.agents[agent].core;
                let left = core.leases.iter().find(|hold| hold.owner.session == session);
                if let Some(hold) = left {
                    self.breach =
                        Some(format!("{frame:?} for {names:?}, and {} is held", hold.name));
                }
            }
            (Asked::Unlock(lock, kind), reply) => {
                let left = match reply {
                    Frame::Int(left) => u32::try_from(*left).unwrap_or(0),
                    // It is one less, though Redis does not say so yet.
                    _ if unavailable => {
                        let had = player.held.iter().find(|(l, k, _)| (*l, *k) == (lock, kind));
                        had.map_or(0, |(.., count)| count - 1)
                    }
                    _ => 0,
                };
                player.held.retain(|(l, k, _)| (*l, *k) != (lock, kind));
                if left > 0 {
                    player.held.push((lock, kind, left));
                }
            }
            (Asked::UnlockSeveral, _) => player.held.clear(),
            // It was lost, or the lock cannot be had: whatever is held is given back one by one.
            (Asked::Lock(..) | Asked::Extend, _) => {}
        }
        self.got(agent, session, &grants);
        self.act_after(pause, agent, session);
    }

    fn got(&mut self, agent: usize, session: SessionId, grants: &[(&'static str, Kind, u32)]) {
        for &(lock, kind, count) in grants {
            self.grants += 1;
            self.turns.count(kind);
            if let Some(player) = self.agents[agent].players.get_mut(&session) {
                player.held.retain(|(l, k, _)| (*l, *k) != (lock, kind));
                player.held.push((lock, kind, count));
            }
        }
    }
}

/// How often the grant says that it is held now.
fn count(pairs: &[(&'static str, Frame)]) -> u32 {
    let holds = pairs.iter().find(|(key, _)| *key == "holds").map(|(_, value)| value);
    match holds {
        Some(Frame::Int(count)) => u32::try_from(*count).unwrap_or(0),
        other => panic!("a grant without a count: {other:?}"),
    }
}
