//! The common behaviour of the libraries if the agent hangs, a call is cancelled, or a new lease or a close meets another call.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::eventually;

use super::Library;
use super::driver::{Driver, Sent};
use super::stage::{SHORT, Stage, number};
use crate::clients::relay::Relay;

/// Waits until the deadline alone has ended the hold, before the command that sets a new lease is answered.
async fn ends_before_the_answer(stage: &mut Stage, extending: Sent) -> Result<()> {
    stage.driver.event("lost", "a").await?;
    let check = stage.driver.call_in("second", "check a").await?;
    ensure!(check["error"] == "lost", "{check}");
    ensure!(!stage.driver.has_answered(extending), "it relied on the earlier lease until then");
    stage.agent.process().thaw()?;
    let answer = stage.driver.answer(extending).await?;
    ensure!(answer["error"].is_string(), "{answer}");
    stage.driver.fails("release a", "lost").await
}

pub(super) async fn a_shorter_lease_counts_from_the_instant_at_which_it_is_sent(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.agent.process().freeze().await?;
    let extending = stage.driver.send("main", "extend a 3000").await?;
    ends_before_the_answer(&mut stage, extending).await
}

pub(super) async fn a_loss_at_the_deadline_is_reported_while_the_agent_hangs(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    // A third of the grace is the longest time between two lists. The next one is requested before the lease ends.
    stage.driver = Driver::with_grace(library, &stage.agent.socket(), Duration::from_secs(6))?;
    stage.driver.call_in("second", "lock b orders:43").await?;
    stage.driver.ok("lock a orders:42 lease=5000").await?;
    stage.agent.process().freeze().await?;
    // The library gives this up after the lease, but before it gives up the list.
    let waiting = stage.driver.send("second", "lock c orders:44 wait=3000").await?;
    stage.driver.event("lost", "a").await?;
    ensure!(!stage.driver.has_answered(waiting), "the loss was found late");
    stage.agent.process().thaw()?;
    stage.driver.answer(waiting).await.map(drop)
}

pub(super) async fn a_return_to_renewal_counts_from_the_instant_at_which_it_is_sent(
    library: &Library,
) -> Result<()> {
    // The hold must end before the library stops waiting for the reply.
    let mut stage = Stage::with(library, &["--lease", "4s"]).await?;
    stage.driver.ok("lock a orders:42").await?;
    // With this lease Redis has a quarter of a second to answer.
    eventually("the fixed lease", async || stage.driver.ok("extend a 600000").await.map(drop))
        .await;
    stage.agent.process().freeze().await?;
    // The watchdog's lease is shorter than the fixed one.
    let extending = stage.driver.send("main", "extend a 0").await?;
    ends_before_the_answer(&mut stage, extending).await
}

pub(super) async fn a_late_list_does_not_shorten_a_new_lease(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    // A third of the grace is the longest time between two lists.
    stage.driver = Driver::with_grace(library, &relay.socket(), Duration::from_secs(6))?;
    stage.other_has("LOCK taken").await?;
    stage.driver.ok("lock a orders:42 lease=60000").await?;
    let waiting = stage.driver.send("main", "lock b taken wait=120000").await?;
    stage.waits("taken", true).await;
    relay.hold_back("age_ms");
    eventually("a list", async || {
        ensure!(relay.holds_back(), "none");
        Ok(())
    })
    .await;
    stage.other_has("UNLOCK taken").await?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    stage.driver.ok("extend a 600000").await?;
    let asked = relay.sent("HOLDS")?;
    relay.let_pass();
    eventually("later lists", async || {
        let now = relay.sent("HOLDS")?;
        ensure!(now >= asked + 2, "{now} after {asked}");
        Ok(())
    })
    .await;
    let check = stage.driver.ok("check a").await?;
    ensure!(number(&check, "remaining")? > 60_000, "{check}");
    Ok(())
}

pub(super) async fn a_lease_that_redis_does_not_confirm_counts_too(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock a orders:42 lease=600000").await?;
    stage.redis.process().freeze().await?;
    // Redis may set the new lease once it resumes.
    stage.driver.fails("extend a 30000", "unavailable").await?;
    let check = stage.driver.ok("check a").await?;
    ensure!(number(&check, "remaining")? <= 30_000, "{check}");
    stage.redis.process().thaw()?;
    stage.driver.ok("extend a 60000").await?;
    let check = stage.driver.ok("check a").await?;
    ensure!(number(&check, "remaining")? > 30_000, "{check}");
    Ok(())
}

/// Sends a command that a hung agent leaves without a reply for as long as a library waits for one.
async fn overdue(stage: &mut Stage, task: &str) -> Result<Sent> {
    stage.driver.send(task, &format!("extend {task} 600000")).await
}

