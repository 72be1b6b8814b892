//! Invariants of all kinds but red, at every instant and at the end.

use std::ops::Range;
use std::time::Duration;

use redisson::{ClientId, HolderId, Kind, Lease, Moment, keys, script};

use super::super::numbers_in_redis;
use super::super::redis::Content;
use super::super::requests::lock_name;
use super::super::seeds::CheckResult;
use super::super::world::Replication;
use super::World;
use super::worker::NAMES;
use crate::core::lease::hold::{Hold, LeaseMode};
use crate::types::Number;

/// Counts of what the runs exercised.
#[derive(Debug, Default, Clone)]
pub(super) struct Coverage {
    pub(super) several: u64,
    plain: u64,
    read: u64,
    write: u64,
    fair: u64,
    /// Instants with several readers.
    shared: u64,
    /// Instants at which an owner read under its own write hold.
    under: u64,
    /// Grants of a fair lock to the first waiter while others were queued.
    in_turn: u64,
    /// Attempts of another client at a promoted replica that a hold on the other side refused.
    kept_out: u64,
    /// Attempts there that were granted.
    let_in: u64,
}

impl Coverage {
    pub(super) fn count(&mut self, kind: Kind) {
        match kind {
            Kind::Read => self.read += 1,
            Kind::Write => self.write += 1,
            Kind::Fair => self.fair += 1,
            _ => self.plain += 1,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.several += other.several;
        self.plain += other.plain;
        self.read += other.read;
        self.write += other.write;
        self.fair += other.fair;
        self.shared += other.shared;
        self.under += other.under;
        self.in_turn += other.in_turn;
        self.kept_out += other.kept_out;
        self.let_in += other.let_in;
    }

    /// Checks that every promise was tested often.
    pub(super) fn check(&self) {
        let counts = [self.several, self.plain, self.read, self.write, self.fair];
        let rare = [self.shared, self.under, self.in_turn];
        assert!(counts.into_iter().chain(rare).all(|count| count > 100), "{self:?}");
        let failovers = [self.kept_out, self.let_in];
        assert!(failovers.into_iter().all(|count| count > 20), "{self:?}");
    }
}

/// A fair lock's queue and holder after the last event.
#[derive(Debug, Default, Clone)]
pub(super) struct FairQueue {
    positions: Vec<String>,
    holder: Option<String>,
    server: usize,
}

impl World {
    pub(super) fn check(&mut self) -> CheckResult {
        for lock in NAMES.as_flattened() {
            self.check_holds(lock)?;
        }
        for (index, lock) in NAMES[2].iter().enumerate() {
            self.check_order(index, lock)?;
        }
        for agent in &self.agents {
            if let Some(name) = agent.core.locks.find_wrong_joiners() {
                return Err(format!("the readers that may join {name} are recorded wrongly"));
            }
        }
        self.try_at_promoted()
    }

    /// Returns the current master; the promoted one while there are two.
    fn master(&self) -> usize {
        self.replication.as_ref().map_or(0, Replication::current)
    }

    /// Lets another client try to acquire a lock at a promoted replica. It must not be granted a lock that a worker on
    /// the old master's side relies on.
    fn try_at_promoted(&mut self) -> CheckResult {
        let promoted = self.replication.as_ref().is_some_and(Replication::has_two_masters);
        if !promoted || !self.rng.one_in(8) {
            return Ok(());
        }
        let (node, lock) = (self.master(), self.rng.pick(&NAMES[0]));
        let name = lock_name(lock);
        let client = HolderId::new(ClientId::from_random([77; 16]), 1);
        let lease = Lease::new(Duration::from_millis(100)).expect("a lease within bounds");
        let before = self.servers[node].redis.has(lock, &client.to_string());
        self.foreign(node, &script::acquire(&name, &client, lease));
        let granted = !before && self.servers[node].redis.has(lock, &client.to_string());
        let now = self.boot();
        let relied_on = self.agents.iter().filter(|agent| agent.main != node).any(|agent| {
            agent.core.leases.iter().any(|hold| hold.name == name && now < hold.valid_until)
        });
        match (granted, relied_on) {
            (true, true) => {
                return Err(format!("a promoted replica grants {lock}, which a worker relies on"));
            }
            (true, false) => self.scenario.coverage.let_in += 1,
            (false, true) => self.scenario.coverage.kept_out += 1,
            (false, false) => {}
        }
        Ok(())
    }

