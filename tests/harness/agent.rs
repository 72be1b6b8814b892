//! A running lockscope-agent.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{self, Process};
use crate::redis::{RedisServer, random_port};
use crate::{Client, RedisCluster, eventually, http, programs};

/// A running agent with its own folder for socket and state, and its own HTTP port. Killed when dropped.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    redis_url: String,
    flags: Vec<String>,
    environment: Environment,
    http: u16,
    folder: TempDir,
}

/// Variables in addition to those of every process.
type Environment = Vec<(String, String)>;

/// Returns the command line of an agent that keeps its socket and state in `folder`.
///
/// # Errors
/// Returns an error if the program cannot be built.
pub fn command(folder: &Path, redis_url: &str, http: u16, flags: &[String]) -> Result<Command> {
    let mut command = process::command(&programs::path("lockscope-agent")?);
    command.args(["--redis-url", redis_url, "--http", &format!("127.0.0.1:{http}")]);
    command.arg("--socket").arg(folder.join("agent.sock"));
    command.arg("--state-dir").arg(folder.join("state")).args(flags);
    Ok(command)
}

impl Agent {
    /// Starts an agent with default settings.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn start(redis: &RedisServer) -> Result<Self> {
        Self::with(redis, &[]).await
    }

    /// Starts an agent with further flags.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn with(redis: &RedisServer, flags: &[&str]) -> Result<Self> {
        Self::in_environment(redis, flags, &[]).await
    }

    /// Starts an agent with further flags and variables.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn in_environment(
        redis: &RedisServer,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        Self::ready(&redis.url(), flags, environment).await
    }

    /// Starts an agent on a cluster, with further flags.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn in_cluster(cluster: &RedisCluster, flags: &[&str]) -> Result<Self> {
        Self::ready(&cluster.url(), flags, &[]).await
    }

    async fn ready(url: &str, flags: &[&str], environment: &[(&str, &str)]) -> Result<Self> {
        let agent = Self::spawned(url, flags, environment).await?;
        eventually("the agent to reach Redis", async || {
            let ready = http::get(agent.http, "/readyz").await?;
            ensure!(ready.status == 200, "{}", ready.body);
            Ok(())
        })
        .await;
        Ok(agent)
    }

    /// Starts an agent for a Redis at this address, which need not exist, and waits only for its socket.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn at(redis_url: &str, flags: &[&str]) -> Result<Self> {
        Self::spawned(redis_url, flags, &[]).await
    }

    async fn spawned(
        redis_url: &str,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment: Environment = environment.iter().map(owned).collect();
        let folder = tempfile::Builder::new().prefix("lockscope-agent-").tempdir()?;
        std::fs::create_dir(folder.path().join("state"))?;
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        for _ in 0..20 {
            let http = random_port();
            if let Some(process) =
                spawn(folder.path(), redis_url, http, &flags, &environment).await?
            {
                let redis_url = redis_url.to_owned();
                return Ok(Self { process, redis_url, flags, environment, http, folder });
            }
        }
        bail!("no port is free for the agent")
    }

    /// Restarts the agent in the same folder, and kills it first if it still runs.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        let (path, url) = (self.folder.path(), &self.redis_url);
        self.process = eventually("the agent on its old port", async || {
            let started = spawn(path, url, self.http, &self.flags, &self.environment).await?;
            started.context("the port is in use")
        })
        .await;
        Ok(())
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns its HTTP port on 127.0.0.1.
    #[must_use]
    pub fn http(&self) -> u16 {
        self.http
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the process, to freeze, terminate or kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Opens a new session.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn client(&self) -> Result<Client> {
        Client::unix(&self.socket()).await
    }

    /// Opens a new session with RESP3.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn client3(&self) -> Result<Client> {
        let mut client = self.client().await?;
        client.call("HELLO 3").await?.ok()?;
        Ok(client)
    }

    /// Connects with RESP3, and requests events as pushes.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn client_with_pushes(&self) -> Result<Client> {
        let mut client = self.client3().await?;
        client.call("SESSION PUSH on").await?.ok()?;
        Ok(client)
    }

    /// Returns its current metrics.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub async fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics(http::get(self.http, "/metrics").await?.body))
    }
}

/// Metrics in Prometheus's text format.
#[derive(Debug, Clone)]
pub struct Metrics(pub String);

impl Metrics {
    /// Returns the sum of a metric's series with all these labels; zero if there are none.
    #[must_use]
    pub fn sum(&self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |series: &str| {
            let found = series.strip_prefix(metric).unwrap_or("-");
            (found.is_empty() || found.starts_with('{'))
                && labels.iter().all(|(name, value)| found.contains(&format!("{name}=\"{value}\"")))
        };
        let lines = self.0.lines().filter(|line| !line.starts_with('#'));
        let series = lines.filter_map(|line| line.rsplit_once(' '));
        series.filter(|(name, _)| carries(name)).filter_map(|(_, v)| v.parse::<f64>().ok()).sum()
    }
}

/// Starts an agent and waits for its socket; returns `None` if the port was taken.
async fn spawn(
    folder: &Path,
    redis_url: &str,
    http: u16,
    flags: &[String],
    environment: &Environment,
) -> Result<Option<Process>> {
    let log = folder.join("agent.log");
    let mut command = command(folder, redis_url, http, flags)?;
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let mut process = Process::spawn("lockscope-agent", command, &log, None)?;
    let socket = folder.join("agent.sock");
    let up = eventually("the agent to answer", async || {
        if process.ended()?.is_some() {
            return Ok(false);
        }
        Client::unix(&socket).await?.call("PING").await?.ok()?;
        Ok(true)
    })
    .await;
    if up {
        return Ok(Some(process));
    }
    let said = process.log();
    ensure!(said.contains("in use"), "the agent ended at once:\n{said}");
    std::fs::remove_file(&log)?;
    Ok(None)
}
