//! The answer of a filter for a class of locks.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The filter matches no lock of the class.
    No,
    /// The class matches. Each lock's name and times decide.
    ByRow,
    /// The class matches. Each lock's name, times and thread decide.
    ByThread,
}

impl From<bool> for Answer {
    fn from(yes: bool) -> Self {
        if yes { Self::ByRow } else { Self::No }
    }
}
