//! Tests of forced releases: they end the hold that the operator saw, and never another one.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::time::{Instant, timeout};

use crate::redis_server::{HOLDER, RedisServer, queue, run, take, thread};
use crate::serving::{Answer, Dashboard, PATIENCE, encoded, post, post_json};

const ANNA: &str = "5f1c0b6b7d6e4c1f9a2e";
const LOOKER: &str = "a2e5f1c0b6b7d6e4c1f9";

async fn with_release(redis_url: &str, more: &[&str]) -> Dashboard {
    let flags = ["--redis-url", redis_url, "--monitor", "off", "--allow-release", "--insecure"];
    Dashboard::with(&[&flags, more].concat()).await
}

fn query(name: &str) -> String {
    format!("name={}", encoded(name.as_bytes()))
}

/// Returns what can be released of a lock, once the dashboard knows it.
async fn look(dashboard: &Dashboard, name: &str) -> Value {
    dashboard
        .json_when(&format!("/api/v1/release?{}", query(name)), |json| json["seen"].is_string())
        .await
}

async fn release(dashboard: &Dashboard, name: &str, seen: &Value, target: &str) -> Answer {
    let wish = json!({"seen": seen["seen"], "target": target, "reason": "it hangs", "name": name});
    post_json(dashboard.address, &format!("/api/v1/release?{}", query(name)), &[], &wish).await
}

fn outcome(answer: &Answer) -> (u16, String) {
    (answer.status, answer.json()["outcome"].as_str().unwrap_or_default().to_owned())
}

