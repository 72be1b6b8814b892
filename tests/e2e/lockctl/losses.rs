//! Locks that are lost while their command runs.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::{eventually, process, programs};

use super::{Desk, Lockctl, guard, is_there};

/// Prints a line on TERM and continues.
const STUBBORN: &str =
    "trap 'echo term > term' TERM; echo $$ > shell; while :; do sleep 0.02; done";
/// Works until TERM and ends in order.
const ORDERLY: &str =
    "trap 'echo term > term; exit 0' TERM; echo $$ > shell; while :; do sleep 0.02; done";

/// Milliseconds for which a busy machine may keep a guard from killing its command, or the killed command from
/// ending. A guard that waited for something else would take longer: 15 s for a reply of the agent, or an hour of
/// `--kill-after`.
const STALL: i64 = 5_000;

async fn started(desk: &Desk, words: &str, script: &str) -> Result<Lockctl> {
    let run = desk.exec(words, script)?;
    desk.pid("shell").await?;
    Ok(run)
}

#[tokio::test]
async fn a_lost_lock_ends_its_command() -> Result<()> {
    let mut desk = Desk::hasty().await?;
    let mut run = started(&desk, "--kill-after 1h a", STUBBORN).await?;
    desk.bench.direct.call("DEL a").await?.ok()?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("lost a: it is gone from Redis; ending sh"), "{said}");
    // The lock is no longer valid, so the hour of --kill-after is not granted.
    assert!(!is_there(desk.pid("shell").await?));
    std::fs::remove_file(desk.path("shell"))?;
    let mut run = started(&desk, "--exit-lost 9 b", ORDERLY).await?;
    desk.bench.direct.call("DEL b").await?.ok()?;
    assert_eq!(run.end().await?.0, 9);
    Ok(())
}

#[tokio::test]
async fn a_lost_lock_ends_its_command_although_nobody_reads_messages() -> Result<()> {
    let mut desk = Desk::hasty().await?;
    let mut command = process::command(Path::new("/bin/sh"));
    // A full pipe as standard error, which the shell itself keeps open for reading.
    let fill = "mkfifo full; exec 2<>full; head -c 65536 /dev/zero >&2; exec \"$0\" \"$@\"";
    command.args(["-c", fill]).arg(programs::path("lockctl")?);
    command.args(["exec", "a", "--", "sh", "-c", STUBBORN]);
    command.current_dir(desk.folder.path()).env("LOCKSCOPE_SOCKET", desk.bench.agent.socket());
    let mut run = desk.spawn(command)?;
    desk.pid("shell").await?;
    desk.bench.direct.call("DEL a").await?.ok()?;
    assert_eq!(run.end().await?.0, 76);
    assert!(!is_there(desk.pid("shell").await?));
    Ok(())
}

#[tokio::test]
async fn a_stopped_agent_does_not_keep_lockctl_from_ending() -> Result<()> {
    let mut desk = Desk::hasty().await?;
    let mut run = started(&desk, "a", STUBBORN).await?;
    let mut waiting = desk.exec("--wait 10s a", "touch ran")?;
    desk.bench.until_waiting("a", 1).await?;
    desk.bench.agent.process().freeze().await?;
    allow_for_a_stall(&mut desk).await?;
    until_ended_while_held(&mut desk, "a", "shell").await?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("a: release not confirmed: the agent has not replied"), "{said}");
    assert!(!is_there(desk.pid("shell").await?));
    let (code, said) = waiting.end().await?;
    assert_eq!(code, 69, "{said}");
    assert!(said.contains("the agent has not replied"), "{said}");
    assert!(!desk.path("ran").exists());
    desk.bench.agent.process().thaw()?;
    desk.bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn losing_one_of_several_locks_ends_the_command() -> Result<()> {
    let mut desk = Desk::hasty().await?;
    let mut run = started(&desk, "a b c", STUBBORN).await?;
    desk.bench.direct.call("DEL b").await?.ok()?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("lost b: "), "{said}");
    for name in ["a", "c"] {
        desk.bench.until_free(name).await;
    }
    Ok(())
}

