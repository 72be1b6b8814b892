//! The contract of Redisson's lock interfaces, run in a JVM by Redisson, by the adaptor of `clients/java-redisson`, and by
//! both on the same names.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use harness::process::{self, Process};
use harness::{Agent, RedisServer, programs};

use super::bed::version;

/// The leases of the two agents, as `Side.java` has them.
const LEASE: &str = "30s";
const SHORT_LEASE: &str = "6s";

/// Runs the tests with the two clients of these kinds.
async fn holds_for(first: &str, second: &str) -> Result<()> {
    let version = version()?;
    if version.starts_with("3.") {
        return Ok(()); // The adaptor is built for the interfaces of Redisson 4.
    }
    static BUILT: OnceLock<Result<String, String>> = OnceLock::new();
    let class_path = programs::once(&BUILT, || build(&version))?;
    let redis = RedisServer::start().await?;
    let agent = Agent::with(&redis, &["--lease", LEASE]).await?;
    let short = Agent::with(&redis, &["--lease", SHORT_LEASE]).await?;
    let mut command = process::command(&process::on_path("java").context("no java")?);
    command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", &class_path]);
    command.args(["io.github.lockscope.redisson.Contract", first, second]);
    command.env("REDIS_URL", redis.url()).env("LOCKSCOPE_SOCKET", agent.socket());
    command.env("SHORT_LEASE_SOCKET", short.socket());
    let folder = tempfile::tempdir()?;
    let mut tests = Process::spawn("the contract", command, &folder.path().join("log"), None)?;
    let status = tests.end().await;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// Compiles the client, the adaptor and the tests, and returns the class path.
fn build(version: &str) -> Result<String> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bed = tests.join("redisson/target").join(version).join("classpath");
    let libraries = std::fs::read_to_string(bed).context("`make interop` fetches Redisson")?;
    let clients = tests.join("../clients");
    let adaptor = clients.join("java-redisson/src");
    let classes = Path::new(env!("CARGO_TARGET_TMPDIR")).join("redisson-contract");
    let mut javac = process::command(&process::on_path("javac").context("no javac")?);
    // Redisson's classes refer to annotations that are not on the class path.
    javac.args(["-Xlint:all,-processing,-classfile", "--release", "17", "-encoding", "UTF-8"]);
    javac.arg("-d").arg(&classes).arg("-cp").arg(libraries.trim()).arg("--source-path");
    let sources: [PathBuf; 3] =
        [clients.join("java/src/main/java"), adaptor.join("main/java"), adaptor.join("test/java")];
    javac.arg(std::env::join_paths(&sources)?);
    javac.arg(sources[2].join("io/github/lockscope/redisson/Contract.java"));
    process::succeed(&mut javac, "the contract cannot be compiled")?;
    Ok(format!("{}:{}", classes.display(), libraries.trim()))
}

#[tokio::test]
async fn redisson_alone_keeps_the_contract() -> Result<()> {
    holds_for("REDISSON", "REDISSON").await
}

#[tokio::test]
async fn the_agent_alone_keeps_the_contract() -> Result<()> {
    holds_for("AGENT", "AGENT").await
}

#[tokio::test]
async fn redisson_keeps_the_contract_next_to_the_agent() -> Result<()> {
    holds_for("REDISSON", "AGENT").await
}

#[tokio::test]
async fn the_agent_keeps_the_contract_next_to_redisson() -> Result<()> {
    holds_for("AGENT", "REDISSON").await
}
