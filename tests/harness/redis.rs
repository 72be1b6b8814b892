//! A real redis-server of one's own.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{self, Process};
use crate::{Client, eventually};

/// A running redis-server: own folder, own port, own Unix socket, nothing saved to disk. Killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    program: PathBuf,
    options: Vec<(String, String)>,
    port: u16,
    // Removed after the process has ended: fields are dropped in order.
    folder: TempDir,
}

/// A port that nobody uses at the moment, outside the range from which the kernel takes those of outgoing connections.
#[must_use]
pub fn random_port() -> u16 {
    loop {
        let random = RandomState::new().build_hasher().finish() % 20_000;
        let port = 10_000 + u16::try_from(random).unwrap_or(0);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

impl RedisServer {
    /// Starts one with Redis' own settings.
    ///
    /// # Errors
    /// Returns an error if there is no redis-server, or it does not start.
    pub async fn start() -> Result<Self> {
        Self::with(&[]).await
    }

    /// Starts one with further settings, as in redis.conf.
    ///
    /// # Errors
    /// Returns an error if there is no redis-server, or it does not start.
    pub async fn with(options: &[(&str, &str)]) -> Result<Self> {
        let program = process::on_path("redis-server")
            .context("there is no redis-server on the PATH: install the package redis-server")?;
        Self::of(program, options).await
    }

    /// Starts an old one: Redis 6.2, which comes with the clients' Python packages.
    ///
    /// # Errors
    /// Returns an error if it is not installed, or does not start.
    pub async fn old(options: &[(&str, &str)]) -> Result<Self> {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        let program = clients.join(".venv/bin/redis-server");
        ensure!(program.exists(), "no {}: `make deps` installs it", program.display());
        Self::of(program, options).await
    }

    async fn of(program: PathBuf, options: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockscope-redis-").tempdir()?;
        let options: Vec<_> =
            options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        for _ in 0..20 {
            let port = random_port();
            if let Some(process) = spawn(&program, folder.path(), port, &options).await? {
                return Ok(Self { process, program, options, port, folder });
            }
        }
        bail!("no port is free for redis-server")
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address for programs.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process, to be frozen, thawed or killed.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// A new connection to it.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn client(&self) -> Result<Client> {
        Client::unix(&self.socket()).await
    }

    /// Kills it if it still runs and starts it again on the same port, empty.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        let (program, path, options) = (&self.program, self.folder.path(), &self.options);
        // The old one's port may need a moment until the kernel gives it free.
        self.process = eventually("redis-server on its old port", async || {
            spawn(program, path, self.port, options).await?.context("the port is in use")
        })
        .await;
        Ok(())
    }
}

/// The number of keys, those aside in which agents tell of themselves.
///
/// # Errors
/// Returns an error if the server does not answer.
pub async fn locks(client: &mut Client) -> Result<usize> {
    let keys = client.call("KEYS *").await?.ok()?;
    let locks = keys.items()?.iter().filter(|key| !key.text().starts_with("lockscope:"));
    Ok(locks.count())
}

/// Starts redis-server and waits until it answers; nothing when the port was taken.
async fn spawn(
    program: &Path,
    folder: &Path,
    port: u16,
    options: &[(String, String)],
) -> Result<Option<Process>> {
    let socket = folder.join("redis.sock");
    let log = folder.join("redis.log");
    let mut command = process::command(program);
    let port = port.to_string();
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder).arg("--unixsocket").arg(&socket);
    for (key, value) in options {
        command.arg(format!("--{key}")).args(value.split(' '));
    }
    let mut process = Process::spawn("redis-server", command, &log, None)?;
    let pid = process.pid();
    let up = eventually("redis-server to answer", async || {
        if process.ended()?.is_some() {
            return Ok(false);
        }
        // The file of a server killed before is still there; only an answer counts.
        let mut client = Client::unix(&socket).await?;
        let info = client.call("INFO server").await?.text();
        // With a password it does not tell; then an answer is enough.
        let ours = info.contains(&format!("process_id:{pid}\r\n")) || info.starts_with("-NOAUTH");
        ensure!(ours, "another server answers: {info}");
        Ok(true)
    })
    .await;
    if up {
        return Ok(Some(process));
    }
    let log = process.log();
    ensure!(log.contains("Address already in use"), "redis-server ended at once:\n{log}");
    std::fs::remove_file(folder.join("redis.log"))?;
    Ok(None)
}
