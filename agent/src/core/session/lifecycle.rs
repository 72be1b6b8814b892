//! The start and the end of sessions.

use std::convert::Infallible;
use std::time::Duration;

use redisson::Moment;
use tokio::sync::oneshot;

use crate::core::lock::waiter::Left;
use crate::core::{Core, Report};
use crate::journal::Record;
use crate::protocol::command::Command;
use crate::protocol::resp::Outgoing;
use crate::types::{ConnectionId, End, Peer, Secret};

/// The number of holds of an ended session that are released at once. As many follow after each interval.
const RELEASES_AT_ONCE: usize = 500;
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);

impl Core {
    /// Handles a new connection.
    pub fn on_open(&mut self, now: Moment, connection: ConnectionId, peer: Peer, secret: Secret) {
        self.advance_clock(now);
        self.sessions.open(connection, peer, secret, self.now);
        self.effects.report(Report::SessionOpened);
    }

    /// Handles CLIENT SETNAME.
    pub fn on_named(&mut self, connection: ConnectionId, name: Vec<u8>) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            (session.client_name, session.changed) = (Some(name), self.now);
        }
    }

    /// Sets whether a worker uses RESP3. Pushes cannot be sent without it.
    pub fn on_protocol(&mut self, connection: ConnectionId, resp3: bool) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.resp3 = resp3;
        }
    }

    /// Handles a command.
    pub fn on_command(&mut self, now: Moment, connection: ConnectionId, command: Command) {
        self.advance_clock(now);
        self.enqueue(connection, command);
        self.run_ready();
    }

    /// Handles the reply to a command that the connection has answered itself.
    pub fn on_answered(&mut self, now: Moment, connection: ConnectionId, reply: Outgoing) {
        self.advance_clock(now);
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.accept_answered(reply, self.now);
            self.flush(connection);
        }
        self.run_ready();
    }

    /// Handles the start or the end of the watch over a session's process.
    pub fn on_watched(
        &mut self,
        connection: ConnectionId,
        watch: Option<oneshot::Sender<Infallible>>,
    ) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.watch = watch;
        }
    }

    /// Handles the death of a watched process: nobody will resume its session.
    pub fn on_died(&mut self, now: Moment, connection: ConnectionId) {
        self.advance_clock(now);
        self.end_grace(connection);
        self.run_ready();
    }

    /// Handles the end of a connection: its waits end and its holds are released, unless its session has grace. Without
    /// a QUIT the worker counts as dead, and its locks are delayed.
    pub fn on_close(&mut self, now: Moment, connection: ConnectionId) {
        self.advance_clock(now);
        if !self.detach(connection) {
            self.end_closed(connection, self.now);
        }
        self.run_ready();
    }

    /// Ends a session without grace, whose connection closed at that instant.
    pub(in crate::core) fn end_closed(&mut self, connection: ConnectionId, gone: Moment) {
        let quit = self.sessions.get(&connection).is_some_and(|session| session.quit);
        let until = if quit { self.now } else { self.delayed_until(gone) };
        self.end_session(connection, until);
    }

    /// Ends a session with its holds and waits. Nobody else acquires its locks before `until`.
    pub(in crate::core) fn end_session(&mut self, connection: ConnectionId, until: Moment) {
        self.forget_stopped(connection);
        let Some((mut session, grace)) = self.sessions.remove(connection) else { return };
        session.take_reports().into_iter().for_each(|report| self.effects.report(report));
        if let Some(grace) = grace {
            self.journal_record(Record::End { session: session.id });
            self.wake_all(grace.askers);
        }
        self.end_events(&session);
        for number in session.wait_numbers() {
            self.leave(number, Left::Cancelled);
        }
        for (index, number) in session.hold_numbers().into_iter().enumerate() {
            // Otherwise other sessions would wait until tens of thousands of releases are done.
            let turn = u32::try_from(index / RELEASES_AT_ONCE).unwrap_or(u32::MAX);
            let until = until.max(self.now + RELEASE_INTERVAL * turn);
            if until > self.now {
                self.delay(number, &session, until);
            } else {
                self.end_hold(number, End::Disconnected, None);
            }
        }
    }
}
