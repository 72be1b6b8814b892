//! Errors of calls and of connecting.

use std::fmt;

/// An error reply of Redis.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code} {message}")]
pub struct ServerError {
    /// The first word, such as `WRONGTYPE`, or the generic `ERR`.
    pub code: String,
    /// The text after the code.
    pub message: String,
}

impl ServerError {
    /// Parses an error line without its leading `-`.
    pub(crate) fn parse(line: &str) -> Self {
        let line = error_in_script(line).unwrap_or(line);
        let (code, message) = line.split_once(' ').unwrap_or((line, ""));
        Self { code: code.to_owned(), message: message.to_owned() }
    }

    /// Returns `true` if the script is not in the server's cache, so it did not run.
    #[must_use]
    pub fn is_noscript(&self) -> bool {
        self.code == "NOSCRIPT"
    }

    /// Returns `true` if the key is of another type than the command needs.
    #[must_use]
    pub fn is_wrong_type(&self) -> bool {
        self.code == "WRONGTYPE"
    }

    /// Returns `true` if the command did nothing and will succeed later without an operator: the server is loading its
    /// data, running a long script, failing over or migrating a slot.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        const CODES: [&str; 7] =
            ["LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS"];
        CODES.contains(&self.code.as_str())
    }

    /// Returns `true` if the server's memory is full. It then refuses writes that need memory, and queues no command of a
    /// transaction, not even one that only reads.
    #[must_use]
    pub fn is_oom(&self) -> bool {
        self.code == "OOM"
    }

    /// Returns `true` if the server refuses writes, and PING with them, because it cannot save its data.
    #[must_use]
    pub(crate) fn cannot_save(&self) -> bool {
        self.code == "MISCONF"
    }

    /// Returns `true` if a replica rejected a write.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.code == "READONLY"
    }

    /// Returns `true` if some keys of a command or transaction are on another node of the cluster, because their slot is
    /// migrating.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.code == "TRYAGAIN"
    }

    /// Returns the node that a `MOVED` or `ASK` error names.
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

    /// Returns `true` if the account may not do this, or not log in at all. An operator has to change an account or a
    /// setting.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        ["NOAUTH", "WRONGPASS", "NOPERM", "DENIED"].contains(&self.code.as_str())
            // The refusal of EXEC itself: `EXECABORT Transaction discarded because of: NOPERM …`.
            || (self.code == "EXECABORT" && self.message.contains(": NOPERM "))
            || self.message.starts_with("AUTH ")
            || self.message.starts_with("invalid password")
    }

    /// Returns `true` if the server does not offer the command: it is too old, or its operator has removed the command.
    #[must_use]
    pub fn is_unknown_command(&self) -> bool {
        let text = self.message.to_ascii_lowercase();
        self.code == "ERR"
            && (text.starts_with("unknown command") || text.starts_with("unknown subcommand"))
    }

    /// Returns `true` if the server has reached its limit of clients.
    #[must_use]
    pub(crate) fn is_max_clients(&self) -> bool {
        self.message.contains("max number of clients")
    }
}

/// Returns the error of a command in a script, which Redis before 7.0 wraps: `ERR Error running script (call to f_…):
/// @user_script:9: @user_script: 9: -READONLY …`.
fn error_in_script(line: &str) -> Option<&str> {
    let text = line.strip_prefix("ERR Error running script ")?;
    text.split_once(": -").map(|(_place, error)| error)
}

/// A redirection to another node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// Set for `ASK`: only this command goes to the node, since the slot is migrating there. After `MOVED` the node owns
    /// the slot.
    pub ask: bool,
    /// The node's host; empty for the host of the server that replied.
    pub host: String,
    /// The node's port.
    pub port: u16,
}

impl From<&redis::ServerError> for ServerError {
    fn from(error: &redis::ServerError) -> Self {
        Self::parse(&format!("{} {}", error.code(), error.details().unwrap_or("")))
    }
}

