//! lockctl as users and scripts run it: real agents, real commands, real terminals.

mod deaths;
mod environment;
mod halfway;
mod losses;
mod restarts;
mod signals;
mod statuses;
mod terminal;
mod views;
mod waits;

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::{Process, eventually, process, programs};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixListener;

use crate::agent::Bench;
use halfway::Halfway;

/// An agent, and a folder in which commands leave marks.
struct Desk {
    bench: Bench,
    folder: TempDir,
}

/// A running lockctl, with both of its outputs in one file.
struct Lockctl(Process);

impl Desk {
    async fn new() -> Result<Self> {
        Self::with(&[]).await
    }

    /// Starts an agent with leases that are short enough to end within a test, and long enough for a busy machine.
    async fn hasty() -> Result<Self> {
        Self::with(&["--lease", "9s"]).await
    }

    async fn with(flags: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockctl-").tempdir()?;
        Ok(Self { bench: Bench::with(flags).await?, folder })
    }

    /// Returns a command of `lockctl` with these arguments, run in the folder.
    fn command(&self, args: &[&str]) -> Result<Command> {
        command(&self.bench.agent.socket(), self.folder.path(), args)
    }

    /// Starts `lockctl exec` with these words, and after `--` a shell that runs `script`.
    fn exec(&self, words: &str, script: &str) -> Result<Lockctl> {
        let words = ["exec"].into_iter().chain(words.split_whitespace());
        let args: Vec<&str> = words.chain(["--", "sh", "-c", script]).collect();
        self.spawn(self.command(&args)?)
    }

    fn spawn(&self, command: Command) -> Result<Lockctl> {
        let log = tempfile::Builder::new().prefix("log-").tempfile_in(self.folder.path())?;
        let (_, path) = log.keep()?;
        Ok(Lockctl(Process::spawn("lockctl", command, &path, None)?))
    }

    /// Returns a command of a copy of `lockctl` with these arguments, run as a user without rights; `None` unless root runs the
    /// tests, since only root can become another user.
    fn as_nobody(&self, args: &[&str]) -> Result<Option<Command>> {
        use std::os::unix::fs::PermissionsExt as _;
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let lockctl = self.path("lockctl");
        programs::copy("lockctl", &lockctl)?;
        for folder in [self.bench.agent.folder(), self.folder.path()] {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
        }
        let mut command = process::command(Path::new("/usr/bin/setpriv"));
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&lockctl);
        command.env("LOCKSCOPE_SOCKET", self.bench.agent.socket()).args(args);
        Ok(Some(command))
    }

    fn path(&self, mark: &str) -> PathBuf {
        self.folder.path().join(mark)
    }

    /// Accepts connections to `door` and relays them, until a reply of the agent contains `word`.
    async fn let_in_until(&self, door: &UnixListener, word: &str) -> Result<Halfway> {
        Halfway::until(door, &self.bench.agent.socket(), word).await
    }

    /// Waits until a command has written at least one whole line to this mark, and returns the text.
    async fn mark(&self, mark: &str) -> String {
        let path = self.path(mark);
        eventually(mark, async || {
            let text = std::fs::read_to_string(&path)?;
            ensure!(text.ends_with('\n'), "not written yet");
            Ok(text.trim_end().to_owned())
        })
        .await
    }

    /// Waits for the pid that a command leaves.
    async fn pid(&self, mark: &str) -> Result<Pid> {
        let pid = self.mark(mark).await;
        Pid::from_raw(pid.parse()?).context("pid 0")
    }
}

impl Lockctl {
    /// Waits for the end, and returns the exit status, as a shell reports it, with the whole output.
    async fn end(&mut self) -> Result<(i32, String)> {
        let status = self.0.end().await;
        let code = status.code().or_else(|| Some(128 + status.signal()?));
        let code = code.with_context(|| format!("{status}:\n{}", self.0.log()))?;
        Ok((code, self.0.log()))
    }

    /// Waits until the output contains `words`.
    async fn says(&self, words: &str) {
        eventually(words, async || {
            let log = self.0.log();
            ensure!(log.contains(words), "it said: {log}");
            Ok(())
        })
        .await;
    }
}

fn command(socket: &Path, folder: &Path, args: &[&str]) -> Result<Command> {
    let mut command = process::command(&programs::path("lockctl")?);
    command.current_dir(folder).env("LOCKSCOPE_SOCKET", socket).args(args);
    Ok(command)
}

/// Returns whether this process is alive. A process that is dead but not yet waited for is not.
fn is_there(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

async fn until_gone(pid: Pid) {
    eventually("the end of a process", async || {
        ensure!(!is_there(pid), "pid {pid} is still there");
        Ok(())
    })
    .await;
}

/// Returns the pids of the children of that process.
fn children(pid: Pid) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let children = std::fs::read_to_string(task?.path().join("children"))?;
        for child in children.split_whitespace() {
            found.push(Pid::from_raw(child.parse()?).context("pid 0")?);
        }
    }
    Ok(found)
}

/// Returns the guard of this lockctl.
fn guard(lockctl: &Lockctl) -> Result<Pid> {
    let own = Pid::from_raw(i32::try_from(lockctl.0.pid())?).context("pid 0")?;
    children(own)?.first().copied().context("it has no guard")
}

fn kill(pid: Pid) -> Result<()> {
    Ok(kill_process(pid, Signal::KILL)?)
}
