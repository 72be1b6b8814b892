//! Discovery of locks, no matter which client acquired them.

use anyhow::{Result, ensure};
use harness::http::EventStream;
use harness::{Agent, Dashboard, Foreign, RedisServer, eventually, http};

use super::{Bench, find};

#[tokio::test]
async fn finds_a_lock_acquired_through_an_agent() -> Result<()> {
    let bench = Bench::new().await?;
    let agent = Agent::start(&bench.redis).await?;
    let mut worker = agent.client().await?;
    let reply = worker.call("LOCK orders:42").await?.ok()?;
    let holder = reply.field("holder")?.text();
    let lock = bench.listed("orders:42", |_| true).await;
    assert_eq!(lock["state"], "held");
    assert_eq!(lock["confirmed"], true);
    assert_eq!(lock["kind"], "lock");
    assert_eq!(lock["db"], 0);
    assert_eq!(lock["holders"][0]["id"], holder);
    assert_eq!(lock["holders"][0]["count"], 1);
    let ttl = lock["ttl_ms"].as_i64().unwrap_or_default();
    assert!((1..=30_000).contains(&ttl), "{lock}");
    worker.call("LOCK orders:42").await?.ok()?;
    bench.listed("orders:42", |lock| lock["holders"][0]["count"] == 2).await;
    worker.call("UNLOCK orders:42").await?.ok()?;
    worker.call("UNLOCK orders:42").await?.ok()?;
    bench.until_not_listed("orders:42").await;
    let remembered = bench.dashboard.json("/api/v1/lock?name=orders:42").await?;
    assert_eq!(remembered["state"], "free");
    Ok(())
}

#[tokio::test]
async fn finds_a_lock_with_redissons_layout() -> Result<()> {
    let bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("payments").await?);
    let lock = bench.listed("payments", |_| true).await;
    let holder = &lock["holders"][0];
    assert_eq!(holder["id"], java.holder);
    assert_eq!((&holder["thread"], &holder["count"]), (&"47".into(), &1.into()));
    assert!(java.unlock("payments").await?);
    bench.until_not_listed("payments").await;
    Ok(())
}

#[tokio::test]
async fn shows_the_next_holder() -> Result<()> {
    let bench = Bench::new().await?;
    let agent = Agent::start(&bench.redis).await?;
    let mut first = agent.client().await?;
    let mut second = agent.client().await?;
    first.call("LOCK a").await?.ok()?;
    second.send("LOCK a").await?;
    bench.listed("a", |_| true).await;
    first.call("UNLOCK a").await?.ok()?;
    let holder = second.reply().await?.field("holder")?.text();
    bench.listed("a", |lock| lock["holders"][0]["id"] == holder).await;
    Ok(())
}

#[tokio::test]
async fn a_requested_name_is_read_at_once() -> Result<()> {
    // Passes look at other keys only, so nothing but the request can find the lock.
    let mut bench = Bench::with(&["--scan-match", "nothing:*"]).await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("a b&c").await?);
    let lock = eventually("the answer", async || {
        bench.dashboard.json("/api/v1/lock?name=a%20b%26c").await
    })
    .await;
    assert_eq!(lock["holders"][0]["id"], java.holder);
    // Names that are not text are requested in base64, also in its URL-safe form; here the bytes ff fe.
    bench
        .direct
        .call_args(&[b"HSET".as_slice(), b"\xff\xfe", java.holder.as_bytes(), b"1"])
        .await?;
    bench.direct.call_args(&[b"PEXPIRE".as_slice(), b"\xff\xfe", b"60000"]).await?;
    for name in ["__4", "%2F%2F4%3D"] {
        let lock = bench.dashboard.json(&format!("/api/v1/lock?name64={name}")).await?;
        assert_eq!(lock["holders"][0]["id"], java.holder);
    }
    let absent = http::get(bench.dashboard.port(), "/api/v1/lock?name=absent").await?;
    assert_eq!(absent.status, 404);
    assert_eq!(absent.header("content-type"), Some("application/problem+json"));
    Ok(())
}

