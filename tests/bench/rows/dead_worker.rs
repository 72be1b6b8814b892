//! The delay until a dead worker's lock is released.

use std::path::Path;

use anyhow::{Result, ensure};
use tokio::time::Instant;

use super::{Stage, blocking};
use crate::report::{Bound, Round};
use crate::stats::Times;
use crate::wire::{Caller, encode};

/// The number of workers that die in each round.
const DEATHS: usize = 200;

/// Measures the time from the closing of a worker's socket to the release message.
pub(super) async fn dead_worker(stage: Stage) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let limits = stage.limits(&mut round).await?;
        let (port, socket) = (stage.redis.port(), stage.agent.socket());
        let mut times = blocking(move || deaths(port, &socket)).await?;
        let (p50, p99) = (times.median(), times.p99());
        round.figure("lockscope-agent", crate::peers::P50, p50);
        round.figure("lockscope-agent", crate::peers::P99, p99);
        let allowed = 3.0 * limits.script + limits.echo;
        round.target("p50 ≤ 3 scripts + an echo", "of that", p50 / allowed, Bound::AtMost(1.0));
        round.target("p99 ≤ 5 ms", "ms", p99 / 1000.0, Bound::AtMost(5.0));
        rounds.push(round);
    }
    Ok(rounds)
}

fn deaths(port: u16, socket: &Path) -> Result<Times> {
    let mut messages = Caller::tcp(port)?;
    messages.call(&encode(&["SUBSCRIBE", "redisson_lock__channel:{bench:dead}"]))?;
    let mut redis = Caller::tcp(port)?;
    let mut times = Times::default();
    for _ in 0..DEATHS {
        let mut worker = Caller::unix(socket)?;
        worker.succeed(&encode(&["LOCK", "bench:dead"]))?;
        let began = Instant::now();
        drop(worker);
        messages.reply()?;
        times.add(began.elapsed());
        let left = redis.call(&encode(&["EXISTS", "bench:dead"]))?;
        ensure!(left == b":0\r\n", "told, but not free");
    }
    Ok(times)
}
