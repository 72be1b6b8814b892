//! The common behaviour of the libraries. Each scenario waits for conditions, with deadlines, and never for a fixed time.

use anyhow::{Context as _, Result, ensure};
use harness::eventually;

use super::Library;
use super::stage::{LONG, SHORT, Stage, number};
use crate::clients::relay::Relay;

pub(super) async fn a_lock_is_granted_and_released(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let hold = stage.driver.ok("lock a orders:42 wait=60000").await?;
    ensure!(hold["token"].is_null(), "{hold}");
    let remaining = number(&hold, "remaining")?;
    ensure!((1..=120_000).contains(&remaining), "{hold}");
    let holder = hold["holder"].as_str().context("a holder")?;
    let there = stage.holder("orders:42").await?;
    ensure!(there.contains(holder), "{there} is not {holder}");
    stage.driver.ok("check a").await?;
    stage.driver.ok("release a").await?;
    ensure!(stage.is_free("orders:42").await?);
    stage.driver.fails("check a", "lost").await
}

pub(super) async fn sessions_have_the_name_in_the_environment(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock a orders:42").await?;
    let rows = stage.other.call("LOCKS").await?;
    ensure!(rows.items()?[1].items()?[0].field("name")?.text() == "billing7", "{rows:?}");
    Ok(())
}

pub(super) async fn a_fenced_lock_has_growing_tokens(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let first = number(&stage.driver.ok("lock a orders:42 kind=fenced").await?, "token")?;
    stage.driver.ok("release a").await?;
    let second = number(&stage.driver.ok("lock b orders:42 kind=fenced").await?, "token")?;
    ensure!(second > first, "{first}, {second}");
    stage.driver.fails("lock c orders:42 kind=fair wait=0", "WRONGKIND").await
}

pub(super) async fn a_wait_times_out(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.other_has("LOCK orders:42").await?;
    stage.driver.fails("lock a orders:42 wait=0", "timeout").await?;
    stage.driver.fails("lock a orders:42 wait=200", "timeout").await?;
    stage.waits("orders:42", false).await;
    stage.other_has("UNLOCK orders:42").await?;
    stage.driver.ok("lock a orders:42 wait=0").await.map(drop)
}

pub(super) async fn a_wait_of_more_than_a_year_has_no_limit(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    // The last ones are just below the longest time of several languages, and the longest.
    for wait in ["31536001000", "9223372036000", "1e18", "Infinity"] {
        stage.other_has("LOCK orders:42").await?;
        let waiting = stage.driver.send("main", &format!("lock a orders:42 wait={wait}")).await?;
        stage.waits("orders:42", true).await;
        stage.other_has("UNLOCK orders:42").await?;
        let granted = stage.driver.answer(waiting).await?;
        ensure!(granted.get("error").is_none(), "wait={wait}: {granted}");
        stage.driver.ok("release a").await?;
    }
    Ok(())
}

pub(super) async fn an_owner_reenters_its_lock(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let first = stage.driver.ok("lock a orders:42").await?;
    let second = stage.driver.ok("lock b orders:42 wait=0").await?;
    ensure!(first["holder"] == second["holder"], "{first}, {second}");
    stage.driver.ok("release b").await?;
    stage.driver.fails("check b", "lost").await?;
    stage.driver.ok("check a").await?;
    ensure!(!stage.is_free("orders:42").await?);
    stage.driver.ok("release a").await?;
    ensure!(stage.is_free("orders:42").await?);
    Ok(())
}

pub(super) async fn tasks_of_one_process_exclude_each_other(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    // The second task may use the first one's connection only once nothing is under way on it.
    stage.driver.ok("lock w warm").await?;
    stage.driver.ok("release w").await?;
    let taken = stage.driver.call_in("second", "lock y orders:43").await?;
    ensure!(taken.get("error").is_none(), "{taken}");
    stage.driver.fails("lock x orders:43 wait=0", "timeout").await?;
    stage.driver.ok("lock a orders:42").await?;
    let refused = stage.driver.call_in("second", "lock b orders:42 wait=0").await?;
    ensure!(refused["error"] == "timeout", "{refused}");
    let waiting = stage.driver.send("second", "lock b orders:42 wait=60000").await?;
    stage.waits("orders:42", true).await;
    stage.driver.ok("release a").await?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    stage.driver.fails("lock a orders:42 wait=0", "timeout").await
}

