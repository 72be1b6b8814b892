//! An upgrade under load, as a service manager does it: it keeps the listening socket open and passes it to each agent.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::process::{self, Process};
use harness::redis::random_port;
use harness::{Agent, Client, RedisServer, Reply, agent, eventually, http, within};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::ensure_released;

const WORKERS: usize = 100;
/// The number of locks that all workers want, in addition to one that each keeps for itself.
const SHARED: usize = 10;

/// The socket is passed as standard input and becomes descriptor 3, as the protocol of socket activation requires.
const AS_A_SERVICE: &str = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";

/// The folder with the programs of an earlier version; without it, that version is this one (`make upgrade BASE=COMMIT`).
const OLD_PROGRAMS: &str = "LOCKSCOPE_OLD_PROGRAMS";

#[derive(Debug, Clone, Copy)]
enum Version {
    Old,
    New,
}

impl Version {
    /// Returns the arguments of a command with the agent of this version in place of the new one.
    fn arguments(self, new: &std::process::Command) -> Vec<OsString> {
        let old = std::env::var_os(OLD_PROGRAMS).filter(|_| matches!(self, Self::Old));
        let version = |argument: &OsStr| match &old {
            Some(folder) if Path::new(argument).ends_with("lockscope-agent") => {
                Path::new(folder).join("lockscope-agent").into()
            }
            _ => argument.to_owned(),
        };
        std::iter::once(new.get_program()).chain(new.get_args()).map(version).collect()
    }
}

/// A stand-in for the service manager.
struct Manager {
    redis: RedisServer,
    folder: TempDir,
    socket: UnixListener,
    port: u16,
}

impl Manager {
    async fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockscope-upgrade-").tempdir()?;
        let socket = UnixListener::bind(folder.path().join("passed.sock"))?;
        Ok(Self { redis: RedisServer::start().await?, folder, socket, port: random_port() })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("passed.sock")
    }

    /// Starts an agent with the socket, and waits until it is ready.
    async fn start(&mut self, version: Version) -> Result<Process> {
        for _ in 0..20 {
            let flags = ["--lease", "60s", "--drain-timeout", "5m", "--socket-mode", "0600"];
            let flags = flags.map(str::to_owned);
            let service = agent::command(self.folder.path(), &self.redis.url(), self.port, &flags)?;
            let mut command = process::command(Path::new("/bin/sh"));
            command.args(["-c", AS_A_SERVICE, "sh"]).args(version.arguments(&service));
            let socket = Stdio::from(OwnedFd::from(self.socket.try_clone()?));
            let log = self.folder.path().join(format!("agent-{}.log", self.port));
            let mut process = Process::spawn_fed("lockscope-agent", command, &log, socket)?;
            let ready = eventually("the agent to be ready, or to end", async || {
                if process.ended()?.is_some() {
                    return Ok(false);
                }
                ensure!(http::get(self.port, "/readyz").await?.status == 200);
                Ok(true)
            })
            .await;
            if ready {
                ensure!(process.log().contains("the service manager's socket"));
                return Ok(process);
            }
            ensure!(process.log().contains("in use"), "{}", process.log());
            self.port = random_port();
        }
        bail!("no port is free")
    }

    async fn metric(&self, name: &str) -> Result<f64> {
        Ok(agent::Metrics(http::get(self.port, "/metrics").await?.body).sum(name, &[]))
    }
}

/// The state shared by the workers.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// The number of workers that hold each shared lock, as they count it themselves.
    inside: [AtomicU64; SHARED],
    turns: AtomicU64,
    resumed: AtomicU64,
}

/// One worker: it keeps one lock all the time, and takes turns under the shared ones.
struct Worker {
    number: usize,
    socket: PathBuf,
    client: Client,
    /// Id and secret.
    ticket: String,
    holder: String,
    shared: Arc<Shared>,
    /// True while the worker holds its shared lock, as far as it knows.
    inside: bool,
}

