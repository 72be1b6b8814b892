//! How pages look: long names.

use anyhow::{Result, ensure};
use harness::browser::Browser;

use super::browsing::Shown;

const DESK: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (390, 844);

/// The number of lines of each lock's name in the table; a name that is cut has one.
const NAME_LINES: &str = "return [...document.querySelectorAll('tbody .name a:not(.who)')].map((name) => {
    const shown = document.createRange();
    shown.selectNodeContents(name);
    const parts = [...shown.getClientRects()];
    const high = Math.max(...parts.map((part) => part.bottom)) - Math.min(...parts.map((part) => part.top));
    return Math.round(high / parseFloat(getComputedStyle(name).fontSize) / 1.4);
})";

#[tokio::test]
async fn a_long_name_has_one_line_in_every_list_of_one_line_and_wraps_on_a_phone() -> Result<()> {
    let mut shown = Shown::new().await?;
    let name = format!("long:{}", "x".repeat(320));
    ensure!(shown.java.lock(&name).await?, "taken");
    shown.bench.listed(&name, |_| true).await;
    let browser = Browser::start().await?;
    for page in ["/?filter=long:*", "/history?filter=long:*", "/history?at=-0s&filter=long:*"] {
        for (size, is_one) in [(DESK, true), (PHONE, false)] {
            browser.show_as(size, false).await?;
            browser.open(&shown.bench.dashboard.url(page)).await?;
            let script = "document.querySelector('tbody .name')?.innerText.length > 300";
            super::history::until(&browser, script).await;
            let lines = browser.run(NAME_LINES).await?;
            let lines: Vec<i64> = serde_json::from_value(lines)?;
            assert!(!lines.is_empty(), "{page}");
            let fits = |lines: &i64| (*lines == 1) == is_one;
            assert!(lines.iter().all(fits), "{page} at {size:?}: {lines:?}");
        }
    }
    Ok(())
}
