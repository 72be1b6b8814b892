//! Sources of observations.

use serde::ser::{Serialize, SerializeSeq as _, Serializer};

/// A source, by the word that pages, the API and metrics use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, utoipa::ToSchema)]
#[schema(rename_all = "lowercase", as = SourceWord)]
pub enum Source {
    /// Passes over all keys.
    Scan,
    /// Redisson's release messages.
    Channels,
    /// Known locks, read again.
    Poll,
    /// All commands, as MONITOR prints them.
    Monitor,
    /// The number of connections that listen for a lock's release.
    Subscribers,
    /// Keyspace notifications, on servers that send them.
    Keyspace,
    /// The server's client list and the holder registry of the agents.
    Identity,
    /// An operator's action on this dashboard.
    Operator,
}

impl Source {
    /// Every source, in the order in which pages list them.
    pub const ALL: [Self; 8] = [
        Self::Scan,
        Self::Channels,
        Self::Keyspace,
        Self::Subscribers,
        Self::Poll,
        Self::Monitor,
        Self::Identity,
        Self::Operator,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::Channels => "channels",
            Self::Poll => "poll",
            Self::Monitor => "monitor",
            Self::Subscribers => "subscribers",
            Self::Keyspace => "keyspace",
            Self::Identity => "identity",
            Self::Operator => "operator",
        }
    }
}

/// The sources that contributed to a lock's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceSet([bool; Source::ALL.len()]);

impl SourceSet {
    /// Adds a source. Returns true if it was not in the set.
    pub fn add(&mut self, source: Source) -> bool {
        !std::mem::replace(&mut self.0[source as usize], true)
    }

    /// Returns the sources' words, in the order in which pages list them.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Source::ALL.into_iter().filter(move |source| self.0[*source as usize]).map(Source::as_str)
    }
}

impl FromIterator<Source> for SourceSet {
    fn from_iter<T: IntoIterator<Item = Source>>(sources: T) -> Self {
        let mut all = Self::default();
        for source in sources {
            all.add(source);
        }
        all
    }
}

impl Serialize for SourceSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut words = serializer.serialize_seq(None)?;
        self.words().try_for_each(|word| words.serialize_element(word))?;
        words.end()
    }
}
