//! The common behaviour of the libraries if connections break, replies are lost, or a session has no grace.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::eventually;

use super::Library;
use super::driver::Driver;
use super::stage::{SHORT, Stage, number};
use crate::clients::relay::Relay;

/// A grace that ends within a scenario unless the library reads the holds again. Two thirds of it are left after a cut.
const GRACE: Duration = Duration::from_secs(15);
/// The grace of a driver for which no other is chosen, in milliseconds.
const USUAL_GRACE_MS: i64 = 60_000;

/// Starts a relay and connects the driver through it.
fn relayed(stage: &mut Stage, library: &Library) -> Result<Relay> {
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    Ok(relay)
}

/// Waits for longer than the grace, by the clock of a hold with a fixed lease.
async fn outwait_the_grace(stage: &mut Stage, handle: &str) -> Result<()> {
    let command = format!("check {handle}");
    let begun = number(&stage.driver.call_in("clock", &command).await?, "remaining")?;
    eventually("the grace to be over", async || {
        let left = number(&stage.driver.call_in("clock", &command).await?, "remaining")?;
        ensure!(left < begun - 1000 - i64::try_from(GRACE.as_millis())?, "{left} of {begun} ms");
        Ok(())
    })
    .await;
    Ok(())
}

pub(super) async fn a_fixed_hold_outlives_a_cut_long_after_its_grant(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.driver = Driver::with_grace(library, &relay.socket(), GRACE)?;
    stage.driver.ok("lock a orders:42 lease=600000").await?;
    outwait_the_grace(&mut stage, "a").await?;
    relay.cut();
    stage.driver.event("risk", "a").await?;
    stage.driver.ok("check a").await?;
    stage.driver.ok("lock b orders:43 wait=60000").await?;
    stage.driver.ok("check a").await.map(drop)
}

pub(super) async fn holds_outlive_a_cut_after_a_long_wait(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.driver = Driver::with_grace(library, &relay.socket(), GRACE)?;
    stage.other_has("LOCK taken").await?;
    stage.other_has("LOCK other").await?;
    stage.driver.ok("lock a orders:42 lease=600000").await?;
    let waiting = stage.driver.send("main", "lock b taken wait=120000").await?;
    let other = stage.driver.send("second", "lock c other wait=120000").await?;
    stage.waits("taken", true).await;
    stage.waits("other", true).await;
    outwait_the_grace(&mut stage, "a").await?;
    stage.other_has("UNLOCK other").await?;
    let granted = stage.driver.answer(other).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    relay.cut();
    for (task, handle) in [("clock", "a"), ("second", "c")] {
        stage.driver.event("risk", handle).await?;
        let check = stage.driver.call_in(task, &format!("check {handle}")).await?;
        ensure!(check.get("error").is_none(), "{check}");
    }
    stage.other_has("UNLOCK taken").await?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    stage.driver.ok("check a").await.map(drop)
}

pub(super) async fn without_grace_a_hold_ends_with_its_connection(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    // The replacement of the journal cannot be written.
    std::fs::create_dir(stage.agent.folder().join("state/.journal.new"))?;
    stage.agent.restart().await?;
    let relay = relayed(&mut stage, library)?;
    stage.driver.ok("lock a orders:42").await?;
    stage.agent.process().freeze().await?;
    let made = relay.made();
    relay.cut();
    eventually("a new connection", async || {
        ensure!(relay.made() > made, "{made} connections");
        Ok(())
    })
    .await;
    // The agent will release it, and has not said so.
    stage.driver.fails("check a", "lost").await?;
    stage.agent.process().thaw()?;
    stage.driver.fails("release a", "lost").await?;
    stage.driver.ok("lock a orders:42 wait=60000").await.map(drop)
}

