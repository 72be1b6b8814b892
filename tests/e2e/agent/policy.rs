//! The access policy for locks and its reload at run time.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::eventually;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::timeout;

use super::{Bench, assert_error, lock};

/// A file of rules.
struct Rules(TempDir);

impl Rules {
    fn new(text: &str) -> Result<Self> {
        let rules = Self(tempfile::tempdir()?);
        rules.write(text)?;
        Ok(rules)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("policy.toml")
    }

    fn write(&self, text: &str) -> Result<()> {
        Ok(std::fs::write(self.path(), text)?)
    }

    async fn bench(&self) -> Result<Bench> {
        Bench::with(&["--policy", &self.path().display().to_string()]).await
    }
}

/// Returns a rule for the user that runs the tests.
fn for_us(rest: &str) -> String {
    format!("[[allow]]\nuid = [{}]\n{rest}\n", rustix::process::geteuid().as_raw())
}

async fn reloads(bench: &Bench, outcome: &str) -> Result<f64> {
    let metrics = bench.agent.metrics().await?;
    Ok(metrics.sum("lockscope_agent_policy_reloads_total", &[("outcome", outcome)]))
}

#[tokio::test]
async fn locks_that_no_rule_allows_are_denied_and_counted() -> Result<()> {
    let rules = Rules::new(&for_us(
        "names = [\"orders:*\"]\nkinds = [\"lock\"]\nmax_locks = 2\nmax_wait = \"1m\"",
    ))?;
    let bench = rules.bench().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK orders:1 WAIT 1000").await?;
    lock(&mut worker, "LOCK orders:2 NOWAIT").await?;
    lock(&mut worker, "LOCK orders:2 WAIT 1000").await?;
    for (command, named, reason) in [
        ("LOCK invoices:1 NOWAIT", "invoices:1", "name"),
        ("LOCK orders:3 KIND fair NOWAIT", "kind fair", "kind"),
        ("LOCK orders:3 NOWAIT", "exceeds the limit", "count"),
        ("LOCK orders:3 OWNER 7 WAIT 60001", "60000 ms", "wait"),
    ] {
        if reason == "wait" {
            worker.call("UNLOCK orders:1").await?.ok()?;
        }
        assert_error(&worker.call(command).await?, "DENIED", named);
        let metrics = bench.agent.metrics().await?;
        let denied = metrics.sum("lockscope_agent_policy_denials_total", &[("reason", reason)]);
        ensure!(denied == 1.0, "{reason}: {denied}");
    }
    // MLOCK is allowed for all of its names or for none.
    let several = worker.call("MLOCK 2 orders:4 invoices:2 NOWAIT").await?;
    assert_error(&several, "DENIED", "invoices:2");
    Ok(())
}

#[tokio::test]
async fn rules_are_reloaded_on_sighup_and_kept_if_unreadable() -> Result<()> {
    let rules = Rules::new(&for_us("names = [\"a\"]"))?;
    let mut bench = rules.bench().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    assert_error(&worker.call("LOCK b NOWAIT").await?, "DENIED", "b");
    rules.write(&for_us("names = [\"b\"]"))?;
    bench.agent.process().signal(Signal::HUP)?;
    bench
        .until_metric("lockscope_agent_policy_reloads_total", &[("outcome", "applied")], 1.0)
        .await;
    eventually("the new rules", async || {
        lock(&mut worker, "LOCK b NOWAIT").await?;
        Ok(())
    })
    .await;
    assert_error(&worker.call("LOCK a OWNER 2 NOWAIT").await?, "DENIED", "a");
    // The worker may still reenter and release the lock that it holds.
    lock(&mut worker, "LOCK a").await?;
    worker.call("UNLOCK a").await?.ok()?;
    rules.write("[[allow]]\nnmes = [\"*\"]\n")?;
    bench.agent.process().signal(Signal::HUP)?;
    bench
        .until_metric("lockscope_agent_policy_reloads_total", &[("outcome", "refused")], 1.0)
        .await;
    ensure!(reloads(&bench, "applied").await? == 1.0);
    assert_error(&worker.call("LOCK c NOWAIT").await?, "DENIED", "c");
    let log = bench.agent.process().log();
    ensure!(log.contains("policy.toml") && log.contains("nmes"), "it says what is wrong: {log}");
    // Nor do the rules of a file apply that every user may change.
    rules.write(&for_us("names = [\"c\"]"))?;
    std::fs::set_permissions(rules.path(), PermissionsExt::from_mode(0o666))?;
    bench.agent.process().signal(Signal::HUP)?;
    bench
        .until_metric("lockscope_agent_policy_reloads_total", &[("outcome", "refused")], 2.0)
        .await;
    assert_error(&worker.call("LOCK c NOWAIT").await?, "DENIED", "c");
    let log = bench.agent.process().log();
    ensure!(log.contains("can be changed by every user (mode 0666)"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_for_long_delays_no_lock() -> Result<()> {
    let rules = Rules::new(&for_us("names = [\"a\"]"))?;
    let mut bench = rules.bench().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    // Nothing is written to this pipe, so reading it takes as long as on a mount that hangs.
    std::fs::remove_file(rules.path())?;
    mknodat(CWD, rules.path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    bench.agent.process().signal(Signal::HUP)?;
    let mut writer = None;
    eventually("the agent to read its policy", async || {
        // Without a reader, this fails.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        writer = Some(open(rules.path(), flags, Mode::empty())?);
        Ok(())
    })
    .await;
    let served = async {
        for _ in 0..20 {
            worker.call("UNLOCK a").await?.ok()?;
            lock(&mut worker, "LOCK a").await?;
        }
        anyhow::Ok(())
    };
    timeout(Duration::from_secs(20), served).await??;
    rules.write(&for_us("names = [\"b\"]"))?;
    drop(writer);
    bench
        .until_metric("lockscope_agent_policy_reloads_total", &[("outcome", "applied")], 1.0)
        .await;
    lock(&mut worker, "LOCK b").await?;
    Ok(())
}

#[tokio::test]
async fn sighup_without_a_policy_is_harmless() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    bench.agent.process().signal(Signal::HUP)?;
    eventually("it to be noticed", async || {
        ensure!(bench.agent.process().log().contains("SIGHUP"));
        Ok(())
    })
    .await;
    ensure!(worker.call("UNLOCK a").await?.ok()?.int()? == 0);
    Ok(())
}
