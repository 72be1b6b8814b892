//! The table of sessions. Only this folder changes a session; others read it, or use a method of the table.

use std::collections::{BTreeSet, HashMap, VecDeque};

use redisson::{Kind, LockName, Moment};

use crate::core::ids::{IdMap, Owner};
use crate::core::lock::mlock_state::MultiLock;
use crate::core::session::state::Session;
use crate::core::side::Side;
use crate::core::timer::Timers;
use crate::types::{Number, Peer, SessionId, SessionKey};

/// The subject of a deadline of this table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum SessionTimer {
    /// The end of an EVENTS call on this session's events.
    Events(SessionId),
    /// The end of a session that nobody resumes.
    Grace(SessionId),
    /// The end of a RESUME on this connection.
    Resume(SessionId),
    /// The end of the time for which an MLOCK waits while it holds some of its members.
    Multi(SessionId, i64),
}

/// All sessions: the connected ones, and those with grace that have no connection.
#[derive(Debug)]
pub(in crate::core) struct SessionTable {
    /// Distinguishes this run's session ids from another's.
    pub(super) run: u64,
    pub(super) all: IdMap<SessionId, Session>,
    /// Sessions that go on under another connection's number than the one they began with.
    pub(super) taken_over: HashMap<SessionKey, SessionId>,
    /// Sessions whose holds outlive their connection.
    pub(super) graced: BTreeSet<SessionId>,
    /// The number of them without a connection.
    pub(super) away: usize,
    /// Sessions whose process is stopped while they hold or wait.
    pub(super) stopped: BTreeSet<SessionId>,
    /// Sessions that may be ready for the RESUMEs that wait for them.
    pub(super) askable: VecDeque<SessionId>,
    /// Owners whose next command may begin.
    pub(super) ready: VecDeque<(SessionId, i64)>,
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

    pub(in crate::core) fn get(&self, id: &SessionId) -> Option<&Session> {
        self.all.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &SessionId) -> Option<&mut Session> {
        self.all.get_mut(id)
    }

    /// Returns the ids in no particular order.
    pub(in crate::core) fn ids(&self) -> impl Iterator<Item = SessionId> {
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

    pub(super) fn open(&mut self, id: SessionId, peer: Peer, secret: [u8; 16], now: Moment) {
        let key = SessionKey { run: self.run, number: id.0 };
        self.all.insert(id, Session::new(key, peer, secret, now));
    }

    /// Adds a session of an earlier run, without a connection.
    pub(in crate::core) fn restore(&mut self, id: SessionId, session: Session) {
        self.taken_over.insert(session.key, id);
        self.all.insert(id, session);
        self.graced.insert(id);
        self.away += 1;
    }

    /// Sets the end of a session that nobody resumes.
    pub(in crate::core) fn arm_grace(&mut self, id: SessionId) {
        let grace = self.all.get_mut(&id).and_then(|session| session.grace.as_mut());
        if let Some(grace) = grace
            && let Some(away) = grace.away
        {
            self.timers.set(&mut grace.armed, away + grace.time, SessionTimer::Grace(id));
        }
    }

    /// Sets the end of the time for which an MLOCK waits while it holds some of its members.
    pub(in crate::core) fn set_patience(&mut self, owner: Owner, until: Moment) {
        let session = self.all.get_mut(&owner.session);
        if let Some(multi) = session.and_then(|session| session.multi.get_mut(&owner.owner)) {
            let timer = SessionTimer::Multi(owner.session, owner.owner);
            self.timers.set(&mut multi.armed, until, timer);
        }
    }

    /// Returns the sessions with grace, by their numbers.
    pub(in crate::core) fn graced(&self) -> impl Iterator<Item = SessionId> {
        self.graced.iter().copied()
    }

    pub(in crate::core) fn has_grace(&self, id: SessionId) -> bool {
        self.graced.contains(&id)
    }

    /// Counts one hold of an earlier run as verified: the session may be ready for a RESUME.
    pub(in crate::core) fn on_verified(&mut self, id: SessionId) {
        let grace = self.all.get_mut(&id).and_then(|session| session.grace.as_mut());
        if let Some(grace) = grace {
            grace.unverified = grace.unverified.saturating_sub(1);
            self.askable.push_back(id);
        }
    }

    pub(in crate::core) fn add_hold(
        &mut self,
        owner: Owner,
        name: LockName,
        kind: Kind,
        number: Number,
    ) {
        if let Some(session) = self.all.get_mut(&owner.session) {
            session.holds.insert((owner.owner, name, Side::of(kind)), number);
        }
    }

    pub(in crate::core) fn remove_hold(&mut self, owner: Owner, name: &LockName, kind: Kind) {
        if let Some(session) = self.all.get_mut(&owner.session) {
            session.holds.remove(&(owner.owner, name.clone(), Side::of(kind)));
        }
    }

    pub(in crate::core) fn add_wait(&mut self, owner: Owner, number: Number) {
        if let Some(session) = self.all.get_mut(&owner.session) {
            session.waits.insert(owner.owner, number);
        }
    }

    pub(in crate::core) fn remove_wait(&mut self, owner: Owner, number: Number) {
        if let Some(session) = self.all.get_mut(&owner.session)
            && session.waits.get(&owner.owner) == Some(&number)
        {
            session.waits.remove(&owner.owner);
        }
    }

    pub(in crate::core) fn forget_loss(&mut self, owner: Owner, name: &LockName) {
        if let Some(session) = self.all.get_mut(&owner.session) {
            session.losses.forget(owner.owner, name);
        }
    }

    pub(in crate::core) fn begin_multi(&mut self, owner: Owner, multi: MultiLock) {
        if let Some(session) = self.all.get_mut(&owner.session) {
            session.multi.insert(owner.owner, multi);
            self.steps.push_back(owner);
        }
    }

    pub(in crate::core) fn multi_mut(&mut self, owner: Owner) -> Option<&mut MultiLock> {
        self.all.get_mut(&owner.session)?.multi.get_mut(&owner.owner)
    }

    pub(in crate::core) fn end_multi(&mut self, owner: Owner) -> Option<MultiLock> {
        self.all.get_mut(&owner.session)?.multi.remove(&owner.owner)
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
    ) -> (Vec<SessionId>, Vec<SessionId>) {
        let stopped = self.all.iter().filter(|(_, session)| {
            session.is_busy() && session.peer.pid.is_some_and(|pid| pids.contains(&pid))
        });
        let stopped: BTreeSet<SessionId> = stopped.map(|(id, _)| *id).collect();
        let before = std::mem::replace(&mut self.stopped, stopped);
        let go_on = before.difference(&self.stopped).copied().collect();
        (go_on, self.stopped.difference(&before).copied().collect())
    }

    /// Returns whether the session was stopped.
    pub(in crate::core) fn forget_stopped(&mut self, id: SessionId) -> bool {
        self.stopped.remove(&id)
    }

    pub(in crate::core) fn is_stopped(&self, id: SessionId) -> bool {
        self.stopped.contains(&id)
    }
}
