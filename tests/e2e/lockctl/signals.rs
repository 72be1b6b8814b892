//! Signals reach every process that a command has started.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::time::sleep;

use super::{Desk, Lockctl, guard, is_there, until_gone};

/// A shell that waits for another shell, which works, as in wrapper scripts.
const WRAPPED: &str = "sh -c 'trap \"echo usr1 > usr1\" USR1; trap \"echo hup > hup; exit 3\" HUP; echo $$ > worker; \
    while :; do sleep 0.05; done'; echo $? > inner";

#[tokio::test]
async fn signals_reach_the_worker_behind_a_wrapper() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut run = desk.exec("a", &format!("trap : USR1; trap 'exit 4' HUP; {WRAPPED}"))?;
    let worker = desk.pid("worker").await?;
    run.0.signal(Signal::USR1)?;
    assert_eq!(desk.mark("usr1").await, "usr1");
    assert!(is_there(worker));
    run.0.signal(Signal::HUP)?;
    assert_eq!(desk.mark("hup").await, "hup");
    let (code, said) = run.end().await?;
    assert_eq!(code, 4, "{said}");
    assert!(!is_there(worker), "the worker has ended before the lock was released");
    assert!(desk.bench.is_free("a").await?);
    Ok(())
}

/// The signals that a sender may use for its own purposes, by number. Signals about `lockctl` itself, signals that
/// report an error in it, and signals that cannot be caught are excluded; those of a terminal have separate tests.
const MEANT: [Signal; 15] = [
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::URG,
    Signal::VTALARM,
    Signal::PROF,
    Signal::WINCH,
    Signal::IO,
    Signal::POWER,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
];

#[tokio::test]
async fn every_forwardable_signal_reaches_the_command() -> Result<()> {
    let desk = Desk::new().await?;
    let numbers = MEANT.map(|signal| signal.as_raw().to_string());
    let traps: String = numbers
        .iter()
        .map(|number| format!("trap 'echo {number} > got.{number}' {number}; "))
        .collect();
    let script =
        format!("{traps} echo $$ > shell; while ! test -e stop; do sleep 0.02; done; exit 3");
    let mut run = desk.exec("--kill-after 1h a", &script)?;
    let shell = desk.pid("shell").await?;
    for (signal, number) in MEANT.into_iter().zip(&numbers) {
        run.0.signal(signal)?;
        assert_eq!(desk.mark(&format!("got.{number}")).await, *number);
    }
    assert!(is_there(shell), "what it catches does not end it");
    std::fs::write(desk.path("stop"), "")?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 3, "{said}");
    Ok(())
}

#[tokio::test]
async fn ctrl_c_while_lockctl_starts_has_its_status() -> Result<()> {
    let mut desk = Desk::new().await?;
    for delay in (0..40_000).step_by(200).map(Duration::from_micros) {
        let mut command = desk.command(&["exec", "a", "--", "sleep", "60"])?;
        command.process_group(0);
        let mut run = desk.spawn(command)?;
        sleep(delay).await;
        let group = Pid::from_raw(run.0.pid().try_into()?).context("pid 0")?;
        kill_process_group(group, Signal::INT)?;
        let ended = run.0.end().await;
        let by_signal = ended.code() == Some(130) || ended.signal() == Some(Signal::INT.as_raw());
        ensure!(by_signal, "{ended} after {delay:?}: {}", run.0.log());
    }
    desk.bench.until_free("a").await;
    Ok(())
}

/// A worker that ends once it was asked to and is allowed to.
const WORKER: &str = "sh -c 'trap \"echo > asked; while ! test -e go; do sleep 0.02; done; echo done > done; exit\" TERM; \
    echo $$ > worker; while :; do sleep 0.05; done'";

/// Lets the worker end, which was asked to and still has the lock.
async fn finish_work(desk: &mut Desk) -> Result<()> {
    desk.mark("asked").await;
    ensure!(!desk.bench.is_free("a").await?, "released while the worker runs");
    std::fs::write(desk.path("go"), "")?;
    Ok(())
}

#[tokio::test]
async fn a_wrapper_that_dies_first_releases_nothing() -> Result<()> {
    let mut desk = Desk::new().await?;
    // The shell does not wait for its worker.
    let mut run = desk.exec("--kill-after 1h a", &format!("{WORKER} & wait"))?;
    desk.pid("worker").await?;
    run.0.terminate()?;
    finish_work(&mut desk).await?;
    assert_eq!(run.end().await?.0, 143);
    assert_eq!(desk.mark("done").await, "done", "it was given its time");
    Ok(())
}

