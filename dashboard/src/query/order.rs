//! The direction of a sorted list.

/// The direction in which a list is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, utoipa::ToSchema)]
pub enum Order {
    #[schema(rename = "asc")]
    Ascending,
    #[schema(rename = "desc")]
    Descending,
}

impl Order {
    /// Returns the word for the order in addresses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ascending => "asc",
            Self::Descending => "desc",
        }
    }

    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Ascending, Self::Descending].into_iter().find(|order| order.as_str() == word)
    }

    #[must_use]
    pub fn reversed(self) -> Self {
        match self {
            Self::Ascending => Self::Descending,
            Self::Descending => Self::Ascending,
        }
    }

    #[must_use]
    pub fn is_ascending(self) -> bool {
        self == Self::Ascending
    }
}
