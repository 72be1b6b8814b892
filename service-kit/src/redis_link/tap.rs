//! A connection that the server tells every command on.

use std::time::Duration;

use redis::cmd;

use super::aim::Aim;
use super::error::{ConnectError, ServerError};
use super::greeting::{self, Greeting};
use super::resp::{Frame, Wire};
use super::server_info::ServerInfo;

/// A connection with MONITOR on. It ends with this value, and is not made anew.
///
/// A server keeps what is not read, so who stops reading harms it: without a limit of the server's own its memory
/// grows until it is full.
#[derive(Debug)]
pub struct Tap {
    aim: Aim,
    wire: Wire,
    info: ServerInfo,
    id: Option<i64>,
    given: bool,
}

/// Why there is no tap, or no longer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// The server does not allow it.
    #[error("refused: {0}")]
    Denied(ServerError),
    /// It could not be opened for another reason.
    #[error("{0}")]
    Failed(String),
    /// It was open, and ended.
    #[error("{0}")]
    Ended(String),
    /// It was open, and led to a server that is the master no longer.
    #[error("{0}")]
    Left(String),
}

impl Tap {
    /// Connects under this name and sends MONITOR. `limit` is for connecting, and again for the answers.
    ///
    /// # Errors
    /// When the server cannot be reached, or refuses.
    pub async fn open(aim: &Aim, name: &str, limit: Duration) -> Result<Self, TapError> {
        let greeting = Greeting {
            name: name.to_owned(),
            no_touch: false,
            load: Vec::new(),
            connect_timeout: limit,
            response_timeout: limit,
        };
        let (wire, info) = connect(aim, &greeting).await.map_err(|error| match error {
            ConnectError::Refused { error, .. } if error.is_denied() => TapError::Denied(error),
            other => TapError::Failed(other.to_string()),
        })?;
        let mut tap = Self { aim: aim.clone(), wire, info, id: None, given: false };
        match tokio::time::timeout(limit, tap.begin()).await {
            Ok(begun) => begun.map(|()| tap),
            Err(_) => Err(TapError::Failed(format!("no answer to MONITOR within {limit:?}"))),
        }
    }

    async fn begin(&mut self) -> Result<(), TapError> {
        if let Frame::Int(id) = self.ask(&["CLIENT", "ID"]).await? {
            self.id = Some(id);
        }
        match self.ask(&["MONITOR"]).await? {
            Frame::Simple(_) => Ok(()),
            Frame::Error(error) if error.is_transient() => Err(TapError::Failed(error.to_string())),
            // Where it is renamed or left out it is not known, which comes to the same.
            Frame::Error(error) => Err(TapError::Denied(error)),
            other => Err(TapError::Failed(format!("MONITOR was answered with {other:?}"))),
        }
    }

    async fn ask(&mut self, words: &[&str]) -> Result<Frame, TapError> {
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        let sent = self.wire.send(&command.get_packed_command()).await;
        sent.map_err(|error| TapError::Failed(format!("the connection broke: {error}")))?;
        self.wire.receive().await.map_err(TapError::Failed)
    }

    /// What the server said of itself.
    #[must_use]
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// The connection's number in CLIENT LIST, where the account may know it.
    #[must_use]
    pub fn id(&self) -> Option<i64> {
        self.id
    }

    /// What came next, as it came: lines, cut anywhere. May be dropped while it waits, nothing gets lost.
    ///
    /// # Errors
    /// When the connection has ended, by the server's wish or otherwise, or leads to the wrong server.
    pub async fn read(&mut self) -> Result<&[u8], TapError> {
        if std::mem::take(&mut self.given) {
            self.wire.drop_received();
        }
        if self.wire.received().is_empty() {
            let left = async {
                match &self.info.address {
                    Some(address) => self.aim.left(address).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // First, or a server that has much to tell would never be left.
                biased;
                reason = left => return Err(TapError::Left(reason.to_owned())),
                filled = self.wire.fill() => filled.map_err(TapError::Ended)?,
            }
        }
        self.given = true;
        Ok(self.wire.received())
    }
}

async fn connect(aim: &Aim, greeting: &Greeting) -> Result<(Wire, ServerInfo), ConnectError> {
    let target = aim.target().await?;
    let connected = greeting::connect(&target, greeting).await;
    let checked = connected.and_then(|(wire, info)| {
        aim.check(&target, &info)?;
        Ok((wire, info))
    });
    if checked.is_err() {
        aim.doubt();
    }
    checked
}
