//! What MONITOR shows, read as lock traffic.
//!
//! MONITOR prints each command a server runs, for a script also those that it calls, but never a reply. What became
//! of a lock is told by the commands that its script went on to call.

mod commands;
mod decoder;
pub mod event;
mod intent;
mod judge;
mod line;
mod own;
mod recent;
#[cfg(test)]
mod tests;
mod unit;
mod verb;
mod words;

pub use decoder::{Counts, Decoder, Vantage};
pub use event::{Address, Certainty, Event, What};
