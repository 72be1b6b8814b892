//! Pages as a browser gets them: escaping, headers, hosts, settings.

use std::net::Ipv4Addr;

use anyhow::Result;
use harness::http;
use harness::process::Process;

use super::Bench;
use crate::agent::promtool;

const NASTY: [&str; 6] = [
    "<script>window.pwned=1</script>",
    "\"><img src=x onerror=window.pwned=1>",
    "' onmouseover='window.pwned=1",
    "{{7*7}}</title><svg/onload=window.pwned=1>",
    "javascript:window.pwned=1",
    "-->]]><b>bold</b>",
];

/// Acquires locks with hostile names, as an attacker with access to Redis but not to the dashboard might.
async fn plant(bench: &mut Bench) -> Result<()> {
    for name in NASTY {
        let holder = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47";
        bench.direct.call_args(&["HSET", name, holder, "1"]).await?.ok()?;
        bench.direct.call_args(&["PEXPIRE", name, "600000"]).await?.ok()?;
    }
    for name in NASTY {
        bench.listed(name, |_| true).await;
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn names_are_escaped_everywhere() -> Result<()> {
    let mut bench = Bench::new().await?;
    plant(&mut bench).await?;
    let mut paths = vec!["/".to_owned()];
    for name in NASTY {
        paths.push(format!("/lock?name={}", quoted(name)));
        paths.push(format!("/?filter={}", quoted(name)));
        paths.push(format!("/nowhere/{}", quoted(name)));
    }
    for path in paths {
        let page = http::get(bench.dashboard.port(), &path).await?;
        let html = page.body.to_lowercase();
        for raw in ["<script>window", "<img src=x", "<svg/onload", "<b>bold", "' onmouseover='"] {
            assert!(!html.contains(raw), "{path}: {raw} stands in the page");
        }
        assert!(!html.contains("href=\"javascript:"), "{path}");
    }
    let browser = harness::browser::Browser::start().await?;
    browser.open(&bench.dashboard.url("/")).await?;
    let rows = "return document.querySelectorAll('#rows tr').length";
    harness::eventually("the rows", async || {
        let count = browser.run(rows).await?;
        anyhow::ensure!(count == NASTY.len(), "{count}");
        Ok(())
    })
    .await;
    assert_eq!(browser.run("return window.pwned").await?, serde_json::Value::Null);
    // Each link leads to its lock, which is shown with its exact name.
    for name in NASTY {
        let url = bench.dashboard.url(&format!("/lock?name={}", quoted(name)));
        browser.open(&url).await?;
        let text = browser.run("return document.body.innerText").await?;
        assert!(text.as_str().is_some_and(|text| text.contains(name)), "{name}: {text}");
        assert_eq!(browser.run("return window.pwned").await?, serde_json::Value::Null);
    }
    Ok(())
}

#[tokio::test]
async fn every_answer_has_its_security_headers() -> Result<()> {
    let bench = Bench::new().await?;
    let paths = [
        ("/", 200),
        ("/lock?name=a", 200),
        ("/sources", 200),
        ("/nowhere", 404),
        ("/?filter=age%3Asoon", 400),
        ("/static/nothing.js", 404),
        ("/api/v1/locks", 200),
        ("/api/v1/lock", 400),
        ("/api/v1/sources", 200),
        ("/api/v1/openapi.json", 200),
        ("/metrics", 200),
    ];
    for (path, status) in paths {
        let answer = http::get(bench.dashboard.port(), path).await?;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        let policy = answer.header("content-security-policy").unwrap_or_default();
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("same-origin"), "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn other_hosts_names_and_methods_are_refused() -> Result<()> {
    let bench = Bench::with(&["--public-url", "https://locks.example"]).await?;
    let port = bench.dashboard.port();
    for path in ["/", "/api/v1/locks", "/static/app.css", "/metrics"] {
        let evil = http::request(port, "GET", path, &[("Host", "evil.example")], "").await?;
        assert!((400..500).contains(&evil.status), "{path}: {}", evil.status);
        assert!(!evil.body.contains("evil.example:"), "{}", evil.body);
    }
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for name in ["localhost", "[::1]", "locks.example", &own] {
        let host = format!("{name}:{port}");
        for path in ["/", "/metrics"] {
            let fine = http::request(port, "GET", path, &[("Host", &host)], "").await?;
            assert_eq!(fine.status, 200, "{host}");
        }
    }
    let same = [("Sec-Fetch-Site", "same-origin")];
    for method in ["POST", "PUT", "DELETE"] {
        let refused = http::request(port, method, "/api/v1/locks", &same, "").await?;
        assert_eq!(refused.status, 405, "{method}");
    }
    Ok(())
}

#[tokio::test]
async fn a_reachable_address_requires_confirmation() -> Result<()> {
    let redis = harness::RedisServer::start().await?;
    let folder = tempfile::tempdir()?;
    let mut command = harness::process::command(&harness::programs::path("lockscope-dashboard")?);
    let port = harness::redis::random_port();
    let address = format!("{}:{port}", Ipv4Addr::UNSPECIFIED);
    command.args(["--redis-url", &redis.url(), "--listen", &address]);
    let log = folder.path().join("log");
    let mut refused = Process::spawn("dashboard", command, &log, None)?;
    let status = refused.end().await;
    assert_eq!(status.code(), Some(64), "{status}");
    assert!(refused.log().contains("--insecure"), "{}", refused.log());
    Ok(())
}

#[tokio::test]
async fn metrics_are_valid() -> Result<()> {
    let mut bench = Bench::new().await?;
    plant(&mut bench).await?;
    let metrics = bench.dashboard.metrics().await?;
    let locks = metrics.sum("lockscope_dashboard_locks", &[("kind", "lock")]);
    assert_eq!(locks, 6.0, "all nasty names are counted");
    assert_eq!(metrics.sum("lockscope_dashboard_redis_up", &[]), 1.0);
    promtool(&metrics.0)
}
