//! Every kind at once, on connections that keep breaking, with workers that die: exclusion holds, tokens only grow,
//! every worker gets through, and nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::{Agent, Reply, eventually};

use super::{Bench, lock};

const ROUNDS: u64 = 25;
const BREAKS: u64 = 30;

/// The occupants of one lock: -1 for an exclusive holder, else the number of readers.
#[derive(Default)]
struct Inside {
    now: AtomicI64,
    token: AtomicI64,
}

impl Inside {
    fn enter(&self, kind: &str, reply: &Reply) -> Result<()> {
        let before = if kind == "read" {
            self.now.fetch_add(1, Ordering::SeqCst).min(0)
        } else {
            self.now.swap(-1, Ordering::SeqCst)
        };
        ensure!(before == 0, "{before} workers hold the lock already: {reply}");
        if kind == "fenced" {
            let token = reply.field("token")?.int()?;
            let last = self.token.swap(token, Ordering::SeqCst);
            ensure!(token > last, "token {token} after {last}");
        }
        Ok(())
    }

    fn leave(&self, kind: &str) {
        if kind == "read" {
            self.now.fetch_sub(1, Ordering::SeqCst);
        } else {
            self.now.store(0, Ordering::SeqCst);
        }
    }
}

/// Returns a number below `sides`; each run has the same sequence.
fn roll(dice: &mut u64, sides: u64) -> u64 {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    *dice % sides
}

#[tokio::test]
async fn kinds_hold_while_connections_break_and_workers_die() -> Result<()> {
    let mut bench = Bench::new().await?;
    let other = Agent::start(&bench.redis).await?;
    let locks: Arc<[Inside; 3]> = Arc::default();
    let done = Arc::new(AtomicBool::new(false));
    let mut breaker = bench.redis.client().await?;
    let breaking = tokio::spawn({
        let done = Arc::clone(&done);
        async move {
            let mut dice = 7;
            let mut broken = 0;
            // Limited, because every worker must get through afterwards.
            for _ in 0..BREAKS {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                let kind = if roll(&mut dice, 3) == 0 { "pubsub" } else { "normal" };
                let kill = format!("CLIENT KILL TYPE {kind} SKIPME yes");
                broken += breaker.call(&kill).await?.int()?;
                tokio::time::sleep(Duration::from_millis(20 + roll(&mut dice, 150))).await;
            }
            anyhow::Ok(broken)
        }
    });
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..12_u64 {
        let socket = if n % 2 == 0 { bench.agent.socket() } else { other.socket() };
        let locks = Arc::clone(&locks);
        crowd.spawn(async move {
            let mut dice = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut worker = harness::Client::unix(&socket).await?;
            for round in 0..ROUNDS {
                let (name, kind) = match roll(&mut dice, 6) {
                    0 => (0, "fenced"),
                    1 => (1, "fair"),
                    2 => (2, "write"),
                    _ => (2, "read"),
                };
                if roll(&mut dice, 8) == 0 {
                    // The worker dies while it waits, or as soon as it holds the lock.
                    worker.send(&format!("LOCK k{name} KIND {kind}")).await?;
                    worker = harness::Client::unix(&socket).await?;
                    continue;
                }
                let wait = if roll(&mut dice, 4) == 0 { " WAIT 5" } else { "" };
                let command = format!("LOCK k{name} KIND {kind}{wait}");
                let reply = worker.call(&command).await?;
                // A short wait may end while the connection is broken.
                if reply == Reply::Null || (!wait.is_empty() && reply.is_error("UNAVAILABLE")) {
                    continue;
                }
                let reply = reply.ok().with_context(|| format!("{command} in round {round}"))?;
                locks[name].enter(kind, &reply)?;
                tokio::time::sleep(Duration::from_millis(roll(&mut dice, 4))).await;
                locks[name].leave(kind);
                match worker.call(&format!("UNLOCK k{name} KIND {kind}")).await? {
                    Reply::Int(0) => {}
                    // The agent keeps trying to release the lock.
                    reply if reply.is_error("UNAVAILABLE") => {}
                    other => bail!("UNLOCK k{name} KIND {kind}, {reply}: {other}"),
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(worker) = crowd.join_next().await {
        worker??;
    }
    done.store(true, Ordering::SeqCst);
    let broken = breaking.await??;
    assert!(broken > 0, "no connection was ever broken");

    // The connection of the test was broken too.
    bench.direct = bench.redis.client().await?;
    eventually("only the token to be left", async || {
        let keys = bench.direct.call("KEYS *").await?.text();
        ensure!(harness::redis::locks(&mut bench.direct).await? <= 1, "{keys}");
        Ok(())
    })
    .await;
    for agent in [&bench.agent, &other] {
        eventually("the agent to have nothing left", async || {
            let metrics = agent.metrics().await?;
            for metric in ["holds", "waiters", "subscriptions"] {
                let left = metrics.sum(&format!("lockscope_agent_{metric}"), &[]);
                ensure!(left == 0.0, "{left} {metric}");
            }
            Ok(())
        })
        .await;
    }
    let mut worker = bench.session().await?;
    for (name, kind) in [("k0", "fenced"), ("k1", "fair"), ("k2", "write")] {
        lock(&mut worker, &format!("LOCK {name} KIND {kind} NOWAIT")).await?;
    }
    Ok(())
}
