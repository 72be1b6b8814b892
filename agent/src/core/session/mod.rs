//! Sessions: one for each connection, or what outlives the connection during a grace period.
//!
//! Commands of one owner run one after another. Replies keep the order of the commands.

pub(in crate::core) mod event;
pub(in crate::core) mod grace;
mod graced;
mod lifecycle;
pub(in crate::core) mod losses;
pub(in crate::core) mod reply;
mod settle;
pub(in crate::core) mod state;
pub(in crate::core) mod table;

use std::time::Duration;

use redisson::{Kind, LockName, Moment};

use crate::core::ids::{Owner, ReplyTo};
use crate::core::lock::waiter::Left;
use crate::core::session::event::Event;
use crate::core::session::reply::Reply;
use crate::core::session::state::Session;
use crate::core::session::table::Work;
use crate::core::{Core, Effect, Report};
use crate::protocol::command::Command;
use crate::protocol::resp::{Frame, Outgoing};
use crate::types::{ConnectionId, SessionId};

impl Core {
    /// Returns the id of the session of a connection, as SESSION reports it.
    pub(in crate::core) fn session_name(&self, connection: ConnectionId) -> String {
        self.sessions.id_of(connection).to_string()
    }

    /// Returns the connection of the session with that id, if it exists and the secret is correct.
    fn connection_by_secret(&self, name: &[u8], secret: &[u8]) -> Option<ConnectionId> {
        let connection = self.sessions.connection_of(SessionId::parse(name)?)?;
        self.sessions.get(&connection)?.secret.matches(secret).then_some(connection)
    }

    /// Accepts a command, which begins at once unless its owner is busy.
    pub(in crate::core) fn enqueue(&mut self, connection: ConnectionId, command: Command) {
        self.forget_previous_secret(connection);
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        if let Some((seq, command)) = session.accept(command, self.now) {
            self.run(ReplyTo { connection, seq, member: None }, command);
        }
    }

    /// Continues the MLOCKs that can continue, and begins the commands whose owners have become free.
    pub(in crate::core) fn run_ready(&mut self) {
        while let Some(work) = self.sessions.next_work() {
            match work {
                Work::Step(owner) => self.go_on(owner),
                Work::Resumes(connection) => self.wake_askers(connection),
                Work::Command(reply_to, command) => self.run(reply_to, command),
            }
        }
    }

    fn run(&mut self, reply_to: ReplyTo, command: Command) {
        match command {
            Command::Lock(request) => self.lock(reply_to, request),
            Command::Unlock(request) => self.unlock(reply_to, &request),
            Command::LockAll(requests) => self.lock_all(reply_to, requests),
            Command::UnlockAll(requests) => self.unlock_all(reply_to, &requests),
            Command::Extend(request, lease) => self.extend(reply_to, &request, lease),
            Command::Show(name) => self.show(reply_to, name),
            Command::Holds => self.answer_with(reply_to, Reply::Holds),
            Command::HoldsOf { session, secret } => self.list_holds(reply_to, &session, &secret),
            Command::Locks(request) => self.list_locks(reply_to, &request),
            Command::Session { grace, push, deadlines, process: _ } => {
                self.introduce(reply_to, grace, push, deadlines);
            }
            Command::Resume { session, secret } => self.resume(reply_to, &session, secret),
            Command::Events { session, secret, wait } => {
                let until = self.now + wait;
                match self.connection_by_secret(&session, &secret) {
                    Some(connection) => self.events(reply_to, connection, until),
                    None => self.answer(reply_to, wrong_secret()),
                }
            }
            Command::Cancel { session, secret, owner } => {
                match self.connection_by_secret(&session, &secret) {
                    Some(connection) => self.cancel(reply_to, Owner { connection, owner }),
                    None => self.answer(reply_to, wrong_secret()),
                }
            }
            Command::Force { name, holder, report } => self.force(reply_to, name, holder, report),
            Command::Kick(session) => self.kick(reply_to, &session),
        }
    }

    /// Answers a command. Its owner's next one may begin.
    pub(in crate::core) fn answer(&mut self, reply_to: ReplyTo, reply: Frame) {
        self.answer_with(reply_to, Reply::Ready(Outgoing::Reply(reply)));
    }

    pub(in crate::core) fn answer_with(&mut self, reply_to: ReplyTo, reply: Reply) {
        let Some(session) = self.sessions.get(&reply_to.connection) else { return };
        let Some(pending) = session.pending(reply_to.seq) else { return };
        if let Some(index) = reply_to.member {
            return self.on_member_answered(reply_to.owner(pending.owner), index, reply);
        }
        let failed = matches!(reply, Reply::Ready(Outgoing::Reply(Frame::Error(_))));
        let (word, took) = (pending.word, self.now.since(pending.began));
        let journalled = session.grace.is_some() && reply.rests_on_journal();
        let report = Report::Command { word, failed, took };
        let after = if journalled {
            self.report_with_reply(reply_to, report);
            self.journal.delay_reply(reply_to.connection)
        } else {
            self.effects.report(report);
            0
        };
        self.sessions.set_reply(reply_to, reply, after);
        self.flush(reply_to.connection);
    }

    /// Reports a fact that is a success of a command. For a session with grace this happens only with the reply, which
    /// the journal may still turn into a refusal.
    pub(in crate::core) fn report_with_reply(&mut self, reply_to: ReplyTo, report: Report) {
        let session = self.sessions.get_mut(&reply_to.connection);
        let report = match session.filter(|session| session.grace.is_some()) {
            Some(session) => session.keep_report(reply_to.seq, report),
            None => Some(report),
        };
        if let Some(report) = report {
            self.effects.report(report);
        }
    }

