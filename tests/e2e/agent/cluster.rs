//! The agent on a Redis Cluster: every kind on every node, waiters woken across agents, slots that move, masters that die.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, RedisCluster, RedisServer, Reply, eventually, http};

use super::grace::{GRACE, graced, resume};
use super::{assert_error, holder, lock};
use crate::secure::{certificate, certificate_of, documented_users, refused};

/// A lease and a poll interval too long for any test: only messages and reconnects wake waiters.
const ENDLESS: [&str; 4] = ["--lease", "10m", "--poll-max", "10m"];

/// Every kind that a cluster supports, with the channel of its releases; `NAME` stands for the lock's name.
const KINDS: [(&str, &str); 5] = [
    ("lock", "redisson_lock__channel:{NAME}"),
    ("fenced", "redisson_lock__channel:{NAME}"),
    ("fair", "redisson_lock__channel:{NAME}:*"),
    ("read", "redisson_rwlock:{NAME}"),
    ("write", "redisson_rwlock:{NAME}"),
];

/// Returns the holders that a node shows, without counts.
async fn holders(direct: &mut Client, name: &str) -> Result<Vec<String>> {
    let reply = direct.call_args(&["HKEYS", name]).await?.ok()?;
    Ok(reply.items()?.iter().map(Reply::text).filter(|field| field != "mode").collect())
}

/// Returns the number of subscribers to matching channels on a node, by SUBSCRIBE and by SSUBSCRIBE.
async fn listeners(direct: &mut Client, pattern: &str) -> Result<(usize, usize)> {
    let mut count = async |verb: &str| {
        anyhow::Ok(direct.call_args(&["PUBSUB", verb, pattern]).await?.ok()?.items()?.len())
    };
    Ok((count("CHANNELS").await?, count("SHARDCHANNELS").await?))
}

/// Waits until a node has that many subscribers to these channels.
async fn until_subscribed_to(direct: &mut Client, pattern: &str, wanted: (usize, usize)) {
    eventually("the waiter's subscription", async || {
        let found = listeners(direct, pattern).await?;
        ensure!(found == wanted, "{found:?} listen to {pattern}");
        Ok(())
    })
    .await;
}

async fn until_ready(agent: &Agent) {
    eventually("the agent to reach the whole cluster", async || {
        let ready = http::get(agent.http(), "/readyz").await?;
        ensure!(ready.status == 200, "{}", ready.body);
        Ok(())
    })
    .await;
}

/// Returns the number of successful renewals.
async fn renewed(agent: &Agent) -> Result<f64> {
    Ok(agent.metrics().await?.sum("lockscope_agent_renewals_total", &[("outcome", "renewed")]))
}

