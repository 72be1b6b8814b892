//! The table of lock names: local queues and holds, attempts, release messages, fencing tokens, quotas.
//!
//! Others read a [`LockState`] or a [`Waiter`]; every change is a method of the table, which returns the outcome. The
//! methods about waiters are in [`waiters`].

mod waiters;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redisson::{Family, Grouping, Kind, LockName, Moment, keys};
use service_kit::memory::Trim as _;

use super::fencing::Fences;
use super::quota::Quota;
use super::state::{Contest, Listening, LockState};
use super::waiter::{Arrival, Waiter};
use crate::collections::HashMap;
use crate::core::Node;
use crate::core::ids::{OpId, WaiterId};
use crate::core::settings::Limits;
use crate::core::timer::Timers;
use crate::policy::Policy;
use crate::types::Number;
pub(in crate::core) use waiters::{ChannelChange, RemovedWaiter};

/// The subject of a deadline of this table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum LockTimer {
    /// The end of a wait.
    Waiter(WaiterId),
    /// The next attempt of a fair waiter.
    FairPosition(WaiterId),
    /// The end of the front waiter's sleep.
    Lock(LockName),
}

/// The next step of a name's queue.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::core) enum Step {
    Nothing,
    /// The front waiter makes an attempt.
    Attempt(WaiterId),
    /// Readers hold the lock: each of these makes a separate attempt.
    Join(Vec<WaiterId>),
}

/// The label of a lock in metrics.
#[derive(Debug)]
pub(in crate::core) struct Label {
    pub(in crate::core) group: Arc<str>,
    /// The number of groups so far, if this is a new one.
    pub(in crate::core) groups: Option<usize>,
}

/// All names that a local owner holds or waits for, and the waiters.
#[derive(Debug)]
pub(in crate::core) struct LockTable {
    /// On the heap, as the map itself keeps room for up to twice its entries.
    locks: HashMap<LockName, Box<LockState>>,
    /// On the heap, as the map moves its entries.
    waiters: BTreeMap<WaiterId, Box<Waiter>>,
    /// The waiters whose attempts carry another number than their first one, by that number.
    renumbered: HashMap<Number, WaiterId>,
    /// The rank of the latest waiter in a queue.
    latest_arrival: Arrival,
    timers: Timers<LockTimer>,
    quota: Quota,
    fences: Fences,
    grouping: Grouping,
    /// The number of groups reported so far.
    groups: usize,
    /// The number of channels subscribed to.
    subscriptions: usize,
    draining: bool,
}

impl LockTable {
    pub(in crate::core) fn new(grouping: Grouping, limits: Limits) -> Self {
        Self {
            locks: HashMap::default(),
            waiters: BTreeMap::new(),
            renumbered: HashMap::default(),
            latest_arrival: 0,
            timers: Timers::default(),
            quota: Quota::new(limits),
            fences: Fences::default(),
            grouping,
            groups: 0,
            subscriptions: 0,
            draining: false,
        }
    }

    pub(in crate::core) fn get(&self, name: &LockName) -> Option<&LockState> {
        self.locks.get(name).map(|state| &**state)
    }

    pub(in crate::core) fn contains(&self, name: &LockName) -> bool {
        self.locks.contains_key(name)
    }

    /// Returns the names in no particular order.
    #[cfg(test)]
    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = (&LockName, &LockState)> {
        self.locks.iter().map(|(name, state)| (name, &**state))
    }

