//! The growth of each cost: an agent's by holds, waiters, names and sessions; a dashboard's by known locks; that of
//! Redis by agents and dashboards. Each kind of load has a fresh program, and grows tenfold in steps.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, Dashboard, RedisServer, within};
use tokio::time::{Instant, sleep};

use super::dashboard::{known, make_locks};
use super::{AT_REST, Stage, blocking};
use crate::report::Round;
use crate::stats::{Times, cpu_micros, float, resident_bytes};
use crate::wire::{Caller, encode};

const STEPS: [u64; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
/// The commands that a connection sends at once.
const EACH: u64 = 1_000;
/// The duration of each measurement at rest. A hold is renewed once in this time.
const REST: Duration = Duration::from_secs(10);
/// The time limit for everything to be in place.
const PATIENCE: Duration = Duration::from_secs(600);
/// The memory of an idle agent and its share of Redis, with a margin.
const AGENT_BYTES: u64 = 16 << 20;
/// The number of requests for each page.
const REQUESTS: usize = 7;
/// A holder elsewhere.
const FOREIGN: &str = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:1";

/// Measures the costs of an agent and its Redis.
pub(super) async fn agent(stage: Stage) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        holds(&mut round).await?;
        queue(&mut round).await?;
        names(&mut round).await?;
        sessions(&mut round).await?;
        rounds.push(round);
    }
    Ok(rounds)
}

/// A Redis, an agent on it, and the connections that keep their holds or waits.
struct Pair {
    redis: RedisServer,
    agent: Agent,
    callers: Vec<Caller<UnixStream>>,
    idle_bytes: f64,
    idle_redis_bytes: f64,
}

impl Pair {
    async fn new() -> Result<Self> {
        let redis = RedisServer::start().await?;
        let agent = Agent::with(&redis, &["--max-waiters", "1000000"]).await?;
        sleep(AT_REST).await;
        let idle_bytes = resident_bytes(agent.pid())?;
        let idle_redis_bytes = used_memory(&mut redis.client().await?).await?;
        Ok(Self { redis, agent, callers: Vec::new(), idle_bytes, idle_redis_bytes })
    }

    /// Returns the agent's memory beyond that of an idle one, divided by `count`.
    fn bytes_each(&self, count: u64) -> Result<f64> {
        Ok((resident_bytes(self.agent.pid())? - self.idle_bytes) / float(count))
    }

    async fn redis_bytes_each(&self, count: u64) -> Result<f64> {
        let used = used_memory(&mut self.redis.client().await?).await?;
        Ok((used - self.idle_redis_bytes) / float(count))
    }

    /// Sends the commands with these numbers, as many on each connection as may be pending. Waits for the replies if
    /// they come at once.
    async fn send(
        &mut self,
        from: u64,
        to: u64,
        replies: bool,
        command: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> Result<()> {
        let socket = self.agent.socket();
        let new = blocking(move || connections(&socket, from, to, replies, command)).await?;
        self.callers.extend(new);
        Ok(())
    }

    async fn until(&self, metric: &str, count: u64) {
        let name = format!("lockscope_agent_{metric}");
        within(PATIENCE, "everything to be in place", async || {
            let now = self.agent.metrics().await?.sum(&name, &[]);
            ensure!(now >= float(count), "{now} of {count}");
            Ok(())
        })
        .await;
    }
}

fn connections(
    socket: &Path,
    from: u64,
    to: u64,
    replies: bool,
    command: impl Fn(u64) -> Vec<u8>,
) -> Result<Vec<Caller<UnixStream>>> {
    let mut callers = Vec::new();
    for start in (from..to).step_by(usize::try_from(EACH)?) {
        let mut caller = Caller::unix(socket)?;
        let numbers = start..to.min(start + EACH);
        let count = numbers.clone().count();
        let requests: Vec<u8> = numbers.flat_map(&command).collect();
        if replies {
            caller.batch(&requests, count)?;
        } else {
            caller.send(&requests)?;
        }
        callers.push(caller);
    }
    Ok(callers)
}

async fn used_memory(redis: &mut Client) -> Result<f64> {
    let info = redis.call("INFO memory").await?.text();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    Ok(line.context("INFO without used_memory")?.trim().parse()?)
}

/// Returns `1 hold`, `10,000 holds`.
fn of(count: u64, what: &str) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    let plural = if count == 1 { "" } else { "s" };
    format!("{text} {what}{plural}")
}

