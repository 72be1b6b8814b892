//! Tests of every kind of lock: its companion keys, and keys that are no locks.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::redis_server::{HOLDER, RedisServer, queue, release, run, take, thread};
use crate::serving::{Dashboard, PATIENCE};

fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fair_lock_shows_its_queue_with_the_dead_in_it() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    take(&mut redis, b"fair", HOLDER, 600_000);
    queue(&mut redis, "fair", &[(1, -5_000), (2, 300_000), (3, 600_000)]);
    let dashboard = Dashboard::start(&server.url()).await;
    let lock = dashboard.lock_when("fair", |lock| lock["queue"][0]["alive"] == false).await;
    assert_eq!((&lock["kind"], &lock["queued"]), (&json!("fair"), &json!(true)));
    assert_eq!(ids(&lock["queue"]), [thread(1), thread(2), thread(3)]);
    let alive: Vec<&Value> =
        lock["queue"].as_array().unwrap().iter().map(|place| &place["alive"]).collect();
    assert_eq!(alive, [&json!(false), &json!(true), &json!(true)]);
    assert!(lock["queue"][1]["deadline"].as_str().unwrap().ends_with('Z'), "{lock}");
    assert_eq!(ids(&lock["waiters"]), [thread(2), thread(3)]);
    assert_eq!((&lock["waiting"], &lock["waiters_exact"]), (&json!(2), &json!(true)));
    let page = dashboard.get("/lock?name=fair").await.body;
    assert!(page.contains(">dead<") && page.contains(&thread(3)), "{page}");
    assert!(dashboard.get("/").await.body.contains("<span class=\"queued\">2</span>"));
    // The holder releases the lock, and the first living waiter acquires it.
    run::<i64>(&mut redis, &["DEL", "fair"]);
    for n in [1, 2] {
        run::<i64>(&mut redis, &["LREM", "redisson_lock_queue:{fair}", "0", &thread(n)]);
        run::<i64>(&mut redis, &["ZREM", "redisson_lock_timeout:{fair}", &thread(n)]);
    }
    take(&mut redis, b"fair", &thread(2), 600_000);
    let lock =
        dashboard.lock_when("fair", |lock| lock["holders"][0]["id"] == thread(2).as_str()).await;
    let lock = match lock["waiting"] == 1 {
        true => lock,
        false => dashboard.lock_when("fair", |lock| lock["waiting"] == 1).await,
    };
    assert_eq!(ids(&lock["waiters"]), [thread(3)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_is_counted_and_its_head_shown() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    take(&mut redis, b"fair", HOLDER, 600_000);
    let places: Vec<(u32, i64)> = (0..1_000).map(|n| (n, 300_000)).collect();
    queue(&mut redis, "fair", &places);
    // Large entries of a queue key that are no holders are not transferred.
    take(&mut redis, b"odd", HOLDER, 600_000);
    for _ in 0..20 {
        run::<i64>(&mut redis, &["RPUSH", "redisson_lock_queue:{odd}", &"x".repeat(100_000)]);
    }
    let dashboard = Dashboard::start(&server.url()).await;
    let lock = dashboard.lock_when("fair", |lock| lock["waiting"] == 1_000).await;
    assert_eq!(lock["queue"].as_array().unwrap().len(), 64);
    assert_eq!(lock["waiters_exact"], json!(false));
    run::<String>(&mut redis, &["CONFIG", "RESETSTAT"]);
    let lock = dashboard.lock_when("odd", |lock| lock["queued"] == true).await;
    assert_eq!(lock["queue"], json!([]));
    let stats: String = run(&mut redis, &["INFO", "stats"]);
    let sent = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    assert!(sent.unwrap().trim().parse::<u64>().unwrap() < 2_000_000, "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_live_by_their_markers() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let (alive, gone) = (thread(1), thread(2));
    run::<i64>(&mut redis, &["HSET", "rw", "mode", "read", &alive, "2", &gone, "1"]);
    run::<i64>(&mut redis, &["PEXPIRE", "rw", "60000"]);
    let marker = |id: &str, n: u32| format!("{{rw}}:{id}:rwlock_timeout:{n}");
    run::<String>(&mut redis, &["SET", &marker(&alive, 2), "1", "PX", "30000"]);
    let dashboard = Dashboard::start(&server.url()).await;
    let known = |lock: &Value| lock["holders"][0]["marker_ttl_ms"].is_u64();
    let lock = dashboard.lock_when("rw", known).await;
    let zombies: Vec<&Value> =
        lock["holders"].as_array().unwrap().iter().map(|h| &h["zombie"]).collect();
    assert_eq!((&lock["kind"], zombies), (&json!("read"), vec![&json!(false), &json!(true)]));
    assert!(dashboard.get("/lock?name=rw").await.body.contains("zombie"));
    // A writer that also reads makes two holders, both of the same thread.
    let writer = format!("{alive}:write");
    run::<i64>(&mut redis, &["DEL", "rw"]);
    run::<i64>(&mut redis, &["HSET", "rw", "mode", "write", &writer, "1", &alive, "1"]);
    run::<i64>(&mut redis, &["PEXPIRE", "rw", "60000"]);
    let lock = dashboard.lock_when("rw", |lock| lock["kind"] == "write").await;
    assert_eq!(lock["problems"], json!([]));
    // At an agent, each of its holds has another number.
    let grant = |n: u8| format!("7c1e5a90-3b1d-4f5e-9d42-18f0a6b2c3d4:192761261557651867{n}");
    let agents_writer = format!("{}:write", grant(1));
    run::<i64>(&mut redis, &["HSET", "rw-agent", "mode", "write", &agents_writer, "1"]);
    run::<i64>(&mut redis, &["HSET", "rw-agent", &grant(2), "1"]);
    run::<i64>(&mut redis, &["PEXPIRE", "rw-agent", "60000"]);
    let both = |lock: &Value| lock["holders"].as_array().is_some_and(|it| it.len() == 2);
    assert_eq!(dashboard.lock_when("rw-agent", both).await["problems"], json!([]));
    // A different client that reads while another writes is malformed: no client's scripts would write this.
    run::<i64>(&mut redis, &["HSET", "rw", &gone, "1"]);
    let lock = dashboard.lock_when("rw", |lock| lock["problems"][0].is_object()).await;
    assert_eq!(lock["problems"][0]["problem"], "malformed");
    assert!(lock["problems"][0]["evidence"][0]["text"].as_str().unwrap().contains(&gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn markers_of_readers_are_read_while_their_lock_is_gone() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    run::<i64>(&mut redis, &["HSET", "rw", "mode", "read", HOLDER, "1"]);
    run::<i64>(&mut redis, &["PEXPIRE", "rw", "60000"]);
    let marker = format!("{{rw}}:{HOLDER}:rwlock_timeout:1");
    run::<String>(&mut redis, &["SET", &marker, "1", "PX", "600000"]);
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.lock_when("rw", |lock| lock["state"] == "held").await;
    run::<i64>(&mut redis, &["DEL", "rw"]);
    dashboard.lock_when("rw", |lock| lock["state"] == "free").await;
    let mut commands = server.connect();
    run::<String>(&mut commands, &["MONITOR"]);
    commands.set_read_timeout(Some(PATIENCE)).unwrap();
    let (deadline, read) = (Instant::now() + PATIENCE, format!("\"PTTL\" \"{marker}\""));
    let mut next = || redis::from_redis_value::<String>(commands.recv_response().unwrap()).unwrap();
    while !next().contains(&read) {
        assert!(Instant::now() < deadline, "its marker is not read");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_lock_shows_its_token() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    run::<i64>(&mut redis, &["INCRBY", "redisson_lock_token:{fenced}", "41"]);
    take(&mut redis, b"fenced", HOLDER, 600_000);
    let dashboard = Dashboard::start(&server.url()).await;
    let lock = dashboard.lock_when("fenced", |lock| lock["token"] == 41).await;
    assert_eq!(lock["kind"], "fenced");
    assert!(dashboard.get("/lock?name=fenced").await.body.contains("Token"));
    run::<i64>(&mut redis, &["INCR", "redisson_lock_token:{fenced}"]);
    dashboard.lock_when("fenced", |lock| lock["token"] == 42).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn synchronizers_that_are_no_locks_are_none() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    run::<String>(&mut redis, &["SET", "semaphore", "3"]);
    run::<i64>(&mut redis, &["ZADD", "{permits}:timeout", "1795219200123", "\u{1}\u{2}"]);
    run::<i64>(&mut redis, &["HSET", "limiter", "rate", "5", "interval", "1000", "type", "0"]);
    let value = "r0hX3ZbGk1q9+/sD2mLwEA";
    let (expiry, count) =
        (format!("{value}:{HOLDER}:expire_time"), format!("{value}:{HOLDER}:lock_count"));
    let fields = [value, HOLDER, &expiry, "1795219200123", &count, "1"];
    run::<i64>(&mut redis, &[&["HSET", "multi"][..], &fields].concat());
    for name in ["limiter", "multi"] {
        run::<i64>(&mut redis, &["PEXPIRE", name, "600000"]);
    }
    take(&mut redis, b"lock", HOLDER, 600_000);
    let dashboard = Dashboard::start(&server.url()).await;
    dashboard.listed_when("", &["lock"]).await;
    dashboard.json_when("/api/v1/sources", |s| s["first_scan"].is_null()).await;
    dashboard.listed_when("filter=confirmed:no", &[]).await;
    for (name, what) in [
        ("semaphore", "another type"),
        ("limiter", "rate limiter"),
        ("multi", "fast multi-lock"),
        ("{permits}:timeout", "another type"),
    ] {
        let name = crate::serving::encoded(name.as_bytes());
        let answer = dashboard.get(&format!("/api/v1/lock?name={name}")).await;
        assert_eq!(answer.status, 404);
        assert!(answer.body.contains(what), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_listen_are_waiters_at_least() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    take(&mut redis, b"a", HOLDER, 600_000);
    let dashboard =
        Dashboard::with(&["--redis-url", &server.url(), "--starving-after", "1s"]).await;
    dashboard.listed_when("", &["a"]).await;
    let (mut one, mut two) = (server.connect(), server.connect());
    for waiter in [&mut one, &mut two] {
        let subscribe =
            redis::cmd("SUBSCRIBE").arg("redisson_lock__channel:{a}").get_packed_command();
        waiter.send_packed_command(&subscribe).unwrap();
    }
    let lock = dashboard.lock_when("a", |lock| lock["waiting"] == 2).await;
    assert_eq!((&lock["waiters_exact"], &lock["waiters"]), (&json!(false), &json!([])));
    let lock = dashboard.lock_when("a", |lock| lock["problems"][0].is_object()).await;
    let problem = &lock["problems"][0];
    assert_eq!(
        (&problem["problem"], &problem["certainty"]),
        (&json!("starving"), &json!("suspected"))
    );
    drop((one, two));
    dashboard.lock_when("a", |lock| lock["waiting"] == 0 && lock["problems"] == json!([])).await;
    release(&mut redis, "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_that_wait_for_one_another_are_a_deadlock() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let (one, two) = (thread(1), thread(2));
    take(&mut redis, b"a", &one, 600_000);
    take(&mut redis, b"b", &two, 600_000);
    queue(&mut redis, "a", &[(2, 300_000)]);
    queue(&mut redis, "b", &[(1, 300_000)]);
    let dashboard = Dashboard::start(&server.url()).await;
    let found = |lock: &Value| lock["problems"][0]["problem"] == "deadlock";
    let lock = dashboard.lock_when("a", found).await;
    assert_eq!(lock["problems"][0]["certainty"], "certain");
    assert_eq!(lock["problems"][0]["evidence"].as_array().unwrap().len(), 2);
    dashboard.lock_when("b", found).await;
    dashboard.listed_when("filter=problem:deadlock", &["a", "b"]).await;
    // One of the two waiters gives up.
    run::<i64>(&mut redis, &["DEL", "redisson_lock_queue:{b}", "redisson_lock_timeout:{b}"]);
    for name in ["a", "b"] {
        dashboard.lock_when(name, |lock| lock["problems"] == json!([])).await;
    }
}

/// An account with only the rights that an older version needed still shows locks, and the sources name what is
/// missing.
#[tokio::test(flavor = "multi_thread")]
async fn locks_are_shown_without_the_rights_to_read_their_companions() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let user = "ACL SETUSER old on >secret resetkeys %R~* resetchannels &redisson_lock__channel:* &redisson_rwlock:* -@all +ping +info +select +dbsize +client|setname +scan +type +multi +exec +hlen +hrandfield +hstrlen +hmget +pttl +psubscribe";
    run::<String>(&mut redis, &user.split(' ').collect::<Vec<_>>());
    take(&mut redis, b"a", HOLDER, 600_000);
    queue(&mut redis, "a", &[(2, 300_000)]);
    let url = server.url().replace("redis://", "redis://old:secret@");
    let dashboard = Dashboard::start(&url).await;
    dashboard.lock_when("a", |lock| lock["state"] == "held").await;
    let state = |sources: &Value, name: &str| {
        let all = sources["sources"].as_array().unwrap();
        all.iter().find(|source| source["source"] == name).unwrap().clone()
    };
    let told = |sources: &Value| {
        state(sources, "poll")["detail"].as_str().unwrap().contains("queues")
            && state(sources, "subscribers")["state"] == "denied"
    };
    let sources = dashboard.json_when("/api/v1/sources", told).await;
    assert_eq!(state(&sources, "poll")["state"], "on");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_an_unknown_client_is_shown_and_counters_are_not() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let uuids = format!("{}:8b2d9f10-0c1d-4e2f-9a3b-4c5d6e7f8091", &HOLDER[..36]);
    take(&mut redis, b"by-scan", &uuids, 600_000);
    take(&mut redis, b"by-name", "worker-1", 600_000);
    run::<i64>(&mut redis, &["HSET", "visits", "today", "7"]);
    let dashboard = Dashboard::start(&server.url()).await;
    for (name, holder) in [("by-scan", uuids.as_str()), ("by-name", "worker-1")] {
        let lock = dashboard.lock_when(name, |lock| lock["state"] == "held").await;
        assert_eq!(ids(&lock["holders"]), [holder]);
        let page = dashboard.get(&format!("/lock?name={name}")).await.body;
        assert!(page.contains("unknown client") && page.contains(holder), "{page}");
    }
    assert_eq!(dashboard.get("/api/v1/lock?name=visits").await.status, 404);
}
