//! A real browser shows the page while locks are acquired and released.

use anyhow::{Context as _, Result, ensure};
use harness::browser::Browser;
use harness::{Agent, Foreign, eventually};
use serde_json::Value;

use super::Bench;

/// Returns a script for the text of the row with this name, or null.
fn row(name: &str) -> String {
    format!(
        "const row = [...document.querySelectorAll('#rows tr')]
           .find((row) => row.querySelector('.name')?.textContent.includes({name:?}));
         return row ? row.innerText : null;"
    )
}

/// Returns the seconds of the row's time to live, or null.
const SECONDS_LEFT: &str = "const row = [...document.querySelectorAll('#rows tr')]
       .find((row) => row.querySelector('.name')?.textContent.includes('nightly-report'));
     const left = row?.querySelector('.time-left .left');
     return left ? parseInt(left.textContent, 10) : null;";

#[tokio::test]
async fn a_row_appears_counts_down_and_disappears_without_a_reload() -> Result<()> {
    let bench = Bench::new().await?;
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/")).await?;
    // A reload would remove this mark.
    browser.run("window.mark = 'still here'").await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    java.lease_ms = 50_000;
    assert!(java.lock("nightly-report").await?);
    eventually("the row to appear", async || {
        let text = browser.run(&row("nightly-report")).await?;
        ensure!(text.as_str().is_some_and(|text| text.contains("held")), "{text}");
        Ok(())
    })
    .await;
    let first = eventually("a time to live", async || {
        let left = browser.run(SECONDS_LEFT).await?;
        left.as_i64().with_context(|| format!("{left}"))
    })
    .await;
    assert!(first <= 50);
    for fewer in [first - 1, first - 2, first - 3] {
        eventually("the time to live to count down", async || {
            let left = browser.run(SECONDS_LEFT).await?;
            ensure!(left.as_i64().is_some_and(|left| left <= fewer), "{left}, not {fewer}");
            Ok(())
        })
        .await;
    }
    // The same row shows the hold count after a reentry.
    assert!(java.lock("nightly-report").await?);
    eventually("the count", async || {
        let text = browser.run(&row("nightly-report")).await?;
        ensure!(text.as_str().is_some_and(|text| text.contains("×2")), "{text}");
        Ok(())
    })
    .await;
    assert!(java.unlock("nightly-report").await? && java.unlock("nightly-report").await?);
    eventually("the row to go", async || {
        let text = browser.run(&row("nightly-report")).await?;
        ensure!(text == Value::Null, "{text}");
        Ok(())
    })
    .await;
    assert_eq!(browser.run("return window.mark").await?, "still here");
    Ok(())
}

#[tokio::test]
async fn a_problem_shows_on_the_open_page() -> Result<()> {
    let mut bench = Bench::new().await?;
    let browser = Browser::start().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    assert!(java.lock("invoices").await?);
    bench.listed("invoices", |_| true).await;
    browser.open(&bench.dashboard.url("/")).await?;
    browser.run("window.mark = 'still here'").await?;
    bench.direct.call("PERSIST invoices").await?.ok()?;
    eventually("the problem in the row", async || {
        let text = browser.run(&row("invoices")).await?;
        ensure!(text.as_str().is_some_and(|text| text.contains("leaked")), "{text}");
        Ok(())
    })
    .await;
    let title = browser.run("return document.title").await?;
    assert!(title.as_str().is_some_and(|title| title.contains('1')), "{title}");
    assert_eq!(browser.run("return window.mark").await?, "still here");
    Ok(())
}

#[tokio::test]
async fn a_page_recovers_when_its_dashboard_restarts() -> Result<()> {
    let bench = Bench::new().await?;
    let browser = Browser::start().await?;
    let agent = Agent::start(&bench.redis).await?;
    let mut worker = agent.client().await?;
    browser.open(&bench.dashboard.url("/")).await?;
    let Bench { mut dashboard, redis, direct: _direct } = bench;
    dashboard.restart().await?;
    worker.call("LOCK after-the-restart").await?.ok()?;
    eventually("the row on the page that was open before", async || {
        let text = browser.run(&row("after-the-restart")).await?;
        ensure!(text != Value::Null, "{text}");
        Ok(())
    })
    .await;
    drop(redis);
    Ok(())
}
