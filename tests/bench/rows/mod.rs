//! The rows of the bench: each measures the agent, its peers and the bare limits in one run, round by round.

mod browser;
mod contended;
mod dashboard;
mod dead_worker;
mod growth;
mod libraries;
mod memory;
mod neighbours;
mod redisson;
mod renewals;
mod replicated;
mod traces;
mod uncontended;

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use harness::client::encode;
use harness::{Agent, RedisServer};

use crate::crowd::Plan;
use crate::limits::{self, Limits};
use crate::peers::{self, Peer};
use crate::report::{Round, Row};

/// The time after which an agent without work is at rest: its threads and connections start in the first seconds.
const AT_REST: Duration = Duration::from_secs(3);
/// The number of workers with locks of their own.
const OWN_WORKERS: usize = 64;
/// The number of workers that compete for one lock.
const CONTENDERS: usize = 50;

/// A row of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// One worker acquires and releases a free lock
    Uncontended,
    /// 64 workers, each with a lock of its own
    OwnLocks,
    /// 50 workers of one host, one lock
    OneLock,
    /// Workers of two hosts, one lock
    TwoHosts,
    /// The client libraries: a free lock, and 50 workers that compete for one
    Libraries,
    /// 50 workers with a lock each, with one lock, and with one fair lock: the agent, and Redisson in a JVM
    Redisson,
    /// 50 workers wait, each acquires the lock once
    Drain,
    /// 100,000 locks held and renewed, first alone, then during a flood of PINGs
    Renewals,
    /// 100,000 locks renewed by an agent whose server has a replica, which must confirm renewals or need not
    ReplicatedRenewals,
    /// A worker with a free lock, while another user floods the agent in eight ways
    Neighbours,
    /// A lock whose worker dies
    DeadWorker,
    /// An agent with nothing to do
    Memory,
    /// 64 workers with locks of their own: traces off, of one in a hundred, of all
    Traces,
    /// From a change in Redis to the row in a browser, with 500 open streams
    Browser,
    /// A dashboard that knows 10,000 locks, and 100,000
    KnownLocks,
    /// A dashboard's first scan of a million keys
    FirstScan,
    /// The cost of each dashboard source for Redis
    SourceCost,
    /// The cost of a dashboard for Redis with 10,000 locks that are renewed every ten seconds
    RenewedLocks,
    /// An agent's costs by the number of holds, waiters, names and sessions
    GrowthAgent,
    /// The costs of Redis by the number of idle agents, up to a thousand, and of dashboards
    GrowthFleet,
    /// A dashboard's costs by the number of locks, up to a million
    GrowthDashboard,
}

/// The options of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// The number of rounds.
    pub(crate) rounds: usize,
    /// The duration of each measurement in a round.
    pub(crate) time: Duration,
    /// Also measures other libraries.
    pub(crate) peers: bool,
}

impl Name {
    /// Returns whether the row takes minutes a round, and much memory.
    pub(crate) fn takes_long(self) -> bool {
        matches!(self, Self::GrowthAgent | Self::GrowthFleet | Self::GrowthDashboard)
    }

    /// Measures one row.
    pub(crate) async fn run(self, options: Options) -> Result<Row> {
        let value = self.to_possible_value().context("no row is hidden")?;
        let name = value.get_name().to_owned();
        let about = value.get_help().map(ToString::to_string).unwrap_or_default();
        let stage = Stage::new(options).await?;
        let rounds = match self {
            Self::Uncontended => uncontended::uncontended(stage).await,
            Self::OwnLocks => uncontended::own_locks(stage).await,
            Self::OneLock => contended::one_lock(stage).await,
            Self::TwoHosts => contended::two_hosts(stage).await,
            Self::Libraries => libraries::libraries(stage).await,
            Self::Redisson => redisson::redisson(stage).await,
            Self::Drain => contended::drain(stage).await,
            Self::Renewals => renewals::renewals(stage).await,
            Self::ReplicatedRenewals => replicated::replicated(stage).await,
            Self::Neighbours => neighbours::neighbours(stage).await,
            Self::DeadWorker => dead_worker::dead_worker(stage).await,
            Self::Memory => memory::memory(stage).await,
            Self::Traces => traces::traces(stage).await,
            Self::Browser => browser::browser(stage).await,
            Self::KnownLocks => dashboard::known_locks(stage).await,
            Self::FirstScan => dashboard::first_scan(stage).await,
            Self::SourceCost => dashboard::source_cost(stage).await,
            Self::RenewedLocks => dashboard::renewed_locks(stage).await,
            Self::GrowthAgent => growth::agent(stage).await,
            Self::GrowthFleet => growth::fleet(stage).await,
            Self::GrowthDashboard => growth::dashboard(stage).await,
        };
        let rounds = rounds.with_context(|| format!("row {name}"))?;
        Ok(Row::new(name, about, rounds))
    }
}

/// A private Redis, an agent on it, and the peers.
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

    /// Measures the bare limits and records them in `round`.
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

/// Runs blocking work on another thread: child processes die with the runtime's thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}
