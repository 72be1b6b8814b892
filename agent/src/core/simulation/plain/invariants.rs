//! Invariants of every run, at every instant and at the end.

use redisson::HolderId;

use super::super::numbers_in_redis;
use super::super::requests::lock_name;
use super::super::schedule::micros;
use super::super::seeds::CheckResult;
use super::history::number;
use super::host::Host;
use super::names::{NAMES, name_of};
use super::session::OWNERS;
use super::simulation::Simulation;
use crate::core::lease::hold::{Hold, LeaseMode};
use crate::core::lock::state::Contest;
use crate::core::ops::verb::Verb;
use crate::core::{Frozen, Gauges};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::{ConnectionId, End};

/// The longest time that an attempt takes without faults, in microseconds.
const ENOUGH: u64 = 5000;

/// Returns fields of which Redis has at least one while a hold is valid.
fn fields_in_redis(host: &Host, hold: &Hold) -> impl Iterator<Item = String> {
    let client = host.client;
    numbers_in_redis(&host.core, hold).map(move |number| HolderId::new(client, number).to_string())
}

impl Simulation {
    /// Checks that a worker with a valid hold excludes all others.
    pub(super) fn check_exclusive(
        &self,
        host: usize,
        id: ConnectionId,
        owner: usize,
        lock: &'static str,
    ) -> CheckResult {
        let Some(mine) =
            self.hosts[host].sessions.get(&id).and_then(|s| s.owners[owner].known_holds.get(lock))
        else {
            return Ok(());
        };
        if mine.leaving
            || mine.valid_until <= self.hosts[host].boot(self.now)
            || self.history.is_excused(lock, &mine.holder)
        {
            return Ok(());
        }
        let mut inside = Vec::new();
        for other in &self.hosts {
            let now = other.boot(self.now);
            for session in other.sessions.values() {
                let known_holds =
                    session.owners.iter().filter_map(|owner| owner.known_holds.get(lock));
                inside.extend(
                    known_holds
                        .filter(|known_hold| !known_hold.leaving && now < known_hold.valid_until)
                        .map(|known_hold| known_hold.holder.clone()),
                );
            }
        }
        let other_clients = self
            .other_clients
            .iter()
            .filter(|other_clients| other_clients.inside(self.now) == Some(lock));
        inside.extend(other_clients.map(|other_clients| other_clients.field()));
        inside.retain(|holder| *holder != mine.holder && !self.history.is_excused(lock, holder));
        if inside.is_empty() {
            return Ok(());
        }
        Err(format!("two holders of {lock}: {} and {inside:?}", mine.holder))
    }

