//! One connection for commands, as its users see it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value, cmd};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::error::{CallError, ServerError};
use super::greeting::Greeting;
use super::server_info::ServerInfo;
use super::supervisor;
use super::target::Target;
use crate::clock;
use crate::shutdown::Shutdown;

/// Calls under way at a time; further ones wait for their turn. A pipeline is one.
const MAX_IN_FLIGHT: usize = 4096;

/// How a [`Link`] behaves.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// What CLIENT LIST shows; without spaces.
    pub name: String,
    /// The limit for reaching the server, TLS included.
    pub connect_timeout: Duration,
    /// The limit for each call. When one runs into it, the connection is replaced.
    pub response_timeout: Duration,
    /// After this long without any answer the server is asked for a sign of life, so a dead
    /// connection is noticed within `heartbeat + response_timeout`.
    pub heartbeat: Duration,
    /// Scripts for SCRIPT LOAD on each connect, so that [`Link::script`] need not send them.
    pub load: Vec<String>,
    /// Ask the server not to count our reads as use of a key (Redis 7.2 and later).
    pub no_touch: bool,
}

impl LinkOptions {
    /// Connecting within 1 s, answers within 500 ms, a sign of life each second, no scripts.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            heartbeat: Duration::from_secs(1),
            load: Vec::new(),
            no_touch: false,
        }
    }
}

/// Whether a link is up, and how often it has been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// Grows by one with each connection; 0 before the first.
    pub generation: u64,
    /// Up or down.
    pub status: LinkStatus,
}

/// The two states of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkStatus {
    /// Connected, logged in, and the server answers.
    Up(Arc<ServerInfo>),
    /// Not connected; it is being tried.
    Down {
        /// Why the connection ended or cannot be made, the newest reason.
        reason: String,
        /// Since when there is none, by [`clock::boot_micros`].
        since_micros: u64,
    },
}

/// One supervised connection for commands. Clones share it; it is closed with the last of them, or
/// with its stage of shutdown.
#[derive(Clone)]
pub struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    stopped: CancellationToken,
    _stop_with_last_handle: DropGuard,
}

impl Link {
    /// Starts connecting, and stays at it until `shutdown` or the last clone is dropped. Returns at
    /// once; [`up`](Self::up) waits for the connection.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime. Any flavour will do; calls are quickest from the same one.
    #[must_use]
    pub fn start(target: Target, options: LinkOptions, shutdown: &Shutdown) -> Self {
        let stopped = shutdown.child_token();
        let shared = Arc::new(Shared::new(options.response_timeout));
        let task_name = format!("Redis link {}", options.name);
        let heartbeat = options.heartbeat;
        let greeting = Greeting {
            name: options.name,
            no_touch: options.no_touch,
            load: options.load,
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
        };
        let supervised =
            supervisor::run(target, greeting, heartbeat, Arc::clone(&shared), stopped.clone());
        shutdown.spawn(task_name, supervised);
        let _stop_with_last_handle = stopped.clone().drop_guard();
        Self { inner: Arc::new(Inner { shared, stopped, _stop_with_last_handle }) }
    }

    /// The state, and its changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.inner.shared.state.subscribe()
    }

    /// Waits until the link is up. `None` once it is stopped for good.
    ///
    /// A call that was [`CallError::Lost`] has taken its connection down before it returns, so what
    /// is up after it is a fresh one.
    pub async fn up(&self) -> Option<Arc<ServerInfo>> {
        let mut state = self.state();
        loop {
            if let LinkStatus::Up(info) = &state.borrow_and_update().status {
                return Some(Arc::clone(info));
            }
            self.inner.stopped.run_until_cancelled(state.changed()).await?.ok()?;
        }
    }

    /// Sends one command and waits for its answer. Never repeats it.
    ///
    /// # Errors
    ///
    /// [`CallError`], which tells whether the command may have been executed. Dropping the future
    /// does not take a command back.
    pub async fn call(&self, command: Cmd) -> Result<Value, CallError> {
        let shared = &self.inner.shared;
        let _turn = shared.turn().await?;
        let value = shared.exchange(async |mux| mux.send_packed_command(&command).await).await?;
        Ok(checked(value)?)
    }

    /// Sends all commands at once and waits for all answers, each with its own error. An atomic
    /// pipeline goes as MULTI/EXEC: all of it runs with nothing in between, or, where Redis refuses
    /// one of the commands beforehand, nothing does and the whole call is refused.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call), for all of them together; an empty pipeline is answered at once.
    pub async fn pipeline(
        &self,
        pipeline: Pipeline,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        let commands = pipeline.len();
        if commands == 0 {
            return Ok(Vec::new());
        }
        let atomic = pipeline.is_transaction();
        // All replies are asked for, those of MULTI, the queueing and EXEC too: they say best
        // what was refused.
        let replies = if atomic { commands + 2 } else { commands };
        let shared = &self.inner.shared;
        let _turn = shared.turn().await?;
        let values = shared
            .exchange(async |mux| mux.send_packed_commands(&pipeline, 0, replies).await)
            .await?;
        if atomic { of_transaction(values) } else { Ok(values.into_iter().map(checked).collect()) }
    }

    /// Runs a script by its SHA-1 digest. Where the server does not know it, and so has run nothing,
    /// it is sent in full, once.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub async fn script<K, A>(
        &self,
        source: &str,
        sha: &str,
        keys: &[K],
        args: &[A],
    ) -> Result<Value, CallError>
    where
        K: AsRef<[u8]>,
        A: AsRef<[u8]>,
    {
        match self.call(eval("EVALSHA", sha, keys, args)).await {
            Err(error) if error.is_noscript() => self.call(eval("EVAL", source, keys, args)).await,
            answer => answer,
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("state", &*self.inner.shared.state.borrow())
            .finish_non_exhaustive()
    }
}

