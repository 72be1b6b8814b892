//! Connections of a session: the first one, and those that resume it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::clock::boot;
use crate::connection::{Connection, LEAST_LIMIT, Listener, REPLY_LIMIT};
use crate::detached::Cancel;
use crate::error::{Error, Failure, Result};
use crate::grant::Grant;
use crate::resp::{Command, Value};
use crate::session::{CLOSE_LIMIT, RETRY_PAUSE, Session, valid_until};

impl Session {
    /// Connects, or resumes the session, and retries until the instant `end`. Fails once the session was closed.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        end: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        loop {
            if self.state().closing {
                return Err(Error::Closed);
            }
            if self.connected().is_some() {
                return Ok(());
            }
            let error = match self.open(end, cancel).await {
                Ok(Ok(())) => continue,
                Ok(Err(Failure::Reply(message))) => match crate::error::code(&message) {
                    "GONE" => {
                        self.end("the agent has ended the session");
                        continue;
                    }
                    "SESSION" | "UNAVAILABLE" | "DRAINING" => Error::from_reply(message),
                    _ => return Err(Error::from_reply(message)),
                },
                Ok(Err(Failure::Disconnected)) => self.absent("it closed the connection"),
                Err(error) => self.absent(&error.to_string()),
            };
            let cancelled = cancel.is_some_and(Cancel::is_requested);
            if cancelled || boot() >= end {
                return Err(error);
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    fn absent(&self, cause: &str) -> Error {
        Error::Unavailable(format!("no agent at {}: {cause}", self.path.display()))
    }

    /// Tries once, until the request to cancel or the instant `end`, but for at least [`LEAST_LIMIT`].
    async fn open(
        self: &Arc<Self>,
        end: Duration,
        cancel: Option<&Cancel>,
    ) -> io::Result<Result<(), Failure>> {
        let listener = SessionListener(Arc::downgrade(self));
        let (connection, mut hello) = Connection::open(&self.path, listener).await?;
        let sent = boot();
        let limit = end.saturating_sub(sent).clamp(LEAST_LIMIT, REPLY_LIMIT);
        let opening = timeout(limit, self.take_session(&connection));
        let opened = match cancel {
            Some(cancel) => cancel.unless_requested(opening).await,
            None => Some(opening.await),
        };
        let holds = match opened {
            Some(Ok(Ok(holds))) => holds,
            failed => {
                connection.close();
                return match failed {
                    Some(Err(_)) => {
                        Err(io::Error::new(io::ErrorKind::TimedOut, "no reply in time"))
                    }
                    Some(Ok(Err(failure @ Failure::Reply(_)))) => Ok(Err(failure)),
                    // An agent that refuses the connection gives its reason in place of the first reply.
                    _ => match hello.try_recv() {
                        Ok(Value::Error(reason)) => Err(io::Error::other(reason)),
                        _ => Ok(Err(Failure::Disconnected)),
                    },
                };
            }
        };
        let closing = {
            let mut state = self.state();
            if state.closing {
                state.id = None;
            } else {
                state.connection = Some(connection.clone());
                (state.proven, state.uncertain) = (sent, false);
            }
            state.closing
        };
        if closing {
            let _ = timeout(CLOSE_LIMIT, connection.send(&Command::new("QUIT"))).await;
            connection.close();
            return Ok(Err(Failure::Disconnected));
        }
        self.take_over(holds.list());
        if connection.is_closed() {
            self.on_close(&connection);
        }
        Ok(Ok(()))
    }

    /// Requests a session for a connection, or takes over the existing one. Returns the session's holds, which are read
    /// once the agent reports losses: one before PUSH on is never reported.
    async fn take_session(&self, connection: &Arc<Connection>) -> Result<Value, Failure> {
        let (id, secret) = {
            let mut state = self.state();
            state.unclaimed.clear();
            (state.id.clone(), state.secret.clone())
        };
        if let Some(id) = id {
            let resume = Command::new("RESUME").word(id).word(secret);
            let ticket = connection.call(&resume).await?;
            // The next command voids the old secret.
            self.remember(&ticket);
            // After it, the agent reports the holds that are at risk.
            self.warn(false);
            let pushes = connection.call(&session()).await;
            let holds = match pushes {
                Ok(_) => connection.call(&Command::new("HOLDS")).await,
                failed => failed,
            };
            return holds.inspect_err(|_| self.warn(true));
        }
        let mut grace = self.grace;
        let ticket = if grace.as_millis() == 0 {
            connection.call(&session()).await?
        } else {
            match connection.call(&self.graced()).await {
                // An agent without a journal grants locks but no grace.
                Err(failure) if failure.code() == "UNAVAILABLE" => {
                    grace = Duration::ZERO;
                    connection.call(&session()).await?
                }
                ticket => ticket?,
            }
        };
        self.remember(&ticket);
        self.state().given = grace;
        Ok(Value::Null)
    }

    /// Returns the request for a session with grace.
    pub(crate) fn graced(&self) -> Command {
        session().word("GRACE").number(self.grace.as_millis())
    }

    fn remember(&self, ticket: &Value) {
        let mut state = self.state();
        state.id = Some(ticket.get("id").text());
        state.secret = ticket.get("secret").text();
    }

    /// Compares the grants with the agent's list of this session's holds.
    fn take_over(self: &Arc<Self>, rows: &[Value]) {
        let mut listed: HashMap<String, &Value> =
            rows.iter().map(|row| (row.get("holder").text(), row)).collect();
        for grant in self.grants() {
            let Some(row) = listed.remove(&grant.holder) else {
                grant.end_unlisted();
                continue;
            };
            grant.state().count = row.get("holds").integer().unwrap_or(0);
            grant.resume(valid_until(row));
            self.settle_later(grant);
        }
        for row in listed.into_values() {
            // Granted by a LOCK whose reply was lost. If that call continues, it finds it here; otherwise it is released.
            self.settle_later(self.granted(row, false));
        }
        self.arm();
    }

    fn warn(&self, at_risk: bool) {
        for grant in self.grants() {
            grant.warn(at_risk);
        }
    }

    /// Releases a surplus once the current command, which may want it, has ended.
    fn settle_later(self: &Arc<Self>, grant: Arc<Grant>) {
        if !grant.state().has_surplus() {
            return;
        }
        let using = self.enter();
        tokio::spawn(async move {
            let session = using.session();
            let _turn = session.turn.lock().await;
            let _ = session.settle(&grant).await; // Without a connection, resuming settles it.
        });
    }

    fn on_push(self: &Arc<Self>, push: &[Value]) {
        let [event, name, kind, ..] = push else { return };
        let key = (name.bytes().to_vec(), kind.bytes().to_vec());
        let grant = {
            let mut state = self.state();
            let grant = state.grants.get(&key).cloned();
            if grant.as_ref().is_none_or(|grant| grant.state().is_lost()) {
                state.unclaimed.insert(key, push.to_vec());
            }
            grant
        };
        if let Some(grant) = grant {
            grant.apply(push);
        }
        // The deadline may have changed, even to an earlier one.
        if matches!(event.bytes(), b"lock-jeopardy" | b"lock-safe") {
            let session = self.clone();
            tokio::spawn(async move { session.tend().await });
        }
    }

    fn on_close(self: &Arc<Self>, connection: &Arc<Connection>) {
        let mut state = self.state();
        if !state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            return;
        }
        state.connection = None;
        state.limit(); // Before another connection can be made, to whose grants this limit does not apply.
        if !state.may_hold() && state.users == 0 {
            state.id = None;
        }
        drop(state);
        self.recover();
    }

