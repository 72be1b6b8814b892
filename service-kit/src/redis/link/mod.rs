//! A supervised connection for commands.

mod shared;
mod supervisor;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value, cmd};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::shared::Shared;
use self::supervisor::LinkRules;
use super::endpoint::Endpoint;
use super::error::{CallError, ServerError};
use super::handshake::Handshake;
use super::reply_limit::REPLY_LIMIT;
use super::server_info::ServerInfo;
use crate::shutdown::Shutdown;

/// Settings of a [`Link`].
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The name that CLIENT LIST shows; without spaces.
    pub name: String,
    /// The limit for connecting, TLS included.
    pub connect_timeout: Duration,
    /// The limit for each call. The connection is replaced when a call exceeds it.
    pub response_timeout: Duration,
    /// The silence after which the server is sent a PING. A dead connection is noticed within
    /// `heartbeat + response_timeout`.
    pub heartbeat: Duration,
    /// Scripts loaded on each connect, so that [`Link::script`] need not send them.
    pub load: Vec<&'static str>,
    /// The interval between checks whether the connection still reaches the same server with the same clock. A change
    /// is logged and reported as a new [`LinkStatus::Up`] of the same generation. `None` disables the checks.
    pub check: Option<Duration>,
    /// Accepts only a server that accepts writes. The link leaves a replica, or a server that becomes one, and connects
    /// again, since the address may lead to another server by then. Always on if sentinels report the master.
    pub writable: bool,
    /// Rejects nodes of a cluster, which would serve some keys and refuse the others.
    pub alone: bool,
    /// Asks the server not to count reads as use of a key (Redis 7.2 and later), except in a cluster.
    pub no_touch: bool,
    /// The memory that one reply may need, in bytes. The connection is replaced when a reply exceeds it.
    pub reply_limit: usize,
}

impl LinkOptions {
    /// Returns settings that connect within 1 s, expect answers within 500 ms and send a PING each second; no scripts,
    /// no checks, any server, replies of at most 32 MiB.
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
            reply_limit: REPLY_LIMIT,
        }
    }
}

/// The status of a link, and the number of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// Grows by one with each connection; 0 before the first.
    pub generation: u64,
    /// Up or down. Sent again when a check finds that the server has changed.
    pub status: LinkStatus,
}

/// The two states of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkStatus {
    /// Connected, logged in, and the server answers.
    Up(Arc<ServerInfo>),
    /// Not connected. The link retries.
    Down {
        /// The latest reason why the connection ended or cannot be made.
        reason: String,
        /// The instant of the loss, by [`crate::clock::boot_micros`].
        since_micros: u64,
    },
}