pub(super) async fn sessions_have_grace_once_the_journal_can_be_written(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", "12s"]).await?;
    let obstacle = stage.agent.folder().join("state/.journal.new");
    std::fs::create_dir(&obstacle)?;
    stage.agent.restart().await?;
    stage.other = stage.agent.client().await?;
    let relay = relayed(&mut stage, library)?;
    stage.driver.ok("lock a orders:42").await?;
    for command in ["lock s side", "release s"] {
        let answer = stage.driver.call_in("second", command).await?;
        ensure!(answer.get("error").is_none(), "{answer}");
    }
    std::fs::remove_dir(&obstacle)?;
    eventually("the journal to be written", async || {
        stage.other.call("SESSION GRACE 60000").await?.ok()?;
        Ok(())
    })
    .await;
    // One session requests its grace when it reads its deadlines, and the other one is replaced.
    let read = relay.sent("HOLDS")?;
    eventually("two more lists", async || {
        let now = relay.sent("HOLDS")?;
        ensure!(now >= read + 2, "{now} after {read}");
        Ok(())
    })
    .await;
    let other = stage.driver.call_in("second", "lock b orders:43").await?;
    ensure!(other.get("error").is_none(), "{other}");
    relay.cut();
    for (task, handle) in [("main", "a"), ("second", "b")] {
        stage.driver.event("risk", handle).await?;
        let check = stage.driver.call_in(task, &format!("check {handle}")).await?;
        ensure!(check.get("error").is_none(), "{check}");
        let released = stage.driver.call_in(task, &format!("release {handle}")).await?;
        ensure!(released.get("error").is_none(), "{released}");
    }
    Ok(())
}

pub(super) async fn a_grant_to_a_call_that_failed_is_released_once_the_agent_is_back(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = relayed(&mut stage, library)?;
    stage.driver.ok("lock w warm").await?;
    stage.driver.ok("release w").await?;
    relay.mute();
    relay.refuse(true);
    let waiting = stage.driver.send("main", "lock a orders:42 wait=3000").await?;
    eventually("the grant", async || {
        ensure!(!stage.is_free("orders:42").await?, "it is free");
        Ok(())
    })
    .await;
    relay.cut();
    let refused = stage.driver.answer(waiting).await?;
    ensure!(refused["error"] == "unavailable", "{refused}");
    relay.refuse(false);
    stage.released("orders:42").await;
    Ok(())
}

pub(super) async fn a_close_in_an_outage_ends_the_sessions(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = relayed(&mut stage, library)?;
    stage.driver.ok("lock k kept").await?;
    let own = stage.driver.call_in("second", "lock o own").await?;
    ensure!(own.get("error").is_none(), "{own}");
    let made = relay.made();
    relay.refuse(true);
    relay.cut();
    eventually("attempts to connect", async || {
        ensure!(relay.made() >= made + 4, "{} connections", relay.made());
        Ok(())
    })
    .await;
    relay.refuse(false);
    // The sessions pause between two attempts.
    stage.driver.ok("close").await?;
    stage.released("kept").await;
    stage.released("own").await;
    Ok(())
}

pub(super) async fn a_release_without_a_reply_succeeds(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = relayed(&mut stage, library)?;
    stage.driver.ok("lock a orders:42").await?;
    relay.cut_at("UNLOCK");
    stage.driver.ok("release a").await?;
    stage.released("orders:42").await;
    stage.driver.ok("lock b orders:42 wait=60000").await.map(drop)
}

pub(super) async fn a_hold_at_risk_is_reported_again_after_a_cut(library: &Library) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", "30s"]).await?;
    let relay = relayed(&mut stage, library)?;
    stage.driver.ok("lock a orders:42").await?;
    stage.redis.process().freeze().await?;
    stage.driver.event("risk", "a").await?;
    relay.cut();
    // The resumed session is safe until the agent says otherwise.
    stage.driver.event("risk", "a").await?;
    stage.redis.process().thaw()?;
    stage.driver.ok("check a").await.map(drop)
}

pub(super) async fn a_reentry_without_a_reply_is_renewed(library: &Library) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    let relay = relayed(&mut stage, library)?;
    stage.driver.ok("lock a orders:42 lease=10000").await?;
    relay.mute();
    let waiting = stage.driver.send("main", "lock b orders:42 wait=60000").await?;
    eventually("the second hold", async || {
        let counts = stage.direct.call("HVALS orders:42").await?.ok()?.text();
        ensure!(counts == "[2]", "{counts}");
        Ok(())
    })
    .await;
    relay.cut();
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    let mut last = i64::MAX;
    eventually("a later deadline", async || {
        let left = number(&stage.driver.ok("check a").await?, "remaining")?;
        let before = std::mem::replace(&mut last, left);
        ensure!(left > before, "{left} after {before}");
        Ok(())
    })
    .await;
    stage.driver.ok("check b").await.map(drop)
}

