//! `make chaos`: workers of every kind on two agents and one Redis, a seeded mix of faults, and a judge of what the
//! workers observed.

mod faults;
mod history;
mod judge;
mod report;
mod servers;
mod stage;
mod worker;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};

use servers::Kind;

/// Applies faults for a while and judges the history of all grants and losses.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// Seconds of faults.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Repeats the mix of faults; the timing of processes differs from run to run.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The kind of Redis; several run one after another.
    #[arg(long, value_enum, default_value = "single", value_delimiter = ',')]
    redis: Vec<Choice>,
    /// The setting of that name for agents whose master has a replica; with it a failover must not lose a hold.
    #[arg(long, default_value_t = 0)]
    pub(crate) min_replicas: u8,
    /// Prints the verdict as JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Stores the history in this file, which must not exist.
    #[arg(long)]
    history: Option<PathBuf>,
    /// Makes workers ignore losses, to show that the judge finds it.
    #[arg(long)]
    pub(crate) ignore_loss: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Judges a recorded history.
    Check { file: PathBuf },
    /// A single worker; a run starts these and kills them.
    #[command(hide = true)]
    Worker(worker::Arguments),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Choice {
    /// One server that keeps its data.
    Single,
    /// A master, a replica and three sentinels.
    Sentinel,
    /// Three masters, each with a replica.
    Cluster,
    /// Each of them.
    All,
}

impl Choice {
    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Single => &[Kind::Single],
            Self::Sentinel => &[Kind::Sentinel],
            Self::Cluster => &[Kind::Cluster],
            Self::All => &[Kind::Single, Kind::Sentinel, Kind::Cluster],
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // One thread for everything: the children are set to die with the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match &arguments.role {
        Some(Role::Worker(worker)) => return runtime.block_on(worker::run(worker)),
        Some(Role::Check { file }) => return judged(&history::read(file)?, arguments.json),
        None => {}
    }
    let kinds: Vec<Kind> =
        arguments.redis.iter().flat_map(|choice| choice.kinds()).copied().collect();
    ensure!(
        kinds.len() == 1 || arguments.history.is_none(),
        "--history stores one run: choose one kind with --redis"
    );
    let mut broken = Vec::new();
    for kind in kinds {
        let events = runtime.block_on(run(kind, &arguments))?;
        report::headline(kind, arguments.json);
        // The other kinds run in any case.
        broken.extend(judged(&events, arguments.json).err());
    }
    broken.pop().map_or(Ok(()), Err)
}

/// Prints the verdict on a history.
///
/// # Errors
/// Returns an error if the history breaks a rule, or proves nothing.
fn judged(events: &[history::Event], json: bool) -> Result<()> {
    let verdict = judge::judge(events);
    report::print(&verdict, json)?;
    let found = verdict.findings.len();
    ensure!(found == 0, "the history breaks {found} rules");
    ensure!(verdict.grants > 0, "the history has no grants");
    Ok(())
}

async fn run(kind: Kind, arguments: &Arguments) -> Result<Vec<history::Event>> {
    harness::programs::path("lockscope-agent")?;
    let folder = tempfile::tempdir()?;
    let path = arguments.history.clone().unwrap_or_else(|| folder.path().join("history.jsonl"));
    ensure!(!path.exists(), "{} exists already", path.display());
    let mut stage = stage::Stage::new(kind, &path, folder.path(), arguments).await?;
    faults::inject(&mut stage, arguments.seconds).await?;
    stage.heal().await?;
    history::read(&path)
}