/// Returns the value of the form field that names the hold that was seen.
fn seen_in(page: &str) -> Option<&str> {
    page.split_once("name=\"seen\" value=\"")?.1.split('"').next()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_releases_what_the_page_shows() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard =
        with_release(&server.url(), &["--history-dir", folder.path().to_str().unwrap()]).await;
    let name = "a<script>";
    take(&mut redis, name.as_bytes(), HOLDER, 600_000);
    dashboard.lock_when(name, |lock| lock["state"] == "held").await;
    let page = dashboard.get(&format!("/lock?{}", query(name))).await;
    assert!(page.body.contains("Force release"), "{}", page.body);
    let path = format!("/release?{}", query(name));
    let form = dashboard.get(&path).await;
    assert_eq!(form.status, 200);
    assert!(form.body.contains(HOLDER) && !form.body.contains("<script>\""), "{}", form.body);
    assert!(form.body.contains("is not stopped"));
    let seen = seen_in(&form.body).unwrap().to_owned();
    let body = |seen: &str, reason: &str, name: &str| {
        let (reason, name) = (encoded(reason.as_bytes()), encoded(name.as_bytes()));
        format!("seen={seen}&target=lock&reason={reason}&name={name}")
    };
    for (reason, typed, status, word) in [
        ("it hangs", "a", 422, "does not match"),
        (" ", name, 422, "invalid reason"),
        ("x\ny\nz", name, 422, "invalid reason"),
    ] {
        let answer = dashboard.submit(&path, &[], &body(&seen, reason, typed)).await;
        assert_eq!(answer.status, status, "{reason:?} {typed:?}");
        assert!(answer.body.contains(word) && seen_in(&answer.body).is_some(), "{}", answer.body);
    }
    let unseen = dashboard.submit(&path, &[], &body("x", "it hangs", name)).await;
    assert_eq!(unseen.status, 409);
    let other = format!("/release?{}", query("b"));
    let elsewhere = dashboard.submit(&other, &[], &body(&seen, "it hangs", name)).await;
    assert_eq!(elsewhere.status, 409, "what was seen is of another lock");
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", name]), 1, "nothing was done until now");
    let done = dashboard.submit(&path, &[], &body(&seen, "it hangs", name)).await;
    assert!(done.status == 200 && done.body.contains("id=\"outcome\""), "{done:?}");
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", name]), 0);
    // A second click, or a reload, learns that the release worked, and does nothing.
    let twice = dashboard.submit(&path, &[], &body(&seen, "it hangs", name)).await;
    assert!(twice.status == 200 && twice.body.contains(">Released."), "{twice:?}");
    let places =
        body(&seen, "it hangs", name).replace("target=lock", &format!("target=place:{HOLDER}"));
    let other = dashboard.submit(&path, &[], &places).await;
    assert!(matches!(other.status, 409 | 422), "nothing else was released: {other:?}");

    let lock = dashboard.lock_when(name, |lock| lock["past"][0]["ended"] == "forced").await;
    let events = lock["events"].as_array().unwrap();
    let event = events.iter().find(|event| event["event"] == "force_released").unwrap();
    assert!(event["text"].as_str().unwrap().ends_with("it hangs"), "{event}");
    let history = format!("/api/v1/events?from=2001-01-01T00:00:00Z&{}", query(name));
    let kept = |json: &Value| {
        let events = json["events"].as_array().unwrap();
        events.iter().find(|event| event["event"] == "force_released").cloned()
    };
    let kept = kept(&dashboard.json_when(&history, |json| kept(json).is_some()).await).unwrap();
    let detail = kept["detail"].as_str().unwrap();
    for part in ["released", "127.0.0.1", HOLDER, "it hangs"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    let metrics = dashboard.get("/metrics").await.body;
    assert!(metrics.contains("lockscope_dashboard_releases_total{outcome=\"released\"} 1"));
    assert!(metrics.contains("lockscope_dashboard_releases_total{outcome=\"unknown\"} 0"));
}

/// The proxy replaces the host by its own upstream address, as nginx does by default.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_through_a_proxy_is_recorded_with_the_clients_address() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let dashboard = with_release(
        &server.url(),
        &[
            "--history-dir",
            folder.path().to_str().unwrap(),
            "--public-url",
            "https://locks.example.com",
            "--trusted-proxy",
            "127.0.0.0/8",
            "--trusted-user-header",
            "X-Forwarded-User",
            "--trusted-address-header",
            "X-Forwarded-For",
        ],
    )
    .await;
    take(&mut redis, b"a", HOLDER, 600_000);
    // The client has sent the first address itself.
    let anna = |origin| {
        [
            ("X-Forwarded-User", "anna"),
            ("X-Forwarded-For", "127.0.0.1, 192.0.2.7"),
            ("Origin", origin),
        ]
    };
    let own = anna("https://locks.example.com");
    dashboard.json_when_with("/api/v1/lock?name=a", &own, |lock| lock["state"] == "held").await;
    let form = dashboard.get_with("/release?name=a", &own).await;
    assert!(form.body.contains("Waiting</dt><dd>nobody known<"), "{}", form.body);
    let csrf = dashboard.csrf_token(&own).await;
    let seen = seen_in(&form.body).unwrap();
    let body = format!("csrf={csrf}&seen={seen}&target=lock&reason=it+hangs&name=a");
    for origin in ["http://locks.example.com", "https://locks.example.com:8443", "null"] {
        let refused = post(dashboard.address, "/release?name=a", &anna(origin), &body).await;
        assert_eq!(refused.status, 403, "{origin}");
    }
    let done = post(dashboard.address, "/release?name=a", &own, &body).await;
    assert_eq!(done.status, 200, "{done:?}");
    let detail = |json: &Value| {
        let events = json["events"].as_array().unwrap();
        let event = events.iter().find(|event| event["event"] == "force_released")?;
        Some(event["detail"].as_str().unwrap().to_owned())
    };
    let history = "/api/v1/events?from=2001-01-01T00:00:00Z&name=a";
    let kept = dashboard.json_when_with(history, &own, |json| detail(json).is_some()).await;
    let detail = detail(&kept).unwrap();
    assert!(detail.contains("192.0.2.7") && !detail.contains("127.0.0.1"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_holder_is_never_released() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = with_release(&server.url(), &[]).await;
    // Each release is requested while the lock keeps passing to other holders. It must end only the hold that was seen.
    for round in 0..8 {
        let name = format!("lock:{round}");
        take(&mut redis, name.as_bytes(), &thread(0), 600_000);
        let seen = look(&dashboard, &name).await;
        let mut other = server.connect();
        let (lock, stop) =
            (name.clone(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let stopped = std::sync::Arc::clone(&stop);
        // The lock always has exactly one holder, and from the first turn on it is never the one that was seen.
        let relay = tokio::task::spawn_blocking(move || {
            let mut turn = 0;
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                turn += 1;
                let (from, to) = (thread(turn - 1), thread(turn));
                let script = "if redis.call('hdel', KEYS[1], ARGV[1]) == 1 then redis.call('hset', KEYS[1], ARGV[2], 1) \
                    redis.call('pexpire', KEYS[1], 600000) return 1 end return 0";
                let passed: i64 = run(&mut other, &["EVAL", script, "1", &lock, &from, &to]);
                if passed == 0 {
                    return turn;
                }
            }
            0
        });
        let answer = release(&dashboard, &name, &seen, "lock").await;
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let lost_in_turn = relay.await.unwrap();
        match outcome(&answer) {
            (200, done) if done == "released" => {
                assert!(lost_in_turn <= 1, "only the one that was seen");
            }
            (409, done) if done == "changed" => assert_eq!(lost_in_turn, 0, "nobody was hit"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_holder_a_new_count_or_a_new_lease_is_another_state() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = with_release(&server.url(), &[]).await;
    let prepare = |redis: &mut redis::Connection, name: &str| {
        run::<i64>(redis, &["DEL", name]);
        take(redis, name.as_bytes(), HOLDER, 60_000);
    };
    let changes: [fn(&mut redis::Connection); 4] = [
        |redis| {
            run::<i64>(redis, &["DEL", "a"]);
            take(redis, b"a", &thread(9), 60_000);
        },
        |redis| take(redis, b"a", HOLDER, 60_000),
        |redis| assert_eq!(run::<i64>(redis, &["PEXPIRE", "a", "90000"]), 1),
        |redis| assert_eq!(run::<i64>(redis, &["HSET", "a", "mode", "read"]), 1),
    ];
    for (i, change) in changes.iter().enumerate() {
        prepare(&mut redis, "a");
        let seen = look(&dashboard, "a").await;
        change(&mut redis);
        assert_eq!(
            outcome(&release(&dashboard, "a", &seen, "lock").await),
            (409, "changed".to_owned()),
            "{i}"
        );
        assert_eq!(run::<i64>(&mut redis, &["EXISTS", "a"]), 1, "{i}");
    }
    prepare(&mut redis, "a");
    let seen = look(&dashboard, "a").await;
    run::<i64>(&mut redis, &["DEL", "a"]);
    assert_eq!(outcome(&release(&dashboard, "a", &seen, "lock").await), (200, "free".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_reader_and_one_dead_place_go_alone() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = with_release(&server.url(), &[]).await;
    run::<i64>(&mut redis, &["HSET", "rw", "mode", "read", HOLDER, "1", &thread(9), "1"]);
    run::<i64>(&mut redis, &["PEXPIRE", "rw", "600000"]);
    for id in [HOLDER, &thread(9)] {
        run::<String>(
            &mut redis,
            &["SET", &format!("{{rw}}:{id}:rwlock_timeout:1"), "1", "PX", "600000"],
        );
    }
    let seen = look(&dashboard, "rw").await;
    let target = format!("holder:{HOLDER}");
    assert!(seen["targets"].as_array().unwrap().contains(&json!(target)), "{seen}");
    let none = release(&dashboard, "rw", &seen, "holder:nobody").await;
    assert_eq!(none.status, 422, "{none:?}");
    assert_eq!(
        outcome(&release(&dashboard, "rw", &seen, &target).await),
        (200, "released".to_owned())
    );
    assert_eq!(run::<i64>(&mut redis, &["HLEN", "rw"]), 2);
    assert_eq!(
        run::<i64>(&mut redis, &["EXISTS", &format!("{{rw}}:{HOLDER}:rwlock_timeout:1")]),
        0
    );

    take(&mut redis, b"fair", HOLDER, 600_000);
    run::<i64>(&mut redis, &["RPUSH", "redisson_lock_queue:{fair}", &thread(5), &thread(6)]);
    for (waiter, deadline) in [(thread(5), "1000"), (thread(6), "9000000000000")] {
        run::<i64>(&mut redis, &["ZADD", "redisson_lock_timeout:{fair}", deadline, &waiter]);
    }
    let dead = format!("place:{}", thread(5));
    let path = format!("/api/v1/release?{}", query("fair"));
    let seen = dashboard
        .json_when(&path, |json| {
            json["targets"].as_array().is_some_and(|targets| targets.contains(&json!(dead)))
        })
        .await;
    assert_eq!(seen["targets"], json!(["lock", dead]), "the one that lives is not offered");
    let living = release(&dashboard, "fair", &seen, &format!("place:{}", thread(6))).await;
    assert_eq!(living.status, 422);
    let later = look(&dashboard, "fair").await;
    let removed = release(&dashboard, "fair", &seen, &dead).await;
    assert_eq!(outcome(&removed), (200, "released".to_owned()));
    assert!(removed.body.contains("Removed from the queue."), "no holder lost it: {removed:?}");
    assert_eq!(run::<i64>(&mut redis, &["LLEN", "redisson_lock_queue:{fair}"]), 1);
    let gone = release(&dashboard, "fair", &later, &dead).await;
    assert_eq!(outcome(&gone), (200, "free".to_owned()));
    assert!(gone.body.contains("This entry is no longer in the queue."), "it is held: {gone:?}");
    let is_removal = |event: &Value| {
        let text = event["text"].as_str().unwrap();
        event["event"] == "place_removed" && text.contains("removed the queue entry of")
    };
    dashboard
        .lock_when("fair", |lock| lock["events"].as_array().unwrap().iter().any(is_removal))
        .await;
}

/// Returns a dashboard, and its offer of the lock `a`, for which another client is starving.
async fn offered_while_starving(
    server: &RedisServer,
    redis: &mut redis::Connection,
) -> (Dashboard, Value) {
    let dashboard = with_release(&server.url(), &["--starving-after", "1s"]).await;
    take(redis, b"a", HOLDER, 600_000);
    queue(redis, "a", &[(6, 300_000)]);
    dashboard.lock_when("a", |lock| lock["problems"][0]["problem"] == "starving").await;
    let seen = look(&dashboard, "a").await;
    (dashboard, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_problem_is_over_is_not_released() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let (dashboard, seen) = offered_while_starving(&server, &mut redis).await;
    // The waiter gives up. The hold is as it was offered.
    run::<i64>(&mut redis, &["DEL", "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"]);
    let answer = release(&dashboard, "a", &seen, "lock").await;
    assert_eq!(outcome(&answer), (409, "changed".to_owned()));
    assert!(answer.body.contains("its problem is over"), "{answer:?}");
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "a"]), 1);
    // A form that was opened after the problem can release it.
    dashboard.lock_when("a", |lock| lock["problems"] == json!([])).await;
    let seen = look(&dashboard, "a").await;
    let answer = release(&dashboard, "a", &seen, "lock").await;
    assert_eq!(outcome(&answer), (200, "released".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_problem_cannot_be_checked_is_not_released() {
    let mut server = RedisServer::start().await;
    let mut redis = server.connect();
    let (dashboard, seen) = offered_while_starving(&server, &mut redis).await;
    server.process().freeze().await.unwrap();
    let answer = release(&dashboard, "a", &seen, "lock").await;
    server.process().thaw().unwrap();
    assert_eq!(outcome(&answer), (503, "unsent".to_owned()), "{answer:?}");
    assert!(answer.body.contains("could not be read again"), "{answer:?}");
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "a"]), 1);
}

/// Returns the offer of the lock `a`, whose server hangs from then on.
async fn offered_by_a_hanging_redis(server: &mut RedisServer, dashboard: &Dashboard) -> Value {
    let mut redis = server.connect();
    // The server has cached the script from here on, so a call that is sent while it hangs runs later.
    take(&mut redis, b"first", HOLDER, 600_000);
    let first = look(dashboard, "first").await;
    assert_eq!(release(dashboard, "first", &first, "lock").await.status, 200);
    take(&mut redis, b"a", HOLDER, 600_000);
    let seen = look(dashboard, "a").await;
    server.process().freeze().await.unwrap();
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_hangs_leaves_the_outcome_unknown() {
    let mut server = RedisServer::start().await;
    let dashboard = with_release(&server.url(), &[]).await;
    let seen = offered_by_a_hanging_redis(&mut server, &dashboard).await;
    let answer = release(&dashboard, "a", &seen, "lock").await;
    assert_eq!(outcome(&answer), (504, "unknown".to_owned()));
    assert!(answer.json()["detail"].as_str().unwrap().contains("may yet be"), "{answer:?}");
    let path = format!("/release?{}", query("a"));
    let page = dashboard.get(&path).await;
    assert!(page.status == 200 && seen_in(&page.body).is_none(), "nothing to act on: {page:?}");
    server.process().thaw().unwrap();
    // The release had been sent, so it runs once the server continues: the lock is still as it was seen.
    dashboard.lock_when("a", |lock| lock["state"] == "free").await;
    let lock = dashboard.lock_when("a", |lock| lock["past"][0]["ended"] == "forced").await;
    assert!(lock["events"].to_string().contains("the outcome is unknown"), "{lock:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_to_another_key_or_without_a_server() {
    let mut server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = with_release(&server.url(), &[]).await;
    for name in ["replaced", "kept"] {
        take(&mut redis, name.as_bytes(), HOLDER, 600_000);
    }
    let (replaced, kept) = (look(&dashboard, "replaced").await, look(&dashboard, "kept").await);
    run::<String>(&mut redis, &["SET", "replaced", "x"]);
    let answer = release(&dashboard, "replaced", &replaced, "lock").await;
    assert_eq!(outcome(&answer), (409, "no_lock".to_owned()), "{answer:?}");
    assert_eq!(run::<String>(&mut redis, &["GET", "replaced"]), "x");
    server.process().kill().unwrap();
    dashboard.lock_when("kept", |lock| lock["state"] == "unknown").await;
    let answer = release(&dashboard, "kept", &kept, "lock").await;
    assert_eq!(outcome(&answer), (503, "unsent".to_owned()), "{answer:?}");
    assert!(answer.json()["detail"].as_str().unwrap().contains("Nothing was done"), "{answer:?}");
    let metrics = dashboard.get("/metrics").await.body;
    for outcome in ["no_lock", "unsent"] {
        let line = format!("lockscope_dashboard_releases_total{{outcome=\"{outcome}\"}} 1");
        assert!(metrics.contains(&line), "{outcome}: {metrics}");
    }
}

/// A user of Redis 7 has no channels unless it gets some.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_messages_redis_refuses_is_a_release() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = with_release(&server.url(), &[]).await;
    take(&mut redis, b"a", HOLDER, 600_000);
    let seen = look(&dashboard, "a").await;
    run::<String>(&mut redis, &["ACL", "SETUSER", "default", "-publish"]);
    let answer = release(&dashboard, "a", &seen, "lock").await;
    assert_eq!(outcome(&answer), (200, "released".to_owned()));
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "a"]), 0);
}

/// A browser drops the request of a first click when a second one follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_recorded_although_its_visitor_has_disconnected() {
    let mut server = RedisServer::start().await;
    let dashboard = with_release(&server.url(), &[]).await;
    let seen = offered_by_a_hanging_redis(&mut server, &dashboard).await;
    let dropped = release(&dashboard, "a", &seen, "lock");
    assert!(timeout(Duration::from_millis(300), dropped).await.is_err(), "Redis hangs");
    let again = release(&dashboard, "a", &seen, "lock").await;
    assert_eq!(outcome(&again), (504, "unknown".to_owned()), "the outcome of the first request");
    server.process().thaw().unwrap();
    let lock = dashboard.lock_when("a", |lock| lock["past"][0]["ended"] == "forced").await;
    assert!(lock["events"].to_string().contains("the outcome is unknown"), "{lock:#}");
    let metrics = dashboard.get("/metrics").await.body;
    let once = "lockscope_dashboard_releases_total{outcome=\"unknown\"} 1";
    assert!(metrics.contains(once), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_a_minute_and_no_more() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = with_release(&server.url(), &[]).await;
    for i in 0..11 {
        take(&mut redis, format!("lock:{i}").as_bytes(), HOLDER, 600_000);
    }
    for i in 0..10 {
        let name = format!("lock:{i}");
        let seen = look(&dashboard, &name).await;
        assert_eq!(outcome(&release(&dashboard, &name, &seen, "lock").await).1, "released");
    }
    let seen = look(&dashboard, "lock:10").await;
    let answer = release(&dashboard, "lock:10", &seen, "lock").await;
    assert_eq!(outcome(&answer), (429, "limited".to_owned()));
    assert_eq!(answer.header("retry-after"), Some("60"));
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "lock:10"]), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_and_only_for_themselves() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let file = NamedTempFile::new().unwrap();
    let second = "0b6b7d6e4c1f9a2e5f1c";
    let lines =
        format!("{ANNA},anna,release\n{LOOKER},looker,look+ack+watch\n{second},bert,release\n");
    std::fs::write(file.path(), lines).unwrap();
    let tokens = ["--auth-token-file", file.path().to_str().unwrap()];
    take(&mut redis, b"a", HOLDER, 600_000);
    let path = "/api/v1/release?name=a";
    let bearer = |token: &str| format!("Bearer {token}");
    let (anna, bert, looker) = (bearer(ANNA), bearer(second), bearer(LOOKER));

    let flags = ["--redis-url", &server.url(), "--monitor", "off"];
    let off = Dashboard::with(&[&flags[..], &tokens].concat()).await;
    let refused = off.get_with(path, &[("Authorization", &anna)]).await;
    assert!(refused.status == 403 && refused.body.contains("--allow-release"), "{refused:?}");
    let page = off.get_with("/lock?name=a", &[("Authorization", &anna)]).await;
    assert!(page.status == 200 && !page.body.contains("/release?"), "no way there");
    off.stop().await;

    let dashboard = with_release(&server.url(), &tokens).await;
    for (method_path, what) in [("/release?name=a", "page"), (path, "api")] {
        let answer = dashboard.get_with(method_path, &[("Authorization", &looker)]).await;
        assert!(answer.status == 403 && answer.body.contains("release"), "{what}: {answer:?}");
        assert_eq!(dashboard.get(method_path).await.status, 401, "{what}");
    }
    let page = dashboard.get_with("/lock?name=a", &[("Authorization", &looker)]).await;
    assert!(!page.body.contains("/release?"));
    let seen = until("the offer", async || {
        let answer = dashboard.get_with(path, &[("Authorization", &anna)]).await;
        if answer.status == 200 { Ok(answer.json()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    let wish = json!({"seen": seen["seen"], "target": "lock", "reason": "it hangs", "name": "a"});
    for (who, status) in [(&looker, 403), (&bert, 409)] {
        let answer = post_json(dashboard.address, path, &[("Authorization", who)], &wish).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "a"]), 1);
    let done = post_json(dashboard.address, path, &[("Authorization", &anna)], &wish).await;
    assert_eq!(outcome(&done), (200, "released".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_for_some_names_is_offered_there_only_and_rejections_are_recorded() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let (file, folder) = (NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(file.path(), format!("{ANNA},anna,release orders:*+ack orders:*\n")).unwrap();
    let tokens = ["--auth-token-file", file.path().to_str().unwrap()];
    let history = ["--history-dir", folder.path().to_str().unwrap()];
    let dashboard = with_release(&server.url(), &[tokens, history].concat()).await;
    let bearer = format!("Bearer {ANNA}");
    let anna = [("Authorization", bearer.as_str())];
    for name in ["orders:1", "users:1"] {
        take(&mut redis, name.as_bytes(), HOLDER, 600_000);
    }
    let mine = "/api/v1/release?name=orders%3A1";
    let seen = until("an offer", async || {
        let answer = dashboard.get_with(mine, &anna).await;
        (answer.status == 200).then(|| answer.json()).ok_or(answer.body)
    })
    .await;
    let page = dashboard.get_with("/lock?name=orders%3A1", &anna).await;
    assert!(page.body.contains("/release?"), "{}", page.body);
    let page = dashboard.get_with("/lock?name=users%3A1", &anna).await;
    assert!(page.status == 200 && !page.body.contains("/release?"), "{}", page.body);
    let wish = |name: &str| json!({"seen": seen["seen"], "target": "lock", "reason": "it hangs", "name": name});
    for (path, name, status) in [
        ("/api/v1/release?name=users%3A1", "users:1", 403),
        (mine, "orders:2", 422),
        (mine, "orders:1", 200),
        (mine, "orders:1", 200),
    ] {
        let answer = post_json(dashboard.address, path, &anna, &wish(name)).await;
        assert_eq!(answer.status, status, "{name}: {answer:?}");
    }
    let word = json!({"problem": "leaked", "reason": "a long import", "for": "1h"});
    let answer =
        post_json(dashboard.address, "/api/v1/acknowledge?name=users%3A1", &anna, &word).await;
    assert_eq!(answer.status, 403, "{answer:?}");
    for (name, expected) in [("users%3A1", "this lock"), ("orders%3A1", "the name does not match")]
    {
        let path = format!("/api/v1/events?from=2001-01-01T00:00:00Z&name={name}");
        let events = until("the history", async || {
            let events = dashboard.get_with(&path, &anna).await.body;
            if events.contains("rejected") { Ok(events) } else { Err(events) }
        })
        .await;
        assert!(events.contains(expected) && events.contains("anna"), "{events}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_no_lock_cannot_be_released() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = with_release(&server.url(), &[]).await;
    run::<String>(&mut redis, &["SET", "text", "x"]);
    take(&mut redis, b"held", HOLDER, 600_000);
    dashboard.lock_when("held", |lock| lock["state"] == "held").await;
    for (name, word) in [("text", "not a lock"), ("nothing", "nothing to release")] {
        let answer = dashboard.get(&format!("/api/v1/release?{}", query(name))).await;
        assert_eq!(answer.status, 404, "{name}");
        assert!(answer.body.contains(word), "{name}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_read_is_no_free_lock() {
    let dashboard = with_release("redis://127.0.0.1:1", &[]).await;
    let answer = dashboard.get("/api/v1/release?name=a").await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.contains("cannot be read"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_only_its_form_shows_needs_one_more_confirmation() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let dashboard = with_release(&server.url(), &[]).await;
    for name in ["by-form", "by-page"] {
        run::<i64>(&mut redis, &["HSET", name, HOLDER, "1"]);
    }
    dashboard.listed_when("filter=confirmed:no", &["by-form", "by-page"]).await;
    let seen = look(&dashboard, "by-form").await;
    let refused = release(&dashboard, "by-form", &seen, "lock").await;
    assert!(refused.status == 422 && refused.body.contains("`unproven`"), "{refused:?}");
    let mut wish =
        json!({"seen": seen["seen"], "target": "lock", "reason": "old", "name": "by-form"});
    wish["unproven"] = true.into();
    let path = format!("/api/v1/release?{}", query("by-form"));
    let done = post_json(dashboard.address, &path, &[], &wish).await;
    assert_eq!(outcome(&done), (200, "released".to_owned()));

    let path = format!("/release?{}", query("by-page"));
    let form = dashboard.get(&path).await.body;
    assert!(form.contains("name=\"unproven\""), "{form}");
    let fields = |seen: &str| format!("seen={seen}&target=lock&reason=old&name=by-page");
    let refused = dashboard.submit(&path, &[], &fields(seen_in(&form).unwrap())).await;
    assert!(refused.status == 422 && refused.body.contains("only its shape"), "{refused:?}");
    let confirmed = format!("{}&unproven=true", fields(seen_in(&refused.body).unwrap()));
    assert_eq!(dashboard.submit(&path, &[], &confirmed).await.status, 200);
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "by-form", "by-page"]), 0);
}

/// Tests the account that docs/howto/acl.md describes.
#[tokio::test(flavor = "multi_thread")]
async fn the_redis_user_for_releases_may_do_little_else() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/howto/acl.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let user =
        docs.lines().find(|line| line.starts_with("ACL SETUSER lockscope-releaser")).unwrap();
    run::<String>(&mut redis, &user.split(' ').collect::<Vec<_>>());
    let url = format!("redis://lockscope-releaser:releaser-password@127.0.0.1:{}", server.port());
    let dashboard = with_release(&server.url(), &["--release-redis-url", &url]).await;
    take(&mut redis, b"a", HOLDER, 600_000);
    run::<i64>(
        &mut redis,
        &["HSET", "rw", "mode", "write", &format!("{HOLDER}:write"), "1", HOLDER, "1"],
    );
    run::<i64>(&mut redis, &["PEXPIRE", "rw", "600000"]);
    run::<String>(
        &mut redis,
        &["SET", &format!("{{rw}}:{HOLDER}:rwlock_timeout:1"), "1", "PX", "600000"],
    );
    run::<i64>(&mut redis, &["RPUSH", "redisson_lock_queue:{f}", &thread(5), &thread(6)]);
    run::<i64>(
        &mut redis,
        &["ZADD", "redisson_lock_timeout:{f}", "1000", &thread(5), "9000000000000", &thread(6)],
    );
    for (name, target) in [
        ("f", format!("place:{}", thread(5))),
        ("rw", format!("holder:{HOLDER}:write")),
        ("rw", "lock".to_owned()),
        ("a", "lock".to_owned()),
    ] {
        let seen = look(&dashboard, name).await;
        assert_eq!(
            outcome(&release(&dashboard, name, &seen, &target).await).1,
            "released",
            "{name} {target}"
        );
    }
    let refused: Vec<redis::Value> = run(&mut redis, &["ACL", "LOG"]);
    assert!(refused.is_empty(), "{refused:?}");

    // Without the right, the answer says that it was refused, and nothing is released.
    run::<String>(&mut redis, &["ACL", "SETUSER", "lockscope-releaser", "-del"]);
    take(&mut redis, b"b", HOLDER, 600_000);
    let seen = look(&dashboard, "b").await;
    let answer = release(&dashboard, "b", &seen, "lock").await;
    assert_eq!(outcome(&answer), (502, "refused".to_owned()), "{answer:?}");
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "b"]), 1);
}

/// Retries for some seconds, then panics with the last failure.
async fn until<T>(what: &str, attempt: impl AsyncFn() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(last) => assert!(Instant::now() < deadline, "{what}: {last}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
