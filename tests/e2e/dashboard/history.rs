//! The page of the history: ranges, types, filter, both directions, and the time cursor.

use anyhow::{Context as _, Result, ensure};
use harness::browser::Browser;
use harness::{eventually, http};
use serde_json::Value;
use tokio::process::Command;

use super::Bench;
use super::browsing::{Shown, follow, until};

/// Returns the cells of one column of the events.
async fn column(browser: &Browser, class: &str) -> Result<Vec<String>> {
    let script = format!(
        "return [...document.querySelectorAll('table.history tbody .{class}')].map((cell) => cell.innerText)"
    );
    let cells = browser.run(&script).await?;
    let cells = cells.as_array().into_iter().flatten().filter_map(Value::as_str);
    Ok(cells.map(str::to_owned).collect())
}

#[tokio::test]
async fn events_are_paged_in_both_directions_and_filtered() -> Result<()> {
    let mut shown = Shown::new().await?;
    for i in 0..110 {
        ensure!(shown.java.lock(&format!("bulk:{i}")).await?, "taken");
    }
    let dashboard = &shown.bench.dashboard;
    eventually("all events in the history", async || {
        let events = dashboard.json("/api/v1/events?from=-1h&filter=bulk:*").await?;
        let count = events["events"].as_array().map(Vec::len);
        ensure!(count == Some(110) && events["next"].is_null(), "{count:?}");
        Ok(())
    })
    .await;
    let browser = Browser::start().await?;
    browser.open(&dashboard.url("/history?filter=bulk:*")).await?;
    assert_eq!(column(&browser, "name").await?.len(), 100);
    let first = column(&browser, "name").await?;
    follow(&browser, "Older").await?;
    let second = column(&browser, "name").await?;
    assert_eq!(second.len(), 10);
    assert!(second.iter().all(|name| !first.contains(name)), "{second:?}");
    follow(&browser, "Newer").await?;
    assert_eq!(column(&browser, "name").await?, first);
    follow(&browser, "24h").await?;
    let filter = "document.getElementById('filter').value";
    until(&browser, &format!("{filter} === 'bulk:*' && location.search.includes('-24h')")).await;
    // Chooses a type, and then another one, which replaces it.
    browser.open(&dashboard.url("/history")).await?;
    follow(&browser, "problem").await?;
    let events = column(&browser, "event").await?;
    assert!(events.iter().all(|event| event == "problem") && !events.is_empty(), "{events:?}");
    follow(&browser, "taken").await?;
    let events = column(&browser, "event").await?;
    assert!(events.iter().all(|event| event == "taken") && events.len() == 100, "{events:?}");
    browser.open(&dashboard.url("/history?filter=evnt:taken")).await?;
    until(&browser, "document.querySelector('.filter-error').innerText.includes('event:taken')")
        .await;
    Ok(())
}

#[tokio::test]
async fn a_click_on_the_strip_shows_what_was_held() -> Result<()> {
    let shown = Shown::new().await?;
    let dashboard = &shown.bench.dashboard;
    eventually("the history to have what is held", async || {
        let held = dashboard.json("/api/v1/held?at=-0s").await?;
        ensure!(held["total"] == 3, "{held}");
        Ok(())
    })
    .await;
    let browser = Browser::start().await?;
    browser.open(&dashboard.url("/history?from=-15m")).await?;
    let hatched = "document.querySelector('.strip .unseen-time')";
    until(&browser, &format!("document.querySelector('.strip .bar') && {hatched}")).await;
    // A bar links to the end of its part of the strip, or to now if that end is in the future.
    let click = "const links = [...document.querySelectorAll('.strip a')].filter((a) => a.querySelector('.bar'));
        links.at(-1).dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))";
    browser.run(click).await?;
    until(&browser, "document.querySelector('.held-then')").await;
    let then = "document.querySelector('.cursor-at').innerText";
    for name in ["awaited", "plain", "leaked"] {
        until(&browser, &format!("{then}.includes({name:?})")).await;
    }
    until(&browser, &format!("{then}.includes('3 holds') && {then}.includes('still held')")).await;
    until(&browser, "document.querySelector('.strip .cursor')").await;
    let at = "new URLSearchParams(location.search).get('at')";
    let before = browser.run(&format!("return {at}")).await?;
    follow(&browser, "Earlier").await?;
    assert_ne!(browser.run(&format!("return {at}")).await?, before);
    follow(&browser, "Zoom in").await?;
    follow(&browser, "Close").await?;
    assert_eq!(browser.run(&format!("return {at}")).await?, Value::Null);
    // The future is unknown, so the page shows the current holds.
    browser.open(&dashboard.url("/history?at=2099-01-01T00:00:00Z")).await?;
    until(&browser, &format!("{then}.includes('3 holds') && !{then}.includes('2099')")).await;
    // The dashboard did not run at a time that long ago.
    browser.open(&dashboard.url("/history?at=2001-01-01T00:00:00Z")).await?;
    until(&browser, &format!("{then}.includes('Nothing was recorded')")).await;
    Ok(())
}

#[tokio::test]
async fn a_malformed_request_to_release_is_in_the_history() -> Result<()> {
    let bench = Bench::with(&["--monitor", "off", "--allow-release", "--insecure"]).await?;
    let (port, json) = (bench.dashboard.port(), "application/json");
    let malformed = [(json, "{", 400), ("text/plain", "{}", 415), (json, "{}", 422)];
    for (number, (kind, body, status)) in (1_u32..).zip(malformed) {
        let path = "/api/v1/release?name=a";
        let headers = [("Content-Type", kind)];
        let answer = http::request(port, "POST", path, &headers, body).await?;
        ensure!(answer.status == status, "{}: {}", answer.status, answer.body);
        let labels = [("outcome", "rejected")];
        let count = bench.dashboard.metrics().await?;
        let count = count.sum("lockscope_dashboard_releases_total", &labels);
        assert_eq!(count, f64::from(number), "{body}");
        eventually("its record", async || {
            let events = bench.dashboard.json("/api/v1/events?from=-1h&name=a").await?;
            let rows = events["events"].as_array().into_iter().flatten();
            let rejected = rows.filter(|row| row["event"] == "release_rejected").count();
            ensure!(u32::try_from(rejected)? == number, "{events}");
            Ok(())
        })
        .await;
    }
    Ok(())
}

#[tokio::test]
async fn an_open_page_is_no_longer_live_when_the_history_cannot_be_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_str().context("the path is UTF-8")?;
    let bench = Bench::with(&["--monitor", "off", "--history-dir", path]).await?;
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/history")).await?;
    let lost = "document.getElementById('lost')";
    until(&browser, &format!("{lost}.hidden")).await;
    let rename = async |from: &str, to: &str| {
        let script = format!(
            "import sqlite3; file = sqlite3.connect('{path}/history.db', timeout=30); \
             file.execute('ALTER TABLE {from} RENAME TO {to}')"
        );
        let python = Command::new("python3").args(["-c", &script]).status().await?;
        ensure!(python.success(), "{python}");
        Ok(())
    };
    rename("hold", "away").await?;
    let says = "/the history cannot be read now.* known [1-9]\\ds ago/";
    until(&browser, &format!("{says}.test({lost}.innerText)")).await;
    rename("away", "hold").await?;
    until(&browser, &format!("{lost}.hidden")).await;
    Ok(())
}
