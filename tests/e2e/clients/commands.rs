//! Programs of the command line on the agent's socket.

use std::path::Path;

use anyhow::Result;
use harness::process::{self, Process};

use super::libraries::installed;
use super::programs::Servers;

#[tokio::test]
async fn redis_cli_once_and_piped() -> Result<()> {
    let servers = Servers::new().await?;
    for flag in ["-2", "-3"] {
        let mut command = process::command(&installed("redis-cli")?);
        command.arg(flag).arg("-s").arg(servers.agent.socket());
        command.args(["LOCK", "a", "WAIT", "60000"]);
        let printed = servers.run_against_a_holder(command, "a").await?;
        assert!(printed.contains("valid_ms"), "{printed}");
    }
    let typed = "printf 'LOCK a\\nLOCK a\\nHOLDS\\nUNLOCK a\\nUNLOCK a\\nUNLOCK a\\n'";
    let mut shell = process::command(Path::new("/bin/sh"));
    let socket = servers.agent.socket().display().to_string();
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
    let servers = Servers::new().await?;
    installed("nc")?;
    let mut shell = process::command(Path::new("/bin/sh"));
    let socket = servers.agent.socket().display().to_string();
    shell.args(["-c", &format!("printf 'LOCK a\\r\\nPING\\r\\n' | nc -U -N {socket}")]);
    let printed = servers.run_against_a_holder(shell, "a").await?;
    assert!(printed.starts_with("*16\r\n") && printed.ends_with("+PONG\r\n"), "{printed}");
    Ok(())
}
