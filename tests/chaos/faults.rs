//! The faults, each of which ends before the next one begins.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::proxy::{Flow, Proxy, Way};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::history::{What, now};
use crate::servers::Kind;
use crate::stage::{LEASE, Stage};

/// The faults of every run.
const ALWAYS: [&str; 9] = [
    "worker killed",
    "worker stopped",
    "agent killed",
    "agent killed, journal damaged",
    "agent stopped",
    "agent stopped beyond its lease",
    "connections cut",
    "lock forced",
    "data lost",
];

/// The lock that is released by force.
const FORCED: &str = "plain";

/// A pause longer than the time the judge gives a queue of fair waiters to settle.
const CALM: Duration = Duration::from_secs(35);

fn faults(kind: Kind) -> Vec<&'static str> {
    let more: &[&str] = match kind {
        Kind::Single => &[
            "Redis killed",
            "Redis stopped",
            "host cut off",
            "replies lost",
            "requests held",
            "requests delayed",
        ],
        Kind::Sentinel => &["master killed", "master stopped", "failover", "partition"],
        Kind::Cluster => {
            &["master killed", "master stopped", "failover", "partition", "slot moved"]
        }
    };
    [ALWAYS.as_slice(), more].concat()
}

/// Applies faults for that many seconds, and in any case each kind once before any repeats. A calm period follows each
/// round.
pub(crate) async fn inject(stage: &mut Stage, seconds: u64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut left = faults(stage.servers.kind());
    sleep(Duration::from_secs(2)).await;
    let mut first_round = true;
    while first_round || Instant::now() < end {
        if left.is_empty() {
            left = faults(stage.servers.kind());
            sleep(CALM).await;
        }
        let i = pick(stage, left.len())?;
        let fault = left.swap_remove(i);
        first_round &= !left.is_empty();
        stage.replace_ended()?;
        let from = now();
        apply(stage, fault).await.with_context(|| format!("cannot apply `{fault}`"))?;
        let data_lost = match fault {
            "data lost" | "lock forced" => true,
            // Replicas lag behind unless agents wait for them.
            "master killed" | "master stopped" | "failover" | "partition" => !stage.min_replicas,
            _ => false,
        };
        let lock = (fault == "lock forced").then(|| FORCED.to_owned());
        stage.recorder.record(What::Fault { name: fault.to_owned(), from, data_lost, lock })?;
        let calm = Duration::from_millis(500 + stage.random.below(1_500));
        sleep(calm).await;
    }
    Ok(())
}

fn pick(stage: &mut Stage, end: usize) -> Result<usize> {
    Ok(usize::try_from(stage.random.below(u64::try_from(end)?))?)
}

async fn apply(stage: &mut Stage, fault: &str) -> Result<()> {
    let of_worker = pick(stage, stage.workers.len())?;
    let of_host = pick(stage, stage.hosts.len())?;
    let short = Duration::from_millis(200 + stage.random.below(2_000));
    match fault {
        "worker killed" => {
            stage.kill(of_worker).await?;
            stage.workers[of_worker] = stage.worker(of_worker)?;
        }
        "worker stopped" => {
            let worker = &mut stage.workers[of_worker];
            // A worker that ends meanwhile is found before the next fault.
            if worker.signal(Signal::STOP).is_ok() {
                sleep(short).await;
                worker.thaw().ok();
            }
        }
        "agent killed" => stage.hosts[of_host].agent.restart().await?,
        "agent killed, journal damaged" => {
            let part = stage.random.below(100);
            let agent = &mut stage.hosts[of_host].agent;
            agent.process().kill()?;
            damage(&agent.folder().join("state/journal"), part)?;
            agent.restart().await?;
        }
        "agent stopped" | "agent stopped beyond its lease" => {
            let beyond = if fault == "agent stopped" { Duration::ZERO } else { LEASE };
            let agent = stage.hosts[of_host].agent.process();
            agent.freeze().await?;
            sleep(beyond + short).await;
            agent.thaw()?;
        }
        "Redis killed" => stage.servers.node(0).restart().await?,
        "Redis stopped" => {
            let redis = stage.servers.node(0).process();
            redis.freeze().await?;
            sleep(short).await;
            redis.thaw()?;
        }
        "data lost" => drop(stage.servers.each("FLUSHALL").await?),
        "lock forced" => {
            let mut client = stage.hosts[of_host].agent.client().await?;
            // The agent may still be unable to reach Redis.
            client.call(&format!("FORCE {FORCED}")).await?;
        }
        "master killed" | "master stopped" | "failover" => fail_over(stage, fault, short).await?,
        "partition" => partition(stage, short).await?,
        "slot moved" => stage.servers.move_slot("fenced").await?,
        "connections cut" if stage.servers.kind() != Kind::Single => {
            stage.servers.each("CLIENT KILL TYPE normal").await?;
        }
        _ => network(stage, of_host, fault, short).await,
    }
    Ok(())
}

/// Overwrites one byte of a journal, at that position in percent.
fn damage(journal: &Path, part: u64) -> Result<()> {
    // Before the first session with grace there is no journal.
    let mut bytes = std::fs::read(journal).unwrap_or_default();
    let at = bytes.len() * usize::try_from(part)? / 100;
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 0xff;
        std::fs::write(journal, bytes)?;
    }
    Ok(())
}

/// Promotes a replica while its master is dead, stopped or healthy, and waits until the old master follows it.
async fn fail_over(stage: &mut Stage, fault: &str, short: Duration) -> Result<()> {
    stage.servers.settle().await?;
    let masters = stage.servers.masters().await?;
    let master = masters[pick(stage, masters.len())?];
    match fault {
        "master killed" => stage.servers.node(master).process().kill()?,
        "master stopped" => stage.servers.node(master).process().freeze().await?,
        _ => {}
    }
    stage.servers.fail_over(master).await?;
    sleep(short).await;
    match fault {
        "master killed" => {
            stage.servers.node(master).restart().await?;
            stage.servers.admit().await?;
        }
        "master stopped" => stage.servers.node(master).process().thaw()?,
        _ => {}
    }
    stage.servers.settle().await
}

/// Leaves a master alone with the agent of the first host, and promotes its replica on the other side.
async fn partition(stage: &mut Stage, short: Duration) -> Result<()> {
    stage.servers.settle().await?;
    let masters = stage.servers.masters().await?;
    let master = masters[pick(stage, masters.len())?];
    stage.hosts[0].ways.iter().for_each(Proxy::part);
    stage.servers.isolate(master).await?;
    stage.servers.fail_over(master).await?;
    sleep(LEASE + short).await;
    stage.servers.rejoin(master).await?;
    stage.hosts[0].ways.iter().for_each(Proxy::heal);
    stage.servers.settle().await
}

async fn network(stage: &Stage, host: usize, fault: &str, short: Duration) {
    let Some(proxy) = stage.hosts[host].ways.first() else { return };
    let (way, flow) = match fault {
        "connections cut" => return proxy.cut(),
        "host cut off" => {
            proxy.part();
            sleep(LEASE + short).await;
            return proxy.heal();
        }
        "replies lost" => (Way::Down, Flow::Swallow),
        "requests held" => (Way::Up, Flow::Hold),
        _ => (Way::Up, Flow::Delay(Duration::from_millis(100))),
    };
    let lines = proxy.lines(None);
    for line in &lines {
        line.set(way, flow);
    }
    sleep(short).await;
    // A line that has lost bytes stays silent until its agent replaces it.
    if fault != "replies lost" {
        for line in &lines {
            line.set(way, Flow::Pass);
        }
    }
}
