//! Tests of the whole dashboard, in this process, against real Redis servers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::string_slice,
    reason = "what tests share may fail as they do"
)]

mod access;
mod acknowledge;
mod attacks;
mod bundle;
mod history;
mod http;
mod incident;
mod keyspace;
mod kinds;
mod live;
mod look_alikes;
mod metrics;
mod monitor;
mod redis_server;
mod release;
mod serving;
mod sources;
mod trace;
mod trouble;
