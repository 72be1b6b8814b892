//! The state of one lock name: its local queue, its holds, and the attempt of its front waiter.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redisson::{Family, Kind, Moment};

use super::node_subscriptions::NodeSubscriptions;
use super::queue::Queue;
use crate::core::ids::OpId;
use crate::types::Number;

/// The interval at which the lock is truly released, however short the holders' turns are.
const ALWAYS_RELEASE_AFTER: Duration = Duration::from_secs(1);

/// The front waiter's activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Contest {
    /// Nothing: nobody waits, or a local hold prevents it.
    Idle,
    /// An attempt or a hand-over is in flight.
    Attempting(OpId),
    /// It was refused, and tries again at that instant or on a message.
    Asleep(Moment),
}

impl Contest {
    /// Returns the instant at which a sleep ends.
    pub(super) fn sleeps_until(self) -> Moment {
        match self {
            Self::Asleep(until) => until,
            Self::Idle | Self::Attempting(_) => Moment::NEVER,
        }
    }
}

/// The subscription to a lock's release messages.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::core) struct Listening {
    pub(in crate::core) family: Family,
    pub(in crate::core) channel: Vec<u8>,
}

/// A lock name that a local owner holds or waits for.
#[derive(Debug)]
pub(in crate::core) struct LockState {
    /// Its label in metrics.
    pub(in crate::core) group: Arc<str>,
    /// The local hold that excludes all others, if any.
    pub(in crate::core) hold: Option<Number>,
    /// The local read holds.
    pub(in crate::core) readers: BTreeSet<Number>,
    /// Ops that will free the lock for us: releases and undos.
    pub(in crate::core) releases_in_flight: u32,
    /// Ops that will free the lock of one of our read holds, which only exclude writers.
    pub(in crate::core) reader_releases_in_flight: u32,
    /// The hand-over in flight whose successor holds the lock already, or has held it since.
    pub(in crate::core) early: Option<OpId>,
    pub(in crate::core) queue: Queue,
    pub(in crate::core) contest: Contest,
    /// The subscription to its release messages, if any.
    pub(in crate::core) listening: Option<Box<Listening>>,
    /// For a red lock: the nodes that send messages, and their reports.
    pub(in crate::core) node_subscriptions: NodeSubscriptions,
    /// The instant of the latest release message.
    pub(in crate::core) message_at: Option<Moment>,
    /// The instant at which the lock was last acquired in Redis rather than handed over.
    pub(in crate::core) taken_at: Moment,
    pub(in crate::core) handovers: u32,
    /// Other clients are subscribed, according to the latest hand-over; `None` before the first one.
    pub(in crate::core) others: Option<bool>,
    /// The end of the time for which the lock is left to others.
    pub(in crate::core) stand_back_until: Moment,
    /// Consecutive failed attempts.
    pub(in crate::core) failures: u32,
    /// The error of the latest attempt; `None` once an attempt was answered.
    pub(in crate::core) last_error: Option<String>,
}

// An agent may have a hundred thousand of them, nearly all of them held and without waiters.
const _: () = assert!(size_of::<LockState>() <= 184);

impl LockState {
    pub(super) fn new(group: Arc<str>) -> Self {
        Self {
            group,
            hold: None,
            readers: BTreeSet::new(),
            releases_in_flight: 0,
            reader_releases_in_flight: 0,
            early: None,
            queue: Queue::default(),
            contest: Contest::Idle,
            listening: None,
            node_subscriptions: NodeSubscriptions::default(),
            message_at: None,
            taken_at: Moment::default(),
            handovers: 0,
            others: None,
            stand_back_until: Moment::default(),
            failures: 0,
            last_error: None,
        }
    }

    /// Returns whether a local hold, or one that is being released, excludes a newcomer of that kind.
    pub(in crate::core) fn keeps_out(&self, kind: Kind) -> bool {
        self.hold.is_some()
            || self.early.is_some()
            || self.releases_in_flight > 0
            || (kind != Kind::Read
                && (!self.readers.is_empty() || self.reader_releases_in_flight > 0))
    }

    /// Returns whether a local hold excludes a newcomer of that kind.
    pub(in crate::core) fn excludes(&self, kind: Kind) -> bool {
        self.hold.is_some() || kind != Kind::Read && !self.readers.is_empty()
    }

    pub(super) fn is_held(&self) -> bool {
        self.hold.is_some() || !self.readers.is_empty()
    }

    pub(super) fn is_unused(&self) -> bool {
        !self.is_held()
            && self.early.is_none()
            && self.releases_in_flight == 0
            && self.reader_releases_in_flight == 0
            && self.queue.is_empty()
            && !matches!(self.contest, Contest::Attempting(_))
    }

    /// Returns the local holds.
    pub(in crate::core) fn holds(&self) -> impl Iterator<Item = Number> {
        self.hold.iter().chain(&self.readers).copied()
    }

    /// Returns whether local waiters have passed the lock among themselves for long enough.
    pub(in crate::core) fn must_yield(&self, now: Moment, most: u32, longest: Duration) -> bool {
        let held_here = now.since(self.taken_at);
        let others_may_wait = self.others.unwrap_or(true);
        held_here >= ALWAYS_RELEASE_AFTER
            || (others_may_wait
                && (self.handovers >= most || (self.handovers > 0 && held_here >= longest)))
    }

    pub(super) fn releases_in_flight_mut(&mut self, kind: Kind) -> &mut u32 {
        if kind == Kind::Read {
            &mut self.reader_releases_in_flight
        } else {
            &mut self.releases_in_flight
        }
    }
}
