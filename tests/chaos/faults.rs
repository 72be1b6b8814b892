//! The faults, each of which ends before the next one begins.

use std::time::Duration;

use anyhow::{Context as _, Result};
use harness::proxy::{Flow, Way};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::history::{What, now};
use crate::stage::{LEASE, Stage};

const FAULTS: [&str; 13] = [
    "worker killed",
    "worker stopped",
    "agent killed",
    "agent stopped",
    "agent stopped beyond its lease",
    "Redis killed",
    "Redis stopped",
    "connections cut",
    "host cut off",
    "replies lost",
    "requests held",
    "requests delayed",
    "data lost",
];

/// Applies faults for that many seconds, each kind once before any comes again.
pub(crate) async fn inject(stage: &mut Stage, seconds: u64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut left: Vec<&str> = Vec::new();
    sleep(Duration::from_secs(2)).await;
    while Instant::now() < end {
        if left.is_empty() {
            left.extend(FAULTS);
        }
        let i = pick(stage, left.len())?;
        let fault = left.swap_remove(i);
        stage.replace_ended()?;
        let from = now();
        apply(stage, fault).await.with_context(|| format!("cannot apply `{fault}`"))?;
        let data_lost = fault == "data lost";
        stage.recorder.record(What::Fault { name: fault.to_owned(), from, data_lost })?;
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
            let victim = stage.workers[of_worker].pid();
            stage.recorder.record(What::Killed { victim })?;
            stage.workers[of_worker].kill()?;
            stage.workers[of_worker] = stage.worker(of_worker)?;
        }
        "worker stopped" => {
            let worker = &mut stage.workers[of_worker];
            // One that ends meanwhile is found before the next fault.
            if worker.signal(Signal::STOP).is_ok() {
                sleep(short).await;
                worker.thaw().ok();
            }
        }
        "agent killed" => stage.hosts[of_host].agent.restart().await?,
        "agent stopped" | "agent stopped beyond its lease" => {
            let beyond = if fault == "agent stopped" { Duration::ZERO } else { LEASE };
            let agent = stage.hosts[of_host].agent.process();
            agent.freeze().await?;
            sleep(beyond + short).await;
            agent.thaw()?;
        }
        "Redis killed" => stage.redis.restart().await?,
        "Redis stopped" => {
            stage.redis.process().freeze().await?;
            sleep(short).await;
            stage.redis.process().thaw()?;
        }
        "data lost" => {
            stage.redis.client().await?.call("FLUSHALL").await?.ok()?;
        }
        _ => network(stage, of_host, fault, short).await,
    }
    Ok(())
}

async fn network(stage: &Stage, host: usize, fault: &str, short: Duration) {
    let proxy = &stage.hosts[host].proxy;
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
