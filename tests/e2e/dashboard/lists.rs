//! The list of locks: its views, its filters, and its pages in both directions.

use anyhow::{Result, ensure};
use harness::browser::Browser;
use harness::{Foreign, eventually};

use super::Bench;
use super::browsing::{follow, until};

/// Returns a script for the number that a tab or a facet shows.
fn number(list: &str, label: &str) -> String {
    format!(
        "[...document.querySelectorAll('{list} a')].find((a) => a.innerText.startsWith({label:?}))
           ?.querySelector('.number').innerText"
    )
}

/// The range of rows as shown in the footer.
const RANGE: &str = "document.querySelector('#foot .pages span')?.innerText";

#[tokio::test]
async fn views_facets_and_pages_obey_the_filter() -> Result<()> {
    let bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    for i in 0..130 {
        ensure!(java.lock(&format!("orders:{i}")).await?, "taken");
    }
    for name in ["cart:eu:1", "cart:eu:2", "cart:us:1"] {
        ensure!(java.lock(name).await?, "taken");
    }
    let total = async |filter: &str| -> Result<u64> {
        let list = bench.dashboard.json(&format!("/api/v1/locks?filter={filter}")).await?;
        Ok(list["total"].as_u64().unwrap_or_default())
    };
    eventually("all locks", async || {
        ensure!(total("").await? == 133, "{}", total("").await?);
        Ok(())
    })
    .await;
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/?sort=name")).await?;
    until(&browser, &format!("{RANGE} === '1–100 of 133'")).await;
    until(&browser, &format!("{} === '133'", number("#views", "Active"))).await;
    // Goes to the last page and back.
    let first = browser.run("return document.querySelector('#rows tr').innerText").await?;
    follow(&browser, "Next page").await?;
    until(&browser, &format!("{RANGE} === '101–133 of 133'")).await;
    follow(&browser, "Previous page").await?;
    until(&browser, &format!("{RANGE} === '1–100 of 133'")).await;
    let back = browser.run("return document.querySelector('#rows tr').innerText").await?;
    let name = |row: &serde_json::Value| {
        row.as_str().map(|row| row.split_whitespace().next().map(str::to_owned))
    };
    assert_eq!(name(&back), name(&first));
    // Goes down the prefixes, level by level; each count is that of the list to which it links.
    browser.open(&bench.dashboard.url("/")).await?;
    until(&browser, &format!("{} === '3'", number("#facets", "cart:"))).await;
    follow(&browser, "cart:").await?;
    until(&browser, &format!("{RANGE} === '1–3 of 3'")).await;
    until(&browser, &format!("{} === '3'", number("#views", "Active"))).await;
    until(&browser, &format!("{} === '2'", number("#facets", "cart:eu:"))).await;
    follow(&browser, "cart:eu:").await?;
    until(&browser, &format!("{RANGE} === '1–2 of 2'")).await;
    // The chosen prefix is a link that removes it.
    follow(&browser, "cart:eu:").await?;
    until(&browser, &format!("{RANGE} === '1–100 of 133'")).await;
    // A free lock is found by its name and counted among the free ones.
    ensure!(java.unlock("cart:us:1").await?, "released");
    eventually("the lock to be free", async || {
        ensure!(total("").await? == 132, "{}", total("").await?);
        Ok(())
    })
    .await;
    browser.open(&bench.dashboard.url("/?filter=cart:us")).await?;
    until(&browser, "document.getElementById('rows').innerText.includes('free')").await;
    until(&browser, &format!("{} === '1'", number("#views", "All"))).await;
    follow(&browser, "Free").await?;
    until(&browser, &format!("{RANGE} === '1 of 1'")).await;
    // All rows have the same height, whatever they contain.
    browser.open(&bench.dashboard.url("/")).await?;
    let heights =
        "const heights = [...document.querySelectorAll('#rows tr')].map((row) => row.offsetHeight);
        return Math.max(...heights) - Math.min(...heights)";
    let range = browser.run(heights).await?;
    ensure!(range.as_i64().is_some_and(|range| range <= 1), "{range}");
    Ok(())
}