    /// Checks that each valid hold is in Redis for long enough, and that no other hold excludes it.
    fn check_holds(&mut self, lock: &str) -> CheckResult {
        let now = self.boot();
        let name = lock_name(lock);
        let mut inside: Vec<(usize, &Hold)> = Vec::new();
        for (index, agent) in self.agents.iter().enumerate() {
            for hold in agent.core.leases.iter().filter(|hold| hold.name == name) {
                let write = hold.kind == Kind::Write;
                let field = |number| HolderId {
                    write,
                    ..HolderId::new(agent.core.numbers.client(), number)
                };
                if now < hold.valid_until {
                    for node in self.keepers() {
                        let there = |number: &Number| {
                            self.servers[node].redis.has(lock, &field(*number).to_string())
                        };
                        let number = numbers_in_redis(&agent.core, hold).find(there);
                        let field = field(number.unwrap_or(hold.number));
                        self.check_stored(node, lock, field, hold)?;
                    }
                    inside.push((index, hold));
                }
                if agent.stalled_until <= self.now {
                    self.check_reported(lock, field(hold.number), hold)?;
                }
            }
        }
        let alone = inside.iter().find(|(_, hold)| hold.kind != Kind::Read);
        if let Some((agent, hold)) = alone {
            // The owner of a write hold may read as well.
            let own = |(other, read): &(usize, &Hold)| {
                read.kind == Kind::Read
                    && hold.kind == Kind::Write
                    && (*other, read.owner) == (*agent, hold.owner)
            };
            let others = inside.iter().filter(|other| other.1.number != hold.number && !own(other));
            if let Some((_, other)) = others.into_iter().next() {
                return Err(format!("two holders of {lock}: {hold:?} and {other:?}"));
            }
        }
        let (reads, under) =
            (inside.iter().filter(|(_, hold)| hold.kind == Kind::Read).count(), alone.is_some());
        self.scenario.coverage.shared += u64::from(reads > 1);
        self.scenario.coverage.under += u64::from(reads > 0 && under);
        Ok(())
    }

    /// Returns the servers that keep every valid hold: with `--min-replicas` also the replica, which may be promoted.
    fn keepers(&self) -> Range<usize> {
        0..if self.replication.is_some() { 2 } else { 1 }
    }

    /// Checks that a server keeps a hold for at least as long as its owner assumes.
    fn check_stored(&self, node: usize, lock: &str, field: HolderId, hold: &Hold) -> CheckResult {
        let redis = &self.servers[node].redis;
        if !redis.has(lock, &field.to_string()) {
            let there = redis.fields(lock);
            return Err(format!("{field} relies on {lock}, node {node} has {there:?}"));
        }
        let mut kept = vec![lock.to_owned()];
        if hold.kind == Kind::Read {
            let marker = keys::read_marker_prefix(&hold.name, &field);
            kept.push(format!("{}:1", String::from_utf8_lossy(&marker)));
        }
        let until = hold.valid_until.as_micros();
        for key in kept {
            if !redis.keys().contains_key(&key) {
                return Err(format!("{field} holds {lock}, and node {node} has no {key}"));
            }
            if self.expiry(node, &key).is_some_and(|expires| expires < until) {
                return Err(format!("{field} relies on {lock} beyond {key} of node {node}"));
            }
        }
        Ok(())
    }

    /// Checks that jeopardy and loss are reported in time.
    fn check_reported(&self, lock: &str, field: HolderId, hold: &Hold) -> CheckResult {
        let (lease, margin) = (self.settings.lease, self.settings.lost_margin);
        // Events of this very instant may still be in the queue.
        let then = Moment::from_micros(self.now - 1);
        let watched = hold.mode == LeaseMode::Renewed;
        if watched && then >= lease.lost_at(hold.valid_until, margin) {
            return Err(format!("the loss of {field} on {lock} is reported too late"));
        }
        if watched && !hold.jeopardy && then >= lease.at_risk_at(hold.valid_until) {
            return Err(format!("the jeopardy of {field} on {lock} is reported too late"));
        }
        if then >= hold.valid_until {
            return Err(format!("{field} holds {lock} beyond its lease"));
        }
        Ok(())
    }