#[tokio::test]
async fn possible_locks_are_found_and_other_keys_are_not() -> Result<()> {
    let mut bench = Bench::new().await?;
    let session = "HSET basket 0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47 3";
    bench.direct.call(session).await?.ok()?;
    bench.direct.call("HSET user name Ann").await?.ok()?;
    bench.direct.call("SET text x").await?.ok()?;
    let apart = "/api/v1/locks?filter=confirmed%3Ano";
    eventually("the candidate", async || {
        let list = bench.dashboard.json(apart).await?;
        ensure!(find(&list, "basket").is_some(), "{list}");
        Ok(())
    })
    .await;
    // Without a TTL it is suspected to be a leaked lock, and then listed with the others.
    bench.listed("basket", |lock| lock["confirmed"] == false).await;
    let list = bench.dashboard.json("/api/v1/locks").await?;
    assert_eq!(list["locks"].as_array().map(Vec::len), Some(1), "no other keys: {list}");
    let candidates = bench.dashboard.json(apart).await?;
    assert_eq!(candidates["locks"].as_array().map(Vec::len), Some(1), "{candidates}");
    Ok(())
}

#[tokio::test]
async fn observation_changes_nothing() -> Result<()> {
    let mut bench = Bench::new().await?;
    let agent = Agent::start(&bench.redis).await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    java.lock("a").await?;
    bench.direct.call("SET text x").await?.ok()?;
    let mut worker = agent.client().await?;
    worker.call("LOCK b").await?.ok()?;
    bench.listed("a", |_| true).await;
    bench.listed("b", |_| true).await;
    let before = bench.direct.call("CONFIG GET *").await?;
    drop(agent);
    eventually("Redis to have read what the agent sent", async || {
        let clients = bench.direct.call("CLIENT LIST").await?.ok()?.text();
        ensure!(!clients.contains("name=lockscope-agent"), "{clients}");
        Ok(())
    })
    .await;
    // From here on only the dashboard is active, so any write would be its own.
    bench.direct.call("CONFIG RESETSTAT").await?.ok()?;
    for path in ["/", "/lock?name=a", "/lock?name=text", "/sources", "/api/v1/locks"] {
        http::get(bench.dashboard.port(), path).await?;
    }
    eventually("another pass", async || {
        let stats = bench.direct.call("INFO commandstats").await?.text();
        ensure!(stats.contains("cmdstat_scan"), "{stats}");
        Ok(())
    })
    .await;
    let stats = bench.direct.call("INFO commandstats").await?.text();
    for line in stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
        let command = line.split(':').next().unwrap_or_default().replace('|', " ");
        let command = command.split(' ').next().unwrap_or_default().to_owned();
        let info = bench.direct.call(&format!("COMMAND INFO {command}")).await?.text();
        assert!(!info.contains("[write"), "{line}");
    }
    assert_eq!(bench.direct.call("CONFIG GET *").await?, before, "no setting was changed");
    Ok(())
}

#[tokio::test]
async fn finds_locks_of_several_deployments_and_databases() -> Result<()> {
    let first = RedisServer::start().await?;
    let second = RedisServer::start().await?;
    let url = format!("eu={}", first.url());
    let other = format!("us={}", second.url());
    let flags = ["--redis-url", &other, "--db", "0", "--db", "3"];
    let dashboard = Dashboard::start(&url, &flags).await?;
    let mut client = second.client().await?;
    client.call("SELECT 3").await?.ok()?;
    let mut java = Foreign::over(client);
    assert!(java.lock("a").await?);
    let mut here = Foreign::connect(&first).await?;
    assert!(here.lock("a").await?);
    eventually("both locks", async || {
        let list = dashboard.json("/api/v1/locks").await?;
        let rows = list["locks"].as_array().cloned().unwrap_or_default();
        let mut places: Vec<_> =
            rows.iter().map(|lock| format!("{} {}", lock["deployment"], lock["db"])).collect();
        places.sort();
        ensure!(places == ["\"eu\" 0", "\"us\" 3"], "{list}");
        Ok(())
    })
    .await;
    let one = dashboard.json("/api/v1/lock?deployment=us&db=3&name=a").await?;
    assert_eq!((&one["deployment"], &one["db"]), (&"us".into(), &3.into()));
    // The links of Grafana have no database.
    let status = async || {
        let page = http::get(dashboard.port(), "/lock?deployment=us&name=a").await?;
        anyhow::Ok((page.status, page.body.contains("db=3")))
    };
    assert_eq!(status().await?, (200, true));
    let path = "/live?path=/lock%3Fdeployment%3Dus%26name%3Da";
    let mut live = EventStream::open(dashboard.port(), path).await?;
    assert!(Foreign::connect(&second).await?.lock("a").await?);
    eventually("a page that needs the database", async || {
        let status = status().await?;
        ensure!(status.0 == 400, "{status:?}");
        Ok(())
    })
    .await;
    // A page that was open before stays with its lock.
    assert!(java.unlock("a").await?);
    for _ in 0..60 {
        if live.next().await?.data.contains("word free") {
            return Ok(());
        }
    }
    anyhow::bail!("the page does not show the release");
}

