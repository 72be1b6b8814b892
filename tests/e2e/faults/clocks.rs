//! Changes to the wall clock of an agent's host while locks are held.

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, RedisServer, WallClock, eventually};
use redisson::{HolderId, keys};

use super::{Bench, SHORT, answered, assert_held_by, holder, lock, lost, release};
use crate::agent::credentials;

const HOUR: i64 = 3_600;
/// The tolerance for times: far more than any test takes, and far less than the change of the clock.
const ABOUT: i64 = 900;

/// Returns the correct time in seconds since 1970, by Redis' clock, which is not changed.
async fn now(bench: &mut Bench) -> Result<i64> {
    Ok(bench.direct.call("TIME").await?.items()?[0].text().parse()?)
}

/// A hold under test.
struct Held {
    lock: &'static str,
    holder: String,
    lease: i64,
}

/// Waits until the start of that hold, as published in Redis and to Prometheus, matches a clock that is `ahead` seconds
/// fast, and checks that durations are unaffected.
async fn until_times_match(
    bench: &mut Bench,
    worker: &mut Client,
    held: &Held,
    ahead: i64,
) -> Result<()> {
    let Held { lock, holder: held, lease } = held;
    let id = HolderId::parse(held.as_bytes()).context("a holder id")?;
    let number = held.rsplit(':').next().context("it ends with its number")?.to_owned();
    let notes = String::from_utf8(keys::agent_holders(&id.client))?;
    let about = String::from_utf8(keys::agent(&id.client))?;
    eventually("the start of the hold by the changed clock", async || {
        let due = now(bench).await? + ahead;
        let note = bench.direct.call(&format!("HGET {notes} {number}")).await?;
        let note: serde_json::Value = serde_json::from_slice(note.bytes()?)?;
        let since = note["since"].as_i64().context("a time")? / 1_000;
        let started = bench.direct.call(&format!("HGET {about} started")).await?;
        let started = started.text().parse::<i64>()? / 1_000;
        let metrics = bench.agent.metrics().await?;
        let oldest = "lockscope_agent_oldest_hold_start_timestamp_seconds";
        let oldest = metrics.sum(oldest, &[("lock_group", lock)]);
        for shown in [since, started, format!("{oldest:.0}").parse()?] {
            ensure!(shown.abs_diff(due) < ABOUT.unsigned_abs(), "{shown} instead of {due}");
        }
        Ok(())
    })
    .await;
    let rows = worker.call(&format!("LOCKS MATCH {lock}")).await?.ok()?;
    let row = rows.items()?[1].items()?.first().context("it is held")?;
    let (age, valid) = (row.field("age_ms")?.int()?, row.field("valid_ms")?.int()?);
    assert!((0..ABOUT * 1_000).contains(&age), "held for {age} ms");
    assert!((1..=*lease).contains(&valid), "valid for {valid} ms, of {lease}");
    Ok(())
}

#[tokio::test]
async fn a_clock_change_affects_displayed_times_and_no_lock() -> Result<()> {
    let clock = WallClock::new()?;
    let environment = clock.environment();
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, &**value)).collect();
    let redis = RedisServer::start().await?;
    let agent = Agent::in_environment(&redis, SHORT, &environment).await?;
    let direct = redis.client().await?;
    let mut bench = Bench { agent, redis, direct };
    let mut worker = bench.session().await?;
    worker.call("SESSION GRACE 600000").await?.ok()?;
    let ticket = credentials(&mut worker).await?;
    let renewed_one = holder(&lock(&mut worker, "LOCK a").await?)?;
    let renewed_one = Held { lock: "a", holder: renewed_one, lease: 6_000 };
    // A lock without renewals whose lease cannot end while there is no agent, even on a busy machine.
    let lasting = holder(&lock(&mut worker, "LOCK b LEASE 3600000").await?)?;
    let lasting = Held { lock: "b", holder: lasting, lease: 3_600_000 };

    let renewed = [("outcome", "renewed")];
    let renewals = "lockscope_agent_renewals_total";
    for ahead in [0, HOUR, -HOUR] {
        clock.set(ahead)?;
        for held in [&renewed_one, &lasting] {
            until_times_match(&mut bench, &mut worker, held, ahead).await?;
        }
        let so_far = bench.agent.metrics().await?.sum(renewals, &renewed);
        // One renewal may have been under way.
        bench.until_metric(renewals, &renewed, so_far + 2.0).await;
        assert_held_by(&mut bench, "a", &renewed_one.holder).await?;
    }
    assert_eq!(lost(&bench.agent).await?, 0.0);

    // The state that the agent leaves behind keeps its age under the next agent, whose clock is different again.
    bench.agent.process().kill()?;
    WallClock::clear_up(bench.agent.pid());
    clock.set(26 * HOUR)?;
    bench.agent.restart().await?;
    super::ready(&bench.agent).await;
    let mut again = bench.session().await?;
    let resumed = answered(&mut again, &format!("RESUME {ticket}")).await.ok()?;
    let mut holds = Vec::new();
    for hold in resumed.field("holds")?.items()? {
        holds.push(hold.field("lock")?.text());
    }
    assert!(holds.iter().any(|lock| lock == "b"), "{holds:?}");
    until_times_match(&mut bench, &mut again, &lasting, 26 * HOUR).await?;
    assert_held_by(&mut bench, "b", &lasting.holder).await?;
    let next = holder(&lock(&mut again, "LOCK c").await?)?;
    for before in [renewed_one, lasting] {
        ensure!(next != before.holder, "a number that was never used before");
    }
    release(&mut bench, &mut again, "b").await?;
    bench.agent.process().kill()?;
    WallClock::clear_up(bench.agent.pid());
    Ok(())
}
