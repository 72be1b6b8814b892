//! The resources of a dashboard, and its cost for the Redis that it reads.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use harness::{Client, Dashboard, RedisServer, within};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Stage;
use crate::report::{Bound, Round};
use crate::stats::{Times, cpu_micros, float, resident_bytes};
use crate::wire::{Caller, encode};

/// The numbers of locks that a dashboard discovers.
const FEW: u64 = 10_000;
const MANY: u64 = 100_000;
/// Keys that are not locks, for the first scan.
const KEYS: u64 = 1_000_000;
/// The duration of the PING measurement without other load.
const IDLE: Duration = Duration::from_secs(5);
/// The time limit for a dashboard to discover all of them.
const PATIENCE: Duration = Duration::from_secs(300);
/// The acquisitions and releases per second while the cost of each source is measured.
const PAIRS: u64 = 1_000;

/// Makes that many locks of ten minutes and more, each with a different holder.
const LOCKS: &str = "for i = 1, tonumber(ARGV[1]) do
  redis.call('hset', 'bench:' .. i, '0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:' .. i, 1)
  redis.call('pexpire', 'bench:' .. i, 3600000)
end";
/// Makes that many strings, starting at a number.
const STRINGS: &str =
    "for i = 1, tonumber(ARGV[2]) do redis.call('set', 'string:' .. (ARGV[1] + i), 'x') end";
/// Acquires and releases a free lock, with the commands that this takes.
const PAIR: &str = "redis.call('exists', KEYS[1])
redis.call('hincrby', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], 30000)
redis.call('del', KEYS[1])
return redis.call('publish', 'redisson_lock__channel:{' .. KEYS[1] .. '}', '0')";

pub(super) async fn make_locks(redis: &mut Client, count: u64) -> Result<()> {
    redis.call_args(&["EVAL", LOCKS, "0", &count.to_string()]).await?.ok()?;
    Ok(())
}

/// Sets the leases of that many locks to half a minute, starting at a number.
const RENEW: &str =
    "for i = 1, tonumber(ARGV[2]) do redis.call('pexpire', 'bench:' .. (ARGV[1] + i), 30000) end";
/// The interval at which a watchdog renews each lock.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// The number of locks that are renewed together.
const RENEWED_TOGETHER: u64 = 10;

/// The interval at which we check whether a dashboard knows all locks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn known(dashboard: &Dashboard, count: u64) {
    within(PATIENCE, "the dashboard to know all locks", async || {
        let total = dashboard.json("/api/v1/locks?limit=1").await?["total"].as_u64();
        if total != Some(count) {
            // Each check costs the dashboard a page.
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        ensure!(total == Some(count), "{total:?}");
        Ok(())
    })
    .await;
}

/// Measures the memory of a dashboard that knows ten and a hundred thousand locks, and of one that has restarted with the latter.
pub(super) async fn known_locks(stage: Stage) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let redis = RedisServer::start().await?;
        let mut direct = redis.client().await?;
        let mut dashboard = Dashboard::start(&redis.url(), &["--monitor", "off"]).await?;
        let mut round = Round::default();
        for (count, wanted, most) in
            [(FEW, "10,000 locks <= 50 MiB", 50.0), (MANY, "100,000 locks <= 230 MiB", 230.0)]
        {
            make_locks(&mut direct, count).await?;
            known(&dashboard, count).await;
            let mib = resident_bytes(dashboard.process().pid())? / f64::from(1 << 20);
            round.figure("lockscope-dashboard", wanted, mib);
            round.target(wanted, "MiB", mib, Bound::AtMost(most));
        }
        dashboard.restart().await?;
        known(&dashboard, MANY).await;
        let mib = resident_bytes(dashboard.process().pid())? / f64::from(1 << 20);
        round.figure("lockscope-dashboard", "MiB with 100,000 after a restart", mib);
        rounds.push(round);
    }
    Ok(rounds)
}

/// A client of a Redis that sends a PING each millisecond.
struct Pinger {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Times>>,
}

