//! The core against a small model of Redis.

mod delay;
mod doubt;
mod fair;
mod frozen;
mod grace;
mod journal;
mod locks;
mod multi;
mod notes;
mod read_write;
mod red;
mod replicas;
mod trouble;
mod world;
