//! The agent's core: a state machine without I/O.
//!
//! It is told what happened and when (a command, a reply of Redis, a release message, a closed session, the time)
//! and says what to do ([`Action`]s). One task owns it. Sockets, Redis and clocks stay outside, so that the very
//! code that serves workers can be run against a model of Redis that fails in every way.
//!
//! How it hangs together:
//! - a **number** is drawn for every LOCK that is no re-entry, and never used again. While the LOCK waits it names
//!   the [`wait::Waiter`]; once granted it names the [`hold::Hold`], and `<agent uuid>:<number>` is the holder in
//!   Redis. So a late copy of an old script can touch no newer grant.
//! - a **name** ([`name::Name`]) has its local queue. Only the front waiter competes in Redis, and only while no local
//!   hold stands in the way.
//! - an **op** ([`op::Op`]) is one script on its way to Redis, with what is to be done about its outcome.
//! - the **watchdog** ([`watchdog`]) is one ordered set of deadlines, shared by everything that waits for time.

mod acquire;
mod answer;
mod deadlock;
mod event;
mod fair;
mod fence;
mod hold;
mod keep;
mod list;
mod log_limit;
mod multi;
mod name;
mod op;
mod release;
mod reply;
mod session;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod timer;
mod wait;
mod watchdog;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use redisson::script::{self, Call};
use redisson::{ClientId, HolderId, Kind, Lease, LockName, Moment};

pub use event::End;
pub use op::{Failure, OpId};

use crate::command::Command;
use crate::metrics::Figures;
use crate::resp::Outgoing;
use crate::session::{Peer, SessionId};
use hold::Hold;
use name::Name;
use op::Op;
use session::Session;
use timer::{Timer, Timers};
use wait::Waiter;

/// A holder's number: the `threadId` of `uuid:threadId`. Fresh for every grant.
pub type Number = i64;

/// What the core is set to.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The lease of watched holds; renewed each third of it.
    pub lease: Lease,
    /// How long before its validity ends a hold is called lost.
    pub lost_margin: Duration,
    /// How many hand-overs in a row while others wait elsewhere.
    pub handover_max: u32,
    /// How long hand-overs may go on while others wait elsewhere.
    pub handover_max_time: Duration,
    /// The longest a waiter sleeps before it looks again, whatever it was told.
    pub poll_max: Duration,
    /// How many waits at a time.
    pub max_waiters: usize,
    /// Whether LOCK is refused until the session has asked for its id.
    pub require_session: bool,
    /// How long a worker waits for an answer that only Redis can give.
    pub response_timeout: Duration,
    /// How releases are published.
    pub publish: script::Publish,
}

/// Which connection a script goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// What workers wait for.
    Commands,
    /// Renewals, which no load may delay.
    Renewals,
}

/// What the outside is to do.
#[derive(Debug)]
pub enum Action {
    /// Send a script; bring the outcome by [`Core::on_reply`] or [`Core::on_failure`].
    Send {
        /// By which the outcome names it.
        op: OpId,
        /// Down which connection.
        lane: Lane,
        /// The script and its arguments.
        call: Call,
    },
    /// Give a session something to write.
    Deliver(SessionId, Outgoing),
    /// Listen to this channel, on which releases of a lock are told; tell [`Core::on_subscribed`] once the
    /// subscription stands.
    Subscribe(Vec<u8>),
    /// No longer listen to it.
    Unsubscribe(Vec<u8>),
}