#[tokio::test]
async fn a_command_that_does_not_exit_is_killed_after_the_timeout() -> Result<()> {
    let desk = Desk::new().await?;
    let stubborn = "sh -c 'trap \"\" TERM; echo $$ > worker; while :; do sleep 0.05; done'";
    let mut run = desk.exec("--kill-after 300ms a", &format!("{stubborn} & wait"))?;
    let worker = desk.pid("worker").await?;
    run.0.terminate()?;
    assert_eq!(run.end().await?.0, 143);
    until_gone(worker).await;
    Ok(())
}

#[tokio::test]
async fn a_command_may_leave_processes_running() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut run = desk.exec("a", "sleep 600 & echo $! > daemon; exit 5")?;
    assert_eq!(run.end().await?.0, 5);
    let daemon = desk.pid("daemon").await?;
    assert!(is_there(daemon), "a service that a command starts is not its business");
    assert!(desk.bench.is_free("a").await?);
    super::kill(daemon)
}

#[tokio::test]
async fn ignored_signals_stay_ignored() -> Result<()> {
    let desk = Desk::new().await?;
    let lockctl = super::programs::path("lockctl")?;
    let script = format!(
        "trap '' HUP; exec {} exec a -- sh -c 'echo $$ > worker; read line; exit 6' < fifo",
        lockctl.display()
    );
    let mut command = super::process::command(std::path::Path::new("/bin/sh"));
    command.current_dir(desk.folder.path()).env("LOCKSCOPE_SOCKET", desk.bench.agent.socket());
    command.args(["-c", &format!("mkfifo fifo; exec 3<>fifo; {script}")]);
    let mut run = desk.spawn(command)?;
    let worker = desk.pid("worker").await?;
    run.0.signal(Signal::HUP)?;
    // A signal that lockctl passes on is handled before the next one.
    run.0.signal(Signal::WINCH)?;
    assert!(is_there(worker));
    std::fs::write(desk.path("fifo"), "go on\n")?;
    assert_eq!(run.end().await?.0, 6, "as under nohup");
    Ok(())
}

/// Starts `lockctl exec a` with this script as from a program that ignores the ends of its children.
fn child_of_careless_parent(desk: &Desk, script: &str) -> Result<Lockctl> {
    let mut command = super::process::command(std::path::Path::new("env"));
    command.arg("--ignore-signal=CHLD").arg(super::programs::path("lockctl")?);
    command.args(["exec", "a", "--", "sh", "-c", script]);
    command.current_dir(desk.folder.path()).env("LOCKSCOPE_SOCKET", desk.bench.agent.socket());
    desk.spawn(command)
}

#[tokio::test]
async fn a_parent_that_ignores_sigchld_changes_nothing() -> Result<()> {
    let desk = Desk::new().await?;
    let (code, said) = child_of_careless_parent(&desk, "exit 7")?.end().await?;
    assert_eq!(code, 7, "{said}");
    let script = "setsid sh -c 'echo $$ > apart; while :; do sleep 0.05; done' & \
        echo $$ > shell; while :; do sleep 0.05; done";
    let mut run = child_of_careless_parent(&desk, script)?;
    let pids = [desk.pid("apart").await?, desk.pid("shell").await?];
    super::kill(guard(&run)?)?;
    let (code, said) = run.end().await?;
    assert_eq!(code, 76, "{said}");
    for pid in pids {
        until_gone(pid).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_wrapper_that_exits_after_ctrl_c_releases_nothing() -> Result<()> {
    let mut desk = Desk::new().await?;
    let script = format!("trap 'exit 130' INT; echo $$ > shell; {WORKER} & wait");
    let mut run = desk.exec("--kill-after 1h a", &script)?;
    let shell = desk.pid("shell").await?;
    desk.pid("worker").await?;
    // From the terminal, the signal reaches this group alone.
    kill_process_group(shell, Signal::INT)?;
    finish_work(&mut desk).await?;
    assert_eq!(run.end().await?.0, 130);
    assert_eq!(desk.mark("done").await, "done", "it was given its time");
    Ok(())
}

#[tokio::test]
async fn a_command_that_reloads_may_leave_processes_running() -> Result<()> {
    let desk = Desk::new().await?;
    let script = "trap 'echo hup > hup' HUP; echo $$ > shell; while ! test -e hup; do sleep 0.02; done; sleep 0.5; \
        sleep 600 & echo $! > daemon; exit 5";
    let mut run = desk.exec("--kill-after 1ms a", script)?;
    desk.pid("shell").await?;
    run.0.signal(Signal::HUP)?;
    assert_eq!(run.end().await?.0, 5);
    let daemon = desk.pid("daemon").await?;
    assert!(is_there(daemon), "the signal did not ask it to end");
    super::kill(daemon)
}
