//! A hundred thousand locks renewed by one agent whose server has a replica, which must confirm renewals or need not.

use anyhow::{Result, ensure};
use harness::{Agent, RedisServer};
use tokio::time::sleep;

use super::renewals::{HOLDS, Look, PERIOD, take_all};
use super::{Stage, blocking};
use crate::report::{Bound, Round};
use crate::stats::float;

/// The cost of a renewal, and the failures meanwhile.
struct Cost {
    agent_us: f64,
    redis_us: f64,
    late: f64,
    unconfirmed: f64,
    lost: f64,
}

/// Measures both settings once each round, with the same servers.
pub(super) async fn replicated(stage: Stage) -> Result<Vec<Round>> {
    let mut master = RedisServer::with(&[("repl-diskless-sync-delay", "0")]).await?;
    let replica = RedisServer::start().await?;
    replica.follow(&master).await?;
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let plain = measure(&mut master, &[]).await?;
        let confirmed = measure(&mut master, &["--min-replicas", "1"]).await?;
        for (who, cost) in [("without", &plain), ("--min-replicas 1", &confirmed)] {
            round.figure(who, "µs of the agent a renewal", cost.agent_us);
            round.figure(who, "µs of Redis a renewal", cost.redis_us);
        }
        round.figure("--min-replicas 1", "unconfirmed batches", confirmed.unconfirmed);
        let (agent, redis) =
            (confirmed.agent_us / plain.agent_us, confirmed.redis_us / plain.redis_us);
        round.target("agent ≤ 1.5 × without", "times", agent, Bound::AtMost(1.5));
        round.target("Redis ≤ 1.5 × without", "times", redis, Bound::AtMost(1.5));
        round.target("none late by 1 s", "late", confirmed.late, Bound::AtMost(0.0));
        round.target("none lost", "lost", confirmed.lost, Bound::AtMost(0.0));
        rounds.push(round);
    }
    Ok(rounds)
}

async fn measure(redis: &mut RedisServer, flags: &[&str]) -> Result<Cost> {
    redis.client().await?.call("FLUSHALL").await?.ok()?;
    let agent = Agent::with(redis, flags).await?;
    let socket = agent.socket();
    // These workers hold the locks to the end.
    let workers = blocking(move || take_all(&socket)).await?;
    // The first renewals come together, because the locks were acquired together.
    sleep(PERIOD).await;
    let before = Look::take(&agent, redis).await?;
    sleep(PERIOD).await;
    let after = Look::take(&agent, redis).await?;
    drop(workers);
    let renewals = after.renewals(&before);
    ensure!(renewals > float(HOLDS as u64) / 2.0, "only {renewals} renewals in {PERIOD:?}");
    Ok(Cost {
        agent_us: (after.agent_cpu - before.agent_cpu) / renewals,
        redis_us: (after.redis_cpu - before.redis_cpu) / renewals,
        late: after.late(&before),
        unconfirmed: after.since(&before, "replica_batches_total", &[("outcome", "unconfirmed")]),
        lost: after.since(&before, "lost_holds_total", &[]),
    })
}
