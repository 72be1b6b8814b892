//! Redis as a managed service offers it: without CONFIG, behind an address that outlives its servers, with passwords
//! that expire.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use harness::process::Process;
use harness::proxy::Place;
use harness::{Agent, Client, Dashboard, Proxy, RedisServer, Reply, eventually};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::{LONG, assert_held_by, holder, lock, lost, on, ready};
use crate::agent::state_folder::{apart, may_mount, started};
use crate::dashboard::{held, lock as seen, take};

/// The names of the connections of an agent and of a dashboard.
const CONNECTIONS: [&str; 5] = [
    "lockscope-agent",
    "lockscope-agent-renewals",
    "lockscope-agent-messages",
    "lockscope-agent-registry",
    "lockscope-dashboard",
];

/// Returns the names of the clients of a server, without those of the test.
async fn names(direct: &mut Client) -> Result<Vec<String>> {
    let clients = direct.call("CLIENT LIST").await?.text();
    let words = clients.split_ascii_whitespace();
    Ok(words.filter_map(|word| word.strip_prefix("name=lockscope")).map(str::to_owned).collect())
}

/// Waits until all connections of the programs are at `new`, and none is at `old`.
async fn until_all_are_at(new: &mut Client, old: &mut Client) {
    eventually("all connections to lead to the new master", async || {
        let left = names(old).await?;
        ensure!(left.is_empty(), "still at the old one: {left:?}");
        let there = names(new).await?;
        for name in CONNECTIONS {
            let name = name.trim_start_matches("lockscope");
            ensure!(there.iter().any(|there| there == name), "no lockscope{name}: {there:?}");
        }
        Ok(())
    })
    .await;
}

async fn run(direct: &mut Client, words: &str) -> Result<()> {
    direct.call(words).await?.ok()?;
    Ok(())
}

/// Returns the row of a source of the only server.
async fn source(dashboard: &Dashboard, name: &str) -> Result<Value> {
    let sources = dashboard.json("/api/v1/sources").await?;
    let mut rows = sources["sources"].as_array().into_iter().flatten();
    rows.find(|row| row["source"] == name).cloned().context("no such source")
}

/// Waits until a source has this state, with `word` in its row.
async fn until_source(dashboard: &Dashboard, name: &str, state: &str, word: &str) {
    eventually(&format!("{name} to be {state}: {word}"), async || {
        let row = source(dashboard, name).await?;
        ensure!(row["state"] == state && row.to_string().contains(word), "{row}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn every_connection_leaves_a_master_that_was_demoted() -> Result<()> {
    let (mut bench, proxy) = on(RedisServer::start().await?, LONG).await?;
    let flags = ["--monitor", "on", "--monitor-unbounded"];
    let mut dashboard = Dashboard::start(&proxy.url(), &flags).await?;
    let other = RedisServer::start().await?;
    let mut there = other.client().await?;
    let mut worker = bench.session().await?;
    let kept = holder(&lock(&mut worker, "LOCK a").await?)?;
    other.follow(&bench.redis).await?;
    until_source(&dashboard, "monitor", "on", "").await;
    // The old master is a replica before new connections lead to the new one, as with a name that changes late.
    run(&mut bench.direct, &format!("REPLICAOF 127.0.0.1 {}", other.port())).await?;
    eventually("the demotion to be noticed", async || {
        let log = dashboard.process().log();
        ensure!(log.contains("the Redis server has changed"), "{log}");
        Ok(())
    })
    .await;
    run(&mut there, "REPLICAOF NO ONE").await?;
    proxy.lead_to(Place::Port(other.port()));
    until_all_are_at(&mut there, &mut bench.direct).await;
    until_source(&dashboard, "monitor", "on", "").await;
    bench.direct = there;
    assert_held_by(&mut bench, "a", &kept).await?;
    assert_eq!(lost(&bench.agent).await?, 0.0);
    Ok(())
}

/// Passes connections to this port of 127.0.0.2 on to a server, until the test ends.
async fn forward(port: u16, to: u16) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.2", port)).await?;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)).await {
                    copy_bidirectional(&mut client, &mut server).await.ok();
                }
            });
        }
    });
    Ok(())
}

/// Starts an agent for which `hosts` is `/etc/hosts`, and waits until it is ready.
async fn agent_with_names(folder: &Path, hosts: &Path, redis_url: &str) -> Result<Process> {
    let flags: Vec<String> = LONG.iter().map(|&flag| flag.to_owned()).collect();
    started(folder, redis_url, &flags, |inner| {
        let mut command = apart();
        command.args(["-ec", "mount --bind \"$1\" /etc/hosts; shift; exec \"$@\"", "sh"]);
        command.arg(hosts).arg(inner.get_program()).args(inner.get_args());
        command
    })
    .await
}

