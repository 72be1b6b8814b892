//! Sources and servers as pages and the API show them.

use serde::Serialize;
use utoipa::ToSchema;

use super::refusal::Refusal;
use crate::clock::SteadyMillis;
use crate::model::types::Source;

/// The state of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    On,
    /// Disabled by the settings.
    Off,
    /// The server forbids it.
    Denied,
    /// Paused by its own limits.
    Paused,
    /// It works with a delay.
    Behind,
    /// The server cannot be reached.
    Down,
}

impl SourceState {
    pub const ALL: [Self; 6] =
        [Self::On, Self::Off, Self::Denied, Self::Paused, Self::Behind, Self::Down];

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

/// One source of one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Source)]
pub struct SourceView {
    pub deployment: String,
    /// The server's address, without secrets. If the source reads one of several databases, also a slash and the database.
    pub node: String,
    #[schema(schema_with = source_words)]
    pub source: &'static str,
    pub state: SourceState,
    /// Details in words; may be empty.
    pub detail: String,
    /// The step that turns it on; none while it is on, or where nothing can be done.
    pub remedy: Option<&'static str>,
    /// The last success; none while the source is off.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub last_success: Option<SteadyMillis>,
    /// The delay in milliseconds.
    pub lag_ms: Option<u64>,
}

impl SourceView {
    /// Returns the database of this server that the source reads, or an empty text if it reads all of them. Returns
    /// `None` for a source of another server.
    #[must_use]
    pub fn database_at(&self, server: &ServerView) -> Option<&str> {
        if self.deployment != server.deployment {
            return None;
        }
        match self.node.strip_prefix(&server.address)? {
            "" => Some(""),
            rest => rest.strip_prefix('/').filter(|db| db.parse::<u32>().is_ok()),
        }
    }
}

/// Returns the words of all sources. The operator is not a source that the dashboard runs.
fn source_words() -> utoipa::openapi::Object {
    let words = Source::ALL.into_iter().filter(|source| *source != Source::Operator);
    crate::schema::words(words.map(Source::as_str))
}

/// A watched Redis server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerView {
    pub deployment: String,
    /// The address, without secrets; with Sentinel, that of the sentinels with the master's name.
    pub address: String,
    /// The master named by the sentinels, while it can be read.
    pub master: Option<String>,
    /// The replica that is read in its place, if any.
    pub replica: Option<String>,
    /// The version that the server reports, if any.
    pub version: Option<String>,
    /// The reason and the beginning of an outage; none while it can be read.
    pub down: Option<Down>,
    /// The policy by which it may evict locks, if it may: a warning on every page.
    pub evicts: Option<String>,
    /// The reason for which it refuses writes, if it does: a warning on every page.
    pub refusal: Option<Refusal>,
}

/// A server that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Down {
    pub since: SteadyMillis,
    /// The reason in words.
    pub reason: String,
}

/// The progress of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub seen: u64,
    /// The number of all keys, by `DBSIZE`; none if unknown.
    pub of: Option<u64>,
}
