//! Classification of a unit: the events that its commands amount to.

use std::time::Duration;

use super::command::Command;
use super::event::{Action, Certainty, Event};
use super::intent::Intent;
use super::known_locks::{Known, KnownLocks};
use super::server_role::ServerRole;
use super::unit::{Effect, Origin, Unit};
use crate::{HolderId, Kind, LockName, keys};

/// Turns a unit into events.
pub(super) struct Classifier<'a> {
    pub(super) unit: &'a Unit,
    pub(super) known: &'a mut KnownLocks,
    pub(super) role: ServerRole,
    pub(super) events: &'a mut Vec<Event>,
}

impl Classifier<'_> {
    pub(super) fn run(&mut self) {
        let unit = self.unit;
        let Some(from) = unit.from else { return };
        if unit.effects().next().is_none() {
            // The server did not know the script or refused it: nothing happened.
            return;
        }
        let lock = unit.words.get(0);
        let holder = unit.holder();
        match from {
            Origin::Commands => self.bare_commands(),
            Origin::Script(intent, _) => match (intent, holder) {
                (Intent::Acquire(kind), Some(holder)) => self.acquire(lock, Some(kind), holder),
                (Intent::TryFair, Some(holder)) => self.acquire(lock, Some(Kind::Fair), holder),
                (Intent::Unlock(kind), Some(holder)) => self.unlock(lock, Some(kind), holder),
                (Intent::Renew, _) => self.renew(None),
                (Intent::RenewRead, _) => self.renew(Some(Kind::Read)),
                (Intent::Force(kind), _) => self.force(lock, kind),
                (Intent::Expire, _) => self.expire(lock),
                (Intent::Leave, Some(holder)) => self.leave(lock, holder),
                (Intent::Unclear, Some(holder)) => self.unclear(lock, holder),
                (Intent::OwnAcquire(kind), Some(holder)) => self.own_acquire(lock, kind, holder),
                (Intent::OwnRenew(kind), _) => self.own_renew(kind),
                (Intent::OwnRelease(kind), Some(holder)) => self.own_release(lock, kind, holder),
                (Intent::OwnBatch, _) => self.own_batch(),
                (Intent::OwnHandOver, Some(holder)) => self.own_hand_over(lock, holder),
                (Intent::OwnHandOverFair, Some(holder)) => self.own_hand_over_fair(lock, holder),
                (Intent::OwnForce, _) => self.own_force(lock),
                _ => {}
            },
        }
    }

    pub(super) fn emit(
        &mut self,
        lock: &[u8],
        kind: Option<Kind>,
        holder: Option<HolderId>,
        action: Action,
    ) {
        let sure = matches!(self.unit.from, Some(Origin::Script(_, true))) && !self.unit.broken;
        let certainty = if sure { Certainty::Certain } else { Certainty::Likely };
        self.emit_as(certainty, lock, kind, holder, action);
    }

    pub(super) fn emit_as(
        &mut self,
        certainty: Certainty,
        lock: &[u8],
        kind: Option<Kind>,
        holder: Option<HolderId>,
        action: Action,
    ) {
        let Ok(lock) = LockName::new(lock) else { return };
        self.remember(&lock, holder, action);
        let client = self.role.address(self.unit.client());
        let (at_micros, db) = (self.unit.at_micros, self.unit.db);
        self.events.push(Event { at_micros, db, client, lock, kind, holder, action, certainty });
    }

    /// Returns the last known holder.
    pub(super) fn known_holder(&self, lock: &[u8]) -> Option<HolderId> {
        self.known.state(lock, self.unit.db)?.holder
    }

    /// Records the current holder and the end of its lease, as far as the action reveals them.
    fn remember(&mut self, lock: &LockName, holder: Option<HolderId>, action: Action) {
        let state = self.known.state(lock.as_bytes(), self.unit.db);
        let before = state.and_then(|known| known.holder);
        let after = match action {
            Action::Acquired { .. } | Action::Reentered { .. } | Action::Renewed { .. } => {
                holder.or(before)
            }
            Action::PartlyReleased | Action::Recounted { .. } => holder,
            Action::HandedOver { to, .. } => Some(to),
            Action::ForceReleased | Action::Removed | Action::Vanished => None,
            Action::Released | Action::RenewalFoundNothing | Action::ReleaseFoundNothing => {
                before.filter(|before| Some(*before) != holder)
            }
            Action::Refused
            | Action::Queued { .. }
            | Action::LeftQueue
            | Action::DroppedFromQueue
            | Action::Subscribed
            | Action::Unsubscribed
            | Action::Failed => return self.known.record(lock, state),
        };
        let lease = self.lease(lock.as_bytes()).and_then(|lease| lease.as_micros().try_into().ok());
        let ends = lease.map(|lease: u64| self.unit.at_micros.saturating_add(lease));
        let same = state.filter(|known| known.holder == after);
        let ends = ends.or_else(|| same?.ends);
        self.known.record(lock, Some(Known { db: self.unit.db, holder: after, ends }));
    }

    /// Returns the last TTL that the unit gave the lock.
    pub(super) fn lease(&self, lock: &[u8]) -> Option<Duration> {
        self.unit.effects().rev().find_map(|effect| lease_of(&effect, lock, self.unit.at_micros))
    }

    fn acquire(&mut self, lock: &[u8], kind: Option<Kind>, holder: HolderId) {
        let unit = self.unit;
        self.report_dropped_waiters(lock, kind, holder);
        if let Some(grant) = unit.effects().find(|effect| effect.takes(lock, holder)) {
            let action = self.grant(lock, holder, &grant);
            return self.emit(lock, kind, Some(holder), action);
        }
        let action = if let Some(queued) = self.queued(holder) {
            queued
        } else if unit.effects().any(|effect| effect.is(Command::PTtl, lock)) {
            Action::Refused
        } else if kind == Some(Kind::Fair)
            && !unit
                .effects()
                .any(|effect| effect.command == Command::ZRem && effect.holder() == Some(holder))
        {
            // An attempt that does not join the queue is refused without reading the TTL. A grant by Redisson begins
            // with the end of the holder's own wait.
            Action::Refused
        } else {
            Action::Failed
        };
        self.emit(lock, kind, Some(holder), action);
    }

    /// Returns the action of joining a fair queue, if the unit queued the holder.
    pub(super) fn queued(&self, holder: HolderId) -> Option<Action> {
        let place = self.unit.effects().find(|effect| {
            effect.command == Command::ZAdd
                && effect.key.starts_with(keys::DEADLINES)
                && HolderId::parse(effect.value) == Some(holder)
        })?;
        Some(Action::Queued { deadline_millis: number(place.field)? })
    }

    /// Distinguishes a first acquisition from a reentry.
    fn grant(&self, lock: &[u8], holder: HolderId, grant: &Effect<'_>) -> Action {
        let lease = self.lease(lock);
        if let Some(count) = self.unit.effects().find_map(|effect| marker_number(&effect, holder)) {
            return if count > 1 {
                Action::Reentered { lease, count: Some(count) }
            } else {
                Action::Acquired { lease }
            };
        }
        let asked = |effect: Effect<'_>| {
            effect.is(Command::HExists, lock) && effect.holder() == Some(holder)
        };
        if grant.command == Command::HIncrBy && self.unit.effects().any(asked) {
            Action::Reentered { lease, count: None }
        } else {
            Action::Acquired { lease }
        }
    }

    /// Emits an event for each dead waiter that the unit removed from a fair queue.
    pub(super) fn report_dropped_waiters(
        &mut self,
        lock: &[u8],
        kind: Option<Kind>,
        own: HolderId,
    ) {
        if kind != Some(Kind::Fair) {
            return;
        }
        for effect in self.unit.effects() {
            if effect.command == Command::ZRem
                && effect.key.starts_with(keys::DEADLINES)
                && let Some(waiter) = effect.holder().filter(|waiter| *waiter != own)
            {
                self.emit(lock, kind, Some(waiter), Action::DroppedFromQueue);
            }
        }
    }

    fn unlock(&mut self, lock: &[u8], kind: Option<Kind>, holder: HolderId) {
        let unit = self.unit;
        self.report_dropped_waiters(lock, kind, holder);
        let effects = || unit.effects();
        if effects().any(|effect| effect.lowers(lock)) {
            let ended = effects().any(|effect| {
                effect.is(Command::Del, lock)
                    || (effect.is(Command::HDel, lock) && effect.holder() == Some(holder))
            });
            let action = if ended { Action::Released } else { Action::PartlyReleased };
            return self.emit(lock, kind, Some(holder), action);
        }
        // If the reply of an earlier copy is recorded, the script does not read the lock.
        if effects().any(|effect| effect.key == lock) {
            let was_holder = self.known_holder(lock) == Some(holder);
            let action = Action::ReleaseFoundNothing;
            if was_holder {
                // A full server looks the same.
                self.emit_as(Certainty::Likely, lock, kind, Some(holder), action);
            } else {
                self.emit(lock, kind, Some(holder), action);
            }
        }
    }

    /// Splits a batch by lock: each lock's holders are read, and its TTL is set if they exist.
    fn renew(&mut self, kind: Option<Kind>) {
        let unit = self.unit;
        let mut effects = unit.effects().peekable();
        while let Some(first) = effects.next() {
            let lock = first.key;
            let Some(holder) = holder_read_by(&first) else { continue };
            let mut holders = vec![holder];
            let mut lease = None;
            while let Some(next) =
                effects.next_if(|next| next.key == lock || holder_read_by(next).is_none())
            {
                lease = lease_of(&next, lock, unit.at_micros).or(lease);
                holders.extend(holder_read_by(&next).filter(|holder| !holders.contains(holder)));
            }
            // Old reader scripts renew all readers, even dead ones: only those named in the call are reported.
            let sent_for = |holder: &HolderId| {
                let args = unit.words.range(unit.keys..unit.words.len());
                kind.is_none() || args.filter_map(HolderId::parse).any(|arg| arg == *holder)
            };
            for holder in holders.into_iter().filter(sent_for) {
                let kind = if holder.write { Some(Kind::Write) } else { kind };
                let action = match lease {
                    Some(lease) => Action::Renewed { lease: Some(lease) },
                    None => Action::RenewalFoundNothing,
                };
                self.emit(lock, kind, Some(holder), action);
            }
        }
    }

    fn force(&mut self, lock: &[u8], kind: Kind) {
        let unit = self.unit;
        if !unit.effects().any(|effect| effect.is(Command::Del, lock)) {
            return;
        }
        if unit.effects().any(|effect| effect.command == Command::Publish) {
            self.emit(lock, Some(kind), None, Action::ForceReleased);
        } else if kind == Kind::Fair || unit.keys == 1 {
            // Without waiters it publishes nothing, so it may have found no lock.
            self.emit_as(Certainty::Likely, lock, Some(kind), None, Action::ForceReleased);
        }
    }

    fn expire(&mut self, lock: &[u8]) {
        if let Some(lease) = self.lease(lock) {
            let holder = self.known_holder(lock);
            let action = Action::Renewed { lease: Some(lease) };
            self.emit_as(Certainty::Likely, lock, None, holder, action);
        }
    }

    fn leave(&mut self, queue: &[u8], holder: HolderId) {
        let gone =
            |effect: Effect<'_>| effect.command == Command::ZRem && effect.holder() == Some(holder);
        if self.unit.effects().any(gone)
            && let Some(lock) = self.known.most_likely(keys::locks_of_queue(queue))
        {
            self.emit(lock.as_bytes(), Some(Kind::Fair), Some(holder), Action::LeftQueue);
        }
    }

    fn unclear(&mut self, lock: &[u8], holder: HolderId) {
        let effects = || self.unit.effects();
        let kind = holder.write.then_some(Kind::Write);
        if effects().any(|effect| effect.takes(lock, holder) || effect.is(Command::PTtl, lock)) {
            let mut before = effects().take_while(|effect| !effect.takes(lock, holder));
            if before.any(|effect| effect.is(Command::Del, lock)) {
                self.emit_as(Certainty::Likely, lock, None, None, Action::Removed);
            }
            self.acquire(lock, kind.or(Some(Kind::Lock)), holder);
        } else if effects().any(|effect| effect.lowers(lock)) {
            self.unlock(lock, kind, holder);
        } else if effects().next().is_some_and(|effect| effect.is(Command::HExists, lock)) {
            self.renew(kind);
        }
    }
}

