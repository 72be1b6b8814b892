//! Sessions whose holds outlive their connection: SESSION GRACE, RESUME, and what becomes of those whom nobody resumes.
//!
//! Such a session keeps its place among the sessions when its connection has gone; only its waits end. RESUME moves all
//! it has to the connection that asks, under its old id and with that connection's own secret. The old secret is void
//! once the worker goes on, which shows that it was told the new one.

use std::collections::BTreeSet;
use std::time::Duration;

use redisson::Moment;

use crate::core::ids::{Owner, Slot};
use crate::core::lock::waiter::Left;
use crate::core::session::reply::Reply;
use crate::core::session::state::{Grace, Resuming, Session};
use crate::core::session::table::SessionTimer;
use crate::core::session::wrong_secret;
use crate::core::units::millis;
use crate::core::{Core, LogLine, Report};
use crate::journal::Record;
use crate::protocol::resp::Frame;
use crate::types::{ConnectionId, Number, SessionId};

/// The decision about a RESUME.
enum Verdict {
    Ready(ConnectionId),
    /// Not yet, but perhaps soon.
    NotYet(ConnectionId),
    /// A refusal: its word in metrics and its reply.
    No(&'static str, Frame),
}

impl Core {
    /// Gives a session grace, or takes it away (zero).
    pub(in crate::core) fn set_grace(
        &mut self,
        connection: ConnectionId,
        time: Duration,
    ) -> Result<(), Frame> {
        if time.is_zero() {
            self.drop_grace(connection);
            return Ok(());
        }
        let most = self.settings.max_grace;
        if time > most {
            let most = millis(most);
            return Err(Frame::Error(format!(
                "LIMIT GRACE must be from 0 to {most} ms (--max-grace)"
            )));
        }
        if let Some(why) = self.journal.missing() {
            return Err(Frame::Error(format!(
                "UNAVAILABLE GRACE needs a state folder that can be written (--state-dir): {why}"
            )));
        }
        let most = self.settings.max_graced;
        if !self.sessions.graced.contains(&connection) && self.sessions.graced.len() >= most {
            return Err(Frame::Error(format!(
                "LIMIT {most} sessions have GRACE already (--max-sessions)"
            )));
        }
        let Some(session) = self.sessions.get_mut(&connection) else { return Ok(()) };
        let new =
            Grace { time, away: None, armed: Moment::NEVER, unverified: 0, askers: Vec::new() };
        session.grace.get_or_insert(new).time = time;
        let (holds, waits) = (session.holds.clone(), session.waits.clone());
        self.sessions.graced.insert(connection);
        if let Some(record) = self.session_record(connection) {
            self.journal_record(Record::Session(record));
        }
        for number in holds.into_values().collect::<BTreeSet<_>>() {
            self.journal_hold(number);
        }
        for number in waits.into_values().collect::<BTreeSet<_>>() {
            self.journal_attempts(number);
        }
        Ok(())
    }

    /// A session is like any other again: nothing of it is left to a successor.
    pub(in crate::core) fn drop_grace(&mut self, connection: ConnectionId) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let (Some(grace), session_id) = (session.grace.take(), session.id) else { return };
        let numbers = session.holds.values().chain(session.waits.values());
        let numbers: BTreeSet<_> = numbers.copied().collect();
        self.sessions.graced.remove(&connection);
        numbers.into_iter().for_each(|number| self.journal_gone(number));
        self.journal_record(Record::End { session: session_id });
        self.wake_all(grace.askers);
    }

    /// The grace that a session asked for cannot be noted. If its connection has gone meanwhile, the session ends as it
    /// would have ended then.
    pub(in crate::core) fn refuse_grace(&mut self, connection: ConnectionId) {
        match self.sessions.get(&connection).and_then(|session| session.away_since()) {
            Some(gone) => self.end_closed(connection, gone),
            None => self.drop_grace(connection),
        }
    }

