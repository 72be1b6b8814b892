//! The agent's wire protocol: RESP frames, and the commands inside them.

pub mod command;
pub mod resp;
