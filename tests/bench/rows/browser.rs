//! How soon an event in Redis shows in the row of a real browser, while many others look at the same page.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::browser::Browser;
use harness::{Client, Dashboard, eventually};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Stage;
use crate::report::{Bound, Round};
use crate::stats::{cpu_micros, float};

/// Locks on the page, streams that show it, changes of holders a second.
const LOCKS: usize = 100;
const STREAMS: usize = 500;
const CHANGES: u64 = 200;

/// The lock goes from one holder to another, and a release is told.
const CHANGE: &str = "redis.call('del', KEYS[1])
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], 600000)
return redis.call('publish', 'redisson_lock__channel:{' .. KEYS[1] .. '}', '0')";

/// Notes how long ago what a row shows anew happened: the holder's thread is the instant, in epoch milliseconds.
const WATCH: &str = "window.lags = [];
const seen = new Map();
const told = (row) => Number(/:(\\d{13})\\b/.exec(row.querySelector('.holder a')?.title ?? '')?.[1] ?? 0);
for (const row of document.querySelectorAll('#rows tr')) seen.set(row.id, told(row));
new MutationObserver((changes) => {
  const rows = new Set(changes.map((change) => (change.target.closest ? change.target : change.target.parentElement)?.closest('#rows tr')));
  rows.delete(null); rows.delete(undefined);
  for (const row of rows) {
    const at = told(row);
    if (at && seen.get(row.id) !== at) { seen.set(row.id, at); window.lags.push(Date.now() - at); }
  }
}).observe(document.getElementById('rows'), { subtree: true, childList: true, attributes: true, characterData: true });
return seen.size;";

/// From the change in Redis to the change in the browser, with 500 streams of the same page beside it.
pub(super) async fn browser(stage: Stage) -> Result<Vec<Round>> {
    let mut dashboard = Dashboard::start(&stage.redis.url(), &["--poll-rate", "2000"]).await?;
    let pid = dashboard.process().pid();
    let mut redis = stage.redis.client().await?;
    for lock in 0..LOCKS {
        change(&mut redis, lock).await?;
    }
    eventually("all locks on the page", async || {
        let total = dashboard.json("/api/v1/locks").await?["total"].as_u64();
        ensure!(total == Some(LOCKS as u64), "{total:?}");
        Ok(())
    })
    .await;
    let received = Arc::new(AtomicU64::new(0));
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let stream = open(dashboard.port()).await?;
        streams.push(tokio::spawn(count(stream, Arc::clone(&received))));
    }
    let browser = Browser::start().await?;
    browser.open(&dashboard.url("/?sort=name")).await?;
    let rows = browser.run(WATCH).await?;
    ensure!(rows.as_u64() == Some(LOCKS as u64), "{rows} rows");
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        browser.run("window.lags = []").await?;
        let (bytes, cpu, began) =
            (received.load(Ordering::Relaxed), cpu_micros(pid)?, Instant::now());
        let mut beat = interval(Duration::from_micros(1_000_000 / CHANGES));
        beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut changes = 0;
        while began.elapsed() < stage.options.time.max(Duration::from_secs(5)) {
            beat.tick().await;
            change(&mut redis, changes % LOCKS).await?;
            changes += 1;
        }
        let seconds = began.elapsed().as_secs_f64();
        let sent = received.load(Ordering::Relaxed) - bytes;
        let cores = (cpu_micros(pid)? - cpu) / 1e6 / seconds;
        let lags = "const lags = window.lags.toSorted((a, b) => a - b);
            return [lags.length, lags[Math.floor(lags.length / 2)], lags[Math.floor(lags.length * 0.99)]];";
        let lags = browser.run(lags).await?;
        let figure = |i: usize| lags[i].as_f64().with_context(|| format!("{lags}"));
        let mib = float(sent) / 1e6 / seconds;
        let mut round = Round::default();
        round.figure("lockscope-dashboard", "changes/s", float(changes as u64) / seconds);
        round.figure("lockscope-dashboard", "shown/s", figure(0)? / seconds);
        round.figure("lockscope-dashboard", "p50 ms", figure(1)?);
        round.target("p99 < 250 ms", "ms", figure(2)?, Bound::AtMost(250.0));
        round.target("< 20 MB/s to all", "MB/s", mib, Bound::AtMost(20.0));
        round.target("< 1 core", "cores", cores, Bound::AtMost(1.0));
        rounds.push(round);
    }
    streams.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(rounds)
}

async fn change(redis: &mut Client, lock: usize) -> Result<()> {
    let now = clock_gettime(ClockId::Realtime);
    let millis = now.tv_sec * 1_000 + now.tv_nsec / 1_000_000;
    let holder = format!("0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:{millis}");
    redis.call_args(&["EVAL", CHANGE, "1", &format!("bench:{lock:03}"), &holder]).await?.ok()?;
    Ok(())
}

async fn open(port: u16) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!(
        "GET /live?path=%2F%3Fsort%3Dname HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept-Encoding: gzip, deflate\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

/// Reads on, and counts.
async fn count(mut stream: TcpStream, received: Arc<AtomicU64>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(n @ 1..) = stream.read(&mut bytes).await {
        received.fetch_add(n as u64, Ordering::Relaxed);
    }
}