pub(super) async fn a_hung_agent_delays_no_limited_wait(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock k kept").await?;
    for task in ["first", "second", "third"] {
        let held = stage.driver.call_in(task, &format!("lock {task} {task}")).await?;
        ensure!(held.get("error").is_none(), "{held}");
    }
    stage.agent.process().freeze().await?;
    // The overdue command starts first, and every other one takes seconds too: a call that ends after it is late by seconds.
    let slow = overdue(&mut stage, "first").await?;
    fails_before(&mut stage, "main", "open", slow).await?;
    let slow = overdue(&mut stage, "second").await?;
    fails_before(&mut stage, "main", "resumed", slow).await?;
    let slow = overdue(&mut stage, "third").await?;
    fails_before(&mut stage, "new", "new", slow).await?;
    stage.agent.process().thaw()?;
    // The agent reads the command only now.
    stage.released("open").await;
    stage.driver.ok("check k").await?;
    stage.driver.ok("lock a open wait=60000").await?;
    stage.driver.ok("release a").await?;
    stage.driver.ok("release k").await?;
    stage.released("kept").await;
    Ok(())
}

/// Checks that a request for a lock fails at the limit of its wait although the agent hangs.
async fn fails_before(stage: &mut Stage, task: &str, name: &str, slow: Sent) -> Result<()> {
    let refused = stage.driver.call_in(task, &format!("lock {name} {name} wait=1000")).await?;
    ensure!(refused["error"] == "unavailable", "{refused}");
    ensure!(!stage.driver.has_answered(slow), "{name}: the limit counted for nothing");
    let text = refused["text"].as_str().unwrap_or_default();
    ensure!(text.matches("unavailable").count() < 2, "it says so twice: {text}");
    Ok(())
}

pub(super) async fn a_cancelled_wait_for_a_hung_agent_ends(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    for task in ["first", "second"] {
        let held = stage.driver.call_in(task, &format!("lock {task} {task}")).await?;
        ensure!(held.get("error").is_none(), "{held}");
    }
    stage.agent.process().freeze().await?;
    // If the cancellation waited for the agent, the second call would begin only when the overdue one ends.
    let slow = overdue(&mut stage, "first").await?;
    for name in ["orders:42", "orders:43"] {
        let made = relay.made();
        let waiting = stage.driver.send("main", &format!("lock a {name}")).await?;
        eventually("a connection", async || {
            ensure!(relay.made() > made, "{made} connections");
            Ok(())
        })
        .await;
        cancelled_before(&mut stage.driver, waiting, slow).await?;
    }
    stage.agent.process().thaw()?;
    stage.driver.ok("lock k kept").await?;
    stage.agent.process().freeze().await?;
    let slow = overdue(&mut stage, "second").await?;
    let waiting = stage.driver.send("main", "lock a orders:44").await?;
    eventually("the command", async || {
        ensure!(relay.attempts("orders:44")? > 0, "it has not been sent");
        Ok(())
    })
    .await;
    cancelled_before(&mut stage.driver, waiting, slow).await?;
    // The withdrawal of the wait for orders:44 is still pending at the agent.
    let waiting = stage.driver.send("main", "lock a orders:45").await?;
    cancelled_before(&mut stage.driver, waiting, slow).await?;
    stage.agent.process().thaw()?;
    stage.driver.ok("lock a orders:44 wait=60000").await?;
    stage.driver.ok("release a").await?;
    stage.released("orders:44").await;
    stage.driver.ok("check k").await.map(drop)
}

/// Cancels a call, and checks that it ends before the other one.
pub(super) async fn cancelled_before(driver: &mut Driver, waiting: Sent, slow: Sent) -> Result<()> {
    // A cancellation of a call that has not begun does nothing.
    eventually("the call to end", async || {
        driver.cancel(waiting).await?;
        ensure!(driver.has_answered(waiting), "it continues");
        Ok(())
    })
    .await;
    let answer = driver.answer(waiting).await?;
    ensure!(answer["error"] == "cancelled", "{answer}");
    ensure!(!driver.has_answered(slow), "the cancellation waited for the agent");
    Ok(())
}

pub(super) async fn a_cancellation_that_meets_the_grant_leaves_nothing_behind(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock k kept").await?;
    for round in 0..20 {
        let name = format!("orders:{round}");
        stage.other_has(&format!("LOCK {name}")).await?;
        let waiting = stage.driver.send("main", &format!("lock a {name}")).await?;
        stage.waits(&name, true).await;
        stage.driver.process().freeze().await?;
        stage.other_has(&format!("UNLOCK {name}")).await?;
        stage.waits(&name, false).await;
        stage.driver.cancel_soon(waiting).await?;
        stage.driver.process().thaw()?;
        let answer = stage.driver.answer(waiting).await?;
        if answer["error"] != "cancelled" {
            ensure!(answer.get("error").is_none(), "{answer}");
            stage.driver.ok("release a").await?;
        }
        stage.released(&name).await;
    }
    stage.driver.ok("check k").await.map(drop)
}

