//! kill -9 of lockctl, of its guard, and of processes that the command has started.

use anyhow::Result;
use harness::eventually;
use harness::process::until_stopped;
use rustix::process::{Pid, Signal, kill_process};

use super::{Desk, children, guard, is_there, kill, until_gone};

/// Checks repeatedly that the lock is held as long as one of these processes is alive.
async fn held_while_alive(desk: &mut Desk, pids: &[Pid]) -> Result<()> {
    for pid in pids {
        eventually("the end of a process", async || {
            let alive = is_there(*pid);
            let free = desk.bench.is_free("a").await?;
            // The process may have ended between the two checks.
            assert!(!(alive && free && is_there(*pid)), "{pid} lives, and its lock is free");
            anyhow::ensure!(!alive, "{pid} lives");
            Ok(())
        })
        .await;
    }
    desk.bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn when_lockctl_is_killed_the_lock_stays_until_grandchildren_have_ended() -> Result<()> {
    let mut desk = Desk::new().await?;
    // One process ends a while after TERM, one ignores it, and one has left the process group and session.
    let script = "sh -c 'trap \"sleep 0.5; exit\" TERM; echo $$ > slow; while :; do sleep 0.05; done' & \
        sh -c 'trap \"\" TERM; echo $$ > stubborn; while :; do sleep 0.05; done' & \
        setsid sh -c 'trap \"\" TERM; echo $$ > apart; while :; do sleep 0.05; done' & \
        echo $$ > shell; wait";
    let mut run = desk.exec("--kill-after 1s a", script)?;
    let mut pids = Vec::new();
    for mark in ["slow", "stubborn", "apart", "shell"] {
        pids.push(desk.pid(mark).await?);
    }
    run.0.kill()?;
    held_while_alive(&mut desk, &pids).await
}

/// The steps are those of docs/runbooks/frozen.md.
#[tokio::test]
async fn a_stopped_guard_that_is_terminated_keeps_the_lock_until_its_command_has_ended()
-> Result<()> {
    let mut desk = Desk::new().await?;
    let script = "setsid sh -c 'trap \"\" TERM; echo $$ > apart; while :; do sleep 0.05; done' & \
        trap 'echo > asked' TERM; echo $$ > shell; while :; do sleep 0.05; done";
    let run = desk.exec("--kill-after 1s a", script)?;
    let pids = [desk.pid("apart").await?, desk.pid("shell").await?];
    let guard = guard(&run)?;
    kill_process(guard, Signal::STOP)?;
    until_stopped(guard).await;
    kill_process(guard, Signal::TERM)?;
    kill_process(guard, Signal::CONT)?;
    desk.mark("asked").await;
    assert!(!desk.bench.is_free("a").await?, "the command works on");
    // `pkill -KILL -P <pid>`
    for child in children(guard)? {
        kill(child)?;
    }
    held_while_alive(&mut desk, &pids).await
}

#[tokio::test]
async fn all_lockctl_processes_may_be_killed_at_once() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut run = desk.exec("a", "echo $$ > shell; sleep 600; true")?;
    let shell = desk.pid("shell").await?;
    let guard = guard(&run)?;
    let name = std::fs::read_to_string(format!("/proc/{guard}/comm"))?;
    assert!(!name.contains("lockctl"), "killall and pkill would hit both: {name}");
    run.0.kill()?;
    // The guard ends last, after it has seen that the lock is free.
    held_while_alive(&mut desk, &[shell]).await?;
    until_gone(guard).await;
    Ok(())
}

#[tokio::test]
async fn killing_the_guard_kills_everything_under_it() -> Result<()> {
    let desk = Desk::new().await?;
    let script = "setsid sh -c 'trap \"\" TERM; echo $$ > apart; while :; do sleep 0.05; done' & \
        trap '' TERM; echo $$ > shell; while :; do sleep 0.05; done";
    let mut run = desk.exec("a", script)?;
    let (shell, apart) = (desk.pid("shell").await?, desk.pid("apart").await?);
    kill(guard(&run)?)?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("lost a: its guard process was killed by signal 9"), "{said}");
    assert!(!is_there(apart), "gone before lockctl ends");
    until_gone(shell).await;
    Ok(())
}

#[tokio::test]
async fn a_waiting_lockctl_leaves_nothing_when_killed() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut other = desk.bench.session().await?;
    crate::agent::lock(&mut other, "LOCK a").await?;
    let mut run = desk.exec("a", "touch ran")?;
    desk.bench.until_waiting("a", 1).await?;
    let guard = guard(&run)?;
    run.0.kill()?;
    desk.bench.until_waiting("a", 0).await?;
    until_gone(guard).await;
    other.call("UNLOCK a").await?.ok()?;
    desk.bench.until_free("a").await;
    assert!(!desk.path("ran").exists());
    Ok(())
}

#[tokio::test]
async fn a_lock_that_is_granted_while_lockctl_ends_is_released_despite_its_grace() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut other = desk.bench.session().await?;
    crate::agent::lock(&mut other, "LOCK a").await?;
    let mut run = desk.exec("--grace 10m a", "touch ran")?;
    desk.bench.until_waiting("a", 1).await?;
    // The guard is about to learn of the grant when it finds that lockctl has been killed.
    let guard = guard(&run)?;
    kill_process(guard, Signal::STOP)?;
    until_stopped(guard).await;
    other.call("UNLOCK a").await?.ok()?;
    run.0.kill()?;
    kill_process(guard, Signal::CONT)?;
    until_gone(guard).await;
    desk.bench.until_free("a").await;
    assert!(!desk.path("ran").exists());
    Ok(())
}

#[tokio::test]
async fn a_stopped_command_keeps_its_lock() -> Result<()> {
    let mut desk = Desk::hasty().await?;
    let mut run = desk.exec("a", "echo $$ > shell; while :; do sleep 0.05; done")?;
    let shell = desk.pid("shell").await?;
    kill_process(shell, Signal::STOP)?;
    let metric = "lockscope_agent_renewals_total";
    desk.bench.until_metric(metric, &[("outcome", "renewed")], 4.0).await;
    assert!(!desk.bench.is_free("a").await?);
    run.0.terminate()?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 143, "a stopped process continues so that it can end: {said}");
    Ok(())
}

#[tokio::test]
async fn dead_orphans_of_a_running_command_are_reaped() -> Result<()> {
    let desk = Desk::new().await?;
    let script = "sh -c 'sleep 0.1 & echo $! > orphan'; echo $$ > shell; while ! test -e stop; do sleep 0.02; done; exit 3";
    let mut run = desk.exec("a", script)?;
    let orphan = desk.pid("orphan").await?;
    eventually("the end of an orphan", async || {
        anyhow::ensure!(!std::fs::exists(format!("/proc/{orphan}"))?, "{orphan} is still there");
        Ok(())
    })
    .await;
    std::fs::write(desk.path("stop"), "")?;
    assert_eq!(run.end().await?.0, 3);
    Ok(())
}

#[tokio::test]
async fn without_a_command_a_killed_guard_loses_nothing() -> Result<()> {
    let desk = Desk::new().await?;
    let mut other = desk.bench.session().await?;
    crate::agent::lock(&mut other, "LOCK a").await?;
    let mut run = desk.exec("a", "touch ran")?;
    desk.bench.until_waiting("a", 1).await?;
    kill(guard(&run)?)?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 71, "{said}");
    assert!(said.contains("gave up on a: its guard process was killed by signal 9"), "{said}");
    assert!(!desk.path("ran").exists());
    Ok(())
}
