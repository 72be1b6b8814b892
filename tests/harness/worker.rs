//! Workers in separate processes, which tests can kill.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::ChildStdout;
use tokio::time::timeout;

use crate::process::{self, Process};
use crate::{PATIENCE, programs};

/// A child process that connects to an agent, runs the commands that it was given, and keeps the connection.
#[derive(Debug)]
pub struct Worker {
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a worker that runs these commands one after another. Its log is in `folder`.
    ///
    /// # Errors
    /// Returns an error if it cannot be started.
    pub fn start(socket: &Path, folder: &Path, commands: &[&str]) -> Result<Self> {
        Self::with(socket, folder, &[], commands)
    }

    /// Starts a worker that also leaves a child process behind, which inherits the connection. That child's pid is the
    /// first line that it prints.
    ///
    /// # Errors
    /// Returns an error if it cannot be started.
    pub fn with_inheriting_child(socket: &Path, folder: &Path, commands: &[&str]) -> Result<Self> {
        Self::with(socket, folder, &["--heir"], commands)
    }

    /// Starts a worker that counts under a lock: it repeatedly appends the next integer to a list in the Redis at
    /// `resource`, and prints each integer that was certainly appended.
    ///
    /// # Errors
    /// Returns an error if it cannot be started.
    pub fn counter(
        socket: &Path,
        folder: &Path,
        resource: &Path,
        lock: &str,
        list: &str,
    ) -> Result<Self> {
        let mut command = process::command(&programs::demo()?);
        command.arg("counter").arg("--socket").arg(socket).arg("--resource").arg(resource);
        command.args(["--lock", lock, "--list", list]);
        Self::spawn(command, folder)
    }

    fn with(socket: &Path, folder: &Path, flags: &[&str], commands: &[&str]) -> Result<Self> {
        let mut command = process::command(&programs::demo()?);
        command.arg("worker").args(flags).arg("--socket").arg(socket).arg("--").args(commands);
        Self::spawn(command, folder)
    }

    fn spawn(command: Command, folder: &Path) -> Result<Self> {
        let log = folder.join("worker.log");
        let mut process = Process::spawn("worker", command, &log, Some(Stdio::piped()))?;
        let stdout = process.take_stdout().context("it was started with a pipe")?;
        let lines = BufReader::new(ChildStdout::from_std(stdout)?).lines();
        Ok(Self { process, lines })
    }

    /// Returns the next reply, as the worker printed it.
    ///
    /// # Errors
    /// Returns an error if it ends, or prints nothing within [`PATIENCE`].
    pub async fn line(&mut self) -> Result<String> {
        let line = timeout(PATIENCE, self.lines.next_line()).await;
        line.context("the worker says nothing")??.context("the worker has ended")
    }

    /// Kills the worker, and returns the printed lines that nobody has read.
    ///
    /// # Errors
    /// Returns an error if its output cannot be read.
    pub async fn last_lines(mut self) -> Result<Vec<String>> {
        self.process.kill()?;
        let mut lines = Vec::new();
        while let Some(line) = self.lines.next_line().await? {
            lines.push(line);
        }
        Ok(lines)
    }

    /// Returns the process, to freeze or kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