/// Measures locks that are held and renewed.
async fn holds(round: &mut Round) -> Result<()> {
    let mut pair = Pair::new().await?;
    let mut held = 0;
    for count in STEPS {
        pair.send(held, count, true, |n| encode(&["LOCK", &format!("bench:held:{n}")])).await?;
        held = count;
        let who = of(count, "hold");
        round.figure(&who, "bytes of the agent each", pair.bytes_each(count)?);
        round.figure(&who, "bytes of Redis each", pair.redis_bytes_each(count).await?);
        // The first renewals come together, because the locks were acquired together.
        sleep(REST).await;
        let (agent, redis) = (pair.agent.pid(), pair.redis.process().pid());
        let (agent_cpu, redis_cpu) = (cpu_micros(agent)?, cpu_micros(redis)?);
        sleep(REST).await;
        let seconds = REST.as_secs_f64();
        let share = |now: f64, before: f64| (now - before) / 1e4 / seconds;
        round.figure(&who, "% of a core, agent", share(cpu_micros(agent)?, agent_cpu));
        round.figure(&who, "% of a core, Redis", share(cpu_micros(redis)?, redis_cpu));
    }
    Ok(())
}

/// Measures workers that wait for one lock.
async fn queue(round: &mut Round) -> Result<()> {
    let mut pair = Pair::new().await?;
    let mut direct = pair.redis.client().await?;
    hold_elsewhere(&mut direct, "bench:one").await?;
    let mut waiting = 0;
    for count in STEPS {
        let command = |n: u64| encode(&["LOCK", "bench:one", "OWNER", &n.to_string()]);
        pair.send(waiting, count, false, command).await?;
        waiting = count;
        pair.until("waiters", count).await;
        round.figure(of(count, "waiter"), "bytes of the agent each", pair.bytes_each(count)?);
    }
    Ok(())
}

/// Measures names with one waiter each, held by another client.
async fn names(round: &mut Round) -> Result<()> {
    let mut pair = Pair::new().await?;
    let mut direct = pair.redis.client().await?;
    let mut waiting = 0;
    for count in STEPS {
        for n in waiting..count {
            hold_elsewhere(&mut direct, &format!("bench:name:{n}")).await?;
        }
        let command =
            |n: u64| encode(&["LOCK", &format!("bench:name:{n}"), "OWNER", &n.to_string()]);
        pair.send(waiting, count, false, command).await?;
        waiting = count;
        pair.until("subscriptions", count).await;
        let who = of(count, "name");
        round.figure(&who, "bytes of the agent each", pair.bytes_each(count)?);
        round.figure(&who, "bytes of Redis each", pair.redis_bytes_each(count).await?);
    }
    Ok(())
}

async fn hold_elsewhere(direct: &mut Client, name: &str) -> Result<()> {
    direct.call_args(&["HSET", name, FOREIGN, "1"]).await?.ok()?;
    direct.call_args(&["PEXPIRE", name, "3600000"]).await?.ok()?;
    Ok(())
}

/// Measures connections that have sent a command once.
async fn sessions(round: &mut Round) -> Result<()> {
    let pair = Pair::new().await?;
    let (mut streams, mut open) = (Vec::new(), 0);
    // Each session is also an open file of this process.
    for count in STEPS.into_iter().filter(|count| *count <= 10_000) {
        let socket = pair.agent.socket();
        let ping = encode(&["PING"]);
        let new = blocking(move || {
            let session = |_| {
                let mut stream = UnixStream::connect(&socket)?;
                stream.write_all(&ping)?;
                let mut reply = [0; 64];
                ensure!(stream.read(&mut reply)? > 0, "the connection was closed");
                Ok(stream)
            };
            (open..count).map(session).collect::<Result<Vec<UnixStream>>>()
        })
        .await?;
        streams.extend(new);
        open = count;
        round.figure(of(count, "session"), "bytes of the agent each", pair.bytes_each(count)?);
    }
    Ok(())
}

