//! Classification of bare commands, as replicas receive them.

use super::classify::{Classifier, marker_number, number};
use super::command::Command;
use super::event::Action;
use super::server_role::ServerRole;
use crate::{HolderId, Kind, keys};

impl Classifier<'_> {
    pub(super) fn bare_commands(&mut self) {
        let unit = self.unit;
        if unit.words.len() == 0 {
            return self.queue_commands();
        }
        let lock = unit.words.get(0);
        let (holder, action) = match self.holder_change(lock) {
            Some((holder, Action::Released)) if self.is_by_hand() => {
                (self.only_removed(lock, holder), Action::Removed)
            }
            Some((holder, action)) => (Some(holder), action),
            None if unit.effects().any(|effect| effect.is(Command::Del, lock)) => match self.role {
                ServerRole::Master => (None, Action::Removed),
                ServerRole::Replica => (None, Action::Vanished),
            },
            None => match self.lease(lock) {
                Some(lease) => (self.known_holder(lock), Action::Renewed { lease: Some(lease) }),
                None => return,
            },
        };
        let kind = holder.and_then(|holder| holder.write.then_some(Kind::Write));
        self.emit(lock, kind, holder, action);
    }

    /// Returns whether nothing but a removal of fields was sent to a master: a client that releases a lock also lowers its
    /// count, or notifies the waiters.
    fn is_by_hand(&self) -> bool {
        self.role == ServerRole::Master
            && self.unit.effects().all(|effect| effect.command == Command::HDel)
    }

    /// Returns the holder whose field was removed, unless others were removed too.
    fn only_removed(&self, lock: &[u8], holder: HolderId) -> Option<HolderId> {
        let mut removals = self.unit.effects().filter(|effect| effect.is(Command::HDel, lock));
        removals
            .all(|effect| effect.value.is_empty() && effect.holder() == Some(holder))
            .then_some(holder)
    }

    /// Derives the action that bare commands performed on the lock's holders.
    fn holder_change(&self, lock: &[u8]) -> Option<(HolderId, Action)> {
        let effects = || self.unit.effects().filter(|effect| effect.key == lock);
        let taken = effects().find_map(|effect| {
            effect
                .holder()
                .filter(|holder| effect.takes(lock, *holder))
                .map(|h| (h, effect.command))
        });
        let removed = effects().filter(|effect| effect.command == Command::HDel);
        let removed = removed.filter_map(|effect| effect.holder()).next();
        let lease = self.lease(lock);
        match (taken, removed) {
            (Some((to, _)), Some(from)) if from != to => {
                Some((from, Action::HandedOver { to, lease }))
            }
            (Some((holder, command)), _) => {
                let again = command == Command::HIncrBy && self.known_holder(lock) == Some(holder);
                let mut markers = self.unit.effects();
                let action = match markers.find_map(|effect| marker_number(&effect, holder)) {
                    Some(count) if count > 1 => Action::Reentered { lease, count: Some(count) },
                    None if again => Action::Reentered { lease, count: None },
                    _ => Action::Acquired { lease },
                };
                Some((holder, action))
            }
            (None, removed) => {
                let lowered = effects().find(|effect| effect.lowers(lock));
                let lowered = lowered.and_then(|effect| effect.holder());
                let gone =
                    removed.is_some() || effects().any(|effect| effect.command == Command::Del);
                let action = if gone { Action::Released } else { Action::PartlyReleased };
                Some((lowered.or(removed)?, action))
            }
        }
    }

    fn queue_commands(&mut self) {
        for effect in self.unit.effects() {
            let (holder, action) = match effect.command {
                Command::ZAdd => {
                    let deadline_millis = number(effect.field).unwrap_or(0);
                    (HolderId::parse(effect.value), Action::Queued { deadline_millis })
                }
                Command::ZRem => (effect.holder(), Action::LeftQueue),
                _ => continue,
            };
            if let Some(holder) = holder
                && let Some(lock) = self.known.most_likely(keys::locks_of_queue(effect.key))
            {
                self.emit(lock.as_bytes(), Some(Kind::Fair), Some(holder), action);
            }
        }
    }
}
