//! Real client programs and libraries on the agent's socket, and the workers of the README as they stand there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::process::{self, Process, on_path};
use harness::{Agent, Client, RedisServer, eventually};

const INSTALL: &str = "`make deps` installs what the tests need";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

fn python() -> Result<Command> {
    let python = folder().join(".venv/bin/python");
    ensure!(python.exists(), "no {}: {INSTALL}", python.display());
    Ok(process::command(&python))
}

fn node() -> Result<Command> {
    let modules = folder().join("node_modules");
    ensure!(modules.exists(), "no {}: {INSTALL}", modules.display());
    let node = on_path("node").with_context(|| format!("no node: {INSTALL}"))?;
    let mut command = process::command(&node);
    command.env("NODE_PATH", modules);
    Ok(command)
}

fn redis_cli() -> Result<Command> {
    let program = on_path("redis-cli").with_context(|| format!("no redis-cli: {INSTALL}"))?;
    Ok(process::command(&program))
}

struct Bench {
    agent: Agent,
    redis: RedisServer,
}

impl Bench {
    async fn new() -> Result<Self> {
        let redis = RedisServer::start().await?;
        Ok(Self { agent: Agent::start(&redis).await?, redis })
    }

    /// Runs a program to its end while we hold `name`, which it has to wait for, and gives what it printed.
    async fn run_against_a_holder(&self, command: Command, name: &str) -> Result<String> {
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
            let left = direct.call("KEYS *").await?.text();
            ensure!(left == "[]", "{left}");
            Ok(())
        })
        .await;
        Ok(process.log())
    }
}

#[tokio::test]
async fn redis_py() -> Result<()> {
    let bench = Bench::new().await?;
    for protocol in ["2", "3"] {
        let mut command = python()?;
        command.arg(folder().join("tour.py")).arg(bench.agent.socket()).arg(protocol);
        let printed = bench.run_against_a_holder(command, "tour:busy").await?;
        assert_eq!(printed, "done\n");
    }
    Ok(())
}

#[tokio::test]
async fn node_libraries() -> Result<()> {
    let bench = Bench::new().await?;
    for library in ["ioredis", "node-redis"] {
        let mut command = node()?;
        command.arg(folder().join("tour.js")).arg(bench.agent.socket()).arg(library);
        let printed = bench.run_against_a_holder(command, "tour:busy").await?;
        assert_eq!(printed, "done\n", "{library}");
    }
    Ok(())
}

#[tokio::test]
async fn redis_cli_once_and_piped() -> Result<()> {
    let bench = Bench::new().await?;
    for flag in ["-2", "-3"] {
        let mut command = redis_cli()?;
        command.arg(flag).arg("-s").arg(bench.agent.socket());
        command.args(["LOCK", "a", "WAIT", "60000"]);
        let printed = bench.run_against_a_holder(command, "a").await?;
        assert!(printed.contains("valid_ms"), "{printed}");
    }
    let typed = "printf 'LOCK a\\nLOCK a\\nHOLDS\\nUNLOCK a\\nUNLOCK a\\nUNLOCK a\\n'";
    let mut shell = process::command(Path::new("/bin/sh"));
    let socket = bench.agent.socket().display().to_string();
    shell.args(["-c", &format!("{typed} | redis-cli -s {socket}")]);
    let folder = tempfile::tempdir()?;
    let mut process = Process::spawn("redis-cli", shell, &folder.path().join("log"), None)?;
    process.end().await;
    let printed = process.log();
    assert!(printed.contains("NOTHELD `a`"), "{printed}");
    Ok(())
}

#[tokio::test]
async fn netcat_half_closed() -> Result<()> {
    let bench = Bench::new().await?;
    on_path("nc").with_context(|| format!("no nc: {INSTALL}"))?;
    let mut shell = process::command(Path::new("/bin/sh"));
    let socket = bench.agent.socket().display().to_string();
    shell.args(["-c", &format!("printf 'LOCK a\\r\\nPING\\r\\n' | nc -U -N {socket}")]);
    let printed = bench.run_against_a_holder(shell, "a").await?;
    assert!(printed.starts_with("*14\r\n") && printed.ends_with("+PONG\r\n"), "{printed}");
    Ok(())
}

/// The README's block of code in this language, with the socket put in.
fn readme(language: &str, socket: &Path) -> Result<String> {
    let readme = std::fs::read_to_string(folder().join("../../README.md"))?;
    let (_, rest) = readme
        .split_once(&format!("```{language}\n"))
        .with_context(|| format!("no {language} in the README"))?;
    let (code, _) = rest.split_once("```").context("a block ends")?;
    let socket_there = "/run/lockscope/agent.sock";
    ensure!(code.contains(socket_there), "it does not name the socket");
    Ok(code.replace(socket_there, &socket.display().to_string()))
}

#[tokio::test]
async fn the_readmes_workers() -> Result<()> {
    let bench = Bench::new().await?;
    let place = tempfile::tempdir()?;
    let write = |file: &str, language: &str| -> Result<PathBuf> {
        let path = place.path().join(file);
        std::fs::write(&path, readme(language, &bench.agent.socket())?)?;
        Ok(path)
    };
    let mut commands = Vec::new();
    let mut command = python()?;
    command.arg(write("worker.py", "python")?);
    commands.push(command);
    let mut command = node()?;
    command.arg(write("worker.js", "javascript")?);
    commands.push(command);
    let mut command = process::command(Path::new("/bin/bash"));
    command.arg(write("worker.sh", "bash")?);
    commands.push(command);
    // Compilers of these two are not installed for the tests' sake.
    if let Some(java) = on_path("java") {
        let mut command = process::command(&java);
        command.arg(write("Worker.java", "java")?);
        commands.push(command);
    } else {
        skipped("Java");
    }
    if let Some(go) = on_path("go") {
        for file in ["go.mod", "go.sum"] {
            std::fs::copy(folder().join("go").join(file), place.path().join(file))?;
        }
        write("main.go", "go")?;
        let mut command = process::command(&go);
        command.arg("run").arg(".").current_dir(place.path());
        commands.push(command);
    } else {
        skipped("Go");
    }
    for command in commands {
        let shown = format!("{command:?}");
        let printed = bench.run_against_a_holder(command, "orders:42").await;
        let printed = printed.with_context(|| shown.clone())?;
        assert!(printed.contains("working on orders:42\n"), "{shown}: {printed}");
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "a test that was not run must be seen")]
fn skipped(language: &str) {
    eprintln!("SKIPPED: the README's worker in {language}, there is no compiler for it here");
}

/// A library that reconnects behind a worker's back is told so by `IN`, whatever it re-sends.
#[tokio::test]
async fn a_client_that_reconnected_is_told() -> Result<()> {
    let bench = Bench::new().await?;
    let mut before = bench.agent.client().await?;
    let id = before.call("SESSION").await?.ok()?.field("id")?.text();
    before.call(&format!("LOCK a IN {id}")).await?.ok()?;
    drop(before);
    let mut after: Client = bench.agent.client().await?;
    let refused = after.call(&format!("LOCK b IN {id}")).await?;
    assert!(refused.is_error("SESSION"), "{refused}");
    Ok(())
}
