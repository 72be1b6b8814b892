//! What may come back instead of an answer.

use std::fmt;

/// An error that Redis answered with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code} {message}")]
pub struct ServerError {
    /// The first word, such as `WRONGTYPE`. `ERR` where the server gave no better one.
    pub code: String,
    /// What follows it.
    pub message: String,
}

impl ServerError {
    /// Takes an error line apart, given without its leading `-`.
    pub(crate) fn parse(line: &str) -> Self {
        let (code, message) = line.split_once(' ').unwrap_or((line, ""));
        Self { code: code.to_owned(), message: message.to_owned() }
    }

    /// The script is not in the server's cache, so it did not run.
    #[must_use]
    pub fn is_noscript(&self) -> bool {
        self.code == "NOSCRIPT"
    }

    /// The key is of another type than the command needs.
    #[must_use]
    pub fn is_wrong_type(&self) -> bool {
        self.code == "WRONGTYPE"
    }

    /// The server cannot serve this now, did nothing, and will serve it later without anybody's
    /// doing: it loads its data, runs a long script, fails over, moves a slot.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        const CODES: [&str; 7] =
            ["LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS"];
        CODES.contains(&self.code.as_str())
    }

    /// The server is a replica, and did not take a write.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.code == "READONLY"
    }

    /// Of the keys of one command, or of one transaction, some are at another node of the cluster: their slot is moving.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.code == "TRYAGAIN"
    }

    /// Where in its cluster the server says that this belongs, by `MOVED` or `ASK`.
    #[must_use]
    pub fn redirect(&self) -> Option<Redirect> {
        let ask = match self.code.as_str() {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let (_slot, place) = self.message.split_once(' ')?;
        let (host, port) = place.rsplit_once(':')?;
        Some(Redirect { ask, host: host.to_owned(), port: port.parse().ok()? })
    }

    /// The server is out of memory for writes.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code == "OOM"
    }

    /// We may not do this, or not log in at all; somebody must change an account or a setting.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        ["NOAUTH", "WRONGPASS", "NOPERM", "DENIED"].contains(&self.code.as_str())
            || self.message.starts_with("AUTH ")
            || self.message.starts_with("invalid password")
    }

    /// The server has as many clients as it takes.
    #[must_use]
    pub fn is_max_clients(&self) -> bool {
        self.message.contains("max number of clients")
    }
}

/// Another node of a cluster, which is to be asked instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// Only for this one command, since the slot is on its way there. Else it has the slot.
    pub ask: bool,
    /// Its host; empty where it is that of the server that said so.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl From<&redis::ServerError> for ServerError {
    fn from(error: &redis::ServerError) -> Self {
        Self { code: error.code().to_owned(), message: error.details().unwrap_or("").to_owned() }
    }
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It was not sent: surely nothing was executed.
    #[error("not sent: {reason}")]
    Unsent {
        /// What was in the way.
        reason: String,
    },
    /// It was sent, or may have been, and no answer came: it may have been executed, and it may
    /// still be, later.
    #[error("outcome unknown: {reason}")]
    Lost {
        /// What happened to the connection.
        reason: String,
    },
    /// Redis answered with an error.
    #[error("refused: {0}")]
    Refused(#[from] ServerError),
}

impl CallError {
    pub(crate) fn unsent(reason: impl fmt::Display) -> Self {
        Self::Unsent { reason: reason.to_string() }
    }

    pub(crate) fn lost(reason: impl fmt::Display) -> Self {
        Self::Lost { reason: reason.to_string() }
    }

    /// The server's error, where it answered with one.
    #[must_use]
    pub fn refused(&self) -> Option<&ServerError> {
        match self {
            Self::Refused(error) => Some(error),
            Self::Unsent { .. } | Self::Lost { .. } => None,
        }
    }

    /// The command may have been executed, nobody knows.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// [`ServerError::is_noscript`] of a refusal.
    #[must_use]
    pub fn is_noscript(&self) -> bool {
        self.refused().is_some_and(ServerError::is_noscript)
    }

    /// It may work when tried again later: no connection, or [`ServerError::is_transient`]. Whether
    /// repeating is harmless after [`CallError::Lost`] only the caller knows.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.refused().is_none_or(ServerError::is_transient)
    }
}

/// Why a connection could not be made ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("cannot reach {address}: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("{0}")]
    Broken(String),
    #[error("{address} is a replica, which takes no writes")]
    Replica { address: String },
    #[error("{address} is part of a cluster: name it as redis+cluster://{address}")]
    InCluster { address: String },
    #[error("no master is known: {reason}")]
    NoMaster { reason: String },
    #[error("{while_doing}: {error}")]
    Refused { while_doing: &'static str, error: ServerError },
}

impl ConnectError {
    /// Trying again soon is pointless; somebody must act, or others must leave, first.
    pub(crate) fn needs_patience(&self) -> bool {
        match self {
            Self::Refused { error, .. } => error.is_denied() || error.is_max_clients(),
            Self::InCluster { .. } => true,
            Self::Unreachable { .. }
            | Self::Broken(_)
            | Self::Replica { .. }
            | Self::NoMaster { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_their_first_word() {
        let loading = ServerError::parse("LOADING Redis is loading the dataset in memory");
        assert!(loading.is_transient() && !loading.is_denied());
        assert_eq!(loading.to_string(), "LOADING Redis is loading the dataset in memory");
        assert!(ServerError::parse("NOPERM this user has no permissions").is_denied());
        assert!(ServerError::parse("ERR max number of clients reached").is_max_clients());
        assert!(ServerError::parse("NOSCRIPT No matching script.").is_noscript());
        assert_eq!(ServerError::parse("ODD").code, "ODD");
    }

    #[test]
    fn a_redirect_names_a_node() {
        let redirect = |line: &str| ServerError::parse(line).redirect();
        let node = |ask, host: &str, port| Some(Redirect { ask, host: host.to_owned(), port });
        assert_eq!(redirect("MOVED 3999 127.0.0.1:6381"), node(false, "127.0.0.1", 6381));
        assert_eq!(redirect("ASK 0 ::1:7000"), node(true, "::1", 7000));
        assert_eq!(redirect("MOVED 866 :6379"), node(false, "", 6379));
        assert_eq!(redirect("MOVED 866 host:0x1"), None);
        assert_eq!(redirect("TRYAGAIN Multiple keys request during rehashing of slot"), None);
    }

    #[test]
    fn only_what_may_pass_by_itself_is_transient() {
        assert!(CallError::unsent("no connection").is_transient());
        assert!(CallError::lost("timed out").is_transient());
        assert!(!CallError::from(ServerError::parse("WRONGTYPE x")).is_transient());
        assert!(CallError::from(ServerError::parse("BUSY x")).is_transient());
    }
}
