//! A running lockscope-dashboard.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent::Metrics;
use crate::process::{self, Process};
use crate::redis::random_port;
use crate::{eventually, http, programs};

/// A running dashboard with its own port. Killed when dropped.
#[derive(Debug)]
pub struct Dashboard {
    process: Process,
    redis_url: String,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    port: u16,
    folder: TempDir,
}

/// Returns the command line of a dashboard that listens on this port of 127.0.0.1.
///
/// # Errors
/// Returns an error if the program cannot be built.
pub fn command(redis_url: &str, port: u16, flags: &[String]) -> Result<Command> {
    let mut command = process::command(&programs::path("lockscope-dashboard")?);
    command.args(["--redis-url", redis_url, "--listen", &format!("127.0.0.1:{port}")]);
    command.args(flags);
    Ok(command)
}

impl Dashboard {
    /// Starts a dashboard with further flags on any free port, and waits until it listens.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn start(redis_url: &str, flags: &[&str]) -> Result<Self> {
        Self::prefer(random_port(), redis_url, flags).await
    }

    /// Starts a dashboard with further flags and variables.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn in_environment(
        redis_url: &str,
        flags: &[&str],
        environment: &[(&str, String)],
    ) -> Result<Self> {
        Self::on(random_port(), redis_url, flags, environment).await
    }

    /// Starts a dashboard on this port or, if that is taken, on any free one.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn prefer(port: u16, redis_url: &str, flags: &[&str]) -> Result<Self> {
        Self::on(port, redis_url, flags, &[]).await
    }

    async fn on(
        port: u16,
        redis_url: &str,
        flags: &[&str],
        environment: &[(&str, String)],
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockscope-dashboard-").tempdir()?;
        let ports = std::iter::once(port).chain(std::iter::repeat_with(random_port).take(20));
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let environment: Vec<(String, String)> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        for port in ports {
            // Another dashboard on the port would answer instead.
            if TcpListener::bind(("127.0.0.1", port)).is_err() {
                continue;
            }
            if let Some(process) =
                spawn(folder.path(), redis_url, port, &flags, &environment).await?
            {
                let redis_url = redis_url.to_owned();
                return Ok(Self { process, redis_url, flags, environment, port, folder });
            }
        }
        bail!("no port is free for the dashboard")
    }

    /// Restarts the dashboard on the same port, and kills it first if it still runs.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        let (folder, url) = (self.folder.path(), &self.redis_url);
        self.process = eventually("the dashboard on its old port", async || {
            let started = spawn(folder, url, self.port, &self.flags, &self.environment).await?;
            started.context("the port is in use")
        })
        .await;
        Ok(())
    }

    /// Returns its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address of a page.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends a GET, and returns the JSON of the answer.
    ///
    /// # Errors
    /// Returns an error if the status is not 200 or the body is not JSON.
    pub async fn json(&self, path: &str) -> Result<Value> {
        let response = http::get(self.port, path).await?;
        ensure!(response.status == 200, "{path}: {} {}", response.status, response.body);
        response.json()
    }

    /// Releases a lock by force, as a program does: reads its state, once it is known, and sends that back. The target
    /// is `lock`, `holder:<id>` or `place:<id>`. Returns the outcome, also if nothing was done. Tries again while the
    /// connection for releases is not ready, which may follow a new master a little later than the others.
    ///
    /// # Errors
    /// Returns an error if the dashboard does not answer.
    pub async fn release(&self, name: &str, target: &str) -> Result<Value> {
        let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
        let path = format!("/api/v1/release?name={encoded}");
        let headers = [("Content-Type", "application/json")];
        eventually("the release to be sent", async || {
            let json = self.json(&path).await?;
            let targets = json["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
            ensure!(targets.iter().any(|known| known == target), "{json}");
            let wish =
                json!({"seen": json["seen"], "target": target, "reason": "a test", "name": name});
            let wish = wish.to_string();
            let done = http::request(self.port, "POST", &path, &headers, &wish).await;
            let done = done.and_then(|answer| answer.json());
            let outcome = done.as_ref().map(|done| &done["outcome"]);
            ensure!(!outcome.is_ok_and(|it| it == "unsent" || it == "limited"), "{done:?}");
            Ok(done)
        })
        .await
    }

    /// Returns its current metrics.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub async fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics(http::get(self.port, "/metrics").await?.body))
    }
}

/// Starts a dashboard and waits until it listens; returns `None` if the port was taken.
async fn spawn(
    folder: &Path,
    redis_url: &str,
    port: u16,
    flags: &[String],
    environment: &[(String, String)],
) -> Result<Option<Process>> {
    let log = folder.join("dashboard.log");
    let mut command = command(redis_url, port, flags)?;
    command.env("XDG_STATE_HOME", folder).env_remove("STATE_DIRECTORY");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let mut process = Process::spawn("lockscope-dashboard", command, &log, None)?;
    let up = eventually("the dashboard to answer", async || {
        if process.ended()?.is_some() {
            return Ok(false);
        }
        let health = http::get(port, "/healthz").await?;
        ensure!(health.status == 200, "{}", health.body);
        Ok(true)
    })
    .await;
    if up {
        return Ok(Some(process));
    }
    let said = process.log();
    ensure!(said.contains("in use"), "the dashboard ended at once:\n{said}");
    std::fs::remove_file(&log)?;
    Ok(None)
}
