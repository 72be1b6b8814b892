//! The agent's core: a state machine without I/O.
//!
//! It takes events (a command, a reply of Redis, a release message, a closed session, the time), each with its instant,
//! and produces [`Effect`]s: scripts to send, replies to deliver, channels to subscribe to, records for the journal, facts
//! for metrics and the log. One task owns it. Sockets, Redis and clocks stay outside, so that the very code that serves
//! workers also runs against a model of Redis with every kind of fault.
//!
//! - [`lease`] owns the holds: validity, renewal, loss.
//! - [`lock`] is about names: the local queue of waiters, attempts, hand-over, fair positions, MLOCK, quotas. Only the front
//!   waiter competes in Redis, and only while no local hold excludes it.
//! - [`ops`] owns the scripts in flight, and describes each verb in one place.
//! - [`red`] is the same for locks on several servers.
//! - [`session`] is about connections: replies in order, events, grace and RESUME.
//! - [`report`] reads: LOCKS, SHOW, the holder registry, error sentences.
//!
//! A **number** is drawn for every LOCK that is not a re-entry, and never used again. While the LOCK waits it names the
//! [`lock::waiter::Waiter`]; once granted it names the [`lease::hold::Hold`], and `<agent uuid>:<number>` is the holder in
//! Redis. So a late copy of an old script can touch no newer grant.

mod effect;
mod input;
mod journal;
mod lease;
mod lock;
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

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use redisson::script;
use redisson::{ClientId, Grouping, HolderId, Kind, LockName, Moment};

pub use effect::{Effect, Gauges, Lane, LogLine, Node, Report};
pub use input::{Input, PIPELINE, PUSHES};
pub use lease::frozen::Frozen;
pub use lock::replicas::Confirmed;
pub use ops::{Failure, OpId};
pub use red::RedSettings;
pub use settings::Settings;

use crate::policy::Policy;
use crate::protocol::command::Command;
use crate::types::{End, Number, Peer, SessionId, SessionKey};
use effect::Effects;
use lease::LeaseTable;
use lease::hold::Hold;
use lock::state::LockState;
use lock::waiter::{Left, Waiter};
use ops::{InFlight, Op};
use session::Session;
use timer::{Timer, Timers};

/// The state machine, composed of its tables.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    client: ClientId,
    first_number: Number,
    next_number: Number,
    /// Distinguishes this run's session ids from another's.
    run: u64,
    /// Sessions that go on under another connection's number than the one they began with.
    taken_over: HashMap<SessionKey, SessionId>,
    /// Sessions whose holds outlive their connection.
    graced: BTreeSet<SessionId>,
    /// The number of them without a connection.
    away: usize,
    /// Sessions whose process is stopped while they hold or wait.
    stopped: BTreeSet<SessionId>,
    /// Sessions that may be ready to be taken over by who waits for it.
    askable: VecDeque<SessionId>,
    journal: journal::Journal,
    policy: Option<Policy>,
    quota: lock::quota::Quota,
    now: Moment,
    /// The instant at which a sleep of the agent was last noticed.
    woke: Moment,
    sessions: HashMap<SessionId, Session>,
    locks: HashMap<LockName, LockState>,
    leases: LeaseTable,
    waiters: BTreeMap<Number, Waiter>,
    ops: InFlight,
    timers: Timers,
    fences: lock::fencing::Fences,
    red: red::Red,
    /// Owners whose next command may begin.
    ready: VecDeque<(SessionId, i64)>,
    /// Owners whose MLOCK or MUNLOCK may take its next step.
    steps: VecDeque<session::Owner>,
    effects: Effects,
    gauges: Gauges,
    grouping: Grouping,
    draining: bool,
    /// Too few replicas had the latest grant, or were there for the latest attempt.
    short_of_replicas: bool,
    random: u64,
}