/// Returns the holder whose field the command reads.
pub(super) fn holder_read_by(effect: &Effect<'_>) -> Option<HolderId> {
    matches!(effect.command, Command::HExists | Command::HGet).then(|| effect.holder())?
}

/// Returns the lease that the command gives the lock.
pub(super) fn lease_of(effect: &Effect<'_>, lock: &[u8], at_micros: u64) -> Option<Duration> {
    if effect.key != lock {
        return None;
    }
    let millis = number(effect.field);
    match effect.command {
        Command::PExpire => millis.map(Duration::from_millis),
        Command::PExpireAt => {
            millis.map(|until| Duration::from_millis(until.saturating_sub(at_micros / 1000)))
        }
        _ => None,
    }
}

/// Returns the number of the reader's marker that the command sets, which is its hold count.
pub(super) fn marker_number(effect: &Effect<'_>, reader: HolderId) -> Option<u32> {
    if effect.command != Command::Set {
        return None;
    }
    let end = effect.key.iter().rposition(|byte| *byte == b':')?;
    let prefix = effect.key[..end].strip_suffix(b":rwlock_timeout")?;
    let own = prefix.ends_with(reader.to_string().as_bytes());
    let count = std::str::from_utf8(&effect.key[end + 1..]).ok()?.parse().ok()?;
    own.then_some(count)
}

/// Parses a number as Lua prints it, dropping the fraction.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().or_else(|| {
        let seconds = text.parse::<f64>().ok()? / 1e3;
        u64::try_from(Duration::try_from_secs_f64(seconds).ok()?.as_millis()).ok()
    })
}
