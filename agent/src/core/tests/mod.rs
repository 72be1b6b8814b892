//! The core against a small model of Redis.

mod locks;
mod trouble;
mod world;