impl Core {
    /// A core with nothing in it, at the instant `now`. `first_number` must be above every number that this client
    /// id has ever used.
    #[must_use]
    pub fn new(
        settings: Settings,
        client: ClientId,
        first_number: Number,
        grouping: Grouping,
        now: Moment,
    ) -> Self {
        let leases = LeaseTable::new(settings.lease, settings.lost_margin);
        Self {
            settings,
            client,
            first_number,
            next_number: first_number,
            run: first_number.unsigned_abs() >> 30,
            taken_over: HashMap::new(),
            graced: BTreeSet::new(),
            away: 0,
            stopped: BTreeSet::new(),
            askable: VecDeque::new(),
            journal: journal::Journal::default(),
            policy: None,
            quota: lock::quota::Quota::default(),
            now,
            woke: Moment::default(),
            sessions: HashMap::new(),
            locks: HashMap::new(),
            leases,
            waiters: BTreeMap::new(),
            ops: InFlight::new(),
            timers: Timers::default(),
            fences: lock::fencing::Fences::default(),
            red: red::Red::default(),
            ready: VecDeque::new(),
            steps: VecDeque::new(),
            effects: Effects::default(),
            gauges: Gauges::default(),
            grouping,
            draining: false,
            short_of_replicas: false,
            random: first_number.unsigned_abs() | 1,
        }
    }

