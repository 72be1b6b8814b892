//! A real master with a replica, watched by real, private sentinels.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{self, Process};
use crate::redis::{random_port, until_synchronized};
use crate::{Client, RedisServer, Reply, eventually};

/// The sentinels' name for the master.
const NAME: &str = "mymaster";

/// The failure-detection time of sentinels that must not act, in milliseconds.
const CALM: u32 = 600_000;
/// The time after which a failover is given up and can be repeated, in milliseconds. Sentinels read the role of a server
/// every ten seconds: after two failovers in that time, one may take the new master for an old one and demote it.
const FAILOVER_TIMEOUT: u32 = 10_000;

/// A replica gets its copy at once; by default the master waits some seconds for further replicas.
const NODE: [(&str, &str); 1] = [("repl-diskless-sync-delay", "0")];

/// Two servers, the first of which is the master at the start, and the sentinels that watch them.
#[derive(Debug)]
pub struct Sentinels {
    nodes: Vec<RedisServer>,
    sentinels: Vec<SentinelServer>,
    tls: bool,
}

/// One sentinel. Killed when dropped.
#[derive(Debug)]
struct SentinelServer {
    process: Process,
    port: u16,
    /// The port through which programs reach it.
    public: u16,
    // Removed after the process has ended: fields are dropped in order.
    _folder: TempDir,
}

impl Sentinels {
    /// Starts a master, a replica and that many sentinels, and waits until all know one another.
    ///
    /// The sentinels never fail over by themselves during a test: on a busy machine a short timeout would make them
    /// fail over unasked. A test requests a failover with [`fail_over`](Self::fail_over).
    ///
    /// # Errors
    /// Returns an error if there is no redis-server, or one does not start.
    pub async fn start(count: usize) -> Result<Self> {
        let master = RedisServer::with(&NODE).await?;
        let following = format!("127.0.0.1 {}", master.port());
        let replica =
            RedisServer::with(&[NODE.as_slice(), &[("replicaof", &following)]].concat()).await?;
        let nodes = vec![master, replica];
        until_synchronized(&mut nodes[1].client().await?).await;
        Self::watch(nodes, count, None).await
    }

    /// Starts a master without a replica and one sentinel, both with TLS ports, which programs use; tests use plain
    /// ones.
    ///
    /// # Errors
    /// Returns an error if there is no redis-server with TLS, or one does not start.
    pub async fn with_tls(cert: &str, key: &str) -> Result<Self> {
        // The second port may be taken, too.
        for _ in 0..10 {
            let port = random_port();
            let number = port.to_string();
            let settings = [
                ("tls-port", number.as_str()),
                ("tls-cert-file", cert),
                ("tls-key-file", key),
                ("tls-ca-cert-file", cert),
                ("tls-auth-clients", "no"),
            ];
            if let Ok(master) = RedisServer::with(&settings).await {
                let tls = Tls { master: port, cert, key };
                return Self::watch(vec![master], 1, Some(tls)).await;
            }
        }
        bail!("redis-server with TLS does not start")
    }

    async fn watch(nodes: Vec<RedisServer>, count: usize, tls: Option<Tls<'_>>) -> Result<Self> {
        let master = tls.as_ref().map_or_else(|| nodes[0].port(), |tls| tls.master);
        let quorum = count / 2 + 1;
        let mut sentinels = Vec::new();
        for _ in 0..count {
            sentinels.push(SentinelServer::start(master, quorum, tls.as_ref()).await?);
        }
        let all = Self { nodes, sentinels, tls: tls.is_some() };
        let replicas = all.nodes.len() - 1;
        for place in 0..count {
            let mut client = all.sentinel(place).await?;
            eventually("the sentinels to know all", async || {
                let about = client.call(&format!("SENTINEL MASTER {NAME}")).await?.ok()?;
                let known = (field(&about, "num-slaves")?, field(&about, "num-other-sentinels")?);
                let wanted = (replicas.to_string(), (count - 1).to_string());
                ensure!(known == wanted, "{known:?}");
                let those = client.call(&format!("SENTINEL REPLICAS {NAME}")).await?.ok()?;
                for replica in those.items()? {
                    let link = field(replica, "master-link-status")?;
                    ensure!(link == "ok", "the replica's link: {link}");
                }
                Ok(())
            })
            .await;
        }
        Ok(all)
    }