/// A call that brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The command was not sent, so it has not been executed.
    #[error("not sent: {reason}")]
    Unsent {
        /// The reason, such as a missing connection.
        reason: String,
    },
    /// The outcome is unknown: the command was or may have been sent, and no answer came. It may have been executed, and
    /// may still be, later.
    #[error("outcome unknown: {reason}")]
    Lost {
        /// The event that ended the connection.
        reason: String,
    },
    /// Redis replied with an error.
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

    /// Returns the error that the server replied with, if any.
    #[must_use]
    pub fn refused(&self) -> Option<&ServerError> {
        match self {
            Self::Refused(error) => Some(error),
            Self::Unsent { .. } | Self::Lost { .. } => None,
        }
    }

    /// Returns `true` if the outcome is unknown.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Calls [`ServerError::is_noscript`] on an error reply.
    #[must_use]
    pub fn is_noscript(&self) -> bool {
        self.refused().is_some_and(ServerError::is_noscript)
    }

    /// Returns `true` if a retry may succeed: without a connection, or by [`ServerError::is_transient`]. After
    /// [`CallError::Lost`] the caller decides whether a repetition is safe.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.refused().is_none_or(ServerError::is_transient)
    }
}

/// A failed attempt to connect.
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
    /// Returns `true` if a quick retry is pointless, because an operator must act first. A server at its limit of clients
    /// needs no patience: it has room as soon as another client disconnects, and the next to connect gets it.
    pub(crate) fn needs_patience(&self) -> bool {
        match self {
            Self::Refused { error, .. } => error.is_denied(),
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
    fn errors_are_classified_by_their_code() {
        let loading = ServerError::parse("LOADING Redis is loading the dataset in memory");
        assert!(loading.is_transient() && !loading.is_denied());
        assert_eq!(loading.to_string(), "LOADING Redis is loading the dataset in memory");
        assert!(ServerError::parse("NOPERM this user has no permissions").is_denied());
        let exec =
            "EXECABORT Transaction discarded because of: NOPERM this user has no permissions";
        assert!(ServerError::parse(exec).is_denied());
        let queued = "EXECABORT Transaction discarded because of previous errors.";
        assert!(!ServerError::parse(queued).is_denied());
        assert!(ServerError::parse("ERR max number of clients reached").is_max_clients());
        for line in [
            "ERR unknown command 'CONFIG', with args beginning with: 'GET' ",
            "ERR unknown command `config`, with args beginning with: ",
            "ERR Unknown subcommand or wrong number of arguments for 'NO-TOUCH'. Try CLIENT HELP.",
        ] {
            assert!(ServerError::parse(line).is_unknown_command(), "{line}");
        }
        assert!(!ServerError::parse("NOPERM unknown command").is_unknown_command());
        assert!(ServerError::parse("NOSCRIPT No matching script.").is_noscript());
        assert_eq!(ServerError::parse("ODD").code, "ODD");
    }

    #[test]
    fn the_error_of_a_command_in_a_script_counts_as_that_of_the_script() {
        let line = "ERR Error running script (call to f_96): @user_script:131: @user_script: 131: \
                    -READONLY You can't write against a read only replica.";
        let error = ServerError::parse(line);
        assert!(error.is_read_only() && error.is_transient());
        assert_eq!(error.to_string(), "READONLY You can't write against a read only replica.");
        let own = "ERR Error running script (call to f_96): @user_script:1: unexpected symbol";
        assert_eq!(ServerError::parse(own).code, "ERR");
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
    fn only_an_error_that_an_operator_has_to_end_needs_patience() {
        let patience = |line: &str| {
            let error = ServerError::parse(line);
            ConnectError::Refused { while_doing: "connecting", error }.needs_patience()
        };
        assert!(patience("WRONGPASS invalid username-password pair or user is disabled."));
        assert!(!patience("ERR max number of clients reached"));
        assert!(!patience("LOADING Redis is loading the dataset in memory"));
    }

    #[test]
    fn errors_that_pass_without_an_operator_are_transient() {
        assert!(CallError::unsent("no connection").is_transient());
        assert!(CallError::lost("timed out").is_transient());
        assert!(!CallError::from(ServerError::parse("WRONGTYPE x")).is_transient());
        assert!(CallError::from(ServerError::parse("BUSY x")).is_transient());
    }
}
