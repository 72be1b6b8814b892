//! A library in a separate process, which receives one command per line and answers each with its tag and JSON.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::process::Process;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::Library;

pub(super) struct Driver {
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    answers: HashMap<usize, Value>,
    events: Vec<Value>,
    next: usize,
    process: Process,
    _folder: TempDir,
}

/// A command whose answer has not been read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent(usize);

impl Driver {
    pub(super) fn start(library: &Library, socket: &Path) -> Result<Self> {
        Self::with_grace(library, socket, Duration::from_mins(1))
    }

    /// Starts a driver whose sessions have this grace.
    pub(super) fn with_grace(library: &Library, socket: &Path, grace: Duration) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = (library.command)()?;
        command.env("GRACE_MS", grace.as_millis().to_string());
        command.env("LOCKSCOPE_SOCKET", socket).env("LOCKSCOPE_NAME", "billing ü\n7");
        let log = folder.path().join("driver.log");
        let mut process = Process::spawn_piped("the library's driver", command, &log)?;
        let stdin = ChildStdin::from_std(process.take_stdin().context("piped")?)?;
        let stdout = ChildStdout::from_std(process.take_stdout().context("piped")?)?;
        let lines = BufReader::new(stdout).lines();
        let (answers, events) = (HashMap::new(), Vec::new());
        Ok(Self { stdin, lines, answers, events, next: 0, process, _folder: folder })
    }

    pub(super) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts a command in a task, which runs its commands in order.
    pub(super) async fn send(&mut self, task: &str, command: &str) -> Result<Sent> {
        self.next += 1;
        self.stdin.write_all(format!("{} {task} {command}\n", self.next).as_bytes()).await?;
        Ok(Sent(self.next))
    }

    pub(super) async fn answer(&mut self, sent: Sent) -> Result<Value> {
        loop {
            if let Some(answer) = self.answers.remove(&sent.0) {
                return Ok(answer);
            }
            self.read_line().await?;
        }
    }

    /// Runs a command in the task `main` and returns its answer, success or error.
    pub(super) async fn call(&mut self, command: &str) -> Result<Value> {
        self.call_in("main", command).await
    }

    pub(super) async fn call_in(&mut self, task: &str, command: &str) -> Result<Value> {
        let sent = self.send(task, command).await?;
        self.answer(sent).await.with_context(|| format!("no answer to `{command}`"))
    }

    /// Runs a command in the task `main`, which must succeed.
    pub(super) async fn ok(&mut self, command: &str) -> Result<Value> {
        let answer = self.call(command).await?;
        ensure!(answer.get("error").is_none(), "`{command}` failed: {answer}");
        Ok(answer)
    }

    /// Runs a command in the task `main`, which must fail with this error.
    pub(super) async fn fails(&mut self, command: &str, error: &str) -> Result<()> {
        let answer = self.call(command).await?;
        ensure!(answer["error"] == error, "`{command}` should fail with {error}: {answer}");
        Ok(())
    }

    pub(super) async fn cancel(&mut self, sent: Sent) -> Result<()> {
        self.call_in("control", &format!("cancel {}", sent.0)).await.map(drop)
    }

    /// Sends a cancellation of a command, without waiting until the driver has read it.
    pub(super) async fn cancel_soon(&mut self, sent: Sent) -> Result<()> {
        self.send("control", &format!("cancel {}", sent.0)).await.map(drop)
    }

    /// Returns whether a command had been answered when the last answer was read.
    pub(super) fn has_answered(&self, sent: Sent) -> bool {
        self.answers.contains_key(&sent.0)
    }

    /// Waits for the event with this key and handle.
    pub(super) async fn event(&mut self, key: &str, handle: &str) -> Result<Value> {
        loop {
            if let Some(at) = self.events.iter().position(|event| event[key] == handle) {
                return Ok(self.events.remove(at));
            }
            self.read_line().await.with_context(|| format!("no event `{key}` of {handle}"))?;
        }
    }

    /// Returns whether such an event had arrived when the last answer was read.
    pub(super) fn has_event(&self, key: &str, handle: &str) -> bool {
        self.events.iter().any(|event| event[key] == handle)
    }

    async fn read_line(&mut self) -> Result<()> {
        let line = timeout(harness::PATIENCE, self.lines.next_line()).await;
        let line = line.with_context(|| format!("no line: {}", self.process.log()))??;
        let line = line.with_context(|| format!("the driver ended: {}", self.process.log()))?;
        let (tag, json) = line.split_once(' ').context("a tag")?;
        let value = serde_json::from_str(json).with_context(|| line.clone())?;
        if tag == "event" {
            self.events.push(value);
        } else {
            ensure!(self.answers.insert(tag.parse()?, value).is_none(), "answered twice: {line}");
        }
        Ok(())
    }
}
