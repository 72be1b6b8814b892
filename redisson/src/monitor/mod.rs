//! What MONITOR shows, read as lock traffic.
//!
//! MONITOR prints each command a server runs, for a script also those that it calls, but never a reply. What became
//! of a lock is told by the commands that its script went on to call.

mod bare_commands;
mod byte_strings;
mod classify;
mod command;
mod decoder;
pub mod event;
mod intent;
mod known_locks;
mod line;
mod own_scripts;
#[cfg(test)]
mod tests;
mod unit;

pub use decoder::{Decoder, LineCounts, ServerRole};
pub use event::{Action, Address, Certainty, Event};
