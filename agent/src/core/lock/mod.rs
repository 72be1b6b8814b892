//! Locks by name: local queues, attempts, hand-over, release, quotas.

pub(in crate::core) mod acquire;
mod contest;
mod deadlock;
mod fair;
mod fencing;
pub(in crate::core) mod grant;
mod joiners;
pub(in crate::core) mod mlock;
pub(in crate::core) mod mlock_state;
mod node_subscriptions;
mod policy;
mod queue;
mod quota;
pub(in crate::core) mod release;
pub(in crate::core) mod released;
pub(in crate::core) mod replicas;
pub(in crate::core) mod state;
pub(in crate::core) mod table;
pub(in crate::core) mod vanished;
mod wait;
pub(in crate::core) mod waiter;
