//! Sources and servers as pages and the API show them.

use serde::Serialize;

use crate::clock::SteadyMillis;

/// How a source fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    On,
    /// Switched off by the settings.
    Off,
    /// The server forbids it.
    Denied,
    /// Held back by its own bounds.
    Paused,
    /// It works, later than it should.
    Behind,
    /// The server cannot be reached.
    Down,
}

impl SourceState {
    pub const ALL: [Self; 6] =
        [Self::On, Self::Off, Self::Denied, Self::Paused, Self::Behind, Self::Down];

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Denied => "denied",
            Self::Paused => "paused",
            Self::Behind => "behind",
            Self::Down => "down",
        }
    }
}

/// One source of knowledge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceView {
    pub deployment: String,
    /// The server's address, without secrets.
    pub node: String,
    /// `scan`, `channels` or `poll`.
    pub source: &'static str,
    /// How it fares.
    pub state: SourceState,
    /// Why, where that is not plain.
    pub detail: String,
    /// When it last saw something through.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub last_success: Option<SteadyMillis>,
    /// How much later than it should it works, in milliseconds.
    pub lag_ms: Option<u64>,
}

/// A Redis server that is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerView {
    pub deployment: String,
    /// Address, without secrets; that of the sentinels, with the master's name, where they are asked for it.
    pub address: String,
    /// The master that they name, while it can be read.
    pub master: Option<String>,
    /// The replica that is read in its place.
    pub replica: Option<String>,
    /// Version as the server says, where it does.
    pub version: Option<String>,
    /// Why it cannot be read and since when; none while it can.
    pub down: Option<Down>,
    /// The policy by which it may evict locks, where it may: a warning on every page.
    pub evicts: Option<String>,
}

/// A server that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Down {
    pub since: SteadyMillis,
    /// Why, in words.
    pub reason: String,
}

/// How far a pass over all keys has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub seen: u64,
    /// Keys in all, by `DBSIZE`; none where that is not known.
    pub of: Option<u64>,
}
