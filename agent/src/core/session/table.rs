//! The table of sessions. Only this folder changes a session; others read it, or use a method of the table.

use std::collections::{BTreeSet, HashMap, VecDeque};

use redisson::{Kind, LockName, Moment};

use crate::core::ids::{IdMap, Owner};
use crate::core::lock::mlock_state::MultiLock;
use crate::core::session::state::Session;
use crate::core::side::Side;
use crate::core::timer::Timers;
use crate::types::{ConnectionId, Number, Peer, SessionId};

/// The subject of a deadline of this table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum SessionTimer {
    /// The end of an EVENTS call on this session's events.
    Events(ConnectionId),
    /// The end of a session that nobody resumes.
    Grace(ConnectionId),
    /// The end of a RESUME on this connection.
    Resume(ConnectionId),
    /// The end of the time for which an MLOCK waits while it holds some of its members.
    Multi(ConnectionId, i64),
}

/// All sessions: the connected ones, and those with grace that have no connection. Each is kept under the number of its latest
/// connection.
#[derive(Debug)]
pub(in crate::core) struct SessionTable {
    /// Distinguishes this run's session ids from another's.
    pub(super) run: u64,
    pub(super) all: IdMap<ConnectionId, Session>,
    /// The connections of sessions that go on under another number than they began with.
    pub(super) taken_over: HashMap<SessionId, ConnectionId>,
    /// Sessions whose holds outlive their connection.
    pub(super) graced: BTreeSet<ConnectionId>,
    /// The number of them without a connection.
    pub(super) away: usize,
    /// Sessions whose process is stopped while they hold or wait.
    pub(super) stopped: BTreeSet<ConnectionId>,
    /// Sessions that may be ready for the RESUMEs that wait for them.
    pub(super) askable: VecDeque<ConnectionId>,
    /// Owners whose next command may begin.
    pub(super) ready: VecDeque<(ConnectionId, i64)>,
    /// Owners whose MLOCK or MUNLOCK may take its next step.
    pub(super) steps: VecDeque<Owner>,
    pub(super) timers: Timers<SessionTimer>,
}

impl SessionTable {
    pub(in crate::core) fn new(run: u64) -> Self {
        Self {
            run,
            all: IdMap::default(),
            taken_over: HashMap::new(),
            graced: BTreeSet::new(),
            away: 0,
            stopped: BTreeSet::new(),
            askable: VecDeque::new(),
            ready: VecDeque::new(),
            steps: VecDeque::new(),
            timers: Timers::default(),
        }
    }

    pub(in crate::core) fn get(&self, connection: &ConnectionId) -> Option<&Session> {
        self.all.get(connection)
    }

    pub(super) fn get_mut(&mut self, connection: &ConnectionId) -> Option<&mut Session> {
        self.all.get_mut(connection)
    }

