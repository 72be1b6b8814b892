//! Agents that are replaced while a command runs.

use anyhow::{Result, ensure};
use tokio::net::UnixListener;

use super::halfway::Halfway;
use super::{Desk, Lockctl};

const UNTIL_STOPPED: &str = "echo $$ > shell; while ! test -e stop; do sleep 0.02; done; exit 3";

/// Starts an agent with leases that do not end within a test, even on a busy host.
async fn patient() -> Result<Desk> {
    Desk::with(&["--lease", "2m"]).await
}

#[tokio::test]
async fn with_grace_the_next_agent_takes_over_the_locks() -> Result<()> {
    let mut desk = patient().await?;
    let mut run = desk.exec("--grace 5m a b", UNTIL_STOPPED)?;
    desk.pid("shell").await?;
    let before = (desk.bench.holders("a").await?, desk.bench.holders("b").await?);
    desk.bench.agent.restart().await?;
    run.says("a, b: resumed by the next agent").await;
    ensure!((desk.bench.holders("a").await?, desk.bench.holders("b").await?) == before);
    // The agent is replaced once more.
    desk.bench.agent.process().terminate()?;
    ensure!(desk.bench.agent.process().end().await.success());
    desk.bench.agent.restart().await?;
    let resumed = [("outcome", "resumed")];
    desk.bench.until_metric("lockscope_agent_sessions_resumed_total", &resumed, 1.0).await;
    ensure!((desk.bench.holders("a").await?, desk.bench.holders("b").await?) == before);
    std::fs::write(desk.path("stop"), "")?;
    let (code, said) = run.end().await?;
    ensure!(code == 3, "{code}: {said}");
    desk.bench.until_free("a").await;
    desk.bench.until_free("b").await;
    Ok(())
}

/// Runs a command under the lock `a` until a new agent has resumed the session under a new secret, but `lockctl` has not
/// received it.
async fn half_resumed(desk: &mut Desk) -> Result<(Lockctl, Halfway)> {
    let door = desk.path("door.sock");
    std::os::unix::fs::symlink(desk.bench.agent.socket(), &door)?;
    let mut command =
        desk.command(&["exec", "--grace", "5m", "a", "--", "sh", "-c", UNTIL_STOPPED])?;
    command.env("LOCKSCOPE_SOCKET", &door);
    let run = desk.spawn(command)?;
    desk.pid("shell").await?;
    let listener = UnixListener::bind(desk.path("next.sock"))?;
    std::fs::rename(desk.path("next.sock"), &door)?;
    desk.bench.agent.restart().await?;
    let halfway = desk.let_in_until(&listener, "holds").await?;
    Ok((run, halfway))
}

#[tokio::test]
async fn a_lock_that_is_lost_while_the_next_agent_answers_ends_its_command() -> Result<()> {
    let mut desk = patient().await?;
    let (mut run, halfway) = half_resumed(&mut desk).await?;
    let output = desk.command(&["unlock", "--force", "a"])?.output()?;
    ensure!(output.status.success(), "{output:?}");
    let relay = tokio::spawn(halfway.go_on());
    let (code, said) = run.end().await?;
    ensure!(code == 76 && said.contains("a: it is no longer held"), "{code}: {said}");
    relay.abort();
    Ok(())
}

#[tokio::test]
async fn a_command_that_ends_while_the_next_agent_answers_is_released() -> Result<()> {
    let mut desk = patient().await?;
    let (mut run, halfway) = half_resumed(&mut desk).await?;
    std::fs::write(desk.path("stop"), "")?;
    run.says("waiting for an agent to release it").await;
    halfway.go_on().await?;
    let (code, said) = run.end().await?;
    ensure!(code == 3, "{code}: {said}");
    desk.bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn a_command_that_ends_without_an_agent_is_released_by_the_next_one() -> Result<()> {
    let mut desk = patient().await?;
    let mut run = desk.exec("--grace 5m a", UNTIL_STOPPED)?;
    desk.pid("shell").await?;
    desk.bench.agent.process().kill()?;
    run.says("lost the connection to the agent").await;
    std::fs::write(desk.path("stop"), "")?;
    run.says("waiting for an agent to release it").await;
    desk.bench.agent.restart().await?;
    let (code, said) = run.end().await?;
    ensure!(code == 3, "{code}: {said}");
    desk.bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn a_lock_that_is_gone_with_the_agent_ends_its_command() -> Result<()> {
    let mut desk = patient().await?;
    let mut run = desk.exec("--grace 5m a", UNTIL_STOPPED)?;
    desk.pid("shell").await?;
    desk.bench.agent.process().kill()?;
    run.says("lost the connection to the agent").await;
    desk.bench.direct.call("DEL a").await?.ok()?;
    desk.bench.agent.restart().await?;
    let (code, said) = run.end().await?;
    ensure!(code == 76 && said.contains("a: it is no longer held"), "{code}: {said}");
    Ok(())
}

#[tokio::test]
async fn an_agent_that_dies_before_it_unlocks_leaves_that_to_the_next_one() -> Result<()> {
    let mut desk = patient().await?;
    let mut run = desk.exec("--grace 5m a", UNTIL_STOPPED)?;
    let shell = desk.pid("shell").await?;
    desk.bench.agent.process().freeze().await?;
    std::fs::write(desk.path("stop"), "")?;
    super::until_gone(shell).await;
    run.says("a: release not confirmed: the agent has not replied").await;
    run.says("waiting for an agent to release it").await;
    desk.bench.agent.process().kill()?;
    desk.bench.agent.restart().await?;
    let (code, said) = run.end().await?;
    ensure!(code == 3, "{code}: {said}");
    desk.bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn a_signal_ends_the_wait_for_an_agent_to_release_a_lock() -> Result<()> {
    let mut desk = patient().await?;
    let mut run = desk.exec("--grace 10m --lease 1h a", UNTIL_STOPPED)?;
    desk.pid("shell").await?;
    desk.bench.agent.process().kill()?;
    run.says("lost the connection to the agent").await;
    std::fs::write(desk.path("stop"), "")?;
    run.says("waiting for an agent to release it").await;
    run.0.terminate()?;
    let (code, said) = run.end().await?;
    ensure!(code == 3 && said.contains("a stays locked for another"), "{code}: {said}");
    Ok(())
}
