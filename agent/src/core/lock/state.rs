//! One lock name as this agent knows it: its local queue, and who competes for it in Redis.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use redisson::{Family, Kind, LockName, Moment, keys};

use crate::core::Report;
use crate::core::red::node_subscriptions::NodeSubscriptions;
use crate::core::timer::Timer;
use crate::core::{Core, Effect, Node, OpId};
use crate::types::Number;

/// The front waiter's activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Contest {
    /// Nothing: nobody waits, or a local hold stands in the way.
    Idle,
    /// An attempt or a hand-over is on its way.
    Asking(OpId),
    /// It was refused, and looks again at that instant or upon a message.
    Asleep(Moment),
}

/// A lock name that somebody here holds or waits for.
#[derive(Debug)]
pub(in crate::core) struct LockState {
    /// Its label in metrics.
    pub(in crate::core) group: Arc<str>,
    /// The local hold that excludes all others, if any.
    pub(in crate::core) hold: Option<Number>,
    /// The local read holds.
    pub(in crate::core) readers: BTreeSet<Number>,
    /// Ops that will make the lock free for us: releases, undoings.
    pub(in crate::core) leaving: u32,
    /// The same for read holds, which keep out writers only.
    pub(in crate::core) readers_leaving: u32,
    pub(in crate::core) queue: VecDeque<Number>,
    pub(in crate::core) contest: Contest,
    /// The channel of release messages that we asked for, and for which family of kinds.
    pub(in crate::core) listening: Option<(Family, Vec<u8>)>,
    /// For a red lock: what is heard from which node.
    pub(in crate::core) node_subscriptions: NodeSubscriptions,
    /// The instant of the latest release message.
    pub(in crate::core) message_at: Option<Moment>,
    /// The instant at which the lock was last acquired in Redis rather than handed over.
    pub(in crate::core) taken_at: Moment,
    pub(in crate::core) handovers: u32,
    /// Other clients are subscribed, according to the latest hand-over; none before the first one.
    pub(in crate::core) others: Option<bool>,
    /// The end of the time for which the lock is left to others.
    pub(in crate::core) stand_back_until: Moment,
    /// Attempts that failed in a row.
    pub(in crate::core) failures: u32,
    /// The error of the latest attempt; none once an attempt was answered.
    pub(in crate::core) trouble: Option<String>,
    /// The deadline that is set.
    pub(in crate::core) armed: Moment,
}

impl LockState {
    fn new(group: Arc<str>) -> Self {
        Self {
            group,
            hold: None,
            readers: BTreeSet::new(),
            leaving: 0,
            readers_leaving: 0,
            queue: VecDeque::new(),
            contest: Contest::Idle,
            listening: None,
            node_subscriptions: NodeSubscriptions::default(),
            message_at: None,
            taken_at: Moment::default(),
            handovers: 0,
            others: None,
            stand_back_until: Moment::default(),
            failures: 0,
            trouble: None,
            armed: Moment::NEVER,
        }
    }

    /// Returns whether a local hold, or one on its way out, excludes a newcomer of that kind.
    pub(in crate::core) fn keeps_out(&self, kind: Kind) -> bool {
        self.hold.is_some()
            || self.leaving > 0
            || (kind != Kind::Read && (!self.readers.is_empty() || self.readers_leaving > 0))
    }

    fn is_held(&self) -> bool {
        self.hold.is_some() || !self.readers.is_empty()
    }

    fn is_unused(&self) -> bool {
        !self.is_held()
            && self.leaving == 0
            && self.readers_leaving == 0
            && self.queue.is_empty()
            && !matches!(self.contest, Contest::Asking(_))
    }
}

impl Core {
    pub(in crate::core) fn lock_mut(&mut self, name: &LockName) -> &mut LockState {
        // Two look-ups in the common case beat a clone of the key on each.
        if !self.locks.contains_key(name) {
            let group = self.group_label(name);
            self.locks.insert(name.clone(), LockState::new(group));
        }
        self.locks.get_mut(name).expect("inserted above where it was missing")
    }

    /// Returns the label under which metrics count a lock.
    pub(in crate::core) fn group_label(&mut self, name: &LockName) -> Arc<str> {
        if let Some(state) = self.locks.get(name) {
            return Arc::clone(&state.group);
        }
        let group = self.grouping.label(name);
        let groups = self.grouping.true_count();
        self.effects.report(Report::GroupSeen { group: Arc::clone(&group), groups });
        group
    }

    /// Lets the front waiter try, if nothing stands in its way; forgets the name when nobody needs it any more.
    /// To be called whenever anything about the name has changed.
    pub(in crate::core) fn poll_queue(&mut self, name: &LockName) {
        let now = self.now;
        let Some(state) = self.locks.get_mut(name) else { return };
        if state.queue.is_empty() || state.is_held() {
            self.unsubscribe(name);
        }
        let Some(state) = self.locks.get_mut(name) else { return };
        if state.is_unused() {
            let armed = state.armed;
            self.timers.clear(armed, Timer::Lock(name.clone()));
            self.locks.remove(name);
            return;
        }
        let (Some(&front), Contest::Idle) = (state.queue.front(), state.contest) else { return };
        let Some(waiter) = self.waiters.get(&front) else { return };
        let (kind, asks) = (waiter.kind, waiter.asking.is_some());
        let Some(state) = self.locks.get(name) else { return };
        // Fair waiters ask each for itself.
        if state.keeps_out(kind) || kind == Kind::Fair {
            return;
        }
        if state.stand_back_until > now {
            let until = state.stand_back_until;
            return self.sleep(name, until);
        }
        if kind == Kind::Read && !state.readers.is_empty() {
            return self.readers_join(name);
        }
        // A reader that asked to join others may still be asking when they have gone. A second attempt under its number
        // could run when its hold is over, and would then be undone at the cost of whoever has that number.
        if asks {
            return;
        }
        let asking = self.attempt(front);
        if let (Some(op), Some(state)) = (asking, self.locks.get_mut(name)) {
            state.contest = Contest::Asking(op);
        }
    }

