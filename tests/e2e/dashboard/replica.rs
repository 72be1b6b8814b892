//! The dashboard reading from a replica: the master has less load, and an unsuitable replica is no longer used.

use anyhow::{Context as _, Result, ensure};
use harness::redis::until_synchronized;
use harness::{Client, Dashboard, RedisServer, Sentinels, eventually, http};
use serde_json::Value;

use super::{held, lock, take};

fn address(server: &RedisServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// Waits until the dashboard reads this replica (the server itself if `None`) and all sources are on.
async fn until_read(dashboard: &Dashboard, replica: Option<&str>) {
    eventually(&format!("{replica:?} to be read"), async || {
        let json = dashboard.json("/api/v1/sources").await?;
        let server = &json["servers"][0];
        ensure!(server["down"].is_null() && server["replica"].as_str() == replica, "{server}");
        ensure!(json["first_scan"].is_null(), "the picture is not whole");
        for source in ["scan", "poll", "channels", "subscribers", "identity"] {
            let mut rows = json["sources"].as_array().into_iter().flatten();
            let on = rows.any(|row| row["source"] == source && row["state"] == "on");
            ensure!(on, "{source}: {}", json["sources"]);
        }
        Ok(())
    })
    .await;
}

/// Waits until this server lists its replica as online, and the replica has loaded the server's data.
async fn until_followed(direct: &mut Client, replica: &mut Client) {
    until_synchronized(replica).await;
    eventually("the replica to follow", async || {
        let told = direct.call("INFO replication").await?.text();
        ensure!(told.contains("state=online"), "{told}");
        Ok(())
    })
    .await;
}

/// Returns the commands for reading locks that this server has run.
async fn readings(direct: &mut Client) -> Result<Vec<String>> {
    let told = direct.call("INFO commandstats").await?.text();
    let asked = ["scan", "hlen", "hrandfield", "hmget", "monitor", "psubscribe"];
    let asked = asked.into_iter().filter(|verb| told.contains(&format!("cmdstat_{verb}:")));
    Ok(asked.map(str::to_owned).collect())
}

/// Returns the servers that the dashboard has reported to read from some instant on, the latest one first.
async fn switches(dashboard: &Dashboard) -> Result<Vec<String>> {
    let sources = dashboard.json("/api/v1/sources").await?;
    let notices = &sources["notices"];
    ensure!(!notices.to_string().contains("master now"), "{notices}");
    let texts = notices.as_array().into_iter().flatten();
    let switches = texts.filter_map(|notice| {
        let (server, _) = notice["text"].as_str()?.split_once(" is read from now on")?;
        Some(server.to_owned())
    });
    Ok(switches.collect())
}

/// Waits until a switch to this server has been reported, after those `before`. A host that stops for seconds makes the
/// dashboard switch to the other server and back, so there may be several more.
async fn until_switched(dashboard: &Dashboard, before: &[String], server: &str) {
    eventually(&format!("the switch to {server} to be reported"), async || {
        let switches = switches(dashboard).await?;
        let latest = switches.first().context("no switch")?;
        ensure!(switches.len() > before.len() && latest == server, "{switches:?}");
        Ok(())
    })
    .await;
}

/// Waits until the page names this reason for reading no replica.
async fn until_reason(dashboard: &Dashboard, reason: &str) {
    eventually(reason, async || {
        let limits = dashboard.json("/api/v1/sources").await?["limits"].to_string();
        ensure!(limits.contains("and no replica: ") && limits.contains(reason), "{limits}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_replica_is_read_in_place_of_the_master_until_it_is_unsuitable() -> Result<()> {
    let server = RedisServer::start().await?;
    let follows = format!("127.0.0.1 {}", server.port());
    let mut replica = RedisServer::with(&[("replicaof", &follows)]).await?;
    let mut direct = server.client().await?;
    let mut at_replica = replica.client().await?;
    until_followed(&mut direct, &mut at_replica).await;
    take(&mut direct, "first").await?;
    let flags = ["--read-from", "replica", "--monitor", "on", "--monitor-unbounded"];
    let flags = [flags.as_slice(), &["--allow-release", "--insecure"]].concat();
    let dashboard = Dashboard::start(&server.url(), &flags).await?;
    let (here, there) = (address(&server), address(&replica));
    until_read(&dashboard, Some(&there)).await;
    lock(&dashboard, "first", held).await;
    eventually("MONITOR to be on at the replica", async || {
        let clients = at_replica.call("CLIENT LIST").await?.text();
        ensure!(clients.lines().any(|client| client.contains("cmd=monitor")), "{clients}");
        Ok(())
    })
    .await;
    let page = http::get(dashboard.port(), "/sources").await?.body;
    assert!(page.contains(&format!("read from its replica {there}")), "{page}");
    // The master is read until there is a choice, if that takes seconds.
    direct.call("CONFIG RESETSTAT").await?.ok()?;

    // Waiters subscribe at the master. A release message of the master also arrives through the replica, and counts as one.
    let mut waiter = server.client().await?;
    waiter.call("SUBSCRIBE redisson_lock__channel:{first}").await?.ok()?;
    lock(&dashboard, "first", |lock| lock["waiting"] == 1).await;
    take(&mut direct, "told").await?;
    lock(&dashboard, "told", held).await;
    direct.call("DEL told").await?.ok()?;
    direct.call("PUBLISH redisson_lock__channel:{told} 0").await?.ok()?;
    lock(&dashboard, "told", |lock| {
        let heard = lock["sources"].as_array().is_some_and(|all| all.contains(&"channels".into()));
        lock["state"] == "free" && heard
    })
    .await;
    let done = dashboard.release("first", "lock").await?;
    assert_eq!(done["outcome"], "released", "{done}");
    assert_eq!(direct.call("EXISTS first").await?.int()?, 0);
    lock(&dashboard, "first", |lock| lock["past"][0]["ended"] == "forced").await;
    // Only a forced release reads the lock from the master.
    let mut asked = readings(&mut direct).await?;
    asked.retain(|verb| !["hlen", "hmget"].contains(&verb.as_str()));
    assert_eq!(asked, [""; 0]);

    // A replica that stops following the master can no longer be read in its place.
    let before = switches(&dashboard).await?;
    at_replica.call("REPLICAOF NO ONE").await?.ok()?;
    until_read(&dashboard, None).await;
    until_reason(&dashboard, "no replica follows it").await;
    take(&mut direct, "second").await?;
    lock(&dashboard, "second", held).await;
    until_switched(&dashboard, &before, &here).await;
    let before = switches(&dashboard).await?;
    at_replica.call(&format!("REPLICAOF {follows}")).await?.ok()?;
    until_read(&dashboard, Some(&there)).await;
    until_switched(&dashboard, &before, &there).await;
    lock(&dashboard, "second", held).await;
    let before = switches(&dashboard).await?;
    replica.process().kill()?;
    until_read(&dashboard, None).await;
    take(&mut direct, "third").await?;
    lock(&dashboard, "third", held).await;
    until_switched(&dashboard, &before, &here).await;
    let second = lock(&dashboard, "second", held).await;
    assert_eq!(second["past"], Value::Array(Vec::new()), "it was held all the time");
    Ok(())
}

/// Returns the number of connections that a server has accepted.
async fn accepted(direct: &mut Client) -> Result<u32> {
    let told = direct.call("INFO stats").await?.text();
    let line = told.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    Ok(line.context("no such line")?.trim_end().parse()?)
}

#[tokio::test]
async fn a_replica_that_refuses_the_login_is_not_logged_at_each_attempt_and_read_later()
-> Result<()> {
    let server = RedisServer::start().await?;
    let replica = RedisServer::start().await?;
    replica.follow(&server).await?;
    let (mut direct, mut there) = (server.client().await?, replica.client().await?);
    until_followed(&mut direct, &mut there).await;
    there.call("CONFIG SET requirepass secret").await?.ok()?;
    let before = accepted(&mut there).await?;
    let mut dashboard = Dashboard::start(&server.url(), &["--read-from", "replica"]).await?;
    until_reason(&dashboard, "NOAUTH").await;
    eventually("four attempts to log in", async || {
        let attempts = accepted(&mut there).await? - before;
        ensure!(attempts >= 4, "{attempts}");
        Ok(())
    })
    .await;
    let log = dashboard.process().log();
    let refused = log.lines().filter(|line| line.contains("cannot connect to Redis"));
    let refused = refused.filter(|line| line.contains("NOAUTH")).count();
    // One line, and another if an answer was late on a busy machine.
    ensure!(refused < 4, "{log}");
    there.call_args(&["CONFIG", "SET", "requirepass", ""]).await?.ok()?;
    until_read(&dashboard, Some(&address(&replica))).await;
    Ok(())
}

#[tokio::test]
async fn with_sentinel_a_replica_of_the_current_master_is_read() -> Result<()> {
    let sentinels = Sentinels::start(1).await?;
    let flags = ["--read-from", "replica", "--monitor", "off"];
    let dashboard = Dashboard::start(&sentinels.url(), &flags).await?;
    let (first, second) = (sentinels.address(0), sentinels.address(1));
    until_read(&dashboard, Some(&second)).await;
    take(&mut sentinels.client(0).await?, "kept").await?;
    lock(&dashboard, "kept", held).await;
    sentinels.until_replicated("kept").await?;
    // Master and replica change places.
    sentinels.fail_over().await?;
    until_read(&dashboard, Some(&first)).await;
    take(&mut sentinels.client(1).await?, "new").await?;
    lock(&dashboard, "new", held).await;
    let kept = lock(&dashboard, "kept", held).await;
    assert_eq!(kept["past"], Value::Array(Vec::new()), "it was held all the time");
    Ok(())
}

#[tokio::test]
async fn locks_lost_by_a_master_that_restarts_empty_are_one_notice() -> Result<()> {
    // After the restart the replica has no copy for a minute, so the master is read.
    let mut server = RedisServer::with(&[("repl-diskless-sync-delay", "60")]).await?;
    let mut direct = server.client().await?;
    direct.call("CONFIG SET repl-diskless-sync-delay 0").await?.ok()?;
    let follows = format!("127.0.0.1 {}", server.port());
    take(&mut direct, "lost").await?;
    let replica = RedisServer::with(&[("replicaof", &follows)]).await?;
    until_followed(&mut direct, &mut replica.client().await?).await;
    let flags = ["--read-from", "replica", "--monitor", "off"];
    let dashboard = Dashboard::start(&server.url(), &flags).await?;
    until_read(&dashboard, Some(&address(&replica))).await;
    lock(&dashboard, "lost", held).await;

    server.restart().await?;
    let lost = lock(&dashboard, "lost", |lock| lock["state"] == "free").await;
    assert_eq!(lost["past"][0]["ended"], "restarted", "{lost}");
    eventually("a notice of the loss", async || {
        let notices = dashboard.json("/api/v1/sources").await?["notices"].to_string();
        let wanted = "is read from now on, without 1 held lock of database 0";
        ensure!(notices.contains(wanted), "{notices}");
        Ok(())
    })
    .await;
    Ok(())
}