    /// Checks that a fair lock passes to the first living waiter, and that no living waiter loses its queue position.
    fn check_order(&mut self, index: usize, lock: &str) -> CheckResult {
        let name = lock_name(lock);
        let server = self.master();
        let redis = &self.servers[server].redis;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let positions: Vec<String> = match redis.keys().get(&text(keys::queue(&name))) {
            Some(entry) => match &entry.content {
                Content::List(positions) => positions.iter().cloned().collect(),
                other => return Err(format!("the queue of {lock} is {other:?}")),
            },
            None => Vec::new(),
        };
        let holder = redis.fields(lock).first().map(|(field, _)| field.clone());
        let queue = FairQueue { positions, holder, server };
        let before = std::mem::replace(&mut self.scenario.queues[index], queue.clone());
        if before.server != server {
            // A failover may forget positions.
            return Ok(());
        }
        if queue.holder.is_some() && queue.holder != before.holder {
            let ahead = before
                .positions
                .iter()
                .take_while(|position| Some(*position) != queue.holder.as_ref());
            let ahead: Vec<&String> =
                ahead.filter(|position| queue.positions.contains(position)).collect();
            if let Some(passed) = ahead.first() {
                return Err(format!("{lock} went to {:?} past {passed}", queue.holder));
            }
            self.scenario.coverage.in_turn += u64::from(!queue.positions.is_empty());
        }
        // An agent without stalls extends its waiters' deadlines long before they pass.
        if self.faulty || self.fault_free_since + 20_000_000 > self.now {
            return Ok(());
        }
        for position in &queue.positions {
            if !self.has_waiter(position) && !self.scenario.late_positions.contains(position) {
                return Err(format!("{position} is in the queue of {lock} without a waiter"));
            }
        }
        for dropped in
            before.positions.iter().filter(|position| !queue.positions.contains(position))
        {
            let Some(id) = HolderId::parse(dropped.as_bytes()) else { continue };
            let waits = self.agents.iter().any(|agent| {
                agent.core.numbers.client() == id.client && agent.core.locks.is_wanted(id.thread)
            });
            if waits && queue.holder.as_ref() != Some(dropped) {
                return Err(format!("{dropped} waits for {lock} and has lost its queue position"));
            }
        }
        Ok(())
    }

    /// Reports whether a queue position belongs to a waiter, or is about to be given up.
    fn has_waiter(&self, position: &str) -> bool {
        let Some(id) = HolderId::parse(position.as_bytes()) else { return false };
        self.agents.iter().filter(|agent| agent.core.numbers.client() == id.client).any(|agent| {
            let core = &agent.core;
            core.locks.is_wanted(id.thread) || core.ops.concerns(id.thread)
        })
    }

    /// Checks that nothing is left after all workers have left and all faults are repaired.
    pub(super) fn check_end(&mut self) -> CheckResult {
        if !self.workers.is_empty() {
            return Err(format!("commands without a reply: {:?}", self.workers));
        }
        self.check_idle()?;
        let mut left = self.servers[self.master()].redis.keys().clone();
        // A late script may leave a queue position, which expires. Token counters stay.
        left.retain(|key, entry| match &entry.content {
            Content::Scores(_) => false,
            Content::List(_) => !self.is_dead_queue(key),
            Content::Text(_) => !key.starts_with("redisson_lock_token:"),
            Content::Hash(_) => true,
        });
        if left.is_empty() { Ok(()) } else { Err(format!("left in Redis: {left:?}")) }
    }

    /// Reports whether all deadlines of a queue have passed.
    #[expect(clippy::cast_precision_loss, reason = "epoch milliseconds")]
    fn is_dead_queue(&self, queue: &str) -> bool {
        let redis = &self.servers[self.master()].redis;
        let deadlines = queue.replace("redisson_lock_queue:", "redisson_lock_timeout:");
        match redis.keys().get(&deadlines).map(|entry| &entry.content) {
            Some(Content::Scores(scores)) => {
                scores.values().all(|deadline| *deadline < redis.now_ms() as f64)
            }
            _ => true,
        }
    }
}
