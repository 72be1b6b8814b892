//! The model: what is known of every lock.
//!
//! [`Model`] is pure: observations go in with their instants, snapshots and changes come out. One task owns it, see
//! [`actor`]; all others read what it publishes.

pub mod actor;
pub mod clients;
pub mod deadlock;
pub mod history;
pub mod json;
pub mod lease;
pub mod observation;
pub mod past;
pub mod problem;
pub mod record;
pub mod schedule;
mod scope;
pub mod settings;
pub mod snapshot;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod troubles;
pub mod view;
pub mod waiting;
mod watch;
pub mod who;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use redisson::group::glob_matches;
use redisson::{Grouping, HolderId, LockName, Moment};

pub use observation::{Observation, Reading, ScopeId, Source, Stamp, Traffic};
pub use problem::Rule;
pub use record::{Effect, Remembered};
pub use settings::{LockRule, Settings};
pub use snapshot::{Delta, Notice, Snapshot};

use past::Ending;
use record::{Record, Surroundings};
use scope::{Kept, Restart, Scope};
use view::{LockId, WallMillis};

/// How long a lock that nobody holds is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The most free locks that are remembered in one database.
const MAX_FREE: usize = 10_000;
/// The most views made for one snapshot; the rest come with the next one.
const MAX_CHANGES: usize = 2_000;
/// How many notices are kept.
const MAX_NOTICES: usize = 20;

/// A lock to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRequest {
    /// Which.
    pub name: LockName,
    /// What it had when it was last read.
    pub known: Known,
}

/// What a lock is known to have, which is then asked for by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// Its fields; none: it is asked step by step what it is.
    pub fields: Vec<Vec<u8>>,
    /// Its readers, with how many times over they hold it.
    pub readers: Vec<(HolderId, i64)>,
    /// Those who stand in its queue.
    pub waiting: Vec<HolderId>,
    /// Whether to look for a token.
    pub token: bool,
}

/// All that is known.
#[derive(Debug)]
pub struct Model {
    settings: Settings,
    grouping: Grouping,
    scopes: Vec<Scope>,
    snapshot: Snapshot,
    notices: VecDeque<Notice>,
    effects: Vec<(ScopeId, Effect)>,
    /// What an earlier run knew of locks not seen again yet.
    remembered: HashMap<LockId, Remembered>,
    kept: usize,
    stale: bool,
}

impl Model {
    /// Nothing is known yet of the given databases, each a deployment's name and a number.
    #[must_use]
    pub fn new(
        settings: Settings,
        grouping: Grouping,
        scopes: &[(Arc<str>, u32)],
        now: Moment,
    ) -> Self {
        let rate = settings.poll_rate;
        let scopes = scopes
            .iter()
            .map(|(deployment, db)| Scope::new(Arc::clone(deployment), *db, rate, now))
            .collect();
        Self {
            settings,
            grouping,
            scopes,
            snapshot: Snapshot::empty(),
            notices: VecDeque::new(),
            effects: Vec::new(),
            remembered: HashMap::new(),
            kept: 0,
            stale: true,
        }
    }

    /// Takes in what an earlier run knew; it counts for locks that are seen from now on.
    pub fn remember(&mut self, known: HashMap<LockId, Remembered>) {
        self.remembered = known;
    }

