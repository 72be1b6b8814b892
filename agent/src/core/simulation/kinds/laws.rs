//! What must hold of all kinds but red at every instant, and when all is over.

use redisson::{HolderId, Kind, Moment, keys};

use super::super::red::lock_name;
use super::super::redis::Content;
use super::super::world::World;
use super::player::NAMES;
use crate::core::lease::hold::{Hold, LeaseMode};

/// What came about in a run, so that a run in which nothing does is not taken for a good one.
#[derive(Debug, Default, Clone)]
pub(in crate::core::simulation) struct Turns {
    pub(super) several: u64,
    plain: u64,
    read: u64,
    write: u64,
    fair: u64,
    /// Instants at which several readers were inside, and at which somebody read under an own write hold.
    shared: u64,
    under: u64,
    /// Instants at which a fair lock was granted past nobody, while others stood behind.
    in_turn: u64,
}

impl Turns {
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
    }

    /// All that is promised has been put to the test.
    pub(super) fn check(&self) {
        let counts = [self.several, self.plain, self.read, self.write, self.fair];
        let rare = [self.shared, self.under, self.in_turn];
        assert!(counts.into_iter().chain(rare).all(|count| count > 100), "{self:?}");
    }
}

/// A fair lock's queue as it was, and who had the lock: whoever gets it next must be in front of all who live.
#[derive(Debug, Default, Clone)]
pub(in crate::core::simulation) struct Queue {
    places: Vec<String>,
    holder: Option<String>,
}

impl World {
    /// After every event.
    pub(in crate::core::simulation) fn check_kinds(&mut self) -> Result<(), String> {
        for lock in NAMES.as_flattened() {
            self.check_inside(lock)?;
        }
        for (index, lock) in NAMES[2].iter().enumerate() {
            self.check_order(index, lock)?;
        }
        Ok(())
    }