    /// Returns the addresses of the sentinels for programs.
    #[must_use]
    pub fn hosts(&self) -> String {
        let hosts = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.public));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// Returns the master's address for programs: all sentinels and its name.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{}/{NAME}", self.hosts())
    }

    /// Returns the address of a server, as the sentinels report it.
    #[must_use]
    pub fn address(&self, place: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[place].port())
    }

    /// Returns a server: 0 is the first master, 1 the replica.
    pub fn node(&mut self, place: usize) -> &mut RedisServer {
        &mut self.nodes[place]
    }

    /// Opens a new connection to a server.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn client(&self, place: usize) -> Result<Client> {
        self.nodes[place].client().await
    }

    /// Opens a new connection to a sentinel.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached.
    pub async fn sentinel(&self, place: usize) -> Result<Client> {
        Client::tcp(self.sentinels[place].port).await
    }

    /// Returns the process of a sentinel, to freeze or kill it.
    pub fn sentinel_process(&mut self, place: usize) -> &mut Process {
        &mut self.sentinels[place].process
    }

    /// Waits until the replica has that key.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub async fn until_replicated(&self, key: &str) -> Result<()> {
        let mut replica = self.client(1).await?;
        eventually("the replica to have the lock", async || {
            let found = replica.call_args(&["EXISTS", key]).await?.int()?;
            ensure!(found == 1, "there is no {key}");
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Stops replication once the replica has the lock of that name.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub async fn cut_off(&self, key: &str) -> Result<()> {
        self.until_replicated(key).await?;
        let mut replica = self.client(1).await?;
        // The replica cannot reconnect.
        replica.call("CONFIG SET masterauth nonsense").await?.ok()?;
        replica.call("CLIENT KILL TYPE master").await?.ok()?;
        Ok(())
    }

    /// Keeps the first server a master, whatever the sentinels say, like one that they cannot reach.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub async fn keep_as_master(&self) -> Result<()> {
        let rights = "ACL SETUSER default -slaveof -replicaof";
        self.client(0).await?.call(rights).await?.ok()?;
        Ok(())
    }

    /// Makes the first sentinel report the replica as the master with that name, like a sentinel that has not yet
    /// learned of a failover.
    ///
    /// # Errors
    /// Returns an error if it does not answer.
    pub async fn mistake(&self, name: &str) -> Result<()> {
        let command = format!("SENTINEL MONITOR {name} 127.0.0.1 {} 1", self.nodes[1].port());
        let mut client = self.sentinel(0).await?;
        client.call(&command).await?.ok()?;
        let patience = format!("SENTINEL SET {name} down-after-milliseconds {CALM}");
        client.call(&patience).await?.ok()?;
        Ok(())
    }

    /// Makes the replica the master, in whatever state the master is, and waits until the first sentinel reports it.
    ///
    /// # Errors
    /// Returns an error if a sentinel does not answer.
    pub async fn fail_over(&self) -> Result<()> {
        let mut client = self.sentinel(0).await?;
        let replica = self.nodes[1].port().to_string();
        eventually("the replica to be made the master", async || {
            let about = client.call(&format!("SENTINEL MASTER {NAME}")).await?.ok()?;
            if field(&about, "port")? == replica {
                return Ok(());
            }
            let flags = field(&about, "flags")?;
            if !flags.contains("failover_in_progress") {
                let begun = client.call(&format!("SENTINEL FAILOVER {NAME}")).await?;
                // If the master is about to be declared dead, the sentinel may have started by itself.
                ensure!(begun.error().is_none() || begun.is_error("INPROG"), "{begun}");
            }
            bail!("the master is {flags}")
        })
        .await;
        // From now on a slow server does not count as dead.
        self.set_patience(CALM).await
    }

    /// Makes the sentinels detect failed servers and act by themselves.
    ///
    /// # Errors
    /// Returns an error if a sentinel does not answer.
    pub async fn enable_failover(&self) -> Result<()> {
        self.set_patience(3_000).await
    }

    async fn set_patience(&self, millis: u32) -> Result<()> {
        for place in 0..self.sentinels.len() {
            // Some sentinels may have been killed.
            let Ok(mut sentinel) = self.sentinel(place).await else { continue };
            let command = format!("SENTINEL SET {NAME} down-after-milliseconds {millis}");
            sentinel.call(&command).await?.ok()?;
        }
        Ok(())
    }
}

/// The TLS settings of servers and sentinels.
struct Tls<'a> {
    /// The master's TLS port.
    master: u16,
    cert: &'a str,
    key: &'a str,
}

impl SentinelServer {
    async fn start(master: u16, quorum: usize, tls: Option<&Tls<'_>>) -> Result<Self> {
        let program = process::on_path("redis-server")
            .context("there is no redis-server on the PATH: install the package redis-server")?;
        let folder = tempfile::Builder::new().prefix("lockscope-sentinel-").tempdir()?;
        for _ in 0..20 {
            let (port, second) = (random_port(), random_port());
            let mut settings = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} 127.0.0.1 {master} {quorum}\n\
                 sentinel down-after-milliseconds {NAME} {CALM}\n\
                 sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT}\n",
                folder.path().display()
            );
            if let Some(Tls { cert, key, .. }) = tls {
                settings.push_str(&format!(
                    "tls-port {second}\ntls-cert-file {cert}\ntls-key-file {key}\ntls-ca-cert-file {cert}\n\
                     tls-auth-clients no\ntls-replication yes\n"
                ));
            }
            let file = folder.path().join("sentinel.conf");
            std::fs::write(&file, settings)?;
            if let Some(process) = spawn(&program, &file, port).await? {
                let public = if tls.is_some() { second } else { port };
                return Ok(Self { process, port, public, _folder: folder });
            }
        }
        bail!("no port is free for a sentinel")
    }
}

/// Starts a sentinel and waits until it answers; returns `None` if a port was taken.
async fn spawn(program: &Path, settings: &Path, port: u16) -> Result<Option<Process>> {
    let log = settings.with_file_name("sentinel.log");
    let mut command = process::command(program);
    command.arg(settings).arg("--sentinel");
    let mut process = Process::spawn("redis-sentinel", command, &log, None)?;
    let pid = process.pid();
    let up = eventually("the sentinel to answer", async || {
        if process.ended()?.is_some() {
            return Ok(false);
        }
        let info = Client::tcp(port).await?.call("INFO server").await?.text();
        ensure!(info.contains(&format!("process_id:{pid}\r\n")), "another server answers: {info}");
        Ok(true)
    })
    .await;
    if up {
        return Ok(Some(process));
    }
    let said = process.log();
    ensure!(said.contains("Address already in use"), "the sentinel ended at once:\n{said}");
    std::fs::remove_file(log)?;
    Ok(None)
}

/// Returns a field of a sentinel's reply, in which names and values alternate.
fn field(about: &Reply, name: &str) -> Result<String> {
    Ok(about.field(name)?.text())
}
