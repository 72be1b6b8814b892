//! Publishing snapshots and deltas.

use std::sync::Arc;

use super::Model;
use super::scope::Scope;
use crate::clock::SteadyMillis;
use crate::model::types::{Delta, LockView, ScopeId, Snapshot};

/// The maximum number of views that are built for one snapshot. The remaining ones follow with the next.
const MAX_CHANGES: usize = 2_000;

impl Model {
    /// Inserts a new view into the snapshot. If the lock's holders have changed, or the view has become current or
    /// outdated, the views on the other servers of its group are rebuilt next.
    fn insert_view(&mut self, scope_id: ScopeId, mut view: LockView) -> Arc<LockView> {
        view.red = self.red(scope_id, &view.id.name).map(Box::new);
        let view = Arc::new(view);
        self.snapshot.put(Arc::clone(&view));
        let entry = self.scopes[scope_id.0].locks.get_mut(&view.id.name);
        let before = entry.and_then(|entry| entry.published.replace(Arc::clone(&view)));
        let same = |before: &LockView| {
            let ids = before.holders.iter().map(|holder| &holder.id);
            ids.eq(view.holders.iter().map(|holder| &holder.id))
                && before.is_unknown() == view.is_unknown()
        };
        if !before.is_some_and(|before| same(&before)) {
            for member in self.members(scope_id).into_iter().filter(|member| *member != scope_id) {
                let member = &mut self.scopes[member.0];
                if member.locks.contains(&view.id.name) {
                    member.locks.mark_changed(&view.id.name);
                }
            }
        }
        view
    }

    /// Builds the next snapshot, or returns `None` if nothing has changed.
    pub fn publish(&mut self, steady: SteadyMillis) -> Option<(Arc<Snapshot>, Arc<Delta>)> {
        let mut views = Vec::new();
        // First each database gets its share, so that one with many changes does not delay the others.
        for most in [MAX_CHANGES / self.scopes.len().max(1), MAX_CHANGES] {
            for (index, scope) in self.scopes.iter_mut().enumerate() {
                for name in scope.locks.take_changed(most.min(MAX_CHANGES - views.len())) {
                    views.extend(scope.next_view(&name).map(|view| (ScopeId(index), view)));
                }
            }
        }
        let changed: Box<[_]> =
            views.into_iter().map(|(scope, view)| self.insert_view(scope, view)).collect();
        let mut gone = Vec::new();
        for (index, scope) in self.scopes.iter_mut().enumerate() {
            let names = scope.locks.take_removed().into_iter();
            gone.extend(names.map(|name| (ScopeId(index), scope.id(&name))));
        }
        let mut removed = Vec::new();
        for (scope, id) in gone {
            // The lock may have been found again since, with another view.
            let home = &self.scopes[self.home(scope, &id.name).0];
            if home.locks.get(&id.name).is_none_or(|entry| entry.published.is_none()) {
                self.snapshot.remove(&id);
                removed.push(id);
            }
        }
        if changed.is_empty() && removed.is_empty() && !self.stale {
            return None;
        }
        self.stale = false;
        self.snapshot.seq += 1;
        self.snapshot.at = steady;
        // A cluster's front represents all its nodes.
        let whole = self.scopes.iter().filter(|scope| scope.front.is_none());
        let scanned = whole.clone().filter(|scope| scope.pass_began().is_some());
        self.snapshot.complete = whole.count() == scanned.clone().count();
        self.snapshot.scanned =
            scanned.map(|scope| (Arc::clone(&scope.deployment), scope.db)).collect();
        let refused = self.scopes.iter().map(Scope::refused);
        self.snapshot.not_kept = refused.clone().map(|refused| refused.locks).sum();
        self.snapshot.possible_not_kept = refused.map(|refused| refused.possible).sum();
        if self.snapshot.notices.len() != self.notices.len()
            || self.snapshot.notices.first() != self.notices.front()
        {
            self.snapshot.notices = self.notices.iter().cloned().collect();
        }
        let delta = Delta::new(self.snapshot.seq, steady, changed, removed);
        Some((Arc::new(self.snapshot.clone()), Arc::new(delta)))
    }
}