impl Pinger {
    fn start(port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut redis, ping) = (Caller::tcp(port)?, encode(&["PING"]));
            let mut times = Times::default();
            while !stopped.load(Ordering::Relaxed) {
                #[expect(clippy::disallowed_methods, reason = "a thread that has no runtime")]
                std::thread::sleep(Duration::from_millis(1));
                let sent = Instant::now();
                redis.call(&ping)?;
                times.add(sent.elapsed());
            }
            Ok(times)
        });
        Self { stop, thread }
    }

    /// Returns the 99th percentile in microseconds.
    fn p99(self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut times =
            self.thread.join().map_err(|_| anyhow!("the pinging thread panicked"))??;
        Ok(times.p99())
    }
}

/// A client that receives release messages and does nothing else: the minimum cost of any source of them.
struct Subscriber {
    stream: TcpStream,
    thread: JoinHandle<io::Result<()>>,
}

impl Subscriber {
    fn start(port: u16) -> Result<Self> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.write_all(&encode(&["PSUBSCRIBE", "redisson_lock__channel:*"]))?;
        let mut messages = stream.try_clone()?;
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 64 * 1024];
            while messages.read(&mut buffer)? > 0 {}
            Ok(())
        });
        Ok(Self { stream, thread })
    }

    fn stop(self) -> Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        self.thread.join().map_err(|_| anyhow!("the subscribing thread panicked"))??;
        Ok(())
    }
}

/// Measures the time from a dashboard's start until it knows ten thousand locks among a million other keys.
pub(super) async fn first_scan(stage: Stage) -> Result<Vec<Round>> {
    let mut redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    const AT_ONCE: u64 = 50_000;
    for from in (0..KEYS).step_by(usize::try_from(AT_ONCE)?) {
        let (from, count) = (from.to_string(), AT_ONCE.to_string());
        direct.call_args(&["EVAL", STRINGS, "0", &from, &count]).await?.ok()?;
    }
    make_locks(&mut direct, FEW).await?;
    let server = redis.process().pid();
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let pinger = Pinger::start(redis.port());
        tokio::time::sleep(IDLE).await;
        let idle = pinger.p99()?;
        let pinger = Pinger::start(redis.port());
        let (cpu, began) = (cpu_micros(server)?, Instant::now());
        let dashboard = Dashboard::start(&redis.url(), &["--monitor", "off"]).await?;
        known(&dashboard, FEW).await;
        let seconds = began.elapsed().as_secs_f64();
        let meanwhile = pinger.p99()?;
        let mut round = Round::default();
        round.figure("Redis", "s of its core", (cpu_micros(server)? - cpu) / 1e6);
        round.figure("another client, idle", "µs p99 of a PING", idle);
        round.figure("another client, meanwhile", "µs p99 of a PING", meanwhile);
        round.target("a first picture < 10 s", "s", seconds, Bound::AtMost(10.0));
        round.target(
            "PING p99 <= 2 x idle + 50 µs",
            "x of that",
            meanwhile / (2.0 * idle + 50.0),
            Bound::AtMost(1.0),
        );
        rounds.push(round);
    }
    Ok(rounds)
}

/// Measures the CPU time of Redis under the same load, without a dashboard and with each of its sources.
pub(super) async fn source_cost(stage: Stage) -> Result<Vec<Round>> {
    let settings = [("client-output-buffer-limit", "normal 64mb 0 0")];
    let mut redis = RedisServer::with(&settings).await?;
    let mut direct = redis.client().await?;
    make_locks(&mut direct, FEW).await?;
    let server = redis.process().pid();
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let mut round = Round::default();
        let alone = load(&mut direct, server, stage.options.time).await?;
        round.figure("nobody looks", "ms of Redis' core a second", alone);
        let subscriber = Subscriber::start(redis.port())?;
        let heard = load(&mut direct, server, stage.options.time).await?;
        subscriber.stop()?;
        round.figure("a bare subscriber of release messages", "ms of Redis' core a second", heard);
        for (how, monitor, notify) in [
            ("reading, passes, release messages", "off", ""),
            ("the same with keyspace notifications", "off", "KEA"),
            ("the same with MONITOR", "on", ""),
        ] {
            direct.call_args(&["CONFIG", "SET", "notify-keyspace-events", notify]).await?.ok()?;
            let dashboard = Dashboard::start(&redis.url(), &["--monitor", monitor]).await?;
            known(&dashboard, FEW).await;
            if monitor == "on" {
                within(PATIENCE, "MONITOR to be on", async || {
                    let sources = dashboard.json("/api/v1/sources").await?;
                    let sources = sources["sources"].as_array().cloned().unwrap_or_default();
                    let tap = sources.iter().find(|source| source["source"] == "monitor");
                    ensure!(tap.is_some_and(|tap| tap["state"] == "on"), "{tap:?}");
                    Ok(())
                })
                .await;
            }
            let looked = load(&mut direct, server, stage.options.time).await?;
            round.figure(how, "ms of Redis' core a second", looked);
            if monitor == "off" && notify.is_empty() {
                let more = (looked - alone) / 10.0;
                round.target(
                    "no MONITOR: <= 2 % of a core",
                    "% of a core",
                    more,
                    Bound::AtMost(2.0),
                );
            }
        }
        direct.call_args(&["CONFIG", "SET", "notify-keyspace-events", ""]).await?.ok()?;
        rounds.push(round);
    }
    Ok(rounds)
}

