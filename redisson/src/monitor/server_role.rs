//! The role of a server, which decides what its stream shows.

use super::event::Address;

/// The role of the server that sends the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRole {
    /// A server that clients write to.
    Master,
    /// A server fed by its master. It shows changes, but neither their senders nor refused attempts.
    Replica,
}

impl ServerRole {
    /// Parses a client address as printed.
    pub(super) fn address(self, printed: &[u8]) -> Option<Address> {
        match self {
            Self::Replica => None,
            Self::Master if printed.starts_with(b"unix:") => Some(Address::Unix),
            Self::Master => std::str::from_utf8(printed).ok()?.parse().ok().map(Address::Tcp),
        }
    }
}
