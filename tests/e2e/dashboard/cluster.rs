//! The dashboard on a Redis Cluster: the locks of all masters in one picture, slots that move, a master that fails.

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, Dashboard, RedisCluster, Reply, eventually, http};
use redisson::{ClientId, HolderId, LockName, keys};
use serde_json::Value;

use super::{HOLDER, held, lock, problems, take};
use crate::secure::{documented_users, refused};

/// Releases a lock and publishes the release as Redisson 3.22 and later do in a cluster.
async fn release(direct: &mut Client, name: &str) -> Result<()> {
    direct.call(&format!("DEL {name}")).await?.ok()?;
    direct.call(&format!("SPUBLISH redisson_lock__channel:{{{name}}} 0")).await?.ok()?;
    Ok(())
}

/// Returns the nodes at which a source has this state.
async fn nodes(dashboard: &Dashboard, source: &str, state: &str) -> Result<Vec<String>> {
    let json = dashboard.json("/api/v1/sources").await?;
    let rows = json["sources"].as_array().into_iter().flatten();
    let fits = rows.filter(|row| row["source"] == source && row["state"] == state);
    Ok(fits.map(|row| row["node"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Waits until a source has this state at these nodes, and at no others.
pub(super) async fn until(dashboard: &Dashboard, source: &str, state: &str, wanted: &[String]) {
    let mut wanted = wanted.to_vec();
    wanted.sort();
    eventually(&format!("{source} to be {state} at {wanted:?}"), async || {
        let mut found = nodes(dashboard, source, state).await?;
        found.sort();
        let json = dashboard.json("/api/v1/sources").await?;
        ensure!(found == wanted, "{found:?}: {}", json["sources"]);
        Ok(())
    })
    .await;
}

pub(super) fn addresses(cluster: &mut RedisCluster, places: &[usize]) -> Vec<String> {
    places.iter().map(|place| format!("127.0.0.1:{}", cluster.node(*place).port())).collect()
}

#[tokio::test]
async fn the_locks_of_all_masters_are_shown_together_and_released_on_their_node() -> Result<()> {
    let mut cluster = RedisCluster::start(3, 0).await?;
    let flags = ["--allow-release", "--insecure", "--monitor", "off"];
    let dashboard = Dashboard::start(&cluster.url(), &flags).await?;
    let names = cluster.names("one:");
    for (place, name) in names.iter().enumerate() {
        take(&mut cluster.client(place).await?, name).await?;
    }
    for name in &names {
        let lock = lock(&dashboard, name, held).await;
        assert_eq!((&lock["deployment"], &lock["db"]), (&"default".into(), &0.into()));
        assert_eq!(lock["holders"][0]["id"], HOLDER);
    }
    let all = addresses(&mut cluster, &[0, 1, 2]);
    for source in ["scan", "poll", "channels", "subscribers", "identity"] {
        until(&dashboard, source, "on", &all).await;
    }
    until(&dashboard, "monitor", "off", &all).await;
    eventually("the whole picture", async || {
        let sources = dashboard.json("/api/v1/sources").await?;
        ensure!(sources["first_scan"].is_null() && sources["counts"]["held"] == 3, "{sources}");
        let said = sources["limits"].to_string();
        ensure!(!said.contains("one node of a cluster") && !said.contains("served by"), "{said}");
        Ok(())
    })
    .await;
    let metrics = dashboard.metrics().await?;
    assert_eq!(metrics.sum("lockscope_dashboard_redis_up", &[]), 3.0);
    assert_eq!(metrics.sum("lockscope_dashboard_locks", &[("deployment", "default")]), 3.0);

    // Waiters are counted on both kinds of channel of a node, and release messages on shard channels are received.
    let channel = format!("redisson_lock__channel:{{{}}}", names[1]);
    let mut sharded = cluster.client(1).await?;
    sharded.call(&format!("SSUBSCRIBE {channel}")).await?.ok()?;
    let mut plain = cluster.client(1).await?;
    plain.call(&format!("SUBSCRIBE {channel}")).await?.ok()?;
    lock(&dashboard, &names[1], |lock| lock["waiting"] == 2).await;
    release(&mut cluster.client(1).await?, &names[1]).await?;
    lock(&dashboard, &names[1], |lock| lock["state"] == "free").await;

    for place in [0, 2] {
        let done = dashboard.release(&names[place], "lock").await?;
        assert_eq!(done["outcome"], "released", "{done}");
        let gone = cluster.client(place).await?.call(&format!("EXISTS {}", names[place])).await?;
        assert_eq!(gone.ok()?.text(), "0");
        let lock = lock(&dashboard, &names[place], |lock| lock["state"] == "free").await;
        assert_eq!(lock["past"][0]["ended"], "forced", "{lock}");
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_that_listens_on_both_kinds_of_channel_counts_once() -> Result<()> {
    let cluster = RedisCluster::start(1, 0).await?;
    let dashboard =
        Dashboard::start(&cluster.url(), &["--monitor", "off", "--scan-every", "1s"]).await?;
    take(&mut cluster.client(0).await?, "a").await?;
    lock(&dashboard, "a", held).await;
    let agent = Agent::in_cluster(&cluster, &[]).await?;
    let mut waiters = [agent.client().await?, agent.client().await?];
    for waiter in &mut waiters {
        waiter.send("LOCK a").await?;
    }
    lock(&dashboard, "a", |lock| lock["waiting"] == 2 && lock["waiters_exact"] == true).await;
    Ok(())
}

#[tokio::test]
async fn a_moving_slot_takes_its_locks_along() -> Result<()> {
    let cluster = RedisCluster::start(2, 0).await?;
    let dashboard =
        Dashboard::start(&cluster.url(), &["--allow-release", "--insecure", "--monitor", "off"])
            .await?;
    let name = cluster.names("moves:").swap_remove(0);
    take(&mut cluster.client(0).await?, &name).await?;
    lock(&dashboard, &name, held).await;
    let slot = redisson::slot(name.as_bytes());
    cluster.begin_move(slot, 0, 1).await?;
    cluster.move_keys(slot, 0, 1).await?;
    cluster.end_move(slot, 0, 1).await?;
    // Only the slot's new node has this count.
    take(&mut cluster.client(1).await?, &name).await?;
    let lock = lock(&dashboard, &name, |lock| lock["holders"][0]["count"] == 2).await;
    assert!(held(&lock), "{lock}");
    assert_eq!(lock["past"].as_array().map(Vec::len), Some(0), "it was never gone: {lock}");
    assert_eq!(problems(&lock), [""; 0]);
    let sources = dashboard.json("/api/v1/sources").await?;
    assert_eq!(sources["notices"].as_array().map(Vec::len), Some(0), "{sources}");
    let done = dashboard.release(&name, "lock").await?;
    assert_eq!(done["outcome"], "released", "{done}");
    assert_eq!(cluster.client(1).await?.call(&format!("EXISTS {name}")).await?.text(), "0");
    Ok(())
}

/// Runs a command on a node that is about to take over the slot.
async fn asked(direct: &mut Client, command: &str) -> Result<Reply> {
    direct.call("ASKING").await?.ok()?;
    direct.call(command).await?.ok()
}

#[tokio::test]
async fn a_lock_whose_slot_is_moving_is_read_where_it_is() -> Result<()> {
    let cluster = RedisCluster::start(2, 0).await?;
    let dashboard =
        Dashboard::start(&cluster.url(), &["--allow-release", "--insecure", "--monitor", "off"])
            .await?;
    let name = cluster.names("way:").swap_remove(0);
    // Another lock in the same slot.
    let fair = format!("{{{name}}}:fair");
    let slot = redisson::slot(name.as_bytes());
    let (mut here, mut there) = (cluster.client(0).await?, cluster.client(1).await?);
    let waiter = HOLDER.replace(":47", ":48");
    let (queue, deadlines) = (key(keys::queue, &fair), key(keys::deadlines, &fair));
    take(&mut here, &name).await?;
    take(&mut here, &fair).await?;
    here.call(&format!("RPUSH {queue} {waiter}")).await?.ok()?;
    here.call(&format!("ZADD {deadlines} 9000000000000 {waiter}")).await?.ok()?;
    let waits = |lock: &Value| lock["queue"][0]["id"] == waiter.as_str();
    lock(&dashboard, &name, held).await;
    lock(&dashboard, &fair, |lock| held(lock) && waits(lock)).await;

    cluster.begin_move(slot, 0, 1).await?;
    let count = |n: u64| move |lock: &Value| held(lock) && lock["holders"][0]["count"] == n;
    // The lock is still on the old node, while one of its companion keys has moved.
    cluster.move_key(&queue, 0, 1).await?;
    here.call(&format!("HINCRBY {fair} {HOLDER} 1")).await?.ok()?;
    let seen = lock(&dashboard, &fair, count(2)).await;
    assert!(waits(&seen), "who waits is as last seen: {seen}");
    // The lock has moved, while one of its companion keys has not.
    cluster.move_key(&fair, 0, 1).await?;
    asked(&mut there, &format!("HINCRBY {fair} {HOLDER} 1")).await?;
    let seen = lock(&dashboard, &fair, count(3)).await;
    assert!(waits(&seen), "who waits is as last seen: {seen}");
    cluster.move_key(&name, 0, 1).await?;
    asked(&mut there, &format!("HINCRBY {name} {HOLDER} 1")).await?;
    lock(&dashboard, &name, count(2)).await;
    // Everything is on the new node and is read there.
    cluster.move_key(&deadlines, 0, 1).await?;
    asked(&mut there, &format!("DEL {queue}")).await?;
    asked(&mut there, &format!("DEL {deadlines}")).await?;
    // A lock that never existed on the node that still serves the slot.
    let new = format!("{{{name}}}:new");
    asked(&mut there, &format!("HINCRBY {new} {HOLDER} 1")).await?;
    asked(&mut there, &format!("PEXPIRE {new} 3600000")).await?;
    lock(&dashboard, &new, held).await;
    for name in [&name, &fair, &new] {
        let seen = lock(&dashboard, name, held).await;
        assert_eq!((problems(&seen), &seen["past"]), (Vec::new(), &Value::Array(vec![])), "{seen}");
    }
    // A lock that is released on the new node is free.
    asked(&mut there, &format!("DEL {new}")).await?;
    let seen = lock(&dashboard, &new, |lock| lock["state"] == "free").await;
    assert_eq!(problems(&seen), [""; 0]);
    // No node runs a release yet, because some of its keys are elsewhere. The dashboard tries again until one does, but
    // for no longer than a request may take.
    let given_up = dashboard.release(&name, "lock").await?;
    assert_eq!(given_up["outcome"], "refused", "{given_up}");
    let ended = async {
        eventually("the release to be tried again", async || {
            let stats = there.call("INFO commandstats").await?.text();
            let rows = stats.lines().filter(|row| row.starts_with("cmdstat_evalsha:"));
            let rejected =
                rows.filter_map(|row| row.split_once("rejected_calls=")?.1.split(',').next());
            let rejected: u64 = rejected.filter_map(|count| count.parse::<u64>().ok()).sum();
            ensure!(rejected >= 3, "{stats}");
            Ok(())
        })
        .await;
        cluster.end_move(slot, 0, 1).await
    };
    let (mut done, ended) = tokio::join!(dashboard.release(&name, "lock"), ended);
    ended?;
    if let Ok(given_up) = &done
        && given_up["outcome"] == "refused"
    {
        // On a machine that stalled for long, the dashboard may have given up.
        assert!(given_up["detail"].to_string().contains("its slot is moving"), "{given_up}");
        done = dashboard.release(&name, "lock").await;
    }
    assert_eq!(done?["outcome"], "released");
    there.call(&format!("HINCRBY {fair} {HOLDER} 1")).await?.ok()?;
    let seen = lock(&dashboard, &fair, |lock| count(4)(lock) && !waits(lock)).await;
    assert_eq!((problems(&seen), &seen["past"]), (Vec::new(), &Value::Array(vec![])), "{seen}");
    let sources = dashboard.json("/api/v1/sources").await?;
    assert_eq!(sources["notices"].as_array().map(Vec::len), Some(0), "{sources}");
    Ok(())
}

#[tokio::test]
async fn an_added_node_is_queried_for_its_moving_slot_and_then_scanned() -> Result<()> {
    let mut cluster = RedisCluster::start(2, 0).await?;
    let dashboard = Dashboard::start(&cluster.url(), &["--monitor", "off"]).await?;
    let name = cluster.names("first:").swap_remove(1);
    take(&mut cluster.client(1).await?, &name).await?;
    lock(&dashboard, &name, held).await;
    let new = cluster.join().await?;
    let slot = redisson::slot(name.as_bytes());
    cluster.begin_move(slot, 1, new).await?;
    cluster.move_keys(slot, 1, new).await?;
    let mut there = cluster.client(new).await?;
    asked(&mut there, &format!("HINCRBY {name} {HOLDER} 1")).await?;
    lock(&dashboard, &name, |lock| held(lock) && lock["holders"][0]["count"] == 2).await;
    until(&dashboard, "poll", "on", &addresses(&mut cluster, &[0, 1])).await;
    cluster.end_move(slot, 1, new).await?;
    until(&dashboard, "poll", "on", &addresses(&mut cluster, &[0, 1, new])).await;
    there.call(&format!("HINCRBY {name} {HOLDER} 1")).await?.ok()?;
    let seen = lock(&dashboard, &name, |lock| lock["holders"][0]["count"] == 3).await;
    assert_eq!((problems(&seen), &seen["past"]), (Vec::new(), &Value::Array(vec![])), "{seen}");
    // The node is no longer read once it has no slots again.
    cluster.begin_move(slot, new, 1).await?;
    cluster.move_keys(slot, new, 1).await?;
    cluster.end_move(slot, new, 1).await?;
    until(&dashboard, "poll", "on", &addresses(&mut cluster, &[0, 1])).await;
    cluster.client(1).await?.call(&format!("HINCRBY {name} {HOLDER} 1")).await?.ok()?;
    let seen = lock(&dashboard, &name, |lock| lock["holders"][0]["count"] == 4).await;
    assert_eq!((problems(&seen), &seen["past"]), (Vec::new(), &Value::Array(vec![])), "{seen}");
    Ok(())
}

/// Returns a companion key of a lock.
fn key(of: impl Fn(&LockName) -> Vec<u8>, name: &str) -> String {
    let name = LockName::new(name.as_bytes()).expect("a name");
    String::from_utf8(of(&name)).expect("text")
}

#[tokio::test]
async fn a_failover_is_followed_and_its_losses_are_one_notice() -> Result<()> {
    let mut cluster = RedisCluster::start(3, 1).await?;
    let replica = 3;
    let dashboard = Dashboard::start(&cluster.url(), &["--monitor", "off"]).await?;
    let kept = cluster.names("kept:");
    let lost = cluster.names("lost:").swap_remove(0);
    for (place, name) in kept.iter().enumerate() {
        take(&mut cluster.client(place).await?, name).await?;
        lock(&dashboard, name, held).await;
    }
    let mut direct = cluster.client(replica).await?;
    direct.call("READONLY").await?.ok()?;
    eventually("the replica to have the lock", async || {
        let ttl = direct.call(&format!("PTTL {}", kept[0])).await?.text();
        ensure!(ttl.parse::<i64>()? > 0, "{ttl}");
        Ok(())
    })
    .await;
    // The replica stops following its master and cannot start again.
    direct.call("CONFIG SET masterauth nonsense").await?.ok()?;
    direct.call("CLIENT KILL TYPE master").await?.ok()?;
    take(&mut cluster.client(0).await?, &lost).await?;
    lock(&dashboard, &lost, held).await;
    eventually("the whole picture", async || {
        let sources = dashboard.json("/api/v1/sources").await?;
        ensure!(sources["first_scan"].is_null(), "{sources}");
        Ok(())
    })
    .await;

    cluster.node(0).process().kill()?;
    // The lock of the failed node stays listed as unknown, while the others are still read.
    lock_as_listed(&dashboard, &kept[0], "unknown").await;
    lock_as_listed(&dashboard, &kept[1], "held").await;
    cluster.take_over(replica).await?;
    let now = addresses(&mut cluster, &[1, 2, replica]);
    for source in ["poll", "channels"] {
        until(&dashboard, source, "on", &now).await;
    }
    let lock_kept = lock(&dashboard, &kept[0], held).await;
    assert_eq!((problems(&lock_kept), &lock_kept["past"]), (Vec::new(), &Value::Array(vec![])));
    let lock_lost = lock(&dashboard, &lost, |lock| lock["state"] == "free").await;
    assert_eq!(lock_lost["past"][0]["ended"], "restarted", "{lock_lost}");
    assert_eq!(problems(&lock_lost), [""; 0]);
    eventually("one notice", async || {
        let sources = dashboard.json("/api/v1/sources").await?;
        let notices = sources["notices"].as_array().map(Vec::as_slice).unwrap_or_default();
        ensure!(notices.len() == 1, "{notices:?}");
        let text = notices[0].to_string();
        ensure!(text.contains("1 held lock was gone"), "{text}");
        ensure!(sources["first_scan"].is_null(), "the picture was whole: {sources}");
        Ok(())
    })
    .await;
    let metrics = dashboard.metrics().await?;
    assert_eq!(metrics.sum("lockscope_dashboard_redis_up", &[]), 3.0);
    let dead = format!("127.0.0.1:{}", cluster.node(0).port());
    assert!(!metrics.0.contains(&dead), "nothing is told of the node that is gone");
    // Messages that reach all nodes are received at a node that is alive.
    eventually("a node where they are heard", async || {
        let json = dashboard.json("/api/v1/sources").await?;
        let rows = json["sources"].as_array().into_iter().flatten();
        let mut details = rows.filter_map(|row| row["detail"].as_str());
        ensure!(
            details.any(|detail| detail.starts_with("release messages are received,")),
            "{json}"
        );
        Ok(())
    })
    .await;
    direct.call(&format!("DEL {}", kept[0])).await?.ok()?;
    direct.call(&format!("PUBLISH redisson_lock__channel:{{{}}} 0", kept[0])).await?.ok()?;
    lock(&dashboard, &kept[0], |lock| {
        let heard = lock["sources"].as_array().is_some_and(|all| all.contains(&"channels".into()));
        lock["state"] == "free" && heard
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_lock_that_cannot_be_read_has_the_reason_of_its_own_node() -> Result<()> {
    let mut cluster = RedisCluster::start(3, 0).await?;
    let dashboard = Dashboard::start(&cluster.url(), &["--monitor", "off"]).await?;
    let all = addresses(&mut cluster, &[0, 1, 2]);
    until(&dashboard, "poll", "on", &all).await;
    cluster.node(0).process().kill()?;
    cluster.node(1).process().freeze().await?;
    let names = cluster.names("new:");
    let why = async |place: usize| -> Result<String> {
        let path = format!("/api/v1/lock?name={}", names[place]);
        let answer = http::get(dashboard.port(), &path).await?;
        ensure!(answer.status == 503, "{}", answer.body);
        Ok(answer.body)
    };
    eventually("the reason of each node", async || {
        let sources = dashboard.json("/api/v1/sources").await?;
        let mut reasons = Vec::new();
        for place in [0, 1] {
            let mut servers = sources["servers"].as_array().into_iter().flatten();
            let server = servers.find(|server| server["node"] == *all[place]);
            let reason = server.and_then(|server| server["down"]["reason"].as_str());
            let (reason, why) = (reason.unwrap_or("none").to_owned(), why(place).await?);
            ensure!(why.contains(&reason), "{why}, not {reason}");
            reasons.push(reason);
        }
        ensure!(reasons[0] != reasons[1], "{reasons:?}");
        Ok(())
    })
    .await;
    cluster.node(1).process().thaw()?;
    Ok(())
}

/// Lets an agent whose registry keys are on the node at that place hold a lock, and publishes it as `host-PLACE`.
async fn hold_at_agent(cluster: &RedisCluster, place: usize, name: &str) -> Result<()> {
    let ids = (0..=u8::MAX).map(|n| ClientId::from_random([n; 16]));
    let at_place = |id: &ClientId| cluster.home(&String::from_utf8_lossy(&id.text())) == place;
    let client = ids.into_iter().find(at_place).context("no id has a slot of that node")?;
    let id = HolderId::new(client, 1_700_000_000 << 30);
    let host = format!("host-{place}");
    let entry = r#"{"pid":7,"uid":0,"comm":"job","session":"s","since":1,"owner":0}"#;
    let (agent, holders) = (keys::agent(&client), keys::agent_holders(&client));
    let (agent, holders) = (String::from_utf8(agent)?, String::from_utf8(holders)?);
    let mut node = cluster.client(place).await?;
    node.call_args(&["HSET", &agent, "host", &host, "pid", "7"]).await?.ok()?;
    node.call_args(&["HSET", &holders, &id.thread.to_string(), entry]).await?.ok()?;
    let mut home = cluster.client(cluster.home(name)).await?;
    home.call(&format!("HSET {name} {id} 1")).await?.ok()?;
    home.call(&format!("PEXPIRE {name} 3600000")).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn holders_are_identified_while_the_node_of_another_agent_is_down() -> Result<()> {
    let mut cluster = RedisCluster::start(3, 0).await?;
    for place in 0..3 {
        let partly = "CONFIG SET cluster-require-full-coverage no";
        cluster.client(place).await?.call(partly).await?.ok()?;
    }
    let at_first = |prefix: &str| cluster.names(prefix).swap_remove(0);
    let (before, after) = (at_first("before:"), at_first("after:"));
    let dashboard = Dashboard::start(&cluster.url(), &["--monitor", "off"]).await?;
    let held_at = |host: &'static str| {
        move |lock: &Value| lock["holders"][0]["client"]["host"].as_str() == Some(host)
    };
    hold_at_agent(&cluster, 2, &before).await?;
    lock(&dashboard, &before, held_at("host-2")).await;
    cluster.node(2).process().kill()?;
    let lost = addresses(&mut cluster, &[2]);
    until(&dashboard, "poll", "down", &lost).await;
    hold_at_agent(&cluster, 1, &after).await?;
    lock(&dashboard, &after, held_at("host-1")).await;
    Ok(())
}

/// Waits until the list shows the lock in that state.
async fn lock_as_listed(dashboard: &Dashboard, name: &str, state: &str) {
    eventually(&format!("`{name}` to be {state}"), async || {
        let list = dashboard.json("/api/v1/locks?limit=100").await?;
        let lock = super::find(&list, name);
        ensure!(lock.is_some_and(|lock| lock["state"] == state), "{list}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn the_documented_users_suffice() -> Result<()> {
    let cluster = RedisCluster::start(2, 0).await?;
    for place in 0..2 {
        let mut direct = cluster.client(place).await?;
        documented_users(&mut direct, false).await?;
        direct
            .call_args(&["CONFIG", "SET", "client-output-buffer-limit", "normal 32mb 0 0"])
            .await?
            .ok()?;
    }
    let as_user =
        |user: &str| cluster.url().replace("://", &format!("://lockscope-{user}:{user}-password@"));
    let (tap, releaser) = (as_user("tap"), as_user("releaser"));
    let flags = [
        "--monitor",
        "on",
        "--monitor-redis-url",
        &*tap,
        "--allow-release",
        "--insecure",
        "--release-redis-url",
        &*releaser,
    ];
    let dashboard = Dashboard::start(&as_user("observer"), &flags).await?;
    let names = cluster.names("mine:");
    for (place, name) in names.iter().enumerate() {
        take(&mut cluster.client(place).await?, name).await?;
        lock(&dashboard, name, held).await;
    }
    for source in ["scan", "poll", "channels", "subscribers", "identity", "monitor"] {
        eventually(&format!("{source} at both nodes"), async || {
            let found = nodes(&dashboard, source, "on").await?;
            ensure!(found.len() == 2, "{found:?}");
            Ok(())
        })
        .await;
    }
    for name in &names {
        let done = dashboard.release(name, "lock").await?;
        assert_eq!(done["outcome"], "released", "{done}");
    }
    for place in 0..2 {
        let refused = refused(&mut cluster.client(place).await?).await?;
        assert_eq!(refused, Vec::<String>::new(), "node {place}");
    }
    Ok(())
}
