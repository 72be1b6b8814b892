//! Rights of visitors.

use std::sync::Arc;

use redisson::LockName;
use redisson::group::glob_matches;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Read pages, API and metrics.
    Look,
    Ack,
    /// Run MONITOR for a minute.
    Watch,
    /// Release locks by force.
    Release,
}

impl Right {
    pub const ALL: [Self; 4] = [Self::Look, Self::Ack, Self::Watch, Self::Release];

    /// Returns the word in settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Ack => "ack",
            Self::Watch => "watch",
            Self::Release => "release",
        }
    }

    /// Returns true if the right can be granted for some lock names only.
    fn has_subject(self) -> bool {
        matches!(self, Self::Ack | Self::Release)
    }

    fn bit(self) -> u8 {
        match self {
            Self::Look => 1,
            Self::Ack => 2,
            Self::Watch => 4,
            Self::Release => 8,
        }
    }
}

/// Rights for all locks, and rights for locks whose names match a glob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    all: u8,
    by_name: Arc<[(Right, String)]>,
}

impl Default for Rights {
    fn default() -> Self {
        Self { all: Right::Look.bit(), by_name: Arc::default() }
    }
}

impl Rights {
    /// Returns all rights, for all locks.
    #[must_use]
    pub fn all() -> Self {
        Self { all: 0b1111, by_name: Arc::default() }
    }

    /// Reads words such as `ack` or `release orders:*`. Every set includes [`Right::Look`].
    ///
    /// # Errors
    /// A sentence with the wrong word.
    pub fn parse<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Self, String> {
        let (mut all, mut by_name) = (Right::Look.bit(), Vec::new());
        for phrase in words {
            let (word, glob) = match phrase.trim().split_once(char::is_whitespace) {
                Some((word, glob)) => (word, Some(glob.trim())),
                None => (phrase.trim(), None),
            };
            let right = Right::ALL.into_iter().find(|right| right.as_str() == word);
            let right = right.ok_or_else(|| {
                format!("`{word}` is not a right: expected look, ack, watch or release")
            })?;
            match glob {
                None => all |= right.bit(),
                Some(glob) if right.has_subject() => by_name.push((right, glob.to_owned())),
                Some(glob) => {
                    return Err(format!(
                        "`{word}` applies to everything: omit `{glob}` (only ack and release take lock names)"
                    ));
                }
            }
        }
        Ok(Self { all, by_name: by_name.into() })
    }

    /// Returns true if the right is granted for all locks.
    #[must_use]
    pub fn has(&self, right: Right) -> bool {
        self.all & right.bit() != 0
    }

    /// Returns true if the right is granted for this lock.
    #[must_use]
    pub fn has_for(&self, right: Right, name: &LockName) -> bool {
        self.has(right)
            || self.by_name.iter().any(|(granted, glob)| {
                *granted == right && glob_matches(glob.as_bytes(), name.as_bytes())
            })
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let by_name = self.by_name.iter().chain(other.by_name.iter()).cloned().collect();
        Self { all: self.all | other.all, by_name }
    }
}
