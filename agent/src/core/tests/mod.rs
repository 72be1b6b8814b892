//! The core against a small model of Redis.

mod doubt;
mod fair;
mod locks;
mod multi;
mod read_write;
mod trouble;
mod world;
