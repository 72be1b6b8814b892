//! The agent's core: a state machine without I/O.
//!
//! It takes events, each with its instant: a command, a reply of Redis, a release message, a closed connection, the time.
//! It produces [`Effect`]s: scripts to send, replies to deliver, channels to subscribe to, records for the journal, facts
//! for metrics and the log. One task owns it. Sockets, Redis and clocks stay outside, so the code that serves workers also
//! runs in tests against a model of Redis with every kind of fault.
//!
//! - [`lease`] owns the holds: validity, renewal, loss.
//! - [`lock`] owns the names and the waiters: local queues, attempts, hand-over, fair positions, MLOCK, quotas. Except
//!   for fair locks and readers that join others, only the front waiter competes in Redis, while no local hold excludes it.
//! - [`ops`] owns the scripts in flight, and describes each verb in one place.
//! - [`red`] owns the quorum operations of locks on several servers.
//! - [`session`] owns the sessions: replies in order, events, grace and RESUME.
//! - [`report`] reads: LOCKS, SHOW, the holder registry, error sentences.
//!
//! Every LOCK that is not a reentry gets a **number**, which is never used again. While the LOCK waits, the number
//! identifies its [`lock::waiter::Waiter`]. Once the lock is granted, it identifies the [`lease::hold::Hold`], and
//! `<agent uuid>:<number>` is the holder in Redis. So a late copy of an old script cannot change a newer grant.

mod effect;
mod ids;
mod input;
mod journal;
mod lease;
mod lock;
mod numbers;
mod ops;
mod red;
pub mod report;
mod session;
mod settings;
mod side;
#[cfg(test)]
mod simulation;
mod spans;
#[cfg(test)]
mod tests;
mod timer;

use std::collections::VecDeque;

use redisson::{ClientId, Grouping, Moment, script};

pub use effect::{Effect, Gauges, Lane, LogLine, Node, Report};
pub use ids::OpId;
pub use input::{Input, PIPELINE, PUSHES};
pub use ops::{Confirmed, Failure};
pub use settings::{Frozen, Limits, RedSettings, Settings};

use crate::types::{ConnectionId, End, Number};
use effect::Effects;
use lease::LeaseTable;
use lease::hold::Hold;
use lock::released::LongReleases;
use lock::table::{LockTable, LockTimer};
use lock::vanished::VanishedAgents;
use lock::waiter::Left;
use numbers::Numbers;
use ops::{InFlight, Op};
use red::QuorumTable;
use session::table::{SessionTable, SessionTimer};

/// The state machine, composed of its tables.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    now: Moment,
    numbers: Numbers,
    journal: journal::Journal,
    sessions: SessionTable,
    locks: LockTable,
    leases: LeaseTable,
    ops: InFlight,
    red: QuorumTable,
    vanished: VanishedAgents,
    long_releases: LongReleases,
    effects: Effects,
}

impl Core {
    /// Returns an empty core at the instant `now`. `first_number` must be above every number that this client id has
    /// ever used.
    #[must_use]
    pub fn new(
        settings: Settings,
        client: ClientId,
        first_number: Number,
        grouping: Grouping,
        now: Moment,
    ) -> Self {
        let leases = LeaseTable::new(settings.lease, settings.lost_margin);
        let locks = LockTable::new(grouping, settings.limits);
        let numbers = Numbers::new(client, first_number);
        Self {
            settings,
            now,
            journal: journal::Journal::default(),
            sessions: SessionTable::new(numbers.run()),
            numbers,
            locks,
            leases,
            ops: InFlight::new(),
            red: QuorumTable::default(),
            vanished: VanishedAgents::default(),
            long_releases: LongReleases::default(),
            effects: Effects::default(),
        }
    }

