//! Measures rslock: `bench-rslock TASK PORT WORKERS SECONDS` prints one line of JSON.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rslock::LockManager;
use tokio::task::LocalSet;
use tokio::time::sleep;

const LEASE: Duration = Duration::from_secs(30);

/// Unique names, so that locks left by an earlier run do not interfere.
fn prefix() -> String {
    format!("bench:{}", std::process::id())
}

/// Acquires and releases a lock, however long that takes; calls `had` once the lock is held.
async fn pair(manager: &LockManager, name: &str, had: impl FnOnce()) {
    loop {
        // The library gives up after some attempts.
        if let Ok(lock) = manager.lock(name.as_bytes(), LEASE).await {
            had();
            manager.unlock(&lock).await;
            return;
        }
    }
}

async fn uncontended(manager: LockManager, time: Duration) -> String {
    let lock = prefix();
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time {
        let began = Instant::now();
        pair(&manager, &lock, || ()).await;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    let rate = times.len() as f64 / start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let quantile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let (p50, p99) = (quantile(0.5), quantile(0.99));
    format!(r#"{{"pairs_per_s":{rate},"p50_us":{p50},"p99_us":{p99}}}"#)
}

/// Gives each worker a different lock; they share a connection, or each has its own manager and so its own connection.
async fn own(managers: Vec<LockManager>, time: Duration) -> String {
    let start = Instant::now();
    let all = managers.into_iter().enumerate().map(|(worker, manager)| {
        tokio::task::spawn_local(async move {
            let name = format!("{}:{worker}", prefix());
            let mut pairs = 0u64;
            while start.elapsed() < time {
                pair(&manager, &name, || pairs += 1).await;
            }
            pairs
        })
    });
    let mut pairs = 0;
    for worker in all.collect::<Vec<_>>() {
        pairs += worker.await.expect("no worker panics");
    }
    format!(r#"{{"pairs_per_s":{}}}"#, pairs as f64 / start.elapsed().as_secs_f64())
}

#[derive(Default)]
struct Measurements {
    grants: Vec<u64>,
    switches: u64,
    last: Option<usize>,
    longest: Duration,
}

async fn one(manager: LockManager, workers: usize, time: Duration) -> String {
    let seen = Rc::new(RefCell::new(Measurements { grants: vec![0; workers], ..Measurements::default() }));
    let start = Instant::now();
    for worker in 0..workers {
        let (manager, seen) = (manager.clone(), Rc::clone(&seen));
        tokio::task::spawn_local(async move {
            let lock = prefix();
            loop {
                let asked = Instant::now();
                pair(&manager, &lock, || {
                    let mut seen = seen.borrow_mut();
                    seen.grants[worker] += 1;
                    seen.switches += u64::from(seen.last.replace(worker) != Some(worker));
                    seen.longest = seen.longest.max(asked.elapsed());
                })
                .await;
            }
        });
    }
    sleep(time).await;
    let (seen, took) = (seen.borrow(), start.elapsed().as_secs_f64());
    format!(
        r#"{{"pairs_per_s":{},"switches_per_s":{},"least":{},"most":{},"longest_wait_ms":{}}}"#,
        seen.grants.iter().sum::<u64>() as f64 / took,
        seen.switches as f64 / took,
        seen.grants.iter().min().expect("there are workers"),
        seen.grants.iter().max().expect("there are workers"),
        seen.longest.as_secs_f64() * 1e3,
    )
}

async fn drain(manager: LockManager, workers: usize) -> String {
    let holder = manager.lock(prefix().as_bytes(), LEASE).await.expect("nobody has it");
    let all = (0..workers).map(|_| {
        let manager = manager.clone();
        tokio::task::spawn_local(async move { pair(&manager, &prefix(), || ()).await })
    });
    let all = all.collect::<Vec<_>>();
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    manager.unlock(&holder).await;
    for worker in all {
        worker.await.expect("no worker panics");
    }
    format!(r#"{{"drain_ms":{}}}"#, start.elapsed().as_secs_f64() * 1e3)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [task, port, workers, seconds] = words.as_slice() else {
        panic!("usage: bench-rslock TASK PORT WORKERS SECONDS");
    };
    let new = || LockManager::new(vec![format!("redis://127.0.0.1:{port}/")]);
    let manager = new();
    let workers: usize = workers.parse().expect("WORKERS is a number");
    let time = Duration::from_secs_f64(seconds.parse().expect("SECONDS is a number"));
    let line = LocalSet::new()
        .run_until(async move {
            match task.as_str() {
                "uncontended" => uncontended(manager, time).await,
                "own" => own(vec![manager; workers], time).await,
                "own-connections" => own((0..workers).map(|_| new()).collect(), time).await,
                "one" => one(manager, workers, time).await,
                "drain" => drain(manager, workers).await,
                other => panic!("no task is called {other}"),
            }
        })
        .await;
    println!("{line}");
}
