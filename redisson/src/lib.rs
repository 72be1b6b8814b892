//! Redisson's locks as they stand in Redis, and what we do to them.
//!
//! A lock is one hash: a field per holder, the field's value its reentrancy count, the key's time to live the
//! lease. This crate knows the names, the keys and channels, our own scripts with typed arguments and replies,
//! the arithmetic of leases, and what a hash must look like to be a lock.
//!
//! It is pure: no tokio, no sockets, no clock, no randomness, no metrics. Instants and numbers are passed in.

#![warn(missing_docs)]

pub mod group;
pub mod holder;
pub mod keys;
pub mod kind;
pub mod lease;
pub mod monitor;
pub mod name;
pub mod script;
pub mod shape;
pub mod slot;

pub use group::Grouping;
pub use holder::{ClientId, HolderId};
pub use kind::{Family, Kind};
pub use lease::{Lease, Moment};
pub use name::LockName;
pub use slot::slot;
