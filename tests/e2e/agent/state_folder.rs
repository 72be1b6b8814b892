//! State folders that are missing, read-only or full.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use harness::process::{self, Process};
use harness::redis::random_port;
use harness::{Client, RedisServer, agent, eventually, http};
use tempfile::TempDir;

use super::{assert_error, lock};

/// An agent that is started in a separate environment.
struct Isolated {
    _redis: RedisServer,
    process: Process,
    folder: TempDir,
}

impl Isolated {
    /// Runs `prepare` in a shell first, with the agent's folder as `$1`. Its mounts end with the agent.
    async fn new(prepare: Option<&str>) -> Result<Self> {
        let redis = RedisServer::start().await?;
        let folder = tempfile::Builder::new().prefix("lockscope-state-").tempdir()?;
        let process = started(folder.path(), &redis.url(), &[], |inner| {
            let mut command = match prepare {
                Some(_) => apart(),
                None => process::command(Path::new("/bin/sh")),
            };
            let script = format!("set -e; {}; shift; exec \"$@\"", prepare.unwrap_or(":"));
            command.args(["-c", &script, "sh"]).arg(folder.path());
            command.arg(inner.get_program()).args(inner.get_args());
            command
        })
        .await?;
        Ok(Self { _redis: redis, process, folder })
    }

    async fn session(&self) -> Result<Client> {
        Client::unix(&self.folder.path().join("agent.sock")).await
    }

    /// Returns the state folder as the agent sees it.
    fn state(&self) -> PathBuf {
        let folder = self.folder.path().join("state");
        PathBuf::from(format!("/proc/{}/root{}", self.process.pid(), folder.display()))
    }
}

/// Starts an agent by the command that `wrap` makes of its own, and waits until it is ready. Another port is tried if one is
/// taken.
pub(crate) async fn started(
    folder: &Path,
    redis_url: &str,
    flags: &[String],
    wrap: impl Fn(&Command) -> Command,
) -> Result<Process> {
    for attempt in 0..20 {
        let port = random_port();
        let command = wrap(&agent::command(folder, redis_url, port, flags)?);
        let log = folder.join(format!("agent-{attempt}.log"));
        let mut process = Process::spawn("lockscope-agent", command, &log, None)?;
        let ready = eventually("the agent to be ready, or to end", async || {
            if process.ended()?.is_some() {
                return Ok(false);
            }
            ensure!(http::get(port, "/readyz").await?.status == 200);
            Ok(true)
        })
        .await;
        if ready {
            return Ok(process);
        }
        ensure!(process.log().contains("in use"), "{}", process.log());
    }
    anyhow::bail!("no port is free")
}

/// Returns a shell in a separate mount name space.
pub(crate) fn apart() -> Command {
    let mut command = process::command(Path::new("/usr/bin/unshare"));
    command.args(["--mount", "--propagation", "private", "/bin/sh"]);
    command
}

/// Returns whether mounts are permitted, and prints it if not: only root may mount, and not in every container.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub(crate) fn may_mount() -> bool {
    let tried = apart().args(["-c", "mount -t tmpfs none /mnt"]).output();
    let may = tried.is_ok_and(|tried| tried.status.success());
    if !may {
        eprintln!("skipped: mounts are not permitted here");
    }
    may
}

#[tokio::test]
async fn a_missing_state_folder_is_created() -> Result<()> {
    let agent = Isolated::new(None).await?;
    let mut worker = agent.session().await?;
    worker.call("SESSION GRACE 5000").await?.ok()?;
    lock(&mut worker, "LOCK a").await?;
    ensure!(std::fs::metadata(agent.folder.path().join("state/journal"))?.len() > 0);
    Ok(())
}

#[tokio::test]
async fn with_a_read_only_state_folder_there_are_locks_but_no_grace() -> Result<()> {
    if !may_mount() {
        return Ok(());
    }
    let agent =
        Isolated::new(Some("mkdir -p $1/state; mount -t tmpfs -o ro none $1/state")).await?;
    let mut worker = agent.session().await?;
    assert_error(&worker.call("SESSION GRACE 5000").await?, "UNAVAILABLE", "state-dir");
    lock(&mut worker, "LOCK a").await?;
    let log = agent.process.log();
    ensure!(log.contains("Read-only file system") && log.contains("new identity"), "{log}");
    let info = worker.call("INFO").await?.to_string();
    ensure!(info.contains("journal_missing:the agent has no usable state folder"), "{info}");
    Ok(())
}

