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
                (Intent::OwnAcquire, Some(holder)) => self.own_acquire(lock, holder),
                (Intent::OwnKeep, _) => self.own_keep(),
                (Intent::OwnRelease, Some(holder)) => self.own_release(lock, holder),
                (Intent::OwnHandOver, Some(holder)) => self.own_hand_over(lock, holder),
                _ => {}
            },
        }
    }

    fn tell(&mut self, lock: &[u8], kind: Option<Kind>, holder: Option<HolderId>, what: What) {
        let sure = matches!(self.unit.from, Some(From::Script(_, true))) && !self.unit.broken;
        let certainty = if sure { Certainty::Sure } else { Certainty::Likely };
        self.tell_as(certainty, lock, kind, holder, what);
    }

    fn tell_as(
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
    fn lease(&self, lock: &[u8]) -> Option<Duration> {
        self.unit.effects().rev().find_map(|effect| lease_of(&effect, lock, self.unit.at_micros))
    }

    fn acquire(&mut self, lock: &[u8], kind: Option<Kind>, holder: HolderId) {
        let unit = self.unit;
        self.dropped_places(lock, kind, holder);
        if let Some(grant) = unit.effects().find(|effect| effect.takes(lock, holder)) {
            let what = self.grant(lock, holder, &grant);
            return self.tell(lock, kind, Some(holder), what);
        }
        let queued = unit.effects().find(|effect| {
            effect.verb == Verb::ZAdd
                && effect.key.starts_with(keys::DEADLINES)
                && HolderId::parse(effect.value) == Some(holder)
        });
        let what = if let Some(place) = queued {
            What::Queued { deadline_millis: millis(place.field).unwrap_or(0) }
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
    fn dropped_places(&mut self, lock: &[u8], kind: Option<Kind>, own: HolderId) {
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

    fn own_acquire(&mut self, lock: &[u8], holder: HolderId) {
        let effects = || self.unit.effects();
        let what = if effects().any(|effect| effect.takes(lock, holder)) {
            What::Acquired { lease: self.lease(lock) }
        } else if effects().any(|effect| effect.is(Verb::Type, lock)) {
            What::Refused
        } else {
            What::Failed
        };
        self.tell(lock, None, Some(holder), what);
    }

    fn own_keep(&mut self) {
        let unit = self.unit;
        let mut effects = unit.effects().peekable();
        while let Some(first) = effects.next() {
            let lock = first.key;
            let Some(holder) = asks_for_holder(&first) else { continue };
            let mut what = None;
            while let Some(next) = effects.next_if(|next| asks_for_holder(next).is_none()) {
                if next.takes(lock, holder) {
                    what = millis(next.value)
                        .and_then(|count| u32::try_from(count).ok())
                        .map(|count| What::Recounted { count });
                } else if next.is(Verb::Exists, lock) {
                    what = Some(What::RenewalFoundNothing);
                } else if what.is_none()
                    && let Some(lease) = lease_of(&next, lock, unit.at_micros)
                {
                    what = Some(What::Renewed { lease: Some(lease) });
                }
            }
            if let Some(what) = what {
                self.tell(lock, None, Some(holder), what);
            }
        }
    }

    fn own_release(&mut self, lock: &[u8], holder: HolderId) {
        let effects = || self.unit.effects();
        if effects().any(|effect| effect.verb == Verb::Publish) {
            self.tell(lock, None, Some(holder), What::Released);
        } else if effects().any(|effect| effect.is(Verb::Exists, lock)) {
            self.tell(lock, None, Some(holder), What::ReleaseFoundNothing);
        }
    }

    fn own_hand_over(&mut self, lock: &[u8], from: HolderId) {
        let set = |effect: &Effect<'_>| effect.is(Verb::HSet, lock);
        if let Some(to) = self.unit.effects().find(set).and_then(|effect| effect.holder()) {
            let lease = self.lease(lock);
            self.tell(lock, None, Some(from), What::HandedOver { to, lease });
        }
    }

    /// Bare commands, as a replica is given them.
    fn commands(&mut self) {
        let unit = self.unit;
        if unit.words.len() == 0 {
            return self.queue_commands();
        }
        let lock = unit.words.get(0);
        let (holder, what) = match self.change(lock) {
            Some((holder, what)) => (Some(holder), what),
            None if unit.effects().any(|effect| effect.is(Verb::Del, lock)) => match self.vantage {
                Vantage::Master => (None, What::ForceReleased),
                Vantage::Replica => (None, What::Vanished),
            },
            None => match self.lease(lock) {
                Some(lease) => (self.recent.holder(lock), What::Renewed { lease: Some(lease) }),
                None => return,
            },
        };
        let kind = holder.and_then(|holder| holder.write.then_some(Kind::Write));
        self.tell(lock, kind, holder, what);
    }

    /// What bare commands did to the lock's holders.
    fn change(&self, lock: &[u8]) -> Option<(HolderId, What)> {
        let effects = || self.unit.effects().filter(|effect| effect.key == lock);
        let taken = effects().find_map(|effect| {
            effect.holder().filter(|holder| effect.takes(lock, *holder)).map(|h| (h, effect.verb))
        });
        let removed = effects().filter(|effect| effect.verb == Verb::HDel);
        let removed = removed.filter_map(|effect| effect.holder()).next();
        let lease = self.lease(lock);
        match (taken, removed) {
            (Some((to, _)), Some(from)) if from != to => {
                Some((from, What::HandedOver { to, lease }))
            }
            (Some((holder, verb)), _) => {
                let again = verb == Verb::HIncrBy && self.recent.holder(lock) == Some(holder);
                let mut markers = self.unit.effects();
                let what = match markers.find_map(|effect| marker(&effect, holder)) {
                    Some(count) if count > 1 => What::Reentered { lease, count: Some(count) },
                    None if again => What::Reentered { lease, count: None },
                    _ => What::Acquired { lease },
                };
                Some((holder, what))
            }
            (None, removed) => {
                let lowered = effects().find(|effect| effect.lowers(lock));
                let lowered = lowered.and_then(|effect| effect.holder());
                let gone = removed.is_some() || effects().any(|effect| effect.verb == Verb::Del);
                let what = if gone { What::Released } else { What::PartlyReleased };
                Some((lowered.or(removed)?, what))
            }
        }
    }

    fn queue_commands(&mut self) {
        for effect in self.unit.effects() {
            let (holder, what) = match effect.verb {
                Verb::ZAdd => {
                    let deadline_millis = millis(effect.field).unwrap_or(0);
                    (HolderId::parse(effect.value), What::Queued { deadline_millis })
                }
                Verb::ZRem => (effect.holder(), What::LeftQueue),
                _ => continue,
            };
            if let Some(holder) = holder
                && let Some(lock) = self.recent.likeliest(keys::locks_of_queue(effect.key))
            {
                self.tell(lock.as_bytes(), Some(Kind::Fair), Some(holder), what);
            }
        }
    }
}

/// The holder whose field it reads.
fn asks_for_holder(effect: &Effect<'_>) -> Option<HolderId> {
    matches!(effect.verb, Verb::HExists | Verb::HGet).then(|| effect.holder())?
}

/// The lease that it gives the lock.
fn lease_of(effect: &Effect<'_>, lock: &[u8], at_micros: u64) -> Option<Duration> {
    if effect.key != lock {
        return None;
    }
    let number = millis(effect.field);
    match effect.verb {
        Verb::PExpire => number.map(Duration::from_millis),
        Verb::PExpireAt => {
            number.map(|until| Duration::from_millis(until.saturating_sub(at_micros / 1000)))
        }
        _ => None,
    }
}

/// The number of this reader's marker that it sets: how often the reader has the lock now.
fn marker(effect: &Effect<'_>, reader: HolderId) -> Option<u32> {
    if effect.verb != Verb::Set {
        return None;
    }
    let end = effect.key.iter().rposition(|byte| *byte == b':')?;
    let prefix = effect.key[..end].strip_suffix(b":rwlock_timeout")?;
    let own = prefix.ends_with(reader.to_string().as_bytes());
    let count = std::str::from_utf8(&effect.key[end + 1..]).ok()?.parse().ok()?;
    own.then_some(count)
}

/// A number as Lua writes it.
fn millis(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().or_else(|| {
        let number: f64 = text.parse().ok()?;
        // A number beyond what fits ends at its bounds.
        number
            .is_finite()
            .then(|| Duration::try_from_secs_f64(number / 1e3).unwrap_or_default())
            .and_then(|duration| u64::try_from(duration.as_millis()).ok())
    })
}
