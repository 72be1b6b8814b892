//! Red locks: `RedissonRedLock` over three independent servers, and the agent's `KIND red` on the same names.

use std::sync::Arc;

use anyhow::{Result, ensure};
use harness::jvm::{Pending, Thread};
use harness::{Agent, Client, Jvm, RedisServer, Reply, eventually};

use super::LEASE;
use super::bed::{open, shared};
use super::sections::{Crowd, Dying, Guard, shares, tally};

/// Gives each server of a busy machine the time to answer.
const NODE_TIMEOUT: [&str; 2] = ["--node-timeout", "2s"];

/// Three servers of red locks, one for everything else, an agent, and a Redisson client for each of the three.
struct RedBed {
    agent: Agent,
    jvm: Arc<Jvm>,
    prefix: String,
    servers: Vec<RedisServer>,
    main: RedisServer,
}

/// Starts an agent, and waits until it has reached all of these servers.
async fn agent(main: &RedisServer, servers: &[RedisServer], flags: &[&str]) -> Result<Agent> {
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let mut all = flags.to_vec();
    urls.iter().for_each(|url| all.extend(["--redlock-url", url]));
    let agent = Agent::with(main, &all).await?;
    eventually("the agent to reach all servers", async || {
        let up = agent.metrics().await?.sum("lockscope_agent_redis_up", &[]);
        ensure!(up == 4.0, "{up} of 4");
        Ok(())
    })
    .await;
    Ok(agent)
}

impl RedBed {
    async fn new(flags: &[&str], settings: &str) -> Result<Self> {
        let main = RedisServer::start().await?;
        let mut servers = Vec::new();
        for _ in 0..3 {
            servers.push(RedisServer::start().await?);
        }
        let agent = agent(&main, &servers, flags).await?;
        let (jvm, prefix) = (shared()?, format!("{}:", main.port()));
        for (number, server) in servers.iter().enumerate() {
            open(&jvm, &format!("{prefix}{number}"), server, settings).await?;
        }
        Ok(Self { agent, jvm, prefix, servers, main })
    }

    /// Starts a further agent.
    async fn another_agent(&self) -> Result<Agent> {
        agent(&self.main, &self.servers, &[]).await
    }

    /// Starts both sides with leases and polls so long that only a message can wake a waiter.
    async fn patient() -> Result<Self> {
        let flags = [["--lease", LEASE], ["--poll-max", LEASE], NODE_TIMEOUT].concat();
        Self::new(&flags, "watchdog=600000").await
    }

    /// Returns the names of the clients, one for each server.
    fn clients(&self) -> [String; 3] {
        [0, 1, 2].map(|number| format!("{}{number}", self.prefix))
    }

    /// Returns a Java thread: it belongs to the first client, and its locks to all three.
    fn thread(&self, thread: u32) -> Thread {
        self.jvm.thread(&self.clients()[0], thread)
    }

    fn java(&self, thread: u32) -> JavaRed {
        JavaRed { thread: self.thread(thread), guard: Guard::red(&self.clients(), "till") }
    }

    /// Acquires a plain lock on one of the servers, for a further thread.
    async fn hold_on(&self, server: usize) -> Result<()> {
        let thread = self.jvm.thread(&format!("{}{server}", self.prefix), 99);
        thread.call("getLock till . lock").await.map(drop)
    }

    async fn session(&self) -> Result<Client> {
        self.agent.client().await
    }

    async fn holders(&self) -> Result<Vec<Vec<String>>> {
        self.holders_of("till").await
    }

    /// Returns the holders of a lock on each server.
    async fn holders_of(&self, name: &str) -> Result<Vec<Vec<String>>> {
        let mut holders = Vec::new();
        for server in &self.servers {
            let fields = server.client().await?.call_args(&["HKEYS", name]).await?.ok()?;
            holders.push(fields.items()?.iter().map(Reply::text).collect());
        }
        Ok(holders)
    }

    /// Waits until the agent is subscribed to the lock's channel on each server.
    async fn until_agent_is_subscribed(&self) {
        until_subscribed(&self.servers).await;
    }

    /// Waits until a Java thread is subscribed to it: the thread sleeps at the first server's lock, and continues with the
    /// others once it holds that one.
    async fn until_java_is_subscribed(&self) {
        until_subscribed(&self.servers[..1]).await;
    }

    async fn until_free(&self, name: &str) {
        eventually("the lock to be free on all servers", async || {
            let holders = self.holders_of(name).await?;
            ensure!(holders.iter().all(Vec::is_empty), "{holders:?}");
            Ok(())
        })
        .await;
    }
}

