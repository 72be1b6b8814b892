//! Applying observations. Those that concern several locks are in `correlate`.

use redisson::{LockName, Moment, keys};

use super::Model;
use super::lock_table::LockEntry;
use super::record::RestoredLock;
use crate::clock::{SteadyMillis, Time};
use crate::model::types::{Ending, Observation, Reading, ScopeId, Source, Stamp};

impl Model {
    /// Applies an observation.
    pub fn observe(&mut self, scope: ScopeId, observation: Observation) {
        let Some(scope) = self.target_scope(scope, &observation) else { return };
        match observation {
            Observation::Read { name, stamp, source, reading } => {
                self.read(scope, &name, stamp, source, &reading);
            }
            Observation::Released { names, at } => self.released(scope, &names, at),
            Observation::KeyChanged { name, expired, at } => {
                self.key_changed(scope, &name, expired, at);
            }
            Observation::CompanionKey { name } => {
                if !self.update(scope, &name, self.ticked, |record, _, _| record.confirm()) {
                    self.prioritize(scope, &name);
                }
            }
            Observation::Connected { connections, at } => {
                self.connected(scope, &connections, at);
            }
            Observation::AgentReport(report) => self.agent_report(scope, report),
            Observation::AgentWaiters(waiters) => self.agent_waiters(scope, &waiters),
            Observation::ForceRelease { name, holders, at } => {
                if let Some(entry) = self.scopes[scope.0].locks.get_mut(&name) {
                    entry.record.forcing(holders, at);
                }
            }
            Observation::Acknowledged { name, problem, acknowledgement, action } => {
                self.update(scope, &name, self.ticked, |record, _, effects| {
                    record.acknowledge(problem, acknowledgement, *action, effects);
                });
            }
            Observation::OperatorActed { name, word, text, at } => {
                self.update(scope, &name, self.ticked, |record, _, effects| {
                    record.acted(word, text, at, effects);
                });
                self.prioritize(scope, &name);
            }
            Observation::Traffic(traffic) => self.traffic(scope, &traffic),
            Observation::MonitorActive { on } => {
                let since = &mut self.scopes[scope.0].monitored_since;
                *since = on.then(|| since.unwrap_or(self.ticked));
                if !on {
                    self.monitor_stopped(scope);
                }
            }
            Observation::PubSubActive { on, at } => self.set_listening(scope, on.then_some(at)),
            Observation::ServerUp { since, at, run_id, cluster } => {
                self.scopes[scope.0].cluster = cluster;
                self.scopes[scope.0].server_up(since, at, run_id);
            }
            Observation::ServerAddress { address, replica, replid } => {
                self.scopes[scope.0].set_address(address, replica, replid);
            }
            Observation::Databases(with_keys) => self.set_databases(scope, &with_keys),
            Observation::Clock { ahead_ms, at } => self.set_clock(scope, ahead_ms, at),
            Observation::Subscribers { counts, at } => {
                self.scopes[scope.0].counted_subscribers();
                for (name, count) in counts {
                    self.update(scope, &name, at, |record, _, effects| {
                        record.count_subscribers(count, at, effects);
                    });
                }
            }
            Observation::ServerDown => self.scopes[scope.0].server_down(),
            Observation::SlotsAssigned(served) => self.assign_slots(scope, &served),
            Observation::ScanBegan => self.scopes[scope.0].begin_pass(),
            Observation::ScanEnded { started, ended, whole, skipped } => {
                self.scan_ended(scope, (started, ended), whole, skipped);
            }
        }
    }

    /// Applies a reading, which may show a new lock.
    fn read(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
    ) {
        let known = self.scopes[scope_id.0].locks.contains(name);
        if !known && !self.admit_read(scope_id, name, stamp, source, reading) {
            if !matches!(reading, Reading::Lock { .. }) {
                self.end_absent(scope_id, name, stamp.steady());
            }
            return;
        }
        // While it is unknown whether the server has restarted, so is what has ended a hold. The lock is read again.
        if known && self.scopes[scope_id.0].is_lost() {
            return;
        }
        let context = self.scopes[scope_id.0].reading_context(name, source);
        self.update_among(scope_id, name, stamp.received, |record, clients, _, effects| {
            record.read(stamp, source, reading, (context, clients), effects);
        });
    }

    /// Creates the record of a lock that this reading is the first to show, or of one with a problem of an earlier run.
    /// Returns false if there is neither, or no room.
    fn admit_read(
        &mut self,
        scope_id: ScopeId,
        name: &LockName,
        stamp: Stamp,
        source: Source,
        reading: &Reading,
    ) -> bool {
        let id = self.scopes[scope_id.0].id(name);
        let known = self.restored.get(&id);
        let shows_lock = match reading {
            Reading::Lock { hash, .. } => {
                let is_held = || known.is_some_and(|lock| !lock.holds.is_empty());
                hash.is_possible_lock() && (hash.unexpected.is_empty() || is_held())
            }
            _ if known.is_some_and(RestoredLock::is_reported_when_free) => true,
            // `a` and `{a}` have the same companions: a queue does not prove a second lock.
            Reading::Absent { companions } => {
                companions.queue.is_some() && !self.has_twin(scope_id, name)
            }
            Reading::Other(_) => false,
        };
        let is_possible = matches!(
            reading,
            Reading::Lock { ttl: None, companions, .. } if companions.queue.is_none()
        );
        shows_lock
            && (!is_possible || self.make_room_for_possible(scope_id, source))
            && self.admit(scope_id, name, source, stamp.received)
    }