/// Without grace a hold would end with its connection.
pub(super) async fn a_cancelled_wait_that_fails_leaves_the_other_holds(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.driver = Driver::with_grace(library, &relay.socket(), Duration::ZERO)?;
    stage.driver.ok("lock k kept").await?;
    stage.direct.call("SET orders:42 text").await?.ok()?;
    relay.hold_back("WRONGTYPE");
    let waiting = stage.driver.send("main", "lock a orders:42").await?;
    eventually("the failure", async || {
        ensure!(relay.holds_back(), "no reply");
        Ok(())
    })
    .await;
    stage.driver.cancel(waiting).await?;
    eventually("the withdrawal", async || {
        ensure!(relay.sent("CANCEL")? > 0, "none");
        Ok(())
    })
    .await;
    relay.let_pass();
    let answer = stage.driver.answer(waiting).await?;
    ensure!(answer["error"] == "cancelled", "{answer}");
    // It begins once the withdrawal has ended.
    stage.driver.ok("lock b orders:43 wait=60000").await?;
    stage.driver.ok("check k").await?;
    stage.driver.ok("release k").await.map(drop)
}

pub(super) async fn a_cancelled_release_or_extension_goes_on(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    // Without grace, the owner's other hold would end if the connection were closed.
    stage.driver = Driver::with_grace(library, &stage.agent.socket(), Duration::ZERO)?;
    stage.other_has("LOCK taken").await?;
    for name in ["orders:42", "orders:43"] {
        let held = stage.driver.call_in("second", &format!("lock {name} {name}")).await?;
        ensure!(held.get("error").is_none(), "{held}");
    }
    // The owner's connection is busy, so the release has not been sent when it is cancelled.
    let waiting = stage.driver.send("second", "lock b taken").await?;
    stage.waits("taken", true).await;
    let releasing = stage.driver.send("main", "release orders:42").await?;
    stage.driver.call_in("third", "check orders:43").await?;
    stage.driver.cancel(releasing).await?;
    stage.other_has("UNLOCK taken").await?;
    stage.driver.answer(releasing).await?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    stage.released("orders:42").await;
    // The release has been sent, and the agent hangs.
    stage.agent.process().freeze().await?;
    let releasing = stage.driver.send("main", "release orders:43").await?;
    stage.driver.call_in("third", "check b").await?;
    stage.driver.cancel(releasing).await?;
    stage.agent.process().thaw()?;
    stage.driver.answer(releasing).await?;
    stage.released("orders:43").await;
    stage.agent.process().freeze().await?;
    let extending = stage.driver.send("main", "extend b 600000").await?;
    stage.driver.call_in("third", "check b").await?;
    stage.driver.cancel(extending).await?;
    stage.agent.process().thaw()?;
    stage.driver.answer(extending).await?;
    let check = stage.driver.call_in("second", "check b").await?;
    ensure!(check.get("error").is_none(), "{check}");
    Ok(())
}

pub(super) async fn a_killed_process_leaves_no_lock(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.agent.restart().await?;
    stage.other = stage.agent.client().await?;
    // It has resumed its session before this is answered.
    stage.driver.ok("lock b orders:43").await?;
    let waiting = stage.driver.send("second", "lock c orders:42").await?;
    stage.waits("orders:42", true).await;
    stage.driver.process().kill()?;
    stage.released("orders:42").await;
    stage.released("orders:43").await;
    stage.waits("orders:42", false).await;
    ensure!(!stage.driver.has_answered(waiting));
    Ok(())
}

pub(super) async fn a_close_ends_waits_and_refuses_later_locks(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.other_has("LOCK orders:42").await?;
    stage.driver.ok("lock k kept").await?;
    let own = stage.driver.call_in("second", "lock o own").await?;
    ensure!(own.get("error").is_none(), "{own}");
    let waiting = stage.driver.send("second", "lock a orders:42").await?;
    stage.waits("orders:42", true).await;
    let closing = stage.driver.call_in("third", "close").await?;
    ensure!(closing.get("error").is_none(), "{closing}");
    let answer = stage.driver.answer(waiting).await?;
    ensure!(answer["error"] == "unavailable", "{answer}");
    stage.waits("orders:42", false).await;
    // This includes the other lock of the waiting owner, whose connection was busy with the wait.
    stage.released("own").await;
    stage.released("kept").await;
    stage.driver.fails("check k", "lost").await?;
    stage.other_has("UNLOCK orders:42").await?;
    stage.released("orders:42").await;
    for task in ["main", "new"] {
        let refused = stage.driver.call_in(task, "lock a orders:43 wait=60000").await?;
        let text = refused["text"].as_str().unwrap_or_default();
        ensure!(text.contains("this Agent is closed"), "{task}: {refused}");
        ensure!(refused["error"] == "unavailable", "{task}: {refused}");
    }
    // A second close does nothing.
    stage.driver.ok("close").await.map(drop)
}