#[tokio::test]
async fn the_response_to_a_loss_is_configurable() -> Result<()> {
    let mut desk = Desk::hasty().await?;
    let mut killed = started(&desk, "--on-lost kill a", STUBBORN).await?;
    desk.bench.direct.call("DEL a").await?.ok()?;
    assert_eq!(killed.end().await?.0, 76);
    assert!(!desk.path("term").exists());
    let script = "trap 'echo int > int; exit 0' INT; echo $$ > other; while :; do sleep 0.02; done";
    let mut frozen = desk.exec("--on-lost int b", script)?;
    desk.pid("other").await?;
    // Here some validity is left, because Redis is only unreachable.
    desk.bench.redis.process().freeze().await?;
    assert_eq!(frozen.end().await?.0, 76);
    assert_eq!(desk.mark("int").await, "int");
    desk.bench.redis.process().thaw()?;
    let mut run = desk.exec(
        "--on-lost ignore c",
        "echo $$ > third; while ! test -e stop; do sleep 0.02; done; exit 4",
    )?;
    desk.pid("third").await?;
    desk.bench.direct.call("DEL c").await?.ok()?;
    run.says("continues without it").await;
    std::fs::write(desk.path("stop"), "")?;
    assert_eq!(run.end().await?.0, 4);
    Ok(())
}

/// Makes the lock `a`, which nobody renews any more, outlive its lease in Redis: the half second between SIGKILL and
/// the end of validity is shorter than the stalls of a busy machine.
async fn allow_for_a_stall(desk: &mut Desk) -> Result<()> {
    let left = desk.bench.pttl("a").await?;
    ensure!(left > 0, "its lease is over: {left}");
    let extend = format!("PEXPIRE a {}", left + STALL);
    ensure!(desk.bench.direct.call(&extend).await?.int()? == 1, "it is gone");
    Ok(())
}

/// Checks that the shell with its pid in that mark ends, and while the lock is held.
async fn until_ended_while_held(desk: &mut Desk, lock: &str, mark: &str) -> Result<()> {
    let shell = desk.pid(mark).await?;
    eventually("the command's end while the lock is held", async || {
        let alive = is_there(shell);
        let free = desk.bench.is_free(lock).await?;
        assert!(!(alive && free && is_there(shell)), "the command outlives its lease");
        ensure!(!alive, "it runs");
        Ok(())
    })
    .await;
    Ok(())
}

/// Redis refuses renewals: the command is given time to end, and has ended before another client could acquire the
/// lock.
#[tokio::test]
async fn a_command_ends_while_the_lock_is_still_valid() -> Result<()> {
    // TERM comes after the lock is at risk, and three seconds before the agent would report its loss.
    let mut desk = Desk::with(&["--lease", "12s"]).await?;
    let mut run = started(&desk, "--kill-after 3s a", STUBBORN).await?;
    desk.bench.direct.call("ACL SETUSER default -eval -evalsha").await?.ok()?;
    allow_for_a_stall(&mut desk).await?;
    run.says("a cannot be renewed: valid for another").await;
    run.says("not renewed in time, valid for another").await;
    assert_eq!(desk.mark("term").await, "term", "it is asked first");
    until_ended_while_held(&mut desk, "a", "shell").await?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    Ok(())
}

#[tokio::test]
async fn a_temporary_outage_does_not_end_the_command() -> Result<()> {
    let mut desk = Desk::with(&["--lease", "15s"]).await?;
    let mut run = desk.exec(
        "--kill-after 100ms a",
        "echo $$ > shell; while ! test -e stop; do sleep 0.02; done; exit 3",
    )?;
    desk.pid("shell").await?;
    desk.bench.redis.process().freeze().await?;
    run.says("a cannot be renewed").await;
    desk.bench.redis.process().thaw()?;
    run.says("a has been renewed again").await;
    std::fs::write(desk.path("stop"), "")?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 3, "{said}");
    desk.bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn a_lease_that_is_too_short_ends_the_command_in_time() -> Result<()> {
    let mut desk = Desk::new().await?;
    let script = format!("mkdir orderly; cd orderly; {ORDERLY}");
    let mut orderly = desk.exec("--lease 12s --kill-after 1h b", &script)?;
    desk.pid("orderly/shell").await?;
    let mut run = started(&desk, "--lease 12s --kill-after 1h a", STUBBORN).await?;
    // The agent would remove a key that outlives its lease.
    desk.bench.direct.call("ACL SETUSER default -eval -evalsha").await?.ok()?;
    allow_for_a_stall(&mut desk).await?;
    // Without an allowance: TERM comes four seconds before the lease of `b` ends.
    until_ended_while_held(&mut desk, "b", "orderly/shell").await?;
    let (code, said) = orderly.end().await?;
    assert_eq!(code, 76, "{said}");
    assert_eq!(desk.mark("orderly/term").await, "term");
    run.says("lost a: its lease ends, valid for another").await;
    until_ended_while_held(&mut desk, "a", "shell").await?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    assert_eq!(desk.mark("term").await, "term");
    Ok(())
}

