//! Tests of all locks of an incident at once: one acknowledgement, and one confirmed release of each as it was shown.

use std::time::Duration;

use redis::Connection;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::time::timeout;

use crate::redis_server::{HOLDER, RedisServer, queue, red_group, run, take, thread};
use crate::serving::{Answer, Dashboard, PATIENCE, encoded, post_json, request};

const ANNA: &str = "5f1c0b6b7d6e4c1f9a2e";

/// Creates locks with the hold count 0, so that they form one incident of their client.
async fn malformed(dashboard: &Dashboard, redis: &mut Connection, names: &[&str]) {
    for name in names {
        run::<i64>(redis, &["HSET", name, HOLDER, "0"]);
        run::<i64>(redis, &["PEXPIRE", name, "600000"]);
    }
    let all = |json: &Value| {
        let incidents = json["incidents"].as_array().unwrap();
        incidents.iter().any(|incident| incident["count"] == names.len())
    };
    dashboard.json_when("/api/v1/incidents", all).await;
}

/// Removes the time to live of locks that were acquired and seen, so that they form one incident of their client.
async fn leak(dashboard: &Dashboard, redis: &mut Connection, names: &[&str]) {
    for (n, name) in (0..).zip(names) {
        take(redis, name.as_bytes(), &thread(n), 600_000);
        dashboard.lock_when(name, |lock| lock["state"] == "held").await;
        run::<i64>(redis, &["PERSIST", name]);
    }
    let all = |json: &Value| json["incidents"][0]["count"] == names.len();
    dashboard.json_when("/api/v1/incidents?filter=problem:leaked", all).await;
}

/// Returns the address of the incident's page that the list of problems links to.
async fn page_of_incident(dashboard: &Dashboard) -> String {
    let list = dashboard.get("/problems").await.body;
    let (_, rest) = list.split_once("href=\"/incident?").expect("a link to the incident");
    format!(
        "/incident?{}",
        rest.split('"').next().unwrap().replace("&#38;", "&").replace("&amp;", "&")
    )
}

fn field<'p>(page: &'p str, name: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).expect("a field");
    rest.split('"').next().unwrap()
}

