//! A real, private redis-server.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{self, Process};
use crate::{Client, eventually};

/// A running redis-server with its own folder, port and Unix socket; it saves nothing to disk. Killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    program: PathBuf,
    options: Vec<(String, String)>,
    port: u16,
    // Removed after the process has ended: fields are dropped in order.
    folder: TempDir,
}

/// Returns a port that is free now, outside the range that the kernel uses for outgoing connections.
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
    /// Starts a server with Redis's default settings.
    ///
    /// # Errors
    /// Returns an error if there is no redis-server, or it does not start.
    pub async fn start() -> Result<Self> {
        Self::with(&[]).await
    }

    /// Starts a server with further settings, as in redis.conf. `FREE_PORT` in a value becomes the server's port.
    ///
    /// # Errors
    /// Returns an error if there is no redis-server, or it does not start.
    pub async fn with(options: &[(&str, &str)]) -> Result<Self> {
        let program = process::on_path("redis-server")
            .context("there is no redis-server on the PATH: install the package redis-server")?;
        Self::of(program, options).await
    }

    /// Starts an old server: Redis 6.2, which comes with the clients' Python packages.
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

    /// Returns its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its address for programs.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns its Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the process, to freeze, thaw or kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Opens a new connection to it.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn client(&self) -> Result<Client> {
        Client::unix(&self.socket()).await
    }

    /// Makes it a replica of another server, and waits until it has that server's data.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn follow(&self, master: &Self) -> Result<()> {
        let mut client = self.client().await?;
        client.call(&format!("REPLICAOF 127.0.0.1 {}", master.port())).await?.ok()?;
        until_synchronized(&mut client).await;
        Ok(())
    }

    /// Lets the server's attempt to save its data fail. It must have a `save` setting.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn fail_to_save(&self) -> Result<()> {
        std::fs::create_dir(self.folder.path().join("dump.rdb"))?;
        let mut client = self.client().await?;
        client.call("BGSAVE").await?.ok()?;
        eventually("the attempt to save to fail", async || {
            let info = client.call("INFO persistence").await?.text();
            ensure!(info.contains("rdb_last_bgsave_status:err"), "{info}");
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Restarts the server on the same port, empty, and kills it first if it still runs.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        let (program, path, options) = (&self.program, self.folder.path(), &self.options);
        // The kernel may need a moment to free the old port.
        self.process = eventually("redis-server on its old port", async || {
            spawn(program, path, self.port, options).await?.context("the port is in use")
        })
        .await;
        Ok(())
    }
}

/// Returns the number of keys, except those in which agents describe themselves.
///
/// # Errors
/// Returns an error if the server does not answer.
pub async fn locks(client: &mut Client) -> Result<usize> {
    let keys = client.call("KEYS *").await?.ok()?;
    let locks = keys.items()?.iter().filter(|key| !key.text().starts_with("lockscope:"));
    Ok(locks.count())
}

/// Waits until a replica has its master's data.
pub async fn until_synchronized(replica: &mut Client) {
    eventually("the replica to follow", async || {
        let info = replica.call("INFO replication").await?.text();
        ensure!(info.contains("master_link_status:up"), "{info}");
        Ok(())
    })
    .await;
}

/// Starts redis-server and waits until it answers; returns `None` if the port was taken.
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
        command.arg(format!("--{key}")).args(value.replace("FREE_PORT", &port).split(' '));
    }
    let mut process = Process::spawn("redis-server", command, &log, None)?;
    let pid = process.pid();
    let up = eventually("redis-server to answer", async || {
        if process.ended()?.is_some() {
            return Ok(false);
        }
        // The socket of a killed server may still exist; only an answer counts.
        let mut client = Client::unix(&socket).await?;
        let info = client.call("INFO server").await?.text();
        // A server with a password does not report its process id; any answer is then enough.
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