    /// Checks a reply at the moment at which the core sends it.
    pub(super) fn check_delivery(&mut self, host: usize, outgoing: &Outgoing) -> CheckResult {
        let Outgoing::Reply(Frame::Map(pairs)) = outgoing else { return Ok(()) };
        let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| v);
        let (Some(Frame::Bulk(holder)), Some(Frame::Int(valid))) =
            (value("holder"), value("valid_ms"))
        else {
            return Ok(());
        };
        let state = &self.hosts[host];
        let now = state.boot(self.now);
        let Some(hold) = state.core.leases.get(number(holder)) else {
            return Err(format!("a grant without a hold: {pairs:?}"));
        };
        if u64::try_from(*valid) != Ok(hold.valid_ms(now)) {
            return Err(format!(
                "a grant reports {valid} ms of validity instead of {}",
                hold.valid_ms(now)
            ));
        }
        if hold.mode == LeaseMode::Renewed
            && now >= state.settings.lease.lost_at(hold.valid_until, state.settings.lost_margin)
        {
            return Err(format!("a grant of a hold that is about to be lost: {pairs:?}"));
        }
        if now >= hold.valid_until {
            return Err(format!("a grant of an expired hold: {pairs:?}"));
        }
        // A reentry repeats its token.
        if let (Some(Frame::Int(token)), Some(Frame::Int(1)), Some(Frame::Bulk(lock))) =
            (value("token"), value("holds"), value("lock"))
        {
            let (lock, holder) = (String::from_utf8_lossy(lock), String::from_utf8_lossy(holder));
            let excused = self.history.is_excused(&lock, &holder);
            self.history.tokens.granted(host, state.run, &lock, &holder, excused, *token)?;
        }
        Ok(())
    }

    /// Checks all invariants. Runs after every event.
    pub(super) fn check(&mut self) -> CheckResult {
        let server_calm = self.server_is_fault_free();
        if !server_calm {
            self.server.fault_free_since = self.now;
        }
        for host in 0..self.hosts.len() {
            if !self.hosts[host].is_fault_free(self.now) || !server_calm {
                self.hosts[host].fault_free_since = self.now;
            }
            self.check_departed(host).map_err(|violation| format!("host {host}: {violation}"))?;
            self.check_holds(host).map_err(|violation| format!("host {host}: {violation}"))?;
            self.check_names(host).map_err(|violation| format!("host {host}: {violation}"))?;
            self.check_fields(host).map_err(|violation| format!("host {host}: {violation}"))?;
        }
        Ok(())
    }

    /// Checks that holds of dead workers last until the end of the lock delay.
    fn check_departed(&mut self, host: usize) -> CheckResult {
        let state = &mut self.hosts[host];
        let now = state.boot(self.now);
        let (lease, margin) = (state.settings.lease, state.settings.lost_margin);
        state.departed.retain(|departed| now < departed.until);
        for departed in &mut state.departed {
            if let Some(hold) = state.core.leases.get(departed.number) {
                departed.valid_until = hold.valid_until;
                continue;
            }
            // A hold that the agent cannot renew expires like any other.
            let is_over = now >= lease.lost_at(departed.valid_until, margin);
            if !is_over && !self.history.is_excused(departed.lock, &departed.holder) {
                return Err(format!("{departed:?} was released before its lock delay ended"));
            }
        }
        Ok(())
    }

    /// Checks that holds are in Redis, and that jeopardy and loss are reported in time.
    fn check_holds(&mut self, host: usize) -> CheckResult {
        self.excuse_early_holds(host);
        let state = &self.hosts[host];
        let now = state.boot(self.now);
        let (lease, margin) = (state.settings.lease, state.settings.lost_margin);
        for hold in state.core.leases.iter() {
            let lock = std::str::from_utf8(hold.name.as_bytes()).expect("a lock of ours");
            let field = HolderId::new(state.client, hold.number).to_string();
            let there =
                fields_in_redis(state, hold).any(|field| self.server.redis.has(lock, &field));
            let excused = self.history.is_excused(lock, &field);
            if now < hold.valid_until && !there && !excused {
                return Err(format!(
                    "{field} assumes that it holds {lock}, Redis has {:?}",
                    self.server.redis.fields(lock)
                ));
            }
            // Redis keeps it at least as long as its owner assumes, by either clock.
            let expires = self.server.redis.keys().get(lock).and_then(|entry| entry.expires_ms);
            let kept = expires.map(|ms| ms.saturating_sub(self.server.offset_ms) * 1000);
            if there
                && !excused
                && kept.is_some_and(|kept| kept < state.true_time(hold.valid_until))
            {
                return Err(format!("{field} on {lock} is assumed valid beyond its lease"));
            }
            if state.stall.is_none() {
                // Events of this very instant may still be in the queue.
                let now = state.boot(self.now - 1);
                let watched = hold.mode == LeaseMode::Renewed && hold.delayed.is_none();
                if watched && now >= lease.lost_at(hold.valid_until, margin) {
                    return Err(format!("the loss of {field} on {lock} is reported too late"));
                }
                if watched && !hold.jeopardy && now >= lease.at_risk_at(hold.valid_until) {
                    return Err(format!("the jeopardy of {field} on {lock} is reported too late"));
                }
                if now >= hold.valid_until {
                    return Err(format!("{field} holds {lock} beyond its lease"));
                }
            }
            let key = (host, hold.number);
            let owner = state.sessions.get(&hold.owner.connection);
            let stopped = owner.is_some_and(|s| s.connected && s.known_stopped);
            let lapses = state.settings.frozen == Frozen::Lapse && stopped;
            // A command from before the stop may still be answered.
            let now = state.boot(self.now);
            let at_most = hold.valid_until.max(now + lease.duration());
            let entry = self.history.renewable.entry(key).or_insert(at_most);
            if !lapses || hold.update.is_some() || hold.mode == LeaseMode::Fixed {
                *entry = at_most;
            } else if hold.valid_until > *entry {
                return Err(format!("{field} on {lock} is renewed for a stopped worker"));
            }
            if there || lapses || hold.mode == LeaseMode::Fixed {
                self.history.missing.remove(&key);
            } else {
                let since = *self.history.missing.entry(key).or_insert(self.now);
                let since = since.max(state.fault_free_since);
                let enough = state.lease() / 3 + state.settings.response_timeout;
                if self.now - since > micros(enough) {
                    return Err(format!("no agent noticed that {field} is gone from {lock}"));
                }
            }
        }
        Ok(())
    }

    /// Excuses the early holds that rely on an excused field.
    fn excuse_early_holds(&mut self, host: usize) {
        let state = &self.hosts[host];
        for hold in state.core.leases.iter().filter(|hold| hold.early) {
            let lock = name_of(&hold.name);
            if fields_in_redis(state, hold).any(|field| self.history.is_excused(lock, &field)) {
                let field = HolderId::new(state.client, hold.number).to_string();
                self.history.excuse(lock, field);
            }
        }
    }

    /// Checks that every waiter is served, and that no lock state is kept without a purpose.
    fn check_names(&mut self, host: usize) -> CheckResult {
        let state = &self.hosts[host];
        let core = &state.core;
        let now = state.boot(self.now - 1);
        let queued: usize = core.locks.iter().map(|(_, name)| name.queue.len()).sum();
        if queued != core.locks.waiting() {
            return Err(format!("{queued} waiters in queues, {} in all", core.locks.waiting()));
        }
        let held = core.locks.iter().filter(|(_, name)| name.hold.is_some()).count();
        if held != core.leases.len() {
            return Err(format!("{held} locks with a hold, {} holds", core.leases.len()));
        }
        for (name, known) in core.locks.iter() {
            let leaving = core.ops.values().filter(|op| match &op.verb {
                // A lease that has run out ends without it.
                Verb::Release(release) => release.0.name == *name && release.0.end != End::Expired,
                Verb::Undo(undo) => undo.name == *name && undo.keeps_out(),
                _ => false,
            });
            if leaving.count() != known.releases_in_flight as usize {
                return Err(format!(
                    "{name} counts {} releases in flight",
                    known.releases_in_flight
                ));
            }
            let asking = match known.contest {
                Contest::Attempting(op) if !core.ops.contains(op) => {
                    return Err(format!("{name} waits for an operation that has ended"));
                }
                Contest::Attempting(_) => true,
                Contest::Asleep(until) => {
                    if known.queue.is_empty() {
                        return Err(format!("{name} sleeps without a waiter"));
                    }
                    state.stall.is_some()
                        || now < until
                        || known.hold.is_some()
                        || known.early.is_some()
                        || known.releases_in_flight > 0
                }
                Contest::Idle => false,
            };
            if known.early.is_some_and(|op| !core.ops.contains(op)) {
                return Err(format!("{name} waits for a hand-over that has ended"));
            }
            let ours = known.hold.is_some() || known.early.is_some();
            let served = ours || known.releases_in_flight > 0 || asking;
            if !known.queue.is_empty() && !served {
                return Err(format!("the waiters for {name} are not served: {known:?}"));
            }
            if known.queue.is_empty() && !served {
                return Err(format!("{name} is kept without a purpose: {known:?}"));
            }
            self.check_turn(host, name)?;
        }
        Ok(())
    }

    /// Checks that an agent's waiters try at once after its own release, unless it backs off, and after a release message of
    /// another client.
    fn check_turn(&self, host: usize, name: &redisson::LockName) -> CheckResult {
        let core = &self.hosts[host].core;
        let Some(known) = core.locks.get(name) else { return Ok(()) };
        let lock = name_of(name);
        let asleep = matches!(known.contest, Contest::Asleep(_)) && known.releases_in_flight == 0;
        if !asleep || known.failures > 0 || known.stand_back_until > core.now {
            return Ok(());
        }
        if let Some((by, op)) = self.history.freed.get(lock)
            && *by == host
            && !core.ops.contains(*op)
        {
            return Err(format!("{name} was released by {op:?}, and its waiters sleep"));
        }
        if let Some(at) = self.history.notified.get(&(lock.to_owned(), host))
            && self.hosts[host].fault_free_since < *at
            && self.now > at + ENOUGH
        {
            return Err(format!("{name} was released by another client, and its waiters sleep"));
        }
        Ok(())
    }

    /// Checks that every field of an agent in Redis belongs to a hold or an operation.
    fn check_fields(&mut self, host: usize) -> CheckResult {
        let state = &self.hosts[host];
        for lock in NAMES {
            let mut strays = 0;
            let fields = self.server.redis.fields(lock);
            for (field, _) in fields {
                let Some(holder) = HolderId::parse(field.as_bytes()) else { continue };
                if holder.client != state.client || holder.thread < state.first_number() {
                    continue;
                }
                let held = state.core.leases.contains(holder.thread);
                let known = held || state.core.ops.concerns(holder.thread);
                if !known
                    && !self.history.is_stray(lock, field)
                    && !self.history.is_excused(lock, field)
                {
                    return Err(format!("{field} was left behind on {lock}"));
                }
                strays += usize::from(!known);
            }
            // A waiter takes over a lock that only strays hold.
            let blocked = strays > 0
                && strays == fields.len()
                && state.core.locks.iter().any(|(_, name)| {
                    !name.queue.is_empty() && name.contest != Contest::Idle && name.hold.is_none()
                })
                && state.core.locks.get(&lock_name(lock)).is_some_and(|n| !n.queue.is_empty());
            if !blocked {
                self.history.blocked.remove(&(host, lock));
                continue;
            }
            let since = *self.history.blocked.entry((host, lock)).or_insert(self.now);
            let since = since.max(state.fault_free_since);
            let enough = state.settings.poll_max + state.settings.response_timeout * 2;
            if self.now > since + micros(enough) + 1_000_000 {
                return Err(format!("strays block the waiters for {lock}: {fields:?}"));
            }
        }
        Ok(())
    }

    /// Checks that nothing is left after all workers have left.
    pub(super) fn check_end(&self) -> CheckResult {
        for (index, host) in self.hosts.iter().enumerate() {
            let core = &host.core;
            if !core.is_idle() || !core.locks.is_empty() || core.next_deadline().is_some() {
                return Err(format!(
                    "host {index} keeps {:?} {:?} {:?} until {:?}",
                    core.ops,
                    core.leases,
                    core.locks,
                    core.next_deadline()
                ));
            }
            if !host.wanted_channels.is_empty() || !core.sessions.is_empty() {
                return Err(format!(
                    "host {index} keeps {:?} {:?}",
                    host.wanted_channels, core.sessions
                ));
            }
            if core.gauges() != Gauges::default() {
                return Err(format!("host {index}: its gauges are not back at 0"));
            }
        }
        for lock in NAMES {
            if self.server.redis.get(lock).is_some() {
                return Err(format!("{lock} is left in Redis: {:?}", self.server.redis.get(lock)));
            }
        }
        Ok(())
    }

    /// Checks that every command has a reply.
    pub(super) fn check_answered(&self) -> CheckResult {
        for (index, host) in self.hosts.iter().enumerate() {
            for (id, session) in &host.sessions {
                if let Some((at, pending)) = session.pending.front() {
                    return Err(format!("host {index} {id:?} waits since {at} µs for {pending:?}"));
                }
                for owner in 0..OWNERS {
                    if !session.owners[owner].known_holds.is_empty() {
                        return Err(format!("host {index} {id:?} still holds: {session:?}"));
                    }
                }
            }
        }
        Ok(())
    }
}
