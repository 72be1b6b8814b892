//! The core against a small model of Redis.

mod doubt;
mod locks;
mod trouble;
mod world;
