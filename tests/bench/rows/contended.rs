//! Workers that compete for one lock.

use anyhow::{Result, ensure};
use harness::{Agent, eventually};
use tokio::time::Instant;

use super::{CONTENDERS, Stage, blocking, workers};
use crate::crowd::{Crowd, Measurements, Turns};
use crate::limits::{Bare, Limits};
use crate::peers::{DRAIN, LEAST, LONGEST, MOST, SWITCHES, Task};
use crate::report::{Bound, Round};
use crate::stats::float;
use crate::wire::Caller;

/// Returns the minimum cost of a hand-over: a reply to the worker, its next command, and one script.
fn chain(limits: Limits) -> f64 {
    limits.echo + limits.script
}

/// Measures workers of one host.
pub(super) async fn one_lock(stage: Stage) -> Result<Vec<Round>> {
    let (port, time) = (stage.redis.port(), stage.options.time);
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let limits = stage.limits(&mut round).await?;
        let plans = workers(&stage.agent, CONTENDERS, |_| "bench:one:agent".to_owned())?;
        let seen = blocking(move || {
            let mut crowd = Crowd::rivals(plans)?;
            crowd.ask()?;
            crowd.run(Turns::For(time))
        })
        .await?;
        let rate = seen.per_second(seen.switches);
        note(&mut round, "lockscope-agent", &seen);
        let of_chain = rate * chain(limits) / 1e6;
        round.target(
            "hand-overs/s ≥ 1 ÷ (echo + script)",
            "of that",
            of_chain,
            Bound::AtLeast(1.0),
        );
        let overtaken = float(seen.overtaken);
        round.target("in order of arrival", "out of order", overtaken, Bound::AtMost(0.0));
        let apart = 100.0 * seen.unevenness();
        round.target("counts within 5 %", "per cent apart", apart, Bound::AtMost(5.0));
        for peer in &stage.peers {
            peer.measure(&mut round, Task::One, port, CONTENDERS, time).await?;
        }
        rounds.push(round);
    }
    Ok(rounds)
}

fn note(round: &mut Round, who: &str, seen: &Measurements) {
    round.figure(who, SWITCHES, seen.per_second(seen.switches));
    round.figure(who, LEAST, float(seen.grants.iter().copied().min().unwrap_or(0)));
    round.figure(who, MOST, float(seen.grants.iter().copied().max().unwrap_or(0)));
    round.figure(who, LONGEST, seen.longest_wait.as_secs_f64() * 1000.0);
}

/// Measures workers of which half are on another host.
pub(super) async fn two_hosts(stage: Stage) -> Result<Vec<Round>> {
    let other = Agent::start(&stage.redis).await?;
    let time = stage.options.time;
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let half = CONTENDERS / 2;
        let mut plans = workers(&stage.agent, half, |_| "bench:hosts".to_owned())?;
        plans.extend(workers(&other, half, |_| "bench:hosts".to_owned())?);
        let seen = blocking(move || {
            let mut crowd = Crowd::rivals(plans)?;
            crowd.ask()?;
            crowd.run(Turns::For(time))
        })
        .await?;
        note(&mut round, "both together", &seen);
        let (one, two) = seen.grants.split_at(half);
        let (one, two): (u64, u64) = (one.iter().sum(), two.iter().sum());
        let share = 100.0 * float(one.min(two)) / float((one + two).max(1));
        round.figure("one host", "grants", float(one));
        round.figure("other host", "grants", float(two));
        round.target("each has 40 to 60 %", "the lesser has per cent", share, Bound::AtLeast(40.0));
        rounds.push(round);
    }
    Ok(rounds)
}

/// Measures the time until each of the waiting workers has held the lock once.
pub(super) async fn drain(stage: Stage) -> Result<Vec<Round>> {
    let (port, time) = (stage.redis.port(), stage.options.time);
    let lock = "bench:drain:agent";
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let limits = stage.limits(&mut round).await?;
        let plans = workers(&stage.agent, CONTENDERS, |_| lock.to_owned())?;
        // Another client holds the lock until all of them wait.
        let (mut holder, scripts, crowd) = blocking(move || {
            let mut holder = Caller::tcp(port)?;
            let scripts = Bare::load(&mut holder)?;
            holder.succeed(&scripts.acquire(lock))?;
            let mut crowd = Crowd::rivals(plans)?;
            crowd.ask()?;
            Ok((holder, scripts, crowd))
        })
        .await?;
        eventually("all workers to wait", async || {
            let metrics = stage.agent.metrics().await?;
            let waiting = metrics.sum("lockscope_agent_waiters", &[]);
            ensure!(waiting == float(CONTENDERS as u64), "{waiting} wait");
            let subscriptions = metrics.sum("lockscope_agent_subscriptions", &[]);
            ensure!(subscriptions == 1.0, "{subscriptions} subscriptions");
            Ok(())
        })
        .await;
        let took = blocking(move || {
            let released = Instant::now();
            holder.succeed(&scripts.release(lock))?;
            crowd.run(Turns::Once)?;
            Ok(released.elapsed())
        })
        .await?;
        let took = took.as_secs_f64() * 1000.0;
        round.figure("lockscope-agent", DRAIN, took);
        let allowed = float(CONTENDERS as u64) * chain(limits) * 1.5 / 1000.0;
        round.target("≤ 50 × (echo + script) × 1.5", "of that", took / allowed, Bound::AtMost(1.0));
        for peer in &stage.peers {
            peer.measure(&mut round, Task::Drain, port, CONTENDERS, time).await?;
        }
        rounds.push(round);
    }
    Ok(rounds)
}