pub(super) async fn a_close_ends_sessions_that_are_being_resumed(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    stage.other_has("LOCK taken").await?;
    stage.driver.ok("lock k kept").await?;
    let own = stage.driver.call_in("second", "lock o own").await?;
    ensure!(own.get("error").is_none(), "{own}");
    let waiting = stage.driver.send("second", "lock a taken").await?;
    stage.waits("taken", true).await;
    stage.agent.process().freeze().await?;
    let made = relay.made();
    relay.cut();
    eventually("both sessions to connect", async || {
        ensure!(relay.made() >= made + 2, "{} connections", relay.made());
        Ok(())
    })
    .await;
    let closing = stage.driver.send("third", "close").await?;
    stage.driver.call_in("fourth", "check k").await?;
    stage.agent.process().thaw()?;
    stage.driver.answer(closing).await?;
    let answer = stage.driver.answer(waiting).await?;
    ensure!(answer["error"] == "unavailable", "{answer}");
    stage.released("kept").await;
    stage.released("own").await;
    Ok(())
}

pub(super) async fn a_session_whose_resumption_breaks_is_resumed(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    stage.driver.ok("lock a orders:42").await?;
    // The command after RESUME makes the old secret void.
    relay.cut_at("SESSION");
    relay.cut();
    stage.driver.ok("lock b orders:43 wait=60000").await?;
    stage.driver.ok("check a").await?;
    stage.driver.ok("release a").await?;
    ensure!(stage.is_free("orders:42").await?);
    Ok(())
}

pub(super) async fn a_grant_of_an_abandoned_call_goes_to_no_later_call(
    library: &Library,
) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    stage.driver.ok("lock k kept").await?;
    relay.mute();
    let leased = stage.driver.send("main", "lock a orders:42 wait=1000 lease=20000").await?;
    // It begins when the first one ends, before the session has been resumed.
    let renewed = stage.driver.send("main", "lock b orders:42 wait=60000").await?;
    let refused = stage.driver.answer(leased).await?;
    ensure!(refused["error"] == "unavailable", "{refused}");
    let granted = stage.driver.answer(renewed).await?;
    ensure!(number(&granted, "remaining")? > 20_000, "{granted}");
    stage.driver.ok("release b").await?;
    stage.released("orders:42").await;
    stage.driver.ok("check k").await.map(drop)
}

pub(super) async fn a_listener_that_fails_disturbs_nobody(library: &Library) -> Result<()> {
    if !library.shields {
        return Ok(());
    }
    let mut stage = Stage::with(library, &["--lease", SHORT]).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    stage.driver.ok("lock a orders:42").await?;
    stage.driver.ok("spoil a").await?;
    stage.driver.ok("lock b orders:42").await?;
    stage.driver.ok("lock c orders:43").await?;
    relay.cut();
    stage.driver.event("risk", "b").await?;
    stage.driver.event("risk", "c").await?;
    stage.driver.ok("lock d orders:44 wait=60000").await?;
    stage.driver.ok("check b").await?;
    stage.direct.call("DEL orders:42 orders:43").await?.ok()?;
    stage.driver.event("lost", "c").await?;
    stage.driver.event("lost", "b").await?;
    stage.driver.fails("release a", "lost").await?;
    stage.driver.fails("release b", "lost").await?;
    stage.driver.ok("release d").await?;
    stage.driver.ok("lock a orders:42 wait=60000").await.map(drop)
}

pub(super) async fn a_name_that_cannot_be_sent_spoils_no_connection(
    library: &Library,
) -> Result<()> {
    if !library.texts {
        return Ok(());
    }
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock k kept").await?;
    let refused = stage.driver.call("misname").await?;
    ensure!(refused["error"].is_string(), "{refused}");
    let hold = stage.driver.ok("lock a orders:42 wait=60000").await?;
    let there = stage.holder("orders:42").await?;
    ensure!(hold["holder"].as_str().is_some_and(|holder| there.contains(holder)), "{hold}");
    stage.driver.ok("release a").await?;
    ensure!(stage.is_free("orders:42").await?);
    stage.driver.ok("release k").await.map(drop)
}

pub(super) async fn one_of_several_is_released_alone(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.driver.ok("lock all a,b").await?;
    stage.driver.ok("part all").await?;
    ensure!(stage.is_free("a").await? && !stage.is_free("b").await?);
    stage.driver.ok("check all").await?;
    stage.driver.ok("release all").await?;
    ensure!(stage.is_free("b").await?);
    Ok(())
}