    /// Takes in what a source saw.
    pub fn observe(&mut self, scope: ScopeId, observation: Observation) {
        match observation {
            Observation::Read { name, stamp, source, reading } => {
                self.read(scope, &name, stamp, source, &reading);
            }
            Observation::Released { names, at, wall } => self.released(scope, &names, at, wall),
            Observation::Companion { name } => {
                if let Some(kept) = self.scopes[scope.0].locks.get_mut(&name) {
                    kept.record.confirm();
                    self.settle(scope, &name);
                } else {
                    self.hurry(scope, &name);
                }
            }
            Observation::Connected { addresses, at, wall } => {
                if self.scopes[scope.0].clients.connected(&addresses, at, wall) {
                    self.look_for_gone(scope);
                }
            }
            Observation::Told(told) => self.told(scope, told),
            Observation::Traffic(traffic) => self.traffic(scope, &traffic),
            Observation::Tapping { on, .. } => {
                if !on {
                    self.untapped(scope);
                }
            }
            Observation::Listening { on, at } => {
                self.scopes[scope.0].listening_since = on.then_some(at);
            }
            Observation::Up { at, wall, run_id, cluster } => {
                self.scopes[scope.0].cluster = cluster;
                self.up(scope, at, wall, run_id);
            }
            Observation::Clock { ahead_ms } => self.scopes[scope.0].ahead_ms = ahead_ms,
            Observation::Subscribers { counts, at, wall } => {
                for (name, count) in counts {
                    if let Some(kept) = self.scopes[scope.0].locks.get_mut(&name) {
                        kept.record.count_subscribers(count, at, wall);
                        self.settle(scope, &name);
                    }
                }
            }
            Observation::Down => {
                let scope = &mut self.scopes[scope.0];
                if scope.readable_since.take().is_some() {
                    scope.news.extend(scope.locks.keys().cloned());
                }
            }
            Observation::PassEnded { started } => {
                let scope = &mut self.scopes[scope.0];
                let refused = std::mem::take(&mut scope.refused);
                self.stale |= scope.pass_began.is_none() || scope.not_kept != refused;
                scope.not_kept = refused;
                scope.pass_began = Some(started);
            }
        }
    }

    fn up(&mut self, scope: ScopeId, at: Moment, wall: WallMillis, run_id: Option<String>) {
        let scope = &mut self.scopes[scope.0];
        if scope.readable_since.is_none() {
            scope.readable_since = Some(at);
            scope.news.extend(scope.locks.keys().cloned());
        }
        if let Some(run_id) = run_id
            && scope.run_id.replace(run_id.clone()).is_some_and(|before| before != run_id)
        {
            scope.restart = Some(Restart { at, wall, lost: 0 });
            let names: Vec<LockName> = scope.locks.keys().cloned().collect();
            for name in &names {
                scope.schedule.set(name, at);
            }
        }
    }

    fn read(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
    ) {
        if !self.scopes[scope_id.0].locks.contains_key(name) {
            let new = match reading {
                Reading::Lock { hash, .. } => hash.is_candidate() && hash.alien.is_empty(),
                Reading::Absent { beside } => beside.queue.is_some(),
                Reading::Other(_) => false,
            };
            if !new || !self.admit(scope_id, name, stamp.received) {
                return;
            }
        }
        let scope = &mut self.scopes[scope_id.0];
        // A pass misses no key that is there from its beginning to its end; one that had no room for all locks
        // proves nothing.
        let proves = source == Source::Scan && scope.not_kept == 0 && scope.refused == 0;
        let pass_began = scope.pass_began.filter(|_| proves);
        let around = Surroundings { pass_began, ..scope.around() };
        let Some(kept) = scope.locks.get_mut(name) else { return };
        let mut effects = Vec::new();
        kept.record.read(stamp, source, reading, around, &mut effects);
        if let Some(restart) = &mut scope.restart {
            let lost = |effect: &&Effect| **effect == Effect::LostInRestart;
            restart.lost += effects.iter().filter(lost).count();
        }
        self.effects.extend(effects.into_iter().map(|effect| (scope_id, effect)));
        self.settle(scope_id, name);
    }

    fn released(&mut self, scope: ScopeId, names: &[LockName], at: Moment, wall: WallMillis) {
        let known = |model: &Self, name| model.scopes[scope.0].locks.contains_key(name);
        if !names.iter().any(|name| known(self, name))
            && let Some(first) = names.first()
        {
            self.admit(scope, first, at);
        }
        for name in names {
            if let Some(kept) = self.scopes[scope.0].locks.get_mut(name) {
                let mut effects = Vec::new();
                kept.record.released(at, wall, Source::Channels, Ending::Released, &mut effects);
                self.effects.extend(effects.into_iter().map(|effect| (scope, effect)));
                self.settle(scope, name);
            }
            self.hurry(scope, name);
        }
    }

