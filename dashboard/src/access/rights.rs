//! Rights of visitors.

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

    fn bit(self) -> u8 {
        match self {
            Self::Look => 1,
            Self::Ack => 2,
            Self::Watch => 4,
            Self::Release => 8,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    pub const ALL: Self = Self(0b1111);

    /// Reads words. Every set includes [`Right::Look`].
    ///
    /// # Errors
    /// A sentence with the unknown word.
    pub fn parse<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Self, String> {
        let mut rights = Self(Right::Look.bit());
        for word in words {
            let right = Right::ALL.into_iter().find(|right| right.as_str() == word);
            let right = right.ok_or_else(|| {
                format!("`{word}` is no right: expected look, ack, watch or release")
            })?;
            rights.0 |= right.bit();
        }
        Ok(rights)
    }

    #[must_use]
    pub fn has(self, right: Right) -> bool {
        self.0 & right.bit() != 0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
