//! Every page in a real browser: by keyboard, in several windows, without colours, and with a screen reader.

use anyhow::{Context as _, Result, ensure};
use harness::browser::{self, Browser};
use harness::{Client, Foreign, eventually, http};
use serde_json::Value;

use super::Bench;

/// A script that returns axe's accessibility violations as `impact rule target`.
const AXE: &str =
    "return axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations
    .filter((violation) => ['moderate', 'serious', 'critical'].includes(violation.impact))
    .map((violation) => `${violation.impact} ${violation.id} ${violation.nodes[0].target}`));";

/// A script that returns true if a page is wider than the window. On a phone, `innerWidth` grows with the page.
pub(super) const WIDE: &str =
    "return document.documentElement.scrollWidth > document.documentElement.clientWidth";

/// Returns the accessibility checker that `make deps` installs.
pub(super) fn axe() -> Result<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(path).with_context(|| format!("{path}: `make deps` installs it"))
}

/// A dashboard with something to show on every page: a leaked lock, one with a waiter, and a history.
pub(super) struct Shown {
    pub(super) bench: Bench,
    pub(super) java: Foreign,
    _waiter: Client,
    _folder: tempfile::TempDir,
}

/// Waits until an expression of the page is true.
pub(super) async fn until(browser: &Browser, script: &str) {
    eventually(script, async || {
        let is = browser.run(&format!("return Boolean({script})")).await?;
        ensure!(is == true, "{}", browser.run("return document.body.innerText").await?);
        Ok(())
    })
    .await;
}

/// Clicks the first link with this text, and waits for the next page.
pub(super) async fn follow(browser: &Browser, text: &str) -> Result<()> {
    browser.run("window.mark = 'this page'").await?;
    let click = format!(
        "const link = [...document.querySelectorAll('main a')].find((a) => a.innerText?.includes({text:?}));
         link?.click(); return Boolean(link)"
    );
    ensure!(browser.run(&click).await? == true, "there is no link {text}");
    until(browser, "window.mark !== 'this page' && document.readyState === 'complete'").await;
    Ok(())
}

/// Returns a client that is subscribed to a lock's release messages, as a waiter is.
pub(super) async fn listener(bench: &Bench, name: &str) -> Result<Client> {
    let mut listener = bench.redis.client().await?;
    listener.call(&format!("SUBSCRIBE redisson_lock__channel:{{{name}}}")).await?.ok()?;
    Ok(listener)
}

impl Shown {
    pub(super) async fn new() -> Result<Self> {
        Self::with(&[]).await
    }

    async fn with(flags: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let history = folder.path().join("history").to_string_lossy().into_owned();
        let usual =
            ["--history-dir", &history, "--environment", "test", "--allow-release", "--insecure"];
        let mut bench = Bench::with(&[&usual, flags].concat()).await?;
        let mut java = Foreign::connect(&bench.redis).await?;
        for name in ["awaited", "plain", "leaked"] {
            ensure!(java.lock(name).await?, "{name} is taken");
        }
        bench.listed("leaked", |_| true).await;
        bench.direct.call("PERSIST leaked").await?.ok()?;
        let waiter = listener(&bench, "awaited").await?;
        bench.listed("awaited", |lock| lock["waiting"] == 1).await;
        bench.listed("leaked", |lock| lock["problems"][0]["problem"] == "leaked").await;
        Ok(Self { bench, java, _waiter: waiter, _folder: folder })
    }

    async fn pages(&self) -> Result<Vec<String>> {
        let owners = self.bench.dashboard.json("/api/v1/owners").await?;
        let owner = owners["owners"][0]["id"].as_str().context("no owner")?;
        let mut pages: Vec<String> =
            ["/overview", "/", "/problems", "/owners", "/contention", "/history", "/sources"]
                .map(str::to_owned)
                .into();
        pages.push(format!("/owner?id={owner}"));
        pages.extend(["/owners?by=service", "/lock?name=leaked&at=-1s"].map(str::to_owned));
        pages.extend(
            ["/history?at=-1s", "/history?filter=event:x", "/history?from=bad"].map(str::to_owned),
        );
        let incident = format!("problem=leaked&key=client%20{owner}");
        pages.extend(["/incident", "/incident/release"].map(|page| format!("{page}?{incident}")));
        pages.extend(["leaked", "awaited", "nowhere"].map(|name| format!("/lock?name={name}")));
        pages.extend(["/release?name=plain", "/?filter=age:x", "/nothing"].map(str::to_owned));
        Ok(pages)
    }
}

