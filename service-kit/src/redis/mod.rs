//! Connections to Redis: how to reach a server, log in to it, and notice that it is gone.
//!
//! - [`Target`] is one server, with credentials and database. [`Deployment`] is one server, the master that sentinels
//!   report, or a cluster.
//! - [`Endpoint`] is the place a connection goes to. Resolvers keep it current: [`resolve()`] those of fixed servers and
//!   of sentinels, [`Replicas`] that of a replica to read from. [`Cluster`] tracks which node serves which slot.
//! - [`Link`] is a supervised connection for commands. It reconnects on its own. Every call ends within the response
//!   timeout, with an answer or with a [`CallError`] that says whether the command may have run.
//! - [`Subscriber`] is a supervised connection for pub/sub, which resubscribes after each reconnect.
//! - [`Monitor`] is a connection with MONITOR on. Its user decides whether to open another one.
//!
//! A command that blocks the server's side of a connection needs a separate connection.

mod backoff;
mod batched;
mod deployment;
mod dial;
mod endpoint;
mod error;
mod excerpt;
mod fixed_address;
mod handshake;
mod link;
mod monitor;
mod password;
mod pubsub;
mod reply_limit;
mod resolve;
mod server_info;
mod server_watch;
mod target;
pub(crate) mod tls;
mod wire;

pub use deployment::{ClusterTarget, Deployment, SentinelTarget};
pub use endpoint::Endpoint;
pub use error::{CallError, Redirect, ServerError};
pub use link::{Link, LinkOptions, LinkState, LinkStatus, eval};
pub use monitor::{Monitor, MonitorError, OutputClass};
pub use password::Password;
pub use pubsub::{PubSubEvent, Subscriber, SubscriberOptions};
pub use resolve::{Cluster, ClusterState, ReadsFrom, Replicas, ResolverOptions, Slots, resolve};
pub use server_info::{Role, ServerInfo, is_redis_7};
pub use target::{Address, Target, TargetError};
pub use tls::{check_ca_file, install_crypto_provider};