/// Measures the CPU time of Redis while all locks are renewed, without a dashboard and with one.
pub(super) async fn renewed_locks(stage: Stage) -> Result<Vec<Round>> {
    let mut redis = RedisServer::start().await?;
    let server = redis.process().pid();
    let mut watchdog = Watchdog { redis: redis.client().await?, server, renewed: 0 };
    make_locks(&mut watchdog.redis, FEW).await?;
    let time = stage.options.time.max(RENEWAL_INTERVAL);
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        let alone = watchdog.run(time).await?;
        let dashboard = Dashboard::start(&redis.url(), &["--monitor", "off"]).await?;
        known(&dashboard, FEW).await;
        // It has seen each lock renewed after this.
        watchdog.run(RENEWAL_INTERVAL * 2).await?;
        let read = watchdog.run(time).await?;
        let mut round = Round::default();
        round.figure("nobody reads", "ms of Redis' core a second", alone);
        round.figure("a dashboard reads", "ms of Redis' core a second", read);
        let more = (read - alone) / 10.0;
        round.target("renewed: <= 2 % of a core", "% of a core", more, Bound::AtMost(2.0));
        rounds.push(round);
    }
    Ok(rounds)
}

/// A client that renews all locks in turn, at a steady pace.
struct Watchdog {
    redis: Client,
    server: u32,
    renewed: u64,
}

impl Watchdog {
    /// Renews for that time. Returns the milliseconds of the server's core that are used each second.
    async fn run(&mut self, time: Duration) -> Result<f64> {
        let mut beat = interval(RENEWAL_INTERVAL.mul_f64(float(RENEWED_TOGETHER) / float(FEW)));
        beat.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (cpu, began) = (cpu_micros(self.server)?, Instant::now());
        while began.elapsed() < time {
            beat.tick().await;
            let (from, count) = (self.renewed % FEW, RENEWED_TOGETHER);
            let arguments = ["EVAL", RENEW, "0", &from.to_string(), &count.to_string()];
            self.redis.call_args(&arguments).await?.ok()?;
            self.renewed += count;
        }
        Ok((cpu_micros(self.server)? - cpu) / 1e3 / began.elapsed().as_secs_f64())
    }
}

/// Acquires and releases locks at a steady pace. Returns the milliseconds of the server's core that this uses each
/// second.
async fn load(redis: &mut Client, server: u32, time: Duration) -> Result<f64> {
    let mut beat = interval(Duration::from_micros(1_000_000 / PAIRS));
    beat.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (cpu, began) = (cpu_micros(server)?, Instant::now());
    let mut pairs = 0_u64;
    while began.elapsed() < time.max(Duration::from_secs(5)) {
        beat.tick().await;
        let name = format!("hot:{}", pairs % 100);
        let holder = "1f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
        redis.call_args(&["EVAL", PAIR, "1", &name, holder]).await?.ok()?;
        pairs += 1;
    }
    let seconds = began.elapsed().as_secs_f64();
    ensure!(float(pairs) / seconds > float(PAIRS) / 2.0, "only {pairs} pairs in {seconds:.1} s");
    // Scaled to the intended number, in case the machine could not keep the pace.
    let wished = float(PAIRS) * seconds / float(pairs);
    Ok((cpu_micros(server)? - cpu) / 1e3 / seconds * wished)
}
