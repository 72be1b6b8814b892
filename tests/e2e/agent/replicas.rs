//! `--min-replicas`: grants and leases reach replicas first.
//!
//! On a very busy machine replicas confirm too late, so a grant is tried until it succeeds.

use anyhow::{Context as _, Result, ensure};
use harness::proxy::{Place, Proxy};
use harness::{Agent, Client, RedisCluster, RedisServer, Reply, eventually};

use super::{assert_error, holder};
use crate::secure::{documented_users, refused};

const CONFIRMATIONS: &str = "lockscope_agent_confirmations_total";

async fn master() -> Result<RedisServer> {
    RedisServer::with(&[("repl-diskless-sync-delay", "0")]).await
}

/// Starts another replica, and waits until the master counts it.
pub(crate) async fn replica(master: &RedisServer) -> Result<RedisServer> {
    let replica =
        RedisServer::with(&[("replicaof", &format!("127.0.0.1 {}", master.port()))]).await?;
    let mut direct = master.client().await?;
    let counted = format!("port={},state=online", replica.port());
    eventually("the replica to follow", async || {
        let info = direct.call("INFO replication").await?.text();
        ensure!(info.contains(&counted), "{info}");
        Ok(())
    })
    .await;
    Ok(replica)
}

/// Tries until enough replicas confirm in time.
pub(crate) async fn granted(worker: &mut Client, words: &str) -> Reply {
    eventually(words, async || worker.call(words).await?.ok()).await
}

/// Returns the fields of a hash on this server.
async fn fields(server: &RedisServer, key: &str) -> Result<Vec<String>> {
    let reply = server.client().await?.call(&format!("HKEYS {key}")).await?;
    Ok(reply.items()?.iter().map(Reply::text).collect())
}

