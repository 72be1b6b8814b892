//! Workers: sessions whose owners acquire, hold and release, and sometimes die, cancel or stop reading.
//!
//! A worker knows only the replies and pushes on its socket.

use std::time::Duration;

use redisson::{HolderId, Kind, Lease};

use super::super::requests::{hold_request, lock_name};
use super::super::schedule::micros;
use super::super::seeds::CheckResult;
use super::event::{Event, Input};
use super::event_loop::secret;
use super::host::Departed;
use super::names::NAMES;
use super::session::{KnownHold, OWNERS, Pending, Session};
use super::simulation::{Phase, Simulation};
use crate::core::Frozen;
use crate::protocol::command::{Command, HoldRequest, ListRequest, LockRequest, Wait};
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::ConnectionId;

/// The lock of a LOCK.
struct Target {
    name: &'static str,
    kind: Kind,
}

impl Simulation {
    /// A worker connects.
    pub(super) fn join(&mut self, host: usize) {
        if self.phase == Phase::Ending {
            return;
        }
        let state = &mut self.hosts[host];
        state.next_connection += 1;
        let (id, run) = (ConnectionId(state.next_connection), state.run);
        let shared = self.contention.is_none() && self.rng.one_in(2);
        state.sessions.insert(id, Session::new(shared));
        let resp3 = !self.rng.one_in(4);
        self.after(10, Event::Input { host, run, input: Input::Opened(id, resp3) });
        if resp3 {
            let command = Command::Session {
                grace: None,
                push: Some(true),
                deadlines: Some(true),
                process: None,
            };
            self.send_command(host, id, Pending::Other, command);
        }
        if self.contention.is_none() && self.rng.one_in(3) {
            self.request_grace(host, id);
        }
        for owner in 0..if shared { OWNERS } else { 1 } {
            let pause = self.think(host);
            self.after(pause, Event::Act { host, run, connection: id, owner });
        }
    }

    /// Returns a pause in microseconds: mostly brief, sometimes longer than a lease.
    pub(super) fn think(&mut self, host: usize) -> u64 {
        if let Some(hold) = self.contention {
            return hold;
        }
        let lease = micros(self.hosts[host].lease());
        let most = match self.rng.within(0..10) {
            0..4 => 500,
            4..7 => 20_000,
            7..9 => lease / 4,
            _ => lease * 3 / 2,
        };
        self.rng.within(20..most)
    }

    pub(super) fn send_command(
        &mut self,
        host: usize,
        id: ConnectionId,
        pending: Pending,
        command: Command,
    ) {
        self.send_input(host, id, pending, Input::Command(id, command));
    }

    fn send_input(&mut self, host: usize, id: ConnectionId, pending: Pending, input: Input) {
        let now = self.now;
        let run = self.hosts[host].run;
        let Some(session) = self.hosts[host].sessions.get_mut(&id) else { return };
        if let Pending::Lock { owner, .. }
        | Pending::Unlock { owner, .. }
        | Pending::Extend { owner, .. } = &pending
        {
            session.owners[*owner].unanswered += 1;
        }
        self.log(|| format!("host {host} worker {id:?}: {pending:?}"));
        let session = self.hosts[host].sessions.get_mut(&id).expect("looked up above");
        session.pending.push_back((now, pending));
        // All commands take the same time, since a socket keeps their order.
        self.after(20, Event::Input { host, run, input });
    }

    /// Chooses and sends an owner's next command.
    pub(super) fn act(&mut self, host: usize, id: ConnectionId, owner: usize) {
        let run = self.hosts[host].run;
        let Some(session) = self.hosts[host].sessions.get(&id) else { return };
        let mine = &session.owners[owner];
        if mine.unanswered > 0 || !session.connected {
            return;
        }
        let held: Vec<&'static str> = mine.known_holds.keys().copied().collect();
        if self.contention.is_some() && self.phase != Phase::Ending {
            return match held.first() {
                Some(lock) => self.unlock(host, id, owner, lock),
                None => {
                    let lock = Target { name: NAMES[0], kind: Kind::Lock };
                    self.send_lock(host, id, owner, lock, Wait::Forever, None);
                }
            };
        }
        if self.phase == Phase::Ending {
            match held.first() {
                Some(lock) => self.unlock(host, id, owner, lock),
                None => self.leave_when_done(host, id),
            }
            return;
        }
        if self.work_left == 0 {
            if let Some(lock) = held.first().filter(|_| self.phase == Phase::Repaired) {
                return self.unlock(host, id, owner, lock);
            }
            let pause = self.think(host);
            return self.after(pause, Event::Act { host, run, connection: id, owner });
        }
        self.work_left -= 1;
        let lock = self.rng.pick(&NAMES);
        match self.rng.within(0..40) {
            0 => return self.disconnect(host, id),
            1 => self.stop_reading(host, id),
            2 => self.send_query(host, id),
            3 => self.cancel(host, id),
            _ => {}
        }
        if held.is_empty() {
            return self.lock(host, id, owner, lock, false);
        }
        let mine = self.rng.pick(&held);
        match self.rng.within(0..20) {
            0..3 => self.lock(host, id, owner, mine, true),
            3..5 => self.lock(host, id, owner, lock, true),
            5..7 => self.extend(host, id, owner, mine),
            7..10 => {
                let pause = self.think(host);
                self.after(pause, Event::Act { host, run, connection: id, owner });
            }
            _ => self.unlock(host, id, owner, mine),
        }
    }

