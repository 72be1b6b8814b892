//! Replies of Redis that announce more than any memory can hold, or never end.

use anyhow::{Result, ensure};
use harness::process::status_bytes;
use harness::proxy::{Flow, Place, Way};
use harness::{Client, Dashboard, Proxy, RedisServer, Reply, eventually};

use super::{COMMANDS, LONG, MESSAGES, RENEWALS, assert_held_by, holder, lock, stage};

const MIB: u64 = 1 << 20;
/// A long text, a long array, nested arrays, an array of many elements, and a long line; each with its error.
const FLOODS: [(Flow, &str); 5] = [
    (Flow::Flood("$2000000000\r\n", "x"), "a text of 2000000000 bytes, beyond the limit of"),
    (Flow::Flood("*2000000000\r\n", ":1\r\n"), "an array of 2000000000 elements, beyond the limit"),
    (Flow::Flood("*1\r\n", "*1\r\n"), "nested arrays deeper than 16 levels"),
    (Flow::Flood("*500000\r\n", "$4\r\nabcd\r\n"), "MiB for a reply"),
    (Flow::Flood("+", "x"), "a line longer than 64 KiB"),
];

/// The reason of a flood that begins during a handshake.
const UNASKED: &str = "the server said more than it was asked";

/// Returns the number of log lines with that reason, or with that of a flood that begins during a handshake.
fn reasons(log: &str, reason: &str) -> usize {
    log.matches(reason).count() + log.matches(UNASKED).count()
}

/// Returns whether the last handshake of that link met a flood: the log does not repeat the reason for the next one.
fn has_failed(log: &str, link: &str) -> bool {
    let link = format!("\"link\":\"{link}\"");
    let last = log.lines().rfind(|line| line.contains(&link));
    last.is_some_and(|line| line.contains(UNASKED))
}

#[tokio::test]
async fn a_flood_of_replies_costs_the_agent_a_connection_and_no_memory() -> Result<()> {
    let (mut bench, proxy) = stage(LONG).await?;
    let mut worker = bench.session().await?;
    let granted = holder(&lock(&mut worker, "LOCK a").await?)?;
    for (flow, reason) in FLOODS {
        for link in [COMMANDS, RENEWALS, MESSAGES] {
            let before = bench.agent.process().log();
            let (logged, repeated) = (reasons(&before, reason), has_failed(&before, link));
            let line = proxy.line(link).await;
            line.set(Way::Down, flow);
            eventually("the agent to close the connection", async || {
                ensure!(!line.is_open(), "{link} is open");
                Ok(())
            })
            .await;
            eventually("the reason in the log", async || {
                let log = bench.agent.process().log();
                let found = repeated || reasons(&log, reason) > logged;
                ensure!(found, "{link}: no `{reason}` in {log}");
                Ok(())
            })
            .await;
            // The sockets buffer some of it.
            let delivered = line.delivered(Way::Down) as u64;
            assert!(delivered < 48 * MIB, "{link} read {delivered} bytes");
        }
    }
    assert_held_by(&mut bench, "a", &granted).await?;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0), "it was not lost");
    let peak = status_bytes(bench.agent.pid(), "VmHWM")?;
    assert!(peak < 128 * MIB, "{peak} bytes");
    Ok(())
}

/// Adds a lock to Redis, and waits until the dashboard lists it: one of its connections is then ready for commands.
async fn until_listed(dashboard: &Dashboard, direct: &mut Client, name: &str) -> Result<()> {
    let field = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    direct.call(&format!("HSET {name} {field} 1")).await?;
    direct.call(&format!("PEXPIRE {name} 600000")).await?;
    eventually("a lock of that time in the list", async || {
        let list = dashboard.json("/api/v1/locks?limit=100").await?;
        ensure!(list.to_string().contains(name), "{list}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_flood_of_replies_costs_the_dashboard_a_connection_and_no_memory() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    let proxy = Proxy::tcp(Place::Port(redis.port())).await?;
    let mut dashboard = Dashboard::start(&proxy.url(), &["--monitor", "off"]).await?;
    until_listed(&dashboard, &mut direct, "orders:first").await?;
    for (round, (flow, reason)) in FLOODS.into_iter().enumerate() {
        for line in proxy.lines(None) {
            line.set(Way::Down, flow);
        }
        eventually("the reason in the log", async || {
            let log = dashboard.process().log();
            ensure!(log.contains(reason), "no `{reason}` in {log}");
            Ok(())
        })
        .await;
        until_listed(&dashboard, &mut direct, &format!("orders:{round}")).await?;
    }
    let peak = status_bytes(dashboard.process().pid(), "VmHWM")?;
    assert!(peak < 256 * MIB, "{peak} bytes");
    Ok(())
}
