//! The delay until a change in Redis shows in a real browser among many viewers. There are ten thousand locks, five
//! hundred streams of lists and of single locks, and two windows, one with the list and one with a lock, in which the
//! delay is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::browser::Browser;
use harness::{Client, Dashboard, within};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Stage;
use crate::report::{Bound, Round};
use crate::stats::{cpu_micros, float};

/// The number of held locks; the measured list shows some of them.
const LOCKS: usize = 10_000;
const ROWS: usize = 100;
/// Changes of holders a second: half of them in rows of the list, the others elsewhere.
const CHANGES: u64 = 200;
/// One in this many changes is of the lock whose page is open too.
const OF_THE_LOCK: usize = 50;
/// The measured list, which most other viewers see too.
const LIST: &str = "/?sort=name";
/// The time limit for the dashboard to discover all locks, and then to serve all streams.
const PATIENCE: Duration = Duration::from_secs(120);
/// The shortest round: with fewer changes the 99th percentile means nothing.
const SHORTEST: Duration = Duration::from_secs(10);

/// Makes all locks, each with a lease of an hour.
const MAKE: &str = "for i = 0, tonumber(ARGV[1]) - 1 do
  local name = string.format('bench:%05d', i)
  redis.call('hset', name, ARGV[2], 1)
  redis.call('pexpire', name, 3600000)
end";

/// Passes the lock to another holder, and publishes a release message.
const CHANGE: &str = "redis.call('del', KEYS[1])
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], 3600000)
return redis.call('publish', 'redisson_lock__channel:{' .. KEYS[1] .. '}', '0')";

/// Records the age of each change that a row, or the page of a lock, shows: the holder's thread number is the instant
/// of the change, in epoch milliseconds.
const WATCH: &str = "window.lags = [];
const seen = new Map();
const list = document.getElementById('rows');
const told = (part) => Number(/:(\\d{13})\\b/.exec(part.innerHTML)?.[1] ?? 0);
const part = (node) => (node.closest ? node : node.parentElement)?.closest('#rows tr, #lock-holders');
const parts = list ? [...list.children] : [document.getElementById('lock-holders')];
for (const one of parts) seen.set(one.id, told(one));
new MutationObserver((changes) => {
  for (const one of new Set(changes.map((change) => part(change.target)))) {
    const at = one ? told(one) : 0;
    if (at && seen.get(one.id) !== at) { seen.set(one.id, at); window.lags.push(Date.now() - at); }
  }
}).observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
return parts.length;";

/// The number of changes shown, with the median and the 99th percentile of their delay.
const LAGS: &str = "const lags = window.lags.toSorted((a, b) => a - b);
return [lags.length, lags[Math.floor(lags.length / 2)] ?? null, lags[Math.floor(lags.length * 0.99)] ?? null];";

