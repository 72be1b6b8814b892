//! The layout of pages: long names, and rows that become cards on a phone.

use anyhow::{Context as _, Result, ensure};
use harness::browser::Browser;
use harness::eventually;

use super::browsing::{Shown, WIDE};

const DESK: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (390, 844);

/// The smallest width of a lock's name or of its cell, in pixels.
const NAME_WIDTH: &str =
    "return Math.min(...[...document.querySelectorAll('tbody .name')].map((name) =>
    name.clientWidth))";

/// The number of lines of each lock's name in the table; a truncated name has one.
const NAME_LINES: &str = "return [...document.querySelectorAll('tbody .name a:not(.who)')].map((name) => {
    const shown = document.createRange();
    shown.selectNodeContents(name);
    const parts = [...shown.getClientRects()];
    const high = Math.max(...parts.map((part) => part.bottom)) - Math.min(...parts.map((part) => part.top));
    return Math.round(high / parseFloat(getComputedStyle(name).fontSize) / 1.4);
})";

/// The cells in which a line of the value is not next to the label.
const ASTRAY: &str = "return [...document.querySelectorAll('tbody td[data-label]:not(.detail)')].flatMap((cell) => {
    const value = document.createRange();
    value.selectNodeContents(cell);
    const wanted = parseFloat(getComputedStyle(cell).paddingLeft) + cell.getBoundingClientRect().left;
    const lines = new Map();
    for (const part of value.getClientRects()) {
        if (part.width < 1.5) continue;
        const line = [...lines.keys()].find((bottom) => part.top < bottom && part.bottom >= bottom - 6) ?? part.bottom;
        lines.set(line, Math.min(lines.get(line) ?? Infinity, part.left));
    }
    const begins = [...lines.values()];
    return begins.some((left) => Math.abs(left - wanted) > 1.5)
        ? [`${cell.dataset.label}: ${cell.innerText}: ${begins}, not ${wanted}`] : [];
})";

/// The elements that extend beyond the window on a page that is too wide; empty if it is not.
const BEYOND: &str = "const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth <= width) return [];
const out = [...document.querySelectorAll('body *')].filter((part) => part.getBoundingClientRect().right > width + 1);
return ['page', ...out.map((part) => `${part.tagName}.${part.className}`)];";

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
            super::browsing::until(&browser, script).await;
            let lines = browser.run(NAME_LINES).await?;
            let lines: Vec<i64> = serde_json::from_value(lines)?;
            assert!(!lines.is_empty(), "{page}");
            let fits = |lines: &i64| (*lines == 1) == is_one;
            assert!(lines.iter().all(fits), "{page} at {size:?}: {lines:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn on_a_phone_every_value_is_next_to_its_label() -> Result<()> {
    let mut shown = Shown::new().await?;
    let script = "<script>alert(1)</script>";
    for name in [&"y".repeat(320), script] {
        ensure!(shown.java.lock(name).await?, "taken");
        shown.bench.listed(name, |_| true).await;
    }
    let browser = Browser::start().await?;
    browser.show_as(PHONE, false).await?;
    let pages = ["/overview", "/", "/problems", "/owners", "/contention", "/history", "/sources"];
    for page in pages.into_iter().chain(["/history?at=-0s", "/lock?name=awaited"]) {
        browser.open(&shown.bench.dashboard.url(page)).await?;
        let astray = browser.run(ASTRAY).await?;
        assert_eq!(astray, serde_json::json!([]), "{page}");
        assert_eq!(browser.run(WIDE).await?, false, "{page} is wider than the window");
    }
    Ok(())
}

#[tokio::test]
async fn on_a_phone_no_page_about_a_long_name_scrolls_sideways() -> Result<()> {
    let mut shown = Shown::new().await?;
    let name = "z".repeat(480);
    // Two locks form an incident of several. The first has a waiter, and both have a field that belongs to no lock.
    let names = [name.clone(), format!("{name}2")];
    for name in &names {
        ensure!(shown.java.lock(name).await?, "taken");
    }
    let _waiter = super::browsing::listener(&shown.bench, &name).await?;
    shown.bench.listed(&name, |lock| lock["waiting"] == 1).await;
    let field = "f".repeat(300);
    for name in &names {
        shown.bench.direct.call(&format!("HSET {name} {field} x")).await?.ok()?;
        shown.bench.direct.call(&format!("PERSIST {name}")).await?.ok()?;
        shown.bench.listed(name, |lock| super::problems(lock) == ["leaked", "malformed"]).await;
    }
    let owners = shown.bench.dashboard.json("/api/v1/owners").await?;
    let owner = owners["owners"][0]["id"].as_str().context("no owner")?;
    let incident = |problem: &str| format!("problem={problem}&key=client%20{owner}");
    let browser = Browser::start().await?;
    browser.show_as(PHONE, false).await?;
    let lists = ["/overview", "/", "/problems", "/owners", "/contention", "/history", "/sources"];
    let others = [
        "/history?at=-0s".to_owned(),
        format!("/?filter={name}"),
        format!("/owner?id={owner}"),
        format!("/incident?{}", incident("leaked")),
        format!("/incident?{}", incident("malformed")),
        format!("/incident/release?{}", incident("leaked")),
        format!("/lock?name={name}"),
        format!("/lock?name={name}&at=-0s"),
        format!("/lock?name={name}0"),
        format!("/history?name={name}"),
        format!("/release?name={name}"),
        format!("/release?name={name}0"),
    ];
    for page in lists.map(str::to_owned).into_iter().chain(others) {
        browser.open(&shown.bench.dashboard.url(&page)).await?;
        let title = browser.run("return document.title").await?;
        ensure!(!title.to_string().contains("no such"), "{page}: {title}");
        let beyond = browser.run(BEYOND).await?;
        assert_eq!(beyond, serde_json::json!([]), "{page} is wider than the window");
    }
    Ok(())
}

