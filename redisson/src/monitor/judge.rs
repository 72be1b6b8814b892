//! What the commands of a unit come to.

use std::time::Duration;

use super::decoder::Vantage;
use super::event::{Certainty, Event, What};
use super::intent::Intent;
use super::recent::Recent;
use super::unit::{Effect, From, Unit};
use super::verb::Verb;
use crate::{HolderId, Kind, LockName, keys};

/// Tells what a unit comes to.
pub(super) struct Judge<'a> {
    pub(super) unit: &'a Unit,
    pub(super) recent: &'a mut Recent,
    pub(super) vantage: Vantage,
    pub(super) events: &'a mut Vec<Event>,
}

impl Judge<'_> {
    pub(super) fn run(&mut self) {
        let unit = self.unit;
        let Some(from) = unit.from else { return };
        if unit.effects().next().is_none() {
            // The server does not know the script, or refused it: its sender will have heard.
            return;
        }
        let lock = unit.words.get(0);
        let holder = unit.holder();
        match from {
            From::Commands => self.commands(),
            From::Script(intent, _) => match (intent, holder) {
                (Intent::Acquire(kind), Some(holder)) => self.acquire(lock, Some(kind), holder),
                (Intent::TryFair, Some(holder)) => self.acquire(lock, Some(Kind::Fair), holder),
                (Intent::Unlock(kind), Some(holder)) => self.unlock(lock, Some(kind), holder),
                (Intent::Renew, _) => self.renew(None),
                (Intent::RenewRead, _) => self.renew(Some(Kind::Read)),
                (Intent::Force(kind), _) => self.force(lock, kind),
                (Intent::Leave, Some(holder)) => self.leave(lock, holder),
                (Intent::Unclear, Some(holder)) => self.unclear(lock, holder),
                (Intent::OwnAcquire(kind), Some(holder)) => self.own_acquire(lock, kind, holder),
                (Intent::OwnKeep(kind), _) => self.own_keep(kind),
                (Intent::OwnRelease(kind), Some(holder)) => self.own_release(lock, kind, holder),
                (Intent::OwnHandOver, Some(holder)) => self.own_hand_over(lock, holder),
                (Intent::OwnForce, _) => self.own_force(lock),
                _ => {}
            },
        }
    }

    pub(super) fn tell(
        &mut self,
        lock: &[u8],
        kind: Option<Kind>,
        holder: Option<HolderId>,
        what: What,
    ) {
        let sure = matches!(self.unit.from, Some(From::Script(_, true))) && !self.unit.broken;
        let certainty = if sure { Certainty::Sure } else { Certainty::Likely };
        self.tell_as(certainty, lock, kind, holder, what);
    }

    pub(super) fn tell_as(
        &mut self,
        certainty: Certainty,
        lock: &[u8],
        kind: Option<Kind>,
        holder: Option<HolderId>,
        what: What,
    ) {
        let Ok(lock) = LockName::new(lock) else { return };
        match what {
            What::Acquired { .. } | What::Reentered { .. } | What::Renewed { .. } => {
                self.recent.note(&lock, holder);
            }
            What::HandedOver { to, .. } => self.recent.note(&lock, Some(to)),
            What::PartlyReleased | What::Recounted { .. } => {}
            _ => self.recent.note(&lock, None),
        }
        let client = self.vantage.address(self.unit.client());
        let (at_micros, db) = (self.unit.at_micros, self.unit.db);
        self.events.push(Event { at_micros, db, client, lock, kind, holder, what, certainty });
    }

    /// What the time to live of the lock was set to, the last time.
    pub(super) fn lease(&self, lock: &[u8]) -> Option<Duration> {
        self.unit.effects().rev().find_map(|effect| lease_of(&effect, lock, self.unit.at_micros))
    }

    fn acquire(&mut self, lock: &[u8], kind: Option<Kind>, holder: HolderId) {
        let unit = self.unit;
        self.dropped_places(lock, kind, holder);
        if let Some(grant) = unit.effects().find(|effect| effect.takes(lock, holder)) {
            let what = self.grant(lock, holder, &grant);
            return self.tell(lock, kind, Some(holder), what);
        }
        let what = if let Some(queued) = self.place(holder) {
            queued
        } else if unit.effects().any(|effect| effect.is(Verb::PTtl, lock)) {
            What::Refused
        } else if kind == Some(Kind::Fair)
            && !unit.effects().any(|effect| effect.verb == Verb::LPop)
        {
            // One that does not get into the queue is refused without a look at the time to live.
            What::Refused
        } else {
            What::Failed
        };
        self.tell(lock, kind, Some(holder), what);
    }

    /// The place in a fair queue that the holder is given.
    pub(super) fn place(&self, holder: HolderId) -> Option<What> {
        let place = self.unit.effects().find(|effect| {
            effect.verb == Verb::ZAdd
                && effect.key.starts_with(keys::DEADLINES)
                && HolderId::parse(effect.value) == Some(holder)
        })?;
        Some(What::Queued { deadline_millis: number(place.field)? })
    }

    /// Whether the holder had it already.
    fn grant(&self, lock: &[u8], holder: HolderId, grant: &Effect<'_>) -> What {
        let lease = self.lease(lock);
        if let Some(count) = self.unit.effects().find_map(|effect| marker(&effect, holder)) {
            return if count > 1 {
                What::Reentered { lease, count: Some(count) }
            } else {
                What::Acquired { lease }
            };
        }
        let asked =
            |effect: Effect<'_>| effect.is(Verb::HExists, lock) && effect.holder() == Some(holder);
        if grant.verb == Verb::HIncrBy && self.unit.effects().any(asked) {
            What::Reentered { lease, count: None }
        } else {
            What::Acquired { lease }
        }
    }

    /// Places in a fair queue that were removed on the way, since their time had passed.
    pub(super) fn dropped_places(&mut self, lock: &[u8], kind: Option<Kind>, own: HolderId) {
        if kind != Some(Kind::Fair) {
            return;
        }
        for effect in self.unit.effects() {
            if effect.verb == Verb::ZRem
                && effect.key.starts_with(keys::DEADLINES)
                && let Some(waiter) = effect.holder().filter(|waiter| *waiter != own)
            {
                self.tell(lock, kind, Some(waiter), What::DroppedFromQueue);
            }
        }
    }

    fn unlock(&mut self, lock: &[u8], kind: Option<Kind>, holder: HolderId) {
        let unit = self.unit;
        self.dropped_places(lock, kind, holder);
        let effects = || unit.effects();
        if effects().any(|effect| effect.lowers(lock)) {
            let ended = effects().any(|effect| {
                effect.is(Verb::Del, lock)
                    || (effect.is(Verb::HDel, lock) && effect.holder() == Some(holder))
            });
            let what = if ended { What::Released } else { What::PartlyReleased };
            return self.tell(lock, kind, Some(holder), what);
        }
        // With the answer to an earlier copy of it there it looks no further.
        if effects().any(|effect| effect.key == lock) {
            let had = self.recent.holder(lock) == Some(holder);
            let what = What::ReleaseFoundNothing;
            if had {
                // Or the server had no room for it: the two look the same.
                self.tell_as(Certainty::Likely, lock, kind, Some(holder), what);
            } else {
                self.tell(lock, kind, Some(holder), what);
            }
        }
    }

    /// One lock after the other: its holders are asked for, then its time to live is set, or not.
    fn renew(&mut self, kind: Option<Kind>) {
        let unit = self.unit;
        let mut effects = unit.effects().peekable();
        while let Some(first) = effects.next() {
            let lock = first.key;
            let Some(holder) = asks_for_holder(&first) else { continue };
            let mut holders = vec![holder];
            let mut lease = None;
            while let Some(next) =
                effects.next_if(|next| next.key == lock || asks_for_holder(next).is_none())
            {
                lease = lease_of(&next, lock, unit.at_micros).or(lease);
                holders.extend(asks_for_holder(&next).filter(|holder| !holders.contains(holder)));
            }
            for holder in holders {
                let kind = if holder.write { Some(Kind::Write) } else { kind };
                let what = match lease {
                    Some(lease) => What::Renewed { lease: Some(lease) },
                    None => What::RenewalFoundNothing,
                };
                self.tell(lock, kind, Some(holder), what);
            }
        }
    }

    fn force(&mut self, lock: &[u8], kind: Kind) {
        let unit = self.unit;
        if !unit.effects().any(|effect| effect.is(Verb::Del, lock)) {
            return;
        }
        if unit.effects().any(|effect| effect.verb == Verb::Publish) {
            self.tell(lock, Some(kind), None, What::ForceReleased);
        } else if kind == Kind::Fair || unit.keys == 1 {
            // It tells nobody where nobody waits; it may have found nothing.
            self.tell_as(Certainty::Likely, lock, Some(kind), None, What::ForceReleased);
        }
    }

    fn leave(&mut self, queue: &[u8], holder: HolderId) {
        let gone =
            |effect: Effect<'_>| effect.verb == Verb::ZRem && effect.holder() == Some(holder);
        if self.unit.effects().any(gone)
            && let Some(lock) = self.recent.likeliest(keys::locks_of_queue(queue))
        {
            self.tell(lock.as_bytes(), Some(Kind::Fair), Some(holder), What::LeftQueue);
        }
    }

    fn unclear(&mut self, lock: &[u8], holder: HolderId) {
        let effects = || self.unit.effects();
        let kind = holder.write.then_some(Kind::Write);
        if effects().any(|effect| effect.takes(lock, holder) || effect.is(Verb::PTtl, lock)) {
            self.acquire(lock, kind.or(Some(Kind::Lock)), holder);
        } else if effects().any(|effect| effect.lowers(lock)) {
            self.unlock(lock, kind, holder);
        } else if effects().next().is_some_and(|effect| effect.is(Verb::HExists, lock)) {
            self.renew(kind);
        }
    }
}