/// Measures the costs of Redis by the number of idle agents, each with one hold, and then by that of dashboards.
pub(super) async fn fleet(stage: Stage) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let mut redis = RedisServer::with(&[("maxclients", "20000")]).await?;
        let mut agents: Vec<(Agent, Client)> = Vec::new();
        for count in [1, 10, 100, 1_000] {
            let needed = (count - agents.len() as u64) * AGENT_BYTES;
            if available_memory()? < needed {
                let what = "MiB of memory needed, so not measured";
                round.figure(of(count, "agent"), what, float(needed >> 20));
                break;
            }
            while float(agents.len() as u64) < float(count) {
                let agent = Agent::start(&redis).await?;
                let mut worker = agent.client().await?;
                worker.call(&format!("LOCK bench:agent:{}", agents.len())).await?.ok()?;
                agents.push((agent, worker));
            }
            at_rest(&mut round, &of(count, "agent"), &mut redis).await?;
        }
        let mut dashboards = Vec::new();
        for count in [1, 2, 4, 8] {
            while dashboards.len() < count {
                dashboards.push(Dashboard::start(&redis.url(), &["--monitor", "off"]).await?);
            }
            let who = format!("the same with {}", of(count as u64, "dashboard"));
            at_rest(&mut round, &who, &mut redis).await?;
        }
        rounds.push(round);
    }
    Ok(rounds)
}

/// Measures a Redis that serves idle clients.
async fn at_rest(round: &mut Round, who: &str, redis: &mut RedisServer) -> Result<()> {
    sleep(REST).await;
    let mut direct = redis.client().await?;
    let server = redis.process().pid();
    let (commands, cpu, began) =
        (commands(&mut direct).await?, cpu_micros(server)?, Instant::now());
    sleep(REST).await;
    let seconds = began.elapsed().as_secs_f64();
    let share = (cpu_micros(server)? - cpu) / 1e4 / seconds;
    let now = self::commands(&mut direct).await?;
    round.figure(who, "commands a second", (now - commands) / seconds);
    round.figure(who, "% of a core, Redis", share);
    round.figure(who, "MiB of Redis", used_memory(&mut direct).await? / f64::from(1 << 20));
    Ok(())
}

async fn commands(redis: &mut Client) -> Result<f64> {
    let info = redis.call("INFO stats").await?.text();
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(line.context("INFO without total_commands_processed")?.trim().parse()?)
}

fn available_memory() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.context("no MemAvailable")?.trim().trim_end_matches("kB").trim();
    Ok(kib.parse::<u64>()? * 1024)
}

/// Measures the costs of a dashboard by the number of locks that it knows.
pub(super) async fn dashboard(stage: Stage) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        for count in [1, 1_000, 10_000, 100_000, 1_000_000] {
            known_locks(&mut round, count).await?;
        }
        rounds.push(round);
    }
    Ok(rounds)
}

async fn known_locks(round: &mut Round, count: u64) -> Result<()> {
    let mut redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    make_locks(&mut direct, count).await?;
    let most = (count + count / 10).max(1_000).to_string();
    let flags = ["--monitor", "off", "--max-locks", most.as_str()];
    let began = Instant::now();
    let mut dashboard = Dashboard::start(&redis.url(), &flags).await?;
    known(&dashboard, count).await;
    let who = of(count, "lock");
    round.figure(&who, "s until all are known", began.elapsed().as_secs_f64());
    sleep(REST).await;
    let (program, server) = (dashboard.process().pid(), redis.process().pid());
    round.figure(&who, "MiB", resident_bytes(program)? / f64::from(1 << 20));
    let (own, its) = (cpu_micros(program)?, cpu_micros(server)?);
    sleep(REST).await;
    let seconds = REST.as_secs_f64();
    round.figure(&who, "% of a core", (cpu_micros(program)? - own) / 1e4 / seconds);
    round.figure(&who, "% of a core, Redis", (cpu_micros(server)? - its) / 1e4 / seconds);
    for (what, path) in [
        ("ms of the list", "/"),
        ("ms of a filter", "/?filter=bench%3A77"),
        ("ms of the owners", "/owners"),
        ("ms of the overview", "/overview"),
        ("ms of the metrics", "/metrics"),
    ] {
        let mut times = Times::default();
        for _ in 0..REQUESTS {
            let began = Instant::now();
            let page = harness::http::get(dashboard.port(), path).await?;
            ensure!(page.status == 200, "{path}: {}", page.status);
            times.add(began.elapsed());
        }
        round.figure(&who, what, times.median() / 1e3);
    }
    Ok(())
}