/// The state machine.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    client: ClientId,
    first_number: Number,
    next_number: Number,
    next_op: u64,
    /// Distinguishes this run's session ids from another's.
    run: u64,
    now: Moment,
    /// When it was last noticed that the agent had slept.
    woke: Moment,
    sessions: HashMap<SessionId, Session>,
    names: HashMap<LockName, Name>,
    holds: BTreeMap<Number, Hold>,
    waiters: BTreeMap<Number, Waiter>,
    ops: HashMap<OpId, Op>,
    timers: Timers,
    fences: fence::Fences,
    /// Owners whose next command may begin.
    ready: VecDeque<(SessionId, i64)>,
    /// Owners whose MLOCK or MUNLOCK may take its next step.
    steps: VecDeque<session::Owner>,
    actions: VecDeque<Action>,
    figures: Arc<Figures>,
    draining: bool,
    log_limit: log_limit::LogLimit,
    /// Smoothed round trip of a script.
    round_trip: Duration,
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
        figures: Arc<Figures>,
        now: Moment,
    ) -> Self {
        Self {
            settings,
            client,
            first_number,
            next_number: first_number,
            next_op: 0,
            run: first_number.unsigned_abs() >> 30,
            now,
            woke: Moment::default(),
            sessions: HashMap::new(),
            names: HashMap::new(),
            holds: BTreeMap::new(),
            waiters: BTreeMap::new(),
            ops: HashMap::new(),
            timers: Timers::default(),
            fences: fence::Fences::default(),
            ready: VecDeque::new(),
            steps: VecDeque::new(),
            actions: VecDeque::new(),
            figures,
            draining: false,
            log_limit: log_limit::LogLimit::default(),
            round_trip: Duration::from_millis(1),
            random: first_number.unsigned_abs() | 1,
        }
    }

    /// What is to be done, oldest first. To be called after every event until there is none.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether there is something to be done.
    #[must_use]
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// When [`Self::on_time`] must be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.timers.first()
    }

    /// Whether nothing is held and nothing is under way: after a drain, the time to end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.ops.is_empty() && self.waiters.is_empty()
    }

    /// How many holds there are.
    #[must_use]
    pub fn holds(&self) -> usize {
        self.holds.len()
    }

    /// How many waits there are.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// A worker has connected.
    pub fn on_open(&mut self, now: Moment, id: SessionId, peer: Peer, secret: [u8; 16]) {
        self.reach(now);
        self.sessions.insert(id, Session::new(peer, secret, self.now));
        self.figures.sessions.set(gauge(self.sessions.len()));
        self.figures.sessions_opened.inc();
    }

    /// A worker named itself.
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

    /// A worker asks for something.
    pub fn on_command(&mut self, now: Moment, id: SessionId, command: Command) {
        self.reach(now);
        self.enqueue(id, command);
        self.run_ready();
    }

    /// A worker has gone: its waits end, its holds are released.
    pub fn on_close(&mut self, now: Moment, id: SessionId) {
        self.reach(now);
        let Some(session) = self.sessions.remove(&id) else { return };
        self.figures.sessions.set(gauge(self.sessions.len()));
        self.end_events(id, &session);
        for (owner, several) in &session.several {
            self.timers.clear(several.armed, Timer::Patience(id, *owner));
        }
        // In order of arrival: what happens is not to depend on how a map is laid out.
        for number in session.waits.values().copied().collect::<BTreeSet<_>>() {
            self.leave(number, wait::Left::Cancelled);
        }
        for number in session.holds.values().copied().collect::<BTreeSet<_>>() {
            self.end_hold(number, End::Disconnected, None);
        }
        self.run_ready();
    }

    /// An instant has come: what is due is done.
    pub fn on_time(&mut self, now: Moment) {
        self.reach(now);
        self.run_ready();
    }

    /// Goes on to an instant. Every event begins here: deadlines that have come by then, renewals first, are served
    /// before the event itself, in whatever order a host that slept brings its events.
    fn reach(&mut self, now: Moment) {
        let slept = self.slept(now);
        self.now = self.now.max(now);
        let (mut due, mut others) = (Vec::new(), VecDeque::new());
        loop {
            // Holds first, even those that were due later: what is said to anybody rests on them.
            while let Some(timer) = self.timers.pop_due(self.now) {
                match timer {
                    Timer::Hold(number) => self.hold_due(number, &mut due),
                    other => others.push_back(other),
                }
            }
            match others.pop_front() {
                Some(Timer::Op(op)) => self.op_due(op),
                Some(Timer::Waiter(number)) => self.waiter_due(number),
                Some(Timer::Place(number)) => self.place_due(number),
                Some(Timer::Name(name)) => self.name_due(&name),
                Some(Timer::Events(id)) => self.wake_events(id),
                Some(Timer::Patience(session, owner)) => {
                    self.patience_due(session::Owner { session, owner });
                }
                Some(Timer::Hold(_)) | None => break,
            }
        }
        if slept {
            self.figures.sleeps.inc();
            self.woke = self.now;
            self.all_due(&mut due);
        }
        self.renew(due);
    }

    /// No more locks are given out; those who wait are told so. Holds stay until they are released.
    pub fn drain(&mut self) {
        self.draining = true;
        for number in self.waiters.keys().copied().collect::<Vec<_>>() {
            self.leave(number, wait::Left::Draining);
        }
        self.run_ready();
    }

    /// The time to finish is over: who still holds something is told that it is lost, and nothing is released,
    /// since a living worker may be inside. The leases run out.
    pub fn end_drain(&mut self) {
        for number in self.holds.keys().copied().collect::<Vec<_>>() {
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

/// A count as a gauge takes it.
fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