pub(super) async fn a_waiting_task_does_not_delay_the_others(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.other_has("LOCK taken").await?;
    let waiting = stage.driver.send("second", "lock b taken").await?;
    stage.waits("taken", true).await;
    stage.driver.ok("lock a orders:42").await?;
    stage.driver.ok("release a").await?;
    stage.other_has("UNLOCK taken").await?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    Ok(())
}

pub(super) async fn a_hold_at_risk_is_reported_and_becomes_safe(library: &Library) -> Result<()> {
    // The last third of the lease must suffice to receive the warning and to recover on a busy host.
    let mut stage = Stage::with(library, &["--lease", "30s"]).await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.redis.process().freeze().await?;
    stage.driver.event("risk", "a").await?;
    let low = number(&stage.driver.ok("check a").await?, "remaining")?;
    stage.redis.process().thaw()?;
    eventually("the hold to be renewed", async || {
        let remaining = number(&stage.driver.ok("check a").await?, "remaining")?;
        ensure!(remaining > low + 1000, "{remaining} after {low}");
        Ok(())
    })
    .await;
    stage.driver.ok("release a").await.map(drop)
}

pub(super) async fn a_loss_is_reported_at_once(library: &Library) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.direct.call("DEL orders:42").await?.ok()?;
    let event = stage.driver.event("lost", "a").await?;
    ensure!(event["reason"] == "missing", "{event}");
    stage.driver.fails("check a", "lost").await?;
    stage.driver.fails("release a", "lost").await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.driver.ok("check a").await.map(drop)
}

pub(super) async fn a_loss_blocks_reentry_until_the_release(library: &Library) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.direct.call("DEL orders:42").await?.ok()?;
    stage.driver.event("lost", "a").await?;
    stage.driver.fails("lock b orders:42 wait=0", "lost").await?;
    stage.driver.fails("release a", "lost").await?;
    stage.driver.ok("lock b orders:42 wait=60000").await.map(drop)
}

pub(super) async fn redis_away_loses_the_hold_and_rejects_new_ones(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.redis.process().freeze().await?;
    let event = stage.driver.event("lost", "a").await?;
    ensure!(event["reason"].is_string(), "{event}");
    stage.driver.fails("check a", "lost").await?;
    stage.driver.fails("lock b orders:43 wait=0", "unavailable").await?;
    stage.redis.process().thaw()?;
    stage.driver.call("release a").await?;
    eventually("locks to be granted again", async || {
        stage.driver.ok("lock c orders:42 wait=1000").await.map(drop)
    })
    .await;
    Ok(())
}

pub(super) async fn a_fixed_lease_expires(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let hold = stage.driver.ok("lock a orders:42 lease=30000").await?;
    ensure!(number(&hold, "remaining")? <= 30_000, "{hold}");
    let extended = stage.driver.ok("extend a 60000").await?;
    ensure!(number(&extended, "remaining")? > 30_000, "{extended}");
    // The reply must arrive before this lease ends.
    let shortened = stage.driver.ok("extend a 6000").await?;
    ensure!(number(&shortened, "remaining")? <= 6000, "{shortened}");
    stage.driver.event("lost", "a").await?;
    stage.driver.fails("check a", "lost").await?;
    stage.freed("orders:42").await;
    Ok(())
}

pub(super) async fn the_lease_of_a_readers_entry_ends_with_it(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock a orders:42 kind=read lease=100000").await?;
    stage.driver.ok("lock b orders:42 kind=read lease=600000").await?;
    let both = number(&stage.driver.ok("check a").await?, "remaining")?;
    stage.driver.ok("release b").await?;
    let left = number(&stage.driver.ok("check a").await?, "remaining")?;
    ensure!(both > 100_000 && left <= 100_000, "{both}, {left}");
    Ok(())
}

pub(super) async fn a_lease_that_is_too_short_is_rejected_and_never_renewed(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.fails("lock a orders:42 lease=0", "LIMIT").await?;
    stage.driver.ok("lock a orders:42 lease=30000").await?;
    stage.driver.fails("extend a 0.5", "LIMIT").await?;
    let hold = stage.driver.ok("check a").await?;
    ensure!(number(&hold, "remaining")? <= 30_000, "{hold}");
    // The reply must arrive before this lease ends.
    stage.driver.ok("extend a 6000").await?;
    stage.driver.event("lost", "a").await.map(drop)
}

pub(super) async fn a_negative_grace_is_rejected(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("graced 1000").await?;
    let refused = stage.driver.call("graced -1000").await?;
    ensure!(refused["error"].is_string(), "{refused}");
    ensure!(refused["text"].as_str().is_some_and(|text| text.contains("-1")), "{refused}");
    stage.released("graced").await;
    Ok(())
}