    /// Readers are inside: those at the front of the queue go in together, each by an attempt of its own.
    fn readers_join(&mut self, name: &LockName) {
        let Some(state) = self.locks.get(name) else { return };
        let waiting = state.queue.iter().map_while(|id| {
            let waiter = self.waiters.get(id).filter(|waiter| waiter.kind == Kind::Read)?;
            Some((*id, waiter.asking.is_none()))
        });
        let idle: Vec<_> = waiting.filter(|(_, idle)| *idle).map(|(id, _)| id).collect();
        for waiter in idle {
            self.attempt(waiter);
        }
    }

    /// The family of kinds that the name is in use as here; none while nobody holds or waits for it.
    pub(in crate::core) fn family(&self, name: &LockName) -> Option<Family> {
        let state = self.locks.get(name)?;
        let hold = state.hold.iter().chain(&state.readers).next();
        let held = hold.and_then(|number| self.leases.get(*number)).map(|hold| hold.kind);
        let wanted =
            || state.queue.front().and_then(|id| self.waiters.get(id)).map(|waiter| waiter.kind);
        held.or_else(wanted).map(Kind::family)
    }

    /// Puts the front waiter to sleep until then, or until a message.
    pub(in crate::core) fn sleep(&mut self, name: &LockName, until: Moment) {
        let Some(state) = self.locks.get_mut(name) else { return };
        state.contest = Contest::Asleep(until);
        self.timers.set(&mut state.armed, until, Timer::Lock(name.clone()));
    }

    pub(in crate::core) fn lock_due(&mut self, name: &LockName) {
        let Some(state) = self.locks.get_mut(name) else { return };
        state.armed = Moment::NEVER;
        if matches!(state.contest, Contest::Asleep(_)) {
            state.contest = Contest::Idle;
            self.poll_queue(name);
        }
    }

    /// Asks for release messages of a lock that others hold.
    pub(in crate::core) fn subscribe(&mut self, name: &LockName) {
        let family = self.family(name).unwrap_or(Family::Plain);
        let Some(state) = self.locks.get_mut(name).filter(|state| state.listening.is_none()) else {
            return;
        };
        let channel = match family {
            Family::ReadWrite => keys::read_write_channel(name),
            _ => keys::channel(name),
        };
        state.listening = Some((family, channel.clone()));
        for node in self.nodes_of(family) {
            self.effects.push(Effect::Subscribe(node, channel.clone()));
        }
        self.gauges.subscriptions += 1;
    }

    fn unsubscribe(&mut self, name: &LockName) {
        let Some(state) = self.locks.get_mut(name) else { return };
        if let Some((family, channel)) = state.listening.take() {
            state.node_subscriptions.deaf();
            for node in self.nodes_of(family) {
                self.effects.push(Effect::Unsubscribe(node, channel.clone()));
            }
            self.gauges.subscriptions -= 1;
        }
    }

    /// The servers that have a family's locks.
    fn nodes_of(&self, family: Family) -> Vec<Node> {
        match family {
            Family::Red => (0..self.nodes().len()).map(Node::Red).collect(),
            _ => vec![Node::Main],
        }
    }

    /// Returns the state of a lock that this server's messages concern: a name is in use on the one server of
    /// most kinds, or on those of red locks.
    fn listener(&mut self, node: Node, name: &LockName) -> Option<&mut LockState> {
        let fits = |family: Family| (family == Family::Red) == (node != Node::Main);
        let state = self.locks.get_mut(name)?;
        state.listening.as_ref().is_some_and(|(family, _)| fits(*family)).then_some(state)
    }

    /// The subscription to a lock's messages stands, for the first time or again: what was published before it did
    /// is lost, so the front waiter looks again.
    pub fn on_subscribed(&mut self, now: Moment, node: Node, name: &LockName) {
        self.advance_clock(now);
        let majority = self.majority();
        if let Some(state) = self.listener(node, name) {
            let looks = match node {
                Node::Main => true,
                Node::Red(node) => state.node_subscriptions.subscribed(node, majority),
            };
            if looks {
                self.wake(name);
            }
        }
        self.run_ready();
    }

    /// A connection for messages is down: every name sleeps without it until it is back.
    pub fn on_unsubscribed(&mut self, node: Node) {
        if let Node::Red(node) = node {
            self.locks.values_mut().for_each(|state| state.node_subscriptions.unsubscribed(node));
        }
    }

    /// Somebody published a release of the lock.
    pub fn on_message(&mut self, now: Moment, node: Node, name: &LockName) {
        self.advance_clock(now);
        let at = self.now;
        if let Some(state) = self.listener(node, name) {
            state.message_at = Some(at);
            match node {
                Node::Red(node) => self.on_node_message(node, name),
                // Our own true release is published too, and right before we stand back; it wakes nobody here.
                Node::Main if state.stand_back_until <= at => self.wake(name),
                Node::Main => {}
            }
        }
        self.run_ready();
    }

    /// Ends the front waiter's sleep: it tries again.
    pub(in crate::core) fn wake(&mut self, name: &LockName) {
        let Some(state) = self.locks.get_mut(name) else { return };
        if matches!(state.contest, Contest::Asleep(_)) {
            state.contest = Contest::Idle;
            self.timers.set(&mut state.armed, Moment::NEVER, Timer::Lock(name.clone()));
            self.poll_queue(name);
        }
    }
}
