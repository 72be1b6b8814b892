//! The layout of Redisson's locks in Redis, and the scripts that change them.
//!
//! A lock is one hash with a field per holder. The value of the field is the hold count; the TTL of the key is the lease.
//! This crate covers names, keys and channels, Lockscope's own scripts with typed arguments and replies, lease
//! arithmetic, the shape a hash must have to be a lock, and the decoding of lock traffic from MONITOR.
//!
//! The crate is pure: no tokio, sockets, clock, randomness or metrics. Callers pass in instants and numbers.

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
pub mod signed_entry;
pub mod slot;

pub use group::Grouping;
pub use holder::{ClientId, HolderId};
pub use kind::{Family, Kind};
pub use lease::{Lease, Moment, millis};
pub use name::LockName;
pub use slot::slot;