#[tokio::test]
async fn between_a_phone_and_a_desk_names_have_room_and_nothing_sticks_out() -> Result<()> {
    let shown = Shown::new().await?;
    let browser = Browser::start().await?;
    for width in [1100, 1024, 970, 900, 840, 820, 700, 600] {
        browser.show_as((width, 900), false).await?;
        for page in ["/", "/problems", "/owners", "/contention", "/history", "/history?at=-0s"] {
            browser.open(&shown.bench.dashboard.url(page)).await?;
            assert_eq!(browser.run(WIDE).await?, false, "{page} is wider than {width}");
            let room = browser.run(NAME_WIDTH).await?;
            assert!(room.as_f64().is_some_and(|room| room > 110.0), "{page} at {width}: {room}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_head_of_a_page_has_one_line_at_a_desk_and_two_buttons_on_a_phone() -> Result<()> {
    const TOKEN: &str = "9f2c4e7ab1d35860";
    let shown = Shown::new().await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("{TOKEN},anna\n"))?;
    let tokens = file.path().to_str().context("no UTF-8")?;
    let flags = ["--auth-token-file", tokens, "--environment", "production-eu-west-1"];
    let guarded = harness::Dashboard::start(&shown.bench.redis.url(), &flags).await?;
    let browser = Browser::start().await?;
    browser.show_as(DESK, false).await?;
    browser.open(&guarded.url("/overview")).await?;
    let log_in = format!(
        "const form = document.querySelector('.login form');
         form.token.value = '{TOKEN}'; form.requestSubmit()"
    );
    browser.run(&log_in).await?;
    super::browsing::until(&browser, "document.querySelector('.visitor')").await;
    let line = "document.querySelector('.top .wide').clientHeight < 60";
    super::browsing::until(&browser, line).await;
    browser.show_as(PHONE, false).await?;
    let (label, name) =
        ("document.querySelector('#pause .label')", "document.getElementById('pause').ariaLabel");
    let hides = format!("!{label}.checkVisibility() && {name} === 'Pause'");
    super::browsing::until(&browser, &hides).await;
    // A paused page says so in words.
    browser.press("p").await?;
    let says = format!("{label}.checkVisibility() && {name} === {label}.innerText");
    super::browsing::until(&browser, &says).await;
    Ok(())
}

#[tokio::test]
async fn the_arrows_of_a_deadlock_are_not_outlined_like_a_list_that_waits() -> Result<()> {
    let shown = Shown::new().await?;
    let browser = Browser::start().await?;
    browser.open(&shown.bench.dashboard.url("/overview")).await?;
    let styles = "document.querySelector('main').insertAdjacentHTML('beforeend',
         '<figure class=\"circle\"><figcaption><span class=\"waits\">waits for</span></figcaption></figure>');
         const words = document.querySelector('.circle .waits');
         return [getComputedStyle(words).outlineStyle, getComputedStyle(words, '::after').content]";
    assert_eq!(browser.run(styles).await?, serde_json::json!(["none", "none"]));
    Ok(())
}

#[tokio::test]
async fn a_hold_whose_lease_ran_out_is_drawn() -> Result<()> {
    let mut shown = Shown::new().await?;
    let browser = Browser::start().await?;
    let _waiter = super::browsing::listener(&shown.bench, "brief").await?;
    // Without a message so far, its holder might release it without one, and its end would not be a lease that ran out.
    eventually("a release message to be heard", async || {
        shown.bench.direct.call("PUBLISH redisson_lock__channel:{brief} 0").await?.ok()?;
        let lock = shown.bench.dashboard.json("/api/v1/lock?name=brief").await?;
        let heard = lock["sources"].as_array().is_some_and(|all| all.contains(&"channels".into()));
        ensure!(heard, "{lock}");
        Ok(())
    })
    .await;
    // The dashboard has to read it once within the lease.
    shown.java.lease_ms = 6_000;
    ensure!(shown.java.lock("brief").await?, "taken");
    super::lock(&shown.bench.dashboard, "brief", super::held).await;
    browser.open(&shown.bench.dashboard.url("/lock?name=brief")).await?;
    for part in [".lane", ".legend"] {
        let drawn = format!("document.querySelector('{part} rect.ran-out')?.checkVisibility()");
        super::browsing::until(&browser, &drawn).await;
    }
    Ok(())
}

#[tokio::test]
async fn with_forced_colours_the_current_page_and_the_signs_can_be_told() -> Result<()> {
    let shown = Shown::new().await?;
    let browser = Browser::start().await?;
    browser.force_colors().await?;
    browser.open(&shown.bench.dashboard.url("/")).await?;
    let script = "const style = (what) => getComputedStyle(document.querySelector(what));
        const [current, other] = [style('nav [aria-current]'), style('nav a:not([aria-current])')];
        return matchMedia('(forced-colors: active)').matches
            && current.borderBottomColor !== other.borderBottomColor
            && style('#pause .mark').forcedColorAdjust === 'none'";
    assert_eq!(browser.run(script).await?, true);
    Ok(())
}
