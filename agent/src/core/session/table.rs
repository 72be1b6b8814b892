//! The table of sessions, with their grace, their next steps and their deadlines.
//!
//! Only this folder changes a session. Others read it, or use a method of the table.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use redisson::{Kind, LockName, Moment};
use service_kit::memory::Trim as _;

use crate::collections::HashMap;
use crate::core::ids::{Owner, ReplyTo};
use crate::core::lock::mlock_state::MultiLock;
use crate::core::session::graced::Graced;
use crate::core::session::reply::Reply;
use crate::core::session::state::{Grace, Resuming, Session};
use crate::core::side::Side;
use crate::core::timer::Timers;
use crate::protocol::command::Command;
use crate::types::{ConnectionId, Number, Peer, Secret, SessionId};

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

/// A step that is ready to run.
pub(super) enum Work {
    /// The next step of an owner's MLOCK or MUNLOCK.
    Step(Owner),
    /// The RESUMEs that wait for the session of this connection.
    Resumes(ConnectionId),
    /// The next command of an owner whose earlier one is answered.
    Command(ReplyTo, Command),
}

/// All sessions: the connected ones, and those with grace that have no connection. Each is stored under the number of
/// its latest connection.
#[derive(Debug)]
pub(in crate::core) struct SessionTable {
    /// Distinguishes this run's session ids from another's.
    run: u64,
    all: HashMap<ConnectionId, Session>,
    /// The connections of sessions that continue under another number than their first one.
    taken_over: HashMap<SessionId, ConnectionId>,
    /// Sessions whose holds outlive their connection.
    graced: Graced,
    /// The number of them without a connection.
    away: usize,
    /// Sessions whose process is stopped while they hold or wait.
    stopped: BTreeSet<ConnectionId>,
    /// Sessions that may be ready for the RESUMEs that wait for them.
    askable: VecDeque<ConnectionId>,
    /// Owners whose next command may begin.
    ready: VecDeque<(ConnectionId, i64)>,
    /// Owners whose MLOCK or MUNLOCK may take its next step.
    steps: VecDeque<Owner>,
    timers: Timers<SessionTimer>,
}

