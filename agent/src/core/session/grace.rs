//! Sessions whose holds outlive their connection: SESSION GRACE, RESUME, and the end of those that nobody resumes.
//!
//! Such a session keeps its place among the sessions when its connection has closed; only its waits end. RESUME moves
//! all its state to the requesting connection, under its old id and with that connection's own secret. The old secret
//! becomes void once the worker sends another command, which shows that it has received the new one.

use std::time::Duration;

use redisson::millis;

use crate::core::ids::{Owner, ReplyTo};
use crate::core::lock::waiter::Left;
use crate::core::session::reply::Reply;
use crate::core::session::state::Resuming;
use crate::core::session::wrong_secret;
use crate::core::{Core, LogLine, Report};
use crate::journal::Record;
use crate::protocol::resp::Frame;
use crate::types::{ConnectionId, Number, SessionId};

/// The interval at which a session that would lapse is asked whether Redis has confirmed the holds of an earlier run.
const CONFIRMATION_INTERVAL: Duration = Duration::from_millis(100);

/// The decision about a RESUME.
enum ResumeDecision {
    Ready(ConnectionId),
    /// Not ready yet, but possibly soon.
    NotYet(ConnectionId),
    /// A refusal: its word in metrics and its reply.
    No(&'static str, Frame),
}

impl Core {
    /// Sets the grace of a session; zero removes it. Returns the one that it had before, if any.
    pub(in crate::core) fn set_grace(
        &mut self,
        connection: ConnectionId,
        time: Duration,
    ) -> Result<Option<Duration>, Frame> {
        let Some(session) = self.sessions.get(&connection) else { return Ok(None) };
        let before = session.grace.as_ref().map(|grace| grace.time);
        if time.is_zero() {
            self.drop_grace(connection);
            return Ok(before);
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
        if before.is_none()
            && let Some(reached) =
                self.sessions.grace_exhausted(&session.peer, self.settings.max_graced)
        {
            return Err(Frame::Error(format!("LIMIT {reached}")));
        }
        self.sessions.give_grace(connection, time);
        let Some(session) = self.sessions.get(&connection) else { return Ok(before) };
        let (holds, waits) = (session.hold_numbers(), session.wait_numbers());
        if let Some(record) = self.session_record(connection) {
            self.journal_record(Record::Session(record));
        }
        for number in holds {
            self.journal_hold(number);
        }
        for number in waits {
            self.journal_attempts(number);
        }
        Ok(before)
    }

    /// Turns a session into an ordinary one again: nothing of it is left to a successor.
    pub(in crate::core) fn drop_grace(&mut self, connection: ConnectionId) {
        let Some(grace) = self.sessions.take_grace(connection) else { return };
        let Some(session) = self.sessions.get(&connection) else { return };
        let session_id = session.id;
        let numbers = &session.hold_numbers() | &session.wait_numbers();
        numbers.into_iter().for_each(|number| self.journal_gone(number));
        self.journal_record(Record::End { session: session_id });
        self.wake_all(grace.askers);
    }

    /// Ends the grace of a session that nobody will resume, or whose grace cannot be recorded. If the connection has
    /// closed meanwhile, the session ends as of that instant.
    pub(in crate::core) fn end_grace(&mut self, connection: ConnectionId) {
        match self.sessions.get(&connection).and_then(|session| session.away_since()) {
            Some(gone) => self.end_closed(connection, gone),
            None => self.drop_grace(connection),
        }
    }

    /// Handles QUIT: the session ends with its connection.
    pub fn on_quit(&mut self, connection: ConnectionId) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.quit = true;
        }
        self.drop_grace(connection);
    }

