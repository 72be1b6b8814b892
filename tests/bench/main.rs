//! `make bench`: the agent, its peers and the bare limits, compared in one run.
//!
//! Every target is a ratio, or a plain number if the promise is one. On a machine that does other work, absolute
//! figures mean little; ratios within one round are more reliable.

mod accepted;
mod compare;
mod crowd;
mod flood;
mod limits;
mod peers;
mod report;
mod rows;
mod stats;
mod wire;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum as _};

use crate::accepted::Accepted;

/// Measures the agent beside other lock libraries and the bare limits of this machine.
#[derive(Debug, Parser)]
struct Arguments {
    /// Rows to measure; if none is named, all but those of growth
    rows: Vec<rows::Name>,
    /// Number of rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Duration of each measurement in a round, in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Only the agent and the bare limits, no other libraries
    #[arg(long)]
    no_peers: bool,
    /// One JSON document instead of a table
    #[arg(long)]
    json: bool,
    /// Compare with the programs in this folder, in alternating rounds; `make bench BASE=COMMIT` builds them
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["json", "accept"])]
    base: Option<PathBuf>,
    /// Store the ratios in tests/bench/accepted.json, with which later runs are compared
    #[arg(long)]
    accept: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!((0.1..=600.0).contains(&arguments.seconds), "--seconds: expected 0.1 to 600");
    // Build before the measurements start.
    harness::programs::path("lockscope-agent")?;
    // One thread for everything: the children receive a signal when the thread that started them ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(arguments))
}

async fn run(arguments: Arguments) -> Result<()> {
    let options = rows::Options {
        rounds: usize::try_from(arguments.rounds)?,
        time: Duration::from_secs_f64(arguments.seconds),
        peers: !arguments.no_peers,
    };
    let mut names = arguments.rows;
    if names.is_empty() {
        names = rows::Name::value_variants().to_vec();
        names.retain(|name| !name.takes_long());
    }
    let mut out = std::io::stdout();
    if let Some(base) = &arguments.base {
        for name in names {
            writeln!(out, "{}", compare::row(name, base, options).await?)?;
        }
        return Ok(());
    }
    let mut accepted = Accepted::read()?;
    let mut worse = Vec::new();
    let mut documents = Vec::new();
    for name in names {
        let row = name.run(options).await?;
        if arguments.accept {
            accepted.accept(&row);
        } else {
            worse.extend(accepted.worse(&row));
        }
        if arguments.json {
            documents.push(row.json());
        } else {
            writeln!(out, "{}", row.text())?;
        }
    }
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&documents)?)?;
        return Ok(());
    }
    if arguments.accept {
        accepted.write()?;
    }
    ensure!(
        worse.is_empty(),
        "worse than accepted in each round:\n  {}\nRun these rows again on a quiet machine, and with BASE=COMMIT. If the cost is \
         wanted, store it with --accept and say so in the commit.",
        worse.join("\n  ")
    );
    Ok(())
}
