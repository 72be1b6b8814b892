//! The core against a small model of Redis.

mod chaos;
mod locks;
mod trouble;
mod world;
