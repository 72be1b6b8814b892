//! What bare commands come to, as a replica is given them.

use super::decoder::Vantage;
use super::event::What;
use super::judge::{Judge, marker, number};
use super::verb::Verb;
use crate::{HolderId, Kind, keys};

impl Judge<'_> {
    /// Bare commands, as a replica is given them.
    pub(super) fn commands(&mut self) {
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
                    let deadline_millis = number(effect.field).unwrap_or(0);
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
