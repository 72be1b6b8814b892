//! Tests of the metrics.

use std::time::Duration;

use crate::redis_server::{HOLDER, RedisServer, run, take};
use crate::serving::{Dashboard, PATIENCE};

const METRICS: &str = include_str!("../../../docs/reference/metrics.md");

async fn metrics_when(dashboard: &Dashboard, wished: impl Fn(&str) -> bool) -> String {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let text = dashboard.get("/metrics").await.body;
        if wished(&text) {
            return text;
        }
        assert!(tokio::time::Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn has(text: &str, line: &str) -> bool {
    text.lines().any(|l| l == line)
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_counted_by_group() {
    let mut server = RedisServer::start().await;
    let mut redis = server.connect();
    for i in 0..3 {
        take(&mut redis, format!("orders:{i}").as_bytes(), HOLDER, 600_000);
    }
    run::<i64>(&mut redis, &["HSET", "w", "mode", "write", &format!("{HOLDER}:write"), "1"]);
    run::<i64>(&mut redis, &["PEXPIRE", "w", "600000"]);
    run::<i64>(&mut redis, &["HSET", "cart", HOLDER, "1"]);
    let dashboard = Dashboard::start(&server.url()).await;
    // Events are counted a moment after the snapshot that they led to.
    let there = ["kind=\"write\"", "lockscope_dashboard_events_total{"];
    let text = metrics_when(&dashboard, |text| there.iter().all(|part| text.contains(part))).await;
    let node = format!("127.0.0.1:{}", server.port());
    for line in [
        r#"lockscope_dashboard_locks{deployment="default",kind="lock",lock_group="orders:*"} 3"#,
        r#"lockscope_dashboard_holders{deployment="default",kind="lock",lock_group="orders:*"} 3"#,
        r#"lockscope_dashboard_locks{deployment="default",kind="write",lock_group="w"} 1"#,
        r#"lockscope_dashboard_problems_detected_total{certainty="certain",deployment="default",lock_group="w",problem="leaked"} 0"#,
        r#"lockscope_dashboard_locks_not_kept 0"#,
        &format!("lockscope_dashboard_redis_up{{deployment=\"default\",node=\"{node}\"}} 1"),
        &format!("lockscope_dashboard_redis_evicts{{deployment=\"default\",node=\"{node}\"}} 0"),
        &format!(
            "lockscope_dashboard_source_state{{deployment=\"default\",node=\"{node}\",source=\"poll\",state=\"on\"}} 1"
        ),
        &format!(
            "lockscope_dashboard_source_state{{deployment=\"default\",node=\"{node}\",source=\"poll\",state=\"down\"}} 0"
        ),
    ] {
        assert!(has(&text, line), "{line} is not in\n{text}");
    }
    for name in
        ["oldest_hold_start_timestamp_seconds{", "scan_keys_total{", "events_total{", "build_info{"]
    {
        assert!(text.contains(&format!("lockscope_dashboard_{name}")), "{name}");
    }
    for name in ["process_resident_memory_bytes", "tokio_alive_tasks"] {
        assert!(text.contains(name), "{name}");
    }
    assert!(!text.contains("cart"), "what only looks like a lock is not counted");
    // While Redis is unreachable, the numbers of locks are left out, including the last known ones.
    server.process().freeze().await.unwrap();
    let down = format!("lockscope_dashboard_redis_up{{deployment=\"default\",node=\"{node}\"}} 0");
    let text = metrics_when(&dashboard, |text| has(text, &down)).await;
    assert!(!text.contains("lockscope_dashboard_locks{"), "{text}");
    server.process().thaw().unwrap();
    metrics_when(&dashboard, |text| text.contains("lockscope_dashboard_locks{")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_deployments_at_one_address_have_separate_series() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    run::<()>(
        &mut redis,
        &["ACL", "SETUSER", "blind", "on", ">secret", "allkeys", "+ping", "+info"],
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dashboard.toml");
    let (url, node) = (server.url(), format!("127.0.0.1:{}", server.port()));
    let blind = url.replace("redis://", "redis://blind:secret@");
    let rows = format!(
        "[[redis]]\nname = \"a\"\nurl = \"{blind}\"\n[[redis]]\nname = \"b\"\nurl = \"{url}\"\ndb = [1]\n"
    );
    std::fs::write(&file, rows).unwrap();
    let dashboard = Dashboard::with(&["--config", file.to_str().unwrap()]).await;
    let of = |deployment: &str, state: &str| {
        format!(
            "lockscope_dashboard_source_state{{deployment=\"{deployment}\",node=\"{node}\",source=\"scan\",state=\"{state}\"}} 1"
        )
    };
    metrics_when(&dashboard, |text| has(text, &of("a", "denied")) && has(text, &of("b", "on")))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_problem_is_counted_and_detected() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    take(&mut redis, b"a", HOLDER, 600_000);
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.listed_when("", &["a"]).await;
    run::<i64>(&mut redis, &["PERSIST", "a"]);
    let now = r#"lockscope_dashboard_problems{acknowledged="false",certainty="certain",deployment="default",lock_group="a",problem="leaked"} 1"#;
    let text = metrics_when(&dashboard, |text| has(text, now)).await;
    let ever = r#"lockscope_dashboard_problems_detected_total{certainty="certain",deployment="default",lock_group="a",problem="leaked"} 1"#;
    assert!(has(&text, ever), "{text}");
    run::<i64>(&mut redis, &["DEL", "a"]);
    let text = metrics_when(&dashboard, |text| !has(text, now)).await;
    assert!(has(&text, ever), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_names_stay_within_the_bound_on_series() {
    const NAMES: usize = 10_000;
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let letters = |i: usize| -> String {
        [i / 26 / 26, i / 26, i]
            .map(|n| char::from(b'a' + u8::try_from(n % 26).unwrap()))
            .iter()
            .collect()
    };
    // Each name is a separate group.
    for batch in 0..NAMES / 1_000 {
        let mut pipeline = redis::pipe();
        for i in batch * 1_000..(batch + 1) * 1_000 {
            let name = letters(i);
            if i % 2 == 0 {
                let holder = format!("{HOLDER}:write");
                pipeline
                    .cmd("HSET")
                    .arg(&name)
                    .arg("mode")
                    .arg("write")
                    .arg(holder)
                    .arg(1)
                    .ignore();
            } else {
                pipeline.cmd("HSET").arg(&name).arg(HOLDER).arg(1).ignore();
            }
            pipeline.cmd("PEXPIRE").arg(&name).arg(600_000).ignore();
        }
        let () = pipeline.query(&mut redis).unwrap();
    }
    let url = server.url();
    let dashboard = Dashboard::with(&["--redis-url", &url, "--scan-rate", "1000000"]).await;
    let counted = |text: &str| -> u64 {
        let lines = text.lines().filter(|l| l.starts_with("lockscope_dashboard_locks{"));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    };
    let text = metrics_when(&dashboard, |text| counted(text) == NAMES as u64).await;
    let groups: std::collections::HashSet<_> = text
        .lines()
        .filter(|l| l.starts_with("lockscope_dashboard_locks{"))
        .filter_map(|l| l.split("lock_group=").nth(1)?.split('"').nth(1))
        .collect();
    assert_eq!(groups.len(), 201, "200 and the overflow");
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < 8_500, "{series}");
    let told = METRICS.split("a dashboard exports about ").nth(1);
    let told =
        told.and_then(|rest| rest.split_whitespace().next()).unwrap_or_default().replace(',', "");
    let told: usize = told.parse().expect("metrics.md tells a number");
    assert!(told.abs_diff(series) < series / 10, "metrics.md says {told}, {series} it is");
}
