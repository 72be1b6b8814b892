//! What forms show while somebody fills them in.

use anyhow::{Result, ensure};
use harness::browser::Browser;

use super::browsing::Shown;
use super::history::until;

#[tokio::test]
async fn the_form_to_release_counts_down_and_says_when_the_lease_ran_out() -> Result<()> {
    let mut shown = Shown::new().await?;
    shown.java.lease_ms = 20_000;
    ensure!(shown.java.lock("brief").await?, "taken");
    shown.bench.listed("brief", |_| true).await;
    let browser = Browser::start().await?;
    browser.open(&shown.bench.dashboard.url("/release?name=brief")).await?;
    let left = "parseInt(document.querySelector('.lasts .left').textContent)";
    let seen = |what: &str| format!("document.querySelector('{what}').getClientRects().length > 0");
    let first = browser.run(&format!("return {left}")).await?;
    until(&browser, &format!("{left} < {first}")).await;
    assert_eq!(browser.run(&format!("return {}", seen(".lasts .ran-out"))).await?, false);
    // Sooner than in reality.
    browser.run("document.querySelector('.lasts').dataset.ttl = 1").await?;
    until(&browser, &seen(".lasts .ran-out")).await;
    assert_eq!(browser.run(&format!("return {}", seen(".validity .left"))).await?, true);
    browser.run("document.querySelector('.validity').dataset.ttl = 1").await?;
    until(&browser, &seen(".validity .ran-out")).await;
    assert_eq!(browser.run(&format!("return {}", seen(".validity .left"))).await?, false);
    Ok(())
}