async fn confirm(dashboard: &Dashboard, path: &str, seen: &str, count: &str) -> Answer {
    let form = format!("seen={seen}&count={count}&reason=they+hang&unproven=true");
    dashboard.submit(path, &[], &form).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_acknowledgement_is_for_all_its_problems() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().to_str().unwrap();
    let flags = ["--redis-url", &server.url(), "--monitor", "off", "--history-dir", history];
    let dashboard = Dashboard::with(&flags).await;
    malformed(&dashboard, &mut redis, &["a:1", "a:2", "a<3>"]).await;
    let path = page_of_incident(&dashboard).await;
    let page = dashboard.get(&path).await;
    assert!(page.status == 200 && page.body.contains("3 locks"), "{}", page.body);
    assert!(page.body.contains("a&#60;3&#62;") && !page.body.contains("a<3>"), "{}", page.body);
    assert!(!page.body.contains("Force-release all"), "nothing is released here");
    let path = path.replace("/incident?", "/incident/acknowledge?");
    let form = "problem=malformed&for=8h&reason=it+is+known";
    let short = dashboard.submit(&path, &[], "problem=malformed&for=8h&reason=x").await;
    assert_eq!(short.status, 422, "{}", short.body);
    let done = dashboard.submit(&path, &[], form).await;
    assert_eq!((done.status, done.header("location")), (303, Some("/problems")), "{done:?}");
    let incidents = dashboard.json("/api/v1/incidents").await;
    assert_eq!(incidents["incidents"][0]["acknowledged"], true, "{incidents:#}");
    for name in ["a:1", "a:2"] {
        let lock = dashboard.json(&format!("/api/v1/lock?name={name}")).await;
        assert_eq!(lock["problems"][0]["acknowledged"]["reason"], "it is known", "{lock:#}");
    }
    let events = "/api/v1/events?from=2001-01-01T00:00:00Z&name=a:2";
    dashboard.json_when(events, |json| json.to_string().contains("\"acknowledged\"")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_its_locks_are_released_as_they_were_shown_and_no_others() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let flags = ["--redis-url", &server.url(), "--monitor", "off", "--allow-release", "--insecure"];
    let dashboard = Dashboard::with(&flags).await;
    let names = ["job:1", "job:2", "job:3", "job:4"];
    leak(&dashboard, &mut redis, &names).await;
    let path = page_of_incident(&dashboard).await;
    assert!(dashboard.get(&path).await.body.contains("Force-release all"));
    let path = path.replace("/incident?", "/incident/release?");
    let page = dashboard.get(&path).await;
    assert!(page.status == 200 && page.body.contains("Release 4"), "{}", page.body);
    let seen = field(&page.body, "seen").to_owned();
    let wrong = confirm(&dashboard, &path, &seen, "3").await;
    assert!(wrong.status == 422 && wrong.body.contains("number does not match"), "{wrong:?}");
    // One of the locks has passed to another holder since the page was shown.
    run::<i64>(&mut redis, &["DEL", "job:2"]);
    take(&mut redis, b"job:2", &thread(77), 600_000);
    let done = confirm(&dashboard, &path, &seen, "4").await;
    assert_eq!(done.status, 200, "{}", done.body);
    assert!(done.body.contains("1 changed") && done.body.contains("3 released"), "{}", done.body);
    let left: Vec<i64> = names.map(|name| run(&mut redis, &["EXISTS", name])).into();
    assert_eq!(left, [0, 1, 0, 0]);
    // A second click, or a reload, shows the same outcomes, although the incident is over, and does nothing.
    dashboard.json_when("/api/v1/incidents", |json| json["total"] == 0).await;
    let twice = confirm(&dashboard, &path, &seen, "4").await;
    assert_eq!(twice.status, 200, "{twice:?}");
    assert!(twice.body.contains("1 changed") && twice.body.contains("3 released"), "{twice:?}");
    let metrics = dashboard.get("/metrics").await.body;
    for line in ["{outcome=\"released\"} 3", "{outcome=\"changed\"} 1"] {
        assert!(metrics.contains(&format!("lockscope_dashboard_releases_total{line}")), "{line}");
    }
    let lock = dashboard.lock_when("job:1", |lock| lock["past"][0]["ended"] == "forced").await;
    assert!(lock.to_string().contains("they hang"), "{lock:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_red_lock_is_one_incident_that_names_its_servers() {
    let servers =
        [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let file = red_group(&servers);
    let flags = ["--config", file.path().to_str().unwrap(), "--allow-release", "--insecure"];
    let dashboard = Dashboard::with(&flags).await;
    // A client of Redisson has a different uuid on each server, and the same thread on all of them.
    for (server, uuid) in servers.iter().zip(["1", "2"]) {
        let holder = format!("{}-9152-4c83-822a-67ee2f116a79:52", uuid.repeat(8));
        let mut redis = server.connect();
        run::<i64>(&mut redis, &["HSET", "jobs", &holder, "0"]);
        run::<i64>(&mut redis, &["PEXPIRE", "jobs", "600000"]);
    }
    let whole = |json: &Value| {
        let (total, first) = (&json["total"], &json["incidents"][0]);
        *total == 1 && first["deployments"] == json!(["a", "b"]) && first["count"] == 2
    };
    dashboard.json_when("/api/v1/incidents", whole).await;
    for path in ["/problems", "/overview"] {
        let page = dashboard.get(path).await.body;
        assert!(page.contains("<span class=\"place\">a, b</span>"), "{page}");
        assert!(page.contains(">red 2 of 3<"), "{page}");
    }
    let path = page_of_incident(&dashboard).await;
    let page = dashboard.get(&path).await.body;
    assert!(page.contains("<h1>malformed, a red lock on a, b</h1>"), "{page}");
    // The incident is found by its place on each of its servers.
    let other = path.replace("deployment=a", "deployment=b").replace("11111111", "22222222");
    assert_ne!(other, path);
    assert_eq!(dashboard.get(&other).await.status, 200);
    let path = path.replace("/incident?", "/incident/release?");
    let page = dashboard.get(&path).await.body;
    let done = confirm(&dashboard, &path, field(&page, "seen"), "2").await;
    assert!(done.body.contains("2 released"), "{}", done.body);
    for server in &servers {
        assert_eq!(run::<i64>(&mut server.connect(), &["EXISTS", "jobs"]), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn its_locks_whose_problem_is_over_are_not_released() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let url = server.url();
    let flags = ["--redis-url", &url, "--monitor", "off", "--allow-release", "--insecure"];
    let dashboard = Dashboard::with(&[&flags[..], &["--starving-after", "1s"]].concat()).await;
    for name in ["job:1", "job:2"] {
        take(&mut redis, name.as_bytes(), HOLDER, 600_000);
        queue(&mut redis, name, &[(6, 300_000)]);
    }
    let both = |list: &Value| list["incidents"][0]["count"] == 2;
    let starving = "/api/v1/incidents?filter=problem:starving";
    let list = dashboard.json_when(starving, both).await;
    let path = api_of(&list["incidents"][0]);
    let offer = dashboard.json(&path).await;
    assert_eq!(offer["locks"].as_array().unwrap().len(), 2, "{offer:#}");
    let gone = ["redisson_lock_queue:{job:2}", "redisson_lock_timeout:{job:2}"];
    run::<i64>(&mut redis, &["DEL", gone[0], gone[1]]);
    let wish = json!({"seen": offer["seen"], "reason": "they hang", "count": 2});
    let done = post_json(dashboard.address, &path, &[], &wish).await;
    let outcome = |name: &str| {
        let all = done.json()["outcomes"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["lock"]["name"] == name).unwrap()["outcome"].clone()
    };
    assert_eq!((outcome("job:1"), outcome("job:2")), (json!("released"), json!("changed")));
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "job:1", "job:2"]), 1);
}

/// Returns the API address for the release of an incident.
fn api_of(incident: &Value) -> String {
    let [problem, key] = ["problem", "key"].map(|key| incident[key].as_str().unwrap());
    format!("/api/v1/incident/release?problem={problem}&key={}", encoded(key.as_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_releases_all_its_locks_as_they_were_offered() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().to_str().unwrap();
    let url = server.url();
    let flags = ["--redis-url", &url, "--monitor", "off", "--allow-release", "--insecure"];
    let dashboard = Dashboard::with(&[&flags[..], &["--history-dir", history]].concat()).await;
    let names = ["job:1", "job:2", "job:3"];
    leak(&dashboard, &mut redis, &names).await;
    let list = dashboard.json("/api/v1/incidents?filter=problem:leaked").await;
    let path = api_of(&list["incidents"][0]);
    let offer = dashboard.json(&path).await;
    assert_eq!(offer["locks"].as_array().unwrap().len(), 3, "{offer:#}");
    assert_eq!((&offer["more"], &offer["left_out"]), (&json!(0), &json!([])), "{offer:#}");
    let send = async |count: usize, reason: &str| {
        let wish =
            json!({"seen": offer["seen"], "reason": reason, "count": count, "unproven": true});
        post_json(dashboard.address, &path, &[], &wish).await
    };
    let wrong = [send(2, "they hang").await, send(3, "").await];
    assert_eq!(wrong.map(|answer| answer.status), [422, 422]);
    run::<i64>(&mut redis, &["HSET", "broken", HOLDER, "0"]);
    run::<i64>(&mut redis, &["PEXPIRE", "broken", "600000"]);
    let malformed = "/api/v1/incidents?filter=problem:malformed";
    let list = dashboard.json_when(malformed, |list| list["total"] == 1).await;
    let wish = json!({"seen": offer["seen"], "reason": "they hang", "count": 3, "unproven": true});
    let other = post_json(dashboard.address, &api_of(&list["incidents"][0]), &[], &wish).await;
    assert_eq!(other.status, 409, "the offer is for another incident: {other:?}");
    run::<i64>(&mut redis, &["DEL", "job:2"]);
    take(&mut redis, b"job:2", &thread(77), 600_000);
    let done = send(3, "they hang").await;
    assert_eq!(done.status, 200, "{done:?}");
    let mut outcomes: Vec<_> = done.json()["outcomes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("{} {}", one["lock"]["name"], one["outcome"]))
        .collect();
    outcomes.sort_unstable();
    let expected = [r#""job:1" "released""#, r#""job:2" "changed""#, r#""job:3" "released""#];
    assert_eq!(
        (outcomes, &done.json()["running"]),
        (expected.map(str::to_owned).into(), &json!(0))
    );
    let left: Vec<i64> = names.map(|name| run(&mut redis, &["EXISTS", name])).into();
    assert_eq!(left, [0, 1, 0]);
    let again = send(3, "they hang").await;
    assert_eq!(again.status, 200, "the outcomes of the first request: {again:?}");
    assert_eq!(again.json(), done.json());
    let other = post_json(dashboard.address, &api_of(&list["incidents"][0]), &[], &wish).await;
    assert_eq!(other.status, 409, "the offer was for another incident: {other:?}");
    let gone = dashboard.get("/api/v1/incident/release?problem=leaked&key=none").await;
    assert_eq!(gone.status, 404, "{gone:?}");
    let recorded = |events: &Value| {
        let events = events.to_string();
        events.contains("they hang") && events.contains("number does not match")
    };
    dashboard.json_when("/api/v1/events?from=2001-01-01T00:00:00Z", recorded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_without_the_right_or_with_several_holders_are_left_out() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{ANNA},anna,release job:*\n")).unwrap();
    let tokens = file.path().to_str().unwrap();
    let url = server.url();
    let flags = ["--redis-url", &url, "--monitor", "off", "--allow-release"];
    let dashboard = Dashboard::with(&[&flags[..], &["--auth-token-file", tokens]].concat()).await;
    let bearer = format!("Bearer {ANNA}");
    let headers = [("Authorization", bearer.as_str())];
    for name in ["job:1", "job:2", "other"] {
        run::<i64>(&mut redis, &["HSET", name, HOLDER, "0"]);
        run::<i64>(&mut redis, &["PEXPIRE", name, "600000"]);
    }
    run::<i64>(&mut redis, &["HSET", "job:2", &thread(9), "1"]);
    let path = format!("/incident/release?problem=malformed&key=client%20{}", &HOLDER[..36]);
    let shown = async {
        loop {
            let page = dashboard.get_with(&path, &headers).await;
            if page.body.contains("job:2") && page.body.contains("other") {
                return page;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let page = timeout(PATIENCE, shown).await.expect("the incident of all three locks");
    assert!(page.body.contains("Release 1<"), "{}", page.body);
    assert!(
        page.body.contains("several holders")
            && page.body.contains("the <code>release</code> right"),
        "{page:?}"
    );
    let api = format!("/api/v1{path}");
    let offer = dashboard.get_with(&api, &headers).await.json();
    let named = |list: &Value| list.as_array().unwrap().len();
    assert_eq!((named(&offer["locks"]), named(&offer["left_out"])), (1, 2), "{offer:#}");
    assert_eq!(offer["locks"][0]["name"], "job:1");
    assert_eq!(request(dashboard.address, "GET", &api, &[]).await.status, 401);
    let nobody = request(dashboard.address, "GET", &path, &[]).await;
    assert_eq!(nobody.status, 401);
    assert!(!nobody.body.contains("job:1"), "{nobody:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_ended_after_the_offer_releases_nothing() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let file = NamedTempFile::new().unwrap();
    let grant = |rights: &str| {
        std::fs::write(file.path(), format!("{ANNA},anna,{rights}\n")).unwrap();
    };
    grant("release");
    let (url, tokens) = (server.url(), file.path().to_str().unwrap());
    let flags = ["--redis-url", &url, "--monitor", "off", "--allow-release"];
    let dashboard = Dashboard::with(&[&flags[..], &["--auth-token-file", tokens]].concat()).await;
    let bearer = format!("Bearer {ANNA}");
    let headers = [("Authorization", bearer.as_str())];
    for name in ["job:1", "other"] {
        run::<i64>(&mut redis, &["HSET", name, HOLDER, "0"]);
        run::<i64>(&mut redis, &["PEXPIRE", name, "600000"]);
    }
    let client = &HOLDER[..36];
    let path = format!("/api/v1/incident/release?problem=malformed&key=client%20{client}");
    let both = |offer: &Value| offer["locks"].as_array().is_some_and(|locks| locks.len() == 2);
    let offer = dashboard.json_when_with(&path, &headers, both).await;
    grant("release job:*");
    let narrowed = |answer: &Value| answer["status"] == 403;
    dashboard.json_when_with("/api/v1/release?name=other", &headers, narrowed).await;
    let wish = json!({"seen": offer["seen"], "reason": "they hang", "count": 2, "unproven": true});
    let refused = post_json(dashboard.address, &path, &headers, &wish).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "job:1", "other"]), 2);
    let metrics = dashboard.get_with("/metrics", &headers).await.body;
    let once = "lockscope_dashboard_releases_total{outcome=\"rejected\"} 1";
    assert!(metrics.contains(once), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_too_late_or_beyond_the_limit_is_recorded() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    let folder = tempfile::tempdir().unwrap();
    let (url, history) = (server.url(), folder.path().to_str().unwrap());
    let flags = ["--redis-url", &url, "--monitor", "off", "--allow-release", "--insecure"];
    let dashboard = Dashboard::with(&[&flags[..], &["--history-dir", history]].concat()).await;
    malformed(&dashboard, &mut redis, &["job:1", "job:2"]).await;
    let list = dashboard.json("/api/v1/incidents").await;
    let path = api_of(&list["incidents"][0]);
    let offer = dashboard.json(&path).await;
    let send = async |seen: &Value| {
        let wish = json!({"seen": seen, "reason": "they hang", "count": 2});
        post_json(dashboard.address, &path, &[], &wish).await
    };
    assert_eq!(send(&json!("too-old")).await.status, 409);
    for i in 0..10 {
        let name = format!("other:{i}");
        take(&mut redis, name.as_bytes(), HOLDER, 600_000);
        let path = format!("/api/v1/release?name={name}");
        let seen = dashboard.json_when(&path, |json| json["seen"].is_string()).await;
        let wish =
            json!({"seen": seen["seen"], "target": "lock", "reason": "it hangs", "name": name});
        assert_eq!(post_json(dashboard.address, &path, &[], &wish).await.status, 200);
    }
    let limited = send(&offer["seen"]).await;
    assert_eq!((limited.status, &limited.json()["outcome"]), (429, &json!("limited")));
    assert_eq!(run::<i64>(&mut redis, &["EXISTS", "job:1", "job:2"]), 2);
    let metrics = dashboard.get("/metrics").await.body;
    for outcome in ["rejected", "limited"] {
        let line = format!("lockscope_dashboard_releases_total{{outcome=\"{outcome}\"}} 1");
        assert!(metrics.contains(&line), "{outcome}: {metrics}");
    }
    let recorded = |events: &Value| {
        let events = events.to_string();
        events.contains("rejected: the form is older")
            && events.contains("limited: the limit is 10")
    };
    dashboard.json_when("/api/v1/events?from=2001-01-01T00:00:00Z", recorded).await;
}