#[tokio::test]
async fn with_a_full_state_folder_graced_sessions_get_no_locks_until_there_is_room() -> Result<()> {
    if !may_mount() {
        return Ok(());
    }
    let agent =
        Isolated::new(Some("mkdir -p $1/state; mount -t tmpfs -o size=256k none $1/state")).await?;
    let mut graced = agent.session().await?;
    graced.call("SESSION GRACE 600000").await?.ok()?;
    lock(&mut graced, "LOCK before").await?;
    let filler = agent.state().join("filler");
    let full = std::fs::write(&filler, vec![0; 1 << 20]);
    ensure!(full.is_err(), "there is room for a mebibyte");
    // The rest of the last block may have room for a few more entries.
    eventually("the folder to be full", async || {
        let reply = graced.call("LOCK more NOWAIT").await?;
        ensure!(reply.is_error("UNAVAILABLE"), "{reply}");
        ensure!(reply.error().unwrap_or_default().contains("journal"), "{reply}");
        Ok(())
    })
    .await;
    let mut plain = agent.session().await?;
    lock(&mut plain, "LOCK plain").await?;
    ensure!(graced.call("UNLOCK before").await?.ok()?.int()? == 0, "it can still release");
    std::fs::remove_file(&filler)?;
    eventually("graced sessions to get locks again", async || {
        lock(&mut graced, "LOCK after WAIT 1000").await?;
        Ok(())
    })
    .await;
    Ok(())
}

/// Opening a named pipe blocks until someone writes to it, like a file on a mount that does not answer.
#[tokio::test]
async fn an_agent_reports_that_it_waits_for_its_state_folder_and_starts_once_that_answers()
-> Result<()> {
    let redis = RedisServer::start().await?;
    let folder = tempfile::Builder::new().prefix("lockscope-state-").tempdir()?;
    let state = folder.path().join("state");
    std::fs::create_dir(&state)?;
    let journal = state.join("journal");
    let made = process::command(Path::new("/usr/bin/mkfifo")).arg(&journal).status()?;
    ensure!(made.success(), "{made}");

    let (mut agent, _) = waiting_agent(folder.path(), &redis, &state).await?;
    agent.terminate()?;
    let ended = agent.end().await;
    ensure!(ended.success() && agent.log().contains("before the state folder answered"));

    let (agent, http) = waiting_agent(folder.path(), &redis, &state).await?;
    // The agent reads an empty journal.
    drop(std::fs::OpenOptions::new().write(true).open(&journal)?);
    eventually("the agent to be ready", async || {
        let ready = http::get(http, "/readyz").await?;
        ensure!(ready.status == 200, "{}", ready.body);
        Ok(())
    })
    .await;
    ensure!(agent.log().contains("the state folder answers"), "{}", agent.log());
    let mut worker = Client::unix(&folder.path().join("agent.sock")).await?;
    worker.call("SESSION GRACE 5000").await?.ok()?;
    lock(&mut worker, "LOCK a").await?;
    ensure!(std::fs::metadata(&journal)?.is_file(), "the journal is written");
    Ok(())
}

/// Starts an agent whose state folder does not answer. Returns it with its HTTP port once its log and `/readyz` say so.
async fn waiting_agent(folder: &Path, redis: &RedisServer, state: &Path) -> Result<(Process, u16)> {
    for attempt in 0..20 {
        let port = random_port();
        let command = agent::command(folder, &redis.url(), port, &[])?;
        let log = folder.join(format!("agent-{port}-{attempt}.log"));
        let mut process = Process::spawn("lockscope-agent", command, &log, None)?;
        let waits = eventually("the agent to report that it waits, or to end", async || {
            if process.ended()?.is_some() {
                return Ok(false);
            }
            let ready = http::get(port, "/readyz").await?;
            let why = format!("the state folder {} does not answer", state.display());
            ensure!(ready.status == 503 && ready.body.contains(&why), "{}", ready.body);
            Ok(true)
        })
        .await;
        if waits {
            let log = process.log();
            let path = state.display().to_string();
            ensure!(log.contains("the state folder does not answer") && log.contains(&path));
            return Ok((process, port));
        }
        ensure!(process.log().contains("in use"), "{}", process.log());
    }
    anyhow::bail!("no port is free")
}