fn eval<K: AsRef<[u8]>, A: AsRef<[u8]>>(verb: &str, script: &str, keys: &[K], args: &[A]) -> Cmd {
    let mut command = cmd(verb);
    command.arg(script).arg(keys.len());
    for part in keys.iter().map(AsRef::as_ref).chain(args.iter().map(AsRef::as_ref)) {
        command.arg(part);
    }
    command
}

fn checked(value: Value) -> Result<Value, ServerError> {
    match value {
        Value::ServerError(error) => Err(ServerError::from(&error)),
        value => Ok(value),
    }
}

/// Takes apart the replies to MULTI, the queued commands and EXEC.
fn of_transaction(mut values: Vec<Value>) -> Result<Vec<Result<Value, ServerError>>, CallError> {
    match values.pop() {
        Some(Value::Array(results)) => Ok(results.into_iter().map(checked).collect()),
        // EXEC only says that something was wrong before; the first error says what.
        Some(Value::ServerError(aborted)) => {
            let first = values.into_iter().find_map(|value| checked(value).err());
            Err(CallError::Refused(first.unwrap_or_else(|| ServerError::from(&aborted))))
        }
        _ => Err(CallError::lost("EXEC was answered with no list of results")),
    }
}

/// What the handles and the supervisor share.
pub(super) struct Shared {
    current: RwLock<Option<Connection>>,
    state: watch::Sender<LinkState>,
    in_flight: Semaphore,
    response_timeout: Duration,
    started: Instant,
    /// Microseconds after `started`.
    last_answer: AtomicU64,
}

#[derive(Clone)]
pub(super) struct Connection {
    pub(super) generation: u64,
    pub(super) mux: MultiplexedConnection,
    pub(super) driver: AbortHandle,
}

impl Shared {
    fn new(response_timeout: Duration) -> Self {
        let status = LinkStatus::Down {
            reason: "not connected yet".to_owned(),
            since_micros: clock::boot_micros(),
        };
        Self {
            current: RwLock::new(None),
            state: watch::Sender::new(LinkState { generation: 0, status }),
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
            response_timeout,
            started: Instant::now(),
            last_answer: AtomicU64::new(0),
        }
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, CallError> {
        if let Ok(permit) = self.in_flight.try_acquire() {
            return Ok(permit);
        }
        match tokio::time::timeout(self.response_timeout, self.in_flight.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(CallError::unsent(format!("{MAX_IN_FLIGHT} calls are under way already"))),
        }
    }

    /// One exchange on the current connection. Whatever goes wrong with the connection ends it,
    /// before this returns.
    pub(super) async fn exchange<T>(
        &self,
        send: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, CallError> {
        let mut connection = self.connection()?;
        let generation = connection.generation;
        match tokio::time::timeout(self.response_timeout, send(&mut connection.mux)).await {
            Ok(Ok(answer)) => {
                self.note_answer();
                Ok(answer)
            }
            Ok(Err(error)) => Err(CallError::lost(self.fail(generation, &broken(&error)))),
            Err(_) => {
                let reason = format!("no answer within {:?}", self.response_timeout);
                Err(CallError::lost(self.fail(generation, &reason)))
            }
        }
    }

    fn connection(&self) -> Result<Connection, CallError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        match current {
            Some(connection) if !connection.driver.is_finished() => Ok(connection),
            Some(_) => Err(CallError::unsent("the connection is gone")),
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
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let generation = connection.generation;
        *current = Some(connection);
        self.note_answer();
        let status = LinkStatus::Up(Arc::new(info));
        self.state.send_replace(LinkState { generation, status });
    }

    /// Ends the connection of this generation, unless that has happened: closes it, which ends all
    /// calls on it, and says so in the state. Returns why it really ended, as far as is known.
    pub(super) fn fail(&self, generation: u64, reason: &str) -> String {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = current.take_if(|current| current.generation == generation) {
            connection.driver.abort();
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

    /// Says why there is no connection; since when stays as it was.
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

    /// The link is stopped for good.
    pub(super) fn stop(&self) {
        let generation = self.state.borrow().generation;
        self.fail(generation, "the link is stopped");
        self.set_down(generation, "the link is stopped");
    }

    /// When the server last answered anything.
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
        "the server closed the connection".to_owned()
    } else {
        format!("the connection broke: {error}")
    }
}