#[tokio::test]
async fn an_unreadable_redis_is_reported_everywhere() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    let mut java = Foreign::connect(&redis).await?;
    assert!(java.lock("a").await?);
    for i in 0..300 {
        direct.call(&format!("SET other:{i} x")).await?.ok()?;
    }
    // The pass is so slow that the pause after it outlasts the rest of the test: an idle source must report the failure
    // too. All keys exist before it begins, because a second pass may be a minute away.
    let dashboard = Dashboard::start(&redis.url(), &["--scan-rate", "100"]).await?;
    let mut bench = Bench { dashboard, redis, direct };
    bench.listed("a", |_| true).await;
    eventually("a pass over all of them", async || {
        let sources = bench.dashboard.json("/api/v1/sources").await?;
        let sources = sources["sources"].as_array().cloned().unwrap_or_default();
        let detail =
            |source: &serde_json::Value| source["detail"].as_str().unwrap_or_default().to_owned();
        let scan = sources.iter().find(|source| source["source"] == "scan").map(detail);
        // Reported when the pause begins.
        ensure!(scan.as_ref().is_some_and(|it| it.starts_with("301 keys in")), "{scan:?}");
        Ok(())
    })
    .await;
    bench.redis.process().freeze().await?;
    eventually("the sources to say so", async || {
        let sources = bench.dashboard.json("/api/v1/sources").await?;
        let sources = sources["sources"].as_array().cloned().unwrap_or_default();
        // MONITOR is closed on such a server and reports that instead.
        let mut others = sources.iter().filter(|source| source["source"] != "monitor");
        ensure!(others.all(|source| source["state"] == "down"), "{sources:?}");
        Ok(())
    })
    .await;
    bench.listed("a", |lock| lock["state"] == "unknown").await;
    let page = http::get(bench.dashboard.port(), "/").await?;
    assert_eq!(page.status, 200);
    let up = "lockscope_dashboard_redis_up";
    assert_eq!(bench.dashboard.metrics().await?.sum(up, &[]), 0.0);
    let ready = http::get(bench.dashboard.port(), "/readyz").await?;
    assert_eq!(ready.status, 200, "the page can still tell what it knew");
    bench.redis.process().thaw()?;
    bench.listed("a", |lock| lock["state"] == "held").await;
    bench.redis.restart().await?;
    bench.until_not_listed("a").await;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("b").await?);
    let lock =
        eventually("the new one", async || bench.dashboard.json("/api/v1/lock?name=b").await).await;
    assert_eq!(lock["state"], "held");
    Ok(())
}

#[tokio::test]
async fn the_agent_identifies_the_holder() -> Result<()> {
    let mut bench = Bench::new().await?;
    let agent = Agent::with(&bench.redis, &[]).await?;
    let mut worker = agent.client().await?;
    worker.call("CLIENT SETNAME billing").await?.ok()?;
    worker.call("LOCK a LEASE 600000").await?.ok()?;
    let lock = bench.listed("a", |lock| lock["holders"][0]["client"]["pid"].is_i64()).await;
    let holder = &lock["holders"][0];
    let client = &holder["client"];
    assert_eq!(client["pid"], std::process::id());
    assert_eq!(client["uid"], rustix::process::getuid().as_raw());
    assert_eq!(client["name"], "billing");
    assert_eq!(client["alive"], true);
    let comm = std::fs::read_to_string("/proc/self/comm")?;
    assert_eq!(client["comm"], comm.trim_end());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    assert_eq!(client["host"], host.trim_end());

    // A field that looks like a hold of this agent, but that the agent does not know.
    let uuid = holder["uuid"].as_str().unwrap_or_default();
    let number = holder["thread"].as_str().unwrap_or_default().parse::<i64>()? + 1_000_000;
    bench.direct.call(&format!("HSET left {uuid}:{number} 1")).await?.ok()?;
    bench.direct.call("PEXPIRE left 600000").await?.ok()?;
    let left = eventually("`left` to be leaked", async || {
        let lock = bench.dashboard.json("/api/v1/lock?name=left").await?;
        ensure!(super::problems(&lock) == ["leaked"], "{lock}");
        Ok(lock)
    })
    .await;
    assert_eq!(left["problems"][0]["certainty"], "suspected");
    assert_eq!(left["holders"][0]["client"]["alive"], false);
    let lock = bench.listed("a", |_| true).await;
    assert!(super::problems(&lock).is_empty(), "{lock}");
    Ok(())
}