    /// Makes room for a lock not known yet. False where it is not to be kept.
    fn admit(&mut self, scope_id: ScopeId, name: &LockName, now: Moment) -> bool {
        let bytes = name.as_bytes();
        if self.settings.ignore.iter().any(|glob| glob_matches(glob, bytes)) {
            return false;
        }
        if self.kept >= self.settings.max_locks && !self.forget_oldest_free(scope_id) {
            self.scopes[scope_id.0].refused += 1;
            return false;
        }
        let rule = self.settings.rules.iter().find(|rule| glob_matches(&rule.pattern, bytes));
        let rule = rule.map_or(self.settings.usual, |rule| rule.rule);
        let group = self.grouping.label(name);
        let scope = &mut self.scopes[scope_id.0];
        let mut record = Record::new(scope.id(name), group, rule, now);
        if let Some(known) = self.remembered.remove(&scope.id(name)) {
            record.remember(known);
        }
        scope.locks.insert(name.clone(), Kept { record, shown: None, free: None });
        self.kept += 1;
        true
    }

    /// Brings what hangs on a lock up to date after something was seen of it.
    fn settle(&mut self, scope_id: ScopeId, name: &LockName) {
        let scope = &mut self.scopes[scope_id.0];
        let Some(kept) = scope.locks.get_mut(name) else { return };
        if !kept.record.is_worth_keeping() {
            self.forget(scope_id, name);
            return;
        }
        scope.schedule.set(name, kept.record.next_read());
        if kept.record.has_named_waiters() {
            scope.contended.insert(name.clone());
        } else if !kept.record.is_in_cycle() {
            scope.contended.remove(name);
        }
        // What is wrong with a free lock is told for as long as it lasts, in bounds.
        let free = (!kept.record.is_held()).then(|| kept.record.free_since());
        if kept.free != free {
            if let Some(before) = std::mem::replace(&mut kept.free, free) {
                scope.free.remove(&(before, name.clone()));
            }
            if let Some(free) = free {
                scope.free.insert((free, name.clone()));
            }
        }
        let since = scope.readable_since;
        if !kept.shown.as_ref().is_some_and(|shown| kept.record.is_shown_well(shown, since)) {
            scope.news.insert(name.clone());
        }
        if scope.free.len() > MAX_FREE {
            self.forget_oldest_free(scope_id);
        }
    }

    fn forget_oldest_free(&mut self, scope: ScopeId) -> bool {
        let oldest = self.scopes[scope.0].free.first().map(|(_, name)| name.clone());
        oldest.map(|name| self.forget(scope, &name)).is_some()
    }

    fn forget(&mut self, scope_id: ScopeId, name: &LockName) {
        let scope = &mut self.scopes[scope_id.0];
        let Some(kept) = scope.locks.remove(name) else { return };
        self.kept -= 1;
        if let Some(free) = kept.free {
            scope.free.remove(&(free, name.clone()));
        }
        scope.schedule.forget(name);
        scope.contended.remove(name);
        scope.news.remove(name);
        if kept.shown.is_some() {
            let id = scope.id(name);
            scope.removed.push(id);
        }
    }

    /// Forgets what nobody has held for long, and concludes restarts.
    pub fn tick(&mut self, now: Moment) {
        for index in 0..self.scopes.len() {
            let scope_id = ScopeId(index);
            let scope = &self.scopes[index];
            let old = scope.free.iter().take_while(|(since, _)| now.since(*since) > REMEMBERED);
            // Those with problems stay: there are few of them, and they are bounded with the rest.
            let old = old.filter(|(_, name)| {
                scope.locks.get(name).is_none_or(|kept| !kept.record.has_problems())
            });
            let old: Vec<LockName> = old.map(|(_, name)| name.clone()).collect();
            for name in old {
                self.forget(scope_id, &name);
            }
            let scope = &mut self.scopes[index];
            let Some(restart) = scope.restart else { continue };
            let read_again =
                |kept: &Kept| kept.record.last_sent().is_none_or(|at| at >= restart.at);
            if scope.readable_since.is_some() && scope.locks.values().all(read_again) {
                scope.restart = None;
                let deployment = scope.deployment.to_string();
                let text = format!(
                    "the server was started anew; {} held locks of database {} were gone",
                    restart.lost, scope.db
                );
                self.notice(restart.wall, deployment, text);
            }
        }
        self.look_for_deadlocks();
    }

