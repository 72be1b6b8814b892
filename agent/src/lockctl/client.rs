//! The connection to the agent.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, IntoConnectionInfo as _, ProtocolVersion, PushInfo,
    PushKind, RedisError, Value,
};
use redisson::millis;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::duration;
use crate::exit::Exit;
use crate::reply::{Validity, bytes, number, text};

/// The time for the agent to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for the agent to reply to a command that does not wait for a lock: longer than it waits for Redis or the disk.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// The time for the agent to send its reason for a rejected connection, and the longest reason in bytes.
const REJECTION_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_REJECTION: u64 = 500;
/// The capacity of the queue of unread pushes.
const PUSH_QUEUE: usize = 1024;
/// The longest session name in bytes, within the agent's limit.
const MAX_NAME: usize = 100;

/// Returns the default path of the agent's socket.
pub(crate) fn default_socket() -> PathBuf {
    let system = PathBuf::from("/run/lockscope/agent.sock");
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    match own.map(|folder| PathBuf::from(folder).join("lockscope/agent.sock")) {
        Some(own) if !system.exists() && own.exists() => own,
        _ => system,
    }
}

/// A push from the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Push {
    /// Renewals of a lock are failing; it stays valid for so long.
    Jeopardy(Vec<u8>, Validity),
    /// The lock was renewed after it had been at risk.
    Safe(Vec<u8>),
    /// The lock was lost, for the given reason.
    Lost(Vec<u8>, String),
    /// The lock was renewed; it is valid for so long.
    Valid(Vec<u8>, Validity),
    /// The connection was lost.
    Disconnected,
}

/// A failed call of the agent.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No agent listens.
    NoAgent(String),
    /// The permissions of the socket exclude this user.
    Forbidden(String),
    /// The connection was lost, or not accepted in time. Another agent may follow.
    Disconnected(String),
    /// An error reply: its code and its text.
    Refused(String, String),
}

impl Failure {
    /// Returns the exit status, given those for no agent and for bad usage, which are configurable.
    pub(crate) fn exit(&self, no_agent: u8, usage: u8) -> Exit {
        match self {
            Self::NoAgent(_) | Self::Disconnected(_) => Exit(no_agent),
            Self::Forbidden(_) => Exit::DENIED,
            Self::Refused(code, _) => match code.as_str() {
                "UNAVAILABLE" | "DRAINING" | "LIMIT" => Exit(no_agent),
                "SYNTAX" => Exit(usage),
                "DENIED" => Exit::DENIED,
                _ => Exit::REFUSED,
            },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAgent(text) | Self::Forbidden(text) | Self::Disconnected(text) => {
                f.write_str(text)
            }
            Self::Refused(code, text) => write!(f, "{text} ({code})"),
        }
    }
}

/// Connects once more and returns the reason if that connection is rejected too. A client that sends first may find the
/// connection closed and not read the agent's reason.
async fn rejection(socket: &Path) -> Option<Failure> {
    let path = socket.display();
    let mut stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream.take(MAX_REJECTION),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Some(Failure::Forbidden(format!(
                "this user may not use the agent's socket {path}: {error}; run lockctl as root, or as the socket's owner or \
                 a member of its group"
            )));
        }
        Err(_) => return None,
    };
    let mut reply = Vec::new();
    // The agent sends nothing to a client that it accepts.
    tokio::time::timeout(REJECTION_TIMEOUT, stream.read_to_end(&mut reply)).await.ok()?.ok()?;
    let text = String::from_utf8(reply).ok()?;
    let reason = text.strip_prefix("-LIMIT ")?.trim_end();
    Some(Failure::Disconnected(format!("the agent at {path} rejected the connection: {reason}")))
}

/// A session with the agent. Dropping it releases the locks of the session, unless it has grace.
#[derive(Debug)]
pub(crate) struct Agent {
    connection: MultiplexedConnection,
    /// The pushes; the last one is [`Push::Disconnected`].
    pub(crate) pushes: mpsc::Receiver<Push>,
}