impl SessionTable {
    pub(in crate::core) fn new(run: u64) -> Self {
        Self {
            run,
            all: HashMap::default(),
            taken_over: HashMap::default(),
            graced: Graced::default(),
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

    /// Returns the id of the session of a connection, or the id that it would have if it has ended.
    pub(super) fn id_of(&self, connection: ConnectionId) -> SessionId {
        let own = SessionId { run: self.run, number: connection.0 };
        self.get(&connection).map_or(own, |session| session.id)
    }

    /// Returns the connection under which a session is stored, if it exists.
    pub(in crate::core) fn connection_of(&self, session: SessionId) -> Option<ConnectionId> {
        let own = || (session.run == self.run).then_some(ConnectionId(session.number));
        let connection = self.taken_over.get(&session).copied().or_else(own)?;
        self.get(&connection).filter(|kept| kept.id == session).map(|_| connection)
    }

    pub(super) fn get_mut(&mut self, connection: &ConnectionId) -> Option<&mut Session> {
        self.all.get_mut(connection)
    }

    fn grace_mut(&mut self, connection: ConnectionId) -> Option<&mut Grace> {
        self.all.get_mut(&connection)?.grace.as_mut()
    }

    /// Returns the connections under which sessions are stored, in no particular order.
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

    /// Returns the number of connected sessions.
    pub(in crate::core) fn connected(&self) -> usize {
        self.all.len() - self.away
    }

    /// Returns the number of sessions without a connection.
    pub(in crate::core) fn away(&self) -> usize {
        self.away
    }

    /// Returns the number of sessions whose process is stopped.
    pub(in crate::core) fn stopped(&self) -> usize {
        self.stopped.len()
    }

    pub(super) fn open(
        &mut self,
        connection: ConnectionId,
        peer: Peer,
        secret: Secret,
        now: Moment,
    ) {
        let id = SessionId { run: self.run, number: connection.0 };
        self.all.insert(connection, Session::new(id, peer, secret, now));
    }

    /// Adds a session of an earlier run, without a connection. It ends once its grace is over.
    pub(in crate::core) fn restore(&mut self, connection: ConnectionId, session: Session) {
        self.taken_over.insert(session.id, connection);
        self.graced.insert(connection, session.peer.uid);
        self.all.insert(connection, session);
        self.away += 1;
        self.arm_grace(connection);
    }

    /// Removes a session that ends, with its grace and all of its deadlines.
    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<(Session, Option<Grace>)> {
        let grace = self.take_grace(connection);
        self.cancel_resuming(connection);
        let session = self.all.remove(&connection)?;
        self.all.trim();
        if self.taken_over.get(&session.id) == Some(&connection) {
            self.taken_over.remove(&session.id);
        }
        if let Some((_, until)) = session.events_waiter {
            self.timers.clear(until, SessionTimer::Events(connection));
        }
        for (owner, multi) in &session.multi {
            self.timers.clear(multi.armed, SessionTimer::Multi(connection, *owner));
        }
        Some((session, grace))
    }

    /// Sets a session's grace, or changes its time.
    pub(super) fn give_grace(&mut self, connection: ConnectionId, time: Duration) {
        if let Some(session) = self.all.get_mut(&connection) {
            session.grace.get_or_insert_with(|| Grace::new(time)).time = time;
            self.graced.insert(connection, session.peer.uid);
        }
        self.arm_grace(connection);
    }

    /// Removes a session's grace.
    pub(super) fn take_grace(&mut self, connection: ConnectionId) -> Option<Grace> {
        let grace = self.all.get_mut(&connection)?.grace.take()?;
        self.timers.clear(grace.armed, SessionTimer::Grace(connection));
        self.away -= usize::from(grace.away.is_some());
        self.graced.remove(connection);
        Some(grace)
    }

    /// Records that a session's connection has closed. Returns the connections that wait to take it over; `None` if it
    /// has no grace.
    pub(super) fn detach(
        &mut self,
        connection: ConnectionId,
        now: Moment,
    ) -> Option<Vec<ConnectionId>> {
        let askers = self.all.get_mut(&connection)?.detach(now)?;
        self.away += 1;
        self.arm_grace(connection);
        Some(askers)
    }

    /// Moves the whole state of a session without a connection to the session of the connection that requested it with
    /// this secret. Returns the other connections that requested it.
    pub(super) fn take_over(
        &mut self,
        asker: ConnectionId,
        target: ConnectionId,
        secret: &[u8],
    ) -> Option<Vec<ConnectionId>> {
        let secret_before = self.get(&target)?.right_to_resume(secret);
        let mut grace = self.take_grace(target)?;
        (grace.away, grace.armed) = (None, Moment::NEVER);
        let others = std::mem::take(&mut grace.askers);
        let mut old = self.all.remove(&target)?;
        self.all.trim();
        old.grace = Some(grace);
        self.graced.insert(asker, old.peer.uid);
        self.taken_over.insert(old.id, asker);
        if let Some((_, until)) = old.events_waiter {
            self.timers.clear(until, SessionTimer::Events(target));
            self.timers.add(until, SessionTimer::Events(asker));
        }
        self.all.get_mut(&asker)?.continue_from(old, secret_before);
        Some(others)
    }

    /// Queues a RESUME until the session of `target` is ready for it.
    pub(super) fn add_asker(&mut self, target: ConnectionId, resuming: Resuming) {
        let asker = resuming.reply_to.connection;
        if let Some(grace) = self.grace_mut(target) {
            grace.askers.push(asker);
        }
        if let Some(session) = self.all.get_mut(&asker) {
            self.timers.add(resuming.until, SessionTimer::Resume(asker));
            session.resuming = Some(resuming);
        }
    }

    /// Takes the connections that wait to take a session over.
    pub(super) fn take_waiting_resumes(&mut self, connection: ConnectionId) -> Vec<ConnectionId> {
        self.grace_mut(connection)
            .map(|grace| std::mem::take(&mut grace.askers))
            .unwrap_or_default()
    }

    /// Takes a connection's pending RESUME, and its deadline.
    pub(super) fn take_resuming(&mut self, asker: ConnectionId) -> Option<Resuming> {
        let resuming = self.all.get_mut(&asker)?.resuming.take()?;
        self.timers.clear(resuming.until, SessionTimer::Resume(asker));
        Some(resuming)
    }

    /// Takes a connection's pending RESUME, and removes it from those that wait for its session.
    pub(super) fn cancel_resuming(&mut self, asker: ConnectionId) -> Option<Resuming> {
        let resuming = self.take_resuming(asker)?;
        let target = self.connection_of(resuming.session);
        if let Some(grace) = target.and_then(|target| self.grace_mut(target)) {
            grace.askers.retain(|one| *one != asker);
        }
        Some(resuming)
    }

    /// Registers an EVENTS call that waits for a session's next event, until that instant.
    pub(super) fn add_listener(
        &mut self,
        connection: ConnectionId,
        reply_to: ReplyTo,
        until: Moment,
    ) {
        if let Some(session) = self.all.get_mut(&connection) {
            session.events_waiter = Some((reply_to, until));
            self.timers.add(until, SessionTimer::Events(connection));
        }
    }

    /// Takes the EVENTS call that waits for a session's next event, and its deadline.
    pub(super) fn take_listener(&mut self, connection: ConnectionId) -> Option<ReplyTo> {
        let (reply_to, until) = self.all.get_mut(&connection)?.events_waiter.take()?;
        self.timers.clear(until, SessionTimer::Events(connection));
        Some(reply_to)
    }

    /// Sets the reply to a command, which is sent once the journal has been written up to the record `after`. Its
    /// owner's next command may begin, and the session may be ready for the connections that wait to take it over.
    pub(super) fn set_reply(&mut self, reply_to: ReplyTo, reply: Reply, after: u64) {
        let connection = reply_to.connection;
        let Some(session) = self.all.get_mut(&connection) else { return };
        let Some(owner) = session.set_reply(reply_to.seq, reply, after) else { return };
        self.ready.push_back((connection, owner));
        if session.grace.as_ref().is_some_and(|grace| !grace.askers.is_empty()) {
            self.askable.push_back(connection);
        }
    }

    /// Takes the next item of work.
    pub(super) fn next_work(&mut self) -> Option<Work> {
        if let Some(owner) = self.steps.pop_front() {
            return Some(Work::Step(owner));
        }
        if let Some(connection) = self.askable.pop_front() {
            return Some(Work::Resumes(connection));
        }
        while let Some((connection, owner)) = self.ready.pop_front() {
            let session = self.all.get_mut(&connection);
            if let Some((seq, command)) = session.and_then(|session| session.next_command(owner)) {
                return Some(Work::Command(ReplyTo { connection, seq, member: None }, command));
            }
        }
        None
    }

    /// Sets the end of a session that nobody resumes.
    fn arm_grace(&mut self, connection: ConnectionId) {
        let grace = self.all.get_mut(&connection).and_then(|session| session.grace.as_mut());
        if let Some(grace) = grace
            && let Some(away) = grace.away
        {
            self.timers.set(&mut grace.armed, away + grace.time, SessionTimer::Grace(connection));
        }
    }

    /// Sets another end of the grace of a session.
    pub(super) fn lapse_at(&mut self, connection: ConnectionId, at: Moment) {
        let grace = self.all.get_mut(&connection).and_then(|session| session.grace.as_mut());
        if let Some(grace) = grace {
            self.timers.set(&mut grace.armed, at, SessionTimer::Grace(connection));
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

    /// Returns the connections of the sessions with grace, in order.
    pub(in crate::core) fn graced(&self) -> impl Iterator<Item = ConnectionId> {
        self.graced.connections()
    }

    /// Returns a sentence about the limit that prevents this user from having another session with grace, if reached.
    pub(super) fn grace_exhausted(&self, peer: &Peer, max: usize) -> Option<String> {
        self.graced.exhausted(peer, max)
    }

    pub(in crate::core) fn has_grace(&self, connection: ConnectionId) -> bool {
        self.graced.contains(connection)
    }

    /// Counts one hold of an earlier run as verified: the session may be ready for a RESUME.
    pub(in crate::core) fn on_verified(&mut self, connection: ConnectionId) {
        if let Some(grace) = self.grace_mut(connection) {
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
            session.holds.trim();
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

    /// Schedules the next step of an MLOCK or MUNLOCK.
    pub(in crate::core) fn push_step(&mut self, owner: Owner) {
        self.steps.push_back(owner);
    }

    /// Returns the processes whose sessions hold or wait for something.
    pub(in crate::core) fn busy_pids(&self) -> BTreeSet<i32> {
        let busy = self.all.values().filter(|session| session.is_busy());
        busy.filter_map(|session| session.peer.pid).collect()
    }

    /// Records which processes are stopped. Returns the sessions that continue, and those that have stopped.
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

    /// Records that a session does not count as stopped any more. Returns whether it did.
    pub(in crate::core) fn forget_stopped(&mut self, connection: ConnectionId) -> bool {
        self.stopped.remove(&connection)
    }

    pub(in crate::core) fn is_stopped(&self, connection: ConnectionId) -> bool {
        self.stopped.contains(&connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_end_before_their_resume_is_answered_are_forgotten() {
        let mut sessions = SessionTable::new(7);
        let target = ConnectionId(0);
        sessions.open(target, Peer::default(), Secret([1; 16]), Moment::default());
        sessions.give_grace(target, Duration::from_secs(60));
        let session = sessions.id_of(target);
        for connection in (1..100).map(ConnectionId) {
            sessions.open(connection, Peer::default(), Secret([2; 16]), Moment::default());
            let reply_to = ReplyTo { connection, seq: 0, member: None };
            let until = Moment::from_micros(1);
            let resuming = Resuming { reply_to, session, secret: Vec::new(), until };
            sessions.add_asker(target, resuming);
            assert_eq!(sessions.grace_mut(target).unwrap().askers, [connection]);
            assert!(sessions.remove(connection).is_some());
        }
        assert!(
            sessions.take_waiting_resumes(target).is_empty() && sessions.next_deadline().is_none()
        );
    }
}
