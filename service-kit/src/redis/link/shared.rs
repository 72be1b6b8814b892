//! State shared by a link's handles and its supervisor: the current connection, and exchanges on it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::{LinkState, LinkStatus};
use crate::clock;
use crate::redis::error::{CallError, ServerError};
use crate::redis::reply_limit::Refusal;
use crate::redis::server_info::{Role, ServerInfo};

/// Calls in flight; further ones wait for their turn. A pipeline counts as one.
const MAX_IN_FLIGHT: usize = 4096;

/// The delay of a timer from which this process counts as stopped or starved.
const HELD_UP: Duration = Duration::from_millis(20);

/// The reason when a connection ended without one.
pub(super) const CLOSED: &str = "the server closed the connection";

/// The reason for leaving a server that accepts no writes.
pub(super) const READ_ONLY: &str = "the server has become a replica, which takes no writes";

pub(super) struct Shared {
    current: RwLock<Option<Connection>>,
    state: watch::Sender<LinkState>,
    in_flight: Semaphore,
    response_timeout: Duration,
    /// Rejects servers that take no writes.
    writable: bool,
    started: Instant,
    /// Microseconds after `started`.
    last_answer: AtomicU64,
}

/// The response timeout has passed.
struct Elapsed;

#[derive(Clone)]
pub(super) struct Connection {
    pub(super) generation: u64,
    pub(super) mux: MultiplexedConnection,
    pub(super) driver: AbortHandle,
    pub(super) refusal: Refusal,
}

impl Shared {
    pub(super) fn new(response_timeout: Duration, writable: bool) -> Self {
        let status = LinkStatus::Down {
            reason: "not connected yet".to_owned(),
            since_micros: clock::boot_micros(),
        };
        Self {
            current: RwLock::new(None),
            state: watch::Sender::new(LinkState { generation: 0, status }),
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
            response_timeout,
            writable,
            started: Instant::now(),
            last_answer: AtomicU64::new(0),
        }
    }

    pub(super) fn state(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }

    /// Waits until another call is allowed.
    pub(super) async fn turn(&self) -> Result<SemaphorePermit<'_>, CallError> {
        if let Ok(permit) = self.in_flight.try_acquire() {
            return Ok(permit);
        }
        match timeout(self.response_timeout, self.in_flight.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(CallError::unsent(format!("{MAX_IN_FLIGHT} calls are under way already"))),
        }
    }

    /// Makes one exchange on the current connection, and returns its generation with the answer. Any failure ends the
    /// connection before this returns.
    pub(super) async fn exchange<T>(
        &self,
        send: impl AsyncFnOnce(MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<(u64, T), CallError> {
        let Connection { generation, mux, .. } = self.connection()?;
        // Pinned here: an argument of another async function would be stored twice.
        match self.in_time(pin!(send(mux))).await {
            Ok(Ok(answer)) => {
                self.note_answer();
                Ok((generation, answer))
            }
            Ok(Err(error)) => Err(CallError::lost(self.fail(generation, &broken(&error)))),
            Err(Elapsed) => {
                let reason = format!("no reply within {:?}", self.response_timeout);
                Err(CallError::lost(self.fail(generation, &reason)))
            }
        }
    }

    /// Leaves a server that refused a write because it is a replica.
    pub(super) fn leave_if_read_only<T>(&self, generation: u64, answer: Result<T, &ServerError>) {
        if self.writable && answer.is_err_and(ServerError::is_read_only) {
            self.fail(generation, READ_ONLY);
        }
    }

    pub(super) fn refuses(&self, info: &ServerInfo) -> bool {
        self.writable && info.role == Some(Role::Replica)
    }

    /// Returns the answer if it arrives within the response timeout. When the timer itself was late, this process was held
    /// up and not the server: the answer may have arrived unread, so it gets the same time again.
    async fn in_time<T>(
        &self,
        mut answer: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, Elapsed> {
        let sent = Instant::now();
        if let Ok(answer) = timeout(self.response_timeout, answer.as_mut()).await {
            return Ok(answer);
        }
        if sent.elapsed() < self.response_timeout + HELD_UP {
            return Err(Elapsed);
        }
        timeout(self.response_timeout, answer).await.map_err(|_| Elapsed)
    }

    fn connection(&self) -> Result<Connection, CallError> {
        let current = self.current.read().clone();
        match current {
            Some(connection) if !connection.driver.is_finished() => Ok(connection),
            // The supervisor may not know yet. The state must change before the caller learns of it: a caller that
            // waits for the link to be up again must not be given this connection.
            Some(gone) => Err(CallError::unsent(self.fail(gone.generation, CLOSED))),
            None => match &self.state.borrow().status {
                LinkStatus::Down { reason, .. } => {
                    Err(CallError::unsent(format!("no connection: {reason}")))
                }
                LinkStatus::Up(_) => Err(CallError::unsent("no connection")),
            },
        }
    }

    /// Makes a new connection the current one.
    pub(super) fn set_up(&self, connection: Connection, info: ServerInfo) {
        let mut current = self.current.write();
        let generation = connection.generation;
        *current = Some(connection);
        self.note_answer();
        let status = LinkStatus::Up(Arc::new(info));
        self.state.send_replace(LinkState { generation, status });
    }

    /// Reports that the server behind the connection of this generation has changed.
    pub(super) fn report_changed(&self, generation: u64, info: ServerInfo) {
        self.state.send_if_modified(|state| {
            let current =
                state.generation == generation && matches!(state.status, LinkStatus::Up(_));
            if current {
                state.status = LinkStatus::Up(Arc::new(info));
            }
            current
        });
    }

    /// Closes the connection of this generation, unless it is closed already. That ends all calls on it and changes the
    /// state. Returns the reason for which it really ended, as far as known.
    pub(super) fn fail(&self, generation: u64, reason: &str) -> String {
        let mut current = self.current.write();
        if let Some(connection) = current.take_if(|current| current.generation == generation) {
            connection.driver.abort();
            let reason = connection.refusal.reason().unwrap_or(reason);
            self.set_down(generation, reason);
            return reason.to_owned();
        }
        match &*self.state.borrow() {
            LinkState { generation: of, status: LinkStatus::Down { reason, .. } }
                if *of == generation =>
            {
                reason.clone()
            }
            _ => reason.to_owned(),
        }
    }

    /// Stores the reason why there is no connection. The time of its loss is kept.
    pub(super) fn set_down(&self, generation: u64, reason: &str) {
        self.state.send_if_modified(|state| {
            let since_micros = match &state.status {
                LinkStatus::Down { reason: known, .. } if known == reason => return false,
                LinkStatus::Down { since_micros, .. } => *since_micros,
                LinkStatus::Up(_) => clock::boot_micros(),
            };
            let status = LinkStatus::Down { reason: reason.to_owned(), since_micros };
            *state = LinkState { generation, status };
            true
        });
    }

    /// Stops the link for good.
    pub(super) fn stop(&self) {
        let generation = self.state.borrow().generation;
        self.fail(generation, "the link is stopped");
        self.set_down(generation, "the link is stopped");
    }

    /// The instant of the server's latest answer.
    pub(super) fn last_answer(&self) -> Instant {
        self.started + Duration::from_micros(self.last_answer.load(Ordering::Relaxed))
    }

    fn note_answer(&self) {
        let micros = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last_answer.store(micros, Ordering::Relaxed);
    }
}

fn broken(error: &redis::RedisError) -> String {
    if error.is_connection_dropped() {
        CLOSED.to_owned()
    } else {
        format!("the connection broke: {error}")
    }
}

#[cfg(test)]
mod tests {
    use redis::{AsyncConnectionConfig, RedisConnectionInfo};
    use tokio::sync::oneshot;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);

    /// Starts to wait for an answer, advances the time by `jump`, and only then answers.
    async fn answered_after(jump: Duration) -> Result<(), Elapsed> {
        let shared = Arc::new(Shared::new(LIMIT, false));
        let (answer, answered) = oneshot::channel();
        let waiting = tokio::spawn(async move { shared.in_time(pin!(answered)).await });
        tokio::task::yield_now().await;
        tokio::time::advance(jump).await;
        tokio::task::yield_now().await;
        let in_time = answer.send(()).is_ok();
        let waited = waiting.await.unwrap();
        assert_eq!(in_time, waited.is_ok());
        waited.map(drop)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_of_this_process_is_not_an_outage() {
        assert!(answered_after(LIMIT + HELD_UP / 2).await.is_err());
        assert!(answered_after(LIMIT + HELD_UP).await.is_ok());
        assert!(answered_after(LIMIT * 100).await.is_ok());
    }

    #[tokio::test]
    async fn a_lost_connection_is_down_before_its_caller_learns_of_it() {
        let shared = Shared::new(LIMIT, false);
        let (stream, _server) = tokio::io::duplex(64);
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new();
        let (mux, _driver) =
            MultiplexedConnection::new_with_config(&info, stream, config).await.unwrap();
        let driver = tokio::spawn(async {});
        let connection = Connection {
            generation: 1,
            mux,
            driver: driver.abort_handle(),
            refusal: Refusal::default(),
        };
        driver.await.unwrap();
        shared.set_up(connection, ServerInfo::default());
        assert!(matches!(shared.connection(), Err(CallError::Unsent { .. })));
        let status = shared.state().borrow().status.clone();
        assert!(matches!(status, LinkStatus::Down { reason, .. } if reason == CLOSED));
    }
}
