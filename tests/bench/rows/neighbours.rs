//! A worker's locks while another user floods the agent.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::agent::Metrics;
use harness::{Agent, user};
use tokio::time::{Instant, sleep};

use super::uncontended::pairs;
use super::{Stage, blocking};
use crate::flood::{Flood, Kind};
use crate::peers::{P50, P99};
use crate::report::{Bound, Round};
use crate::stats::float;
use crate::wire::{Caller, encode};

/// The numbers of connections that flood.
const CONNECTIONS: [usize; 4] = [1, 20, 100, 400];
/// The locks that the agent renews meanwhile, with names of the maximum length.
const HOLDS: usize = 3_000;
const NAME: usize = 500;
/// The time limit for the agent to notice that a flood is over.
const PATIENCE: Duration = Duration::from_secs(60);
const LATENESS: &str = "lockscope_agent_renewal_lateness_seconds";

/// Acquires locks that are renewed to the end, then measures a quiet worker without a flood and during each.
pub(super) async fn neighbours(stage: Stage) -> Result<Vec<Round>> {
    // At this lease renewals are sent every second.
    let agent = Agent::with(&stage.redis, &["--lease", "3s"]).await?;
    let (socket, time) = (agent.socket(), stage.options.time);
    let holder = blocking({
        let socket = socket.clone();
        move || {
            std::thread::spawn(move || take(&socket)).join().ok().context("the holder panicked")?
        }
    })
    .await?;
    let sessions = sessions(&agent.metrics().await?);
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let start = agent.metrics().await?;
        let (mut worst_p50, mut worst_p99, mut worst_late) = (0.0_f64, 0.0_f64, 0.0_f64);
        for kind in Kind::ALL {
            let quiet = Load::measure(&agent, time, None).await?;
            round.figure(format!("quiet, before {}", kind.name()), P50, quiet.p50);
            round.figure(format!("quiet, before {}", kind.name()), P99, quiet.p99);
            for connections in CONNECTIONS {
                let load = Load::measure(&agent, time, Some((kind, connections))).await?;
                let who = format!("{}, {connections} connections", kind.name());
                round.figure(&who, P50, load.p50);
                round.figure(&who, P99, load.p99);
                round.figure(&who, "× the quiet p50", load.p50 / quiet.p50);
                round.figure(&who, "ms, latest renewal at most", load.latest * 1e3);
                round.figure(&who, "replies/s to the flood", load.replies);
                worst_p50 = worst_p50.max(load.p50);
                worst_p99 = worst_p99.max(load.p99);
                worst_late = worst_late.max(load.latest);
                until_over(&agent, sessions).await?;
            }
        }
        round.target("p50 ≤ 10 ms in each flood", "ms", worst_p50 / 1e3, Bound::AtMost(10.0));
        round.target("p99 ≤ 50 ms in each flood", "ms", worst_p99 / 1e3, Bound::AtMost(50.0));
        round.target("no renewal late by 250 ms", "s", worst_late, Bound::AtMost(0.25));
        let lost = |metrics: &Metrics| metrics.sum("lockscope_agent_lost_holds_total", &[]);
        let lost = lost(&agent.metrics().await?) - lost(&start);
        round.target("no hold lost", "lost", lost, Bound::AtMost(0.0));
        rounds.push(round);
    }
    drop(holder);
    Ok(rounds)
}

/// Acquires the locks as the flooding user.
fn take(socket: &Path) -> Result<Caller<std::os::unix::net::UnixStream>> {
    ensure!(user::become_another()?, "neighbours need root, to be another user");
    let mut caller = Caller::unix(socket)?;
    for first in (0..HOLDS).step_by(500) {
        let lock = |number| encode(&["LOCK", &format!("{number:a>NAME$}")]);
        let requests: Vec<u8> = (first..first + 500).flat_map(lock).collect();
        caller.batch(&requests, 500)?;
    }
    Ok(caller)
}

/// The measurements of a quiet worker, and of the agent's renewals meanwhile.
struct Load {
    p50: f64,
    p99: f64,
    /// The upper bound of the latest renewal's delay in seconds.
    latest: f64,
    /// Replies to the flood a second.
    replies: f64,
}

impl Load {
    async fn measure(agent: &Agent, time: Duration, flood: Option<(Kind, usize)>) -> Result<Self> {
        let socket = agent.socket();
        let flood = flood.map(|(kind, connections)| Flood::start(&socket, kind, connections));
        // The flood reaches its peak, and renewals of all holds fall into the measurement.
        sleep(Duration::from_millis(300)).await;
        let time = time.max(Duration::from_secs(2));
        let before = agent.metrics().await?;
        let start = Instant::now();
        let (p50, p99) = blocking(move || pairs(&socket, time)).await?;
        let took = start.elapsed().as_secs_f64();
        let after = agent.metrics().await?;
        let replies = flood.map(Flood::stop).transpose()?.unwrap_or(0);
        Ok(Self { p50, p99, latest: latest(&before, &after)?, replies: float(replies) / took })
    }
}

/// Returns the bound of the highest bucket that the renewals between two readings have reached.
fn latest(before: &Metrics, after: &Metrics) -> Result<f64> {
    let since = |metric: &str, labels: &[(&str, &str)]| {
        let name = format!("{LATENESS}_{metric}");
        after.sum(&name, labels) - before.sum(&name, labels)
    };
    let all = since("count", &[]);
    ensure!(all > float(HOLDS as u64), "only {all} renewals during a measurement");
    let bounds = ["0.001", "0.01", "0.05", "0.25", "1", "2.5", "5"];
    let bound = bounds.iter().find(|bound| since("bucket", &[("le", bound)]) >= all);
    Ok(bound.map_or(f64::INFINITY, |bound| bound.parse().unwrap_or(f64::INFINITY)))
}

fn sessions(metrics: &Metrics) -> f64 {
    metrics.sum("lockscope_agent_sessions", &[])
}

/// Waits until the connections of the flood are closed.
async fn until_over(agent: &Agent, sessions_before: f64) -> Result<()> {
    let start = Instant::now();
    while sessions(&agent.metrics().await?) > sessions_before {
        ensure!(start.elapsed() < PATIENCE, "the agent still serves the flood after {PATIENCE:?}");
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