    /// Returns whether no name is in use and nothing counts against a quota.
    #[cfg(test)]
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.locks.is_empty()
            && self.waiters.is_empty()
            && self.renumbered.is_empty()
            && self.quota.is_empty()
    }

    /// Returns a name whose record of readers that may join disagrees with its queue.
    #[cfg(test)]
    pub(in crate::core) fn find_wrong_joiners(&self) -> Option<&LockName> {
        let wrong = |state: &LockState| {
            let readers = state.queue.iter().map_while(|id| {
                let reader = self.waiters.get(&id).filter(|waiter| waiter.kind == Kind::Read)?;
                Some((id, reader.attempt.is_none()))
            });
            !readers.filter(|(_, idle)| *idle).map(|(id, _)| id).eq(state.queue.joiners())
        };
        self.locks.iter().find(|(_, state)| wrong(state)).map(|(name, _)| name)
    }

    pub(in crate::core) fn next_deadline(&self) -> Option<Moment> {
        self.timers.first()
    }

    pub(in crate::core) fn pop_due(&mut self, now: Moment) -> Option<LockTimer> {
        self.timers.pop_due(now)
    }

    /// Returns the number of channels subscribed to.
    pub(in crate::core) fn subscriptions(&self) -> usize {
        self.subscriptions
    }

    /// Stops LOCKs from waiting, from now on.
    pub(in crate::core) fn drain(&mut self) {
        self.draining = true;
    }

    pub(in crate::core) fn is_draining(&self) -> bool {
        self.draining
    }

    pub(in crate::core) fn quota(&self) -> &Quota {
        &self.quota
    }

    pub(in crate::core) fn set_policy(&mut self, policy: Option<Policy>) {
        self.quota.set_policy(policy);
    }

    /// Derives the label of a name, or returns its existing one.
    pub(in crate::core) fn label(&mut self, name: &LockName) -> Label {
        if let Some(state) = self.locks.get(name) {
            return Label { group: Arc::clone(&state.group), groups: None };
        }
        let group = self.grouping.label(name);
        let groups = self.grouping.true_count();
        let before = std::mem::replace(&mut self.groups, groups);
        Label { group, groups: (groups > before).then_some(groups) }
    }

    /// Adds a name that is not in use yet.
    pub(in crate::core) fn insert(&mut self, name: LockName, group: Arc<str>) {
        self.locks.insert(name, Box::new(LockState::new(group)));
    }

    /// Returns the next step of a name's queue. Forgets the name when nobody needs it.
    pub(in crate::core) fn next_step(&mut self, name: &LockName, now: Moment) -> Step {
        let Some(state) = self.locks.get(name) else { return Step::Nothing };
        if state.is_unused() {
            self.timers.clear(state.contest.sleeps_until(), LockTimer::Lock(name.clone()));
            self.locks.remove(name);
            self.locks.trim();
            return Step::Nothing;
        }
        let (Some(front), Contest::Idle) = (state.queue.front(), state.contest) else {
            return Step::Nothing;
        };
        let Some(waiter) = self.waiters.get(&front) else { return Step::Nothing };
        // Each fair waiter makes its own attempts.
        if state.keeps_out(waiter.kind) || waiter.kind == Kind::Fair {
            return Step::Nothing;
        }
        if state.stand_back_until > now {
            let until = state.stand_back_until;
            self.sleep(name, until);
            return Step::Nothing;
        }
        if waiter.kind == Kind::Read && !state.readers.is_empty() {
            return Step::Join(state.queue.joiners());
        }
        // A reader that tried to join others may still have an attempt in flight when they have left. A second attempt
        // under its number could run after its hold is over; undoing it would then remove the hold with that number.
        if waiter.attempt.is_some() { Step::Nothing } else { Step::Attempt(front) }
    }

    /// Changes a name, if it is in use.
    fn change<R>(
        &mut self,
        name: &LockName,
        change: impl FnOnce(&mut LockState) -> R,
    ) -> Option<R> {
        self.locks.get_mut(name).map(|state| change(state))
    }

    /// Records the front waiter's attempt or hand-over in flight.
    pub(in crate::core) fn begin_contest(&mut self, name: &LockName, op: OpId) {
        self.set_contest(name, Contest::Attempting(op));
    }

    /// Sets the front waiter's activity, and the deadline of its sleep.
    fn set_contest(&mut self, name: &LockName, contest: Contest) {
        let Some(state) = self.locks.get_mut(name) else { return };
        let mut armed = std::mem::replace(&mut state.contest, contest).sleeps_until();
        let until = contest.sleeps_until();
        if armed != until {
            self.timers.set(&mut armed, until, LockTimer::Lock(name.clone()));
        }
    }

    /// Puts the front waiter to sleep until that instant, or until a message.
    pub(in crate::core) fn sleep(&mut self, name: &LockName, until: Moment) {
        self.set_contest(name, Contest::Asleep(until));
    }

    /// Ends the front waiter's sleep. Returns whether it slept.
    pub(in crate::core) fn wake(&mut self, name: &LockName) -> bool {
        let asleep = |state: &LockState| matches!(state.contest, Contest::Asleep(_));
        let asleep = self.get(name).is_some_and(asleep);
        if asleep {
            self.set_contest(name, Contest::Idle);
        }
        asleep
    }

    /// Leaves the lock to others until that instant. Returns whether the name is in use.
    pub(in crate::core) fn stand_back(&mut self, name: &LockName, until: Moment) -> bool {
        self.change(name, |state| state.stand_back_until = until).is_some()
    }

    /// Records that Redis answered an attempt.
    pub(in crate::core) fn on_answered(&mut self, name: &LockName) {
        self.change(name, |state| {
            state.failures = 0;
            state.last_error = None;
        });
    }

    /// Records that this agent has the lock in Redis from now on, by an attempt or from an earlier run.
    pub(in crate::core) fn on_acquired(&mut self, name: &LockName, now: Moment) {
        self.change(name, |state| {
            state.taken_at = now;
            state.handovers = 0;
            state.others = None;
        });
    }

    /// Records the hand-over in flight whose successor already holds the lock.
    pub(in crate::core) fn begin_early(&mut self, name: &LockName, hand_over: OpId) {
        self.change(name, |state| state.early = Some(hand_over));
    }

    /// Records that it is over. Returns the local hold.
    pub(in crate::core) fn end_early(&mut self, name: &LockName) -> Option<Number> {
        self.change(name, |state| {
            state.early = None;
            state.hold
        })?
    }

    pub(in crate::core) fn count_hand_over(&mut self, name: &LockName) {
        self.change(name, |state| state.handovers += 1);
    }

    /// Records the number of clients subscribed to the releases at a hand-over, if known.
    pub(in crate::core) fn on_handed_over(&mut self, name: &LockName, subscribers: Option<u64>) {
        self.change(name, |state| {
            let ours = u64::from(state.listening.is_some());
            state.others = subscribers.map(|n| n > ours);
            state.last_error = None;
        });
    }

    /// Records that a majority of the nodes reported another holder.
    pub(in crate::core) fn on_held_by_others(&mut self, name: &LockName) {
        self.change(name, |state| {
            state.failures = 0;
            state.others = Some(true);
        });
    }

    /// Sets the error of the latest attempt; `None` if it was answered.
    pub(in crate::core) fn set_last_error(&mut self, name: &LockName, last_error: Option<String>) {
        self.change(name, |state| state.last_error = last_error);
    }

    /// Forgets the error of the latest attempt if nobody tries: local holds exclude the front waiter, unless it is fair.
    pub(in crate::core) fn forget_old_error(&mut self, name: &LockName) {
        let Some(state) = self.locks.get_mut(name) else { return };
        let front = state.queue.front().and_then(|id| self.waiters.get(&id));
        let tries =
            front.is_some_and(|front| front.kind == Kind::Fair || !state.excludes(front.kind));
        if state.is_held() && !tries {
            state.last_error = None;
        }
    }

    /// Counts a failed attempt. Returns the number of consecutive failures.
    pub(in crate::core) fn add_failure(&mut self, name: &LockName) -> u32 {
        let failures = self.change(name, |state| {
            state.failures = state.failures.saturating_add(1);
            state.failures
        });
        failures.unwrap_or(1)
    }

    /// Adds a hold to a name in use.
    pub(in crate::core) fn add_hold(
        &mut self,
        name: &LockName,
        kind: Kind,
        number: Number,
        uid: u32,
    ) {
        self.quota.add_hold(uid);
        self.change(name, |state| {
            if kind == Kind::Read {
                state.readers.insert(number);
            } else {
                state.hold = Some(number);
            }
        });
    }

    pub(in crate::core) fn remove_hold(&mut self, name: &LockName, number: Number, uid: u32) {
        self.quota.remove_hold(uid);
        self.change(name, |state| {
            state.readers.remove(&number);
            state.hold.take_if(|hold| *hold == number);
        });
    }

    /// Counts an op that will free a name in use for us.
    pub(in crate::core) fn begin_leaving(&mut self, name: &LockName, kind: Kind) {
        self.change(name, |state| *state.releases_in_flight_mut(kind) += 1);
    }

    /// Counts the end of such an op. Returns whether it was the last one.
    pub(in crate::core) fn end_leaving(&mut self, name: &LockName, kind: Kind) -> bool {
        let Some(state) = self.locks.get_mut(name) else { return true };
        let releases_in_flight = state.releases_in_flight_mut(kind);
        *releases_in_flight = releases_in_flight.saturating_sub(1);
        *releases_in_flight == 0
    }

    /// Subscribes to a name's release messages. Returns the channel, unless it was subscribed to before.
    pub(in crate::core) fn listen(&mut self, name: &LockName, family: Family) -> Option<Vec<u8>> {
        let state = self.locks.get_mut(name).filter(|state| state.listening.is_none())?;
        let channel = match family {
            Family::ReadWrite => keys::read_write_channel(name),
            Family::Plain | Family::Fair | Family::Red => keys::channel(name),
        };
        state.listening = Some(Box::new(Listening { family, channel: channel.clone() }));
        self.subscriptions += 1;
        Some(channel)
    }

    /// Unsubscribes once nobody waits for another client's release. Returns the subscription that ends.
    pub(in crate::core) fn stop_listening(&mut self, name: &LockName) -> Option<Listening> {
        let state = self.locks.get_mut(name)?;
        if !state.queue.is_empty() && !state.is_held() {
            return None;
        }
        let listening = state.listening.take()?;
        state.node_subscriptions.mark_unsubscribed();
        self.subscriptions -= 1;
        Some(*listening)
    }

    /// Returns the state of a lock that this server's messages concern: a name is in use either on the one server of
    /// most kinds, or on those of red locks.
    fn listener(&mut self, node: Node, name: &LockName) -> Option<&mut LockState> {
        let fits = |family: Family| (family == Family::Red) == (node != Node::Main);
        let state = self.locks.get_mut(name)?;
        state.listening.as_ref().is_some_and(|listening| fits(listening.family)).then_some(state)
    }

    /// Records that a subscription is active. Returns whether a release may have been missed before.
    pub(in crate::core) fn on_subscribed(
        &mut self,
        node: Node,
        name: &LockName,
        majority: usize,
    ) -> bool {
        self.listener(node, name).is_some_and(|state| match node {
            Node::Main => true,
            Node::Red(node) => state.node_subscriptions.on_subscribed(node, majority),
        })
    }

    /// Records that a node's connection for messages is down.
    pub(in crate::core) fn on_unsubscribed(&mut self, node: usize) {
        self.locks.values_mut().for_each(|state| state.node_subscriptions.on_unsubscribed(node));
    }

    /// Records a release message. Returns whether the front waiter tries at once.
    pub(in crate::core) fn on_message(
        &mut self,
        node: Node,
        name: &LockName,
        now: Moment,
        majority: usize,
        node_timeout: Duration,
    ) -> bool {
        let Some(state) = self.listener(node, name) else { return false };
        state.message_at = Some(now);
        let Node::Red(node) = node else {
            // Our own true release is published too, right before we stand back; it wakes nobody here.
            return state.stand_back_until <= now;
        };
        let news = !state.node_subscriptions.knows_free(node);
        state.node_subscriptions.add_free(node);
        if state.stand_back_until > now {
            return false;
        }
        if state.node_subscriptions.free() >= majority {
            return true;
        }
        // The holder may have had only the nodes that reported so far, or the others' messages may be lost.
        let soon = now + node_timeout;
        if matches!(state.contest, Contest::Asleep(until) if news && until > soon) {
            self.sleep(name, soon);
        }
        false
    }

    /// Takes the latest release message. Returns whether it arrived at that instant or later.
    pub(in crate::core) fn take_message(&mut self, name: &LockName, since: Moment) -> bool {
        self.change(name, |state| state.message_at.take()).flatten().is_some_and(|at| at >= since)
    }

    /// Records that an attempt is sent to all nodes: earlier messages do not matter to it.
    pub(in crate::core) fn begin_node_attempts(&mut self, name: &LockName) {
        self.change(name, |state| state.node_subscriptions.begin());
    }

    /// Adds nodes on which the lock is free. Returns whether it is free on a majority.
    pub(in crate::core) fn add_free_nodes(
        &mut self,
        name: &LockName,
        nodes: &[usize],
        majority: usize,
    ) -> bool {
        self.locks.get_mut(name).is_some_and(|state| {
            nodes.iter().for_each(|node| state.node_subscriptions.add_free(*node));
            state.node_subscriptions.free() >= majority
        })
    }

    /// Returns the least fencing token that the next grant of a lock may have.
    pub(in crate::core) fn next_token(&self, name: &LockName) -> u64 {
        self.fences.least(name)
    }

    /// Records the fencing token of a grant.
    pub(in crate::core) fn saw_token(&mut self, name: &LockName, token: u64) {
        self.fences.saw(name, token);
    }
}
