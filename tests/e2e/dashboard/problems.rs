//! `leaked` and `stuck`: raised when sure, with their evidence, and taken back.

use anyhow::Result;
use harness::{Agent, Foreign};

use super::{Bench, problems};

#[tokio::test]
async fn a_confirmed_lock_without_a_time_to_live_is_leaked() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("a").await?);
    assert!(java.lock("healthy").await?);
    bench.listed("a", |_| true).await;
    bench.direct.call("PERSIST a").await?.ok()?;
    let lock = bench.listed("a", |lock| problems(lock) == ["leaked"]).await;
    let problem = &lock["problems"][0];
    assert_eq!(problem["certainty"], "sure");
    assert_eq!(lock["ttl_ms"], serde_json::Value::Null);
    assert!(problem["evidence"].as_array().is_some_and(|evidence| !evidence.is_empty()));
    assert!(problem["advice"].as_str().is_some_and(|advice| !advice.is_empty()));
    let first = bench.dashboard.json("/api/v1/locks").await?;
    assert_eq!(first["locks"][0]["name"], "a", "problems come first");
    let metric = "lockscope_dashboard_problems";
    let labels = [("problem", "leaked"), ("certainty", "sure")];
    assert_eq!(bench.dashboard.metrics().await?.sum(metric, &labels), 1.0);
    bench.direct.call("PEXPIRE a 60000").await?.ok()?;
    bench.listed("a", |lock| problems(lock).is_empty()).await;
    assert!(problems(&bench.listed("healthy", |_| true).await).is_empty());
    Ok(())
}

#[tokio::test]
async fn what_only_looks_like_a_lock_raises_no_alarm() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    bench.direct.call(&format!("HSET basket {} 3", java.holder)).await?.ok()?;
    java.lock("leaking").await?;
    bench.listed("leaking", |_| true).await;
    bench.direct.call("PERSIST leaking").await?.ok()?;
    // By the time that one has leaked, the other has been seen as often.
    bench.listed("leaking", |lock| problems(lock) == ["leaked"]).await;
    let apart = bench.dashboard.json("/api/v1/locks?filter=confirmed%3Ano").await?;
    let basket = super::find(&apart, "basket").cloned().unwrap_or_default();
    assert_eq!(basket["confirmed"], false);
    assert!(problems(&basket).is_empty(), "{basket}");
    Ok(())
}

#[tokio::test]
async fn a_lock_that_is_renewed_and_held_too_long_is_stuck() -> Result<()> {
    let bench = Bench::with(&["--stuck-after", "2s"]).await?;
    let agent = Agent::with(&bench.redis, &["--lease", "3s"]).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK a").await?.ok()?;
    // Held as long, but nobody renews it: it will end by itself.
    worker.call("LOCK fixed LEASE 600000").await?.ok()?;
    let lock = bench.listed("a", |lock| problems(lock) == ["stuck"]).await;
    assert_eq!(lock["problems"][0]["certainty"], "sure");
    assert_eq!(lock["renewed"], true);
    assert!(problems(&bench.listed("fixed", |_| true).await).is_empty());
    worker.call("UNLOCK a").await?.ok()?;
    bench.until_unlisted("a").await;
    worker.call("LOCK a").await?.ok()?;
    let again = bench.listed("a", |_| true).await;
    assert!(problems(&again).is_empty(), "another hold has an age of its own: {again}");
    Ok(())
}
