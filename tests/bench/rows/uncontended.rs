//! Workers without contention.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::time::Instant;

use super::{OWN_WORKERS, Stage, blocking, workers};
use crate::crowd::{Crowd, Plan, Turns};
use crate::limits::Bare;
use crate::peers::{self, P50, P99, PAIRS, Task};
use crate::report::{Bound, Round};
use crate::stats::{Times, float};
use crate::wire::{Caller, encode};

/// Measures one worker with one free lock.
pub(super) async fn uncontended(stage: Stage) -> Result<Vec<Round>> {
    let (port, time) = (stage.redis.port(), stage.options.time);
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let limits = stage.limits(&mut round).await?;
        let socket = stage.agent.socket();
        let (p50, p99) = blocking(move || pairs(&socket, time)).await?;
        round.figure("lockscope-agent", P50, p50);
        round.figure("lockscope-agent", P99, p99);
        let allowed = limits.pair + 2.5 * limits.echo;
        let in_echoes = (p50 - limits.pair) / limits.echo;
        round.target("p50 ≤ pair + 2.5 echoes", "of that", p50 / allowed, Bound::AtMost(1.0));
        round.target("(the agent's own part)", "echoes", in_echoes, Bound::AtMost(2.5));
        round.target("p99 ≤ 3 × p50", "times", p99 / p50, Bound::AtMost(3.0));
        for peer in &stage.peers {
            peer.measure(&mut round, Task::Uncontended, port, 1, time).await?;
        }
        if stage.options.peers {
            let figures = peers::agent_from_python(&stage.agent.socket(), time).await?;
            let figure = |key| figures.get(key).and_then(Value::as_f64).context("no figure");
            round.figure("agent from redis-py", P50, figure("p50_us")?);
            round.figure("agent from redis-py", P99, figure("p99_us")?);
        }
        rounds.push(round);
    }
    Ok(rounds)
}

/// Returns the median and the 99th percentile of a pair on the agent's socket, in microseconds.
pub(super) fn pairs(socket: &Path, time: Duration) -> Result<(f64, f64)> {
    let mut agent = Caller::unix(socket)?;
    let lock = "bench:uncontended:agent";
    let (take, give) = (encode(&["LOCK", lock]), encode(&["UNLOCK", lock]));
    let mut times = Times::default();
    let start = Instant::now();
    while start.elapsed() < time {
        let began = Instant::now();
        agent.succeed(&take)?;
        agent.call(&give)?;
        times.add(began.elapsed());
    }
    Ok((times.median(), times.p99()))
}

/// Measures many workers, each with a different lock.
pub(super) async fn own_locks(stage: Stage) -> Result<Vec<Round>> {
    let (port, time) = (stage.redis.port(), stage.options.time);
    let mut rounds = Vec::new();
    for number in 0..stage.options.rounds {
        let mut round = Round::default();
        let bare = blocking(move || {
            let scripts = Bare::load(&mut Caller::tcp(port)?)?;
            let plan = |worker| {
                // Names are new each time: nobody releases what these workers hold at the end.
                let lock = format!("bench:bare:{number}:{worker}");
                Plan::tcp(port, scripts.acquire(&lock), scripts.release(&lock))
            };
            run((0..OWN_WORKERS).map(plan).collect::<Result<_>>()?, time)
        });
        let bare = bare.await?;
        round.figure("bare pairs", PAIRS, bare);
        let plans = workers(&stage.agent, OWN_WORKERS, |worker| format!("bench:agent:{worker}"))?;
        let ours = blocking(move || run(plans, time)).await?;
        round.figure("lockscope-agent", PAIRS, ours);
        let socket = stage.agent.socket();
        let shared = blocking(move || one_connection(&socket, time)).await?;
        round.figure("the same, one connection", PAIRS, shared);
        let wanted = "pairs ≥ 1.2 × bare";
        round.target(wanted, "times", ours / bare, Bound::AtLeast(1.2));
        let wanted = "on one connection, too";
        round.target(wanted, "times", shared / bare, Bound::AtLeast(1.2));
        let mut best: f64 = 0.0;
        for peer in &stage.peers {
            let figures = peer.measure(&mut round, Task::Own, port, OWN_WORKERS, time).await?;
            best = best.max(figures.get("pairs_per_s").and_then(Value::as_f64).unwrap_or(0.0));
        }
        if let Some(rslock) = stage.peers.iter().find(|peer| peer.name == "rslock") {
            round.target(
                "≥ 2 × the best peer",
                "times",
                ours.max(shared) / best,
                Bound::AtLeast(2.0),
            );
            let task = Task::OwnConnections;
            let figures = rslock.run(task, port, OWN_WORKERS, time).await?;
            let alike = figures.get("pairs_per_s").and_then(Value::as_f64).context("no figure")?;
            round.figure("rslock, a connection each", PAIRS, alike);
        }
        rounds.push(round);
    }
    Ok(rounds)
}

fn run(plans: Vec<Plan>, time: Duration) -> Result<f64> {
    let mut crowd = Crowd::new(plans)?;
    crowd.ask()?;
    let seen = crowd.run(Turns::For(time))?;
    Ok(seen.per_second(seen.total()))
}

/// Runs all workers as owners on one connection, like the tasks of one process: all acquire, then all release.
fn one_connection(socket: &Path, time: Duration) -> Result<f64> {
    let mut agent = Caller::unix(socket)?;
    let all = |word: &str| -> Vec<u8> {
        let command = |worker: usize| {
            let (lock, owner) = (format!("bench:owners:{worker}"), worker.to_string());
            encode(&[word, &lock, "OWNER", &owner])
        };
        (0..OWN_WORKERS).flat_map(command).collect()
    };
    let (take, give) = (all("LOCK"), all("UNLOCK"));
    let mut pairs = 0;
    let start = Instant::now();
    while start.elapsed() < time {
        agent.batch(&take, OWN_WORKERS)?;
        agent.send_all(&give, OWN_WORKERS)?;
        pairs += OWN_WORKERS as u64;
    }
    Ok(float(pairs) / start.elapsed().as_secs_f64())
}
