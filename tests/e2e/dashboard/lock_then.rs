//! The page of a lock at an instant.

use anyhow::{Result, ensure};
use harness::browser::Browser;
use harness::eventually;

use super::browsing::Shown;
use super::browsing::{follow, until};

#[tokio::test]
async fn the_whole_page_turns_to_an_instant_and_back() -> Result<()> {
    let mut shown = Shown::new().await?;
    ensure!(shown.java.unlock("plain").await?, "released");
    let dashboard = &shown.bench.dashboard;
    let ended = eventually("both events in the history", async || {
        let events = dashboard.json("/api/v1/events?from=-1h&name=plain").await?;
        let instant = |i: usize| events["events"][i]["at"].as_str().map(str::to_owned);
        instant(0).zip(instant(1)).ok_or_else(|| anyhow::anyhow!("{events}"))
    })
    .await;
    let (taken, ended) = ended;
    let browser = Browser::start().await?;
    browser.open(&dashboard.url(&format!("/lock?name=plain&at={taken}"))).await?;
    let says = |text: &str| format!("document.getElementById('main').innerText.includes({text:?})");
    until(&browser, &says("Showing")).await;
    until(&browser, &says("later: ")).await;
    let verdict = "document.getElementById('lock-then').innerText";
    let held = format!("{verdict}.includes('held') && {verdict}.includes('0f3c1f6e')");
    until(&browser, &held).await;
    let events = browser.run("return document.querySelectorAll('ol.events li').length").await?;
    assert_eq!(events, 1, "what came later is left out");
    assert_eq!(
        browser.run("return document.body.dataset.live ?? null").await?,
        serde_json::json!(null)
    );
    follow(&browser, "Next event").await?;
    let at = "new URLSearchParams(location.search).get('at')";
    assert_eq!(browser.run(&format!("return {at}")).await?, ended.as_str());
    until(&browser, &format!("{verdict}.includes('not known to be held')")).await;
    follow(&browser, "Previous event").await?;
    assert_eq!(browser.run(&format!("return {at}")).await?, taken.as_str());
    follow(&browser, "Back to live").await?;
    until(&browser, &format!("{at} === null && document.getElementById('lock-state')")).await;
    // The timeline of the live page links to its instants.
    until(&browser, "document.querySelectorAll('.instants a').length === 50").await;
    let click = "[...document.querySelectorAll('.instants a')].at(-2)
        .dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))";
    browser.run(click).await?;
    until(&browser, &format!("{at} && document.getElementById('lock-then')")).await;
    until(&browser, "document.querySelector('.instants .cursor')").await;
    // A problem that existed at that time.
    browser.open(&dashboard.url("/lock?name=leaked&at=-0s")).await?;
    until(&browser, &format!("{verdict}.includes('leaked')")).await;
    // The time since the history was last written is no gap.
    for page in ["/lock?name=leaked&at=-0s", "/history?at=-0s"] {
        eventually("a page of now that never warns", async || {
            for _ in 0..5 {
                browser.open(&dashboard.url(page)).await?;
                let warns = format!("return {}", says("Nothing was recorded at"));
                ensure!(browser.run(&warns).await? == false, "{page}");
            }
            Ok(())
        })
        .await;
    }
    Ok(())
}
