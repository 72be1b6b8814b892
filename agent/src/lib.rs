//! The agent: local workers ask it for locks over a Unix socket, and it takes them in Redis as Redisson would.

pub mod command;
pub mod connection;
pub mod core;
pub mod driver;
pub mod metrics;
pub mod peer;
pub mod process;
pub mod resp;
pub mod session;
