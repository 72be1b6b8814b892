//! A connection on which the server reports every command.

use std::time::Duration;

use redis::cmd;

use super::endpoint::Endpoint;
use super::error::{ConnectError, ServerError};
use super::handshake::{self, Handshake};
use super::server_info::ServerInfo;
use super::wire::{Frame, Wire};

/// A connection with MONITOR on. It ends with this value and does not reconnect.
///
/// The server buffers what is not read. A reader that stops reading therefore harms it: without an output-buffer limit,
/// the server's memory grows until it is full.
#[derive(Debug)]
pub struct Monitor {
    endpoint: Endpoint,
    wire: Wire,
    info: ServerInfo,
    id: Option<i64>,
    given: bool,
}

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
    /// Connects with this client name and sends MONITOR. `limit` applies to connecting, and again to the answers.
    ///
    /// # Errors
    /// When the server cannot be reached, or refuses.
    pub async fn open(
        endpoint: &Endpoint,
        name: &str,
        limit: Duration,
    ) -> Result<Self, MonitorError> {
        let handshake = Handshake {
            name: name.to_owned(),
            no_touch: false,
            load: Vec::new(),
            connect_timeout: limit,
            response_timeout: limit,
        };
        let (wire, info) = connect(endpoint, &handshake).await.map_err(|error| match error {
            ConnectError::Refused { error, .. } if error.is_denied() => MonitorError::Denied(error),
            other => MonitorError::Failed(other.to_string()),
        })?;
        let mut monitor = Self { endpoint: endpoint.clone(), wire, info, id: None, given: false };
        match tokio::time::timeout(limit, monitor.begin()).await {
            Ok(begun) => begun.map(|()| monitor),
            Err(_) => Err(MonitorError::Failed(format!("no answer to MONITOR within {limit:?}"))),
        }
    }

    async fn begin(&mut self) -> Result<(), MonitorError> {
        if let Frame::Int(id) = self.ask(&["CLIENT", "ID"]).await? {
            self.id = Some(id);
        }
        match self.ask(&["MONITOR"]).await? {
            Frame::Simple(_) => Ok(()),
            Frame::Error(error) if error.is_transient() => {
                Err(MonitorError::Failed(error.to_string()))
            }
            // A server on which MONITOR is renamed or disabled does not know it, which has the same effect.
            Frame::Error(error) => Err(MonitorError::Denied(error)),
            other => Err(MonitorError::Failed(format!("MONITOR was answered with {other:?}"))),
        }
    }

    async fn ask(&mut self, words: &[&str]) -> Result<Frame, MonitorError> {
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        let sent = self.wire.send(&command.get_packed_command()).await;
        sent.map_err(|error| MonitorError::Failed(format!("the connection broke: {error}")))?;
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
    /// When the connection has ended, or goes to the wrong server.
    pub async fn read(&mut self) -> Result<&[u8], MonitorError> {
        if std::mem::take(&mut self.given) {
            self.wire.drop_received();
        }
        if self.wire.received().is_empty() {
            let moved = async {
                match &self.info.address {
                    Some(address) => self.endpoint.moved_from(address).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // First, or a busy server would never be left.
                biased;
                reason = moved => return Err(MonitorError::Moved(reason.to_owned())),
                filled = self.wire.fill() => filled.map_err(MonitorError::Ended)?,
            }
        }
        self.given = true;
        Ok(self.wire.received())
    }
}

async fn connect(
    endpoint: &Endpoint,
    handshake: &Handshake,
) -> Result<(Wire, ServerInfo), ConnectError> {
    let target = endpoint.resolve().await?;
    let connected = handshake::connect(&target, handshake).await;
    let checked = connected.and_then(|(wire, info)| {
        endpoint.check(&target, &info)?;
        Ok((wire, info))
    });
    if checked.is_err() {
        endpoint.suspect();
    }
    checked
}
