//! What is seen across locks: MONITOR's traffic, circles of waits, clients that are gone, what agents tell.

use std::collections::HashMap;
use std::sync::Arc;

use redisson::{LockName, monitor};

use super::deadlock::{self, Cycle, Wait};
use super::view::WaitView;
use super::who::Told;
use super::{Effect, Model, ScopeId, Source, Traffic};

/// The most pairs of waiter and holder among which circles are looked for.
const MAX_WAITS: usize = 100_000;

impl Model {
    /// Takes in what MONITOR showed. What changed who holds a lock is read at once.
    pub(super) fn traffic(&mut self, scope_id: ScopeId, traffic: &Traffic) {
        if traffic.missed > 0 {
            // Who was granted or gave up among what was missed is not known.
            self.untapped(scope_id);
        }
        for event in &traffic.events {
            let told = Effect::Event(Source::Monitor, event.action.as_str());
            self.effects.push((scope_id, told));
            let scope_id = self.home(scope_id, &event.lock);
            let known = self.scopes[scope_id.0].locks.contains_key(&event.lock);
            if let (Some(holder), Some(monitor::Address::Tcp(address))) =
                (event.holder, event.client)
            {
                self.scopes[scope_id.0].clients.seen(holder.client, address.ip(), traffic.at);
            }
            let is_lock = event.certainty == monitor::Certainty::Certain && event.holder.is_some();
            if !(known || is_lock && self.admit(scope_id, &event.lock, traffic.at)) {
                continue;
            }
            let scope = &mut self.scopes[scope_id.0];
            let around = scope.around(&event.lock);
            let Some(kept) = scope.locks.get_mut(&event.lock) else { continue };
            let mut effects = Vec::new();
            kept.record.traffic(event, traffic.at, traffic.steady, around, &mut effects);
            let tapped = kept.record.has_tapped_waiters();
            let hurry = !known || changes_holders(event.action);
            self.keep(scope_id, &event.lock, traffic.at, effects);
            if tapped {
                self.scopes[scope_id.0].contended.insert(event.lock.clone());
            }
            self.settle(scope_id, &event.lock);
            if hurry {
                self.hurry(scope_id, &event.lock);
            }
        }
    }

    /// Takes in what agents tell of themselves and of their holders.
    pub(super) fn told(&mut self, scope_id: ScopeId, told: Told) {
        let scope = &mut self.scopes[scope_id.0];
        let news = scope.clients.told(&told);
        let mut changed = Vec::new();
        for (name, id, who) in told.holders {
            let denies = scope.clients.would_tell(&id.client);
            let Some(kept) = scope.locks.get_mut(&name) else { continue };
            if !kept.record.tell(id, who, denies, told.at, told.steady) {
                continue;
            }
            kept.record.find_gone(&scope.clients);
            changed.push(name);
        }
        for name in changed {
            self.settle(scope_id, &name);
            self.hurry(scope_id, &name);
        }
        if news {
            self.look_for_gone(scope_id);
        }
    }

    /// Clients have gone or come back: so have the holders of their locks.
    pub(super) fn look_for_gone(&mut self, scope_id: ScopeId) {
        let scope = &mut self.scopes[scope_id.0];
        let mut changed = Vec::new();
        for (name, kept) in &mut scope.locks {
            if kept.record.find_gone(&scope.clients) {
                changed.push(name.clone());
            }
        }
        changed.sort_unstable();
        for name in changed {
            self.settle(scope_id, &name);
            self.hurry(scope_id, &name);
        }
    }

    /// MONITOR shows nothing more, or did not for a while.
    pub(super) fn untapped(&mut self, scope_id: ScopeId) {
        let names: Vec<LockName> = self.scopes[scope_id.0].contended.iter().cloned().collect();
        for name in names {
            if let Some(kept) = self.scopes[scope_id.0].locks.get_mut(&name) {
                kept.record.untapped();
                self.settle(scope_id, &name);
            }
        }
    }

    /// Looks for circles among those who wait and hold by name.
    pub(super) fn look_for_deadlocks(&mut self) {
        let mut locks = Vec::new();
        for (index, scope) in self.scopes.iter().enumerate() {
            // One that cannot be read is as it was: nothing is raised and nothing cleared.
            if scope.readable_since.is_some() {
                locks.extend(scope.contended.iter().map(|name| (index, name.clone())));
            }
        }
        if locks.is_empty() {
            return;
        }
        let record = |lock: &(usize, LockName)| self.scopes[lock.0].locks.get(&lock.1);
        let mut waits: Vec<Wait> = Vec::new();
        for lock in &locks {
            let Some(kept) = record(lock) else { continue };
            waits.extend(kept.record.waits(lock).take(MAX_WAITS.saturating_sub(waits.len())));
        }
        let mut part_of: HashMap<(usize, LockName), Arc<Cycle>> = HashMap::new();
        for cycle in deadlock::cycles(&waits) {
            if !cycle.is_confirmed() {
                // They may only seem to be there at the same time: the next readings tell.
                for wait in &cycle.waits {
                    self.hurry(ScopeId(wait.lock.0), &wait.lock.1);
                }
                continue;
            }
            let shown = cycle.waits.iter().map(|wait| WaitView {
                waiter: wait.waiter.to_string(),
                lock: self.scopes[wait.lock.0].id(&wait.lock.1),
                holder: wait.holder.to_string(),
            });
            let cycle = Arc::new(Cycle { shown: shown.collect(), ..cycle });
            for wait in &cycle.waits {
                part_of.insert(wait.lock.clone(), Arc::clone(&cycle));
            }
        }
        for lock in locks {
            let scope_id = ScopeId(lock.0);
            let around = self.scopes[lock.0].around(&lock.1);
            let Some(kept) = self.scopes[lock.0].locks.get_mut(&lock.1) else { continue };
            let mut effects = Vec::new();
            kept.record.set_cycle(part_of.remove(&lock), around, &mut effects);
            self.effects.extend(effects.into_iter().map(|effect| (scope_id, effect)));
            self.settle(scope_id, &lock.1);
        }
    }
}

/// Whether an event changes who holds the lock, or how often.
fn changes_holders(what: monitor::Action) -> bool {
    use monitor::Action;
    matches!(
        what,
        Action::Acquired { .. }
            | Action::Reentered { .. }
            | Action::Recounted { .. }
            | Action::PartlyReleased
            | Action::Released
            | Action::HandedOver { .. }
            | Action::ForceReleased
            | Action::Vanished
    )
}
