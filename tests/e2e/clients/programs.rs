//! The workers of the README and of docs/howto/clients.md, run as they stand there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::process::{self, Process};
use harness::{Agent, RedisServer, eventually};

use super::libraries::{folder, go, java, node, python};

pub(super) struct Bench {
    pub(super) agent: Agent,
    redis: RedisServer,
}

impl Bench {
    pub(super) async fn new() -> Result<Self> {
        let redis = RedisServer::start().await?;
        Ok(Self { agent: Agent::start(&redis).await?, redis })
    }

    /// Runs a program to its end while we hold `name`, which it has to wait for, and gives what it printed.
    pub(super) async fn run_against_a_holder(
        &self,
        command: Command,
        name: &str,
    ) -> Result<String> {
        let mut holder = self.agent.client().await?;
        holder.call(&format!("LOCK {name}")).await?.ok()?;
        let folder = tempfile::tempdir()?;
        let mut process = Process::spawn("client", command, &folder.path().join("log"), None)?;
        eventually("it to wait for the lock", async || {
            ensure!(process.ended()?.is_none(), "it has ended: {}", process.log());
            let waits =
                holder.call(&format!("LOCKS MATCH {name}")).await?.text().contains("waiting");
            ensure!(waits, "it does not");
            Ok(())
        })
        .await;
        holder.call(&format!("UNLOCK {name}")).await?.ok()?;
        let status = process.end().await;
        ensure!(status.success(), "{status}: {}", process.log());
        let mut direct = self.redis.client().await?;
        eventually("nothing to be left in Redis", async || {
            let left = harness::redis::locks(&mut direct).await?;
            ensure!(left == 0, "{left} keys");
            Ok(())
        })
        .await;
        Ok(process.log())
    }
}

/// A document's block of code in this language under this heading (any, where it is empty), with the socket put in.
fn block(document: &str, heading: &str, language: &str, socket: &Path) -> Result<String> {
    let text = std::fs::read_to_string(folder().join("../..").join(document))?;
    let (_, section) =
        text.split_once(heading).with_context(|| format!("no `{heading}` in {document}"))?;
    let (_, rest) = section
        .split_once(&format!("```{language}\n"))
        .with_context(|| format!("no {language} in {document} under `{heading}`"))?;
    let (code, _) = rest.split_once("```").context("a block ends")?;
    let socket_there = "/run/lockscope/agent.sock";
    ensure!(code.contains(socket_there), "it does not name the socket: {code}");
    Ok(code.replace(socket_there, &socket.display().to_string()))
}

/// A folder in which a program of a document is made ready to run.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    /// Returns the command that runs a program in this language.
    fn command(&self, language: &str, code: &str) -> Result<Command> {
        let (mut command, file) = match language {
            "python" => (python()?, "worker.py"),
            "javascript" => (node()?, "worker.js"),
            "bash" => (process::command(Path::new("/bin/bash")), "worker.sh"),
            "java" => (java()?, "Worker.java"),
            "go" => {
                for file in ["go.mod", "go.sum"] {
                    std::fs::copy(folder().join("go").join(file), self.0.path().join(file))?;
                }
                std::fs::write(self.0.path().join("main.go"), code)?;
                // Built before anybody waits for it: with a cold cache that takes a while.
                let mut build = go()?;
                build.args(["build", "-o", "worker", "main.go"]).current_dir(self.0.path());
                ensure!(build.status()?.success(), "a program in Go cannot be built");
                return Ok(process::command(&self.0.path().join("worker")));
            }
            other => anyhow::bail!("nothing runs {other} here"),
        };
        let path: PathBuf = self.0.path().join(file);
        std::fs::write(&path, code)?;
        command.arg(path);
        Ok(command)
    }
}

/// Runs a program of a document, which waits for `orders:42` and works under it.
async fn works(document: &str, heading: &str, language: &str) -> Result<()> {
    let bench = Bench::new().await?;
    let place = Place::new()?;
    let code = block(document, heading, language, &bench.agent.socket())?;
    let command = place.command(language, &code)?;
    let printed = bench.run_against_a_holder(command, "orders:42").await;
    let printed = printed.with_context(|| format!("{document} {heading} {language}"))?;
    ensure!(printed.contains("working on orders:42\n"), "{document} {heading}: {printed}");
    Ok(())
}

#[tokio::test]
async fn the_readmes_workers() -> Result<()> {
    for language in ["python", "javascript", "bash", "java", "go"] {
        works("README.md", "", language).await?;
    }
    Ok(())
}

/// The programs of docs/howto/clients.md, and the language of each.
const PROGRAMS: [(&str, &str); 7] = [
    ("redis-py", "python"),
    ("redis-py, asyncio", "python"),
    ("ioredis", "javascript"),
    ("node-redis", "javascript"),
    ("go-redis", "go"),
    ("Lettuce", "java"),
    ("Jedis", "java"),
];

#[tokio::test]
async fn the_programs_of_the_page_on_libraries() -> Result<()> {
    for (library, language) in PROGRAMS {
        works("docs/howto/clients.md", &format!("\n## {library}\n"), language).await?;
    }
    let text = std::fs::read_to_string(folder().join("../../docs/howto/clients.md"))?;
    let blocks = text.lines().filter(|line| line.starts_with("```") && line.len() > 3).count();
    ensure!(blocks == PROGRAMS.len(), "{blocks} programs are there, {} were run", PROGRAMS.len());
    Ok(())
}
