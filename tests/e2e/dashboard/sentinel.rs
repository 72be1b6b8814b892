//! The dashboard on a master that sentinels name: one deployment, whichever server is the master, and one notice when
//! the master changes.

use anyhow::{Result, ensure};
use harness::{Dashboard, Sentinels, eventually, http};
use serde_json::Value;

use super::{held, lock, problems, take};
use crate::secure::{documented_users, refused, sentinel_user};

async fn release(dashboard: &Dashboard, name: &str) -> Result<()> {
    let done = dashboard.release(name, "lock").await?;
    ensure!(done["outcome"] == "released", "{done}");
    Ok(())
}

/// Waits until these sources are on and read this server.
async fn until_at(dashboard: &Dashboard, address: &str, sources: &[&str]) {
    eventually(&format!("{sources:?} at {address}"), async || {
        let json = dashboard.json("/api/v1/sources").await?;
        ensure!(json["servers"][0]["master"] == address, "{}", json["servers"]);
        ensure!(json["first_scan"].is_null(), "the picture is not whole");
        for source in sources {
            let rows = json["sources"].as_array().into_iter().flatten();
            let on = rows.filter(|row| row["source"] == *source && row["state"] == "on").count();
            ensure!(on == 1, "{source}: {}", json["sources"]);
        }
        Ok(())
    })
    .await;
}

const SOURCES: [&str; 6] = ["scan", "poll", "channels", "subscribers", "identity", "monitor"];

#[tokio::test]
async fn a_failover_is_one_notice_although_the_old_master_continues() -> Result<()> {
    let sentinels = Sentinels::start(3).await?;
    let flags = ["--monitor", "on", "--monitor-unbounded", "--allow-release", "--insecure"];
    let url = sentinels.url().replace("://", "://127.0.0.1:1,");
    let dashboard = Dashboard::start(&url, &flags).await?;
    until_at(&dashboard, &sentinels.address(0), &SOURCES).await;
    let mut old = sentinels.client(0).await?;
    for name in ["kept", "freed"] {
        take(&mut old, name).await?;
        lock(&dashboard, name, held).await;
    }
    sentinels.until_replicated("freed").await?;
    sentinels.cut_off("kept").await?;
    take(&mut old, "lost").await?;
    lock(&dashboard, "lost", held).await;
    sentinels.keep_as_master().await?;

    sentinels.fail_over().await?;
    let address = sentinels.address(1);
    until_at(&dashboard, &address, &SOURCES).await;
    let lost = lock(&dashboard, "lost", |lock| lock["state"] == "free").await;
    assert_eq!(lost["past"][0]["ended"], "restarted", "{lost}");
    let kept = lock(&dashboard, "kept", held).await;
    assert_eq!((problems(&kept), &kept["past"]), (Vec::new(), &Value::Array(vec![])));
    assert_eq!(problems(&lost), [""; 0]);
    eventually("one notice", async || {
        let sources = dashboard.json("/api/v1/sources").await?;
        let notices = sources["notices"].as_array().map(Vec::as_slice).unwrap_or_default();
        ensure!(notices.len() == 1, "{notices:?}");
        let wanted = format!("{address} is the master now, without 1 held lock of database 0");
        ensure!(
            notices[0]["text"].as_str().is_some_and(|text| text.starts_with(&wanted)),
            "{notices:?}"
        );
        Ok(())
    })
    .await;
    let page = http::get(dashboard.port(), "/sources").await?.body;
    assert!(page.contains(&format!("master {address}")), "{page}");
    // The old master still has all locks, but is not read.
    eventually("the old master to be left", async || {
        let list = old.call("CLIENT LIST").await?.text();
        ensure!(!list.contains("name=lockscope-dashboard"), "{list}");
        Ok(())
    })
    .await;
    assert_eq!(old.call("EXISTS lost").await?.int()?, 1);

    // Messages, MONITOR and forced releases use the new master.
    let mut new = sentinels.client(1).await?;
    new.call("DEL freed").await?.ok()?;
    new.call("PUBLISH redisson_lock__channel:{freed} 0").await?.ok()?;
    lock(&dashboard, "freed", |lock| {
        let heard = lock["sources"].as_array().is_some_and(|all| all.contains(&"channels".into()));
        lock["state"] == "free" && heard
    })
    .await;
    release(&dashboard, "kept").await?;
    assert_eq!(new.call("EXISTS kept").await?.int()?, 0);
    assert_eq!(old.call("EXISTS kept").await?.int()?, 1);
    lock(&dashboard, "kept", |lock| lock["past"][0]["ended"] == "forced").await;
    let metrics = dashboard.metrics().await?;
    assert_eq!(
        metrics.sum("lockscope_dashboard_redis_up", &[]),
        1.0,
        "one server, whichever it is"
    );
    Ok(())
}