#[tokio::test]
async fn every_kind_is_acquired_on_every_node() -> Result<()> {
    let cluster = RedisCluster::start(3, 0).await?;
    let agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    let mut worker = agent.client().await?;
    for (kind, _) in KINDS {
        for (node, name) in cluster.names(&format!("{kind}:")).iter().enumerate() {
            let mut direct = cluster.client(node).await?;
            let held = holder(&lock(&mut worker, &format!("LOCK {name} KIND {kind}")).await?)?;
            assert_eq!(holders(&mut direct, name).await?, [held.as_str()], "{kind} at {node}");
            let shown = worker.call(&format!("SHOW {name}")).await?.ok()?.text();
            assert!(shown.contains(&held), "{shown}");
            assert_eq!(worker.call(&format!("UNLOCK {name}")).await?, Reply::Int(0));
            assert_eq!(holders(&mut direct, name).await?, [""; 0]);
            // A forced release works too; the worker is notified by a message that any node may send.
            lock(&mut worker, &format!("LOCK {name} KIND {kind}")).await?;
            assert_eq!(worker.call(&format!("FORCE {name}")).await?, Reply::Int(1));
            eventually("the loss to be reported", async || {
                let reply = worker.call(&format!("UNLOCK {name}")).await?;
                ensure!(reply.is_error("LOST"), "{reply}");
                Ok(())
            })
            .await;
        }
    }
    let names = cluster.names("several:").join(" ");
    let all = worker.call(&format!("MLOCK 3 {names}")).await?.ok()?;
    assert_eq!(all.items()?.len(), 3);
    assert_eq!(worker.call("HOLDS").await?.items()?.len(), 3);
    worker.call(&format!("MUNLOCK 3 {names}")).await?.ok()?;
    // The channel and the queue of such a name are in another slot than the lock, so no script may touch both.
    for command in ["LOCK a{b", "LOCK a}b NOWAIT", "MLOCK 2 c a{b", "SHOW {}a", "FORCE a{b"] {
        assert_error(&worker.call(command).await?, "LIMIT", "braces");
    }
    lock(&mut worker, "LOCK {tag}b").await?;
    let metrics = agent.metrics().await?;
    assert_eq!(metrics.sum("lockscope_agent_redis_up", &[]), 3.0, "one for each master");
    // Each key of the holder registry is on the node of its slot.
    eventually("the holder to be published", async || {
        let mut published = 0;
        for node in 0..3 {
            let keys = cluster.client(node).await?.call("KEYS lockscope:holders:*").await?;
            published += keys.items()?.len();
        }
        ensure!(published == 1, "{published} nodes have the entry");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn every_hold_is_renewed_on_its_node() -> Result<()> {
    let cluster = RedisCluster::start(3, 0).await?;
    let agent = Agent::in_cluster(&cluster, &["--lease", "10s"]).await?;
    let mut worker = agent.client().await?;
    // Several locks in one slot, several slots on one node, and readers, which have a script for themselves.
    let mut names: Vec<String> = (0..30).map(|n| format!("job:{n}")).collect();
    names.extend((0..5).map(|n| format!("{{one}}{n}")));
    for name in &names {
        lock(&mut worker, &format!("LOCK {name}")).await?;
        lock(&mut worker, &format!("LOCK r:{name} KIND read")).await?;
    }
    let count = names.len() * 2;
    eventually("each to be renewed twice over", async || {
        let renewed = renewed(&agent).await?;
        ensure!(renewed >= 2.0 * count as f64, "{renewed}");
        Ok(())
    })
    .await;
    assert_eq!(worker.call("HOLDS").await?.items()?.len(), count, "none is lost");
    let metrics = agent.metrics().await?;
    for error in ["CROSSSLOT", "MOVED"] {
        let count = metrics.sum("lockscope_agent_redis_errors_total", &[("error", error)]);
        assert_eq!(count, 0.0, "no node was sent a command for another node's slot: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_release_wakes_the_waiters_of_another_agent() -> Result<()> {
    let cluster = RedisCluster::start(3, 0).await?;
    let agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    let other_agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    for (kind, channel) in KINDS {
        for (node, name) in cluster.names(&format!("{kind}:")).iter().enumerate() {
            let mut direct = cluster.client(node).await?;
            let (mut worker, mut waiter) = (agent.client().await?, other_agent.client().await?);
            // A reader waits for a writer; every other kind waits for a holder of the same kind.
            let taken = if kind == "read" { "write" } else { kind };
            lock(&mut worker, &format!("LOCK {name} KIND {taken}")).await?;
            waiter.send(&format!("LOCK {name} KIND {kind}")).await?;
            until_subscribed_to(&mut direct, &channel.replace("NAME", name), (1, 1)).await;
            assert_eq!(worker.call(&format!("UNLOCK {name}")).await?, Reply::Int(0));
            let held = holder(&waiter.reply().await?.ok()?)?;
            assert_eq!(holders(&mut direct, name).await?, [held], "{kind} at {node}");
            until_subscribed_to(&mut direct, &channel.replace("NAME", name), (0, 0)).await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn releases_are_published_and_received_as_configured() -> Result<()> {
    let cluster = RedisCluster::start(1, 0).await?;
    let mut direct = cluster.client(0).await?;
    let both = Agent::in_cluster(&cluster, &ENDLESS).await?;
    for (how, subscriptions) in [("publish", (1, 0)), ("spublish", (0, 1))] {
        let flags = [ENDLESS.as_slice(), &["--cluster-messages", how]].concat();
        let agent = Agent::in_cluster(&cluster, &flags).await?;
        // Both directions: an agent with both kinds of message understands an agent with one kind, and is understood by it.
        for (from, to) in [(&agent, &both), (&both, &agent)] {
            let (mut worker, mut waiter) = (from.client().await?, to.client().await?);
            lock(&mut worker, "LOCK a").await?;
            waiter.send("LOCK a").await?;
            let subscriptions = if std::ptr::eq(to, &both) { (1, 1) } else { subscriptions };
            until_subscribed_to(&mut direct, "redisson_lock__channel:{a}", subscriptions).await;
            assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
            waiter.reply().await?.ok()?;
            assert_eq!(waiter.call("UNLOCK a").await?, Reply::Int(0));
            until_subscribed_to(&mut direct, "redisson_lock__channel:{a}", (0, 0)).await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_old_cluster_uses_publish_alone() -> Result<()> {
    let cluster = RedisCluster::old().await?;
    let agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    let other_agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    let mut direct = cluster.client(0).await?;
    let (mut worker, mut waiter) = (agent.client().await?, other_agent.client().await?);
    lock(&mut worker, "LOCK a").await?;
    waiter.send("LOCK a").await?;
    eventually("the waiter's subscription", async || {
        let found = direct.call("PUBSUB CHANNELS redisson_lock__channel:{a}").await?;
        ensure!(found.items()?.len() == 1, "{found}");
        Ok(())
    })
    .await;
    assert_eq!(worker.call("UNLOCK a").await?, Reply::Int(0));
    waiter.reply().await?.ok()?;
    for agent in [&agent, &other_agent] {
        let metrics = agent.metrics().await?;
        let unknown = metrics.sum("lockscope_agent_redis_errors_total", &[("error", "ERR")]);
        assert_eq!(unknown, 0.0, "no script called a command that this Redis does not have");
    }
    Ok(())
}

#[tokio::test]
async fn locks_and_waiters_survive_the_move_of_their_slot() -> Result<()> {
    let cluster = RedisCluster::start(2, 0).await?;
    let agent = Agent::in_cluster(&cluster, &["--lease", "15s"]).await?;
    // This agent notices the move only because its subscription ends.
    let flags = [ENDLESS.as_slice(), &["--cluster-messages", "spublish"]].concat();
    let other_agent = Agent::in_cluster(&cluster, &flags).await?;
    let name = cluster.names("moves:").swap_remove(0);
    let slot = redisson::slot(name.as_bytes());
    let (mut worker, mut waiter) = (agent.client().await?, other_agent.client().await?);
    let held = holder(&lock(&mut worker, &format!("LOCK {name}")).await?)?;
    waiter.send(&format!("LOCK {name}")).await?;
    let channel = format!("redisson_lock__channel:{{{name}}}");
    until_subscribed_to(&mut cluster.client(0).await?, &channel, (0, 1)).await;

    // The lock is on the new node while the slot is still on the old one.
    cluster.begin_move(slot, 0, 1).await?;
    cluster.move_keys(slot, 0, 1).await?;
    let before = renewed(&agent).await?;
    eventually("redirected renewals", async || {
        let since = renewed(&agent).await? - before;
        ensure!(since >= 2.0, "{since}");
        Ok(())
    })
    .await;
    cluster.end_move(slot, 0, 1).await?;

    let mut direct = cluster.client(1).await?;
    until_subscribed_to(&mut direct, &channel, (0, 1)).await;
    assert_eq!(holders(&mut direct, &name).await?, [held]);
    assert_eq!(worker.call(&format!("UNLOCK {name}")).await?, Reply::Int(0));
    let next = holder(&waiter.reply().await?.ok()?)?;
    assert_eq!(holders(&mut direct, &name).await?, [next]);
    let moved =
        agent.metrics().await?.sum("lockscope_agent_redis_errors_total", &[("error", "ASK")]);
    assert!(moved > 0.0, "the old node redirected the agent");
    Ok(())
}

#[tokio::test]
async fn a_lock_is_released_while_its_slot_moves() -> Result<()> {
    let cluster = RedisCluster::start(2, 0).await?;
    let agent = Agent::in_cluster(&cluster, &[]).await?;
    let other_agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    for (kind, channel) in &KINDS[..3] {
        let name = cluster.names(&format!("{kind}:")).swap_remove(0);
        let slot = redisson::slot(name.as_bytes());
        let (mut worker, mut waiter) = (agent.client().await?, other_agent.client().await?);
        lock(&mut worker, &format!("LOCK {name} KIND {kind}")).await?;
        waiter.send(&format!("LOCK {name} KIND {kind}")).await?;
        let mut direct = cluster.client(0).await?;
        until_subscribed_to(&mut direct, &channel.replace("NAME", &name), (1, 1)).await;

        // The keys are still on the old node, on which a key that disappears counts as moved.
        cluster.begin_move(slot, 0, 1).await?;
        let released = worker.call(&format!("UNLOCK {name} KIND {kind}")).await?;
        assert_eq!(released, Reply::Int(0), "{kind}");
        cluster.move_keys(slot, 0, 1).await?;
        cluster.end_move(slot, 0, 1).await?;
        waiter.reply().await?.ok()?;
    }
    Ok(())
}

#[tokio::test]
async fn a_half_moved_slot_loses_no_reader() -> Result<()> {
    let cluster = RedisCluster::start(2, 0).await?;
    // The reader is not renewed while its markers are moved, which must take less than a third of this.
    let agent = Agent::in_cluster(&cluster, &["--lease", "20s"]).await?;
    let mut worker = agent.client_with_pushes().await?;
    let name = cluster.names("moves:").swap_remove(0);
    // Enough locks for one script to renew several.
    let locks = |at: &str| (0..20).map(|n| format!("{at}:{n}:{{{name}}}")).collect::<Vec<_>>();
    let (staying, going) = (locks("stays"), locks("goes"));
    for _ in 0..2 {
        lock(&mut worker, &format!("LOCK {name} KIND read")).await?;
    }
    for lock_name in staying.iter().chain(&going) {
        lock(&mut worker, &format!("LOCK {lock_name}")).await?;
    }
    let slot = redisson::slot(name.as_bytes());
    let (mut old, mut new) = (cluster.client(0).await?, cluster.client(1).await?);
    let mut markers = Vec::new();
    eventually("both read holds to have their markers", async || {
        let keys = old.call(&format!("CLUSTER GETKEYSINSLOT {slot} 1000")).await?.ok()?;
        markers = keys.items()?.iter().map(Reply::text).collect();
        markers.retain(|key| key.contains(":rwlock_timeout:"));
        ensure!(markers.len() == 2, "{markers:?}");
        Ok(())
    })
    .await;

    // The lock is on the new node; its markers and the other locks are still on the old one.
    cluster.begin_move(slot, 0, 1).await?;
    cluster.move_key(&name, 0, 1).await?;
    eventually("a renewal that would restore the markers to be refused", async || {
        let metrics = agent.metrics().await?;
        let refused = metrics.sum("lockscope_agent_redis_errors_total", &[("error", "TRYAGAIN")]);
        ensure!(refused > 0.0, "{refused}");
        Ok(())
    })
    .await;
    // The move is interrupted. These commands would be refused if the markers had also been written on the new node.
    let mut moved = [markers, going].concat();
    for key in &moved {
        cluster.move_key(key, 0, 1).await?;
    }
    moved.push(name.clone());
    for key in &moved {
        new.call("ASKING").await?.ok()?;
        assert_eq!(new.call_args(&["PEXPIRE", key, "15000"]).await?, Reply::Int(1));
    }
    for key in &staying {
        assert_eq!(old.call_args(&["PEXPIRE", key, "15000"]).await?, Reply::Int(1));
    }
    let mut renewed = HashSet::new();
    eventually("all to be renewed", async || {
        for key in &moved {
            new.call("ASKING").await?.ok()?;
            let left = new.call_args(&["PTTL", key]).await?.int()?;
            ensure!(left > 15_000 || renewed.contains(key), "{key}: {left}");
            renewed.insert(key);
        }
        for key in &staying {
            let left = old.call_args(&["PTTL", key]).await?.int()?;
            ensure!(left > 15_000 || renewed.contains(key), "{key}: {left}");
            renewed.insert(key);
        }
        Ok(())
    })
    .await;
    cluster.move_keys(slot, 0, 1).await?;
    cluster.end_move(slot, 0, 1).await?;

    for left in [1, 0] {
        assert_eq!(worker.call(&format!("UNLOCK {name} KIND read")).await?, Reply::Int(left));
    }
    for lock_name in locks("stays").iter().chain(&locks("goes")) {
        assert_eq!(worker.call(&format!("UNLOCK {lock_name}")).await?, Reply::Int(0));
    }
    assert_eq!(worker.pushes(), 0, "nothing was in jeopardy");
    let rest = new.call(&format!("CLUSTER COUNTKEYSINSLOT {slot}")).await?.int()?;
    assert_eq!(rest, 0, "keys of released locks");
    Ok(())
}

#[tokio::test]
async fn a_promoted_replica_keeps_its_locks_and_missing_ones_are_reported() -> Result<()> {
    let mut cluster = RedisCluster::start(3, 1).await?;
    let replica = 3;
    let agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    let other_agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    let kept = cluster.names("kept:").swap_remove(0);
    let (lost, elsewhere) = {
        let mut names = cluster.names("lost:");
        (names.swap_remove(0), names.swap_remove(1))
    };
    let mut worker = agent.client_with_pushes().await?;
    let held = holder(&lock(&mut worker, &format!("LOCK {kept}")).await?)?;
    lock(&mut worker, &format!("LOCK {elsewhere}")).await?;
    let mut waiter = other_agent.client().await?;
    waiter.send(&format!("LOCK {kept}")).await?;
    let channel = format!("redisson_lock__channel:{{{kept}}}");
    until_subscribed_to(&mut cluster.client(0).await?, &channel, (1, 1)).await;

    let mut direct = cluster.client(replica).await?;
    direct.call("READONLY").await?.ok()?;
    eventually("the replica to have the lock", async || {
        let found = holders(&mut direct, &kept).await?;
        ensure!(found == [held.as_str()], "{found:?}");
        Ok(())
    })
    .await;
    // The replica stops following its master and cannot start again.
    direct.call("CONFIG SET masterauth nonsense").await?.ok()?;
    direct.call("CLIENT KILL TYPE master").await?.ok()?;
    lock(&mut worker, &format!("LOCK {lost}")).await?;

    cluster.node(0).process().kill()?;
    let address = format!("127.0.0.1:{}", cluster.node(0).port());
    eventually("the agent to say which master is missing", async || {
        let ready = http::get(agent.http(), "/readyz").await?;
        ensure!(ready.status == 503 && ready.body.contains(&address), "{}", ready.body);
        Ok(())
    })
    .await;
    lock(&mut worker, &format!("LOCK {elsewhere}")).await?;
    cluster.take_over(replica).await?;
    assert_eq!(worker.push().await?, ["lock-lost", &lost, "lock", "missing"]);
    until_ready(&agent).await;
    until_subscribed_to(&mut direct, &channel, (1, 1)).await;
    assert_eq!(worker.call(&format!("UNLOCK {kept}")).await?, Reply::Int(0));
    let next = holder(&waiter.reply().await?.ok()?)?;
    assert_eq!(holders(&mut direct, &kept).await?, [next]);
    assert_eq!(worker.call(&format!("UNLOCK {elsewhere}")).await?, Reply::Int(1));
    assert_eq!(worker.pushes(), 0, "nothing else was lost");
    let metrics = agent.metrics().await?;
    let figures = metrics.0.lines().filter(|line| line.starts_with("lockscope_agent_redis_up{"));
    assert_eq!(figures.count(), 3, "the dead master is no longer one of the masters");
    assert_eq!(metrics.sum("lockscope_agent_redis_up", &[]), 3.0);
    Ok(())
}

#[tokio::test]
async fn a_successor_agent_recovers_holds_on_every_node() -> Result<()> {
    let cluster = RedisCluster::start(3, 0).await?;
    let mut agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    let mut worker = agent.client().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    let mut held = Vec::new();
    for (kind, prefix) in [("lock", "plain:"), ("read", "read:")] {
        for name in cluster.names(prefix) {
            lock(&mut worker, &format!("LOCK {name} KIND {kind}")).await?;
            held.push(format!("{name} {kind} 1"));
        }
    }
    let gone = cluster.names("plain:").swap_remove(2);
    agent.process().kill()?;
    cluster.client(2).await?.call(&format!("DEL {gone}")).await?.ok()?;
    agent.restart().await?;
    let mut again = agent.client().await?;
    let (_, mut found) = resume(&mut again, &ticket).await?;
    held.retain(|hold| !hold.starts_with(&gone));
    held.sort();
    found.sort();
    assert_eq!(found, held, "each hold was looked up on its node");
    Ok(())
}

#[tokio::test]
async fn a_successor_agent_recovers_a_reader_while_its_slot_moves() -> Result<()> {
    let cluster = RedisCluster::start(2, 0).await?;
    let mut agent = Agent::in_cluster(&cluster, &ENDLESS).await?;
    let mut worker = agent.client().await?;
    let ticket = graced(&mut worker, GRACE).await?;
    let name = cluster.names("moves:").swap_remove(0);
    lock(&mut worker, &format!("LOCK {name} KIND read")).await?;
    let slot = redisson::slot(name.as_bytes());
    cluster.begin_move(slot, 0, 1).await?;
    agent.process().kill()?;
    agent.restart().await?;
    let mut again = agent.client().await?;
    let (_, found) = resume(&mut again, &ticket).await?;
    assert_eq!(found, [format!("{name} read 1")]);
    again.call(&format!("EXTEND {name} 1200000 KIND read")).await?.int()?;
    cluster.move_keys(slot, 0, 1).await?;
    cluster.end_move(slot, 0, 1).await?;
    assert_eq!(again.call(&format!("UNLOCK {name} KIND read")).await?, Reply::Int(0));
    Ok(())
}

#[tokio::test]
async fn a_wrong_url_is_explained() -> Result<()> {
    let cluster = RedisCluster::start(1, 0).await?;
    let alone = RedisServer::start().await?;
    let (node, single) = (cluster.url(), alone.url());
    let wrong = [
        (node.replace("+cluster", ""), "name it as redis+cluster://"),
        (single.replace("redis://", "redis+cluster://"), "cluster support disabled"),
    ];
    for (url, said) in wrong {
        let agent = Agent::at(&url, &[]).await?;
        eventually("the agent to say why it is not ready", async || {
            let ready = http::get(agent.http(), "/readyz").await?;
            ensure!(ready.status == 503 && ready.body.contains(said), "{}", ready.body);
            Ok(())
        })
        .await;
        assert_error(&agent.client().await?.call("LOCK a NOWAIT").await?, "UNAVAILABLE", "a");
    }
    Ok(())
}

#[tokio::test]
async fn the_documented_user_suffices() -> Result<()> {
    let cluster = RedisCluster::start(2, 0).await?;
    for node in 0..2 {
        documented_users(&mut cluster.client(node).await?, false).await?;
    }
    let url = cluster.url().replace("://", "://lockscope-agent:agent-password@");
    let agent = Agent::at(&url, &["--lease", "15s"]).await?;
    until_ready(&agent).await;
    let (mut worker, mut waiter) = (agent.client().await?, agent.client().await?);
    let names = cluster.names("mine:");
    for name in &names {
        lock(&mut worker, &format!("LOCK {name}")).await?;
    }
    // A lock of another client, to wait for.
    let java = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    let foreign = cluster.names("foreign:");
    let mut direct = cluster.client(1).await?;
    direct.call(&format!("HSET {} {java} 1", foreign[1])).await?.ok()?;
    waiter.send(&format!("LOCK {}", foreign[1])).await?;
    let channel = format!("redisson_lock__channel:{{{}}}", foreign[1]);
    until_subscribed_to(&mut direct, &channel, (1, 1)).await;
    direct.call(&format!("DEL {}", foreign[1])).await?.ok()?;
    direct.call(&format!("SPUBLISH {channel} 0")).await?.ok()?;
    waiter.reply().await?.ok()?;
    eventually("renewals", async || {
        let renewed = renewed(&agent).await?;
        ensure!(renewed >= 4.0, "{renewed}");
        Ok(())
    })
    .await;
    // A lock whose slot is moving.
    let slot = redisson::slot(names[0].as_bytes());
    cluster.begin_move(slot, 0, 1).await?;
    cluster.move_keys(slot, 0, 1).await?;
    assert_eq!(worker.call(&format!("UNLOCK {}", names[0])).await?, Reply::Int(0));
    for node in 0..2 {
        let refused = refused(&mut cluster.client(node).await?).await?;
        assert_eq!(refused, Vec::<String>::new(), "node {node}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cluster_is_reached_by_tls() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (cert, key) = certificate(folder.path())?;
    let cluster = RedisCluster::with_tls(3, &cert, &key).await?;
    let flags = [ENDLESS.as_slice(), &["--redis-ca-file", &cert]].concat();
    let (one, two) =
        (Agent::in_cluster(&cluster, &flags).await?, Agent::in_cluster(&cluster, &flags).await?);
    let (mut holding, mut waiting) = (one.client().await?, two.client().await?);
    for (node, name) in cluster.names("a").iter().enumerate() {
        let mut direct = cluster.client(node).await?;
        let held = holder(&lock(&mut holding, &format!("LOCK {name}")).await?)?;
        assert_eq!(holders(&mut direct, name).await?, [held]);
        waiting.send(&format!("LOCK {name}")).await?;
        until_subscribed_to(&mut direct, &KINDS[0].1.replace("NAME", name), (1, 1)).await;
        assert_eq!(holding.call(&format!("UNLOCK {name}")).await?, Reply::Int(0));
        let held = holder(&waiting.reply().await?.ok()?)?;
        assert_eq!(holders(&mut direct, name).await?, [held]);
    }
    // An agent that does not know the authority does not trust the servers.
    let stranger = Agent::at(&cluster.url(), &[]).await?;
    let reply = stranger.client().await?.call("LOCK b WAIT 300").await?;
    assert!(reply.is_error("UNAVAILABLE"), "{reply}");
    Ok(())
}

#[tokio::test]
async fn nodes_with_addresses_may_have_the_certificate_of_the_configured_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (cert, key) = certificate_of(folder.path(), &["localhost"])?;
    let cluster = RedisCluster::with_tls(3, &cert, &key).await?;
    let flags = [ENDLESS.as_slice(), &["--redis-ca-file", &cert]].concat();
    // As in Azure: one public name, and nodes that announce their addresses.
    let url = cluster.url();
    let (named, _others) = url.split_once(',').context("there is one node")?;
    let agent = Agent::at(&named.replace("127.0.0.1", "localhost"), &flags).await?;
    let mut worker = agent.client().await?;
    for name in cluster.names("a") {
        lock(&mut worker, &format!("LOCK {name} WAIT 20000")).await?;
    }
    // Without a configured name the certificate has to be valid for the addresses.
    let strict = Agent::at(named, &flags).await?;
    let reply = strict.client().await?.call("LOCK b WAIT 300").await?;
    assert!(reply.is_error("UNAVAILABLE"), "{reply}");
    Ok(())
}

#[tokio::test]
async fn an_agent_that_has_reached_no_node_counts_all_slots_as_unserved() -> Result<()> {
    let agent = Agent::at("redis+cluster://127.0.0.1:1", &[]).await?;
    eventually("the number of slots", async || {
        let slots = agent.metrics().await?.sum("lockscope_agent_unserved_slots", &[]);
        ensure!(slots == f64::from(redisson::slot::SLOTS), "{slots}");
        Ok(())
    })
    .await;
    Ok(())
}
