//! The rows of the bench: each measures the agent, its peers and the bare limits in one run, round by round.

mod alone;
mod browser;
mod dead_worker;
mod kept;
mod memory;
mod rivals;
mod traces;
mod watching;

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use harness::client::encode;
use harness::{Agent, RedisServer};

use crate::crowd::Plan;
use crate::limits::{self, Limits};
use crate::peers::{self, Peer};
use crate::report::{Round, Row};

/// How many workers have locks of their own.
const OWN_WORKERS: usize = 64;
/// How many want the same one.
const RIVALS: usize = 50;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// One worker takes a free lock and gives it back
    Uncontended,
    /// 64 workers, each with a lock of its own
    OwnLocks,
    /// 50 workers of one host, one lock
    OneLock,
    /// Workers of two hosts, one lock
    TwoHosts,
    /// 50 workers wait, each has the lock once
    Drain,
    /// 100,000 locks held, and a flood of PINGs beside them
    Kept,
    /// A lock whose worker dies
    DeadWorker,
    /// An agent with nothing to do
    Memory,
    /// 64 workers with locks of their own: traces off, of one in a hundred, of all
    Traces,
    /// From a change in Redis to the row in a browser, with 500 streams beside it
    Browser,
    /// A dashboard that knows 10,000 locks, and 100,000
    KnownLocks,
    /// A dashboard's first picture of a million keys
    FirstPicture,
    /// What each way to look costs Redis
    LookedAt,
}

/// How to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// How often.
    pub(crate) rounds: usize,
    /// How long everything is measured in each round.
    pub(crate) time: Duration,
    /// Beside other libraries.
    pub(crate) peers: bool,
}

impl Name {
    /// Measures one row.
    pub(crate) async fn run(self, options: Options) -> Result<Row> {
        let value = self.to_possible_value().context("no row is hidden")?;
        let name = value.get_name().to_owned();
        let about = value.get_help().map(ToString::to_string).unwrap_or_default();
        let stage = Stage::new(options).await?;
        let rounds = match self {
            Self::Uncontended => alone::uncontended(stage).await,
            Self::OwnLocks => alone::own_locks(stage).await,
            Self::OneLock => rivals::one_lock(stage).await,
            Self::TwoHosts => rivals::two_hosts(stage).await,
            Self::Drain => rivals::drain(stage).await,
            Self::Kept => kept::kept(stage).await,
            Self::DeadWorker => dead_worker::dead_worker(stage).await,
            Self::Memory => memory::memory(stage).await,
            Self::Traces => traces::traces(stage).await,
            Self::Browser => browser::browser(stage).await,
            Self::KnownLocks => watching::known_locks(stage).await,
            Self::FirstPicture => watching::first_picture(stage).await,
            Self::LookedAt => watching::looked_at(stage).await,
        };
        let rounds = rounds.with_context(|| format!("row {name}"))?;
        Ok(Row::new(name, about, rounds))
    }
}

/// A Redis of our own, an agent on it, and the peers.
struct Stage {
    redis: RedisServer,
    agent: Agent,
    peers: Vec<Peer>,
    options: Options,
}

impl Stage {
    async fn new(options: Options) -> Result<Self> {
        let redis = RedisServer::start().await?;
        let agent = Agent::start(&redis).await?;
        let peers = if options.peers { peers::all()? } else { Vec::new() };
        Ok(Self { redis, agent, peers, options })
    }

    /// The bare limits, measured now and noted in `round`.
    async fn limits(&self, round: &mut Round) -> Result<Limits> {
        let (port, time) = (self.redis.port(), self.options.time);
        let limits = blocking(move || limits::measure(port, time)).await?;
        round.figure("bare echo", peers::P50, limits.echo);
        round.figure("bare script", peers::P50, limits.script);
        round.figure("bare pair", peers::P50, limits.pair);
        Ok(limits)
    }
}

/// Workers of an agent, each with the lock that `lock` names for it.
fn workers(agent: &Agent, count: usize, lock: impl Fn(usize) -> String) -> Result<Vec<Plan>> {
    let plan = |worker| {
        let lock = lock(worker);
        Plan::unix(&agent.socket(), encode(&["LOCK", &lock]), encode(&["UNLOCK", &lock]))
    };
    (0..count).map(plan).collect()
}

/// Runs what blocks on a thread of its own: the runtime's is the one that children die with.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}
