//! Redis behind users, passwords and TLS.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, Dashboard, RedisServer, Reply, eventually, project};

/// Creates the users of acl.md exactly as documented; on an old server only those that it supports.
pub(crate) async fn documented_users(direct: &mut Client, old: bool) -> Result<()> {
    let text = project::text("docs/howto/acl.md")?;
    let users: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("ACL SETUSER ") && !line.starts_with(OF_SENTINELS))
        .collect();
    assert_eq!(
        users.len(),
        10,
        "an agent, an observer and a releaser, the same in a cluster, an agent with replicas, an observer on an old server and on a \
         new one, a tap"
    );
    let no_touch = direct.call("COMMAND INFO client|no-touch").await?.ok()?;
    let has_no_touch = no_touch.items()?.iter().all(|known| *known != Reply::Null);
    let too_new = |user: &&str| {
        user.contains("no-touch") && !has_no_touch
            || old && ["%R~", "+ssubscribe", "+spublish"].iter().any(|new| user.contains(new))
            || old && user.starts_with("ACL SETUSER lockscope-observer ")
    };
    for user in users.into_iter().filter(|user| !too_new(user)) {
        direct.call(user).await?.ok().context(user.to_owned())?;
    }
    Ok(())
}

/// The first words of the sentinel user in acl.md, whose commands exist on sentinels only.
const OF_SENTINELS: &str = "ACL SETUSER lockscope-sentinel ";

/// Creates that user exactly as documented.
pub(crate) async fn sentinel_user(sentinel: &mut Client) -> Result<()> {
    let text = project::text("docs/howto/acl.md")?;
    let user = text.lines().find(|line| line.starts_with(OF_SENTINELS)).context("no such user")?;
    sentinel.call(user).await?.ok().context(user.to_owned())?;
    Ok(())
}

/// Returns the commands that the server has refused so far.
pub(crate) async fn refused(direct: &mut Client) -> Result<Vec<String>> {
    let log = direct.call("ACL LOG 100").await?.ok()?;
    let entries = log.items()?.iter();
    entries.map(|entry| Ok(entry.field("object")?.text())).collect()
}

