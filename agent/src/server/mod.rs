//! The Unix socket and its connections: bytes to commands, replies to bytes.

pub mod accept;
pub mod connection;
pub mod file_budget;
pub mod handshake;
pub mod peer;
mod permits;
pub mod process;
pub mod socket;
pub mod stopped;
