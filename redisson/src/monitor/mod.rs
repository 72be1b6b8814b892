//! What MONITOR shows, read as lock traffic.
//!
//! MONITOR prints each command a server runs, for a script also those that it calls, but never a reply. What became
//! of a lock is told by the commands that its script went on to call.

pub mod event;

pub use event::{Address, Certainty, Event, What};
