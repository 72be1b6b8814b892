//! Builds the view of a lock, which pages and the API show.

use std::sync::Arc;

use redisson::{HolderId, Kind, Moment};
use thin_vec::ThinVec;

use super::{ColdState, Mode, Record};
use crate::clock::{SteadyMillis, WallMillis, millis};
use crate::model::clients::Clients;
use crate::model::types::{
    ClientView, HolderView, LockView, Marker, Observed, QueueEntryView, State, Verification,
    WaiterView,
};
use crate::model::waiting::Waiter;

/// The largest difference between two ends of a time to live that does not count as a change.
const PREDICTED_MS: u64 = 250;

impl Record {
    /// Returns whether the newest reading shows the current state: the server has been readable since `readable_since`.
    #[must_use]
    pub fn is_current(&self, readable_since: Option<Moment>) -> bool {
        let read = self.stamp.map(|stamp| stamp.received.moment());
        readable_since.is_some_and(|since| read.is_some_and(|read| read >= since))
    }

    /// Returns whether the published view is still accurate, given that ages and times to live advance by themselves.
    #[must_use]
    pub fn is_view_current(&self, published: &LockView, readable_since: Option<Moment>) -> bool {
        if self.dirty || self.is_current(readable_since) == published.is_unknown() {
            return false;
        }
        match (published.expires_at, self.expires_at()) {
            (Some(then), Some(now)) => now.0.abs_diff(then.0) <= PREDICTED_MS,
            (then, now) => then == now,
        }
    }

    /// Returns the instant of the newest reading, or of the record's creation before the first reading.
    #[must_use]
    pub fn observed_at(&self) -> SteadyMillis {
        self.stamp.map_or(self.unchanged_since, |stamp| stamp.received).steady()
    }

    /// Returns the end of its time to live by the newest reading.
    fn expires_at(&self) -> Option<SteadyMillis> {
        Some(self.observed_at().plus(millis(self.ttl?)))
    }

    /// Builds the next view to publish, and marks the record as unchanged. A reading from before `readable_since` makes
    /// the state unknown.
    pub fn next_view(&mut self, readable_since: Option<Moment>, clients: &Clients) -> LockView {
        self.dirty = false;
        let kind = match self.mode {
            None if self.fair => Kind::Fair,
            None if self.token.is_some() => Kind::Fenced,
            None => Kind::Lock,
            Some(Mode::Write) => Kind::Write,
            Some(Mode::Read | Mode::Other) => Kind::Read,
        };
        let holders: Vec<HolderView> = self
            .holds
            .iter()
            .map(|hold| HolderView {
                id: self.field_of(hold.id).text().into(),
                mode: match (&self.mode, hold.id.write) {
                    (_, true) => Kind::Write,
                    (Some(_), false) => Kind::Read,
                    (None, false) => Kind::Lock,
                },
                count: hold.count,
                marker_ttl_ms: match hold.marker {
                    Some(Marker::Expires(left)) => Some(millis(left)),
                    Some(Marker::Missing | Marker::Persistent) | None => None,
                },
                zombie: hold.marker == Some(Marker::Missing),
                since: hold.since,
                client: self.client(&hold.id, clients).map(Box::new),
            })
            .collect();
        let count = self.waiter_count();
        let waiting = WaitingView::new(self.cold.as_deref(), count, |id| self.client(id, clients));
        let state = match (self.is_current(readable_since), self.is_held()) {
            (false, _) => State::Unknown,
            (true, true) => State::Held,
            (true, false) => State::Free,
        };
        let history = self.hold_history.as_ref().map(|history| history.view()).unwrap_or_default();
        LockView {
            id: self.id.clone(),
            state,
            confirmed: self.confirmed,
            kind,
            holders,
            expires_at: self.expires_at(),
            observed: Observed::new(self.observed_at()),
            lease_ms: self.lease.lease().map(millis),
            renewed: self.lease.renewed(),
            renewals: self.renewals.clone().filter(|_| self.lease.renewed() && self.is_held()),
            problems: self.problems.clone(),
            events: self.events.clone(),
            history,
            red: None,
            sources: self.sources,
            queued: waiting.queued,
            waiters: waiting.waiters,
            waiting: waiting.count,
            waiters_exact: waiting.exact,
            queue: waiting.queue,
            token: self.token.as_deref().copied(),
            group: Arc::clone(&self.group),
            expected_long: self.rule.stuck_after.is_none(),
        }
    }

    /// Returns the process behind a holder or waiter, if known.
    fn client(&self, id: &HolderId, clients: &Clients) -> Option<ClientView> {
        let seen = clients.view(&id.client);
        let Some(known) = self.tracked(id) else {
            return match clients.agent_lives(&id.client) {
                Some(false) => Some(ClientView { alive: Some(false), ..seen.unwrap_or_default() }),
                Some(true) | None => seen,
            };
        };
        let alive = match (known.denied_since(), clients.agent_lives(&id.client)) {
            (Some(_), _) => Some(false),
            // The holder may just be too young to be published.
            (None, Some(true)) if known.is_unconfirmed() => None,
            (None, lives) => lives,
        };
        let task =
            known.identity.task().map(|(session, owner)| format!("{session} {owner}").into());
        let identity = known.identity.clone();
        let (verified, signed_by, unverified_because) = match identity.verification {
            Verification::Unchecked => (None, None, None),
            Verification::Verified(name) => (Some(true), Some(name), None),
            Verification::Claimed(why) => (Some(false), None, Some(why)),
        };
        let view = ClientView {
            // The connections of an agent's holder belong to the agent.
            name: identity
                .name
                .or_else(|| identity.host.is_none().then(|| seen.as_ref()?.name.clone())?),
            addr: seen.and_then(|seen| seen.addr),
            host: identity.host,
            pid: identity.pid,
            uid: identity.uid,
            comm: identity.comm,
            session: identity.session,
            since: identity.since,
            task,
            alive,
            verified,
            signed_by,
            unverified_because,
        };
        (view != ClientView::default()).then_some(view)
    }
}

/// A lock's waiters for display.
struct WaitingView {
    queued: bool,
    waiters: ThinVec<WaiterView>,
    count: u64,
    exact: bool,
    queue: ThinVec<QueueEntryView>,
}

impl WaitingView {
    /// `count` is the least number of waiters, and whether that is their number. `client` returns the process behind one.
    fn new(
        cold: Option<&ColdState>,
        (count, exact): (u64, bool),
        client: impl Fn(&HolderId) -> Option<ClientView>,
    ) -> Self {
        let mut shown =
            Self { queued: false, waiters: ThinVec::new(), count, exact, queue: ThinVec::new() };
        let Some(waiting) = cold.map(|cold| &cold.waiting) else { return shown };
        let live = waiting.waiters().filter(|waiter| waiter.is_live());
        shown.waiters = live
            .map(|waiter| WaiterView {
                id: waiter.id.to_string().into(),
                since: waiter.since,
                attempts: waiter.attempts,
                client: client(&waiter.id).map(Box::new),
            })
            .collect();
        if let Some(queue) = &waiting.queue {
            shown.queued = queue.len > 0;
            let waiter = |id| waiting.waiters().find(|waiter| waiter.id == id);
            shown.queue = queue
                .front
                .iter()
                .map(|entry| QueueEntryView {
                    id: entry.id.to_string(),
                    deadline: entry.deadline.map(|at| WallMillis(at).to_steady()),
                    alive: waiter(entry.id).is_none_or(Waiter::is_live),
                    gone: waiter(entry.id).is_some_and(|waiter| waiter.gone),
                })
                .collect();
        }
        shown
    }
}