impl Agent {
    /// Connects to the agent.
    ///
    /// # Errors
    /// Fails if no agent accepts the connection; the message names the socket.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, Failure> {
        let message =
            |error: &dyn fmt::Display| format!("no agent answers at {}: {error}", socket.display());
        let failed = |error: &RedisError| {
            let refused = error.is_connection_refusal();
            let temporary = error.is_timeout() || (error.is_connection_dropped() && !refused);
            if temporary {
                return Failure::Disconnected(message(error));
            }
            let advice = "start lockscope-agent, or name its socket with --socket";
            Failure::NoAgent(format!("{}; {advice}", message(error)))
        };
        let info = ConnectionAddr::Unix(socket.to_owned())
            .into_connection_info()
            .map_err(|error| failed(&error))?;
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = redis::Client::open(info.set_redis_settings(settings))
            .map_err(|error| failed(&error))?;
        let (sender, pushes) = mpsc::channel(PUSH_QUEUE);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // A LOCK may wait without a limit; the calls have their own limits.
            .set_response_timeout(None)
            .set_push_sender(move |info: PushInfo| match read_push(&info) {
                Some(push) => sender.try_send(push).map_err(drop),
                None => Ok(()),
            });
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => {
                return Err(rejection(socket).await.unwrap_or_else(|| failed(&error)));
            }
            // Between two agents the service manager queues connections.
            Err(_) => {
                return Err(Failure::Disconnected(message(&"the connection was not accepted")));
            }
        };
        Ok(Self { connection, pushes })
    }

    /// Names the session, for lists of holders and waiters. Only visible ASCII characters are used.
    pub(crate) async fn set_name(&mut self, name: &str) -> Result<(), Failure> {
        let name = name.chars().filter(char::is_ascii_graphic).take(MAX_NAME);
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("SETNAME").arg(name.collect::<String>());
        self.call(&cmd).await.map(drop)
    }

    /// Enables pushes of all events.
    ///
    /// # Errors
    /// Fails like [`Self::call`].
    pub(crate) async fn enable_pushes(
        &mut self,
        grace: Option<Duration>,
    ) -> Result<Value, Failure> {
        let mut session = redis::cmd("SESSION");
        session.arg("PUSH").arg("on").arg("DEADLINES").arg("on");
        if let Some(grace) = grace {
            session.arg("GRACE").arg(millis(grace));
        }
        self.call(&session).await
    }

    /// Sends a command and waits up to [`ANSWER_TIMEOUT`] for its reply.
    ///
    /// # Errors
    /// Returns the agent's error reply, or the loss of the connection. An agent that does not reply counts as lost.
    pub(crate) async fn call(&mut self, command: &Cmd) -> Result<Value, Failure> {
        self.call_within(command, Some(ANSWER_TIMEOUT)).await
    }

    /// Sends a command and waits for its reply, without a limit if there is none.
    ///
    /// # Errors
    /// Fails like [`Self::call`].
    pub(crate) async fn call_within(
        &mut self,
        command: &Cmd,
        limit: Option<Duration>,
    ) -> Result<Value, Failure> {
        let reply = self.connection.send_packed_command(command);
        let reply = match limit {
            Some(limit) => tokio::time::timeout(limit, reply).await.map_err(|_| {
                let limit = duration::format(limit);
                Failure::Disconnected(format!("the agent has not replied for {limit}"))
            })?,
            None => reply.await,
        };
        reply.and_then(Value::extract_error).map_err(|error| failure(&error))
    }
}

fn failure(error: &RedisError) -> Failure {
    match error.code() {
        Some(code) if !error.is_io_error() && !error.is_connection_dropped() => {
            Failure::Refused(code.to_owned(), error.detail().unwrap_or_default().to_owned())
        }
        _ => Failure::Disconnected(format!("lost the connection to the agent: {error}")),
    }
}

fn read_push(info: &PushInfo) -> Option<Push> {
    let PushKind::Other(kind) = &info.kind else {
        return (info.kind == PushKind::Disconnection).then_some(Push::Disconnected);
    };
    let name = bytes(info.data.first()?)?.to_vec();
    let last = info.data.get(2);
    let valid = || {
        let left = Duration::from_millis(number(last?)?.try_into().ok()?);
        Some(Validity::new(left, info.data.get(3).and_then(number)))
    };
    match kind.as_str() {
        "lock-jeopardy" => Some(Push::Jeopardy(name, valid()?)),
        "lock-safe" => Some(Push::Safe(name)),
        "lock-lost" => Some(Push::Lost(name, text(last?)?)),
        "lock-valid" => Some(Push::Valid(name, valid()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_agent_is_not_bad_usage() {
        let exit = |code: &str| Failure::Refused(code.to_owned(), String::new()).exit(69, 64);
        assert_eq!((exit("LIMIT"), exit("SYNTAX")), (Exit(69), Exit(64)));
    }
}