    /// Returns whether another known lock has the same queue and channel as this name.
    fn has_twin(&self, scope_id: ScopeId, name: &LockName) -> bool {
        let names = keys::locks_of_queue(&keys::queue(name));
        let locks = &self.scopes[scope_id.0].locks;
        names.iter().any(|other| other != name && locks.contains(other))
    }

    /// Applies a release message of a server, which does not name the database of the lock: most likely one in which it
    /// is held, otherwise one in which it is known. The hold may continue, since the message may be about one in
    /// another database that no reading has shown.
    fn released(&mut self, scope: ScopeId, names: &[LockName], at: Time) {
        let databases = self.databases(scope);
        if databases.len() < 2 {
            let elsewhere = self.scopes[scope.0].has_unwatched;
            return self.released_in(scope, names, at, elsewhere);
        }
        let places_of = |fits: fn(&LockEntry) -> bool| -> Vec<ScopeId> {
            let has = |scope: &ScopeId| {
                let locks = &self.scopes[scope.0].locks;
                names.iter().filter_map(|name| locks.get(name)).any(fits)
            };
            databases.iter().copied().filter(has).collect()
        };
        let held = places_of(|lock| lock.record.is_held());
        let places = if held.is_empty() { places_of(|_| true) } else { held };
        for place in &places {
            self.released_in(*place, names, at, true);
        }
        if places.is_empty() {
            for scope in databases {
                for name in names {
                    self.prioritize(scope, name);
                }
            }
        }
    }

    /// Applies a release message about locks in this database. If `in_doubt` is true, the next reading decides.
    fn released_in(&mut self, scope: ScopeId, names: &[LockName], at: Time, in_doubt: bool) {
        let known = |name: &&LockName| self.scopes[self.home(scope, name).0].locks.contains(name);
        let candidates = names.iter().filter(known).count();
        // Locks share a channel if their names differ only by braces.
        let in_doubt = in_doubt || candidates > 1;
        if candidates == 0
            && let Some(first) = names.first()
        {
            self.admit(self.home(scope, first), first, Source::Channels, at);
        }
        for name in names {
            let scope = self.home(scope, name);
            self.update(scope, name, at, |record, _, effects| {
                if in_doubt {
                    record.possibly_released(at, effects);
                } else {
                    record.released(at, Source::Channels, Ending::Released, effects);
                }
            });
            self.prioritize(scope, name);
        }
    }

    /// Applies a notification of a changed key. The next reading shows the new content.
    fn key_changed(&mut self, scope_id: ScopeId, name: &LockName, expired: bool, at: Time) {
        let known = self.update(scope_id, name, at, |record, context, effects| {
            record.on_key_changed();
            if expired {
                record.on_key_expired(at, context, effects);
            }
        });
        // Most keys that expire are not locks.
        if known {
            self.prioritize(scope_id, name);
        }
    }

    /// Applies the list of a server's databases that have keys.
    fn set_databases(&mut self, scope: ScopeId, with_keys: &[u32]) {
        let watched = self.databases(scope);
        let is_watched = |db: &u32| watched.iter().any(|scope| self.scopes[scope.0].db == *db);
        self.scopes[scope.0].has_unwatched = !with_keys.iter().all(is_watched);
    }

    /// Applies a reading of a server's clock, which all of its databases have read.
    fn set_clock(&mut self, scope: ScopeId, ahead_ms: i64, at: SteadyMillis) {
        let notice = self.scopes[scope.0].set_clock(ahead_ms);
        if let Some(text) = notice.filter(|_| self.databases(scope).first() == Some(&scope)) {
            let deployment = self.scopes[scope.0].deployment.to_string();
            self.notice(at, deployment, text);
        }
    }

    /// Applies the end of a scan. If the first scan covered all keys and had room for all locks, those that it did not find
    /// no longer exist. Otherwise reading them shows that.
    fn scan_ended(
        &mut self,
        scope: ScopeId,
        (began, ended): (Moment, Time),
        whole: bool,
        skipped: u64,
    ) {
        let passed = &mut self.scopes[scope.0];
        let pass = passed.end_pass(began, skipped);
        self.stale |= pass.changed;
        let first = match passed.front {
            Some(front) => self.update_scanned(front).then_some(front),
            None => pass.is_first.then_some(scope),
        };
        match first.filter(|_| whole && pass.kept_all) {
            Some(scope) => self.end_restored(scope, ended),
            None => self.read_restored(scope),
        }
    }
}
