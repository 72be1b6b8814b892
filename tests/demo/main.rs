//! `make demo`: a private Redis, two agents, the dashboard, and many workers that behave as workers do in production,
//! mistakes included. Everything ends with this process.

mod actors;
mod counter;
mod scenes;
mod screenshots;
mod stage;
mod worker;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Starts Redis, two agents and the dashboard, and lets workers play on them.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only the programs, no workers: for trying things by hand.
    #[arg(long)]
    no_actors: bool,
    /// Use this Redis instead of a private one. With --no-actors the environment's `REDIS_URL` is used too;
    /// with workers it is not, since they fill it with locks, broken ones among them.
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
    /// Writes a screenshot of every page into this folder and ends.
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_actors")]
    screenshots: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// A single worker; the demo and the tests start these and kill them.
    #[command(hide = true)]
    Worker(worker::Arguments),
    /// A worker that shows by counting whether a lock excludes.
    #[command(hide = true)]
    Counter(counter::Arguments),
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match &arguments.role {
        Some(Role::Worker(worker)) => return worker::run(worker),
        Some(Role::Counter(counter)) => return counter::run(counter),
        None => {}
    }
    // Build before signals are caught, so that Ctrl-C ends a long build.
    harness::programs::path("lockscope-agent")?;
    // One thread for everything: the children receive a signal when the thread that started them ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let from_environment = if arguments.no_actors { std::env::var("REDIS_URL").ok() } else { None };
    let redis_url = arguments.redis_url.or(from_environment);
    runtime.block_on(stage::run(redis_url, !arguments.no_actors, arguments.screenshots))
}
