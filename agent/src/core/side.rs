//! Sides of a lock.

use redisson::Kind;

/// The side of a lock that a hold is on. A write hold is exclusive; its owner may have a shared one under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::core) enum Side {
    /// The read side of a read-write lock.
    Shared,
    /// The write side, or a lock of another kind.
    Exclusive,
}

impl Side {
    pub(in crate::core) const BOTH: [Self; 2] = [Self::Exclusive, Self::Shared];

    pub(in crate::core) fn of(kind: Kind) -> Self {
        if kind == Kind::Read { Self::Shared } else { Self::Exclusive }
    }
}