    /// Who believes to be inside is there in Redis, long enough, and with nobody whom it excludes.
    fn check_inside(&mut self, lock: &str) -> Result<(), String> {
        let now = self.boot();
        let name = lock_name(lock);
        let mut inside: Vec<(usize, &Hold)> = Vec::new();
        for (index, agent) in self.agents.iter().enumerate() {
            for hold in agent.core.holds.values().filter(|hold| hold.name == name) {
                let write = hold.kind == Kind::Write;
                let field = HolderId { write, ..HolderId::new(agent.core.client, hold.number) };
                if now < hold.valid_until {
                    self.check_kept(lock, field, hold)?;
                    inside.push((index, hold));
                }
                if agent.stalled_until <= self.now {
                    self.check_told(lock, field, hold)?;
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
                return Err(format!("two inside {lock}: {hold:?} and {other:?}"));
            }
        }
        let (reads, under) =
            (inside.iter().filter(|(_, hold)| hold.kind == Kind::Read).count(), alone.is_some());
        self.turns.shared += u64::from(reads > 1);
        self.turns.under += u64::from(reads > 0 && under);
        Ok(())
    }

    /// Redis keeps it for at least as long as its owner was told.
    fn check_kept(&self, lock: &str, field: HolderId, hold: &Hold) -> Result<(), String> {
        let redis = &self.servers[0].redis;
        if !redis.has(lock, &field.to_string()) {
            let there = redis.fields(lock);
            return Err(format!("{field} holds {lock} to its knowledge, Redis has {there:?}"));
        }
        let mut kept = vec![lock.to_owned()];
        if hold.kind == Kind::Read {
            let marker = keys::read_marker_prefix(&hold.name, &field);
            kept.push(format!("{}:1", String::from_utf8_lossy(&marker)));
        }
        let until = hold.valid_until.as_micros();
        for key in kept {
            if !redis.keys().contains_key(&key) {
                return Err(format!("{field} holds {lock}, and {key} is not there"));
            }
            if self.expiry(0, &key).is_some_and(|expires| expires < until) {
                return Err(format!("{field} is thought to be valid beyond {key}"));
            }
        }
        Ok(())
    }

    /// Its owner hears in time of what threatens it.
    fn check_told(&self, lock: &str, field: HolderId, hold: &Hold) -> Result<(), String> {
        let (lease, margin) = (self.settings.lease, self.settings.lost_margin);
        // What is due at this very instant may still be in the queue of events.
        let then = Moment::from_micros(self.now - 1);
        let watched = hold.mode == LeaseMode::Renewed;
        if watched && then >= lease.lost_at(hold.valid_until, margin) {
            return Err(format!("the loss of {field} on {lock} is not told in time"));
        }
        if watched && !hold.jeopardy && then >= lease.at_risk_at(hold.valid_until) {
            return Err(format!("the jeopardy of {field} on {lock} is not told"));
        }
        if then >= hold.valid_until {
            return Err(format!("{field} holds {lock} beyond its lease"));
        }
        Ok(())
    }

    /// A fair lock goes to the first of its queue. Nobody alive is passed or dropped: a place that is not in front any
    /// more, and whose waiter still waits, has outlived its deadline.
    fn check_order(&mut self, index: usize, lock: &str) -> Result<(), String> {
        let name = lock_name(lock);
        let redis = &self.servers[0].redis;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let places: Vec<String> = match redis.keys().get(&text(keys::queue(&name))) {
            Some(entry) => match &entry.content {
                Content::List(places) => places.iter().cloned().collect(),
                other => return Err(format!("the queue of {lock} is {other:?}")),
            },
            None => Vec::new(),
        };
        let holder = redis.fields(lock).first().map(|(field, _)| field.clone());
        let queue = Queue { places, holder };
        let before = std::mem::replace(&mut self.queues[index], queue.clone());
        if queue.holder.is_some() && queue.holder != before.holder {
            let ahead =
                before.places.iter().take_while(|place| Some(*place) != queue.holder.as_ref());
            let ahead: Vec<&String> = ahead.filter(|place| queue.places.contains(place)).collect();
            if let Some(passed) = ahead.first() {
                return Err(format!("{lock} went to {:?} past {passed}", queue.holder));
            }
            self.turns.in_turn += u64::from(!queue.places.is_empty());
        }
        // An agent that has not stood still has shown its waiters to be alive long before their deadlines.
        if self.faulty || self.calm_since + 20_000_000 > self.now {
            return Ok(());
        }
        for place in &queue.places {
            if !self.is_somebodys(place) && !self.belated.contains(place) {
                return Err(format!("{place} stands in the queue of {lock} for nobody"));
            }
        }
        for dropped in before.places.iter().filter(|place| !queue.places.contains(place)) {
            let Some(id) = HolderId::parse(dropped.as_bytes()) else { continue };
            let waits = self.agents.iter().any(|agent| {
                agent.core.client == id.client
                    && agent.core.waiters.values().any(|waiter| waiter.number == id.thread)
            });
            if waits && queue.holder.as_ref() != Some(dropped) {
                return Err(format!("{dropped} waits for {lock} and has lost its place"));
            }
        }
        Ok(())
    }

    /// Whether a place is a waiter's, or about to be given up.
    fn is_somebodys(&self, place: &str) -> bool {
        let Some(id) = HolderId::parse(place.as_bytes()) else { return false };
        self.agents.iter().filter(|agent| agent.core.client == id.client).any(|agent| {
            let core = &agent.core;
            core.waiters.values().any(|waiter| waiter.number == id.thread)
                || core.ops.values().any(|op| op.purpose.concerns(id.thread))
        })
    }

    /// When everybody has finished and everything was mended: nothing is left.
    pub(super) fn check_kinds_at_end(&mut self) -> Result<(), String> {
        for (index, agent) in self.agents.iter().enumerate() {
            let core = &agent.core;
            if !agent.players.is_empty() {
                return Err(format!("agent {index} has not answered {:?}", agent.players));
            }
            if !core.ops.is_empty() || !core.holds.is_empty() || !core.waiters.is_empty() {
                return Err(format!("agent {index} still has {:?} {:?}", core.ops, core.holds));
            }
            if !core.locks.is_empty() || !core.is_idle() || !agent.wishes.is_empty() {
                return Err(format!("agent {index} remembers {:?} {:?}", core.locks, agent.wishes));
            }
            if core.next_deadline().is_some() || !core.quota.is_empty() {
                return Err(format!("agent {index} has a deadline for nothing: {:?}", core.timers));
            }
        }
        let mut left = self.servers[0].redis.keys().clone();
        // A late copy of a script may have left a place, which is dead: whoever comes next passes it. Tokens stay.
        left.retain(|key, entry| match &entry.content {
            Content::Scores(_) => false,
            Content::List(_) => !self.is_dead_queue(key),
            Content::Text(_) => !key.starts_with("redisson_lock_token:"),
            Content::Hash(_) => true,
        });
        if left.is_empty() { Ok(()) } else { Err(format!("left in Redis: {left:?}")) }
    }

    /// Whether the deadlines of all in a queue have passed.
    #[expect(clippy::cast_precision_loss, reason = "epoch milliseconds")]
    fn is_dead_queue(&self, queue: &str) -> bool {
        let redis = &self.servers[0].redis;
        let deadlines = queue.replace("redisson_lock_queue:", "redisson_lock_timeout:");
        match redis.keys().get(&deadlines).map(|entry| &entry.content) {
            Some(Content::Scores(scores)) => {
                scores.values().all(|deadline| *deadline < redis.now_ms() as f64)
            }
            _ => true,
        }
    }
}
