//! A client library in a separate process, which receives one command per line.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::Reply;
use harness::process::Process;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::libraries::{Library, Settings};

/// A running driver of one library. The library itself makes each connection that a command names, all with the same settings.
pub(super) struct Driver {
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// Replies that arrived before they were asked for.
    early: HashMap<String, Reply>,
    /// Pushes, as the connection's name and their words.
    pushes: Vec<(String, Vec<String>)>,
    next: usize,
    process: Process,
    _folder: TempDir,
}

/// A command that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent(String);

impl Driver {
    pub(super) fn start(library: &Library, socket: &Path, settings: Settings) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command: Command = (library.program)()?;
        command.arg(library.name).arg(socket).arg(settings.word());
        let mut process =
            Process::spawn_piped(library.name, command, &folder.path().join("driver.log"))?;
        let stdin = ChildStdin::from_std(process.take_stdin().context("piped")?)?;
        let stdout = ChildStdout::from_std(process.take_stdout().context("piped")?)?;
        let lines = BufReader::new(stdout).lines();
        let (early, pushes) = (HashMap::new(), Vec::new());
        Ok(Self { stdin, lines, early, pushes, next: 0, process, _folder: folder })
    }

    /// Sends a command on the connection of that name; several commands with ` ; ` between them are sent as one pipeline.
    pub(super) async fn send(&mut self, connection: &str, command: &str) -> Result<Sent> {
        self.next += 1;
        let tag = format!("{}", self.next);
        self.stdin.write_all(format!("{tag} {connection} {command}\n").as_bytes()).await?;
        Ok(Sent(tag))
    }

    /// Returns the outcome; exceptions of the library become error replies.
    pub(super) async fn reply(&mut self, sent: &Sent) -> Result<Reply> {
        loop {
            if let Some(reply) = self.early.remove(&sent.0) {
                return Ok(reply);
            }
            self.read_line().await?;
        }
    }

    /// Returns whether the reply has arrived.
    pub(super) fn has_come(&self, sent: &Sent) -> bool {
        self.early.contains_key(&sent.0)
    }

    /// Runs a command and returns its outcome.
    pub(super) async fn call(&mut self, connection: &str, command: &str) -> Result<Reply> {
        let sent = self.send(connection, command).await?;
        let reply = self.reply(&sent).await;
        reply.with_context(|| format!("no reply to `{command}` on {connection}"))
    }

    /// Returns the next push to this connection.
    pub(super) async fn push(&mut self, connection: &str) -> Result<Vec<String>> {
        loop {
            if let Some(at) = self.pushes.iter().position(|(to, _)| to == connection) {
                return Ok(self.pushes.remove(at).1);
            }
            self.read_line().await?;
        }
    }

    async fn read_line(&mut self) -> Result<()> {
        let line = timeout(harness::PATIENCE, self.lines.next_line()).await;
        let line = line.with_context(|| format!("it says nothing: {}", self.process.log()))??;
        let line = line.with_context(|| format!("it has ended: {}", self.process.log()))?;
        let (tag, rest) = line.split_once(' ').context("a tag")?;
        if tag == "push" {
            let (connection, json) = rest.split_once(' ').context("a connection")?;
            let words = reply(&serde_json::from_str(json)?)?;
            let words = words.items()?.iter().map(Reply::text).collect();
            self.pushes.push((connection.to_owned(), words));
            return Ok(());
        }
        let value = reply(&serde_json::from_str(rest).with_context(|| line.clone())?)?;
        ensure!(self.early.insert(tag.to_owned(), value).is_none(), "answered twice: {line}");
        Ok(())
    }
}

/// Converts the library's representation back into a reply.
fn reply(value: &Value) -> Result<Reply> {
    Ok(match value {
        Value::Null => Reply::Null,
        Value::Bool(yes) => Reply::Bool(*yes),
        Value::Number(number) => Reply::Int(number.as_i64().context("a whole number")?),
        Value::String(text) => Reply::Bulk(text.clone().into_bytes()),
        Value::Array(items) => Reply::Array(items.iter().map(reply).collect::<Result<_>>()?),
        Value::Object(fields) => match fields.get("error") {
            Some(error) => Reply::Error(error.as_str().context("a text")?.to_owned()),
            None => {
                let pairs = fields.iter().map(|(key, value)| {
                    anyhow::Ok((Reply::Bulk(key.clone().into_bytes()), reply(value)?))
                });
                Reply::Map(pairs.collect::<Result<_>>()?)
            }
        },
    })
}
