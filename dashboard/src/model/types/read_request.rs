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
    /// The hash's fields. If empty, the key is probed step by step.
    pub fields: Vec<Vec<u8>>,
    /// True if the hash probably has no other fields now, since nothing has reported a change after the last reading.
    pub settled: bool,
    /// Readers with their hold counts.
    pub readers: Vec<(HolderId, i64)>,
    /// The waiters in the queue.
    pub waiting: Vec<HolderId>,
    /// True if the fencing token is to be read.
    pub token: bool,
    /// True if it had a fencing token.
    pub fenced: bool,
    /// The last reading, if it is enough to revalidate it.
    pub revalidate: Option<LastReading>,
}

/// The last reading of a plain lock that is not renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastReading {
    /// The only holder. The hash has no other fields.
    pub holder: Holder,
    /// The earliest and the latest instant at which it expires.
    pub expires: (Moment, Moment),
}