pub(super) async fn a_time_beyond_the_limit_is_rejected(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock a orders:42").await?;
    for millis in ["31536001000", "9223372036000", "10000000000000", "1000000000000000000"] {
        stage.driver.fails(&format!("graced {millis}"), "LIMIT").await?;
        stage.driver.fails(&format!("lock b orders:43 lease={millis}"), "LIMIT").await?;
        stage.driver.fails(&format!("extend a {millis}"), "LIMIT").await?;
        stage.driver.ok("check a").await?;
    }
    Ok(())
}

pub(super) async fn a_restarted_agent_keeps_hold_and_wait(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.direct.call("HSET taken 9c3e6e0e-2f6c-4a6e-8f0e-1b2c3d4e5f60:7 1").await?.ok()?;
    stage.direct.call("PEXPIRE taken 600000").await?.ok()?;
    stage.driver.ok("lock a orders:42").await?;
    let waiting = stage.driver.send("second", "lock b taken wait=120000").await?;
    stage.waits("taken", true).await;
    let holder = stage.holder("orders:42").await?;
    stage.agent.restart().await?;
    stage.other = stage.agent.client().await?;
    stage.waits("taken", true).await;
    stage.driver.ok("lock c orders:42").await?;
    stage.driver.ok("check a").await?;
    ensure!(stage.holder("orders:42").await? == holder);
    stage.direct.call("DEL taken").await?.ok()?;
    stage.direct.call("PUBLISH redisson_lock__channel:{taken} 0").await?.ok()?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    stage.driver.ok("release c").await?;
    stage.driver.ok("release a").await?;
    ensure!(stage.is_free("orders:42").await?);
    Ok(())
}

pub(super) async fn a_cut_connection_is_resumed(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    stage.driver.ok("lock a orders:42").await?;
    stage.other_has("LOCK taken").await?;
    let waiting = stage.driver.send("second", "lock b taken wait=120000").await?;
    stage.waits("taken", true).await;
    let (holder, connections) = (stage.holder("orders:42").await?, relay.made());
    relay.cut();
    eventually("new connections", async || {
        ensure!(relay.made() >= connections + 2, "{} connections", relay.made());
        Ok(())
    })
    .await;
    stage.waits("taken", true).await;
    stage.driver.ok("lock c orders:42").await?;
    stage.driver.ok("check a").await?;
    ensure!(stage.holder("orders:42").await? == holder);
    stage.other_has("UNLOCK taken").await?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    Ok(())
}

pub(super) async fn a_draining_agent_rejects_tries_and_delays_waits(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", LONG, "--drain-timeout", "10m"]).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    stage.driver.ok("lock a orders:42").await?;
    // A draining agent accepts no connections, so the second task already has one.
    let side = stage.driver.call_in("second", "lock s side").await?;
    ensure!(side.get("error").is_none(), "{side}");
    stage.drain().await?;
    let refused = stage.driver.call_in("second", "lock b orders:43 wait=0").await?;
    ensure!(refused["error"] == "unavailable", "{refused}");
    ensure!(refused["text"].as_str().is_some_and(|text| text.contains("DRAINING")), "{refused}");
    let tries = relay.attempts("orders:43")?;
    let waiting = stage.driver.send("second", "lock b orders:43 wait=120000").await?;
    eventually("the wait to be refused and retried", async || {
        let now = relay.attempts("orders:43")?;
        ensure!(now >= tries + 2, "{now} commands after {tries}");
        Ok(())
    })
    .await;
    stage.driver.ok("check a").await?;
    stage.agent.restart().await?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    stage.driver.ok("check a").await?;
    stage.driver.ok("release a").await.map(drop)
}

pub(super) async fn a_hold_stays_certain_while_a_draining_agent_refuses_another_one(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", "20s", "--drain-timeout", "10m"]).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    stage.driver.ok("lock a orders:42").await?;
    stage.drain().await?;
    let waiting = stage.driver.send("main", "lock b orders:43 wait=120000").await?;
    eventually("the first attempt", async || {
        ensure!(relay.attempts("orders:43")? > 0, "none");
        Ok(())
    })
    .await;
    let begun = age_of_the_keeper(&mut stage).await?;
    eventually("a lease to be over", async || {
        let now = age_of_the_keeper(&mut stage).await?;
        ensure!(now >= begun + 25_000, "{} ms have passed", now - begun);
        Ok(())
    })
    .await;
    let count = relay.attempts("orders:43")?;
    ensure!(count >= 5, "{count} attempts");
    ensure!(!stage.driver.has_event("lost", "a"), "the deadline was not followed");
    stage.agent.restart().await?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    stage.driver.ok("check a").await.map(drop)
}

