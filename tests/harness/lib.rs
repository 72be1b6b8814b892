//! The foundation of the end-to-end tests and the demo: real processes, which start in their own folders and end with
//! their owner, and small clients that show every byte.
//!
//! Nothing here waits for a fixed time. Each wait names its condition ([`eventually`]), and fails at a deadline.

#![expect(clippy::panic, reason = "a harness fails a test by panicking")]

pub mod agent;
pub mod browser;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod dashboard;
pub mod foreign;
pub mod http;
pub mod jvm;
pub mod otlp;
pub mod process;
pub mod programs;
pub mod project;
pub mod prometheus;
pub mod proxy;
pub mod random;
pub mod redis;
pub mod reply;
pub mod sentinel;
pub mod user;
mod wait;
pub mod worker;

pub use agent::Agent;
pub use client::Client;
pub use clock::WallClock;
pub use cluster::RedisCluster;
pub use dashboard::Dashboard;
pub use foreign::Foreign;
pub use jvm::Jvm;
pub use otlp::SpanReceiver;
pub use process::Process;
pub use prometheus::{Alertmanager, Prometheus};
pub use proxy::Proxy;
pub use redis::RedisServer;
pub use reply::Reply;
pub use sentinel::Sentinels;
pub use wait::{PATIENCE, eventually, within};
pub use worker::Worker;
