//! What is said on every new connection before anybody may use it.

use std::time::Duration;

use redis::{Cmd, cmd};

use super::check::SECTIONS;
use super::dial::dial;
use super::error::{ConnectError, ServerError};
use super::resp::{Frame, Wire};
use super::server_info::{Role, ServerInfo};
use super::target::Target;

/// How a connection introduces itself.
#[derive(Debug, Clone)]
pub(crate) struct Greeting {
    /// For CLIENT SETNAME.
    pub(crate) name: String,
    /// Do not count reads as use of a key.
    pub(crate) no_touch: bool,
    /// Scripts that the server should know.
    pub(crate) load: Vec<String>,
    /// The limit for connecting, TLS included.
    pub(crate) connect_timeout: Duration,
    /// The limit for the server's answers to all of this.
    pub(crate) response_timeout: Duration,
}

/// Connects, logs in, and learns whom it has before it.
pub(crate) async fn connect(
    target: &Target,
    greeting: &Greeting,
) -> Result<(Wire, ServerInfo), ConnectError> {
    let mut wire = Wire::new(dial(target, greeting.connect_timeout).await?);
    let limit = greeting.response_timeout;
    match tokio::time::timeout(limit, greet(&mut wire, target, greeting)).await {
        Ok(greeted) => {
            let address = Some(target.address().clone());
            Ok((wire, ServerInfo { address, ..greeted? }))
        }
        Err(_) => Err(ConnectError::Broken(format!("connected, but no answer within {limit:?}"))),
    }
}

/// One step of the greeting, and what its failing means.
struct Step {
    command: Cmd,
    doing: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Without this the connection is of no use.
    Vital,
    /// Whether the server serves at all; being denied this one command is no harm.
    Ping,
    /// A text to be read.
    Info,
    /// Good to have.
    Extra,
}

/// All steps go out at once: one round trip.
async fn greet(
    wire: &mut Wire,
    target: &Target,
    greeting: &Greeting,
) -> Result<ServerInfo, ConnectError> {
    let steps = steps(target, greeting);
    let mut bytes = Vec::new();
    for step in &steps {
        step.command.write_packed_command(&mut bytes);
    }
    // A server that wants no more clients says so and closes without reading: hear it first.
    let sent = wire.send(&bytes).await;
    let mut info = String::new();
    for step in &steps {
        let reply = wire.receive().await.map_err(|reason| match &sent {
            Ok(()) => ConnectError::Broken(reason),
            Err(error) => ConnectError::Broken(format!("the connection broke: {error}")),
        })?;
        match reply {
            Frame::Error(error) => check(step, error)?,
            Frame::Bulk(text) if step.kind == Kind::Info => info += &String::from_utf8_lossy(&text),
            _ => {}
        }
    }
    let mut info = ServerInfo::from_info(&info);
    if info.version.is_none() {
        read_hello(wire, &mut info).await?;
    }
    info.connected_at_micros = crate::clock::boot_micros();
    Ok(info)
}

fn steps(target: &Target, greeting: &Greeting) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut step = |kind, doing, command: &mut Cmd| {
        steps.push(Step { command: command.clone(), doing, kind });
    };
    if let Some(password) = target.password() {
        let mut auth = cmd("AUTH");
        if let Some(user) = target.user() {
            auth.arg(user);
        }
        step(Kind::Vital, "logging in", auth.arg(password.expose()));
    }
    if target.db() != 0 {
        step(Kind::Vital, "selecting the database", cmd("SELECT").arg(target.db()));
    }
    step(Kind::Ping, "asking for a sign of life", &mut cmd("PING"));
    step(Kind::Extra, "naming the connection", cmd("CLIENT").arg("SETNAME").arg(&greeting.name));
    if greeting.no_touch {
        step(Kind::Extra, "leaving keys untouched", cmd("CLIENT").arg("NO-TOUCH").arg("ON"));
    }
    for section in SECTIONS {
        step(Kind::Info, "reading INFO", cmd("INFO").arg(section));
    }
    for script in &greeting.load {
        step(Kind::Extra, "loading a script", cmd("SCRIPT").arg("LOAD").arg(script));
    }
    steps
}

fn check(step: &Step, error: ServerError) -> Result<(), ConnectError> {
    let doing = step.doing;
    let of_the_connection =
        error.is_max_clients() || error.code == "DENIED" || error.code == "NOAUTH";
    let ping_denied = step.kind == Kind::Ping && error.code == "NOPERM";
    let vital = matches!(step.kind, Kind::Vital | Kind::Ping) && !ping_denied;
    if vital || of_the_connection {
        return Err(ConnectError::Refused { while_doing: doing, error });
    }
    tracing::debug!(%error, doing, "Redis refused a part of the greeting; going on without");
    Ok(())
}

/// For those who may not use INFO: HELLO is open to all, and says a little.
async fn read_hello(wire: &mut Wire, info: &mut ServerInfo) -> Result<(), ConnectError> {
    let sent = wire.send(&cmd("HELLO").get_packed_command()).await;
    sent.map_err(|error| ConnectError::Broken(format!("the connection broke: {error}")))?;
    let Frame::Array(pairs) = wire.receive().await.map_err(ConnectError::Broken)? else {
        return Ok(());
    };
    for pair in pairs.chunks_exact(2) {
        let [Frame::Bulk(key), Frame::Bulk(value)] = pair else { continue };
        let value = String::from_utf8_lossy(value);
        match key.as_slice() {
            b"version" => info.version = Some(value.into_owned()),
            b"mode" => info.cluster = value == "cluster",
            b"role" => {
                info.role = Some(if value == "master" { Role::Master } else { Role::Replica });
            }
            _ => {}
        }
    }
    Ok(())
}
