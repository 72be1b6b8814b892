//! What our own scripts come to.

use super::event::{Certainty, What};
use super::judge::{Judge, asks_for_holder, lease_of, number};
use super::unit::Effect;
use super::verb::Verb;
use crate::{HolderId, Kind, keys};

impl Judge<'_> {
    pub(super) fn own_acquire(&mut self, lock: &[u8], kind: Kind, holder: HolderId) {
        let unit = self.unit;
        let fenced = kind == Kind::Lock && unit.keys > 3;
        let kind = Some(if fenced { Kind::Fenced } else { kind });
        self.dropped_places(lock, kind, holder);
        let effects = || unit.effects();
        let what = if effects().any(|effect| effect.takes(lock, holder)) {
            What::Acquired { lease: self.lease(lock) }
        } else if effects().any(|effect| effect.verb == Verb::RPush) {
            // Without it only the deadline of the place it has is put off.
            self.place(holder).unwrap_or(What::Refused)
        } else if effects().any(|effect| {
            effect.is(Verb::HLen, lock)
                || effect.is(Verb::PTtl, lock)
                || (effect.verb == Verb::Other && effect.key.starts_with(keys::QUEUE))
        }) {
            What::Refused
        } else {
            What::Failed
        };
        self.tell(lock, kind, Some(holder), what);
    }

    pub(super) fn own_keep(&mut self, kind: Option<Kind>) {
        let unit = self.unit;
        let mut effects = unit.effects().peekable();
        while let Some(first) = effects.next() {
            let lock = first.key;
            let Some(holder) = asks_for_holder(&first) else { continue };
            let mut what = None;
            while let Some(next) = effects.next_if(|next| asks_for_holder(next).is_none()) {
                if next.takes(lock, holder) {
                    what = number(next.value)
                        .and_then(|count| u32::try_from(count).ok())
                        .map(|count| What::Recounted { count });
                } else if next.is(Verb::Exists, lock) {
                    what = Some(What::RenewalFoundNothing);
                } else if let Some(lease) = lease_of(&next, lock, unit.at_micros)
                    && !matches!(what, Some(What::Recounted { .. }))
                {
                    // The last one counts: PEXPIRE with GT may have changed nothing, and then another follows.
                    what = Some(What::Renewed { lease: Some(lease) });
                }
            }
            if let Some(what) = what {
                let kind = if holder.write { Some(Kind::Write) } else { kind };
                self.tell(lock, kind, Some(holder), what);
            }
        }
    }

    pub(super) fn own_release(&mut self, lock: &[u8], kind: Kind, holder: HolderId) {
        let unit = self.unit;
        let effects = || unit.effects();
        let looked = effects().any(|effect| effect.is(Verb::Exists, lock));
        let told = effects().any(|effect| effect.verb == Verb::Publish);
        let (certain, what) = match kind {
            Kind::Fair => return self.own_release_fair(lock, holder),
            // Only where nothing was removed is it asked whether the lock is there.
            Kind::Read | Kind::Write if looked => (true, What::ReleaseFoundNothing),
            Kind::Read => {
                let removed = effects().any(|effect| effect.is(Verb::HDel, lock));
                (removed, What::Released)
            }
            Kind::Write => (effects().nth(1).is_some(), What::Released),
            _ if told => (true, What::Released),
            _ => (looked, What::ReleaseFoundNothing),
        };
        if certain {
            self.tell(lock, Some(kind), Some(holder), what);
        }
    }

    /// The same command ends a hold and a wait; only what was in the queue is removed from it.
    fn own_release_fair(&mut self, lock: &[u8], holder: HolderId) {
        let unit = self.unit;
        let kind = Some(Kind::Fair);
        let removed = |effect: Effect<'_>| {
            effect.verb == Verb::LRem && HolderId::parse(effect.value) == Some(holder)
        };
        if unit.effects().any(removed) {
            self.tell(lock, kind, Some(holder), What::LeftQueue);
        } else if unit.effects().any(|effect| effect.is(Verb::Exists, lock)) {
            if self.recent.holder(lock) == Some(holder) {
                self.tell(lock, kind, Some(holder), What::Released);
            } else if !self.recent.knows(lock) {
                self.tell_as(Certainty::Likely, lock, kind, Some(holder), What::Released);
            } else {
                let what = What::ReleaseFoundNothing;
                self.tell_as(Certainty::Likely, lock, kind, Some(holder), what);
            }
        }
        self.dropped_places(lock, kind, holder);
    }

    pub(super) fn own_force(&mut self, lock: &[u8]) {
        if self.unit.effects().any(|effect| effect.is(Verb::Del, lock)) {
            self.tell(lock, None, None, What::ForceReleased);
        }
    }

    pub(super) fn own_hand_over(&mut self, lock: &[u8], from: HolderId) {
        let set = |effect: &Effect<'_>| effect.is(Verb::HSet, lock);
        if let Some(to) = self.unit.effects().find(set).and_then(|effect| effect.holder()) {
            let lease = self.lease(lock);
            self.tell(lock, None, Some(from), What::HandedOver { to, lease });
        }
    }
}
