//! A lock traced: by the button on its page, and by `lockctl tail`.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use harness::browser::Browser;
use harness::{Dashboard, Foreign, Process, eventually, http, process, programs};
use serde_json::Value;

use super::Bench;
use super::browsing::{WIDE, assert_accessible, axe, listener};

/// The labels of the steps on the page.
const STEPS: &str = "return [...document.querySelectorAll('#rows .what')].map((step) => step.textContent).join(' ')";

#[tokio::test]
async fn the_button_shows_the_life_of_a_lock_as_it_goes_on() -> Result<()> {
    let bench = Bench::with(&["--monitor-max-ops", "1"]).await?;
    let browser = Browser::start().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    let mut other = Foreign::connect(&bench.redis).await?;
    other.holder = "7c2e5d90-5a43-4f9f-8d11-6a2b3c4d5e6f:8".to_owned();
    browser.open(&bench.dashboard.url("/lock?name=orders:42")).await?;
    browser.run("document.querySelector('#trace button').click()").await?;
    eventually("MONITOR to be on", async || {
        let place = browser.run("return location.hash").await?;
        ensure!(place == "#trace", "{place}");
        let trace = bench.dashboard.json("/api/v1/trace?name=orders:42").await?;
        ensure!(trace["monitor"][0]["state"] == "on", "{trace}");
        Ok(())
    })
    .await;
    // A reload would remove this mark.
    browser.run("window.mark = 'still here'").await?;
    ensure!(java.lock("orders:42").await?, "taken");
    ensure!(!other.lock("orders:42").await?, "taken twice");
    let waiter = listener(&bench, "orders:42").await?;
    let shows = async |wanted: &str| {
        eventually(&format!("the page to show {wanted}"), async || {
            let steps = browser.run(STEPS).await?;
            ensure!(steps == wanted, "{steps}");
            Ok(())
        })
        .await;
    };
    shows("acquire refused subscribe").await;
    // Its minute begins again.
    let (port, headers) = (bench.dashboard.port(), [("Content-Type", "application/json")]);
    let again = http::request(port, "POST", "/api/v1/trace?name=orders:42", &headers, "{}").await?;
    ensure!(again.status == 202, "{}", again.body);
    // An open line stays open while more steps arrive.
    browser.run("document.querySelector('#rows details').open = true").await?;
    ensure!(java.renew("orders:42").await?, "lost");
    ensure!(java.unlock("orders:42").await?, "lost");
    drop(waiter);
    shows("acquire refused subscribe renew release").await;
    let raw =
        browser.run("return document.querySelector('#rows details[open] .raw').innerText").await?;
    ensure!(raw.as_str().is_some_and(|raw| raw.contains("orders:42")), "{raw}");
    ensure!(browser.run("return window.mark").await? == "still here", "the page was loaded again");
    assert_accessible(&browser, &axe()?, "a trace").await?;
    browser.show_as((390, 844), true).await?;
    ensure!(browser.run(WIDE).await? == false, "wider than a phone");
    Ok(())
}

/// Starts `lockctl tail` of a lock.
fn tail(dashboard: &Dashboard, flags: &[&str]) -> Result<std::process::Command> {
    let mut command = process::command(&programs::path("lockctl")?);
    command.args(["tail", "orders:42", "--dashboard", &dashboard.url("/")]).args(flags);
    Ok(command)
}

#[tokio::test]
async fn lockctl_tail_prints_the_steps_as_they_happen() -> Result<()> {
    let bench = Bench::with(&["--monitor-max-ops", "1"]).await?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("tail");
    let command = tail(&bench.dashboard, &["--json"])?;
    let _tail = Process::spawn("lockctl", command, &log, None)?;
    eventually("the trace to begin", async || {
        let trace = bench.dashboard.json("/api/v1/trace?name=orders:42").await?;
        ensure!(trace["monitor"][0]["state"] == "on" && trace["tracing"] == true, "{trace}");
        Ok(())
    })
    .await;
    let mut java = Foreign::connect(&bench.redis).await?;
    ensure!(java.lock("orders:42").await?, "taken");
    let steps = async |wanted: &[&str]| {
        eventually("the steps to be printed", async || {
            let text = std::fs::read_to_string(&log)?;
            let lines = text.lines().filter(|line| line.starts_with('{'));
            let steps: Vec<Value> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
            let words: Vec<&str> = steps.iter().filter_map(|step| step["step"].as_str()).collect();
            ensure!(words == wanted, "{text}");
            Ok(())
        })
        .await;
    };
    steps(&["acquired"]).await;
    ensure!(java.unlock("orders:42").await?, "lost");
    steps(&["acquired", "released"]).await;
    // The trace ends and reports the reason.
    let end = tail(&bench.dashboard, &["--for", "1s"])?.stdin(Stdio::null()).output()?;
    ensure!(end.status.success() && end.stdout.is_empty(), "{end:?}");
    let off = Dashboard::start(&bench.redis.url(), &["--monitor", "off"]).await?;
    let refused = tail(&off, &[])?.stdin(Stdio::null()).output()?;
    let text = String::from_utf8(refused.stderr)?;
    ensure!(
        refused.status.code() == Some(69) && text.contains("disabled by --monitor off"),
        "{text}"
    );
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123,anna,look\n")?;
    let tokens = token.to_str().context("no UTF-8")?;
    let guarded = Dashboard::start(&bench.redis.url(), &["--auth-token-file", tokens]).await?;
    let mine = folder.path().join("mine");
    std::fs::write(&mine, "0123456789abcdef0123\n")?;
    let mine = mine.to_str().context("no UTF-8")?;
    for (flags, why) in [(&[][..], "--token-file"), (&["--token-file", mine], "watch")] {
        let refused = tail(&guarded, flags)?.stdin(Stdio::null()).output()?;
        let text = String::from_utf8(refused.stderr)?;
        ensure!(refused.status.code() == Some(77) && text.contains(why), "{flags:?}: {text}");
    }
    Ok(())
}
