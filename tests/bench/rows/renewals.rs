//! A hundred thousand locks renewed by one agent, alone and during a flood.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::agent::Metrics;
use harness::{Agent, RedisServer};
use redisson::script::MAX_BATCH;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Stage, blocking};
use crate::crowd::{Crowd, Plan, Turns};
use crate::limits::{Bare, HOLDER, LONG_LEASE_MS};
use crate::report::{Bound, Round};
use crate::stats::{cpu_micros, float, resident_bytes};
use crate::wire::{Caller, encode};

/// The number of locks held.
pub(super) const HOLDS: usize = 100_000;
/// The number of locks per worker: about the limit of pending commands on a connection.
const EACH: usize = 1000;
/// The number of sessions that flood the agent.
const SESSIONS: usize = 10_000;
/// A third of the lease: in this time each hold is renewed once.
pub(super) const PERIOD: Duration = Duration::from_secs(10);
/// The interval at which a share of the bare scripts is sent, the same as the agent's.
const BURST: Duration = Duration::from_millis(100);

/// A difference between two readings of counters.
pub(super) struct Look {
    pub(super) agent_cpu: f64,
    pub(super) redis_cpu: f64,
    metrics: Metrics,
}

impl Look {
    pub(super) async fn take(agent: &Agent, redis: &mut RedisServer) -> Result<Self> {
        Ok(Self {
            agent_cpu: cpu_micros(agent.pid())?,
            redis_cpu: cpu_micros(redis.process().pid())?,
            metrics: agent.metrics().await?,
        })
    }

    pub(super) fn since(&self, before: &Self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        let name = format!("lockscope_agent_{metric}");
        self.metrics.sum(&name, labels) - before.metrics.sum(&name, labels)
    }

    pub(super) fn renewals(&self, before: &Self) -> f64 {
        self.since(before, "renewals_total", &[("outcome", "renewed")])
    }

    /// Returns the number of renewals sent a second or more late.
    pub(super) fn late(&self, before: &Self) -> f64 {
        self.since(before, "renewal_lateness_seconds_count", &[])
            - self.since(before, "renewal_lateness_seconds_bucket", &[("le", "1")])
    }
}

/// Acquires all locks once, then measures one quiet period and one flooded period each round.
pub(super) async fn renewals(mut stage: Stage) -> Result<Vec<Round>> {
    let before = resident_bytes(stage.agent.pid())?;
    let socket = stage.agent.socket();
    // These workers hold the locks to the end.
    let workers = blocking(move || take_all(&socket)).await?;
    let bytes = (resident_bytes(stage.agent.pid())? - before) / float(HOLDS as u64);
    let mut bare = BareKeeper::new().await?;
    // The first renewals come together, because the locks were acquired together.
    sleep(PERIOD).await;
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let start = Look::take(&stage.agent, &mut stage.redis).await?;
        sleep(PERIOD).await;
        let quiet = Look::take(&stage.agent, &mut stage.redis).await?;
        let renewals = quiet.renewals(&start);
        ensure!(renewals > float(HOLDS as u64) / 2.0, "only {renewals} renewals in {PERIOD:?}");
        let agent_us = (quiet.agent_cpu - start.agent_cpu) / renewals;
        let redis_us = (quiet.redis_cpu - start.redis_cpu) / renewals;
        let bare_us = bare.renew_all().await?;
        let socket = stage.agent.socket();
        let pings = blocking(move || flood(&socket)).await?;
        let flooded = Look::take(&stage.agent, &mut stage.redis).await?;
        round.figure("lockscope-agent", "µs of a core a renewal", agent_us);
        round.figure("Redis beside it", "µs of a core a renewal", redis_us);
        round.figure("Redis, bare script", "µs of a core a renewal", bare_us);
        round.figure("lockscope-agent", "bytes a hold", bytes);
        round.figure("lockscope-agent", "PINGs/s in the flood", pings);
        round.figure("lockscope-agent", "renewals/s", renewals / PERIOD.as_secs_f64());
        round.target("agent < 2 µs a renewal", "µs", agent_us, Bound::AtMost(2.0));
        round.target("Redis ≤ 1.3 × bare", "times", redis_us / bare_us, Bound::AtMost(1.3));
        round.target("< 1 KiB a hold", "bytes", bytes, Bound::AtMost(1024.0));
        round.target("none late by 1 s", "late", quiet.late(&start), Bound::AtMost(0.0));
        round.target("nor in a flood", "late", flooded.late(&quiet), Bound::AtMost(0.0));
        let lost = flooded.since(&start, "lost_holds_total", &[]);
        round.target("none lost", "lost", lost, Bound::AtMost(0.0));
        rounds.push(round);
    }
    drop(workers);
    Ok(rounds)
}