    /// Sends the replies whose turn has come.
    pub(in crate::core) fn flush(&mut self, connection: ConnectionId) {
        while let Some(session) = self.sessions.get_mut(&connection) {
            let Some((reply, reports)) = session.take_reply(self.journal.done()) else { return };
            reports.into_iter().for_each(|report| self.effects.report(report));
            let reply = self.settle(connection, reply);
            self.effects.push(Effect::Deliver(connection, reply));
        }
    }

    fn introduce(
        &mut self,
        reply_to: ReplyTo,
        grace: Option<Duration>,
        push: Option<bool>,
        deadlines: Option<bool>,
    ) {
        let set = grace.map(|grace| self.set_grace(reply_to.connection, grace)).transpose();
        let before = match set {
            Ok(before) => before,
            Err(refusal) => return self.answer(reply_to, refusal),
        };
        let id = Frame::bytes(self.session_name(reply_to.connection));
        let Some(session) = self.sessions.get_mut(&reply_to.connection) else { return };
        let pushes_from_now = session.introduce(push, deadlines);
        let secret = Frame::bytes(session.secret.to_string());
        let reply = Frame::Map(vec![("id", id), ("secret", secret)]);
        match before {
            Some(before) => self.answer_with(reply_to, Reply::Graced { reply, before }),
            None => self.answer(reply_to, reply),
        }
        if pushes_from_now {
            self.tell_every_jeopardy(reply_to.connection);
        }
    }

    /// Sends a session an event about one of its holds.
    pub(in crate::core) fn notify(
        &mut self,
        owner: Owner,
        name: &LockName,
        kind: Kind,
        event: &Event,
    ) {
        let Some(session) = self.sessions.get_mut(&owner.connection) else { return };
        if let Event::Lost(end) = event {
            session.losses.remember(owner.owner, name.clone(), *end);
        }
        if matches!(event, Event::Valid(_)) && !session.deadlines {
            return;
        }
        let pushed = session.push && session.resp3;
        if pushed {
            let frames = event.frames(event.push_word(), name, kind);
            let push = match event {
                Event::Lost(_) => Outgoing::Loss(frames),
                Event::Jeopardy(_) | Event::Safe | Event::Valid(_) => Outgoing::Push(frames),
            };
            self.effects.push(Effect::Deliver(owner.connection, push));
        }
        let dropped = session.add_event(event.frames(event.word(), name, kind));
        // A session with pushes does not depend on EVENTS; a push that is dropped is counted when it is delivered.
        if dropped && !pushed {
            self.effects.report(Report::EventDropped);
        }
        self.wake_events(owner.connection);
    }

    fn list_holds(&mut self, reply_to: ReplyTo, name: &[u8], secret: &[u8]) {
        let reply = match self.connection_by_secret(name, secret) {
            Some(connection) if self.is_away(connection) => Frame::Error(
                "SESSION the connection of that session has ended: RESUME lists its holds"
                    .to_owned(),
            ),
            Some(connection) => self.holds_frame(connection),
            None => wrong_secret(),
        };
        self.answer(reply_to, reply);
    }

    fn is_away(&self, connection: ConnectionId) -> bool {
        self.sessions.get(&connection).is_some_and(|session| session.away_since().is_some())
    }

    fn events(&mut self, reply_to: ReplyTo, connection: ConnectionId, until: Moment) {
        // One listener per session: an older call is answered with the events so far.
        self.wake_events(connection);
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        if until <= self.now || session.has_events() {
            let events = session.take_events();
            return self.answer(reply_to, events);
        }
        self.sessions.add_listener(connection, reply_to, until);
    }

    /// Answers the EVENTS call that waits for this session's events, if there is one.
    pub(in crate::core) fn wake_events(&mut self, connection: ConnectionId) {
        let Some(reply_to) = self.sessions.take_listener(connection) else { return };
        // Events are not passed to a listener that has disconnected.
        let listens = |listener: &Session| listener.away_since().is_none();
        if self.sessions.get(&reply_to.connection).is_some_and(listens)
            && let Some(session) = self.sessions.get_mut(&connection)
        {
            let events = session.take_events();
            self.answer(reply_to, events);
        }
    }

    /// Answers the EVENTS call that waits for the events of a session that has just ended.
    pub(in crate::core) fn end_events(&mut self, ended: &Session) {
        if let Some((reply_to, _)) = ended.events_waiter {
            let gone = "GONE that session has ended: its holds are released";
            self.answer(reply_to, Frame::Error(gone.to_owned()));
        }
    }

    fn cancel(&mut self, reply_to: ReplyTo, owner: Owner) {
        let wait =
            self.sessions.get(&owner.connection).and_then(|s| s.waits.get(&owner.owner)).copied();
        let multi = self.cancel_multi(owner);
        if let Some(number) = wait {
            self.leave(number, Left::Cancelled);
        }
        self.answer(reply_to, Frame::Int(i64::from(wait.is_some() || multi)));
    }
}

pub(in crate::core) fn wrong_secret() -> Frame {
    Frame::Error(
        "SESSION unknown session or wrong secret: SESSION, sent on the session's own connection, returns both"
            .to_owned(),
    )
}