#[tokio::test]
async fn without_a_master_the_view_is_frozen() -> Result<()> {
    let mut sentinels = Sentinels::start(1).await?;
    for place in 0..2 {
        documented_users(&mut sentinels.client(place).await?, false).await?;
    }
    let mut sentinel = sentinels.sentinel(0).await?;
    sentinel_user(&mut sentinel).await?;
    let query = "?sentinel_username=lockscope-sentinel&sentinel_password=sentinel-password";
    let as_user = |user: &str| {
        let login = format!("://lockscope-{user}:{user}-password@");
        sentinels.url().replace("://", &login) + query
    };
    let (url, tap, releaser) = (as_user("observer"), as_user("tap"), as_user("releaser"));
    let flags = [
        "--monitor",
        "on",
        "--monitor-unbounded",
        "--monitor-redis-url",
        &*tap,
        "--allow-release",
        "--insecure",
        "--release-redis-url",
        &*releaser,
    ];
    let dashboard = Dashboard::start(&url, &flags).await?;
    until_at(&dashboard, &sentinels.address(0), &SOURCES).await;
    take(&mut sentinels.client(0).await?, "kept").await?;
    lock(&dashboard, "kept", held).await;
    sentinels.until_replicated("kept").await?;
    sentinels.node(0).process().kill()?;
    lock(&dashboard, "kept", |lock| lock["state"] == "unknown").await;
    let json = dashboard.json("/api/v1/sources").await?;
    assert!(json["servers"][0]["down"].is_object(), "{json}");

    sentinels.enable_failover().await?;
    sentinels.fail_over().await?;
    // MONITOR pauses after its connection is closed by the server, as here.
    let but_monitor = &SOURCES[..5];
    until_at(&dashboard, &sentinels.address(1), but_monitor).await;
    let kept = lock(&dashboard, "kept", held).await;
    assert_eq!((problems(&kept), &kept["past"]), (Vec::new(), &Value::Array(vec![])));
    release(&dashboard, "kept").await?;
    assert_eq!(refused(&mut sentinel).await?, Vec::<String>::new());
    assert_eq!(refused(&mut sentinels.client(1).await?).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_missing_master_is_explained() -> Result<()> {
    let sentinels = Sentinels::start(1).await?;
    sentinels.mistake("stale").await?;
    let hosts = sentinels.hosts();
    let (nonsense, stale) = (
        format!("nonsense=redis+sentinel://{hosts}/nonsense"),
        format!("redis+sentinel://{hosts}/stale"),
    );
    let dashboard = Dashboard::start(&stale, &["--redis-url", &nonsense]).await?;
    let reasons = [
        format!("{} is a replica", sentinels.address(1)),
        format!("{hosts}: unknown master `nonsense`"),
    ];
    eventually("the reasons", async || {
        let json = dashboard.json("/api/v1/sources").await?;
        for (place, wanted) in reasons.iter().enumerate() {
            let reason = json["servers"][place]["down"]["reason"].as_str().unwrap_or_default();
            ensure!(reason.contains(wanted), "{json}");
        }
        // No source is on either.
        let rows = json["sources"].as_array().into_iter().flatten();
        let wrong: Vec<_> = rows.filter(|row| row["state"] == "on").collect();
        ensure!(wrong.is_empty(), "{wrong:?}");
        Ok(())
    })
    .await;
    Ok(())
}