    fn lease(&mut self) -> Option<Lease> {
        let most = self.rng.pick(&[200, 2000, 10_000]);
        Lease::new(Duration::from_millis(self.rng.within(100..most)))
    }

    /// Sends a LOCK. The wait of an owner that holds a lock is limited, since two such owners could wait for each other.
    fn lock(
        &mut self,
        host: usize,
        id: ConnectionId,
        owner: usize,
        lock: &'static str,
        limited: bool,
    ) {
        let limited = limited || self.hosts[host].sessions.get(&id).is_none_or(|s| s.shared);
        let wait = match self.rng.within(0..4) {
            0 | 1 if !limited => Wait::Forever,
            2 => Wait::AtMost(Duration::ZERO),
            _ => Wait::AtMost(Duration::from_micros(self.think(host))),
        };
        let lease = if self.rng.one_in(3) { self.lease() } else { None };
        let kind = match self.known_hold(host, id, owner, lock) {
            Some(KnownHold { token: Some(_), .. }) => Kind::Fenced,
            Some(_) => Kind::Lock,
            // Both kinds are used under one name: they exclude each other.
            None => self.rng.pick(&[Kind::Lock, Kind::Lock, Kind::Fenced]),
        };
        let lock = Target { name: lock, kind };
        self.send_lock(host, id, owner, lock, wait, lease);
    }

    fn send_lock(
        &mut self,
        host: usize,
        id: ConnectionId,
        owner: usize,
        Target { name: lock, kind }: Target,
        wait: Wait,
        lease: Option<Lease>,
    ) {
        let request = LockRequest {
            name: lock_name(lock),
            kind,
            wait,
            lease,
            owner: owner as i64,
            session: None,
            traceparent: None,
        };
        self.send_command(host, id, Pending::Lock { owner, lock, kind }, Command::Lock(request));
    }

    fn request(lock: &str, owner: usize) -> HoldRequest {
        HoldRequest { owner: owner as i64, ..hold_request(lock) }
    }

    fn unlock(&mut self, host: usize, id: ConnectionId, owner: usize, lock: &'static str) {
        let session = self.hosts[host].sessions.get_mut(&id);
        if let Some(known_hold) = session.and_then(|s| s.owners[owner].known_holds.get_mut(lock)) {
            known_hold.leaving = known_hold.count == 1;
        }
        let command = Command::Unlock(Self::request(lock, owner));
        self.send_command(host, id, Pending::Unlock { owner, lock }, command);
    }

    fn extend(&mut self, host: usize, id: ConnectionId, owner: usize, lock: &'static str) {
        let lease = if self.rng.one_in(2) { self.lease() } else { None };
        // EXTEND may shorten the lease, and so may the return to the watchdog. Until the reply the worker relies on nothing.
        let now = self.hosts[host].boot(self.now);
        let session = self.hosts[host].sessions.get_mut(&id);
        if let Some(known_hold) = session.and_then(|s| s.owners[owner].known_holds.get_mut(lock)) {
            known_hold.valid_until = known_hold.valid_until.min(now);
        }
        let command = Command::Extend(Self::request(lock, owner), lease);
        self.send_command(host, id, Pending::Extend { owner, lock }, command);
    }

    /// Sends a query, whose reply keeps its order among the others.
    fn send_query(&mut self, host: usize, id: ConnectionId) {
        let lock = lock_name(self.rng.pick(&NAMES));
        let Some(session) = self.hosts[host].sessions.get_mut(&id) else { return };
        session.next_token += 1;
        let token = session.next_token;
        let (pending, input) = match self.rng.within(0..4) {
            0 => (Pending::Holds, Input::Command(id, Command::Holds)),
            1 => (Pending::Other, Input::Command(id, Command::Show(lock))),
            2 => {
                let all = ListRequest { pattern: None, cursor: 0, count: 100 };
                (Pending::Other, Input::Command(id, Command::Locks(all)))
            }
            _ => {
                let echo = Outgoing::Reply(Frame::Int(token));
                (Pending::Token(token), Input::Answered(id, echo))
            }
        };
        self.send_input(host, id, pending, input);
    }

