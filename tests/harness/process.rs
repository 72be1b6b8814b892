//! A child process that ends with its owner.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;

/// The length of log output printed when a test fails.
const TAIL: usize = 12 << 10;

/// A running child. Dropping it kills it, and shows the end of its log if a test fails.
///
/// It is started by `setpriv` if available, so that it also dies when the thread that started it is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

/// Returns a command that runs `program` with only `PATH` and `HOME` of our environment.
#[must_use]
pub fn command(program: &Path) -> Command {
    const SETPRIV: &str = "/usr/bin/setpriv";
    let mut command = if Path::new(SETPRIV).exists() {
        let mut command = Command::new(SETPRIV);
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.env_clear().env("RUST_BACKTRACE", "1");
    for kept in ["PATH", "HOME"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command
}

/// Runs a command to its end. `failed` says what it means if it does not succeed.
///
/// # Errors
/// Returns an error, with the command's own, if it does not succeed.
pub fn succeed(command: &mut Command, failed: &str) -> Result<Output> {
    let output = command.output().with_context(|| failed.to_owned())?;
    ensure!(output.status.success(), "{failed}:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

impl Process {
    /// Starts `command`, with its standard error appended to the file `log`. Standard output goes there too unless
    /// `stdout` says otherwise.
    ///
    /// # Errors
    /// Returns an error if it cannot be started.
    pub fn spawn(name: &str, command: Command, log: &Path, stdout: Option<Stdio>) -> Result<Self> {
        Self::spawn_with(name, command, log, Stdio::null(), stdout)
    }

    /// Starts a process that reads orders from its standard input, and writes their results to its standard output:
    /// both are pipes. Its standard error goes to the file `log`.
    ///
    /// # Errors
    /// Returns an error if it cannot be started.
    pub fn spawn_piped(name: &str, command: Command, log: &Path) -> Result<Self> {
        Self::spawn_with(name, command, log, Stdio::piped(), Some(Stdio::piped()))
    }

    /// Starts a process with this as its standard input: a file, or a socket for it to serve.
    ///
    /// # Errors
    /// Returns an error if it cannot be started.
    pub fn spawn_fed(name: &str, command: Command, log: &Path, stdin: Stdio) -> Result<Self> {
        Self::spawn_with(name, command, log, stdin, None)
    }

    fn spawn_with(
        name: &str,
        mut command: Command,
        log: &Path,
        stdin: Stdio,
        stdout: Option<Stdio>,
    ) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        let stdout = match stdout {
            Some(stdout) => stdout,
            None => file.try_clone()?.into(),
        };
        let child = command
            .stdin(stdin)
            .stdout(stdout)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), ended: None })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard input if that is a pipe; only once.
    pub fn take_stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Returns its standard output if that is a pipe; only once.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns everything that it has written to its log.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Returns the exit status, if the process has ended.
    ///
    /// # Errors
    /// Returns an error if the kernel reports none.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Waits for it to end.
    pub async fn end(&mut self) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        eventually(&what, async || self.ended()?.context("it still runs")).await
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// Returns an error if it has already ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // Until we have waited for the process, its pid cannot be reused.
        if let Some(status) = self.ended()? {
            self.print_log();
            bail!("{} has ended already: {status}", self.name);
        }
        let pid = i32::try_from(self.pid())?;
        kill_process(Pid::from_raw(pid).context("pid 0")?, signal)?;
        Ok(())
    }

    /// Freezes it (SIGSTOP), and returns once the kernel reports it as stopped.
    ///
    /// # Errors
    /// Returns an error if it has already ended.
    pub async fn freeze(&mut self) -> Result<()> {
        self.signal(Signal::STOP)?;
        until_stopped(self.pid()).await;
        Ok(())
    }

    /// Lets it continue (SIGCONT).
    ///
    /// # Errors
    /// Returns an error if it has already ended.
    pub fn thaw(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Asks it to end (SIGTERM).
    ///
    /// # Errors
    /// Returns an error if it has already ended.
    pub fn terminate(&mut self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Kills it (SIGKILL), and returns once it has ended.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn kill(&mut self) -> Result<()> {
        if self.ended()?.is_none() {
            self.child.kill()?;
            self.ended = Some(self.child.wait()?);
        }
        Ok(())
    }

    /// Prints the end of the log, with a heading.
    pub fn print_log(&self) {
        let log = self.log();
        let from = log.len().saturating_sub(TAIL);
        let tail = String::from_utf8_lossy(&log.as_bytes()[from..]);
        #[expect(clippy::print_stderr, reason = "shown by the test runner when a test fails")]
        {
            eprintln!("--- log of {} (pid {}) ---\n{tail}", self.name, self.pid());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that returns an error does not panic, so the log is always printed in tests: the runner shows it only
        // for a failed test. Tests run in threads named after them.
        let in_test = std::thread::current().name().is_some_and(|name| name != "main");
        if in_test || std::thread::panicking() {
            self.print_log();
        }
        // Nothing more can be done about a process that cannot be killed.
        self.kill().unwrap_or_default();
    }
}

/// Waits until the kernel reports the process as stopped.
pub async fn until_stopped(pid: impl Display) {
    eventually("the process to stand still", async || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        ensure!(stat.contains(") T "), "{stat}");
        Ok(())
    })
    .await;
}

/// Returns the resident memory of a process in bytes.
///
/// # Errors
/// Returns an error if it has ended.
pub fn memory(pid: u32) -> Result<u64> {
    status_bytes(pid, "VmRSS")
}

/// Returns one of the sizes in the status of a process, in bytes.
///
/// # Errors
/// Returns an error if it has ended, or there is no size with that name.
pub fn status_bytes(pid: u32, name: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mut lines = status.lines();
    let size = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = size.and_then(|size| size.strip_suffix(" kB"));
    Ok(kib.with_context(|| format!("no {name}"))?.trim().parse::<u64>()? << 10)
}

/// Finds a program on the `PATH`.
#[must_use]
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(OsStr::new(program)))
        .find(|candidate| candidate.is_file())
}