/// An agent whose server has a name, and a second server that can be promoted under that name.
struct Named {
    old: RedisServer,
    new: RedisServer,
    here: Client,
    there: Client,
    hosts: PathBuf,
    agent: Process,
    worker: Client,
    _folder: TempDir,
}

impl Named {
    async fn start() -> Result<Self> {
        let (old, new) = (RedisServer::start().await?, RedisServer::start().await?);
        let (here, there) = (old.client().await?, new.client().await?);
        forward(old.port(), new.port()).await?;
        let folder = tempfile::Builder::new().prefix("lockscope-name-").tempdir()?;
        let hosts = folder.path().join("hosts");
        std::fs::write(&hosts, "127.0.0.1 redis.test\n")?;
        let url = format!("redis://redis.test:{}", old.port());
        let agent = agent_with_names(folder.path(), &hosts, &url).await?;
        let worker = Client::unix(&folder.path().join("agent.sock")).await?;
        Ok(Self { old, new, here, there, hosts, agent, worker, _folder: folder })
    }

    /// Promotes the new server, which has all of the old one's data. The old one goes on.
    async fn move_name(&mut self) -> Result<()> {
        self.new.follow(&self.old).await?;
        run(&mut self.there, "REPLICAOF NO ONE").await?;
        std::fs::write(&self.hosts, "127.0.0.2 redis.test\n")?;
        Ok(())
    }
}

#[tokio::test]
async fn every_connection_leaves_a_master_that_goes_on_once_its_name_has_moved() -> Result<()> {
    if !may_mount() {
        return Ok(());
    }
    let mut stage = Named::start().await?;
    lock(&mut stage.worker, "LOCK a").await?;
    stage.move_name().await?;
    // One connection reaches the new master before the name is looked up again.
    run(&mut stage.here, "CLIENT KILL TYPE pubsub").await?;
    eventually("all connections to lead to the new master", async || {
        let left = names(&mut stage.here).await?;
        ensure!(left.is_empty(), "still at the old one: {left:?}");
        let there = names(&mut stage.there).await?.len();
        ensure!(there == 4, "{there} at the new one");
        Ok(())
    })
    .await;
    let log = stage.agent.log();
    ensure!(log.contains("the name leads to another server"), "{log}");
    assert_eq!(stage.worker.call("UNLOCK a").await?, Reply::Int(0));
    let left = stage.there.call("EXISTS a").await?;
    ensure!(left == Reply::Int(0), "the hold was not the new master's");
    Ok(())
}

/// Releases a lock on the old master after its holds were verified at the new one. Returns `false` if the connection for
/// commands had left the old master as well.
async fn is_released_late() -> Result<bool> {
    let mut stage = Named::start().await?;
    lock(&mut stage.worker, "LOCK a LEASE 3600000").await?;
    stage.move_name().await?;
    ensure!(stage.there.call("EXISTS a").await? == Reply::Int(1), "the new master has the lock");
    let clients = stage.here.call("CLIENT LIST").await?.text();
    let renewals = clients.lines().find(|line| line.contains("name=lockscope-agent-renewals "));
    let id = renewals.and_then(|line| line.split(' ').next()?.strip_prefix("id="));
    let kill = format!("CLIENT KILL ID {}", id.context("no connection for renewals")?);
    run(&mut stage.here, &kill).await?;
    eventually("renewals to go to the new master", async || {
        let there = names(&mut stage.there).await?;
        ensure!(there.contains(&"-agent-renewals".to_owned()), "{there:?}");
        Ok(())
    })
    .await;
    assert_eq!(stage.worker.call("UNLOCK a").await?, Reply::Int(0));
    let was_late = stage.here.call("EXISTS a").await? == Reply::Int(0);
    eventually("the lock to be released on the new master", async || {
        ensure!(stage.there.call("EXISTS a").await? == Reply::Int(0), "it is held there");
        Ok(())
    })
    .await;
    Ok(was_late)
}

