//! The commands sent on every new connection before it is used.

use std::time::Duration;

use redis::{Cmd, cmd};

use super::dial::dial;
use super::error::{ConnectError, ServerError};
use super::reply_limit::{LimitedStream, REPLY_LIMIT};
use super::server_info::{Role, ServerInfo};
use super::server_watch::SECTIONS;
use super::target::Target;
use super::wire::{Frame, Wire};
use crate::settings::Secret;

/// Settings of a handshake.
#[derive(Debug, Clone)]
pub(crate) struct Handshake {
    /// The name for CLIENT SETNAME.
    pub(crate) name: String,
    /// Asks the server not to count reads as use of a key, except in a cluster.
    pub(crate) no_touch: bool,
    /// Scripts to load.
    pub(crate) load: Vec<&'static str>,
    /// The limit for connecting, TLS included.
    pub(crate) connect_timeout: Duration,
    /// The limit for the server's answers to the whole handshake.
    pub(crate) response_timeout: Duration,
    /// The memory that one reply of the connection may need, in bytes.
    pub(crate) reply_limit: usize,
    /// Reads a TCP connection in batches. Replies may arrive 10 ms later.
    pub(crate) batched: bool,
}

impl Handshake {
    /// A handshake without NO-TOUCH, scripts and batches, with the usual limit of replies.
    pub(crate) fn plain(
        name: String,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Self {
        Self {
            name,
            no_touch: false,
            load: Vec::new(),
            connect_timeout,
            response_timeout,
            reply_limit: REPLY_LIMIT,
            batched: false,
        }
    }
}

/// Connects, logs in and reads about the server.
pub(crate) async fn connect(
    target: &Target,
    handshake: &Handshake,
) -> Result<(Wire, ServerInfo), ConnectError> {
    let (stream, peer) = dial(target, handshake.connect_timeout, handshake.batched).await?;
    let mut wire = Wire::new(LimitedStream::new(stream, handshake.reply_limit));
    let limit = handshake.response_timeout;
    match tokio::time::timeout(limit, shake_hands(&mut wire, target, handshake)).await {
        Ok(info) => {
            let address = Some(target.address().clone());
            Ok((wire, ServerInfo { address, peer, ..info? }))
        }
        Err(_) => {
            let address = target.address();
            let reason = format!("connected to {address}, but no reply within {limit:?}");
            Err(ConnectError::Broken(reason))
        }
    }
}

/// One step of the handshake.
struct Step {
    command: Cmd,
    doing: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A failure makes the connection useless.
    Vital,
    /// Checks whether the server serves at all. It does if it denies the account this command, or if it refuses writes,
    /// and PING with them, because it cannot save.
    Ping,
    /// Returns a section of INFO.
    Info,
    /// A failure is harmless.
    Extra,
}

/// Sends all steps at once, in one round trip.
async fn shake_hands(
    wire: &mut Wire,
    target: &Target,
    handshake: &Handshake,
) -> Result<ServerInfo, ConnectError> {
    let password = match target.password() {
        Some(password) => Some(password.current().await),
        None => None,
    };
    let steps = steps(target, password, handshake);
    let mut bytes = Vec::new();
    for step in &steps {
        step.command.write_packed_command(&mut bytes);
    }
    // A server that has reached its limit of clients sends an error and closes without reading: read it first.
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
    // An early Redis 8.0 crashes in a cluster when such a connection reads a key of a slot that is migrating. Later versions,
    // and Valkey 8.1, had the same mistake until 2025.
    if handshake.no_touch && !info.cluster {
        leave_keys_untouched(wire).await?;
    }
    info.connected_at_micros = crate::clock::boot_micros();
    Ok(info)
}

/// Asks the server not to count reads as use of a key. A refusal is harmless.
async fn leave_keys_untouched(wire: &mut Wire) -> Result<(), ConnectError> {
    let command = cmd("CLIENT").arg("NO-TOUCH").arg("ON").get_packed_command();
    let sent = wire.send(&command).await;
    sent.map_err(|error| ConnectError::Broken(format!("the connection broke: {error}")))?;
    if let Frame::Error(error) = wire.receive().await.map_err(ConnectError::Broken)? {
        tracing::debug!(%error, "Redis refused an optional step of the handshake");
    }
    Ok(())
}

fn steps(target: &Target, password: Option<Secret>, handshake: &Handshake) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut step = |kind, doing, command: &mut Cmd| {
        steps.push(Step { command: command.clone(), doing, kind });
    };
    if let Some(password) = password {
        let mut auth = cmd("AUTH");
        if let Some(user) = target.user() {
            auth.arg(user);
        }
        step(Kind::Vital, "logging in", auth.arg(password.expose()));
    }
    if target.db() != 0 {
        step(Kind::Vital, "selecting the database", cmd("SELECT").arg(target.db()));
    }
    step(Kind::Ping, "checking that the server answers", &mut cmd("PING"));
    step(Kind::Extra, "naming the connection", cmd("CLIENT").arg("SETNAME").arg(&handshake.name));
    for section in SECTIONS {
        step(Kind::Info, "reading INFO", cmd("INFO").arg(section));
    }
    for script in &handshake.load {
        step(Kind::Extra, "loading a script", cmd("SCRIPT").arg("LOAD").arg(*script));
    }
    steps
}

fn check(step: &Step, error: ServerError) -> Result<(), ConnectError> {
    let doing = step.doing;
    let of_the_connection =
        error.is_max_clients() || error.code == "DENIED" || error.code == "NOAUTH";
    let vital = match step.kind {
        Kind::Vital => true,
        Kind::Ping => error.code != "NOPERM" && !error.cannot_save(),
        Kind::Info | Kind::Extra => false,
    };
    if vital || of_the_connection {
        return Err(ConnectError::Refused { while_doing: doing, error });
    }
    tracing::debug!(%error, doing, "Redis refused an optional step of the handshake");
    Ok(())
}

/// Reads the facts in HELLO, for an account that may not use INFO.
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
