//! Decodes lock traffic from MONITOR.
//!
//! MONITOR prints every command that a server runs, including those that a script calls, but no replies. The outcome of
//! a script follows from the commands that it called.

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
mod server_role;
#[cfg(test)]
mod tests;
mod traced_lines;
mod unit;

pub use decoder::{Decoder, LineCounts};
pub use event::{Action, Address, Certainty, Event};
pub use server_role::ServerRole;
