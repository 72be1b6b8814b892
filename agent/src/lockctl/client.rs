//! `lockctl`'s session with the agent.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, IntoConnectionInfo as _, ProtocolVersion, PushInfo,
    PushKind, RedisError, Value,
};
use tokio::sync::mpsc;

use crate::exit::Exit;

/// How long an agent that listens may take to take a connection in.
const CONNECT: Duration = Duration::from_secs(5);
/// How many pushes may wait to be looked at. Whoever reads them does little else.
const PUSHES: usize = 1024;
/// What a session's name begins with, behind which the command's follows.
const NAME: &str = "lockctl:";
/// The longest name given, in bytes: the agent takes no longer one.
const MAX_NAME: usize = 100;

/// Where the agent's socket is when nobody says.
pub(crate) fn usual_socket() -> PathBuf {
    let system = PathBuf::from("/run/lockscope/agent.sock");
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    match own.map(|folder| PathBuf::from(folder).join("lockscope/agent.sock")) {
        Some(own) if !system.exists() && own.exists() => own,
        _ => system,
    }
}

/// What the agent tells unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Push {
    /// Renewals fail; so long the hold is still valid.
    Jeopardy(Vec<u8>, Duration),
    Safe(Vec<u8>),
    /// It has ended, not by us, for this reason.
    Lost(Vec<u8>, String),
    /// Renewed: so long it is valid.
    Valid(Vec<u8>, Duration),
    /// The connection has ended.
    Gone,
}

/// Why something was not to be had from the agent.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There is none.
    NoAgent(String),
    /// There was one when we came, and it has ended, or has not taken us in yet: another one may follow.
    Gone(String),
    /// It refuses: the code, and the sentence behind it.
    Refused(String, String),
}

impl Failure {
    /// The status to end with, where those for no agent and for bad usage may have been chosen.
    pub(crate) fn exit(&self, no_agent: u8, usage: u8) -> Exit {
        match self {
            Self::NoAgent(_) | Self::Gone(_) => Exit(no_agent),
            Self::Refused(code, _) => match code.as_str() {
                "UNAVAILABLE" | "DRAINING" => Exit(no_agent),
                "SYNTAX" | "LIMIT" => Exit(usage),
                "DENIED" => Exit::DENIED,
                _ => Exit::REFUSED,
            },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAgent(text) | Self::Gone(text) => f.write_str(text),
            Self::Refused(code, text) => write!(f, "{text} ({code})"),
        }
    }
}

/// A session. It ends when this is dropped, and the agent then releases what it held.
#[derive(Debug)]
pub(crate) struct Agent {
    connection: MultiplexedConnection,
    /// What comes unasked, [`Push::Gone`] last.
    pub(crate) pushes: mpsc::Receiver<Push>,
}

impl Agent {
    /// Connects, without a word about events.
    ///
    /// # Errors
    /// Where nobody listens, naming the socket.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, Failure> {
        let told =
            |error: &dyn fmt::Display| format!("no agent answers at {}: {error}", socket.display());
        let failed = |error: &RedisError| {
            let nobody = error.is_connection_refusal();
            let passes = error.is_timeout() || (error.is_connection_dropped() && !nobody);
            let failure = if passes { Failure::Gone } else { Failure::NoAgent };
            failure(told(error))
        };
        let info = ConnectionAddr::Unix(socket.to_owned())
            .into_connection_info()
            .map_err(|error| failed(&error))?;
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = redis::Client::open(info.set_redis_settings(settings))
            .map_err(|error| failed(&error))?;
        let (sender, pushes) = mpsc::channel(PUSHES);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            // A LOCK waits for as long as it takes.
            .set_response_timeout(None)
            .set_push_sender(move |info: PushInfo| match read_push(&info) {
                Some(push) => sender.try_send(push).map_err(drop),
                None => Ok(()),
            });
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = match tokio::time::timeout(CONNECT, connecting).await {
            Ok(connected) => connected.map_err(|error| failed(&error))?,
            // Between two agents the service manager keeps whoever connects.
            Err(_) => return Err(Failure::Gone(told(&"it does not take the connection in"))),
        };
        Ok(Self { connection, pushes })
    }

    /// Says who this is, so that those who list sessions can tell.
    pub(crate) async fn introduce(&mut self, command: &str) -> Result<(), Failure> {
        let known = |c: char| c.is_ascii_graphic();
        let name = NAME.chars().chain(command.chars().filter(|c| known(*c))).take(MAX_NAME);
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("SETNAME").arg(name.collect::<String>());
        self.call(&cmd).await.map(drop)
    }

    /// Runs a command.
    ///
    /// # Errors
    /// The agent's refusal, or that it has gone.
    pub(crate) async fn call(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let reply = self.connection.send_packed_command(command).await;
        reply.and_then(Value::extract_error).map_err(|error| failure(&error))
    }
}

fn failure(error: &RedisError) -> Failure {
    match error.code() {
        Some(code) if !error.is_io_error() && !error.is_connection_dropped() => {
            Failure::Refused(code.to_owned(), error.detail().unwrap_or_default().to_owned())
        }
        _ => Failure::Gone(format!("the agent has gone: {error}")),
    }
}

fn read_push(info: &PushInfo) -> Option<Push> {
    let PushKind::Other(kind) = &info.kind else {
        return (info.kind == PushKind::Disconnection).then_some(Push::Gone);
    };
    let name = bytes(info.data.first()?)?.to_vec();
    let last = info.data.get(2);
    let duration = || Some(Duration::from_millis(number(last?)?.try_into().ok()?));
    match kind.as_str() {
        "lock-jeopardy" => Some(Push::Jeopardy(name, duration()?)),
        "lock-safe" => Some(Push::Safe(name)),
        "lock-lost" => Some(Push::Lost(name, text(last?)?)),
        "lock-valid" => Some(Push::Valid(name, duration()?)),
        _ => None,
    }
}

/// The value behind `key` in a map.
pub(crate) fn field<'a>(map: &'a Value, key: &str) -> Option<&'a Value> {
    let Value::Map(pairs) = map else { return None };
    pairs.iter().find(|(name, _)| bytes(name) == Some(key.as_bytes())).map(|(_, value)| value)
}

/// The bytes of a string.
pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

/// A string as text; what is no UTF-8 in it is replaced.
pub(crate) fn text(value: &Value) -> Option<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// A whole number.
pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// The milliseconds behind `key`.
pub(crate) fn millis(map: &Value, key: &str) -> Option<Duration> {
    number(field(map, key)?)?.try_into().ok().map(Duration::from_millis)
}
