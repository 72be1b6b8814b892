//! The servers of Redis, two agents, and their workers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::proxy::Place;
use harness::{Agent, Process, Proxy, eventually, http, process};
use tokio::time::{Instant, sleep};

use crate::Arguments;
use crate::history::{self, Recorder, What};
use crate::judge;
use crate::servers::{Kind, Servers};
use harness::random::Random;

/// The agents' lease: long enough for a busy machine.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// A time longer than waiters' places in a fair queue outlive their agent: living waiters remove them. Some seconds of
/// it are without any fault nearby, so that the judge examines the order of fair locks.
const PLACES: Duration = Duration::from_secs(26);
/// The time limit, once all faults are over, for every lock to be granted and everything to be released.
const HEALED: Duration = Duration::from_secs(120);

/// The kind, the locks, and the lease in milliseconds of each worker of an agent.
const WORKERS: [(&str, &[&str], Option<u64>); 16] = [
    ("lock", &["plain"], None),
    ("lock", &["plain"], None),
    ("lock", &["plain"], Some(3_000)),
    ("lock", &["leased"], Some(2_000)),
    ("lock", &["leased"], Some(4_000)),
    ("fenced", &["fenced"], None),
    ("fenced", &["fenced"], None),
    ("fair", &["fair"], None),
    ("fair", &["fair"], None),
    ("fair", &["fair"], None),
    ("fair", &["fair"], None),
    ("read", &["shared"], None),
    ("read", &["shared"], None),
    ("write", &["shared"], None),
    ("lock", &["first", "second"], None),
    ("lock", &["second", "first"], None),
];

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) servers: Servers,
    pub(crate) hosts: Vec<Host>,
    pub(crate) workers: Vec<Process>,
    pub(crate) random: Random,
    pub(crate) recorder: Recorder,
    history: PathBuf,
    folder: PathBuf,
    ignore_loss: bool,
    pub(crate) min_replicas: bool,
}

#[derive(Debug)]
pub(crate) struct Host {
    /// The proxies to a single server or, on the first host, to the sentinels; agents find other servers by themselves.
    pub(crate) ways: Vec<Proxy>,
    pub(crate) agent: Agent,
}

impl Stage {
    pub(crate) async fn new(
        kind: Kind,
        history: &Path,
        folder: &Path,
        arguments: &Arguments,
    ) -> Result<Self> {
        let mut servers = Servers::start(kind).await?;
        let lease = format!("{}s", LEASE.as_secs());
        let replicas = arguments.min_replicas.to_string();
        let mut flags = vec!["--lease", lease.as_str()];
        let min_replicas = arguments.min_replicas > 0 && kind != Kind::Single;
        if min_replicas {
            flags.extend(["--min-replicas", replicas.as_str()]);
        }
        let mut hosts = Vec::new();
        servers.admit().await?;
        for host in 0..2 {
            let mut ways = Vec::new();
            let mut url = servers.url();
            if host == 0 || kind == Kind::Single {
                for port in servers.public_ports()? {
                    ways.push(Proxy::tcp(Place::Port(port)).await?);
                }
                url = servers.url_on_that_side(&ways);
            }
            let agent = Agent::at(&url, &flags).await?;
            hosts.push(Host { ways, agent });
        }
        let mut stage = Self {
            servers,
            hosts,
            workers: Vec::new(),
            random: Random::new(arguments.seed),
            recorder: Recorder::open(history, 0)?,
            history: history.to_owned(),
            folder: folder.to_owned(),
            ignore_loss: arguments.ignore_loss,
            min_replicas,
        };
        for i in 0..2 * WORKERS.len() {
            let worker = stage.worker(i)?;
            stage.workers.push(worker);
        }
        Ok(stage)
    }

    /// Starts the worker with that number.
    pub(crate) fn worker(&mut self, i: usize) -> Result<Process> {
        let (kind, locks, lease) = WORKERS[i % WORKERS.len()];
        let agent = &self.hosts[i / WORKERS.len()].agent;
        // This running program, even after a build has replaced its file.
        let program = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
        let mut command = process::command(&program);
        command.arg("worker").args(["--kind", kind]);
        command.arg("--socket").arg(agent.socket()).arg("--history").arg(&self.history);
        command.args(["--seed", &self.random.below(u64::MAX).to_string()]);
        for lock in locks {
            command.args(["--lock", lock]);
        }
        if let Some(lease) = lease {
            command.args(["--lease-ms", &lease.to_string()]);
        }
        if i.is_multiple_of(3) {
            command.arg("--grace");
        }
        if self.ignore_loss {
            command.arg("--ignore-loss");
        }
        Process::spawn("worker", command, &self.folder.join(format!("worker-{i}.log")), None)
    }

    /// Kills the worker with that number. It is frozen before the kill is recorded, so that it records no grant afterwards.
    pub(crate) async fn kill(&mut self, i: usize) -> Result<()> {
        if self.workers[i].freeze().await.is_err() {
            // It has just ended by itself.
            self.replace_ended()?;
            self.workers[i].freeze().await?;
        }
        let worker = &mut self.workers[i];
        self.recorder.record(What::Killed { victim: worker.pid() })?;
        worker.kill()
    }

    /// Records workers that have ended by themselves, with the end of their logs, and starts new ones.
    pub(crate) fn replace_ended(&mut self) -> Result<()> {
        for i in 0..self.workers.len() {
            let worker = &mut self.workers[i];
            if let Some(status) = worker.ended()? {
                let log = worker.log();
                let log = log.lines().last().unwrap_or("nothing logged");
                let log = format!("{status}: {log}");
                self.recorder.record(What::Ended { victim: worker.pid(), log })?;
                self.workers[i] = self.worker(i)?;
            }
        }
        Ok(())
    }

    /// Waits until every lock has been granted again, ends the workers, and looks for their leftovers in Redis.
    pub(crate) async fn heal(&mut self) -> Result<()> {
        for host in &self.hosts {
            eventually("the agent to be ready", async || {
                let ready = http::get(host.agent.http(), "/readyz").await?;
                ensure!(ready.status == 200, "{}", ready.body);
                Ok(())
            })
            .await;
        }
        let mut locks: Vec<_> =
            WORKERS.iter().flat_map(|worker| worker.1).map(|&lock| lock.to_owned()).collect();
        locks.sort();
        locks.dedup();
        self.recorder.record(What::Healed { locks })?;
        sleep(PLACES).await;
        let end = Instant::now() + HEALED;
        loop {
            let verdict = judge::judge(&history::read(&self.history)?);
            if verdict.findings.iter().all(|finding| finding.rule != "liveness")
                || Instant::now() > end
            {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
        self.replace_ended()?;
        for i in 0..self.workers.len() {
            self.kill(i).await?;
        }
        self.servers.settle().await?;
        let end = Instant::now() + HEALED;
        loop {
            let keys = self.servers.each("KEYS *").await?.into_iter();
            // Keys of agents and of tokens remain.
            let left: Vec<_> = keys
                .filter(|key| {
                    !key.starts_with("lockscope:") && !key.starts_with("redisson_lock_token:")
                })
                .collect();
            if left.is_empty() || Instant::now() > end {
                return left
                    .into_iter()
                    .try_for_each(|key| self.recorder.record(What::LeftOver { key }));
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}