/// Measures the time from the change in Redis to the change in the browser.
pub(super) async fn browser(stage: Stage) -> Result<Vec<Round>> {
    let mut dashboard = Dashboard::start(&stage.redis.url(), &["--monitor", "off"]).await?;
    let pid = dashboard.process().pid();
    let mut redis = stage.redis.client().await?;
    redis.call_args(&["EVAL", MAKE, "0", &LOCKS.to_string(), &holder()]).await?.ok()?;
    within(PATIENCE, "the dashboard to know all locks", async || {
        let total = dashboard.json("/api/v1/locks?limit=1").await?["total"].as_u64();
        ensure!(total == Some(LOCKS as u64), "{total:?}");
        Ok(())
    })
    .await;
    let received = Arc::new(AtomicU64::new(0));
    let mut streams = Vec::new();
    for path in open_pages() {
        let stream = open(dashboard.port(), &path).await?;
        streams.push(tokio::spawn(count(stream, Arc::clone(&received))));
    }
    let browser = Browser::start().await?;
    let list = browser.window().await?;
    browser.open(&dashboard.url(LIST)).await?;
    let rows = watch(&browser).await?;
    ensure!(rows == Some(ROWS as u64), "{rows:?} rows");
    let lock = browser.new_window().await?;
    browser.open(&dashboard.url(&page_of(0))).await?;
    watch(&browser).await?;
    let wanted = streams.len() + 2;
    within(PATIENCE, "all streams to be open", async || {
        let open = dashboard.metrics().await?.sum("lockscope_dashboard_streams", &[]);
        ensure!(open.round() == float(wanted as u64), "{open} of {wanted}");
        Ok(())
    })
    .await;
    let mut rounds = Vec::new();
    for _ in 0..stage.options.rounds {
        for window in [&list, &lock] {
            browser.switch_to(window).await?;
            browser.run("window.lags = []").await?;
        }
        let (bytes, cpu, began) =
            (received.load(Ordering::Relaxed), cpu_micros(pid)?, Instant::now());
        let mut beat = interval(Duration::from_micros(1_000_000 / CHANGES));
        beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut changes = 0;
        while began.elapsed() < stage.options.time.max(SHORTEST) {
            beat.tick().await;
            change(&mut redis, chosen(changes)).await?;
            changes += 1;
        }
        let seconds = began.elapsed().as_secs_f64();
        let sent = received.load(Ordering::Relaxed) - bytes;
        let cores = (cpu_micros(pid)? - cpu) / 1e6 / seconds;
        let mut round = Round::default();
        round.figure("lockscope-dashboard", "changes/s", float(changes as u64) / seconds);
        for (window, shown, median, wanted, measured) in [
            (&list, "shown in the list/s", "p50 ms, list", "list: p99 < 100 ms", "ms, list"),
            (&lock, "shown of the lock/s", "p50 ms, lock", "lock: p99 < 100 ms", "ms, lock"),
        ] {
            browser.switch_to(window).await?;
            let lags = browser.run(LAGS).await?;
            let figure =
                |i: usize| lags[i].as_f64().with_context(|| format!("nothing shown: {lags}"));
            round.figure("lockscope-dashboard", shown, figure(0)? / seconds);
            round.figure("lockscope-dashboard", median, figure(1)?);
            round.target(wanted, measured, figure(2)?, Bound::AtMost(100.0));
        }
        round.target("< 20 MB/s to all", "MB/s", float(sent) / 1e6 / seconds, Bound::AtMost(20.0));
        round.target("< 1 core", "cores", cores, Bound::AtMost(1.0));
        rounds.push(round);
    }
    let ended = streams.iter().filter(|stream| stream.is_finished()).count();
    ensure!(ended == 0, "{ended} streams have ended");
    streams.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(rounds)
}

/// The open pages: half show the measured list, the others the default list, filtered lists and single locks.
fn open_pages() -> Vec<String> {
    let list = std::iter::repeat_n(LIST.to_owned(), 250);
    let usual = std::iter::repeat_n("/".to_owned(), 50);
    let filtered = (0..100).map(|i| format!("/?filter=bench:0{}*", i % 10));
    let single = (0..100).map(page_of);
    list.chain(usual).chain(filtered).chain(single).collect()
}

fn page_of(lock: usize) -> String {
    format!("/lock?name={}", utf8_percent_encode(&name(lock), NON_ALPHANUMERIC))
}

fn name(lock: usize) -> String {
    format!("bench:{lock:05}")
}

/// Returns the next lock to change.
fn chosen(change: usize) -> usize {
    match change {
        n if n.is_multiple_of(OF_THE_LOCK) => 0,
        n if n.is_multiple_of(2) => 1 + n / 2 % (ROWS - 1),
        n => ROWS + n * 7_919 % (LOCKS - ROWS),
    }
}

/// Returns a holder whose id contains the current instant.
fn holder() -> String {
    let now = clock_gettime(ClockId::Realtime);
    let millis = now.tv_sec * 1_000 + now.tv_nsec / 1_000_000;
    format!("0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:{millis}")
}

async fn change(redis: &mut Client, lock: usize) -> Result<()> {
    redis.call_args(&["EVAL", CHANGE, "1", &name(lock), &holder()]).await?.ok()?;
    Ok(())
}

/// Waits for the page in the current window, then starts recording its lags. Returns the number of watched elements.
async fn watch(browser: &Browser) -> Result<Option<u64>> {
    within(PATIENCE, "the page to be live", async || {
        let live = browser
            .run("return document.querySelector('#rows tr, #lock-holders tr') !== null")
            .await?;
        ensure!(live == Value::Bool(true), "no rows");
        Ok(())
    })
    .await;
    Ok(browser.run(WATCH).await?.as_u64())
}

async fn open(port: u16, path: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let path = utf8_percent_encode(path, NON_ALPHANUMERIC);
    let request = format!(
        "GET /live?path={path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept-Encoding: gzip, deflate\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

/// Reads the stream, and counts the received bytes.
async fn count(mut stream: TcpStream, received: Arc<AtomicU64>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(n @ 1..) = stream.read(&mut bytes).await {
        received.fetch_add(n as u64, Ordering::Relaxed);
    }
}