async fn until_gone(server: &RedisServer, key: &str) {
    eventually("the unconfirmed lock to be released", async || {
        let left = fields(server, key).await?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await;
}

async fn confirmations(agent: &Agent, outcome: &str) -> Result<f64> {
    Ok(agent.metrics().await?.sum(CONFIRMATIONS, &[("outcome", outcome)]))
}

#[tokio::test]
async fn every_granted_lock_is_on_a_replica() -> Result<()> {
    let master = master().await?;
    let replica = replica(&master).await?;
    let agent = Agent::with(&master, &["--min-replicas", "1"]).await?;
    let (mut one, mut two) = (agent.client().await?, agent.client().await?);
    for kind in ["lock", "fenced", "fair", "read", "write"] {
        let reply = granted(&mut one, &format!("LOCK {kind} KIND {kind}")).await;
        let there = fields(&replica, kind).await?;
        assert!(there.contains(&holder(&reply)?), "{kind}: {there:?}");
    }
    // The waiter gets its turn by a hand-over, or by a new attempt if a replica was late before.
    let handed_over = eventually("the lock of another one", async || {
        two.send("LOCK lock").await?;
        eventually("the waiter to be counted", async || {
            let waiters = agent.metrics().await?.sum("lockscope_agent_waiters", &[]);
            ensure!(waiters == 1.0, "{waiters} wait");
            Ok(())
        })
        .await;
        one.call("UNLOCK lock").await?;
        let reply = two.reply().await?;
        if reply.error().is_some() {
            granted(&mut one, "LOCK lock").await;
        }
        reply.ok()
    })
    .await;
    assert_eq!(fields(&replica, "lock").await?, [holder(&handed_over)?]);
    // The scripts are sent again to a server that no longer has them.
    master.client().await?.call("SCRIPT FLUSH").await?.ok()?;
    let reply = granted(&mut one, "MLOCK 2 x y").await;
    for (name, lock) in ["x", "y"].into_iter().zip(reply.items()?) {
        assert_eq!(fields(&replica, name).await?, [holder(lock)?]);
    }
    assert!(confirmations(&agent, "confirmed").await? >= 8.0);
    Ok(())
}

#[tokio::test]
async fn a_lock_missing_on_a_stalled_replica_is_not_granted() -> Result<()> {
    let master = master().await?;
    let mut replica = replica(&master).await?;
    // The hold of `held` is not confirmed again while the replica is frozen.
    let agent = Agent::with(&master, &["--min-replicas", "1", "--lease", "10m"]).await?;
    let (mut worker, mut waiter) = (agent.client().await?, agent.client().await?);
    let held = holder(&granted(&mut worker, "LOCK held").await)?;
    granted(&mut worker, "LOCK fence KIND fenced").await;
    worker.call("UNLOCK fence").await?.ok()?;
    waiter.send("LOCK held").await?;
    eventually("the waiter to be counted", async || {
        let waiters = agent.metrics().await?.sum("lockscope_agent_waiters", &[]);
        ensure!(waiters == 1.0, "{waiters} wait");
        Ok(())
    })
    .await;

    replica.process().freeze().await?;
    for kind in ["lock", "fenced", "fair", "read", "write"] {
        let name = if kind == "fenced" { "fence" } else { kind };
        let reply = worker.call(&format!("LOCK {name} KIND {kind}")).await?;
        assert_error(&reply, "UNAVAILABLE", "0 of the 1 replicas");
        until_gone(&master, name).await;
    }
    assert_error(&worker.call("MLOCK 2 x y").await?, "UNAVAILABLE", "0 of the 1 replicas");
    until_gone(&master, "x").await;
    // A failed reentry leaves the hold as it was.
    ensure!(worker.call("LOCK held").await?.is_error("UNAVAILABLE"));
    eventually("the count to be restored", async || {
        let count = master.client().await?.call(&format!("HGET held {held}")).await?.text();
        ensure!(count == "1", "{count}");
        Ok(())
    })
    .await;
    // The waiter that the lock would be passed to is not granted it.
    worker.call("UNLOCK held").await?.ok()?;
    assert_error(&waiter.reply().await?, "UNAVAILABLE", "of the 1 replicas");
    until_gone(&master, "held").await;
    assert!(confirmations(&agent, "too_few").await? >= 1.0);
    assert_eq!(agent.metrics().await?.sum("lockscope_agent_holds", &[]), 0.0);

    replica.process().thaw()?;
    let reply = granted(&mut worker, "LOCK fence KIND fenced").await;
    let token = reply.field("token")?.int()?;
    assert!(token >= 3, "{token}: the token of the undone grant is not used again");
    assert!(fields(&replica, "fence").await?.contains(&holder(&reply)?));
    Ok(())
}

#[tokio::test]
async fn the_documented_user_suffices() -> Result<()> {
    let master = master().await?;
    let _replica = replica(&master).await?;
    let mut direct = master.client().await?;
    documented_users(&mut direct, false).await?;
    let url = format!("redis://lockscope-agent:agent-password@127.0.0.1:{}", master.port());
    let agent = Agent::at(&url, &["--min-replicas", "1"]).await?;
    granted(&mut agent.client().await?, "LOCK a").await;
    let refused = refused(&mut direct).await?;
    assert!(refused.is_empty(), "{refused:?}");
    Ok(())
}

/// A worker that was granted a lock still holds it if the master fails immediately afterwards.
#[tokio::test]
async fn a_promoted_replica_has_every_granted_lock() -> Result<()> {
    let mut master = master().await?;
    let replica = replica(&master).await?;
    let proxy = Proxy::tcp(Place::Port(master.port())).await?;
    let flags = ["--min-replicas", "1", "--lease", "10m"];
    let agent = Agent::at(&proxy.url(), &flags).await?;
    let mut worker = agent.client().await?;
    let mut held = Vec::new();
    for n in 0..20 {
        held.push(holder(&granted(&mut worker, &format!("LOCK held:{n}")).await)?);
    }
    master.process().kill()?;
    replica.client().await?.call("REPLICAOF NO ONE").await?.ok()?;
    proxy.lead_to(Place::Port(replica.port()));
    for (n, holder) in held.iter().enumerate() {
        assert_eq!(fields(&replica, &format!("held:{n}")).await?, [holder.as_str()]);
    }
    eventually("the agent to follow", async || {
        let metrics = agent.metrics().await?;
        let again = metrics.sum("lockscope_agent_reconnects_total", &[]);
        let up = metrics.sum("lockscope_agent_redis_up", &[]);
        ensure!(again >= 1.0 && up == 1.0, "{again} times connected again, up: {up}");
        Ok(())
    })
    .await;
    for n in 0..held.len() {
        assert_eq!(worker.call(&format!("UNLOCK held:{n}")).await?, Reply::Int(0));
    }
    assert_error(&worker.call("LOCK next").await?, "UNAVAILABLE", "0 of the 1 replicas");
    Ok(())
}

/// A thousand workers share the WAIT commands: they do not need one each.
#[tokio::test]
async fn many_locks_wait_for_replicas_together() -> Result<()> {
    const WORKERS: usize = 60;
    let master = master().await?;
    let mut replica = replica(&master).await?;
    let agent = Agent::with(&master, &["--min-replicas", "1"]).await?;
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(agent.client().await?);
    }
    replica.process().freeze().await?;
    for (index, worker) in workers.iter_mut().enumerate() {
        worker.send(&format!("LOCK many:{index}")).await?;
    }
    for worker in &mut workers {
        assert_error(&worker.reply().await?, "UNAVAILABLE", "of the 1 replicas");
    }
    let stats = master.client().await?.call("INFO commandstats").await?.text();
    let waits = stats.split("cmdstat_wait:calls=").nth(1).with_context(|| stats.clone())?;
    let waits: usize = waits.split(',').next().unwrap_or_default().parse()?;
    assert!(waits <= WORKERS / 2, "{waits} times for {WORKERS} workers");
    Ok(())
}

#[tokio::test]
async fn a_lock_is_rejected_at_once_if_replicas_are_absent() -> Result<()> {
    let master = master().await?;
    let _first = replica(&master).await?;
    let agent = Agent::with(&master, &["--min-replicas", "2"]).await?;
    let mut worker = agent.client().await?;
    for _ in 0..3 {
        let reply = worker.call("LOCK a").await?;
        assert_error(&reply, "UNAVAILABLE", "1 of the 2 replicas that must have it");
        assert_error(&reply, "UNAVAILABLE", "are connected");
    }
    assert_eq!(confirmations(&agent, "not_tried").await?, 3.0);
    assert_eq!(confirmations(&agent, "too_few").await?, 0.0);
    let scripts = agent.metrics().await?;
    let tried = scripts.sum("lockscope_agent_redis_seconds_count", &[("script", "acquire")]);
    assert_eq!(tried, 0.0, "no script was sent that had to be undone");
    let second = replica(&master).await?;
    let held = holder(&granted(&mut worker, "LOCK a").await)?;
    assert_eq!(fields(&second, "a").await?, [held]);
    Ok(())
}

#[tokio::test]
async fn a_user_without_permission_for_wait_gets_an_error() -> Result<()> {
    let master = master().await?;
    let _replica = replica(&master).await?;
    let agent = Agent::with(&master, &["--min-replicas", "1"]).await?;
    let (mut worker, mut direct) = (agent.client().await?, master.client().await?);
    direct.call("ACL SETUSER default -wait -role").await?.ok()?;
    assert_error(&worker.call("LOCK a").await?, "UNAVAILABLE", "WAIT is refused: NOPERM");
    until_gone(&master, "a").await;
    direct.call("ACL SETUSER default +wait").await?.ok()?;
    granted(&mut worker, "LOCK a").await;
    Ok(())
}

#[tokio::test]
async fn each_lock_in_a_cluster_needs_replicas_of_its_master() -> Result<()> {
    let cluster = RedisCluster::start(3, 1).await?;
    let agent = Agent::in_cluster(&cluster, &["--min-replicas", "1"]).await?;
    let names = cluster.names("with-replicas:");
    let mut worker = agent.client().await?;
    let held = holder(&granted(&mut worker, &format!("LOCK {}", names[0])).await)?;
    let mut there = cluster.client(3).await?;
    there.call("READONLY").await?.ok()?;
    let fields = there.call(&format!("HKEYS {}", names[0])).await?;
    assert_eq!(fields.items()?.iter().map(Reply::text).collect::<Vec<_>>(), [held]);
    for name in &names[1..] {
        let reply = worker.call(&format!("LOCK {name}")).await?;
        assert_error(&reply, "UNAVAILABLE", "0 of the 1 replicas");
    }
    Ok(())
}

#[tokio::test]
async fn renewals_continue_while_a_replica_is_stopped_and_extend_no_validity() -> Result<()> {
    let master = master().await?;
    let mut replica = replica(&master).await?;
    let agent = Agent::with(&master, &["--min-replicas", "1", "--lease", "20s"]).await?;
    let mut worker = agent.client_with_pushes().await?;
    granted(&mut worker, "LOCK a").await;
    let batches = async |outcome| {
        let labels = [("batch", "renewals"), ("outcome", outcome)];
        let metrics = agent.metrics().await?;
        anyhow::Ok((
            metrics.sum("lockscope_agent_replica_batches_total", &labels),
            metrics.sum("lockscope_agent_replicas_acknowledged", &[]),
        ))
    };
    eventually("a confirmed renewal", async || {
        let (confirmed, acknowledged) = batches("confirmed").await?;
        ensure!(confirmed >= 1.0 && acknowledged == 1.0, "{confirmed} {acknowledged}");
        Ok(())
    })
    .await;
    assert_eq!(worker.call("PING").await?.text(), "PONG");
    assert_eq!(worker.pushes(), 0, "no hold is in jeopardy");

    replica.process().freeze().await?;
    assert_eq!(worker.push().await?[0], "lock-jeopardy");
    let left = master.client().await?.call("PTTL a").await?.int()?;
    assert!(left > 7_000, "{left}: the confirmed lease has less left, so Redis was sent renewals");
    let (unconfirmed, acknowledged) = batches("unconfirmed").await?;
    assert!(unconfirmed >= 1.0 && acknowledged == 0.0, "{unconfirmed} {acknowledged}");
    replica.process().thaw()?;
    assert_eq!(worker.push().await?[0], "lock-safe");
    Ok(())
}

#[tokio::test]
async fn replicas_without_a_requirement_cause_a_warning_at_start() -> Result<()> {
    const WARNING: &str = "replicas without --min-replicas: a failover can grant a lock twice";
    let master = master().await?;
    let _replica = replica(&master).await?;
    let warned = async |name: &str, flags: &[&str]| {
        let mut agent = Agent::with(&master, flags).await?;
        granted(&mut agent.client().await?, &format!("LOCK {name}")).await;
        anyhow::Ok(agent.process().log().contains(WARNING))
    };
    assert!(warned("a", &[]).await?);
    assert!(!warned("b", &["--min-replicas", "1"]).await?);
    master.client().await?.call("CONFIG SET min-replicas-to-write 1").await?.ok()?;
    assert!(!warned("c", &[]).await?);
    Ok(())
}

#[tokio::test]
async fn a_replica_that_is_added_later_causes_the_warning_too() -> Result<()> {
    let master = master().await?;
    let mut agent = Agent::with(&master, &[]).await?;
    ensure!(!agent.process().log().contains("replicas without --min-replicas"));
    let _replica = replica(&master).await?;
    eventually("the warning", async || {
        ensure!(agent.process().log().contains("replicas without --min-replicas"));
        Ok(())
    })
    .await;
    Ok(())
}