/// A supervised connection for commands. Clones share it. It closes with the last clone, or with its stage of
/// shutdown.
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
    /// Starts to connect and reconnect, until `shutdown` or until the last clone is dropped. Returns at once;
    /// [`up`](Self::up) waits for the connection.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime. Calls are fastest from the same one.
    #[must_use]
    pub fn start(endpoint: impl Into<Endpoint>, options: LinkOptions, shutdown: &Shutdown) -> Self {
        let stopped = shutdown.child_token();
        let endpoint = endpoint.into();
        let writable = options.writable || endpoint.follows_master();
        let shared = Arc::new(Shared::new(options.response_timeout, writable));
        let task_name = format!("Redis link {}", options.name);
        let LinkOptions { heartbeat, check, alone, .. } = options;
        let rules = LinkRules { heartbeat, check, alone };
        let handshake = Handshake {
            name: options.name,
            no_touch: options.no_touch,
            load: options.load,
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
            reply_limit: options.reply_limit,
            batched: false,
        };
        let supervised =
            supervisor::run(endpoint, handshake, rules, Arc::clone(&shared), stopped.clone());
        shutdown.spawn(task_name, supervised);
        let _stop_with_last_handle = stopped.clone().drop_guard();
        Self { inner: Arc::new(Inner { shared, stopped, _stop_with_last_handle }) }
    }

    /// The state and its changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.inner.shared.state()
    }

    /// Waits until the link is up. `None` once it is stopped for good.
    ///
    /// A call that returns [`CallError::Lost`] has closed its connection before, so the connection that is up afterwards
    /// is a new one.
    pub async fn up(&self) -> Option<Arc<ServerInfo>> {
        let mut state = self.state();
        loop {
            if let LinkStatus::Up(info) = &state.borrow_and_update().status {
                return Some(Arc::clone(info));
            }
            self.inner.stopped.run_until_cancelled(state.changed()).await?.ok()?;
        }
    }

    /// Sends a command and waits for its answer. Never repeats it.
    ///
    /// # Errors
    ///
    /// [`CallError`], which says whether the command may have run. Dropping the future does not cancel the command.
    pub async fn call(&self, command: Cmd) -> Result<Value, CallError> {
        let shared = &self.inner.shared;
        let _turn = shared.turn().await?;
        let (generation, value) =
            shared.exchange(async |mut mux| mux.send_packed_command(&command).await).await?;
        let checked = checked(value);
        shared.leave_if_read_only(generation, checked.as_ref());
        Ok(checked?)
    }

    /// Waits for a reply to PING. The refusal by a server that cannot save is one too.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub async fn ping(&self) -> Result<(), CallError> {
        match self.call(cmd("PING")).await {
            Err(CallError::Refused(error)) if error.cannot_save() => Ok(()),
            reply => reply.map(drop),
        }
    }

    /// Sends all commands at once and waits for all answers, each with its own error. An atomic pipeline is sent as
    /// MULTI/EXEC: it runs without interruption, or not at all when Redis refuses to queue one of the commands.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call), for all of them together. An empty pipeline returns at once.
    pub async fn pipeline(
        &self,
        pipeline: Pipeline,
    ) -> Result<Vec<Result<Value, ServerError>>, CallError> {
        let commands = pipeline.len();
        if commands == 0 {
            return Ok(Vec::new());
        }
        let atomic = pipeline.is_transaction();
        // The replies to MULTI and to the queued commands are read too: they say which command was refused.
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
            shared.leave_if_read_only(generation, result.as_ref());
        }
        Ok(results)
    }

    /// Runs a script by its SHA-1 digest. A server that does not know the digest has run nothing; it is then sent the whole
    /// script, once. `asking` is for the node of a cluster that is importing the keys' slot, to which another node has
    /// redirected with `ASK`.
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
        asking: bool,
    ) -> Result<Value, CallError>
    where
        K: IntoIterator<Item: AsRef<[u8]>, IntoIter: ExactSizeIterator + Clone>,
        A: IntoIterator<Item: AsRef<[u8]>, IntoIter: ExactSizeIterator + Clone>,
    {
        let (keys, args) = (keys.into_iter(), args.into_iter());
        let command = eval("EVALSHA", sha, keys.clone(), args.clone());
        let send = async |command| match asking {
            // Boxed, as it is rare: callers with many pending scripts keep a future for each.
            true => Box::pin(self.asking(command)).await,
            false => self.call(command).await,
        };
        let answer = send(command).await;
        if !answer.as_ref().is_err_and(CallError::is_noscript) {
            return answer;
        }
        // Boxed for the same reason.
        Box::pin(send(eval("EVAL", source, keys, args))).await
    }

    /// Sends ASKING with the command: it is valid for the next command of its connection only.
    async fn asking(&self, command: Cmd) -> Result<Value, CallError> {
        let mut both = Pipeline::new();
        both.cmd("ASKING").add_command(command);
        match self.pipeline(both).await?.pop() {
            Some(answer) => Ok(answer?),
            None => Err(CallError::lost("no reply to two commands")),
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

/// Splits the replies to MULTI, the queued commands and EXEC.
fn of_transaction(mut values: Vec<Value>) -> Result<Vec<Result<Value, ServerError>>, CallError> {
    match values.pop() {
        Some(Value::Array(results)) => Ok(results.into_iter().map(checked).collect()),
        // EXEC only reports that a command was refused; the first error is its reason.
        Some(Value::ServerError(aborted)) => {
            let first = values.into_iter().find_map(|value| checked(value).err());
            Err(CallError::Refused(first.unwrap_or_else(|| ServerError::from(&aborted))))
        }
        _ => Err(CallError::lost("unexpected reply to EXEC")),
    }
}