    /// Resumes the session in the background for as long as the agent may have holds of it. Without a runtime nothing can
    /// be resumed, and deadlines end the holds.
    fn recover(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let needed = {
            let state = self.state();
            state.may_hold() && !state.closing
        };
        if !needed {
            return;
        }
        let using = self.enter();
        runtime.spawn(async move {
            let session = using.session();
            let _turn = session.turn.lock().await;
            let Some(end) = session.resumable() else { return };
            if let Err(error) = session.connect(end, None).await
                && !session.state().closing
            {
                session.end(&error.to_string());
            }
        });
    }

    /// Returns the instant until which a session without a connection may have holds. A call may have failed since the
    /// connection ended, and left the session uncertain.
    fn resumable(&self) -> Option<Duration> {
        let state = self.state();
        if state.connection.is_some() {
            return None;
        }
        let uncertain = state.uncertain.then(|| boot() + state.given);
        state.grants.values().map(|grant| grant.state().ends()).chain(uncertain).max()
    }

    /// Ends a session without a connection at the agent, on a new one.
    pub(crate) async fn end_at_agent(self: &Arc<Self>) {
        let _turn = self.turn.lock().await; // A connection that was being made has ended the session.
        if self.state().id.is_some() {
            let _ = self.open(boot(), None).await; // Without an agent, it ends after its grace.
        }
    }

    /// Gives up a session that cannot be resumed.
    fn end(&self, reason: &str) {
        {
            let mut state = self.state();
            (state.id, state.uncertain) = (None, false);
        }
        for grant in self.grants() {
            grant.lose(reason);
        }
    }

    /// Closes a connection on which a command went unanswered. Resuming settles its effect.
    pub(crate) fn doubt(self: &Arc<Self>, connection: &Arc<Connection>) {
        self.state().uncertain = true;
        connection.close();
        self.on_close(connection);
        self.state().limit(); // A grant may have become known only after the end of its connection.
        if self.connected().is_none() {
            self.recover();
        }
    }
}

/// Returns the request for a session. With PROCESS its grace ends with this process, since nothing else knows its secret.
fn session() -> Command {
    Command::new("SESSION").word("PUSH").word("on").word("PROCESS").word("on")
}

struct SessionListener(Weak<Session>);

impl Listener for SessionListener {
    fn on_push(&self, push: &[Value]) {
        if let Some(session) = self.0.upgrade() {
            session.on_push(push);
        }
    }

    fn on_close(&self, connection: &Arc<Connection>) {
        if let Some(session) = self.0.upgrade() {
            session.on_close(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;
    use crate::owner::Pool;

    #[tokio::test]
    async fn a_grant_that_becomes_known_after_its_connection_is_limited_to_the_grace() {
        const GRACE: Duration = Duration::from_secs(60);
        let socket = std::env::temp_dir().join(format!("lockscope-{}.sock", std::process::id()));
        let _agent = UnixListener::bind(&socket).unwrap();
        let session = Session::new(socket.clone(), GRACE, Weak::<Pool>::new());
        let listener = SessionListener(Arc::downgrade(&session));
        let (ended, _) = Connection::open(&socket, listener).await.unwrap();
        std::fs::remove_file(&socket).unwrap();
        let key = (b"orders:42".to_vec(), b"lock".to_vec());
        let grant = Arc::new(Grant::new(key.clone(), "holder".to_owned(), None, true));
        grant.state().granted(1, true, boot() + 10 * GRACE);
        {
            let mut state = session.state();
            (state.proven, state.given) = (boot(), GRACE);
            state.grants.insert(key, grant.clone());
        }
        session.doubt(&ended);
        assert!(grant.state().ends() <= boot() + GRACE);
    }
}
