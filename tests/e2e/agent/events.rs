//! SESSION and EVENTS, pushes, and gaps in the events.

use std::collections::HashSet;

use anyhow::{Result, ensure};
use harness::{Reply, eventually};

use super::{Bench, assert_error, credentials, lock, news, pushed, until_lost};

#[tokio::test]
async fn every_session_has_a_different_id_and_secret() -> Result<()> {
    let bench = Bench::new().await?;
    let mut one = bench.session().await?;
    let mut two = bench.session().await?;
    let first = credentials(&mut one).await?;
    assert_eq!(first, credentials(&mut one).await?, "the same each time");
    let second = credentials(&mut two).await?;
    let (id, _) = first.split_once(' ').unwrap_or_default();
    let (other_id, other_secret) = second.split_once(' ').unwrap_or_default();
    assert_ne!(id, other_id);
    let mixed = format!("EVENTS {id} {other_secret}");
    assert_error(&two.call(&mixed).await?, "SESSION", "secret");
    assert_eq!(two.call(&format!("EVENTS {first}")).await?, Reply::Array(vec![]));
    Ok(())
}

#[tokio::test]
async fn each_event_is_delivered_once() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.session().await?;
    let mut listener = bench.session().await?;
    let ticket = credentials(&mut worker).await?;
    assert_eq!(listener.call(&format!("EVENTS {ticket} WAIT 20")).await?, Reply::Array(vec![]));
    lock(&mut worker, "LOCK a").await?;
    bench.direct.call("DEL a").await?.ok()?;
    assert_eq!(until_lost(&mut listener, &ticket).await, "[lost, a, lock, missing]");
    assert_eq!(listener.call(&format!("EVENTS {ticket}")).await?, Reply::Array(vec![]));
    listener.send(&format!("EVENTS {ticket} WAIT 20000")).await?;
    // The commands of a connection begin in order, so EVENTS waits once this lock is held.
    listener.send("LOCK mark OWNER 1").await?;
    eventually("the lock after the EVENTS command", async || {
        ensure!(!bench.is_free("mark").await?, "it is free");
        Ok(())
    })
    .await;
    // A listener receives the end of the session.
    drop(worker);
    assert_error(&listener.reply().await?, "GONE", "session");
    assert_eq!(listener.reply().await?.field("holds")?, &Reply::Int(1));
    assert_error(&listener.call(&format!("EVENTS {ticket}")).await?, "SESSION", "session");
    Ok(())
}

#[tokio::test]
async fn a_further_events_command_ends_the_earlier_one() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.session().await?;
    let mut listeners = [bench.session().await?, bench.session().await?];
    let ticket = credentials(&mut worker).await?;
    for listener in &mut listeners {
        listener.send(&format!("EVENTS {ticket} WAIT 600000")).await?;
    }
    // Either may arrive first.
    let [one, two] = &mut listeners;
    let (earlier, later) = tokio::select! {
        reply = one.reply() => (reply?, two),
        reply = two.reply() => (reply?, one),
    };
    assert_eq!(earlier, Reply::Array(vec![]), "the events so far");
    lock(&mut worker, "LOCK a").await?;
    bench.direct.call("DEL a").await?.ok()?;
    let lost = match news(&later.reply().await?)? {
        Some(lost) => lost,
        None => until_lost(later, &ticket).await,
    };
    assert_eq!(lost, "[lost, a, lock, missing]");
    Ok(())
}

#[tokio::test]
async fn a_backlog_is_bounded_and_its_gap_is_reported() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let mut listener = bench.session().await?;
    let ticket = credentials(&mut worker).await?;
    for i in 0..600 {
        worker.send(&format!("LOCK brief:{i} LEASE 100")).await?;
    }
    for _ in 0..600 {
        worker.reply().await?.ok()?;
    }
    eventually("all leases to expire", async || {
        let held = worker.call("HOLDS").await?.items()?.len();
        ensure!(held == 0, "{held} are held");
        Ok(())
    })
    .await;
    let events = listener.call(&format!("EVENTS {ticket}")).await?;
    let [gap, rest @ ..] = events.items()? else { panic!("no events") };
    assert_eq!(gap.items()?[0].text(), "gap");
    let missed = usize::try_from(gap.items()?[1].int()?)?;
    assert_eq!(missed + rest.len(), 600);
    assert!(rest.len() <= 256, "{}", rest.len());
    assert_eq!(
        listener.call(&format!("EVENTS {ticket}")).await?,
        Reply::Array(vec![]),
        "each event is sent once"
    );
    Ok(())
}

#[tokio::test]
async fn only_subscribed_sessions_receive_pushes() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "6s"]).await?;
    let mut old = bench.session().await?;
    let mut quiet = bench.agent.client3().await?;
    let mut subscribed = bench.agent.client3().await?;
    assert_error(&old.call("SESSION PUSH on").await?, "SYNTAX", "RESP3");
    subscribed.call("SESSION PUSH on").await?.ok()?;
    for (worker, name) in [(&mut old, "a"), (&mut quiet, "b"), (&mut subscribed, "c")] {
        lock(worker, &format!("LOCK {name}")).await?;
    }
    for name in ["a", "b", "c"] {
        bench.direct.call(&format!("DEL {name}")).await?.ok()?;
    }
    assert_eq!(pushed(&mut subscribed).await?, ["lock-lost", "c", "lock", "missing"]);
    bench.until_metric("lockscope_agent_lost_holds_total", &[], 3.0).await;
    assert_eq!(old.call("PING").await?.text(), "PONG");
    assert_eq!(quiet.call("PING").await?.text(), "PONG");
    assert_eq!(quiet.pushes(), 0);
    subscribed.call("SESSION PUSH off").await?.ok()?;
    lock(&mut subscribed, "LOCK c").await?;
    bench.direct.call("DEL c").await?.ok()?;
    bench.until_metric("lockscope_agent_lost_holds_total", &[], 4.0).await;
    assert_eq!(subscribed.call("PING").await?.text(), "PONG");
    assert_eq!(subscribed.pushes(), 0);
    Ok(())
}

#[tokio::test]
async fn a_worker_that_reads_receives_the_loss_of_each_of_its_holds() -> Result<()> {
    const HOLDS: usize = 3_000;
    let mut bench = Bench::with(&["--lease", "2s"]).await?;
    let mut worker = bench.agent.client3().await?;
    worker.call("SESSION PUSH on DEADLINES on").await?.ok()?;
    for i in 0..HOLDS {
        lock(&mut worker, &format!("LOCK many:{i}")).await?;
    }
    bench.direct.call("FLUSHALL").await?.ok()?;
    let mut lost = HashSet::new();
    while lost.len() < HOLDS {
        let push = worker.push().await?;
        if push[0] == "lock-lost" {
            assert!(lost.insert(push[1].clone()), "{push:?} came twice");
        }
    }
    let dropped = bench.agent.metrics().await?.sum("lockscope_agent_events_dropped_total", &[]);
    assert_eq!(dropped, 0.0);
    Ok(())
}

#[tokio::test]
async fn deadlines_report_each_renewal() -> Result<()> {
    let bench = Bench::with(&["--lease", "6s"]).await?;
    let mut worker = bench.agent.client3().await?;
    worker.call("SESSION PUSH on DEADLINES on").await?.ok()?;
    lock(&mut worker, "LOCK a").await?;
    for _ in 0..3 {
        let push = pushed(&mut worker).await?;
        assert_eq!(push[..3], ["lock-valid", "a", "lock"]);
        let valid: i64 = push[3].parse()?;
        assert!((1..=6_000).contains(&valid), "{valid}");
    }
    Ok(())
}