    /// A worker says goodbye: its session ends with its connection.
    pub fn on_quit(&mut self, connection: ConnectionId) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.quit = true;
        }
        self.drop_grace(connection);
    }

    /// A session's connection has gone. Whether it lives on without one.
    pub(in crate::core) fn go_away(&mut self, connection: ConnectionId) -> bool {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&connection) else { return false };
        let Some(grace) = &mut session.grace else { return false };
        grace.away = Some(now);
        let askers = std::mem::take(&mut grace.askers);
        (session.push, session.deadlines) = (false, false);
        // What has not begun will not; what has goes on, and its reply goes nowhere.
        session.queued.values_mut().for_each(std::collections::VecDeque::clear);
        let session_id = session.id;
        let waits: BTreeSet<_> = session.waits.values().copied().collect();
        let multi: Vec<_> = session.multi.keys().copied().collect();
        self.sessions.away += 1;
        self.forget_stopped(connection);
        self.sessions.arm_grace(connection);
        self.journal_record(Record::Away { session: session_id, since: now });
        for owner in multi {
            self.cancel_multi(Owner { connection, owner });
        }
        for number in waits {
            self.leave(number, Left::Cancelled);
        }
        self.wake_all(askers);
        true
    }

    /// Ends the grace of a session that ends.
    pub(in crate::core) fn end_grace(&mut self, connection: ConnectionId, session: &mut Session) {
        if let Some(resuming) = session.resuming.take() {
            self.sessions.timers.clear(resuming.until, SessionTimer::Resume(connection));
        }
        if self.sessions.taken_over.get(&session.id) == Some(&connection) {
            self.sessions.taken_over.remove(&session.id);
        }
        let Some(grace) = session.grace.take() else { return };
        self.sessions.timers.clear(grace.armed, SessionTimer::Grace(connection));
        self.sessions.away -= usize::from(grace.away.is_some());
        self.sessions.graced.remove(&connection);
        self.journal_record(Record::End { session: session.id });
        self.wake_all(grace.askers);
    }

    /// Nobody has come back in time.
    pub(in crate::core) fn lapse(&mut self, connection: ConnectionId) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let Some(grace) = &mut session.grace else { return };
        grace.armed = Moment::NEVER;
        let (session, holds, grace_ms) = (session.id, session.holds.len(), millis(grace.time));
        let gone = grace.away.unwrap_or(self.now);
        self.effects.log(LogLine::SessionLapsed { session, holds, grace_ms });
        self.effects.report(Report::Resume("lapsed"));
        let until = self.kept_back_until(gone);
        self.end_session(connection, until);
    }

    pub(in crate::core) fn resume(&mut self, slot: Slot, name: &[u8], secret: Vec<u8>) {
        let Some(session) = SessionId::parse(name) else {
            return self.refuse_resume(slot, "gone", gone());
        };
        let until = self.now + self.settings.response_timeout;
        self.ask_for(Resuming { slot, session, secret, until });
    }

    fn ask_for(&mut self, asked: Resuming) {
        let slot = asked.slot;
        match self.verdict(&asked) {
            Verdict::Ready(target) => {
                self.take_over(slot.connection, target, &asked.secret);
                self.effects.report(Report::Resume("resumed"));
                self.answer_with(slot, Reply::Resumed);
                // To the worker, RESUME ends any jeopardy that it knows of.
                self.tell_every_jeopardy(slot.connection);
            }
            Verdict::No(outcome, sentence) => self.refuse_resume(slot, outcome, sentence),
            Verdict::NotYet(target) => {
                let grace = self.sessions.get_mut(&target).and_then(|s| s.grace.as_mut());
                if let Some(grace) = grace {
                    grace.askers.push(slot.connection);
                }
                if let Some(session) = self.sessions.all.get_mut(&slot.connection) {
                    self.sessions.timers.add(asked.until, SessionTimer::Resume(slot.connection));
                    session.resuming = Some(asked);
                }
            }
        }
    }

    fn refuse_resume(&mut self, slot: Slot, outcome: &'static str, sentence: Frame) {
        self.effects.report(Report::Resume(outcome));
        self.answer(slot, sentence);
    }

    fn verdict(&self, asked: &Resuming) -> Verdict {
        let Some((target, session)) = self
            .connection_of(asked.session)
            .and_then(|target| Some((target, self.sessions.get(&target)?)))
        else {
            return Verdict::No("gone", gone());
        };
        if session.right_to_resume(&asked.secret).is_none() {
            return Verdict::No("refused", wrong_secret());
        }
        let Some(asker) = self.sessions.get(&asked.slot.connection) else {
            return Verdict::No("refused", gone());
        };
        if asker.peer.uid != session.peer.uid {
            let sentence = format!("DENIED session {} is another user's", asked.session);
            return Verdict::No("refused", Frame::Error(sentence));
        }
        let Some(grace) = session.grace.as_ref().filter(|_| target != asked.slot.connection) else {
            return Verdict::No("alive", alive(asked.session));
        };
        let busy = !asker.holds.is_empty() || !asker.waits.is_empty() || !asker.multi.is_empty();
        if busy || asker.grace.is_some() {
            let sentence =
                "SESSION this connection has a session of its own: RESUME on a fresh connection";
            return Verdict::No("refused", Frame::Error(sentence.to_owned()));
        }
        // What its old connection had begun comes to its end first, so that nothing changes behind the new one's back.
        let asking = |number: &Number| {
            let hold = self.leases.get(*number).and_then(|hold| hold.update);
            hold.is_some_and(|op| self.ops.contains_key(&op))
        };
        let settled = grace.unverified == 0
            && session.multi.is_empty()
            && !session.holds.values().any(asking);
        if grace.away.is_some() && settled {
            Verdict::Ready(target)
        } else {
            Verdict::NotYet(target)
        }
    }

    /// A session may be ready for those who wait to take it over.
    pub(in crate::core) fn wake_askers(&mut self, connection: ConnectionId) {
        let grace = self.sessions.get_mut(&connection).and_then(|session| session.grace.as_mut());
        let askers = grace.map(|grace| std::mem::take(&mut grace.askers));
        self.wake_all(askers.unwrap_or_default());
    }

    fn wake_all(&mut self, askers: Vec<ConnectionId>) {
        for asker in askers {
            let resuming = self.sessions.get_mut(&asker).and_then(|s| s.resuming.take());
            if let Some(resuming) = resuming {
                self.sessions.timers.clear(resuming.until, SessionTimer::Resume(asker));
                self.ask_for(resuming);
            }
        }
    }

    /// A RESUME has waited long enough.
    pub(in crate::core) fn resume_due(&mut self, asker: ConnectionId) {
        let resuming = self.sessions.get_mut(&asker).and_then(|s| s.resuming.take());
        let Some(Resuming { slot, session, .. }) = resuming else { return };
        let target = self.connection_of(session).and_then(|target| self.sessions.get_mut(&target));
        let Some(target) = target else { return self.refuse_resume(slot, "gone", gone()) };
        let connected = target.away_since().is_none();
        if let Some(grace) = &mut target.grace {
            grace.askers.retain(|one| *one != asker);
        }
        if connected {
            return self.refuse_resume(slot, "alive", alive(session));
        }
        let sentence = format!(
            "UNAVAILABLE session {session}: Redis has not said yet what of its holds is still there; try again"
        );
        self.refuse_resume(slot, "unconfirmed", Frame::Error(sentence));
    }

    /// Moves all that a session without a connection has to the one that asked for it.
    fn take_over(&mut self, asker: ConnectionId, target: ConnectionId, given: &[u8]) {
        let Some(mut old) = self.sessions.all.remove(&target) else { return };
        let Some(mut grace) = old.grace.take() else { return };
        self.sessions.timers.clear(grace.armed, SessionTimer::Grace(target));
        (grace.away, grace.armed) = (None, Moment::NEVER);
        self.sessions.away -= 1;
        self.sessions.graced.remove(&target);
        self.sessions.graced.insert(asker);
        self.sessions.taken_over.insert(old.id, asker);
        for number in old.holds.values() {
            self.leases.move_to(*number, asker);
        }
        let others = std::mem::take(&mut grace.askers);
        let Some(new) = self.sessions.all.get_mut(&asker) else { return };
        new.id = old.id;
        new.secret_before = old.right_to_resume(given);
        new.introduced = true;
        new.grace = Some(grace);
        new.client_name = new.client_name.take().or(old.client_name);
        (new.holds, new.losses) = (old.holds, old.losses);
        (new.backlog, new.missed) = (old.backlog, old.missed);
        if let Some((slot, until)) = old.events_waiter {
            self.sessions.timers.clear(until, SessionTimer::Events(target));
            self.sessions.timers.add(until, SessionTimer::Events(asker));
            new.events_waiter = Some((slot, until));
        }
        if let Some(record) = self.session_record(asker) {
            self.journal_record(Record::Session(record));
        }
        self.wake_all(others);
    }

    /// Drops the previous secret if every earlier command has been answered: the worker then has the new one.
    pub(in crate::core) fn forget_previous_secret(&mut self, connection: ConnectionId) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        if session.pending.is_empty()
            && session.secret_before.take().is_some()
            && let Some(record) = self.session_record(connection)
        {
            self.journal_record(Record::Session(record));
        }
    }

    pub(in crate::core) fn resumed_frame(&self, connection: ConnectionId) -> Frame {
        let Some(session) = self.sessions.get(&connection) else { return Frame::Null };
        let grace_ms = session.grace.as_ref().map(|grace| Frame::count(millis(grace.time)));
        Frame::Map(vec![
            ("id", Frame::bytes(session.id.to_string())),
            ("secret", Frame::bytes(session.secret_text())),
            ("grace_ms", Frame::or_null(grace_ms)),
            ("holds", self.holds_frame(connection)),
        ])
    }
}

fn gone() -> Frame {
    Frame::Error(
        "GONE there is no such session any more: it has ended, or nobody resumed it within its grace; what it held is \
         released"
            .to_owned(),
    )
}

fn alive(session: SessionId) -> Frame {
    Frame::Error(format!("SESSION the connection of session {session} lives: close that one first"))
}
