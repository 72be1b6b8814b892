//! Plumbing that both programs share: the link to Redis, settings, logs, traces, shutdown, health
//! and metrics routes. Nothing in here knows what a lock is.
//!
//! A program starts in this order: [`settings::load`], [`telemetry::init`],
//! [`redis::install_crypto_provider`], then its listeners, then [`redis::Link::start`].
//! Whatever runs in the background is spawned through [`shutdown::Shutdown`], so that an end is
//! orderly and names who was late.

#![warn(missing_docs)]

pub mod clock;
pub mod http;
pub mod memory;
pub mod metrics;
pub mod open_files;
pub mod redis;
pub mod settings;
pub mod shutdown;
pub mod signing;
pub mod stderr;
pub mod telemetry;
pub mod trace;