#[tokio::test]
async fn the_documented_users_suffice() -> Result<()> {
    let settings =
        [("client-output-buffer-limit", "normal 32mb 0 0"), ("notify-keyspace-events", "KEA")];
    let redis = RedisServer::with(&settings).await?;
    let mut direct = redis.client().await?;
    documented_users(&mut direct, false).await?;
    direct.call("SELECT 3").await?.ok()?;
    let as_user = |user: &str, password: &str| {
        let url = redis.url().replace("redis://", &format!("redis://{user}:{password}@"));
        format!("{url}/3")
    };
    let agent = Agent::at(
        &as_user("lockscope-agent", "agent-password"),
        &["--lease", "30s", "--poll-max", "200ms"],
    )
    .await?;
    let url = as_user("lockscope-observer", "observer-password");
    let tap = as_user("lockscope-tap", "tap-password");
    let flags = ["--monitor", "on", "--monitor-redis-url", &*tap];
    let dashboard = Dashboard::start(&url, &flags).await?;

    let mut worker = agent.client().await?;
    let mut waiter = agent.client().await?;
    for command in ["LOCK a WAIT 20000", "LOCK a", "SHOW a", "EXTEND a 60000", "UNLOCK a"] {
        worker.call(command).await?.ok().context(command)?;
    }
    worker.call("UNLOCK a").await?.ok()?;
    // Passes the lock directly from one worker to the next, after the server has lost the scripts.
    direct.call("SCRIPT FLUSH").await?.ok()?;
    worker.call("LOCK a").await?.ok()?;
    waiter.send("LOCK a").await?;
    eventually("the other one to wait", async || {
        let rows = worker.call("LOCKS MATCH a").await?.text();
        ensure!(rows.contains("waiting"), "{rows}");
        Ok(())
    })
    .await;
    worker.call("UNLOCK a").await?.ok()?;
    waiter.reply().await?.ok()?;
    // Locks of other clients: one to wait for, a fair one, and a key that is not a lock.
    let java = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
    direct.call(&format!("HSET theirs {java} 1")).await?.ok()?;
    direct.call("PEXPIRE theirs 700").await?.ok()?;
    worker.call("LOCK theirs").await?.ok()?;
    direct.call(&format!("RPUSH redisson_lock_queue:{{fair}} {java}")).await?.ok()?;
    direct.call(&format!("ZADD redisson_lock_timeout:{{fair}} 9e15 {java}")).await?.ok()?;
    assert!(worker.call("LOCK fair").await?.is_error("WRONGKIND"));
    worker.call("SHOW fair").await?.ok()?;
    direct.call("HSET crowd mode read a 1 b 1 c 1 d 1 e 1 f 1 g 1 h 1 i 1").await?.ok()?;
    assert!(worker.call("LOCK crowd").await?.is_error("WRONGKIND"));
    direct.call("HSET pair mode read x 1").await?.ok()?;
    assert!(worker.call("LOCK pair").await?.is_error("WRONGKIND"));
    eventually("renewals", async || {
        let metrics = agent.metrics().await?;
        let renewed = metrics.sum("lockscope_agent_renewals_total", &[("outcome", "renewed")]);
        ensure!(renewed >= 2.0, "{renewed} of two locks");
        Ok(())
    })
    .await;

    eventually("the agent to tell who its holders are", async || {
        let told = direct.call("KEYS lockscope:holders:*").await?.ok()?;
        ensure!(!told.items()?.is_empty(), "nothing is told");
        Ok(())
    })
    .await;
    eventually("the dashboard to see all by all its sources", async || {
        let list = dashboard.json("/api/v1/locks").await?;
        ensure!(list["total"].as_i64() >= Some(2), "{list}");
        ensure!(list.to_string().contains("\"host\":\""), "no agent's holder is known: {list}");
        let sources = dashboard.json("/api/v1/sources").await?;
        let sources = sources["sources"].as_array().cloned().unwrap_or_default();
        ensure!(sources.iter().all(|source| source["state"] == "on"), "{sources:?}");
        Ok(())
    })
    .await;
    drop(waiter);
    assert_eq!(refused(&mut direct).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn the_documented_users_suffice_on_an_old_server() -> Result<()> {
    let settings =
        [("client-output-buffer-limit", "normal 32mb 0 0"), ("notify-keyspace-events", "KEA")];
    let redis = RedisServer::old(&settings).await?;
    let mut direct = redis.client().await?;
    documented_users(&mut direct, true).await?;
    let as_user = |user: &str, password: &str| {
        redis.url().replace("redis://", &format!("redis://{user}:{password}@"))
    };
    let agent = Agent::at(&as_user("lockscope-agent", "agent-password"), &[]).await?;
    let tap = as_user("lockscope-tap", "tap-password");
    let releaser = as_user("lockscope-releaser", "releaser-password");
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
    let observer = as_user("lockscope-observer-6", "observer-6-password");
    let dashboard = Dashboard::start(&observer, &flags).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK a").await?.ok()?;
    worker.call("LOCK queued KIND fair").await?.ok()?;
    eventually("the dashboard to see all by all its sources", async || {
        let list = dashboard.json("/api/v1/locks").await?;
        ensure!(list["total"] == 2 && list.to_string().contains("\"host\":\""), "{list}");
        let sources = dashboard.json("/api/v1/sources").await?;
        let sources = sources["sources"].as_array().cloned().unwrap_or_default();
        ensure!(sources.iter().all(|source| source["state"] == "on"), "{sources:?}");
        Ok(())
    })
    .await;
    let outcome = dashboard.release("a", "lock").await?;
    assert_eq!(outcome["outcome"], "released", "{outcome}");
    assert_eq!(direct.call("EXISTS a").await?, Reply::Int(0));
    // The dashboard sends `CLIENT NO-TOUCH`, which only later servers know; the refusal of an unknown command is not
    // about rights.
    let refused = refused(&mut direct).await?;
    assert!(refused.iter().all(|command| command == "client"), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_wrong_password_is_reported_without_showing_it() -> Result<()> {
    let redis = RedisServer::with(&[("requirepass", "the-right-one")]).await?;
    let wrong = redis.url().replace("redis://", "redis://:my-wrong-one@");
    let mut agent = Agent::at(&wrong, &[]).await?;
    let mut worker = agent.client().await?;
    let reply = worker.call("LOCK a WAIT 500").await?;
    assert!(reply.is_error("UNAVAILABLE"), "{reply}");
    let ready = eventually("the agent to say so", async || {
        let ready = harness::http::get(agent.http(), "/readyz").await?.body;
        ensure!(ready.contains("WRONGPASS"), "{ready}");
        Ok(ready)
    })
    .await;
    let mut dashboard = Dashboard::start(&wrong, &[]).await?;
    let page = eventually("the page to say so", async || {
        let page = harness::http::get(dashboard.port(), "/sources").await?.body;
        ensure!(page.contains("WRONGPASS"), "{page}");
        Ok(page)
    })
    .await;
    let said = [
        agent.process().log(),
        dashboard.process().log(),
        page,
        ready,
        reply.text(),
        agent.metrics().await?.0,
        dashboard.metrics().await?.0,
    ];
    for text in said {
        assert!(!text.contains("my-wrong-one"), "the password stands in: {text}");
    }
    let right = redis.url().replace("redis://", "redis://:the-right-one@");
    let agent = Agent::at(&right, &[]).await?;
    agent.client().await?.call("LOCK a").await?.ok()?;
    Ok(())
}

/// Writes a self-signed certificate of this machine and its key, and returns their paths.
pub(crate) fn certificate(folder: &Path) -> Result<(String, String)> {
    certificate_of(folder, &["localhost", "127.0.0.1"])
}

/// Like [`certificate`], for these names and addresses.
pub(crate) fn certificate_of(folder: &Path, names: &[&str]) -> Result<(String, String)> {
    let path = |file: &str| folder.join(file).display().to_string();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names)?;
    std::fs::write(&cert, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    Ok((cert, key))
}

#[tokio::test]
async fn tls_works_with_a_private_authority() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (cert, key) = certificate(folder.path())?;
    let mut tls = None;
    // The second port may be taken too.
    for _ in 0..10 {
        let port = harness::redis::random_port();
        let options = [
            ("tls-port", port.to_string()),
            ("tls-cert-file", cert.clone()),
            ("tls-key-file", key.clone()),
            ("tls-ca-cert-file", cert.clone()),
            ("tls-auth-clients", "no".to_owned()),
        ];
        let options = options.each_ref().map(|(key, value)| (*key, value.as_str()));
        if let Ok(server) = RedisServer::with(&options).await {
            tls = Some((server, port));
            break;
        }
    }
    let (redis, port) = tls.context("redis-server with TLS does not start")?;
    let url = format!("rediss://localhost:{port}");
    let agent = Agent::at(&url, &["--redis-ca-file", &cert]).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK a WAIT 20000").await?.ok()?;
    let dashboard = Dashboard::start(&url, &["--redis-ca-file", &cert]).await?;
    eventually("the lock on the page", async || {
        let list = dashboard.json("/api/v1/locks").await?;
        ensure!(list["locks"][0]["name"] == "a", "{list}");
        Ok(())
    })
    .await;
    assert_eq!(redis.client().await?.call("EXISTS a").await?, Reply::Int(1));
    // An agent that does not know the authority does not trust the server.
    let stranger = Agent::at(&url, &[]).await?;
    let reply = stranger.client().await?.call("LOCK b WAIT 300").await?;
    assert!(reply.is_error("UNAVAILABLE"), "{reply}");
    Ok(())
}
