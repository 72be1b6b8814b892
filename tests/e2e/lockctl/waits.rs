//! Waits for one lock or for several.

use anyhow::{Context as _, Result, ensure};
use harness::{PATIENCE, eventually, within};
use rustix::process::Signal;

use super::Desk;
use crate::agent::lock;

#[tokio::test]
async fn a_waiter_sees_the_holder_and_may_wait_for_hours() -> Result<()> {
    let desk = Desk::new().await?;
    let mut other = desk.bench.session().await?;
    lock(&mut other, "LOCK a").await?;
    let mut run = desk.exec("--wait 100h a", "exit 3")?;
    run.says("waiting for a\n").await;
    run.says("a is held by ").await;
    let us = std::process::id();
    run.says(&format!("(pid {us}, user ")).await;
    run.says("its TTL is ").await;
    other.call("UNLOCK a").await?.ok()?;
    assert_eq!(run.end().await?.0, 3);
    Ok(())
}

#[tokio::test]
async fn a_waiter_is_shown_why_redis_refuses_a_free_lock() -> Result<()> {
    let mut desk = Desk::new().await?;
    desk.bench.direct.call("CONFIG SET maxmemory 1").await?.ok()?;
    let mut run = desk.exec("a", "exit 3")?;
    run.says("Redis refuses locks: OOM ").await;
    desk.bench.direct.call("CONFIG SET maxmemory 0").await?.ok()?;
    assert_eq!(run.end().await?.0, 3);
    Ok(())
}

/// Returns the seconds until the only wait for `a` times out, from the registry; `None` if it has no limit.
async fn left(desk: &mut Desk) -> Option<i64> {
    let direct = &mut desk.bench.direct;
    eventually("the wait to be told", async || {
        let keys = direct.call("KEYS lockscope:holders:*").await?.ok()?;
        let key = keys.items()?.first().context("no agent has told anything")?.text();
        let notes = direct.call(&format!("HVALS {key}")).await?.ok()?;
        ensure!(notes.items()?.len() == 1, "{notes}");
        let note: serde_json::Value = serde_json::from_slice(notes.items()?[0].bytes()?)?;
        let now = direct.call("TIME").await?.items()?[0].text().parse::<i64>()?;
        Ok(note.get("until").and_then(serde_json::Value::as_i64).map(|until| until / 1_000 - now))
    })
    .await
}