impl Worker {
    async fn begin(number: usize, socket: PathBuf, shared: Arc<Shared>) -> Result<Self> {
        let mut client = Client::unix(&socket).await?;
        let session = client.call("SESSION GRACE 300000").await?.ok()?;
        let ticket = format!("{} {}", session.field("id")?, session.field("secret")?);
        let held = client.call(&format!("LOCK own:{number}")).await?.ok()?;
        let holder = held.field("holder")?.text();
        Ok(Self { number, socket, client, ticket, holder, shared, inside: false })
    }

    fn name(&self) -> String {
        format!("shared:{}", self.number % SHARED)
    }

    fn enter(&mut self) -> Result<()> {
        let before = self.shared.inside[self.number % SHARED].fetch_add(1, Ordering::SeqCst);
        ensure!(before == 0, "{before} other workers hold {}", self.name());
        self.inside = true;
        Ok(())
    }

    fn leave(&mut self) {
        self.shared.inside[self.number % SHARED].fetch_sub(1, Ordering::SeqCst);
        self.inside = false;
    }

    /// Sends a command. Returns `None` if the connection ended before the reply.
    async fn ask(&mut self, command: &str) -> Result<Option<Reply>> {
        match self.client.call(command).await {
            Ok(reply) => Ok(Some(reply)),
            Err(_) => {
                self.come_back().await?;
                Ok(None)
            }
        }
    }

    /// Resumes the session on a new connection, which must not be refused, and continues with the holds that the reply lists.
    async fn come_back(&mut self) -> Result<()> {
        loop {
            self.client = Client::unix(&self.socket).await.context("a connection is refused")?;
            // The agent may end before it has accepted this connection or read the command.
            let Ok(reply) = self.client.call(&format!("RESUME {}", self.ticket)).await else {
                continue;
            };
            if reply.is_error("UNAVAILABLE") || reply.is_error("SESSION") {
                // Redis has not confirmed the holds yet, or the end of the old connection has not been noticed yet.
                continue;
            }
            let reply = reply.ok()?;
            self.ticket = format!("{} {}", reply.field("id")?, reply.field("secret")?);
            let holds = reply.field("holds")?.items()?;
            let held = |name: &str| {
                let mut rows =
                    holds.iter().filter(|row| row.field("lock").is_ok_and(|l| l.text() == name));
                rows.next().map(|row| row.field("holder").map(Reply::text))
            };
            let own = held(&format!("own:{}", self.number)).context("its lock is lost")??;
            ensure!(own == self.holder, "another holder: {own}, not {}", self.holder);
            let has_shared = held(&self.name()).is_some();
            if has_shared && !self.inside {
                self.enter()?;
            } else if !has_shared && self.inside {
                bail!("{} is lost", self.name());
            }
            self.shared.resumed.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
    }

    async fn turn(&mut self) -> Result<()> {
        if !self.inside {
            match self.ask(&format!("LOCK {}", self.name())).await? {
                Some(reply) if reply.is_error("DRAINING") => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    return Ok(());
                }
                Some(reply) => {
                    ensure!(reply.ok()? != Reply::Null, "a wait without an end has ended");
                    self.enter()?;
                }
                // The reply to RESUME has shown whether the lock was granted.
                None => return Ok(()),
            }
        }
        self.shared.turns.fetch_add(1, Ordering::SeqCst);
        self.leave();
        if let Some(reply) = self.ask(&format!("UNLOCK {}", self.name())).await? {
            ensure_released(&reply)?;
        }
        Ok(())
    }

    async fn work(mut self) -> Result<Self> {
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.turn().await?;
        }
        while self.inside {
            self.turn().await?;
        }
        Ok(self)
    }
}

/// Takes turns with the workers, as a client of an agent on another host, until told to stop.
async fn visit(mut client: Client, shared: Arc<Shared>) -> Result<u64> {
    let mut turns = 0;
    for number in (0..SHARED).cycle() {
        if shared.stop.load(Ordering::SeqCst) {
            break;
        }
        client.call(&format!("LOCK shared:{number}")).await?.ok()?.field("holder")?;
        let before = shared.inside[number].fetch_add(1, Ordering::SeqCst);
        ensure!(before == 0, "{before} other workers hold shared:{number}");
        shared.inside[number].fetch_sub(1, Ordering::SeqCst);
        ensure_released(&client.call(&format!("UNLOCK shared:{number}")).await?)?;
        turns += 1;
    }
    Ok(turns)
}

