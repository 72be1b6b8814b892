//! The journal: what a killed agent's successor must know of sessions that outlive their connections.
//!
//! A file in the state folder, one JSON [`Record`] a line. The core says what is to be noted and tells nobody of a grant
//! before that is done; [`Writer`] appends, many records at a time, off the thread that serves locks. Nothing is synced
//! to the disk: what ends the host ends its workers too. The records of another boot, or of another agent's uuid, are
//! therefore worth nothing but for tidying up.

mod file;
mod past;
mod record;
mod writer;

pub use file::{File, open};
pub use past::{Past, PastSession};
pub use record::{HoldRecord, Record, SessionRecord, TraceRecord};
pub use writer::{Outcome, Writer};
