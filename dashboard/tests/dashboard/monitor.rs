//! Tests of MONITOR: it is open only at the right times, shows the commands of locks, and harms nobody.

use std::time::Duration;

use redis::{Connection, cmd};
use redisson::script;
use redisson::{HolderId, Lease, LockName};
use serde_json::Value;

use crate::redis_server::{HOLDER, RedisServer, eval, run, take, thread};
use crate::serving::{Dashboard, OWN, PATIENCE};

/// With this setting, a server closes the connection of a reader that stalls.
const BOUNDED: (&str, &str) = ("client-output-buffer-limit", "normal 32mb 0 0");

async fn watching(server: &RedisServer, flags: &[&str]) -> Dashboard {
    let url = server.url();
    Dashboard::with(&[&["--redis-url", &url, "--scan-every", "1h"], flags].concat()).await
}

fn acquire(connection: &mut Connection, name: &str, holder: &str) {
    let name = LockName::new(name.as_bytes()).unwrap();
    let holder = HolderId::parse(holder.as_bytes()).unwrap();
    let lease = Lease::new(Duration::from_secs(60)).unwrap();
    eval(connection, &script::acquire(&name, &holder, lease));
}

/// Returns the value of a counter.
async fn counted(dashboard: &Dashboard, labels: &str) -> f64 {
    let text = dashboard.get("/metrics").await.body;
    let line = text.lines().find_map(|line| line.strip_prefix(labels)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

async fn counted_when(dashboard: &Dashboard, labels: &str, wished: impl Fn(f64) -> bool) -> f64 {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let value = counted(dashboard, labels).await;
        if wished(value) {
            return value;
        }
        assert!(tokio::time::Instant::now() < deadline, "{labels} stays {value}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn event(name: &str) -> String {
    format!("lockscope_dashboard_events_total{{event=\"{name}\",source=\"monitor\"}}")
}

fn monitors(server: &RedisServer) -> usize {
    let clients: String = run(&mut server.connect(), &["CLIENT", "LIST"]);
    clients.lines().filter(|client| client.contains("flags=O")).count()
}

/// Waits until this many clients of the server use MONITOR. A server notices a closed connection a moment later.
async fn monitors_when(server: &RedisServer, count: usize) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while monitors(server) != count {
        assert!(tokio::time::Instant::now() < deadline, "{} clients", monitors(server));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn detail(source: &Value) -> &str {
    source["detail"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_and_holds_are_seen_at_once() {
    let server = RedisServer::with(&[BOUNDED]).await;
    let mut redis = server.connect();
    let dashboard = watching(&server, &["--monitor", "on"]).await;
    dashboard.source_when("monitor", "on").await;
    run::<String>(&mut redis, &["SET", "session:9", "token=hunter2"]);
    acquire(&mut redis, "orders:1", HOLDER);
    // No scan runs within this hour and nothing was published, so only MONITOR can have reported the lock.
    dashboard.listed_when("", &["orders:1"]).await;
    acquire(&mut redis, "orders:1", &thread(53));
    counted_when(&dashboard, &event("refused"), |n| n == 1.0).await;
    assert_eq!(counted(&dashboard, &event("acquired")).await, 1.0);
    let node = format!("127.0.0.1:{}", server.port());
    let lines = |outcome: &str| {
        format!(
            "lockscope_dashboard_monitor_lines_total{{deployment=\"default\",node=\"{node}\",outcome=\"{outcome}\"}}"
        )
    };
    counted_when(&dashboard, &lines("lock"), |n| n >= 8.0).await;
    counted_when(&dashboard, &lines("other"), |n| n >= 1.0).await;
    assert_eq!(counted(&dashboard, &lines("garbage")).await, 0.0);
    let active = "lockscope_dashboard_monitor_active_seconds_total";
    let active = format!("{active}{{deployment=\"default\",node=\"{node}\",outcome=\"on\"}}");
    counted_when(&dashboard, &active, |seconds| seconds > 0.5).await;
    for path in ["/", "/sources", "/metrics", "/api/v1/locks", "/api/v1/sources"] {
        let body = dashboard.get(path).await.body;
        assert!(!body.contains("hunter2") && !body.contains("session:9"), "{path}");
    }
    assert_eq!(monitors(&server), 1, "one, whoever looks");
    dashboard.stop().await;
    monitors_when(&server, 0).await;
}

/// Returns the detail of the MONITOR source once it contains this word.
async fn detail_when(dashboard: &Dashboard, word: &str) -> String {
    let of_monitor = |json: &Value| {
        let sources = json["sources"].as_array().unwrap();
        sources.iter().find(|source| source["source"] == "monitor").cloned().unwrap()
    };
    let json = dashboard
        .json_when("/api/v1/sources", |json| detail(&of_monitor(json)).contains(word))
        .await;
    detail(&of_monitor(&json)).to_owned()
}

/// With this setting, a server never closes the connection of a slow reader, neither a normal client nor a
/// subscriber.
const UNBOUNDED: (&str, &str) = ("client-output-buffer-limit", "pubsub 0 0 0");

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_default_settings_bounds_it_as_a_subscriber() {
    let server = RedisServer::start().await;
    let dashboard = watching(&server, &[]).await;
    let detail = detail_when(&dashboard, "while the server is quiet").await;
    assert!(detail.contains("if the dashboard stalls, Redis closes it at 32mb"), "{detail}");
    let clients: String = run(&mut server.connect(), &["CLIENT", "LIST"]);
    assert_eq!(clients.lines().filter(|client| client.contains("flags=OP")).count(), 1);
    acquire(&mut server.connect(), "orders:1", HOLDER);
    counted_when(&dashboard, &event("acquired"), |n| n == 1.0).await;
    // Only lines of MONITOR arrive on it, even if another client publishes to every subscriber.
    run::<i64>(&mut server.connect(), &["PUBLISH", "lockscope:monitor[]", "forged"]);
    let node = format!("127.0.0.1:{}", server.port());
    let garbage = format!(
        "lockscope_dashboard_monitor_lines_total{{deployment=\"default\",node=\"{node}\",outcome=\"garbage\"}}"
    );
    assert_eq!(counted(&dashboard, &garbage).await, 0.0);
    // MONITOR is closed once the server would have to evict keys for it.
    for (setting, value) in [("maxmemory-policy", "allkeys-lru"), ("maxmemory", "1gb")] {
        run::<String>(&mut server.connect(), &["CONFIG", "SET", setting, value]);
    }
    detail_when(&dashboard, "closed: Redis evicts keys (allkeys-lru)").await;
    monitors_when(&server, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_opened_on_a_server_that_cannot_save() {
    let server = RedisServer::with(&[BOUNDED, ("save", "3600 1")]).await;
    server.fail_to_save().await.unwrap();
    let dashboard = watching(&server, &[]).await;
    dashboard.source_when("monitor", "on").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_not_opened_where_it_could_take_more_memory_than_there_is() {
    let budget = ["--monitor", "on", "--monitor-budget", "16mb"];
    let full = &[("maxmemory", "20mb"), ("maxmemory-policy", "noeviction")][..];
    let evicting = &[("maxmemory", "1gb"), ("maxmemory-policy", "volatile-lru")][..];
    for (settings, flags, reason) in [
        (&[][..], &budget[..], "ends a stalled reader at 32mb, and --monitor-budget is 16mb"),
        (full, &["--monitor", "on"], "left below maxmemory, and a stalled reader may take 32mb"),
        (evicting, &["--monitor", "on"], "evicts keys (volatile-lru)"),
    ] {
        let server = RedisServer::with(settings).await;
        let dashboard = watching(&server, flags).await;
        detail_when(&dashboard, reason).await;
        assert_eq!(monitors(&server), 0, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_opened_only_where_the_server_bounds_a_stalled_reader() {
    let server = RedisServer::with(&[UNBOUNDED]).await;
    let dashboard = watching(&server, &["--monitor", "on"]).await;
    detail_when(&dashboard, "--monitor-unbounded").await;
    let source = dashboard.source_when("monitor", "paused").await;
    assert!(source["remedy"].to_string().contains("CONFIG SET"), "{source}");
    let page = dashboard.get("/contention").await.body;
    assert!(page.contains("<summary>MONITOR would show more</summary>"), "{page}");
    assert_eq!(monitors(&server), 0);
    // A page of another site cannot request a look. A request of an allowed visitor is accepted, but MONITOR stays
    // paused.
    let page = dashboard.get("/sources").await.body;
    assert!(page.contains(r#"formaction="/sources/watch?deployment=default""#), "{page}");
    let path = "/sources/watch?deployment=default";
    for header in [("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")] {
        assert_eq!(dashboard.post(path, &[header]).await.status, 403, "{header:?}");
    }
    assert_eq!(dashboard.submit(path, &[], "").await.status, 303);
    assert_eq!(dashboard.get(path).await.status, 405);
    assert_eq!(dashboard.submit("/sources/watch?deployment=x", &[], "").await.status, 404);
    let answer = dashboard.post("/api/v1/monitor/watch", &OWN).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    dashboard.source_when("monitor", "paused").await;
    assert_eq!(monitors(&server), 0);
    // The server's settings may change later.
    run::<String>(
        &mut server.connect(),
        &["CONFIG", "SET", "client-output-buffer-limit", "normal 33554432 0 0"],
    );
    dashboard.post("/api/v1/monitor/watch", &OWN).await;
    let source = dashboard.source_when("monitor", "on").await;
    assert!(source["remedy"].is_null(), "{source}");
    let page = dashboard.get("/contention").await.body;
    assert!(!page.contains("MONITOR would show more"), "{page}");
    let lifted = RedisServer::with(&[UNBOUNDED]).await;
    let dashboard = watching(&lifted, &["--monitor", "on", "--monitor-unbounded"]).await;
    let source = dashboard.source_when("monitor", "on").await;
    assert!(detail(&source).contains("--monitor-unbounded"), "{source}");
    let node = format!("127.0.0.1:{}", lifted.port());
    let active = "lockscope_dashboard_monitor_active_seconds_total";
    let active =
        format!("{active}{{deployment=\"default\",node=\"{node}\",outcome=\"unbounded\"}}");
    counted_when(&dashboard, &active, |seconds| seconds > 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_monitor_that_the_server_ends_is_reported() {
    let server = RedisServer::with(&[BOUNDED]).await;
    let mut redis = server.connect();
    let dashboard = watching(&server, &["--monitor", "on"]).await;
    dashboard.source_when("monitor", "on").await;
    let clients: String = run(&mut redis, &["CLIENT", "LIST"]);
    let tap = clients.lines().find(|client| client.contains("flags=O")).unwrap();
    let id = tap.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap();
    run::<i64>(&mut redis, &["CLIENT", "KILL", "ID", id]);
    let source = dashboard.source_when("monitor", "paused").await;
    assert!(detail(&source).contains("closed the connection"), "{source}");
    assert!(detail(&source).contains("tried again in"), "{source}");
    assert_eq!(monitors(&server), 0, "not at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn monitor_stays_off_when_disabled_and_reports_a_denial() {
    let server = RedisServer::with(&[BOUNDED]).await;
    let dashboard = watching(&server, &["--monitor", "off"]).await;
    let source = dashboard.source_when("monitor", "off").await;
    assert_eq!(source["remedy"], "Start the dashboard with `--monitor auto`.");
    let answer = dashboard.post("/api/v1/monitor/watch", &OWN).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    dashboard.stop().await;

    let mut redis = server.connect();
    run::<String>(
        &mut redis,
        &["ACL", "SETUSER", "seer", "on", ">pw", "~*", "&*", "+@all", "-monitor"],
    );
    let seer = server.url().replace("redis://", "redis://seer:pw@");
    let flags = ["--redis-url", &server.url(), "--monitor", "on", "--monitor-redis-url", &seer];
    let dashboard = Dashboard::with(&flags).await;
    let source = dashboard.source_when("monitor", "denied").await;
    assert!(detail(&source).contains("may not use MONITOR"), "{source}");
    assert!(source["remedy"].to_string().contains("+monitor +psubscribe"), "{source}");
    dashboard.source_when("scan", "on").await;
    dashboard.stop().await;

    // Without CONFIG the server counts as unbounded, and the missing right is named.
    run::<String>(&mut redis, &["ACL", "SETUSER", "seer", "+monitor", "-config"]);
    let dashboard = Dashboard::with(&flags).await;
    dashboard
        .json_when("/api/v1/sources", |json| {
            let sources = json["sources"].as_array().unwrap();
            sources.iter().any(|s| s["source"] == "monitor" && detail(s).contains("+config|get"))
        })
        .await;
    assert_eq!(monitors(&server), 0);
    dashboard.stop().await;

    // On a server with default settings, MONITOR also needs the right to subscribe.
    let server = RedisServer::start().await;
    let rule = ["ACL", "SETUSER", "seer", "on", ">pw", "~*", "resetchannels", "+@all"];
    run::<String>(&mut server.connect(), &rule);
    let seer = server.url().replace("redis://", "redis://seer:pw@");
    let flags = ["--redis-url", &server.url(), "--monitor", "on", "--monitor-redis-url", &seer];
    let dashboard = Dashboard::with(&flags).await;
    detail_when(&dashboard, "+psubscribe &lockscope:monitor[]").await;
    assert_eq!(monitors(&server), 0);
    dashboard.stop().await;
    run::<String>(&mut server.connect(), &["ACL", "SETUSER", "seer", "&lockscope:monitor[]"]);
    Dashboard::with(&flags).await.source_when("monitor", "on").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_takes_the_right_to_watch() {
    let server = RedisServer::with(&[BOUNDED]).await;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let tokens = "looking-token-0123456789,robot,look\nwatching-token-0123456789,anna,watch\n";
    std::io::Write::write_all(&mut file, tokens.as_bytes()).unwrap();
    let file = file.path().display().to_string();
    let url = server.url();
    let flags = ["--redis-url", &*url, "--auth-token-file", &*file, "--monitor-max-ops", "1"];
    let dashboard = Dashboard::with(&flags).await;
    for (token, status) in [("looking", 403), ("watching", 202)] {
        let bearer = format!("Bearer {token}-token-0123456789");
        let answer = dashboard.post("/api/v1/monitor/watch", &[("Authorization", &*bearer)]).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    // MONITOR is opened on request although the server is busy.
    monitors_when(&server, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_server_is_quiet_and_nobody_else_looks() {
    let server = RedisServer::with(&[BOUNDED]).await;
    let mut busybody = server.connect();
    cmd("MONITOR").exec(&mut busybody).unwrap();
    let dashboard = watching(&server, &[]).await;
    let says = |word: &'static str| {
        move |json: &Value| {
            let sources = json["sources"].as_array().unwrap();
            sources.iter().any(|s| s["source"] == "monitor" && detail(s).contains(word))
        }
    };
    dashboard.json_when("/api/v1/sources", says("another client")).await;
    assert_eq!(monitors(&server), 1);
    // A look on request is granted although another client uses MONITOR.
    assert_eq!(dashboard.post("/api/v1/monitor/watch", &OWN).await.status, 202);
    dashboard.json_when("/api/v1/sources", says("s more")).await;
    assert_eq!(monitors(&server), 2);
    drop(busybody);
    dashboard.stop().await;

    let dashboard = watching(&server, &["--monitor-max-ops", "1"]).await;
    let mut redis = server.connect();
    let keep_busy = async {
        loop {
            take(&mut redis, b"busy", HOLDER, 60_000);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = keep_busy => {}
        _ = dashboard.json_when("/api/v1/sources", says("--monitor-max-ops is 1")) => {}
    }
    assert_eq!(monitors(&server), 0);
    dashboard.stop().await;

    let quiet = RedisServer::with(&[BOUNDED]).await;
    let dashboard = watching(&quiet, &["--monitor-max-ops", "3000"]).await;
    dashboard.json_when("/api/v1/sources", says("while the server is quiet")).await;
    assert_eq!(monitors(&quiet), 1);
    // MONITOR is closed once the server is no longer quiet.
    let mut redis = quiet.connect();
    let mut storm = redis::pipe();
    for _ in 0..2_000 {
        storm.cmd("PING").ignore();
    }
    let keep_busy = async {
        loop {
            storm.exec(&mut redis).unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = keep_busy => {}
        _ = dashboard.json_when("/api/v1/sources", says("closed: ")) => {}
    }
    monitors_when(&quiet, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_that_are_removed_by_hand_are_released_by_force_although_no_script_showed_them() {
    let server = RedisServer::with(&[BOUNDED]).await;
    let mut redis = server.connect();
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| acquire(&mut redis, name, HOLDER));
    let dashboard = watching(&server, &["--monitor", "on"]).await;
    dashboard.listed_when("", &names).await;
    dashboard.source_when("monitor", "on").await;
    run::<i64>(&mut redis, &["DEL", "a", "cart:7", "b"]);
    run::<i64>(&mut redis, &["HDEL", "c", HOLDER]);
    run::<i64>(&mut redis, &["EXPIRE", "d", "0"]);
    for name in names {
        let forced = |json: &Value| json["events"].to_string().contains("released by force");
        dashboard.json_when(&format!("/api/v1/lock?name={name}"), forced).await;
    }
    // A requested page may show an event a moment before it is counted.
    let removed = counted_when(&dashboard, &event("removed"), |n| n >= 4.0).await;
    assert_eq!(removed, 4.0, "`cart:7` was no lock");
}
