//! The HTTP servers of both programs under random and mutated requests.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use harness::random::Random;
use harness::{Agent, Dashboard, RedisServer, http};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{ANSWER_WITHIN, NUMBERS, Seeds, ensure_no_panic, mutate, write_in_pieces};

const CONNECTIONS: usize = 8;
/// The time without further bytes after which a connection is abandoned: a request may be incomplete, or a stream silent.
const SILENCE: Duration = Duration::from_millis(100);

const PATHS: [&str; 31] = [
    "/",
    "/overview",
    "/lock",
    "/acknowledge",
    "/unacknowledge",
    "/release",
    "/incident",
    "/incident/release",
    "/owners",
    "/owner",
    "/problems",
    "/contention",
    "/history",
    "/trace",
    "/sources",
    "/login",
    "/live",
    "/healthz",
    "/metrics",
    "/static/app.css",
    "/static/../app.css",
    "/api/v1/locks",
    "/api/v1/lock",
    "/api/v1/events",
    "/api/v1/held",
    "/api/v1/trace",
    "/api/v1/owners",
    "/api/v1/blockers",
    "/api/v1/release",
    "/api/v1/sessions",
    "/api/v1/stream",
];
const KEYS: [&str; 16] = [
    "name",
    "q",
    "sort",
    "after",
    "cursor",
    "count",
    "limit",
    "at",
    "from",
    "db",
    "deployment",
    "format",
    "target",
    "csrf",
    "client",
    "list",
];
const VALUES: [&str; 14] = [
    "",
    "kept",
    "kind:read -problem:leaked",
    "owner:* host:a",
    "held>5m ttl<1s",
    "\"unclosed",
    "<script>alert(1)</script>",
    "%00%0d%0aSet-Cookie:a=b",
    "%",
    "%ff%fe",
    "-age",
    "csv",
    "2026-11-24T10:00:00Z",
    "....//....//etc/passwd",
];
const METHODS: [&str; 8] = ["GET", "GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "get"];
const HEADERS: [&str; 14] = [
    "Accept: text/html",
    "Accept-Encoding: gzip, br;q=1.5, *;q=x",
    "Authorization: Bearer x",
    "Connection: keep-alive, upgrade",
    "Cookie: lockscope=; lockscope=a; =",
    "Expect: 100-continue",
    "If-None-Match: \"\", *",
    "Last-Event-ID: 18446744073709551616",
    "Origin: null",
    "Range: bytes=5-1",
    "Sec-Fetch-Site: same-origin",
    "Transfer-Encoding: chunked",
    "Upgrade: h2c",
    "X-Forwarded-For: ::1, [::1]:99999",
];

/// Returns a request that is valid, or almost.
fn request(random: &mut Random, port: u16) -> Vec<u8> {
    let mut target = (*random.pick(&PATHS)).to_owned();
    for i in 0..random.below(4) {
        let value =
            if random.one_in(3) { *random.pick(&NUMBERS.each_ref()) } else { random.pick(&VALUES) };
        target.push(if i == 0 { '?' } else { '&' });
        target.push_str(&format!("{}={}", random.pick(&KEYS), value.replace(' ', "+")));
    }
    let method = random.pick(&METHODS);
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n");
    for _ in 0..random.below(4) {
        text.push_str(&format!("{}\r\n", random.pick(&HEADERS)));
    }
    let body = if method == "POST" {
        format!("{}={}&csrf=x", random.pick(&KEYS), random.pick(&VALUES))
    } else {
        String::new()
    };
    if !body.is_empty() {
        let kinds = ["application/x-www-form-urlencoded", "application/json", "text/plain"];
        text.push_str(&format!("Content-Type: {}\r\n", random.pick(&kinds)));
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    format!("{text}\r\n{body}").into_bytes()
}

/// Sends the bytes that a seed determines, and checks the responses.
async fn attack(port: u16, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let requests = 1 + random.below(3);
    let mut bytes: Vec<u8> = (0..requests).flat_map(|_| request(&mut random, port)).collect();
    let intact = random.one_in(4);
    if !intact {
        mutate(&mut random, &mut bytes);
    }
    let shut_down = random.one_in(8);
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut reading, mut writing) = stream.into_split();
    let mut received = Vec::new();
    let write = async {
        write_in_pieces(&mut random, &mut writing, &bytes).await?;
        if shut_down {
            // The server may already have closed the connection.
            writing.shutdown().await.unwrap_or_default();
        }
        anyhow::Ok(())
    };
    let read = async {
        // A stream has no end, so a few of its events suffice.
        let mut patience = if intact { ANSWER_WITHIN } else { SILENCE };
        while received.len() < 1 << 20
            && let Ok(Ok(1..)) = timeout(patience, reading.read_buf(&mut received)).await
        {
            patience = SILENCE;
        }
    };
    let (written, ()) = tokio::join!(write, read);
    written?;
    let shown = || format!("{} -> {}", bytes.escape_ascii(), received.escape_ascii());
    // After the end of the requests the server may close the connection without an answer.
    ensure!(!intact || shut_down || !received.is_empty(), "no answer: {}", shown());
    ensure!(received.is_empty() || received.starts_with(b"HTTP/1."), "{}", shown());
    let status = received.get(9..12).unwrap_or_default();
    let failed = status.starts_with(b"5") && ![&b"503"[..], b"505"].contains(&status);
    ensure!(!failed, "{}", shown());
    let head = received.split(|byte| *byte == b'\n').take_while(|line| line.len() > 1);
    // A redirect repeats the query, still encoded, at the end of one line.
    let injected = head
        .map(<[u8]>::to_ascii_lowercase)
        .any(|line| line.starts_with(b"set-cookie:") && line.ends_with(b"a=b\r"));
    ensure!(!injected, "a header was injected: {}", shown());
    let health = http::request_within(ANSWER_WITHIN, port, "GET", "/healthz", &[], "").await?;
    ensure!(health.status == 200, "{health:?} after {}", shown());
    Ok(())
}

async fn attack_with_all(port: u16, seeds: &Seeds) -> Result<()> {
    let attackers = (0..CONNECTIONS).map(|_| seeds.run(async |seed| attack(port, seed).await));
    try_join_all(attackers).await.map(drop)
}

#[tokio::test]
async fn random_requests_harm_neither_the_dashboard_nor_a_lock() -> Result<()> {
    let redis = RedisServer::start().await?;
    let agent = Agent::start(&redis).await?;
    let mut holder = agent.client().await?;
    holder.call("LOCK kept").await?.ok()?;
    let mut dashboard = Dashboard::start(&redis.url(), &["--allow-release", "--insecure"]).await?;
    let seeds = Seeds::chosen(0..500)?;
    let attacked = attack_with_all(dashboard.port(), &seeds).await;
    ensure_no_panic(&dashboard.process().log())?;
    attacked.context("the dashboard")?;
    ensure!(dashboard.process().ended()?.is_none(), "the dashboard has ended");
    let held = holder.call("HOLDS").await?.ok()?;
    ensure!(held.items()?.len() == 1, "{held}");
    Ok(())
}

#[tokio::test]
async fn random_requests_do_not_harm_the_agent() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut agent = Agent::with(&redis, &["--http-sessions"]).await?;
    let mut holder = agent.client().await?;
    holder.call("LOCK kept").await?.ok()?;
    let seeds = Seeds::chosen(0..500)?;
    let attacked = attack_with_all(agent.http(), &seeds).await;
    ensure_no_panic(&agent.process().log())?;
    attacked.context("the agent")?;
    ensure!(holder.call("UNLOCK kept").await?.int()? == 0);
    ensure!(agent.process().ended()?.is_none(), "the agent has ended");
    Ok(())
}
