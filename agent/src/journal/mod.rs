//! The journal: a durable log of the sessions with grace, from which the next agent restores them.
//!
//! A file in the state folder with one JSON [`Record`] per line. The core decides what to record and holds back a grant's
//! reply until the record is written; [`Writer`] appends batches of records on a blocking thread. Nothing is synced to the
//! disk, because a host that goes down takes its workers with it. Records of an earlier boot therefore serve only to clean
//! up Redis.

mod file;
mod record;
mod restored;
mod writer;

pub use file::{File, open};
pub use record::{HoldRecord, OrphanRecord, Record, SessionRecord};
pub use restored::{Restored, RestoredSession};
pub use writer::{Outcome, Writer};