#[tokio::test]
async fn a_command_outlives_a_killed_agent_until_its_lease_ends() -> Result<()> {
    let mut desk = Desk::with(&["--lease", "12s"]).await?;
    // The command is sent the signal as late as possible: until then it has time to end by itself.
    let mut quick = desk.exec(
        "--kill-after 100ms b",
        "echo $$ > quick; while ! test -e stop; do sleep 0.02; done; exit 3",
    )?;
    desk.pid("quick").await?;
    let mut run = started(&desk, "--kill-after 1h a", STUBBORN).await?;
    desk.bench.agent.process().kill()?;
    allow_for_a_stall(&mut desk).await?;
    quick.says("b stays locked for another").await;
    std::fs::write(desk.path("stop"), "")?;
    let (code, said) = quick.end().await?;
    assert_eq!(code, 3, "what is done in time is done: {said}");
    until_ended_while_held(&mut desk, "a", "shell").await?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    assert!(
        said.contains("lost the connection to the agent; a stays locked for another"),
        "{said}"
    );
    assert_eq!(desk.mark("term").await, "term");
    assert!(!is_there(desk.pid("shell").await?));
    Ok(())
}

#[tokio::test]
async fn a_command_outlives_an_exited_agent_until_its_lease_ends() -> Result<()> {
    let mut desk = Desk::with(&["--lease", "12s", "--drain-timeout", "200ms"]).await?;
    let mut run = started(&desk, "--kill-after 1h a", STUBBORN).await?;
    desk.bench.agent.process().terminate()?;
    run.says("a: the agent is shutting down; a stays locked for another").await;
    allow_for_a_stall(&mut desk).await?;
    until_ended_while_held(&mut desk, "a", "shell").await?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    assert_eq!(desk.mark("term").await, "term");
    Ok(())
}

#[tokio::test]
async fn a_command_that_ends_within_its_validity_is_killed_when_that_is_over() -> Result<()> {
    let desk = Desk::new().await?;
    // It is asked to end after 7.5 s, and would be killed after 11.5 s.
    let mut run = started(&desk, "--lease 12s --kill-after 1h a", STUBBORN).await?;
    run.says("lost a: its lease ends, valid for another").await;
    let output = desk.command(&["unlock", "--force", "a"])?.output()?;
    ensure!(output.status.success(), "{output:?}");
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("lost a: an operator released it; killing sh"), "{said}");
    assert!(!is_there(desk.pid("shell").await?));
    Ok(())
}

#[tokio::test]
async fn an_ignored_loss_leaves_the_guard_asleep() -> Result<()> {
    let mut desk = Desk::hasty().await?;
    let mut run = started(&desk, "--on-lost ignore a", ORDERLY).await?;
    let mut other = desk.bench.session().await?;
    crate::agent::lock(&mut other, "LOCK b").await?;
    desk.bench.direct.call("DEL a").await?.ok()?;
    run.says("continues without it").await;
    let status = format!("/proc/{}/status", guard(&run)?);
    let waits = || -> Result<u64> {
        let status = std::fs::read_to_string(&status)?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Ok(line.context("no such line")?.trim().parse()?)
    };
    let (metric, renewed) = ("lockscope_agent_renewals_total", [("outcome", "renewed")]);
    let renewals = desk.bench.agent.metrics().await?.sum(metric, &renewed);
    // The lease of the lost lock is over.
    desk.bench.until_metric(metric, &renewed, renewals + 4.0).await;
    let before = waits()?;
    desk.bench.until_metric(metric, &renewed, renewals + 6.0).await;
    let waits = waits()? - before;
    assert!(waits < 200, "{waits} times");
    run.0.terminate()?;
    assert_eq!(run.end().await?.0, 0);
    Ok(())
}