    /// Takes the oldest effect. The caller repeats this after every event until there is none.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop()
    }

    /// Returns whether effects wait to be applied.
    #[must_use]
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// Returns the number of scripts for [`Lane::Commands`] among the effects that wait.
    #[must_use]
    pub fn commands_to_send(&self) -> usize {
        self.effects.commands()
    }

    /// Returns the instant at which [`Self::on_time`] must be called unless an event comes first.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let tables = [
            self.leases.next_deadline(),
            self.ops.next_deadline(),
            self.red.next_deadline(),
            self.locks.next_deadline(),
            self.sessions.next_deadline(),
            self.effects.next_deadline(),
        ];
        tables.into_iter().flatten().min()
    }

    /// Returns whether a drained agent can end: a successor can continue everything that is held or in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let left = self.sessions.graced().filter_map(|id| self.sessions.get(&id));
        let spared = |op: &Op| op.verb.operation().may_be_abandoned(self);
        self.locks.waiting() == 0
            && self.leases.len() == left.map(|session| session.holds.len()).sum::<usize>()
            && self.ops.values().all(spared)
    }

    /// Returns the sizes that metrics show as gauges.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            jeopardy_holds: self.leases.in_jeopardy(),
            delayed_holds: self.leases.delayed(),
            subscriptions: self.locks.subscriptions(),
            sessions: self.sessions.connected(),
            away_sessions: self.sessions.away(),
            frozen_sessions: self.sessions.stopped(),
        }
    }

    /// Returns the number of holds.
    #[must_use]
    pub fn holds(&self) -> usize {
        self.leases.len()
    }

    /// Returns the number of holds of a connection's session.
    #[must_use]
    pub fn holds_of(&self, connection: ConnectionId) -> usize {
        self.sessions.get(&connection).map_or(0, |session| session.holds.len())
    }

    /// Returns the number of waiters.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.locks.waiting()
    }

    /// Sets how releases are published. This changes with the features of the servers.
    pub fn set_publish(&mut self, publish: script::Publish) {
        self.settings.publish = publish;
    }

    /// Handles the deadlines that are due.
    pub fn on_time(&mut self, now: Moment) {
        self.advance_clock(now);
        self.run_ready();
    }

    /// Advances the clock to `now`, and handles the deadlines that are due by then: those of holds first, then the
    /// others.
    ///
    /// Every event with an instant calls this first. So it finds no overdue deadline, even if the host slept and its
    /// events arrive in any order. The exceptions are [`Self::on_turn`] and [`Self::on_turn_subscribed`], which follow
    /// a message of the same instant.
    fn advance_clock(&mut self, now: Moment) {
        let slept = self.notice_sleep(now);
        self.now = self.now.max(now);
        let (mut due, mut late, mut others) = (Vec::new(), Vec::new(), VecDeque::new());
        loop {
            // The deadlines of holds come first, even if they were later than others: every reply depends on them.
            while let Some(at) = self.next_deadline().filter(|at| *at <= self.now) {
                // If deadlines of several tables are equal, they are handled in this order.
                if self.leases.next_deadline() == Some(at) {
                    if let Some(index) = self.leases.pop_due(at) {
                        self.on_hold_due(index, &mut due, &mut late);
                    }
                } else if let Some(op) = self.ops.pop_due(at) {
                    others.push_back(Other::Op(op));
                } else if let Some(quorum) = self.red.pop_due(at) {
                    others.push_back(Other::Quorum(quorum));
                } else if let Some(timer) = self.locks.pop_due(at) {
                    others.push_back(Other::Lock(timer));
                } else if let Some(timer) = self.sessions.pop_due(at) {
                    others.push_back(Other::Session(timer));
                } else {
                    self.effects.log_withheld(at);
                }
            }
            match others.pop_front() {
                Some(Other::Op(op)) => self.on_op_due(op),
                Some(Other::Quorum(quorum)) => self.on_quorum_due(quorum),
                Some(Other::Lock(LockTimer::Waiter(id))) => self.on_waiter_due(id),
                Some(Other::Lock(LockTimer::FairPosition(id))) => self.on_fair_position_due(id),
                Some(Other::Lock(LockTimer::Lock(name))) => self.wake(&name),
                Some(Other::Session(SessionTimer::Events(id))) => self.wake_events(id),
                Some(Other::Session(SessionTimer::Multi(connection, owner))) => {
                    self.on_patience_due(ids::Owner { connection, owner });
                }
                Some(Other::Session(SessionTimer::Grace(id))) => self.lapse(id),
                Some(Other::Session(SessionTimer::Resume(id))) => self.on_resume_due(id),
                None => break,
            }
        }
        if slept {
            self.effects.report(Report::Slept);
            self.ops.on_woke(self.now);
            due.extend(self.leases.renew_now(self.now, |_| true));
        }
        if !late.is_empty() {
            self.effects.report(Report::RenewalLateness(late));
        }
        self.renew(due);
    }

    /// Starts to drain: no more locks are granted, and waits end. Holds stay until they are released.
    pub fn drain(&mut self) {
        self.locks.drain();
        for id in self.locks.waiters(..).map(|(id, _)| id).collect::<Vec<_>>() {
            self.leave(id, Left::Draining);
        }
        self.run_ready();
    }

    /// Ends the drain: reports the remaining holds as lost. Holds of sessions with grace are left to the successor.
    ///
    /// The lost holds are not released in Redis, because a live worker may still rely on them. Their leases run out.
    pub fn end_drain(&mut self) {
        let left = |hold: &&Hold| !self.sessions.has_grace(hold.owner.connection);
        let held: Vec<_> = self.leases.iter().filter(left).map(|hold| hold.number).collect();
        for number in held {
            self.lose(number, End::Drained);
        }
        // The agent ends before these seconds do.
        self.effects.log_withheld(Moment::NEVER);
    }
}

/// A deadline that is handled after those of holds.
enum Other {
    Op(OpId),
    Quorum(OpId),
    Lock(LockTimer),
    Session(SessionTimer),
}
