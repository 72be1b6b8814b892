//! The final test of exclusion: workers of two agents count under one lock while everything fails in turn. Afterwards
//! no integer may be missing or doubled.

use anyhow::{Context as _, Result, ensure};
use harness::proxy::{Flow, Gate, Place, Way};
use harness::{Agent, Client, PATIENCE, Proxy, RedisServer, Worker, eventually, within};

use super::{COMMANDS, MESSAGES, RENEWALS, hold_a_script, ready};

/// The number of new integers that proves progress.
const PROGRESS: i64 = 10;

/// Two hosts, each with workers and with an agent that has a separate path to the Redis of the locks.
struct Stage {
    redis: RedisServer,
    /// Stores the list; never fails.
    resource: RedisServer,
    list: Client,
    hosts: [Host; 2],
    appended: Vec<i64>,
    killed: usize,
}

struct Host {
    proxy: Proxy,
    agent: Agent,
    workers: Vec<Worker>,
}

impl Stage {
    async fn new(locks: &[&str]) -> Result<Self> {
        // This Redis keeps everything that it has confirmed, whatever happens to it.
        let redis = RedisServer::with(&[("appendonly", "yes"), ("appendfsync", "always")]).await?;
        let resource = RedisServer::start().await?;
        let list = resource.client().await?;
        let hosts = [Host::new(&redis).await?, Host::new(&redis).await?];
        let mut stage = Self { redis, resource, list, hosts, appended: Vec::new(), killed: 0 };
        for host in 0..2 {
            for lock in locks {
                stage.hire(host, lock)?;
            }
        }
        Ok(stage)
    }

    fn hire(&mut self, host: usize, lock: &str) -> Result<()> {
        let resource = self.resource.socket();
        let Host { agent, workers, .. } = &mut self.hosts[host];
        workers.push(Worker::counter(&agent.socket(), agent.folder(), &resource, lock, "list")?);
        Ok(())
    }

    /// Kills the oldest worker of a host; what it is about to append may or may not be appended.
    async fn fire(&mut self, host: usize) -> Result<()> {
        let worker = self.hosts[host].workers.remove(0);
        self.killed += 1;
        for line in worker.last_lines().await? {
            self.appended.push(line.parse()?);
        }
        Ok(())
    }

    async fn length(&mut self) -> Result<i64> {
        self.list.call("LLEN list").await?.int()
    }

    /// Waits until further integers have been appended.
    async fn go_on(&mut self, what: &str) -> Result<()> {
        let enough = self.length().await? + PROGRESS;
        within(PATIENCE, what, async || {
            let length = self.length().await?;
            ensure!(length >= enough, "{length} of {enough} integers are there");
            Ok(())
        })
        .await;
        Ok(())
    }

    async fn integers(&mut self) -> Result<Vec<i64>> {
        let list = self.list.call("LRANGE list 0 -1").await?.ok()?;
        list.items()?.iter().map(|item| Ok(item.text().parse()?)).collect()
    }

    /// Ends all workers and checks the integers.
    async fn judge(mut self) -> Result<()> {
        for host in 0..2 {
            while !self.hosts[host].workers.is_empty() {
                self.fire(host).await?;
            }
        }
        let integers = self.integers().await?;
        let wrong = (1..).zip(&integers).find(|(expected, found)| expected != *found);
        ensure!(wrong.is_none(), "expected and found: {wrong:?}, in {integers:?}");
        self.appended.sort_unstable();
        let doubled = self.appended.windows(2).find(|pair| pair[0] == pair[1]);
        ensure!(doubled.is_none(), "two workers have appended {doubled:?}");
        let (surely, there) = (self.appended.len(), integers.len());
        ensure!(
            surely <= there && there <= surely + self.killed,
            "{there} integers, {surely} of them reported, {} workers killed",
            self.killed
        );
        Ok(())
    }
}

impl Host {
    async fn new(redis: &RedisServer) -> Result<Self> {
        let proxy = Proxy::tcp(Place::Port(redis.port())).await?;
        let agent = Agent::at(&proxy.url(), &["--lease", "4s"]).await?;
        ready(&agent).await;
        Ok(Self { proxy, agent, workers: Vec::new() })
    }

    /// Waits until the agent reports that Redis is out of reach.
    async fn until_cut_off(&self) {
        eventually("the agent to be cut off", async || {
            let ready = harness::http::get(self.agent.http(), "/readyz").await?;
            ensure!(ready.status == 503, "{}", ready.body);
            Ok(())
        })
        .await;
    }
}

