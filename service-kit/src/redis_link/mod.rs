//! The programs' connections to Redis. All that is known about reaching a server, logging in and
//! noticing that it is gone is in here.
//!
//! - [`Target`] says which server, as whom, into which database.
//! - [`Deployment`] is one, or a cluster, or the master that sentinels name. [`Cluster`] keeps track of which node of a
//!   cluster serves which slot, [`Sentinel`] of which server is the master; an [`Aim`] is what a connection follows.
//! - [`Link`] is one supervised connection for commands: always either up or being re-established,
//!   and every call on it ends within the response time-out, with an answer or with a [`CallError`]
//!   that says whether the command may have run.
//! - [`Subscriber`] is one supervised connection for pub/sub, which keeps a set of wishes subscribed.
//! - [`Tap`] is one connection with MONITOR on, not supervised: whether to open it again is not for plumbing to say.
//!
//! Anything that blocks the server's side of a connection needs one of its own.

mod aim;
mod backoff;
mod check;
mod cluster;
mod deployment;
mod dial;
mod error;
mod greeting;
mod link;
mod replicas;
mod resp;
mod sentinel;
mod server_info;
mod shared;
mod subscriber;
mod supervisor;
mod tap;
mod target;
pub(crate) mod tls;

pub use aim::Aim;
pub use cluster::{Cluster, ClusterOptions, ClusterState, Slots};
pub use deployment::{ClusterTarget, Deployment};
pub use error::{CallError, Redirect, ServerError};
pub use link::{Link, LinkOptions, LinkState, LinkStatus, eval};
pub use replicas::{ReadsFrom, Replicas};
pub use sentinel::{Sentinel, SentinelOptions, SentinelTarget};
pub use server_info::{Role, ServerInfo};
pub use subscriber::{PubSubEvent, Subscriber, SubscriberOptions};
pub use tap::{Tap, TapError};
pub use target::{Address, Target, TargetError};
pub use tls::install_crypto_provider;