#[tokio::test]
async fn a_wait_has_the_requested_limit_or_none() -> Result<()> {
    const HOUR: i64 = 3_600;
    for (words, hours) in
        [("a", None), ("--wait 100h a", Some(100)), ("--wait 365d a", Some(8_760))]
    {
        let mut desk = Desk::new().await?;
        let holder = "11111111-2222-3333-4444-555555555555:42";
        desk.bench.direct.call(&format!("HSET a {holder} 1")).await?.ok()?;
        let mut run = desk.exec(words, "exit 3")?;
        match (left(&mut desk).await, hours) {
            (None, None) => {}
            (Some(left), Some(hours)) => {
                assert!(
                    left > (hours - 1) * HOUR && left < (hours + 1) * HOUR,
                    "{words}: {left} s"
                );
            }
            (left, _) => panic!("{words}: {left:?}"),
        }
        desk.bench.direct.call("DEL a").await?.ok()?;
        let (code, said) = run.end().await?;
        assert_eq!(code, 3, "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn holders_elsewhere_are_shown_by_their_ids() -> Result<()> {
    let mut desk = Desk::new().await?;
    let holder = "11111111-2222-3333-4444-555555555555:42";
    desk.bench.direct.call(&format!("HSET a {holder} 1")).await?.ok()?;
    let (code, said) = desk.exec("--try a", "true")?.end().await?;
    assert_eq!(code, 75);
    assert!(said.contains(&format!("a is held by {holder}; it has no TTL")), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_wait_ends_by_a_signal() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut other = desk.bench.session().await?;
    lock(&mut other, "LOCK a").await?;
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut run = desk.exec("a", "touch ran")?;
        desk.bench.until_waiting("a", 1).await?;
        run.0.signal(signal)?;
        assert_eq!(run.end().await?.0, status);
        desk.bench.until_waiting("a", 0).await?;
    }
    other.call("UNLOCK a").await?.ok()?;
    desk.bench.until_free("a").await;
    assert!(!desk.path("ran").exists());
    Ok(())
}

#[tokio::test]
async fn several_locks_are_acquired_together_in_any_order() -> Result<()> {
    let mut desk = Desk::new().await?;
    let script =
        "echo x >> inside; test $(wc -l < inside) = 1 || echo two > clash; sleep 0.02; : > inside";
    let mut runs = Vec::new();
    for words in ["a b c", "c b a", "b a", "c a", "a b", "b c a"] {
        runs.push(desk.exec(words, script)?);
    }
    for run in &mut runs {
        let (code, said) = run.end().await?;
        assert_eq!(code, 0, "{said}");
    }
    assert!(!desk.path("clash").exists(), "two were inside at once");
    for name in ["a", "b", "c"] {
        assert!(desk.bench.is_free(name).await?);
    }
    Ok(())
}

#[tokio::test]
async fn readers_share_and_a_writer_waits() -> Result<()> {
    let desk = Desk::new().await?;
    let wait = |mark: &str| format!("echo in > {mark}; while ! test -e stop; do sleep 0.02; done");
    let mut one = desk.exec("--kind read a", &wait("one"))?;
    let mut two = desk.exec("--kind read a", &wait("two"))?;
    desk.mark("one").await;
    desk.mark("two").await;
    assert_eq!(desk.exec("--try --kind write a", "true")?.end().await?.0, 75);
    std::fs::write(desk.path("stop"), "")?;
    assert_eq!((one.end().await?.0, two.end().await?.0), (0, 0));
    assert_eq!(desk.exec("--kind write a", "exit 0")?.end().await?.0, 0);
    Ok(())
}

#[tokio::test]
async fn a_restarted_agent_is_waited_for() -> Result<()> {
    // No message reports that a key was deleted by hand, so polls have to find it.
    let mut desk = Desk::with(&["--poll-max", "200ms"]).await?;
    let holder = "11111111-2222-3333-4444-555555555555:42";
    desk.bench.direct.call(&format!("HSET a {holder} 1")).await?.ok()?;
    let mut run = desk.exec("a", "exit 3")?;
    desk.bench.until_waiting("a", 1).await?;
    desk.bench.agent.restart().await?;
    desk.bench.until_waiting("a", 1).await?;
    desk.bench.direct.call("DEL a").await?.ok()?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 3, "{said}");
    Ok(())
}

#[tokio::test]
async fn an_agent_that_exits_during_connect_is_replaced_by_the_next() -> Result<()> {
    let desk = Desk::new().await?;
    // Simulates a socket that the service manager keeps: it exists before the agent starts and after it ends.
    let door = desk.path("door.sock");
    let listener = tokio::net::UnixListener::bind(&door)?;
    let mut command = desk.command(&["exec", "a", "--", "sh", "-c", "exit 3"])?;
    command.env("LOCKSCOPE_SOCKET", &door);
    let mut run = desk.spawn(command)?;
    // One agent accepts the connection and ends before it answers, and the next one does the same.
    for _ in 0..2 {
        drop(within(PATIENCE, "a connection", async || Ok(listener.accept().await?)).await);
    }
    // The third agent is the one of the desk.
    let next = desk.path("next.sock");
    std::os::unix::fs::symlink(desk.bench.agent.socket(), &next)?;
    std::fs::rename(&next, &door)?;
    // A connection accepted in the meantime also belongs to an agent that has ended.
    drop(listener);
    let (code, said) = run.end().await?;
    assert_eq!(code, 3, "{said}");
    Ok(())
}

#[tokio::test]
async fn an_unreported_grant_of_an_exited_agent_is_released() -> Result<()> {
    let desk = Desk::new().await?;
    let door = desk.path("door.sock");
    let listener = tokio::net::UnixListener::bind(&door)?;
    let mut command = desk.command(&["exec", "--grace", "10m", "a", "--", "sh", "-c", "exit 3"])?;
    command.env("LOCKSCOPE_SOCKET", &door);
    let mut run = desk.spawn(command)?;
    // The agent receives everything that lockctl sends. Its replies are delivered up to the grant, where the relay stops.
    let halfway = desk.let_in_until(&listener, "holder").await?;
    let next = desk.path("next.sock");
    std::os::unix::fs::symlink(desk.bench.agent.socket(), &next)?;
    std::fs::rename(&next, &door)?;
    drop((halfway, listener));
    let (code, said) = run.end().await?;
    assert_eq!(code, 3, "{said}");
    Ok(())
}

#[tokio::test]
async fn a_missing_agent_is_awaited_for_the_chosen_time() -> Result<()> {
    let desk = Desk::new().await?;
    let door = desk.path("door.sock");
    let mut command = desk.command(&["exec", "--try", "a", "--", "touch", "done"])?;
    command.env("LOCKSCOPE_SOCKET", &door).env("LOCKCTL_AGENT_WAIT", "10m");
    let mut run = desk.spawn(command)?;
    run.says("waiting for the agent: ").await;
    std::os::unix::fs::symlink(desk.bench.agent.socket(), &door)?;
    let (code, said) = run.end().await?;
    let waits = said.matches("waiting for the agent: ").count();
    assert_eq!((code, waits), (0, 1), "{said}");
    assert!(desk.path("done").exists());
    Ok(())
}

#[tokio::test]
async fn a_missing_agent_is_reported_at_once() -> Result<()> {
    let desk = Desk::new().await?;
    let door = desk.path("door.sock");
    // First a socket without a listener, then no socket.
    drop(std::os::unix::net::UnixListener::bind(&door)?);
    for _ in 0..2 {
        let mut command = desk.command(&["exec", "a", "--", "true"])?;
        command.env("LOCKSCOPE_SOCKET", &door);
        let (code, said) = desk.spawn(command)?.end().await?;
        assert!(code == 69 && said.contains("no agent answers"), "{code}: {said}");
        std::fs::remove_file(&door).unwrap_or_default();
    }
    Ok(())
}

#[tokio::test]
async fn a_lock_that_is_lost_before_its_grant_arrives_is_acquired_again() -> Result<()> {
    let mut desk = Desk::new().await?;
    let door = desk.path("door.sock");
    let listener = tokio::net::UnixListener::bind(&door)?;
    let mut command = desk.command(&["exec", "--wait", "1m", "a", "--", "sh", "-c", "exit 3"])?;
    command.env("LOCKSCOPE_SOCKET", &door);
    let mut run = desk.spawn(command)?;
    let halfway = desk.let_in_until(&listener, "valid_ms").await?;
    std::os::unix::fs::symlink(desk.bench.agent.socket(), desk.path("next.sock"))?;
    std::fs::rename(desk.path("next.sock"), &door)?;
    halfway.answer(b"-LOST `a` was held, but an operator released it (forced)\r\n").await?;
    let (code, said) = run.end().await?;
    ensure!(
        code == 3 && said.contains("a was granted, but its lease had already expired"),
        "{code}: {said}"
    );
    desk.bench.until_free("a").await;
    Ok(())
}