/// Returns for how long the other worker has had its lock, in milliseconds.
async fn age_of_the_keeper(stage: &mut Stage) -> Result<i64> {
    let rows = stage.other.call("LOCKS MATCH keeper").await?.ok()?;
    rows.items()?[1].items()?[0].field("age_ms")?.int()
}

pub(super) async fn a_forked_child_neither_holds_nor_releases(library: &Library) -> Result<()> {
    if !library.forks {
        return Ok(());
    }
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock a orders:42").await?;
    let child = stage.driver.call("fork a").await?;
    ensure!(child["error"] == "lost" && child["excluded"] == true, "{child}");
    stage.driver.ok("check a").await?;
    ensure!(!stage.is_free("orders:42").await?);
    stage.driver.ok("release a").await?;
    ensure!(stage.is_free("orders:42").await?);
    Ok(())
}

pub(super) async fn a_thousand_locks_are_held_at_once(library: &Library) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", "30s"]).await?;
    let answer = stage.driver.ok("many 1000").await?;
    ensure!(answer["errors"] == serde_json::json!([]), "{answer}");
    let held = harness::redis::locks(&mut stage.direct).await?;
    ensure!(held == 1000, "{held} locks");
    let answer = stage.driver.ok("unmany").await?;
    ensure!(answer["errors"] == serde_json::json!([]), "{answer}");
    // A release that Redis has not confirmed in time succeeds too: the agent repeats it.
    eventually("all locks to be released", async || {
        let left = harness::redis::locks(&mut stage.direct).await?;
        ensure!(left == 0, "{left} locks");
        Ok(())
    })
    .await;
    Ok(())
}

pub(super) async fn a_cancelled_wait_leaves_nothing_behind(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock k kept").await?;
    stage.other_has("LOCK orders:42").await?;
    let waiting = stage.driver.send("main", "lock a orders:42").await?;
    stage.waits("orders:42", true).await;
    stage.driver.cancel(waiting).await?;
    let answer = stage.driver.answer(waiting).await?;
    ensure!(answer["error"] == "cancelled", "{answer}");
    stage.waits("orders:42", false).await;
    stage.other_has("UNLOCK orders:42").await?;
    stage.freed("orders:42").await;
    stage.driver.ok("lock a orders:42 wait=60000").await?;
    // The connection stayed open: otherwise the other hold would have been at risk.
    ensure!(!stage.driver.has_event("risk", "k"));
    stage.driver.ok("check k").await.map(drop)
}

pub(super) async fn a_stopped_process_finds_its_hold_over(library: &Library) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.driver.process().freeze().await?;
    // The agent is stopped too: nothing can report the loss, so only the deadline does.
    stage.agent.process().freeze().await?;
    stage.freed("orders:42").await;
    let check = stage.driver.send("main", "check a").await?;
    stage.driver.process().thaw()?;
    let answer = stage.driver.answer(check).await?;
    ensure!(answer["error"] == "lost", "{answer}");
    stage.agent.process().thaw()?;
    // Later reports of the agent do not revive the hold.
    let answer = stage.driver.call("release a").await?;
    ensure!(answer["error"] == "lost", "{answer}");
    stage.driver.ok("lock a orders:42 wait=60000").await.map(drop)
}

pub(super) async fn a_grant_that_arrives_after_its_deadline_is_not_used(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    stage.other_has("LOCK orders:42").await?;
    let before = stage.holder("orders:42").await?;
    let waiting = stage.driver.send("main", "lock a orders:42 wait=120000").await?;
    stage.waits("orders:42", true).await;
    stage.driver.process().freeze().await?;
    stage.other_has("UNLOCK orders:42").await?;
    eventually("the grant", async || {
        let now = stage.holder("orders:42").await?;
        ensure!(now != before && now.contains(':'), "{now}");
        Ok(())
    })
    .await;
    let late = stage.holder("orders:42").await?;
    stage.agent.process().freeze().await?;
    stage.freed("orders:42").await;
    stage.driver.process().thaw()?;
    stage.agent.process().thaw()?;
    let granted = stage.driver.answer(waiting).await?;
    let holder = granted["holder"].as_str().with_context(|| format!("no grant: {granted}"))?;
    ensure!(!late.contains(holder), "{holder} is the grant whose deadline has passed");
    stage.driver.ok("check a").await.map(drop)
}