    /// Handles the end of a connection. Returns whether its session continues without one.
    pub(in crate::core) fn detach(&mut self, connection: ConnectionId) -> bool {
        let now = self.now;
        let Some(askers) = self.sessions.detach(connection, now) else { return false };
        let Some(session) = self.sessions.get(&connection) else { return false };
        let session_id = session.id;
        let waits = session.wait_numbers();
        let multi: Vec<_> = session.multi.keys().copied().collect();
        self.forget_stopped(connection);
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

    /// Ends a session that nobody resumed in time.
    pub(in crate::core) fn lapse(&mut self, connection: ConnectionId) {
        let Some(session) = self.sessions.get(&connection) else { return };
        let Some(grace) = &session.grace else { return };
        if grace.unverified > 0 && !self.settings.lock_delay.is_zero() {
            // Only a hold that Redis has confirmed can be delayed.
            return self.sessions.lapse_at(connection, self.now + CONFIRMATION_INTERVAL);
        }
        let (session, holds, grace_ms) = (session.id, session.holds.len(), millis(grace.time));
        let gone = grace.away.unwrap_or(self.now);
        self.effects.log(self.now, LogLine::SessionLapsed { session, holds, grace_ms });
        self.effects.report(Report::Resume("lapsed"));
        let until = self.delayed_until(gone);
        self.end_session(connection, until);
    }

    pub(in crate::core) fn resume(&mut self, reply_to: ReplyTo, name: &[u8], secret: Vec<u8>) {
        let Some(session) = SessionId::parse(name) else {
            return self.refuse_resume(reply_to, "gone", gone());
        };
        let until = self.now + self.settings.response_timeout;
        self.ask_for(Resuming { reply_to, session, secret, until });
    }

    fn ask_for(&mut self, asked: Resuming) {
        let reply_to = asked.reply_to;
        match self.verdict(&asked) {
            ResumeDecision::Ready(target) => {
                self.take_over(reply_to.connection, target, &asked.secret);
                self.effects.report(Report::Resume("resumed"));
                self.answer_with(reply_to, Reply::Resumed);
                // To the worker, RESUME ends any jeopardy that it knows about.
                self.tell_every_jeopardy(reply_to.connection);
            }
            ResumeDecision::No(outcome, sentence) => {
                self.refuse_resume(reply_to, outcome, sentence);
            }
            ResumeDecision::NotYet(target) => self.sessions.add_asker(target, asked),
        }
    }

    fn refuse_resume(&mut self, reply_to: ReplyTo, outcome: &'static str, sentence: Frame) {
        self.effects.report(Report::Resume(outcome));
        self.answer(reply_to, sentence);
    }

    fn verdict(&self, asked: &Resuming) -> ResumeDecision {
        let Some((target, session)) = self
            .sessions
            .connection_of(asked.session)
            .and_then(|target| Some((target, self.sessions.get(&target)?)))
        else {
            return ResumeDecision::No("gone", gone());
        };
        if session.right_to_resume(&asked.secret).is_none() {
            return ResumeDecision::No("refused", wrong_secret());
        }
        let Some(asker) = self.sessions.get(&asked.reply_to.connection) else {
            return ResumeDecision::No("refused", gone());
        };
        if asker.peer.uid != session.peer.uid {
            let sentence = format!("DENIED session {} is another user's", asked.session);
            return ResumeDecision::No("refused", Frame::Error(sentence));
        }
        let Some(grace) = session.grace.as_ref().filter(|_| target != asked.reply_to.connection)
        else {
            return ResumeDecision::No("alive", alive(asked.session));
        };
        let busy = !asker.holds.is_empty() || !asker.waits.is_empty() || !asker.multi.is_empty();
        if busy || asker.grace.is_some() {
            let sentence =
                "SESSION this connection has a session of its own: RESUME on a fresh connection";
            return ResumeDecision::No("refused", Frame::Error(sentence.to_owned()));
        }
        // Commands of the old connection end first, so that none of them changes what the new one receives.
        let updating = |number: &Number| {
            self.leases.get(*number).is_some_and(|hold| {
                let sent = |op| self.ops.contains(op) || self.red.contains(op);
                // An EXTEND may wait until Redis has the hold.
                hold.extend.is_some() || hold.update.is_some_and(sent)
            })
        };
        let settled = grace.unverified == 0
            && session.multi.is_empty()
            && !session.waits_for_journal(self.journal.done())
            && !session.holds.values().any(updating);
        if grace.away.is_some() && settled {
            ResumeDecision::Ready(target)
        } else {
            ResumeDecision::NotYet(target)
        }
    }

    /// Retries the RESUMEs that wait for a session, which may be ready now.
    pub(in crate::core) fn wake_askers(&mut self, connection: ConnectionId) {
        let askers = self.sessions.take_waiting_resumes(connection);
        self.wake_all(askers);
    }

    pub(super) fn wake_all(&mut self, askers: Vec<ConnectionId>) {
        for asker in askers {
            if let Some(resuming) = self.sessions.take_resuming(asker) {
                self.ask_for(resuming);
            }
        }
    }

    /// Handles the end of a RESUME's wait.
    pub(in crate::core) fn on_resume_due(&mut self, asker: ConnectionId) {
        let Some(Resuming { reply_to, session, .. }) = self.sessions.cancel_resuming(asker) else {
            return;
        };
        let Some(target) = self.sessions.connection_of(session) else {
            return self.refuse_resume(reply_to, "gone", gone());
        };
        let connected =
            self.sessions.get(&target).is_some_and(|session| session.away_since().is_none());
        if connected {
            return self.refuse_resume(reply_to, "alive", alive(session));
        }
        let sentence = format!(
            "UNAVAILABLE session {session}: Redis or the journal has not answered yet, so it is not known which of its holds exist; try again"
        );
        self.refuse_resume(reply_to, "unconfirmed", Frame::Error(sentence));
    }

    /// Moves the whole state of a session without a connection to the requesting one.
    fn take_over(&mut self, asker: ConnectionId, target: ConnectionId, given: &[u8]) {
        if let Some(session) = self.sessions.get_mut(&target) {
            session.take_reports().into_iter().for_each(|report| self.effects.report(report));
        }
        // One listener per session: that of the old one stays.
        if self.sessions.get(&target).is_some_and(|old| old.events_waiter.is_some()) {
            self.wake_events(asker);
        }
        let Some(others) = self.sessions.take_over(asker, target, given) else { return };
        let Some(session) = self.sessions.get_mut(&asker) else { return };
        session.changed = self.now;
        for number in session.holds.values() {
            self.leases.move_to(*number, asker);
        }
        if let Some(record) = self.session_record(asker) {
            self.journal_record(Record::Session(record));
        }
        self.wake_all(others);
    }

    /// Drops the previous secret if every earlier command has been answered: the worker then has the new one.
    pub(in crate::core) fn forget_previous_secret(&mut self, connection: ConnectionId) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        if session.drop_previous_secret()
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
            ("secret", Frame::bytes(session.secret.to_string())),
            ("grace_ms", Frame::or_null(grace_ms)),
            ("holds", self.holds_frame(connection)),
        ])
    }
}

fn gone() -> Frame {
    Frame::Error(
        "GONE no such session: it has ended, or was not resumed within its grace; its locks are free at the latest \
         when their leases expire"
            .to_owned(),
    )
}

fn alive(session: SessionId) -> Frame {
    Frame::Error(format!("SESSION session {session} still has an open connection: close it first"))
}