/// Waits until one client is subscribed to the lock's channel on each of the servers.
async fn until_subscribed(servers: &[RedisServer]) {
    for server in servers {
        eventually("the waiter's subscription", async || {
            let channel = "PUBSUB NUMSUB redisson_lock__channel:{till}";
            let numsub = server.client().await?.call(channel).await?.items()?[1].int()?;
            ensure!(numsub == 1, "{numsub} subscribers");
            Ok(())
        })
        .await;
    }
}

impl Drop for RedBed {
    fn drop(&mut self) {
        self.jvm.print_log();
        for client in self.clients() {
            // A JVM that has ended has closed its clients.
            drop(self.jvm.thread(&client, 0).begin("close"));
        }
    }
}

struct JavaRed {
    thread: Thread,
    guard: Guard,
}

impl JavaRed {
    fn begin(&self, call: &str) -> Result<Pending> {
        self.guard.begin(&self.thread, call)
    }

    async fn call(&self, call: &str) -> Result<String> {
        Ok(self.begin(call)?.answer().await??)
    }

    async fn is(&self, call: &str) -> Result<bool> {
        Ok(self.call(call).await?.parse()?)
    }
}

const LOCK: &str = "LOCK till KIND red";

#[tokio::test]
async fn both_sides_exclude_each_other_on_every_server() -> Result<()> {
    let bed = RedBed::patient().await?;
    let (java, mut worker) = (bed.java(1), bed.session().await?);
    java.call("lock").await?;
    assert!(bed.holders().await?.iter().all(|holders| holders.len() == 1));
    assert_eq!(worker.call(&format!("{LOCK} NOWAIT")).await?, Reply::Null);
    java.call("unlock").await?;
    bed.until_free("till").await;

    let held = worker.call(LOCK).await?.ok()?;
    let field = held.field("holder")?.text();
    eventually("the agent's field on each server", async || {
        let holders = bed.holders().await?;
        ensure!(holders.iter().all(|holders| *holders == [field.clone()]), "{holders:?}");
        Ok(())
    })
    .await;
    assert!(!java.is("tryLock").await?);
    assert!(!java.is("tryLock 50 1000 ms").await?);
    let holders = bed.holders().await?;
    assert!(
        holders.iter().all(|holders| *holders == [field.clone()]),
        "nothing is left: {holders:?}"
    );
    worker.call("UNLOCK till").await?.ok()?;
    bed.until_free("till").await;
    assert!(java.is("tryLock").await?);
    Ok(())
}

#[tokio::test]
async fn a_lock_is_granted_if_others_hold_a_minority_but_not_a_majority() -> Result<()> {
    let bed = RedBed::new(&NODE_TIMEOUT, "").await?;
    let (java, mut worker) = (bed.java(1), bed.session().await?);
    bed.hold_on(2).await?;
    worker.call(&format!("{LOCK} NOWAIT")).await?.ok()?.field("holder")?;
    assert!(!java.is("tryLock").await?, "one free server is not a majority");
    worker.call("UNLOCK till").await?.ok()?;
    assert!(java.is("tryLock").await?);
    assert_eq!(worker.call(&format!("{LOCK} NOWAIT")).await?, Reply::Null);
    java.call("unlock").await?;
    bed.hold_on(1).await?;
    assert_eq!(worker.call(&format!("{LOCK} NOWAIT")).await?, Reply::Null);
    assert!(!java.is("tryLock").await?);
    assert!(bed.holders().await?[0].is_empty(), "both sides have released their minority");
    Ok(())
}

#[tokio::test]
async fn the_agents_release_wakes_java() -> Result<()> {
    let bed = RedBed::patient().await?;
    let (java, mut worker) = (bed.java(1), bed.session().await?);
    for _ in 0..3 {
        worker.call(LOCK).await?.ok()?.field("holder")?;
        let waiting = java.begin("lock")?;
        bed.until_java_is_subscribed().await;
        worker.call("UNLOCK till").await?.ok()?;
        waiting.answer().await??;
        java.call("unlock").await?;
        bed.until_free("till").await;
    }
    Ok(())
}

/// Java's thread holds the lock under a different client id on each server, since it has a client for each.
#[tokio::test]
async fn javas_release_wakes_the_agents_waiter() -> Result<()> {
    let bed = RedBed::patient().await?;
    let (java, mut worker) = (bed.java(1), bed.session().await?);
    for _ in 0..3 {
        java.call("lock").await?;
        worker.send(LOCK).await?;
        bed.until_agent_is_subscribed().await;
        java.call("unlock").await?;
        worker.reply().await?.ok()?.field("holder")?;
        worker.call("UNLOCK till").await?.ok()?;
        bed.until_free("till").await;
    }
    Ok(())
}

/// The number of locks of a test's sections; each has its own workers.
const TILLS: usize = 5;