pub(super) fn take_all(socket: &Path) -> Result<Vec<Caller<UnixStream>>> {
    let worker = |worker: usize| {
        let mut caller = Caller::unix(socket)?;
        let lock = |n: usize| encode(&["LOCK", &format!("bench:kept:{worker}:{n}")]);
        let requests: Vec<u8> = (0..EACH).flat_map(lock).collect();
        caller.batch(&requests, EACH)?;
        Ok(caller)
    };
    (0..HOLDS / EACH).map(worker).collect()
}

/// Sends PINGs from all sessions, each waiting for the reply before the next. Returns the number a second.
fn flood(socket: &Path) -> Result<f64> {
    let ping = encode(&["PING"]);
    let plan = |_| Plan::unix(socket, ping.clone(), ping.clone());
    let mut crowd = Crowd::new((0..SESSIONS).map(plan).collect::<Result<_>>()?)?;
    crowd.ask()?;
    let seen = crowd.run(Turns::For(PERIOD))?;
    Ok(2.0 * seen.per_second(seen.total()))
}

/// A Redis with as many locks, and the minimal script that renews them.
struct BareKeeper {
    redis: RedisServer,
    caller: Option<Caller<TcpStream>>,
    batches: Vec<Vec<u8>>,
}

impl BareKeeper {
    async fn new() -> Result<Self> {
        let redis = RedisServer::start().await?;
        let port = redis.port();
        let (caller, batches) = blocking(move || {
            let mut caller = Caller::tcp(port)?;
            let bare = Bare::load(&mut caller)?;
            let locks: Vec<String> = (0..HOLDS).map(|n| format!("bench:kept:{n}")).collect();
            for some in locks.chunks(EACH) {
                let hold = |lock: &String| {
                    let set = encode(&["HSET", lock, HOLDER, "1"]);
                    [set, encode(&["PEXPIRE", lock, LONG_LEASE_MS])].concat()
                };
                caller.batch(&some.iter().flat_map(hold).collect::<Vec<u8>>(), 2 * some.len())?;
            }
            let batches = locks.chunks(MAX_BATCH).map(|some| bare.renew(some)).collect();
            Ok((caller, batches))
        })
        .await?;
        Ok(Self { redis, caller: Some(caller), batches })
    }

    /// Renews each lock once, spread over a period as by the agent. Returns the cost of one renewal for Redis.
    async fn renew_all(&mut self) -> Result<f64> {
        let before = cpu_micros(self.redis.process().pid())?;
        let bursts = usize::try_from(PERIOD.as_millis() / BURST.as_millis())?;
        let mut next = Instant::now();
        for burst in self.batches.chunks(self.batches.len().div_ceil(bursts)) {
            let (requests, count) = (burst.concat(), burst.len());
            let mut caller = self.caller.take().context("the connection broke before")?;
            let answered = blocking(move || caller.batch(&requests, count).map(|()| caller));
            self.caller = Some(answered.await?);
            next += BURST;
            sleep_until(next).await;
        }
        Ok((cpu_micros(self.redis.process().pid())? - before) / float(HOLDS as u64))
    }
}