    /// Cancels an owner's wait from another connection.
    fn cancel(&mut self, host: usize, id: ConnectionId) {
        let owner = self.rng.index(OWNERS) as i64;
        let session = self.hosts[host].core.session_name(id).into_bytes();
        let others = self.hosts[host].sessions.iter();
        let by = others.filter(|(_, session)| session.connected).map(|(other, _)| *other);
        if let Some(by) = by.into_iter().find(|other| *other != id) {
            let secret = secret(id).to_string().into_bytes();
            self.send_command(host, by, Pending::Other, Command::Cancel { session, secret, owner });
        }
    }

    /// Breaks a connection. The worker dies, or resumes its session if it has grace.
    fn disconnect(&mut self, host: usize, id: ConnectionId) {
        let waits = self.hosts[host].sessions.get(&id).is_some_and(|s| s.ticket.is_some());
        if waits && !self.rng.one_in(3) {
            self.break_session_connection(host, id);
        } else {
            self.hang_up(host, id);
        }
    }

    /// Closes a connection. A new worker joins later.
    pub(super) fn hang_up(&mut self, host: usize, id: ConnectionId) {
        let run = self.hosts[host].run;
        let Some(session) = self.hosts[host].sessions.remove(&id) else { return };
        self.depart(host, &session);
        self.log(|| format!("host {host} worker {id:?} disconnects"));
        self.after(20, Event::Input { host, run, input: Input::Closed(id) });
        let pause = self.think(host);
        self.after(pause, Event::Join { host });
    }

    /// Notes the holds of a dead worker for its lock delay, except those that it was releasing.
    fn depart(&mut self, host: usize, dead: &Session) {
        let state = &mut self.hosts[host];
        if state.settings.lock_delay.is_zero() {
            return;
        }
        let until = state.boot(self.now) + state.settings.lock_delay;
        for (lock, known_hold) in dead.owners.iter().flat_map(|owner| &owner.known_holds) {
            let number =
                HolderId::parse(known_hold.holder.as_bytes()).expect("a holder of ours").thread;
            let Some(hold) = state.core.leases.get(number).filter(|_| !known_hold.leaving) else {
                continue;
            };
            let (holder, valid_until) = (known_hold.holder.clone(), hold.valid_until);
            state.departed.push(Departed { lock, holder, number, until, valid_until });
        }
    }

    fn stop_reading(&mut self, host: usize, id: ConnectionId) {
        let run = self.hosts[host].run;
        let pause = self.think(host);
        if let Some(session) = self.hosts[host].sessions.get_mut(&id) {
            session.reading = false;
            self.after(pause, Event::Read { host, run, connection: id });
            self.schedule_stopped_check(host);
        }
    }

    pub(super) fn read_on(&mut self, host: usize, id: ConnectionId) -> CheckResult {
        let Some(session) = self.hosts[host].sessions.get_mut(&id) else { return Ok(()) };
        session.reading = true;
        session.known_stopped = false;
        let unread = std::mem::take(&mut session.unread);
        self.schedule_stopped_check(host);
        for (came, outgoing) in unread {
            self.read(host, id, came, outgoing)?;
        }
        Ok(())
    }

    /// Schedules the agent's check for stopped workers.
    fn schedule_stopped_check(&mut self, host: usize) {
        if self.hosts[host].settings.frozen == Frozen::Lapse {
            let run = self.hosts[host].run;
            self.after(300, Event::Input { host, run, input: Input::Stopped });
        }
    }

    fn leave_when_done(&mut self, host: usize, id: ConnectionId) {
        let done = self.hosts[host].sessions.get(&id).is_some_and(|session| {
            session.pending.is_empty()
                && session.owners.iter().all(|owner| owner.known_holds.is_empty())
        });
        if done {
            self.hang_up(host, id);
        }
    }

    /// Delivers a reply or push to a worker.
    pub(super) fn deliver(
        &mut self,
        host: usize,
        id: ConnectionId,
        outgoing: Outgoing,
    ) -> CheckResult {
        self.check_delivery(host, &outgoing)?;
        let Some(session) = self.hosts[host].sessions.get_mut(&id) else { return Ok(()) };
        if !session.reading {
            session.unread.push_back((self.now, outgoing));
            return Ok(());
        }
        self.read(host, id, self.now, outgoing)
    }

    /// Starts the last phase.
    pub(super) fn wind_down(&mut self) {
        self.phase = Phase::Ending;
        for host in 0..self.hosts.len() {
            let run = self.hosts[host].run;
            for connection in self.hosts[host].sessions.keys().copied().collect::<Vec<_>>() {
                for owner in 0..OWNERS {
                    self.after(100, Event::Act { host, run, connection, owner });
                }
            }
        }
    }
}