pub(super) async fn a_grant_that_is_lost_before_it_is_read_is_not_used(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    stage.other_has("LOCK orders:42").await?;
    let waiting = stage.driver.send("main", "lock a orders:42 wait=120000").await?;
    stage.waits("orders:42", true).await;
    stage.driver.process().freeze().await?;
    stage.other_has("UNLOCK orders:42").await?;
    stage.waits("orders:42", false).await;
    let lost = stage.holder("orders:42").await?;
    ensure!(lost.contains(':'), "no grant: {lost}");
    stage.other_has("FORCE orders:42").await?;
    eventually("the loss", async || {
        ensure!(relay.has_carried("lock-lost"), "it is not reported");
        Ok(())
    })
    .await;
    stage.driver.process().thaw()?;
    let granted = stage.driver.answer(waiting).await?;
    let holder = granted["holder"].as_str().with_context(|| format!("no grant: {granted}"))?;
    if lost.contains(holder) {
        // Another thread has read the grant before the loss.
        stage.driver.event("lost", "a").await?;
        return stage.driver.fails("check a", "lost").await;
    }
    stage.driver.ok("check a").await.map(drop)
}

pub(super) async fn a_hold_stays_certain_while_its_owner_waits_for_another_lock(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", "12s"]).await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.other_has("LOCK taken").await?;
    // This wait is longer than the lease.
    let waiting = stage.driver.send("main", "lock b taken wait=16000").await?;
    let answer = stage.driver.answer(waiting).await?;
    ensure!(answer["error"] == "timeout", "{answer}");
    stage.driver.ok("check a").await?;
    stage.driver.ok("release a").await.map(drop)
}

pub(super) async fn several_locks_are_acquired_together_or_not_at_all(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.other_has("LOCK c").await?;
    stage.driver.fails("lock all b,c,a wait=0", "timeout").await?;
    ensure!(stage.is_free("a").await? && stage.is_free("b").await?);
    let waiting = stage.driver.send("main", "lock all b,c,a wait=60000").await?;
    stage.waits("c", true).await;
    stage.other_has("UNLOCK c").await?;
    let granted = stage.driver.answer(waiting).await?;
    let holders = granted["holder"].as_str().with_context(|| format!("no grant: {granted}"))?;
    for (name, holder) in ["b", "c", "a"].into_iter().zip(holders.split(',')) {
        let there = stage.holder(name).await?;
        ensure!(there.contains(holder), "{name}: {there} is not {holder}");
    }
    // An owner reenters its locks, alone or together with others.
    stage.driver.ok("lock alone a wait=0").await?;
    stage.driver.ok("lock more a,d wait=0").await?;
    let refused = stage.driver.call_in("second", "lock x d,e wait=0").await?;
    ensure!(refused["error"] == "timeout", "{refused}");
    stage.driver.ok("check all").await?;
    stage.driver.ok("release all").await?;
    ensure!(stage.is_free("b").await? && stage.is_free("c").await? && !stage.is_free("a").await?);
    stage.driver.ok("release alone").await?;
    stage.driver.ok("check more").await?;
    stage.driver.ok("release more").await?;
    ensure!(stage.is_free("a").await? && stage.is_free("d").await?);
    Ok(())
}

pub(super) async fn a_loss_among_several_is_reported(library: &Library) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    stage.driver.ok("lock all a,b").await?;
    stage.direct.call("DEL b").await?.ok()?;
    let event = stage.driver.event("lost", "all").await?;
    ensure!(event["reason"] == "missing", "{event}");
    stage.driver.fails("check all", "lost").await?;
    stage.driver.fails("release all", "lost").await?;
    stage.released("a").await;
    stage.driver.ok("lock all a,b wait=60000").await.map(drop)
}

pub(super) async fn a_cancelled_wait_for_several_leaves_nothing_behind(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock k kept").await?;
    stage.other_has("LOCK b").await?;
    let waiting = stage.driver.send("main", "lock all a,b").await?;
    stage.waits("b", true).await;
    stage.driver.cancel(waiting).await?;
    let answer = stage.driver.answer(waiting).await?;
    ensure!(answer["error"] == "cancelled", "{answer}");
    stage.waits("b", false).await;
    stage.freed("a").await;
    ensure!(!stage.driver.has_event("risk", "k"));
    stage.driver.ok("check k").await.map(drop)
}