/// Runs that many sections of each side under several red locks, by Java threads and by sessions of two agents. Other
/// workers may die meanwhile.
async fn mixed(each_side: usize, dying: bool) -> Result<()> {
    let bed = RedBed::new(&[], "").await?;
    let second = bed.another_agent().await?;
    let (mut crowd, agents) = (Crowd::default(), [&bed.agent, &second]);
    let tills: Vec<_> = (0..TILLS).map(|n| (format!("till{n}"), format!("counter{n}"))).collect();
    let (by_thread, by_session) = (each_side / TILLS / 2, each_side / TILLS / 4);
    for (thread, (till, counter)) in (1..).step_by(2).zip(&tills) {
        let guard = Guard::red(&bed.clients(), till);
        let threads = [bed.thread(thread), bed.thread(thread + 1)];
        guard.warm_up(&threads).await?;
        let counter = (&bed.servers[0], counter.as_str());
        crowd.add(&guard, counter, (&threads, by_thread), (&agents, 4, by_session)).await?;
    }
    let mut at_least = 2 * each_side;
    if dying {
        let (guard, servers) = (Guard::red(&bed.clients(), &tills[0].0), bed.servers.iter());
        let clients = bed.clients().into_iter().zip(servers).collect();
        let (agent, counters) = (&bed.agent, &bed.servers[0]);
        let ((key, counter), queues, reads) = (&tills[0], false, false);
        let dying = Dying { agent, guard, counters, counter, clients, key, queues, reads };
        let (done, written) = tokio::join!(crowd.done(), dying.all(2));
        done?;
        at_least += written?;
    } else {
        crowd.done().await?;
    }
    let (mut direct, mut total) = (bed.servers[0].client().await?, 0);
    for (till, counter) in &tills {
        let tally = tally(&mut direct, counter).await?;
        ensure!(tally.turns >= 20, "{till}: one side waited until the other was done: {tally:?}");
        total += tally.total;
        bed.until_free(till).await;
    }
    ensure!(total >= at_least, "{total} sections, at least {at_least} of them ended");
    ensure!(total == at_least || dying, "{total} sections");
    Ok(())
}

#[tokio::test]
async fn both_sides_exclude_each_other_in_ten_thousand_sections() -> Result<()> {
    mixed(5_000, false).await
}

/// Sessions, processes and JVMs die while they hold a majority of the servers or fewer.
#[tokio::test]
async fn both_sides_exclude_each_other_while_workers_are_killed() -> Result<()> {
    mixed(5_000, true).await
}

/// Neither side may starve the other: workers of both sides contend for one lock, without a pause between sections,
/// until one side is done.
#[tokio::test]
async fn each_side_gets_its_share_of_a_contended_lock() -> Result<()> {
    const EACH: usize = 400;
    let bed = RedBed::new(&[], "").await?;
    let second = bed.another_agent().await?;
    let (guard, mut crowd) = (Guard::red(&bed.clients(), "till"), Crowd::default());
    let threads = [1, 2, 3, 4].map(|thread| bed.thread(thread));
    guard.warm_up(&threads).await?;
    let counter = (&bed.servers[0], "counter");
    let agents = [&bed.agent, &second];
    crowd.add(&guard, counter, (&threads, EACH / 4), (&agents, 4, EACH / 4)).await?;
    crowd.done().await?;
    let mut direct = bed.servers[0].client().await?;
    tally(&mut direct, "counter").await?;
    let [agents, javas] = shares(&mut direct, "counter", EACH).await?;
    let fifth = (agents + javas) / 5;
    ensure!(agents.min(javas) >= fifth, "{agents} sections of the agents, {javas} of Redisson");
    Ok(())
}

/// A forced release ends a thread's hold on all servers, although its id differs there, and wakes both sides.
#[tokio::test]
async fn an_operator_can_release_the_hold_of_either_side() -> Result<()> {
    let bed = RedBed::patient().await?;
    let (holder, waiter) = (bed.java(1), bed.java(2));
    let (mut worker, mut operator) = (bed.session().await?, bed.session().await?);
    holder.call("lock").await?;
    let one = bed.holders().await?[2][0].clone();
    assert_eq!(operator.call(&format!("FORCE till HOLDER {one}")).await?.int()?, 1);
    bed.until_free("till").await;

    worker.call(LOCK).await?.ok()?.field("holder")?;
    let waiting = waiter.begin("lock")?;
    bed.until_java_is_subscribed().await;
    assert_eq!(operator.call("FORCE till").await?.int()?, 1);
    waiting.answer().await??;
    let lost = worker.call("UNLOCK till").await?;
    assert!(lost.is_error("LOST") && lost.text().contains("forced"), "{lost}");

    worker.send(LOCK).await?;
    bed.until_agent_is_subscribed().await;
    assert_eq!(operator.call("FORCE till").await?.int()?, 1);
    worker.reply().await?.ok()?.field("holder")?;
    worker.call("UNLOCK till").await?.ok()?;
    bed.until_free("till").await;
    Ok(())
}
