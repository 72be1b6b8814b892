//! A run of random faults, with its verdict.

use anyhow::{Context as _, Result, ensure};
use harness::{PATIENCE, Process, eventually, process, programs, within};

/// Runs the program. Returns whether it passed, and its output.
async fn chaos(arguments: &[&str]) -> Result<(bool, String)> {
    let folder = tempfile::tempdir()?;
    let agent = programs::path("lockscope-agent")?;
    let program = folder.path().join("chaos");
    programs::copy("chaos", &program)?;
    let mut command = process::command(&program);
    // The run uses the programs that have been built.
    command.env("LOCKSCOPE_TEST_PROGRAMS", agent.with_file_name(""));
    command.args(arguments);
    let mut run = Process::spawn("chaos", command, &folder.path().join("chaos.log"), None)?;
    // If a build replaces the program's file during the run, workers can still be started.
    let running = format!("/proc/{}/exe", run.pid());
    eventually("the run to have begun", async || {
        ensure!(std::fs::read_link(&running)? == program, "it is starting");
        Ok(())
    })
    .await;
    std::fs::remove_file(&program)?;
    let status =
        within(3 * PATIENCE, "the end of the run", async || run.ended()?.context("it still runs"))
            .await;
    Ok((status.success(), run.log()))
}

#[tokio::test]
async fn no_rule_is_broken_in_a_minute_of_random_faults() -> Result<()> {
    let (passed, log) = chaos(&["--seconds", "40", "--seed", "7"]).await?;
    ensure!(passed, "{log}");
    for fault in ["agent killed", "Redis killed", "host cut off"] {
        ensure!(log.contains(fault), "{fault} was not applied:\n{log}");
    }
    Ok(())
}
