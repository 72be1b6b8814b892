//! A connection on which the server reports every command.

use std::time::Duration;

use redis::cmd;

use super::endpoint::{Endpoint, Route};
use super::error::{ConnectError, ServerError};
use super::excerpt::excerpt;
use super::handshake::Handshake;
use super::server_info::ServerInfo;
use super::wire::{Frame, Wire};

/// A connection with MONITOR on. It ends with this value and does not reconnect.
///
/// The server buffers what is not read. A reader that stops reading therefore harms it: without an output-buffer limit,
/// the server's memory grows until it is full. Neither `timeout` nor `tcp-keepalive` ends such a reader, since the kernel
/// of its host still acknowledges.
#[derive(Debug)]
pub struct Monitor {
    endpoint: Endpoint,
    route: Route,
    wire: Wire,
    info: ServerInfo,
    id: Option<i64>,
    given: bool,
}

/// The class of clients whose `client-output-buffer-limit` applies to a monitor connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputClass {
    /// `normal`, which has no limit by default.
    Normal,
    /// `pubsub`, which has one of 32 MiB by default. The connection subscribes to a pattern that no channel matches.
    PubSub,
}

/// The pattern of [`OutputClass::PubSub`]. An empty set matches no character, so nobody can publish into the connection.
const SILENT_PATTERN: &str = "lockscope:monitor[]";

/// The reason why there is no monitor connection, or why it ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MonitorError {
    /// The server does not allow it.
    #[error("refused: {0}")]
    Denied(ServerError),
    /// The connection could not be opened for another reason.
    #[error("{0}")]
    Failed(String),
    /// An open connection ended.
    #[error("{0}")]
    Ended(String),
    /// An open connection went to a server that is no longer the master.
    #[error("{0}")]
    Moved(String),
}

impl Monitor {
    /// Connects with this client name and sends MONITOR. `timeout` applies to connecting, and again to the answers.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached, or refuses.
    pub async fn open(
        endpoint: &Endpoint,
        name: &str,
        timeout: Duration,
        class: OutputClass,
    ) -> Result<Self, MonitorError> {
        let handshake =
            Handshake { batched: true, ..Handshake::plain(name.to_owned(), timeout, timeout) };
        let connected = endpoint.connect(&handshake, &mut None).await;
        let (wire, info, route) = connected.map_err(|error| {
            endpoint.suspect();
            match error {
                ConnectError::Refused { error, .. } if error.is_denied() => {
                    MonitorError::Denied(error)
                }
                other => MonitorError::Failed(other.to_string()),
            }
        })?;
        let mut monitor =
            Self { endpoint: endpoint.clone(), route, wire, info, id: None, given: false };
        match tokio::time::timeout(timeout, monitor.begin(class)).await {
            Ok(begun) => begun.map(|()| monitor),
            Err(_) => Err(MonitorError::Failed(format!("no reply to MONITOR within {timeout:?}"))),
        }
    }

    async fn begin(&mut self, class: OutputClass) -> Result<(), MonitorError> {
        self.send(&[&["CLIENT", "ID"]]).await?;
        if let Frame::Int(id) = self.receive().await? {
            self.id = Some(id);
        }
        match class {
            OutputClass::Normal => self.send(&[&["MONITOR"]]).await?,
            // In one write: the server must not monitor for a moment in the other class. In this order: a RESP2 connection that
            // subscribes may not send MONITOR.
            OutputClass::PubSub => {
                self.send(&[&["MONITOR"], &["PSUBSCRIBE", SILENT_PATTERN]]).await?;
            }
        }
        let answer = self.receive().await?;
        expect(answer, "MONITOR", |answer| matches!(answer, Frame::Simple(_)))?;
        if class == OutputClass::PubSub {
            let answer = loop {
                match self.receive().await? {
                    // A line of MONITOR.
                    Frame::Simple(_) => {}
                    answer => break answer,
                }
            };
            expect(answer, "PSUBSCRIBE", |answer| matches!(answer, Frame::Array(_)))?;
        }
        // A line has the arguments of a command, so it may be of any length. It is passed on in parts.
        self.wire.remove_limit();
        Ok(())
    }

    async fn send(&mut self, commands: &[&[&str]]) -> Result<(), MonitorError> {
        let packed = commands.iter().flat_map(|words| {
            let mut command = cmd(words[0]);
            command.arg(&words[1..]);
            command.get_packed_command()
        });
        let sent = self.wire.send(&packed.collect::<Vec<u8>>()).await;
        sent.map_err(|error| MonitorError::Failed(format!("the connection broke: {error}")))
    }

    async fn receive(&mut self) -> Result<Frame, MonitorError> {
        self.wire.receive().await.map_err(MonitorError::Failed)
    }

    /// The server as of the handshake.
    #[must_use]
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// The connection's id in CLIENT LIST, if the account may read it.
    #[must_use]
    pub fn id(&self) -> Option<i64> {
        self.id
    }

    /// Returns the bytes that arrived next: lines, cut anywhere. Cancel safe.
    ///
    /// # Errors
    /// Returns an error if the connection has ended, or goes to the wrong server.
    pub async fn read(&mut self) -> Result<&[u8], MonitorError> {
        if std::mem::take(&mut self.given) {
            self.wire.drop_received();
        }
        if self.wire.received().is_empty() {
            tokio::select! {
                // First, or a busy server would never be left.
                biased;
                reason = self.endpoint.left(&self.route) => return Err(MonitorError::Moved(reason.to_owned())),
                filled = self.wire.fill() => filled.map_err(MonitorError::Ended)?,
            }
        }
        self.given = true;
        Ok(self.wire.received())
    }
}

fn expect(
    answer: Frame,
    command: &str,
    is_expected: impl Fn(&Frame) -> bool,
) -> Result<(), MonitorError> {
    match answer {
        Frame::Error(error) if error.is_transient() => Err(MonitorError::Failed(error.to_string())),
        // A server on which a command is renamed or disabled does not know it, which has the same effect.
        Frame::Error(error) => Err(MonitorError::Denied(error)),
        answer if is_expected(&answer) => Ok(()),
        other => {
            let reason = format!("{command} was answered with {}", excerpt(&other));
            Err(MonitorError::Failed(reason))
        }
    }
}
