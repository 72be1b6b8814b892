//! The socket itself: left behind, in use, its mode; and wrong settings.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Result, ensure};
use harness::process::Process;
use harness::{agent, eventually};

use super::{Bench, holder, lock};

/// Makes the kernel choose a free port for HTTP.
const ANY_PORT: u16 = 0;

#[tokio::test]
async fn the_socket_has_its_mode_from_the_start() -> Result<()> {
    let bench = Bench::new().await?;
    let metadata = std::fs::metadata(bench.agent.socket())?;
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
    let bench = Bench::with(&["--socket-mode", "0600"]).await?;
    let mode = std::fs::metadata(bench.agent.socket())?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Ok(())
}

#[tokio::test]
async fn a_stale_socket_is_replaced() -> Result<()> {
    let mut bench = Bench::with(&["--lease", "2s"]).await?;
    let mut worker = bench.session().await?;
    let before = holder(&lock(&mut worker, "LOCK a").await?)?;
    bench.agent.process().kill()?;
    assert!(bench.agent.socket().exists());
    bench.agent.restart().await?;
    let mut worker = bench.session().await?;
    // The lock of the killed agent ends with its lease; the new agent does not treat it as its own.
    let after = holder(&lock(&mut worker, "LOCK a").await?)?;
    assert_ne!(before, after);
    Ok(())
}

#[tokio::test]
async fn a_socket_that_is_removed_is_created_again() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    std::fs::remove_file(bench.agent.socket())?;
    let mut other = eventually("a new socket", async || bench.session().await).await;
    assert_eq!(other.call("LOCK a NOWAIT").await?, harness::Reply::Null);
    assert_eq!(worker.call("UNLOCK a").await?, harness::Reply::Int(0), "no session has ended");
    Ok(())
}

/// Puts another socket in the place of the agent's, in one step: the agent creates a missing one again.
fn replace(path: &Path) -> Result<UnixListener> {
    let new = path.with_extension("new");
    let other = UnixListener::bind(&new)?;
    std::fs::rename(&new, path)?;
    Ok(other)
}

#[tokio::test]
async fn a_socket_that_another_process_replaces_is_reported_and_left_to_it_while_it_lives()
-> Result<()> {
    let mut bench = Bench::new().await?;
    let path = bench.agent.socket().to_owned();
    let other = replace(&path)?;
    eventually("the agent to report it", async || {
        let log = bench.agent.process().log();
        ensure!(log.contains("no worker can connect") && log.contains("is in use"), "{log}");
        Ok(())
    })
    .await;
    assert!(other.accept().is_ok(), "the agent has looked whether a process listens");
    drop(other);
    let mut worker = eventually("its own socket", async || bench.session().await).await;
    lock(&mut worker, "LOCK a").await?;
    // The file of a process that replaces it again stays when the agent ends.
    let other = replace(&path)?;
    bench.agent.process().terminate()?;
    assert!(bench.agent.process().end().await.success());
    UnixStream::connect(&path)?;
    drop(other);
    Ok(())
}

#[tokio::test]
async fn a_socket_in_use_is_refused_by_name() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    let folder = bench.agent.folder().to_owned();
    let command = agent::command(&folder, &bench.redis.url(), ANY_PORT, &[])?;
    let mut second = Process::spawn("a second agent", command, &folder.join("second.log"), None)?;
    let status = second.end().await;
    assert!(!status.success());
    assert!(second.log().contains("agent.sock"), "{}", second.log());
    assert_eq!(worker.call("UNLOCK a").await?, harness::Reply::Int(0), "the first one lives on");
    assert!(bench.agent.socket().exists());
    lock(&mut bench.session().await?, "LOCK a").await?;
    Ok(())
}

#[tokio::test]
async fn a_second_agent_on_the_same_state_is_another_client() -> Result<()> {
    let bench = Bench::new().await?;
    let state = bench.agent.folder().join("state");
    let other = tempfile::tempdir()?;
    std::os::unix::fs::symlink(&state, other.path().join("state"))?;
    let command = agent::command(other.path(), &bench.redis.url(), ANY_PORT, &[])?;
    let _second = Process::spawn("a second agent", command, &other.path().join("log"), None)?;
    let socket = other.path().join("agent.sock");
    let mut there =
        eventually("the second agent", async || harness::Client::unix(&socket).await).await;
    let mut here = bench.session().await?;
    let one = holder(&lock(&mut here, "LOCK a").await?)?;
    let two = holder(&lock(&mut there, "LOCK b").await?)?;
    assert_ne!(one.split(':').next(), two.split(':').next());
    Ok(())
}

#[tokio::test]
async fn wrong_settings_are_reported_before_anything_is_opened() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("agent.toml");
    std::fs::write(&file, "lease = \"30s\"\nleese = \"30s\"\n")?;
    let file = file.display().to_string();
    let wrong: [(&[&str], &str, i32); 6] = [
        (&["--lease", "soon"], "soon", 64),
        (&["--lease", "1ms"], "lease", 64),
        (&["--lost-margin=-5s"], "lost-margin", 64),
        (&["--config", &file], "leese", 64),
        (&["--config", "/nowhere/agent.toml"], "/nowhere/agent.toml", 66),
        (&["--policy", "/nowhere/policy.toml"], "/nowhere/policy.toml", 66),
    ];
    for (flags, named, expected) in wrong {
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let log = folder.path().join("log");
        let command = agent::command(folder.path(), "redis://127.0.0.1:1", ANY_PORT, &flags)?;
        let mut process = Process::spawn("an agent", command, &log, None)?;
        let status = process.end().await;
        assert_eq!(status.code(), Some(expected), "{flags:?}: {status}");
        assert!(process.log().contains(named), "{flags:?}: {}", process.log());
        assert!(!folder.path().join("agent.sock").exists());
        std::fs::remove_file(&log)?;
    }
    Ok(())
}
