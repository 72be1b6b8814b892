//! The identities of a lock's holders and waiters, from agents and the list of clients.

use std::time::Duration;

use redisson::{ClientId, HolderId, millis};

use super::{Hold, Record};
use crate::clock::{SteadyMillis, Time};
use crate::model::clients::Clients;
use crate::model::problem::Gone;
use crate::model::types::{HolderIdentity, Source, TrackedHolder};
use crate::model::waiting::is_granted;

/// The longest time for which one renewal shows that a holder is alive although its client is gone: it may have been another
/// reader's, or a step of the clock of Redis. A watchdog renews again within half the lease.
const BELIEVED: Duration = Duration::from_secs(300);

impl Record {
    /// Updates whether the holder and the queued waiters are gone. The holder of a renewed lock is alive, regardless of
    /// other observations. Returns true if anything changed.
    pub fn update_gone(&mut self, clients: &Clients) -> bool {
        let holder_changed = self.update_gone_holder(clients);
        self.update_gone_waiters(clients) || holder_changed
    }

    pub(super) fn update_gone_waiters(&mut self, clients: &Clients) -> bool {
        let waiting = self.cold.as_mut().map(|cold| &mut cold.waiting);
        let changed =
            waiting.is_some_and(|waiting| waiting.update_gone(|id| clients.gone(id).is_some()));
        if changed {
            self.add_source(Source::Identity);
            self.dirty = true;
        }
        changed
    }

    pub(super) fn update_gone_holder(&mut self, clients: &Clients) -> bool {
        let denied = |id: &HolderId| {
            let since = self.tracked(id)?.denied_since()?;
            let evidence = "its agent is alive and does not report it".to_owned();
            Some(Gone { since, evidence })
        };
        // A client that acquired the lock since then was alive.
        let acquired_since =
            |hold: &Hold, gone: &Gone| hold.since.exact && hold.since.at > gone.since;
        let gone = self.holds.iter().find_map(|hold| {
            let gone = clients.gone(&hold.id.client).or_else(|| denied(&hold.id));
            Some((hold.id, gone.filter(|gone| !acquired_since(hold, gone))?))
        });
        let believed = self.lease.lease().map_or(BELIEVED, |lease| BELIEVED.min(lease / 2));
        let rose = self.rose.zip(self.stamp);
        let rose =
            rose.filter(|(rose, last)| last.steady().millis_since(*rose) <= millis(believed));
        let rose_since = |gone: &Gone| rose.is_some_and(|(rose, _)| rose >= gone.since);
        let gone = gone.filter(|(_, gone)| !self.lease.renewed() && !rose_since(gone));
        let before = self.cold.as_ref().and_then(|cold| cold.gone.as_ref());
        if before == gone.as_ref() {
            return false;
        }
        self.add_source(Source::Identity);
        self.cold().gone = gone;
        self.drop_empty_cold_state();
        self.dirty = true;
        true
    }

    /// Forgets which holders their agents did not publish, since the agents' reports can no longer be read.
    pub fn forget_denials(&mut self) {
        let tracked = self.cold.iter_mut().flat_map(|cold| &mut cold.tracked);
        tracked.for_each(TrackedHolder::forget_denial);
    }

    /// Applies an agent's report about a holder or waiter: its identity, or `None`. If `denies` is true, the agent
    /// would publish a holder that it had. Returns true if anything changed.
    pub fn identify(
        &mut self,
        id: HolderId,
        identity: Option<HolderIdentity>,
        denies: bool,
        at: Time,
    ) -> bool {
        let holds = self.holds.iter().any(|hold| hold.id == id);
        // A wait may be too young to be published, or may be over by now, so only a holder can be denied.
        let relevant = match identity {
            Some(_) => holds || self.waits_by_name(&id),
            None => holds && denies,
        };
        if !relevant {
            return false;
        }
        if let Some(identity) = &identity {
            if !identity.verification.is_only_claimed() {
                self.confirm();
            }
            self.add_source(Source::Identity);
        }
        let tracked = &mut self.cold().tracked;
        let index = tracked.iter().position(|known| known.id == id).unwrap_or_else(|| {
            tracked.push(TrackedHolder::new(id));
            tracked.len() - 1
        });
        let changed = match identity {
            Some(identity) => tracked[index].identify(identity),
            None => tracked[index].deny(at),
        };
        self.dirty |= changed;
        changed
    }

    /// Returns the clients of its holds and waiters.
    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        let waiters = self.cold.iter().flat_map(|cold| cold.waiting.waiters());
        let waiters = waiters.map(|waiter| waiter.id.client);
        self.holds.iter().map(|hold| hold.id.client).chain(waiters)
    }

    /// Marks the view as outdated if one of those clients holds the lock or waits for it. Returns whether it was
    /// marked.
    pub fn redraw_if(&mut self, concerned: impl Fn(&ClientId) -> bool) -> bool {
        let mut waiters = self.cold.iter().flat_map(|cold| cold.waiting.waiters());
        let concerned = self.holds.iter().any(|hold| concerned(&hold.id.client))
            || waiters.any(|waiter| concerned(&waiter.id.client));
        self.dirty |= concerned;
        concerned
    }

    /// Applies the waiters of this lock at an agent: their number, and the first ones with the beginnings of their
    /// waits.
    pub fn agent_waits(
        &mut self,
        agent: ClientId,
        count: u64,
        first: &[(HolderId, SteadyMillis)],
        at: Time,
    ) {
        if count == 0 && self.cold.is_none() {
            return;
        }
        // The list may be older than the reading that shows one of them as the holder.
        let is_holder = |id| self.holds.iter().any(|hold| is_granted(id, &hold.id));
        let waits: Vec<_> = first.iter().filter(|(id, _)| !is_holder(id)).copied().collect();
        let became_holders = u64::try_from(first.len() - waits.len()).unwrap_or(u64::MAX);
        let count = count.saturating_sub(became_holders);
        if count > 0 {
            self.confirm();
            self.add_source(Source::Identity);
        }
        self.dirty |= self.cold().waiting.agent(agent, count, &waits, at);
        self.drop_untracked();
        self.drop_empty_cold_state();
    }

    /// Returns the agents that have published waiters of this lock.
    pub fn agents_with_waiters(&self) -> impl Iterator<Item = ClientId> {
        self.cold.iter().flat_map(|cold| cold.waiting.agents())
    }

    fn waits_by_name(&self, id: &HolderId) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.waiting.waiters().any(|w| w.id == *id))
    }

    pub(super) fn tracked(&self, id: &HolderId) -> Option<&TrackedHolder> {
        self.cold.as_ref()?.tracked.iter().find(|known| known.id == *id)
    }

    /// Drops reports about holders that are no longer of interest.
    pub(super) fn drop_untracked(&mut self) {
        let Some(cold) = self.cold.as_mut().filter(|cold| !cold.tracked.is_empty()) else { return };
        let expired = cold.expired.as_ref().and_then(|expired| expired.holder.as_ref()?.id());
        let holds = &self.holds;
        let waits = |id| cold.waiting.waiters().any(|waiter| waiter.id == id);
        cold.tracked.retain(|known| {
            expired == Some(known.id)
                || holds.iter().any(|hold| hold.id == known.id)
                || waits(known.id)
        });
        self.drop_empty_cold_state();
    }
}