#[tokio::test]
async fn every_page_is_accessible() -> Result<()> {
    let shown = Shown::new().await?;
    let axe = axe()?;
    let browser = Browser::start().await?;
    let phone = (390, 844);
    for (theme, size) in [("light", (1280, 900)), ("dark", (1280, 900)), ("light", phone)] {
        browser.show_as(size, false).await?;
        browser.open(&shown.bench.dashboard.url("/sources")).await?;
        browser.run(&format!("localStorage.setItem('theme', '{theme}')")).await?;
        for page in shown.pages().await? {
            browser.open(&shown.bench.dashboard.url(&page)).await?;
            let chosen = browser.run("return document.documentElement.dataset.theme").await?;
            assert_eq!(chosen, theme, "before the first paint");
            let found = browser.run(&format!("{axe};{AXE}")).await?;
            assert_eq!(found, serde_json::json!([]), "{page} in {theme}, {size:?}");
            assert_eq!(browser.run(WIDE).await?, false, "{page} is wider than {size:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_page_in_trouble_is_accessible() -> Result<()> {
    let mut shown = Shown::new().await?;
    let axe = axe()?;
    let word = r#"{"problem": "leaked", "reason": "known since noon", "for": "1h"}"#;
    let headers = [("Content-Type", "application/json")];
    let (port, path) = (shown.bench.dashboard.port(), "/api/v1/acknowledge?name=leaked");
    let answer = http::request(port, "POST", path, &headers, word).await?;
    ensure!(answer.status == 200, "{}", answer.body);
    let browser = Browser::start().await?;
    browser.open(&shown.bench.dashboard.url("/problems")).await?;
    until(&browser, "document.querySelector('#rows .badge.acknowledged')").await;
    assert_accessible(&browser, &axe, "an acknowledged incident").await?;
    let cut_off = "document.body.classList.contains('cut-off')";

    // Locks that an incident has in hand, one that is gone while a row has the focus, and no connection.
    browser.open(&shown.bench.dashboard.url("/?sort=name")).await?;
    let word = "document.querySelector('#rows .badge.acknowledged .certainty')";
    until(&browser, &format!("{word}.checkVisibility()")).await;
    browser.press("j").await?;
    ensure!(shown.java.unlock("plain").await?, "not held");
    until(&browser, "document.querySelector('#rows tr.gone')").await;
    shown.bench.dashboard.process().freeze().await?;
    until(&browser, cut_off).await;
    assert_accessible(&browser, &axe, "a list without a connection").await?;
    shown.bench.dashboard.process().thaw()?;

    browser.open(&shown.bench.dashboard.url("/lock?name=leaked")).await?;
    until(&browser, "document.getElementById('health').innerText === 'Live'").await;
    shown.bench.dashboard.process().freeze().await?;
    until(&browser, cut_off).await;
    assert_accessible(&browser, &axe, "a lock without a connection").await?;
    shown.bench.dashboard.process().thaw()?;
    Ok(())
}

#[tokio::test]
async fn a_screen_reader_hears_what_was_copied() -> Result<()> {
    let shown = Shown::new().await?;
    let browser = Browser::start().await?;
    browser.open(&shown.bench.dashboard.url("/lock?name=plain")).await?;
    let click = "const button = document.querySelector('#lock-holders .copy');
        window.heard = [];
        new MutationObserver(() => {
            const said = document.getElementById('copied').textContent;
            if (said) window.heard.push(`${said}: ${button.textContent}`);
        }).observe(document.getElementById('copied'), { childList: true });
        button.click(); return button.dataset.copy";
    let id = browser.run(click).await?;
    let id = id.as_str().context("no id")?;
    let heard = format!("/^(Copied|Not allowed) : \\1 the holder id {id}/.test(heard[0])");
    until(&browser, &heard).await;
    Ok(())
}

/// Checks that axe reports no violations on the page, in light and in dark colours.
pub(super) async fn assert_accessible(browser: &Browser, axe: &str, what: &str) -> Result<()> {
    for theme in ["light", "dark"] {
        browser.run(&format!("document.documentElement.dataset.theme = '{theme}'")).await?;
        let found = browser.run(&format!("{axe};{AXE}")).await?;
        ensure!(found == serde_json::json!([]), "{what} in {theme}: {found}");
    }
    Ok(())
}

#[tokio::test]
async fn every_operator_task_is_possible() -> Result<()> {
    const TOKEN: &str = "9f2c4e7ab1d35860";
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("{TOKEN},Anna\n"))?;
    // Requests that need no token check the staged state.
    let shown = Shown::new().await?;
    let tokens = file.path().to_str().context("no UTF-8")?;
    let url = shown.bench.redis.url();
    let flags = ["--auth-token-file", tokens, "--allow-release"];
    let guarded = harness::Dashboard::start(&url, &flags).await?;
    let mut direct = shown.bench.redis.client().await?;
    let bearer = format!("Bearer {TOKEN}");
    eventually("the second dashboard to know the leak", async || {
        // This dashboard has not seen the lock's time to live, so a release message has to prove that it is a lock.
        direct.call("PUBLISH redisson_lock__channel:{leaked} 0").await?.ok()?;
        let headers = [("Authorization", bearer.as_str())];
        let path = "/api/v1/lock?name=leaked";
        let lock = http::request(guarded.port(), "GET", path, &headers, "").await?.json()?;
        ensure!(lock["problems"][0]["problem"] == "leaked", "{lock}");
        Ok(())
    })
    .await;
    let axe = axe()?;
    let browser = Browser::start().await?;
    let until = async |script: &str| {
        eventually(script, async || {
            let is = browser.run(&format!("return Boolean({script})")).await?;
            ensure!(is == true, "{}", browser.run("return document.body.innerText").await?);
            Ok(())
        })
        .await;
    };
    // A visitor without a session is sent to the login, and then to the requested page.
    browser.open(&guarded.url("/lock?name=leaked")).await?;
    until("location.pathname === '/login'").await;
    assert_accessible(&browser, &axe, "the login").await?;
    let log_in = |token: &str| {
        format!(
            "document.getElementById('token').value = '{token}';
             document.querySelector('form').requestSubmit()"
        )
    };
    browser.run(&log_in("no-such-token-at-all")).await?;
    until("document.getElementById('error')").await;
    assert_accessible(&browser, &axe, "a refused login").await?;
    browser.run(&log_in(TOKEN)).await?;
    until("location.pathname === '/lock' && document.querySelector('details.acknowledge')").await;
    // The problem is read and acknowledged.
    browser.run("document.querySelector('details.acknowledge').open = true").await?;
    assert_accessible(&browser, &axe, "a lock with the form to acknowledge").await?;
    browser
        .run(
            "const form = document.querySelector('details.acknowledge form');
             form.reason.value = 'known since noon'; form.requestSubmit()",
        )
        .await?;
    until("document.body.innerText.includes('known since noon')").await;
    assert_accessible(&browser, &axe, "an acknowledged problem").await?;
    // A release requires the name to be typed, and the reply reports its outcome.
    browser.open(&guarded.url("/release?name=plain")).await?;
    assert_accessible(&browser, &axe, "the form to release").await?;
    let release = |name: &str| {
        format!(
            "const form = document.querySelector('form.release');
             form.target.value ||= form.querySelector('[name=target]').value;
             form.querySelector('[name=target]').checked = true;
             form.reason.value = 'it hangs';
             form.querySelector('input[name=name]').value = '{name}';
             form.requestSubmit()"
        )
    };
    browser.run(&release("plian")).await?;
    until("document.getElementById('mistake')").await;
    assert_accessible(&browser, &axe, "a mistyped name").await?;
    browser.run(&release("plain")).await?;
    until("document.getElementById('outcome')").await;
    assert_accessible(&browser, &axe, "a release").await?;
    let said = browser.run("return document.getElementById('outcome').innerText").await?;
    assert!(said.as_str().is_some_and(|said| said.starts_with("Released")), "{said}");
    assert_eq!(direct.call("EXISTS plain").await?.int()?, 0);
    Ok(())
}

/// Alerts and chat messages link to the dashboard: a visitor who is logged in sees the page, not the login.
#[tokio::test]
async fn a_link_on_another_site_opens_the_page_for_a_visitor_who_is_logged_in() -> Result<()> {
    const TOKEN: &str = "9f2c4e7ab1d35860";
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("{TOKEN},Anna\n"))?;
    let redis = harness::RedisServer::start().await?;
    let tokens = file.path().to_str().context("no UTF-8")?;
    let guarded = harness::Dashboard::start(&redis.url(), &["--auth-token-file", tokens]).await?;
    let browser = Browser::start().await?;
    browser.open(&guarded.url("/login")).await?;
    let log_in = format!(
        "document.getElementById('token').value = '{TOKEN}';
         document.querySelector('form').requestSubmit()"
    );
    browser.run(&log_in).await?;
    until(&browser, "location.pathname === '/'").await;
    // For a browser, `localhost` and `127.0.0.1` are two sites.
    browser.open(&format!("http://localhost:{}/login", guarded.port())).await?;
    let follow = format!(
        "const link = document.createElement('a');
         link.href = '{}';
         document.body.append(link);
         link.click()",
        guarded.url("/sources")
    );
    browser.run(&follow).await?;
    until(&browser, "location.hostname === '127.0.0.1'").await;
    assert_eq!(browser.run("return location.pathname").await?, "/sources");
    Ok(())
}

#[tokio::test]
async fn everything_is_reached_by_keyboard() -> Result<()> {
    let shown = Shown::new().await?;
    let browser = Browser::start().await?;
    let url = |page: &str| shown.bench.dashboard.url(page);
    browser.open(&url("/?sort=name")).await?;
    let says = async |script: &str, wanted: Value| {
        eventually(&format!("{script} to be {wanted}"), async || {
            let is = browser.run(&format!("return {script}")).await?;
            ensure!(is == wanted, "{is}");
            Ok(())
        })
        .await;
    };
    let focused = "document.activeElement.closest('tr')?.querySelector('.name')?.innerText ?? null";
    for (key, row) in [("j", "awaited"), ("j", "leaked"), ("j", "plain"), ("k", "leaked")] {
        browser.press(key).await?;
        says(focused, row.into()).await;
    }
    // The new lock sorts first, but the rows do not move while one of them has the focus.
    let mut java = Foreign::connect(&shown.bench.redis).await?;
    ensure!(java.lock("a-new-one").await?, "taken");
    says("document.getElementById('waiting').hidden", false.into()).await;
    let first = "document.querySelector('#rows .name').innerText";
    says(first, "awaited".into()).await;
    browser.press("a").await?;
    says(first, "a-new-one".into()).await;
    says(focused, "leaked".into()).await;
    browser.press(browser::ENTER).await?;
    says("location.pathname + document.querySelector('h1').innerText", "/lockleaked".into()).await;

    // While the page is paused, missed changes are counted; they appear when it resumes.
    browser.press("2").await?;
    says("location.pathname", "/".into()).await;
    says("document.querySelectorAll('#rows tr').length", 4.into()).await;
    browser.press("p").await?;
    ensure!(java.unlock("a-new-one").await?, "released");
    let label = "document.querySelector('#pause .label').innerText";
    says(&format!("/^Resume, [1-9]/.test({label})"), true.into()).await;
    says("document.querySelectorAll('#rows tr').length", 4.into()).await;
    browser.press("p").await?;
    says("document.querySelectorAll('#rows tr').length", 3.into()).await;
    says(label, "Pause".into()).await;

    browser.press("/").await?;
    says("document.activeElement.id", "filter".into()).await;
    browser.press(browser::ESCAPE).await?;
    says("document.activeElement.id", "".into()).await;
    browser.press("?").await?;
    says("document.getElementById('keys').open", true.into()).await;
    browser.press(browser::ESCAPE).await?;
    says("document.getElementById('keys').open", false.into()).await;
    browser.press("u").await?;
    says("document.getElementById('zone').innerText", "Local".into()).await;
    for (key, page) in [
        ("1", "/overview"),
        ("3", "/problems"),
        ("4", "/owners"),
        ("5", "/contention"),
        ("6", "/history"),
        ("7", "/sources"),
    ] {
        browser.press(key).await?;
        says("location.pathname", page.into()).await;
    }
    Ok(())
}

#[tokio::test]
async fn tabs_of_one_page_share_a_stream() -> Result<()> {
    let bench = Bench::new().await?;
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/")).await?;
    let first = browser.window().await?;
    let second = browser.new_window().await?;
    browser.open(&bench.dashboard.url("/")).await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    ensure!(java.lock("for-both").await?, "taken");
    for window in [&second, &first] {
        browser.switch_to(window).await?;
        eventually("the row in both windows", async || {
            let text = browser.run("return document.querySelector('#rows').innerText").await?;
            ensure!(text.as_str().is_some_and(|text| text.contains("for-both")), "{text}");
            Ok(())
        })
        .await;
    }
    // The leading tab opens the stream again for both windows; the dashboard notices the end of the first stream a little later.
    eventually("one stream for both windows", async || {
        let metrics = http::get(bench.dashboard.port(), "/metrics").await?.body;
        ensure!(metrics.contains("\nlockscope_dashboard_streams 1\n"), "{metrics}");
        Ok(())
    })
    .await;
    Ok(())
}