    /// Takes the oldest effect. To be called after every event until there is none.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop()
    }

    /// Returns whether effects wait to be applied.
    #[must_use]
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// Returns the latest instant for the next [`Self::on_time`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let tables = [self.leases.next_deadline(), self.ops.next_deadline(), self.timers.first()];
        tables.into_iter().flatten().min()
    }

    /// Returns whether nothing is held or in flight but what a successor can go on with: after a drain, the time
    /// to end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let left = self.graced.iter().filter_map(|id| self.sessions.get(id));
        let spared = |op: &Op| op.verb.operation().may_be_abandoned(self);
        self.waiters.is_empty()
            && self.leases.len() == left.map(|session| session.holds.len()).sum::<usize>()
            && self.ops.values().all(spared)
    }

    /// The sizes that metrics show as gauges.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            jeopardy_holds: self.leases.in_jeopardy(),
            delayed_holds: self.leases.kept_back(),
            ..self.gauges
        }
    }

    /// Returns the number of holds.
    #[must_use]
    pub fn holds(&self) -> usize {
        self.leases.len()
    }

    /// Returns the number of waiters.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// Sets how releases are published; the servers' abilities may change.
    pub fn set_publish(&mut self, publish: script::Publish) {
        self.settings.publish = publish;
    }

    /// Handles a new connection.
    pub fn on_open(&mut self, now: Moment, id: SessionId, peer: Peer, secret: [u8; 16]) {
        self.advance_clock(now);
        let key = SessionKey { run: self.run, number: id.0 };
        self.sessions.insert(id, Session::new(key, peer, secret, self.now));
        self.count_sessions();
        self.effects.report(Report::SessionOpened);
    }

    /// Handles CLIENT SETNAME.
    pub fn on_named(&mut self, id: SessionId, name: Vec<u8>) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.client_name = Some(name);
        }
    }

    /// A worker speaks RESP3 from now on, or no longer. Without it pushes cannot be sent.
    pub fn on_protocol(&mut self, id: SessionId, resp3: bool) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.resp3 = resp3;
        }
    }

    /// Handles a command.
    pub fn on_command(&mut self, now: Moment, id: SessionId, command: Command) {
        self.advance_clock(now);
        self.enqueue(id, command);
        self.run_ready();
    }

    /// A worker has gone: its waits end, its holds are released, unless its session has grace. Without a goodbye it
    /// counts as dead, and they are kept back for the lock delay.
    pub fn on_close(&mut self, now: Moment, id: SessionId) {
        self.advance_clock(now);
        if !self.go_away(id) {
            let quit = self.sessions.get(&id).is_some_and(|session| session.quit);
            let until = if quit { self.now } else { self.kept_back_until(self.now) };
            self.end_session(id, until);
        }
        self.run_ready();
    }

    /// Ends a session and all it has. Nobody else gets what it holds before `until`.
    fn end_session(&mut self, id: SessionId, until: Moment) {
        self.forget_stopped(id);
        let Some(mut session) = self.sessions.remove(&id) else { return };
        self.end_grace(id, &mut session);
        self.count_sessions();
        self.end_events(id, &session);
        for (owner, multi) in &session.multi {
            self.timers.clear(multi.armed, Timer::Multi(id, *owner));
        }
        // In order of arrival: what happens is not to depend on how a map is laid out.
        for number in session.waits.values().copied().collect::<BTreeSet<_>>() {
            self.leave(number, Left::Cancelled);
        }
        for number in session.holds.values().copied().collect::<BTreeSet<_>>() {
            if until > self.now {
                self.keep_back(number, &session, until);
            } else {
                self.end_hold(number, End::Disconnected, None);
            }
        }
    }

    fn count_sessions(&mut self) {
        self.gauges.sessions = self.sessions.len() - self.away;
        self.gauges.away_sessions = self.away;
    }

    /// Handles the deadlines that have come.
    pub fn on_time(&mut self, now: Moment) {
        self.advance_clock(now);
        self.run_ready();
    }

    /// Goes on to an instant. Every event begins here: deadlines that have come by then, renewals first, are served
    /// before the event itself, in whatever order a host that slept brings its events.
    fn advance_clock(&mut self, now: Moment) {
        let slept = self.slept(now);
        self.now = self.now.max(now);
        let (mut due, mut others) = (Vec::new(), VecDeque::new());
        loop {
            // Holds first, even those that were due later: what is said to anybody rests on them.
            while let Some(at) = self.next_deadline().filter(|at| *at <= self.now) {
                // Among equals a hold comes first, then a script.
                if self.leases.next_deadline() == Some(at) {
                    if let Some(number) = self.leases.pop_due(at) {
                        self.hold_due(number, &mut due);
                    }
                } else if let Some(op) = self.ops.pop_due(at) {
                    others.push_back(Other::Op(op));
                } else if let Some(timer) = self.timers.pop_due(at) {
                    others.push_back(Other::Timer(timer));
                }
            }
            match others.pop_front() {
                Some(Other::Op(op)) => self.op_due(op),
                Some(Other::Timer(Timer::Quorum(quorum))) => self.ballot_due(quorum),
                Some(Other::Timer(Timer::Waiter(number))) => self.waiter_due(number),
                Some(Other::Timer(Timer::FairPosition(number))) => self.place_due(number),
                Some(Other::Timer(Timer::Lock(name))) => self.lock_due(&name),
                Some(Other::Timer(Timer::Events(id))) => self.wake_events(id),
                Some(Other::Timer(Timer::Multi(session, owner))) => {
                    self.patience_due(session::Owner { session, owner });
                }
                Some(Other::Timer(Timer::Grace(id))) => self.lapse(id),
                Some(Other::Timer(Timer::Resume(id))) => self.resume_due(id),
                None => break,
            }
        }
        if slept {
            self.effects.report(Report::Slept);
            self.woke = self.now;
            due.extend(self.leases.renew_now(self.now, |_| true));
        }
        self.renew(due);
    }

    /// No more locks are given out; those who wait are told so. Holds stay until they are released.
    pub fn drain(&mut self) {
        self.draining = true;
        for number in self.waiters.keys().copied().collect::<Vec<_>>() {
            self.leave(number, Left::Draining);
        }
        self.run_ready();
    }

    /// The time to finish is over: who still holds something is told that it is lost, and nothing is released,
    /// since a living worker may be inside. The leases run out. What sessions with grace hold is left to the successor.
    pub fn end_drain(&mut self) {
        let left = |hold: &&Hold| !self.graced.contains(&hold.owner.session);
        let held: Vec<_> = self.leases.iter().filter(left).map(|hold| hold.number).collect();
        for number in held {
            self.lose(number, End::Drained);
        }
    }

    fn draw_number(&mut self) -> Number {
        let number = self.next_number;
        // 2^30 grants in one second of epoch would be needed to run into the next run's numbers.
        self.next_number = self.next_number.saturating_add(1);
        number
    }

    /// The field of a hold in its lock's hash.
    fn field(&self, kind: Kind, number: Number) -> HolderId {
        HolderId { write: kind == Kind::Write, ..HolderId::new(self.client, number) }
    }

    /// A cheap random number for jitter (xorshift): determined by the first number, so that runs can be repeated.
    fn jitter(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// A deadline that waits for those of holds.
enum Other {
    Op(OpId),
    Timer(Timer),
}
