//! Locks by name: local queues, attempts, hand-over, release, quotas.

pub(in crate::core) mod acquire;
mod deadlock;
pub(in crate::core) mod fair;
pub(in crate::core) mod fencing;
mod grant;
pub(in crate::core) mod multi;
pub(in crate::core) mod quota;
pub(in crate::core) mod release;
pub(in crate::core) mod replicas;
pub(in crate::core) mod state;
pub(in crate::core) mod waiter;
