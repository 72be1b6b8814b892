//! Screenshots of the pages, for the documentation.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::browser::Browser;
use harness::{Dashboard, PATIENCE, within};
use serde_json::Value;

const DESK: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (390, 844);

/// The release of the hold that the client of `leaked:invoice-run` has leaked.
const LEAKED: &str =
    "/incident/release?problem=leaked&key=client%200b9d6a52-3c1e-4f57-a7a8-5e0c9d1b2f34";

/// The file, the page, the size of the window, and whether the colours are dark.
const SHOTS: [(&str, &str, (u32, u32), bool); 16] = [
    ("overview", "/overview", DESK, false),
    ("overview-dark", "/overview", DESK, true),
    ("overview-phone", "/overview", PHONE, false),
    ("locks", "/", DESK, false),
    ("locks-phone", "/", PHONE, false),
    ("lock", "/lock?name=frozen%3Avideo-encode", DESK, false),
    ("lock-dark", "/lock?name=deadlock%3Aaccount-a", DESK, true),
    ("lock-phone", "/lock?name=leaked%3Ainvoice-run", PHONE, false),
    ("problems", "/problems", DESK, false),
    ("incident", "/incident?problem=deadlock&key=cycle%200%20deadlock%3Aaccount-a", DESK, false),
    ("incident-release", LEAKED, DESK, false),
    ("owners", "/owners", DESK, false),
    ("contention", "/contention", DESK, false),
    ("history", "/history?from=-15m", DESK, false),
    ("sources", "/sources", DESK, false),
    ("release", "/release?name=frozen%3Avideo-encode", DESK, false),
];

/// The lasting problems that the demo stages.
const STAGED: [&str; 6] = ["deadlock", "leaked", "malformed", "orphan", "starving", "stuck"];

/// Writes the screenshots into a folder, once every problem has been detected.
///
/// # Errors
/// Returns an error if a page cannot be shown, or the folder cannot be written.
pub(crate) async fn take(dashboard: &Dashboard, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    within(6 * PATIENCE, "the problems of the demo", async || {
        let problems = dashboard.json("/api/v1/incidents").await?;
        let has = |problem: &&str| contains(&problems, problem);
        let missing: Vec<_> = STAGED.iter().filter(|problem| !has(problem)).collect();
        ensure!(missing.is_empty(), "{missing:?} of {problems}");
        Ok(())
    })
    .await;
    let browser = Browser::start().await?;
    for (file, page, size, dark) in SHOTS {
        browser.show_as(size, dark).await?;
        browser.open(&dashboard.url(page)).await?;
        let updated = "return !document.body.dataset.live || document.querySelector('#health .quiet') === null";
        within(PATIENCE, "the first update of the page", async || {
            ensure!(browser.run(updated).await? == true, "{page}");
            Ok(())
        })
        .await;
        let path = folder.join(format!("{file}.png"));
        std::fs::write(&path, browser.screenshot().await?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns whether a list of incidents contains that problem.
fn contains(incidents: &Value, problem: &str) -> bool {
    let all = incidents["incidents"].as_array();
    all.is_some_and(|all| all.iter().any(|incident| incident["problem"] == problem))
}
