//! Classification of Lockscope's own scripts.

use super::classify::{Classifier, holder_read_by, lease_of, number};
use super::command::Command;
use super::event::{Action, Certainty};
use super::unit::Effect;
use crate::{HolderId, Kind, keys};

impl Classifier<'_> {
    pub(super) fn own_acquire(&mut self, lock: &[u8], kind: Kind, holder: HolderId) {
        let unit = self.unit;
        let fenced = kind == Kind::Lock && unit.keys > 3;
        let kind = Some(if fenced { Kind::Fenced } else { kind });
        self.report_dropped_waiters(lock, kind, holder);
        let effects = || unit.effects();
        let action = if effects().any(|effect| effect.takes(lock, holder)) {
            Action::Acquired { lease: self.lease(lock) }
        } else if effects().any(|effect| effect.command == Command::RPush) {
            // Without RPUSH the script only extends the deadline of an existing position.
            self.queued(holder).unwrap_or(Action::Refused)
        } else if effects().any(|effect| {
            effect.is(Command::HLen, lock)
                || effect.is(Command::PTtl, lock)
                || (effect.command == Command::Other && effect.key.starts_with(keys::QUEUE))
        }) {
            Action::Refused
        } else {
            Action::Failed
        };
        self.emit(lock, kind, Some(holder), action);
    }

    pub(super) fn own_renew(&mut self, kind: Option<Kind>) {
        let unit = self.unit;
        let mut effects = unit.effects().peekable();
        while let Some(first) = effects.next() {
            let lock = first.key;
            let Some(holder) = holder_read_by(&first) else { continue };
            let mut action = None;
            while let Some(next) = effects.next_if(|next| holder_read_by(next).is_none()) {
                if next.takes(lock, holder) {
                    action = number(next.value)
                        .and_then(|count| u32::try_from(count).ok())
                        .map(|count| Action::Recounted { count });
                } else if next.is(Command::Exists, lock) {
                    action = Some(Action::RenewalFoundNothing);
                } else if let Some(lease) = lease_of(&next, lock, unit.at_micros)
                    && !matches!(action, Some(Action::Recounted { .. }))
                {
                    // The last one counts: if PEXPIRE with GT changed nothing, another one follows.
                    action = Some(Action::Renewed { lease: Some(lease) });
                }
            }
            if let Some(action) = action {
                let kind = if holder.write { Some(Kind::Write) } else { kind };
                self.emit(lock, kind, Some(holder), action);
            }
        }
    }

    pub(super) fn own_release(&mut self, lock: &[u8], kind: Kind, holder: HolderId) {
        let unit = self.unit;
        let effects = || unit.effects();
        let looked = effects().any(|effect| effect.is(Command::Exists, lock));
        let published = effects().any(|effect| effect.command == Command::Publish);
        let (certain, action) = match kind {
            Kind::Fair => return self.own_release_fair(lock, holder),
            // The script checks for the lock only if it removed nothing.
            Kind::Read | Kind::Write if looked => (true, Action::ReleaseFoundNothing),
            Kind::Read => {
                let removed = effects().any(|effect| effect.is(Command::HDel, lock));
                (removed, Action::Released)
            }
            Kind::Write => (effects().nth(1).is_some(), Action::Released),
            _ if looked && !published => return self.own_release_silent(lock, kind, holder),
            _ => (published, Action::Released),
        };
        if certain {
            self.emit(lock, Some(kind), Some(holder), action);
        }
    }

    /// Locks that the batch left aside yield no event: their own scripts follow.
    pub(super) fn own_batch(&mut self) {
        let unit = self.unit;
        let mut effects = unit.effects().peekable();
        while let Some(effect) = effects.next() {
            let lock = effect.key;
            // The script checks whether the lock still exists only if it removed its holder.
            let looked =
                |next: &Effect<'_>| next.is(Command::Exists, lock) && next.field.is_empty();
            let action = match effect.command {
                Command::HSet => {
                    let lease =
                        effects.peek().and_then(|next| lease_of(next, lock, unit.at_micros));
                    Action::Acquired { lease }
                }
                Command::HDel if effects.next_if(looked).is_some() => Action::Released,
                _ => continue,
            };
            self.emit(lock, Some(Kind::Lock), effect.holder(), action);
        }
    }

    /// One script both releases a hold and leaves the queue; it calls LREM only for a queued waiter.
    fn own_release_fair(&mut self, lock: &[u8], holder: HolderId) {
        let unit = self.unit;
        let kind = Some(Kind::Fair);
        let removed = |effect: Effect<'_>| {
            effect.command == Command::LRem && HolderId::parse(effect.value) == Some(holder)
        };
        if unit.effects().any(removed) {
            self.emit(lock, kind, Some(holder), Action::LeftQueue);
        } else if unit.effects().any(|effect| effect.is(Command::Exists, lock)) {
            self.own_release_silent(lock, Kind::Fair, holder);
        }
        self.report_dropped_waiters(lock, kind, holder);
    }

    /// A release without a message, by the known holder and its lease: MONITOR shows neither whether a field was removed nor the
    /// end of a lease.
    fn own_release_silent(&mut self, lock: &[u8], kind: Kind, holder: HolderId) {
        let (state, at) = (self.known.state(lock, self.unit.db), self.unit.at_micros);
        let held = state.map(|known| known.holder == Some(holder));
        let in_time = state.and_then(|known| known.ends).map(|ends| at <= ends);
        let (action, certainty) = match (held, in_time) {
            // A plain lock's release without a message found nothing, unless the account may not publish.
            (Some(true), Some(true)) if kind == Kind::Fair => {
                (Action::Released, Certainty::Certain)
            }
            (None, _) | (Some(true), Some(true) | None) => (Action::Released, Certainty::Likely),
            (Some(false), _) | (_, Some(false)) => (Action::ReleaseFoundNothing, Certainty::Likely),
        };
        self.emit_as(certainty, lock, Some(kind), Some(holder), action);
    }

    pub(super) fn own_force(&mut self, lock: &[u8]) {
        if self.unit.effects().any(|effect| effect.is(Command::Del, lock)) {
            self.emit(lock, None, None, Action::ForceReleased);
        }
    }

    pub(super) fn own_hand_over(&mut self, lock: &[u8], from: HolderId) {
        let set = |effect: &Effect<'_>| effect.is(Command::HSet, lock);
        if let Some(to) = self.unit.effects().find(set).and_then(|effect| effect.holder()) {
            let lease = self.lease(lock);
            self.emit(lock, None, Some(from), Action::HandedOver { to, lease });
        }
    }

    pub(super) fn own_hand_over_fair(&mut self, lock: &[u8], from: HolderId) {
        let set = |effect: &Effect<'_>| effect.is(Command::HSet, lock);
        let Some(to) = self.unit.effects().find(set).and_then(|effect| effect.holder()) else {
            return self.own_release_fair(lock, from);
        };
        let (kind, lease) = (Some(Kind::Fair), self.lease(lock));
        self.report_dropped_waiters(lock, kind, to);
        self.emit(lock, kind, Some(from), Action::HandedOver { to, lease });
    }
}