/// Most of the time the lock is handed over within a host.
#[tokio::test]
async fn no_integer_is_lost_or_doubled_while_everything_fails_in_turn() -> Result<()> {
    everything_fails(Stage::new(&["counter"; 3]).await?).await
}

/// The lock is really released each time and passes to the other host.
#[tokio::test]
async fn no_integer_is_lost_or_doubled_between_hosts_with_a_worker_each() -> Result<()> {
    everything_fails(Stage::new(&["counter"]).await?).await
}

async fn everything_fails(mut stage: Stage) -> Result<()> {
    stage.go_on("a start").await?;

    for host in [0, 1] {
        stage.hosts[host].proxy.cut();
        stage.go_on("connections cut").await?;

        for link in [COMMANDS, RENEWALS, MESSAGES] {
            stage.hosts[host].proxy.line(link).await.set(Way::Down, Flow::Swallow);
            stage.go_on("replies lost").await?;
        }

        for _ in 0..5 {
            let stuck = hold_a_script(&stage.hosts[host].proxy, COMMANDS).await?;
            stage.go_on("scripts held").await?;
            stuck.set(Way::Up, Flow::Pass);
            stage.go_on("scripts delivered late").await?;
        }

        stage.hosts[host].proxy.part();
        stage.hosts[host].until_cut_off().await;
        stage.go_on("one host parted").await?;
        stage.hosts[host].proxy.heal();
        ready(&stage.hosts[host].agent).await;

        stage.hosts[host].proxy.gate(Gate::Refuse);
        stage.hosts[host].proxy.cut();
        stage.go_on("one host refused").await?;
        stage.hosts[host].proxy.gate(Gate::Open);

        for _ in 0..3 {
            stage.fire(host).await?;
            stage.hire(host, "counter")?;
            stage.go_on("a worker killed").await?;
        }
        stage.hosts[host].workers[0].process().freeze().await?;
        stage.hosts[host].workers[0].process().thaw()?;
        stage.go_on("a worker stopped for a moment").await?;

        stage.hosts[host].agent.process().freeze().await?;
        stage.go_on("one agent stopped beyond its leases").await?;
        stage.hosts[host].agent.process().thaw()?;
        stage.go_on("one agent awake again").await?;

        stage.hosts[host].agent.restart().await?;
        stage.go_on("one agent killed and back").await?;

        stage.hosts[host].proxy.shift_clock(3_600);
        stage.go_on("the clock stepped").await?;
    }

    let mut direct = stage.redis.client().await?;
    for command in ["SCRIPT FLUSH", "CLIENT KILL TYPE normal SKIPME yes", "CLIENT KILL TYPE pubsub"]
    {
        direct.call(command).await?.ok()?;
        stage.go_on(command).await?;
    }
    for (broken, mended) in [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        ("CLIENT PAUSE 600000 WRITE", "CLIENT UNPAUSE"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ] {
        direct.call(broken).await?.ok()?;
        let errors = "lockscope_agent_redis_errors_total";
        let before = stage.hosts[0].agent.metrics().await?.sum(errors, &[]);
        eventually("the agent to notice", async || {
            let count = stage.hosts[0].agent.metrics().await?.sum(errors, &[]);
            ensure!(count > before, "no script has failed under {broken}");
            Ok(())
        })
        .await;
        direct.call(mended).await?.ok()?;
        stage.go_on(mended).await?;
    }
    stage.redis.process().freeze().await?;
    stage.hosts[0].until_cut_off().await;
    stage.redis.process().thaw()?;
    stage.go_on("Redis stopped for a while").await?;
    stage.redis.restart().await.context("Redis with its data")?;
    stage.go_on("Redis killed and back with its data").await?;
    stage.judge().await
}

#[tokio::test]
async fn the_judge_detects_a_lock_that_does_not_exclude() -> Result<()> {
    // Each worker has a different lock.
    let mut stage = Stage::new(&["one", "another"]).await?;
    stage.go_on("a start").await?;
    eventually("an integer to be doubled", async || {
        let integers = stage.integers().await?;
        ensure!((1..).zip(&integers).any(|(expected, found)| expected != *found));
        Ok(())
    })
    .await;
    assert!(stage.judge().await.is_err());
    Ok(())
}