    /// Returns the connections under which sessions are kept, in no particular order.
    pub(in crate::core) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.all.keys().copied()
    }

    #[cfg(test)]
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.ready.is_empty() && self.steps.is_empty()
    }

    pub(in crate::core) fn next_deadline(&self) -> Option<Moment> {
        self.timers.first()
    }

    pub(in crate::core) fn pop_due(&mut self, now: Moment) -> Option<SessionTimer> {
        self.timers.pop_due(now)
    }

    /// The number of connected sessions.
    pub(in crate::core) fn connected(&self) -> usize {
        self.all.len() - self.away
    }

    /// The number of sessions without a connection.
    pub(in crate::core) fn away(&self) -> usize {
        self.away
    }

    /// The number of sessions whose process is stopped.
    pub(in crate::core) fn stopped(&self) -> usize {
        self.stopped.len()
    }

    pub(super) fn open(
        &mut self,
        connection: ConnectionId,
        peer: Peer,
        secret: [u8; 16],
        now: Moment,
    ) {
        let id = SessionId { run: self.run, number: connection.0 };
        self.all.insert(connection, Session::new(id, peer, secret, now));
    }

    /// Adds a session of an earlier run, without a connection.
    pub(in crate::core) fn restore(&mut self, connection: ConnectionId, session: Session) {
        self.taken_over.insert(session.id, connection);
        self.all.insert(connection, session);
        self.graced.insert(connection);
        self.away += 1;
    }

    /// Sets the end of a session that nobody resumes.
    pub(in crate::core) fn arm_grace(&mut self, connection: ConnectionId) {
        let grace = self.all.get_mut(&connection).and_then(|session| session.grace.as_mut());
        if let Some(grace) = grace
            && let Some(away) = grace.away
        {
            self.timers.set(&mut grace.armed, away + grace.time, SessionTimer::Grace(connection));
        }
    }

    /// Sets the end of the time for which an MLOCK waits while it holds some of its members.
    pub(in crate::core) fn set_patience(&mut self, owner: Owner, until: Moment) {
        let session = self.all.get_mut(&owner.connection);
        if let Some(multi) = session.and_then(|session| session.multi.get_mut(&owner.owner)) {
            let timer = SessionTimer::Multi(owner.connection, owner.owner);
            self.timers.set(&mut multi.armed, until, timer);
        }
    }

    /// Returns the connections of the sessions with grace, in their order.
    pub(in crate::core) fn graced(&self) -> impl Iterator<Item = ConnectionId> {
        self.graced.iter().copied()
    }

    pub(in crate::core) fn has_grace(&self, connection: ConnectionId) -> bool {
        self.graced.contains(&connection)
    }

    /// Counts one hold of an earlier run as verified: the session may be ready for a RESUME.
    pub(in crate::core) fn on_verified(&mut self, connection: ConnectionId) {
        let grace = self.all.get_mut(&connection).and_then(|session| session.grace.as_mut());
        if let Some(grace) = grace {
            grace.unverified = grace.unverified.saturating_sub(1);
            self.askable.push_back(connection);
        }
    }

    pub(in crate::core) fn add_hold(
        &mut self,
        owner: Owner,
        name: LockName,
        kind: Kind,
        number: Number,
    ) {
        if let Some(session) = self.all.get_mut(&owner.connection) {
            session.holds.insert((owner.owner, name, Side::of(kind)), number);
        }
    }

    pub(in crate::core) fn remove_hold(&mut self, owner: Owner, name: &LockName, kind: Kind) {
        if let Some(session) = self.all.get_mut(&owner.connection) {
            session.holds.remove(&(owner.owner, name.clone(), Side::of(kind)));
        }
    }

    pub(in crate::core) fn add_wait(&mut self, owner: Owner, number: Number) {
        if let Some(session) = self.all.get_mut(&owner.connection) {
            session.waits.insert(owner.owner, number);
        }
    }

    pub(in crate::core) fn remove_wait(&mut self, owner: Owner, number: Number) {
        if let Some(session) = self.all.get_mut(&owner.connection)
            && session.waits.get(&owner.owner) == Some(&number)
        {
            session.waits.remove(&owner.owner);
        }
    }

    pub(in crate::core) fn forget_loss(&mut self, owner: Owner, name: &LockName) {
        if let Some(session) = self.all.get_mut(&owner.connection) {
            session.losses.forget(owner.owner, name);
        }
    }

    pub(in crate::core) fn begin_multi(&mut self, owner: Owner, multi: MultiLock) {
        if let Some(session) = self.all.get_mut(&owner.connection) {
            session.multi.insert(owner.owner, multi);
            self.steps.push_back(owner);
        }
    }

    pub(in crate::core) fn multi_mut(&mut self, owner: Owner) -> Option<&mut MultiLock> {
        self.all.get_mut(&owner.connection)?.multi.get_mut(&owner.owner)
    }

    pub(in crate::core) fn end_multi(&mut self, owner: Owner) -> Option<MultiLock> {
        self.all.get_mut(&owner.connection)?.multi.remove(&owner.owner)
    }

    /// Lets an MLOCK or MUNLOCK take its next step.
    pub(in crate::core) fn push_step(&mut self, owner: Owner) {
        self.steps.push_back(owner);
    }

    /// Returns the processes whose sessions hold or wait for something.
    pub(in crate::core) fn busy_pids(&self) -> BTreeSet<i32> {
        let busy = self.all.values().filter(|session| session.is_busy());
        busy.filter_map(|session| session.peer.pid).collect()
    }

    /// Records which processes are stopped. Returns the sessions that go on, and those that have stopped.
    pub(in crate::core) fn set_stopped(
        &mut self,
        pids: &BTreeSet<i32>,
    ) -> (Vec<ConnectionId>, Vec<ConnectionId>) {
        let stopped = self.all.iter().filter(|(_, session)| {
            session.is_busy() && session.peer.pid.is_some_and(|pid| pids.contains(&pid))
        });
        let stopped: BTreeSet<ConnectionId> = stopped.map(|(connection, _)| *connection).collect();
        let before = std::mem::replace(&mut self.stopped, stopped);
        let go_on = before.difference(&self.stopped).copied().collect();
        (go_on, self.stopped.difference(&before).copied().collect())
    }

    /// Returns whether the session was stopped.
    pub(in crate::core) fn forget_stopped(&mut self, connection: ConnectionId) -> bool {
        self.stopped.remove(&connection)
    }

    pub(in crate::core) fn is_stopped(&self, connection: ConnectionId) -> bool {
        self.stopped.contains(&connection)
    }
}
