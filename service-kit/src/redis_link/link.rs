//! One connection for commands, as its users see it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::aim::Aim;
use super::error::{CallError, ServerError};
use super::greeting::Greeting;
use super::server_info::ServerInfo;
use super::shared::Shared;
use super::supervisor::{self, Pace};
use crate::shutdown::Shutdown;

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
    /// How often to look whether a living connection still leads to the same server with the same
    /// clock. What has changed is logged and told as a new [`LinkStatus::Up`] of the same
    /// generation. `None`: never.
    pub check: Option<Duration>,
    /// Only a server that takes writes will do. A replica, or a server that becomes one, is left and
    /// connected to anew, since the address may lead to another server by now. So it is anyway where the master that
    /// sentinels name is followed.
    pub writable: bool,
    /// A part of a cluster will not do: it would serve some keys and refuse the others.
    pub alone: bool,
    /// Ask the server not to count our reads as use of a key (Redis 7.2 and later).
    pub no_touch: bool,
}

impl LinkOptions {
    /// Connecting within 1 s, answers within 500 ms, a sign of life each second, no scripts, no
    /// checks, any server.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            heartbeat: Duration::from_secs(1),
            load: Vec::new(),
            check: None,
            writable: false,
            alone: false,
            no_touch: false,
        }
    }
}

/// Whether a link is up, and how often it has been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// Grows by one with each connection; 0 before the first.
    pub generation: u64,
    /// Up or down. Set anew when a check finds the server changed.
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
        /// Since when there is none, by [`crate::clock::boot_micros`].
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
    pub fn start(aim: impl Into<Aim>, options: LinkOptions, shutdown: &Shutdown) -> Self {
        let stopped = shutdown.child_token();
        let aim = aim.into();
        let writable = options.writable || aim.follows();
        let shared = Arc::new(Shared::new(options.response_timeout, writable));
        let task_name = format!("Redis link {}", options.name);
        let pace = Pace { heartbeat: options.heartbeat, check: options.check };
        let alone = options.alone;
        let greeting = Greeting {
            name: options.name,
            no_touch: options.no_touch,
            load: options.load,
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
        };
        let supervised =
            supervisor::run(aim, greeting, (pace, alone), Arc::clone(&shared), stopped.clone());
        shutdown.spawn(task_name, supervised);
        let _stop_with_last_handle = stopped.clone().drop_guard();
        Self { inner: Arc::new(Inner { shared, stopped, _stop_with_last_handle }) }
    }

    /// The state, and its changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.inner.shared.state()
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
        let (generation, value) =
            shared.exchange(async |mut mux| mux.send_packed_command(&command).await).await?;
        let checked = checked(value);
        shared.heed(generation, checked.as_ref());
        Ok(checked?)
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
        let (generation, values) = shared
            .exchange(async |mut mux| mux.send_packed_commands(&pipeline, 0, replies).await)
            .await?;
        if atomic {
            return of_transaction(values);
        }
        let results: Vec<_> = values.into_iter().map(checked).collect();
        for result in &results {
            shared.heed(generation, result.as_ref());
        }
        Ok(results)
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
        keys: K,
        args: A,
    ) -> Result<Value, CallError>
    where
        K: IntoIterator<Item: AsRef<[u8]>, IntoIter: ExactSizeIterator + Clone>,
        A: IntoIterator<Item: AsRef<[u8]>, IntoIter: ExactSizeIterator + Clone>,
    {
        self.script_at(source, sha, keys, args, false).await
    }

    /// [`script`](Self::script), where `asking` at a node that is about to take over the keys' slot, as another node of a
    /// cluster said by `ASK`.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub async fn script_at<K, A>(
        &self,
        source: &str,
        sha: &str,
        keys: K,
        args: A,
        asking: bool,
    ) -> Result<Value, CallError>
    where
        K: IntoIterator<Item: AsRef<[u8]>, IntoIter: ExactSizeIterator + Clone>,
        A: IntoIterator<Item: AsRef<[u8]>, IntoIter: ExactSizeIterator + Clone>,
    {
        let (keys, args) = (keys.into_iter(), args.into_iter());
        let send = async |command| {
            if asking { self.asking(command).await } else { self.call(command).await }
        };
        match send(eval("EVALSHA", sha, keys.clone(), args.clone())).await {
            Err(error) if error.is_noscript() => send(eval("EVAL", source, keys, args)).await,
            answer => answer,
        }
    }

    /// ASKING is good for the very next command of a connection: the two must not be parted.
    async fn asking(&self, command: Cmd) -> Result<Value, CallError> {
        let mut both = Pipeline::new();
        both.cmd("ASKING").add_command(command);
        match self.pipeline(both).await?.pop() {
            Some(answer) => Ok(answer?),
            None => Err(CallError::lost("two commands were answered by nothing")),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("state", &*self.state().borrow()).finish_non_exhaustive()
    }
}

/// EVAL or EVALSHA of a script, or of its digest.
pub fn eval<K, A>(verb: &str, script: &str, keys: K, args: A) -> Cmd
where
    K: ExactSizeIterator<Item: AsRef<[u8]>> + Clone,
    A: ExactSizeIterator<Item: AsRef<[u8]>> + Clone,
{
    let bytes: usize = keys.clone().map(|key| key.as_ref().len()).sum::<usize>()
        + args.clone().map(|arg| arg.as_ref().len()).sum::<usize>();
    let count = keys.len();
    // The verb, the script and the number of keys, of at most 20 digits, come first.
    let mut command =
        Cmd::with_capacity(3 + count + args.len(), verb.len() + script.len() + 20 + bytes);
    command.arg(verb).arg(script).arg(count);
    for key in keys {
        command.arg(key.as_ref());
    }
    for arg in args {
        command.arg(arg.as_ref());
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