#[tokio::test]
async fn a_lock_that_was_released_on_the_old_master_is_released_on_the_new_one() -> Result<()> {
    if !may_mount() {
        return Ok(());
    }
    // The name is looked up again after some seconds, which may come too early.
    eventually("a release on the old master", async || {
        ensure!(is_released_late().await?, "commands had left it");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_replica_that_is_watched_on_purpose_is_not_left() -> Result<()> {
    let server = RedisServer::start().await?;
    let follows = format!("127.0.0.1 {}", server.port());
    let replica = RedisServer::with(&[("replicaof", &follows)]).await?;
    let proxy = Proxy::tcp(Place::Port(replica.port())).await?;
    let dashboard = Dashboard::start(&proxy.url(), &["--monitor", "off"]).await?;
    until_source(&dashboard, "poll", "on", "").await;
    let before = proxy.lines(Some("lockscope-dashboard"));
    proxy.lead_to(Place::Port(server.port()));
    let mut direct = server.client().await?;
    take(&mut direct, "a").await?;
    seen(&dashboard, "a", held).await;
    let sources = dashboard.json("/api/v1/sources").await?;
    ensure!(sources["limits"].to_string().contains("the server is a replica"), "{sources}");
    assert!(before.iter().all(|line| line.is_open()), "new ones would lead to the master");
    Ok(())
}

/// Changes the password of all users, and closes every connection but this one.
async fn rotate(direct: &mut Client, file: &Path, password: &str) -> Result<()> {
    run(direct, &format!("ACL SETUSER default resetpass >{password}")).await?;
    run(direct, "CLIENT KILL TYPE normal SKIPME yes").await?;
    run(direct, "CLIENT KILL TYPE pubsub SKIPME yes").await?;
    std::fs::write(file, format!("{password}\n"))?;
    Ok(())
}

#[tokio::test]
async fn a_password_that_was_renewed_in_its_file_needs_no_restart() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    run(&mut direct, "ACL SETUSER default >first").await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    std::fs::write(&file, "first\n")?;
    let path = file.to_str().context("the path is no text")?;
    let flags = ["--redis-password-file", path];
    let agent = Agent::at(&redis.url(), &[LONG, &flags].concat()).await?;
    let dashboard = Dashboard::start(&redis.url(), &flags).await?;
    ready(&agent).await;
    let mut worker = agent.client().await?;
    lock(&mut worker, "LOCK a").await?;
    for password in ["second", "third"] {
        rotate(&mut direct, &file, password).await?;
        eventually("all connections to log in again", async || {
            let there = names(&mut direct).await?;
            for name in CONNECTIONS {
                let name = name.trim_start_matches("lockscope");
                ensure!(there.iter().any(|there| there == name), "no lockscope{name}: {there:?}");
            }
            Ok(())
        })
        .await;
        until_source(&dashboard, "poll", "on", "").await;
    }
    ready(&agent).await;
    lock(&mut worker, "LOCK b WAIT 20000").await?;
    assert_eq!(lost(&agent).await?, 0.0);
    Ok(())
}

/// Commands that managed services remove.
const REMOVED: [(&str, &str); 8] = [
    ("rename-command", "CONFIG "),
    ("rename-command", "ACL "),
    ("rename-command", "DEBUG "),
    ("rename-command", "BGSAVE "),
    ("rename-command", "REPLICAOF "),
    ("rename-command", "SLAVEOF "),
    ("rename-command", "SHUTDOWN "),
    ("rename-command", "ROLE "),
];

#[tokio::test]
async fn notifications_and_monitor_work_without_config() -> Result<()> {
    let options = [REMOVED.as_slice(), &[("notify-keyspace-events", "KEA")]].concat();
    let (bench, _proxy) = on(RedisServer::with(&options).await?, LONG).await?;
    let mut worker = bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    let dashboard = Dashboard::start(&bench.redis.url(), &[]).await?;
    until_source(&dashboard, "keyspace", "off", "does not offer CONFIG GET").await;
    until_source(&dashboard, "monitor", "paused", "--monitor-unbounded").await;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    lock(&mut worker, "LOCK b").await?;
    seen(&dashboard, "b", held).await;
    // The renewal of a hold, or its end, is a change that the server publishes.
    let mut direct = bench.redis.client().await?;
    eventually("a notification to arrive", async || {
        direct.call("PEXPIRE b 600000").await?.ok()?;
        let row = source(&dashboard, "keyspace").await?;
        ensure!(row["state"] == "on", "{row}");
        Ok(())
    })
    .await;
    let flags = ["--monitor", "on", "--monitor-unbounded"];
    let dashboard = Dashboard::start(&bench.redis.url(), &flags).await?;
    until_source(&dashboard, "monitor", "on", "").await;
    // Pub/sub clients are the ones that the server limits by default.
    let clients = direct.call("CLIENT LIST").await?.text();
    let reader =
        clients.lines().find(|line| line.contains("flags=OP") || line.contains("flags=PO"));
    ensure!(reader.is_some_and(|line| line.contains("psub=1")), "{clients}");
    Ok(())
}