    fn notice(&mut self, at: WallMillis, deployment: String, text: String) {
        self.notices.push_front(Notice { at, deployment, text });
        self.notices.truncate(MAX_NOTICES);
        self.stale = true;
    }

    /// Reads the lock as soon as may be, known or not. False when too many wait for that already.
    pub fn hurry(&mut self, scope: ScopeId, name: &LockName) -> bool {
        self.scopes[scope.0].schedule.hurry(name)
    }

    /// What people look at now.
    pub fn view(&mut self, scope: ScopeId, names: impl IntoIterator<Item = LockName>) {
        self.scopes[scope.0].schedule.view(names);
    }

    /// The locks of a database to read now, at most `most`; none while it cannot be read.
    pub fn due(&mut self, scope: ScopeId, now: Moment, most: usize) -> Vec<ReadRequest> {
        let Scope { schedule, locks, readable_since, .. } = &mut self.scopes[scope.0];
        if readable_since.is_none() {
            return Vec::new();
        }
        let last_sent = |name: &LockName| locks.get(name).and_then(|kept| kept.record.last_sent());
        let names = schedule.take(now, most, last_sent);
        let request = |name: LockName| ReadRequest {
            known: match locks.get(&name) {
                Some(kept) => kept.record.known(now),
                None => Known { token: true, ..Known::default() },
            },
            name,
        };
        names.into_iter().map(request).collect()
    }

    /// Whether a database can be read now, as far as is known.
    #[must_use]
    pub fn is_readable(&self, scope: ScopeId) -> bool {
        self.scopes[scope.0].readable_since.is_some()
    }

    /// How much later than due known locks of a database are read.
    #[must_use]
    pub fn lag(&self, scope: ScopeId, now: Moment) -> Duration {
        self.scopes[scope.0].schedule.lag(now)
    }

    /// Which database that is, where it is looked at.
    #[must_use]
    pub fn scope(&self, deployment: &str, db: u32) -> Option<ScopeId> {
        let found = |scope: &Scope| &*scope.deployment == deployment && scope.db == db;
        self.scopes.iter().position(found).map(ScopeId)
    }

    /// What metrics have to count since the last call.
    pub fn take_effects(&mut self) -> Vec<(ScopeId, Effect)> {
        std::mem::take(&mut self.effects)
    }

    /// The next snapshot, where anything is new.
    pub fn publish(&mut self, wall: WallMillis) -> Option<(Arc<Snapshot>, Arc<Delta>)> {
        let mut changed = Vec::new();
        let mut removed = Vec::new();
        for scope in &mut self.scopes {
            let taken: Vec<LockName> =
                scope.news.iter().take(MAX_CHANGES - changed.len()).cloned().collect();
            for name in taken {
                scope.news.remove(&name);
                let Some(kept) = scope.locks.get_mut(&name) else { continue };
                let view = Arc::new(kept.record.view(scope.readable_since, &scope.clients));
                kept.shown = Some(Arc::clone(&view));
                self.snapshot.put(Arc::clone(&view));
                changed.push(view);
            }
            for id in scope.removed.drain(..) {
                // It may have come back since, with a view of its own.
                if scope.locks.get(&id.name).is_none_or(|kept| kept.shown.is_none()) {
                    self.snapshot.remove(&id);
                    removed.push(id);
                }
            }
        }
        if changed.is_empty() && removed.is_empty() && !self.stale {
            return None;
        }
        self.stale = false;
        self.snapshot.seq += 1;
        self.snapshot.at = wall;
        self.snapshot.complete = self.scopes.iter().all(|scope| scope.pass_began.is_some());
        self.snapshot.not_kept =
            self.scopes.iter().map(|scope| scope.not_kept.max(scope.refused)).sum();
        if self.snapshot.notices.len() != self.notices.len()
            || self.snapshot.notices.first() != self.notices.front()
        {
            self.snapshot.notices = self.notices.iter().cloned().collect();
        }
        let delta = Delta::new(self.snapshot.seq, wall, changed, removed);
        Some((Arc::new(self.snapshot.clone()), Arc::new(delta)))
    }
}
