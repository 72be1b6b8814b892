//! Reads that the model requests from the poll.

use redisson::shape::Holder;
use redisson::{HolderId, LockName, Moment};

/// A request to read one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRequest {
    pub name: LockName,
    pub known: KnownParts,
}

/// The parts that a lock had when it was last read, which are then requested by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownParts {
    /// The hash's fields. Empty: the key is probed step by step.
    pub fields: Vec<Vec<u8>>,
    /// The hash probably has no other fields now: nothing has reported a change since the last reading.
    pub settled: bool,
    /// Readers with their hold counts.
    pub readers: Vec<(HolderId, i64)>,
    /// The waiters in the queue.
    pub waiting: Vec<HolderId>,
    /// The fencing token is to be read.
    pub token: bool,
    /// The last reading, where revalidating it is enough.
    pub revalidate: Option<LastReading>,
}

/// The last reading of a plain lock that nobody renews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastReading {
    /// Its only holder; the hash has no other fields.
    pub holder: Holder,
    /// The earliest and the latest instant at which it expires.
    pub expires: (Moment, Moment),
}