/// The holder whose field it reads.
pub(super) fn asks_for_holder(effect: &Effect<'_>) -> Option<HolderId> {
    matches!(effect.verb, Verb::HExists | Verb::HGet).then(|| effect.holder())?
}

/// The lease that it gives the lock.
pub(super) fn lease_of(effect: &Effect<'_>, lock: &[u8], at_micros: u64) -> Option<Duration> {
    if effect.key != lock {
        return None;
    }
    let millis = number(effect.field);
    match effect.verb {
        Verb::PExpire => millis.map(Duration::from_millis),
        Verb::PExpireAt => {
            millis.map(|until| Duration::from_millis(until.saturating_sub(at_micros / 1000)))
        }
        _ => None,
    }
}

/// The number of this reader's marker that it sets: how often the reader has the lock now.
pub(super) fn marker(effect: &Effect<'_>, reader: HolderId) -> Option<u32> {
    if effect.verb != Verb::Set {
        return None;
    }
    let end = effect.key.iter().rposition(|byte| *byte == b':')?;
    let prefix = effect.key[..end].strip_suffix(b":rwlock_timeout")?;
    let own = prefix.ends_with(reader.to_string().as_bytes());
    let count = std::str::from_utf8(&effect.key[end + 1..]).ok()?.parse().ok()?;
    own.then_some(count)
}

/// A number as Lua writes it, without its fraction.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().or_else(|| {
        let seconds = text.parse::<f64>().ok()? / 1e3;
        u64::try_from(Duration::try_from_secs_f64(seconds).ok()?.as_millis()).ok()
    })
}