pub(super) async fn a_loss_among_several_names_all_of_them(library: &Library) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    stage.driver.ok("lock k kept").await?;
    stage.other_has("LOCK taken").await?;
    let waiting = stage.driver.send("main", "lock all kept,taken").await?;
    stage.waits("taken", true).await;
    stage.direct.call("DEL kept").await?.ok()?;
    stage.driver.event("lost", "k").await?;
    stage.other_has("UNLOCK taken").await?;
    let answer = stage.driver.answer(waiting).await?;
    ensure!(answer["error"] == "lost", "{answer}");
    ensure!(answer["text"].as_str().is_some_and(|text| text.contains("kept, taken")), "{answer}");
    Ok(())
}

pub(super) async fn a_loss_during_a_resumption_counts(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = relayed(&mut stage, library)?;
    stage.driver.ok("lock a orders:42 lease=600000").await?;
    // Only the reply to RESUME has this word. The library does not ask for events before it has read it.
    relay.hold_back("grace_ms");
    relay.cut();
    eventually("the reply to RESUME", async || {
        ensure!(relay.holds_back(), "none");
        Ok(())
    })
    .await;
    stage.other_has("FORCE orders:42").await?;
    stage.other_has("LOCK orders:42").await?;
    relay.let_pass();
    stage.driver.ok("lock b orders:43 wait=60000").await?;
    stage.driver.fails("check a", "lost").await?;
    stage.driver.fails("release a", "lost").await
}

pub(super) async fn a_loss_that_no_event_reports_is_found_in_the_list(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    relay.silence();
    stage.driver = Driver::with_grace(library, &relay.socket(), GRACE)?;
    stage.driver.ok("lock a orders:42 lease=600000").await?;
    stage.driver.ok("lock b orders:43 lease=600000").await?;
    stage.direct.call("DEL orders:42").await?.ok()?;
    let event = stage.driver.event("lost", "a").await?;
    ensure!(event["reason"] == "the agent does not hold it any more", "{event}");
    stage.driver.ok("check b").await?;
    stage.driver.fails("release a", "lost").await
}

pub(super) async fn a_grant_that_comes_with_the_end_of_its_connection_is_kept(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = relayed(&mut stage, library)?;
    stage.other_has("LOCK orders:42").await?;
    let waiting = stage.driver.send("main", "lock a orders:42 lease=600000").await?;
    stage.waits("orders:42", true).await;
    // It finds both at once.
    stage.driver.process().freeze().await?;
    let made = relay.made();
    relay.cut_after_reply(stage.other_has("UNLOCK orders:42")).await?;
    stage.driver.process().thaw()?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    eventually("the session to be resumed", async || {
        ensure!(relay.made() > made, "{made} connections");
        Ok(())
    })
    .await;
    stage.driver.ok("check a").await?;
    stage.driver.ok("release a").await?;
    ensure!(stage.is_free("orders:42").await?);
    Ok(())
}

pub(super) async fn a_lease_that_begins_with_the_end_of_the_connection_counts_after_it_is_resumed(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = relayed(&mut stage, library)?;
    stage.driver.ok("lock a orders:42").await?;
    stage.agent.process().freeze().await?;
    let extending = stage.driver.send("main", "extend a 600000").await?;
    eventually("the command", async || {
        let mut commands = (0..relay.made()).map(|number| relay.commands(number));
        let sent = commands.any(|sent| sent.is_ok_and(|sent| sent.concat().contains("EXTEND")));
        ensure!(sent, "it has not been sent");
        Ok(())
    })
    .await;
    stage.driver.process().freeze().await?;
    relay.refuse(true);
    relay.cut_after_reply(async { stage.agent.process().thaw() }).await?;
    stage.driver.process().thaw()?;
    // Some libraries report a success here, others say that they do not know.
    stage.driver.answer(extending).await?;
    remains(&mut stage, |ms| ms <= USUAL_GRACE_MS).await;
    relay.refuse(false);
    remains(&mut stage, |ms| ms > USUAL_GRACE_MS).await;
    stage.driver.ok("release a").await.map(drop)
}

/// Waits until the hold is certain for such a time in milliseconds.
async fn remains(stage: &mut Stage, expected: fn(i64) -> bool) {
    eventually("the time for which the hold is certain", async || {
        let check = stage.driver.ok("check a").await?;
        ensure!(expected(number(&check, "remaining")?), "{check}");
        Ok(())
    })
    .await;
}