/// Waits until the workers have had 200 more turns.
async fn until_turns(shared: &Shared) {
    let before = shared.turns.load(Ordering::SeqCst);
    eventually("the workers to have had their turns", async || {
        let turns = shared.turns.load(Ordering::SeqCst) - before;
        ensure!(turns >= 200, "{turns} of 200");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_upgrade_under_load_loses_no_lock_and_refuses_no_connection() -> Result<()> {
    let mut manager = Manager::new().await?;
    // The other host is upgraded first.
    let neighbour = Agent::with(&manager.redis, &["--lease", "60s"]).await?;
    let mut agent = manager.start(Version::Old).await?;
    let shared = Arc::new(Shared::default());
    let mut working = JoinSet::new();
    for number in 0..WORKERS {
        let worker = Worker::begin(number, manager.path(), Arc::clone(&shared)).await?;
        working.spawn(worker.work());
    }
    let visitor = tokio::spawn(visit(neighbour.client().await?, Arc::clone(&shared)));
    until_turns(&shared).await;
    // An upgrade, a crash, and a downgrade.
    for (killed, next) in [(false, Version::New), (true, Version::New), (false, Version::Old)] {
        let back = shared.resumed.load(Ordering::SeqCst);
        if killed {
            agent.kill()?;
        } else {
            agent.terminate()?;
            let status = agent.end().await;
            ensure!(status.success(), "{status}");
        }
        ensure!(manager.path().exists(), "the socket is the manager's");
        agent = manager.start(next).await?;
        let ended = eventually("all workers to be back", async || {
            if let Some(ended) = working.try_join_next() {
                return Ok(Some(ended));
            }
            let back = shared.resumed.load(Ordering::SeqCst) - back;
            ensure!(back >= WORKERS as u64, "{back} of {WORKERS}");
            Ok(None)
        })
        .await;
        if let Some(ended) = ended {
            bail!("after killed={killed} a worker has ended: {:?}", ended?.err());
        }
        until_turns(&shared).await;
        let lost = manager.metric("lockscope_agent_lost_holds_total").await?;
        ensure!(lost == 0.0, "{lost} are lost");
    }
    shared.stop.store(true, Ordering::SeqCst);
    let mut direct = manager.redis.client().await?;
    while let Some(worker) = working.join_next().await {
        let mut worker = worker??;
        let own = format!("own:{}", worker.number);
        let held = direct.call(&format!("HGETALL {own}")).await?.ok()?;
        ensure!(held.items()?[0].text() == worker.holder, "{own}: {held}");
        ensure_released(&worker.client.call(&format!("UNLOCK {own}")).await?)?;
    }
    ensure!(visitor.await?? > 0, "the other host had no turn");
    // A release that Redis answered late is repeated; what is left would stay for its lease of a minute.
    within(Duration::from_secs(20), "nothing to be left in Redis", async || {
        let left = harness::redis::locks(&mut direct).await?;
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_removed_socket_of_the_service_manager_is_reported() -> Result<()> {
    let mut manager = Manager::new().await?;
    let agent = manager.start(Version::New).await?;
    std::fs::remove_file(manager.path())?;
    eventually("the agent to report it", async || {
        let ready = http::get(manager.port, "/readyz").await?;
        ensure!(
            ready.status == 503 && ready.body.contains("no worker can connect"),
            "{}",
            ready.body
        );
        Ok(())
    })
    .await;
    let log = agent.log();
    ensure!(log.contains("no worker can connect") && log.contains("restart the unit"), "{log}");
    ensure!(log.contains("--socket-group have no effect on a socket"), "{log}");
    Ok(())
}
