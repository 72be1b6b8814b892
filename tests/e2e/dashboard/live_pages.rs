//! Open pages are updated live, however many there are, and report a lost connection.

use anyhow::{Result, ensure};
use harness::browser::Browser;
use harness::{Foreign, eventually, http};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::Bench;
use super::browsing::{Shown, listener, until};

/// Returns a script that checks whether the page contains this text.
fn says(text: &str) -> String {
    format!("document.getElementById('main').innerText.includes({text:?})")
}

async fn other_client(bench: &Bench, uuid: &str) -> Result<Foreign> {
    let mut client = Foreign::connect(&bench.redis).await?;
    client.holder = format!("{uuid}:7");
    Ok(client)
}

#[tokio::test]
async fn every_page_updates_live() -> Result<()> {
    const OTHER: &str = "aaaaaaaa-9152-4c83-822a-67ee2f116a79";
    let mut shown = Shown::new().await?;
    let browser = Browser::start().await?;
    let mut other = other_client(&shown.bench, OTHER).await?;
    let dashboard = shown.bench.dashboard.port();
    let open = async |page: &str| -> Result<()> {
        browser.open(&shown.bench.dashboard.url(page)).await?;
        // A reload would remove this mark.
        browser.run("window.mark = 'still here'").await?;
        Ok(())
    };
    let stayed = async || -> Result<()> {
        ensure!(
            browser.run("return window.mark").await? == "still here",
            "the page was loaded anew"
        );
        Ok(())
    };

    open("/").await?;
    ensure!(other.lock("new-on-locks").await?, "taken");
    until(&browser, &says("new-on-locks")).await;
    stayed().await?;

    open("/problems").await?;
    until(&browser, &says("leaked")).await;
    let word = json!({"problem": "leaked", "reason": "known since noon", "for": "1h"});
    let path = "/api/v1/acknowledge?name=leaked";
    let headers = [("Content-Type", "application/json")];
    let answer = http::request(dashboard, "POST", path, &headers, &word.to_string()).await?;
    ensure!(answer.status == 200, "{}", answer.body);
    until(&browser, "document.querySelector('#rows .badge.acknowledged')").await;
    stayed().await?;

    open(&format!("/owner?id={OTHER}")).await?;
    until(&browser, &says("new-on-locks")).await;
    ensure!(other.lock("second-of-one").await?, "taken");
    until(&browser, &says("second-of-one")).await;
    stayed().await?;

    open("/owners").await?;
    until(&browser, &says("aaaaaaaa")).await;
    ensure!(other.unlock("second-of-one").await? && other.unlock("new-on-locks").await?, "gone");
    until(&browser, "!document.getElementById('rows').innerText.includes('aaaaaaaa')").await;
    stayed().await?;

    open("/history").await?;
    ensure!(other.lock("new-on-events").await?, "taken");
    until(&browser, &says("new-on-events")).await;
    stayed().await?;

    open("/sources").await?;
    let script = "for i = 1, 100 do redis.call('set', 'some:' .. i, i) end return 1";
    shown.bench.direct.call_args(&["EVAL", script, "0"]).await?.ok()?;
    let counted = "/\\b1\\d\\d keys/.test(document.getElementById('main').innerText)";
    until(&browser, counted).await;
    stayed().await?;

    open("/lock?name=plain").await?;
    ensure!(shown.java.lock("plain").await?, "its holder enters once more");
    let count = "document.querySelector('#lock-holders td[data-label=Count]')?.innerText === '2'";
    until(&browser, count).await;
    stayed().await?;

    // A name that no lock has had yet.
    open("/lock?name=not-yet").await?;
    ensure!(other.lock("not-yet").await?, "taken");
    until(&browser, "document.getElementById('lock-state').innerText.includes('held')").await;
    stayed().await?;

    open("/contention").await?;
    let _waiter = listener(&shown.bench, "not-yet").await?;
    until(&browser, "document.getElementById('rows').innerText.includes('not-yet')").await;
    stayed().await?;
    Ok(())
}

#[tokio::test]
async fn a_page_calls_itself_live_once_it_has_updated() -> Result<()> {
    let bench = Bench::new().await?;
    let browser = Browser::start().await?;
    eventually("the first scan to be over", async || {
        let page = http::get(bench.dashboard.port(), "/").await?.body;
        ensure!(page.contains("As loaded</span>"), "{page}");
        Ok(())
    })
    .await;
    browser.open(&bench.dashboard.url("/")).await?;
    until(&browser, "document.getElementById('health').innerText === 'Live'").await;
    Ok(())
}

/// Otherwise the command that a page shows next to a new problem would release any holder of the lock.
#[tokio::test]
async fn the_command_that_releases_by_hand_follows_the_holder() -> Result<()> {
    let bench = Bench::new().await?;
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/lock?name=later")).await?;
    let command = "document.getElementById('lock-by-hand').textContent";
    until(&browser, &format!("{command}.includes(' --holder HOLDER ')")).await;
    let mut java = Foreign::connect(&bench.redis).await?;
    ensure!(java.lock("later").await?, "taken");
    until(&browser, &format!("{command}.includes('{}')", java.holder)).await;
    Ok(())
}

/// Browsers allow six connections to one host, but a seventh page must still load and be live.
#[tokio::test]
async fn seven_windows_of_different_pages_are_all_live() -> Result<()> {
    const PAGES: [&str; 7] = [
        "/?sort=name",
        "/?sort=holder",
        "/?sort=ttl",
        "/?sort=age",
        "/?filter=for",
        "/?filter=all",
        "/?filter=seven",
    ];
    let bench = Bench::new().await?;
    let browser = Browser::start().await?;
    let mut windows = vec![browser.window().await?];
    browser.open(&bench.dashboard.url(PAGES[0])).await?;
    for page in &PAGES[1..] {
        windows.push(browser.new_window().await?);
        browser.open(&bench.dashboard.url(page)).await?;
    }
    let mut java = Foreign::connect(&bench.redis).await?;
    ensure!(java.lock("for-all-seven").await?, "taken");
    for (window, page) in windows.iter().zip(PAGES) {
        browser.switch_to(window).await?;
        eventually(page, async || {
            let hidden = browser.run("return document.hidden").await?;
            ensure!(hidden == false, "the windows stand beside one another");
            let text = browser.run("return document.querySelector('#rows').innerText").await?;
            ensure!(text.as_str().is_some_and(|text| text.contains("for-all-seven")), "{text}");
            Ok(())
        })
        .await;
        let lost = browser.run("return document.getElementById('lost').hidden").await?;
        assert_eq!(lost, true, "{page} says that it has no connection");
    }
    Ok(())
}

/// Returns a script that simulates a page that is hidden, or visible again.
fn hide(hidden: bool) -> String {
    format!(
        "Object.defineProperty(document, 'hidden', {{ configurable: true, get: () => {hidden} }});
         document.dispatchEvent(new Event('visibilitychange'));"
    )
}

#[tokio::test]
async fn a_hidden_page_requests_nothing_and_then_shows_what_it_missed() -> Result<()> {
    let bench = Bench::new().await?;
    let browser = Browser::start().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    ensure!(java.lock("before").await?, "taken");
    browser.open(&bench.dashboard.url("/")).await?;
    until(&browser, &says("before")).await;
    let streams = async |wanted: f64| {
        eventually(&format!("{wanted} streams"), async || {
            let metrics = bench.dashboard.metrics().await?;
            let streams = metrics.sum("lockscope_dashboard_streams", &[]);
            ensure!((streams - wanted).abs() < 0.5, "{streams}");
            Ok(())
        })
        .await;
    };
    streams(1.0).await;
    // A page that is hidden before its first update would have missed nothing.
    ensure!(java.lock("streamed").await?, "taken");
    until(&browser, &says("streamed")).await;
    browser.run(&hide(true)).await?;
    streams(0.0).await;
    ensure!(java.lock("meanwhile").await?, "taken");
    bench.listed("meanwhile", |_| true).await;
    assert_eq!(browser.run(&format!("return {}", says("meanwhile"))).await?, false);
    browser.run(&hide(false)).await?;
    // This sentence disappears after some seconds.
    until(&browser, "/^[1-9].* changed while/.test(document.getElementById('away').innerText)")
        .await;
    until(&browser, &says("meanwhile")).await;
    streams(1.0).await;
    Ok(())
}

#[tokio::test]
async fn a_paused_page_counts_what_a_new_connection_brings() -> Result<()> {
    let bench = Bench::new().await?;
    let browser = Browser::start().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    ensure!(java.lock("before").await?, "taken");
    bench.listed("before", |_| true).await;
    browser.open(&bench.dashboard.url("/")).await?;
    until(&browser, "document.getElementById('spoken').textContent").await;
    browser.press("p").await?;
    browser.run(&hide(true)).await?;
    ensure!(java.lock("meanwhile").await?, "taken");
    bench.listed("meanwhile", |_| true).await;
    browser.run(&hide(false)).await?;
    let label = "document.querySelector('#pause .label').innerText";
    until(&browser, &format!("/^Resume, [1-9]/.test({label})")).await;
    assert_eq!(browser.run(&format!("return {}", says("meanwhile"))).await?, false);
    Ok(())
}

#[tokio::test]
async fn a_printed_page_has_the_time_of_its_contents() -> Result<()> {
    let shown = Shown::new().await?;
    let browser = Browser::start().await?;
    let as_of = "document.getElementById('as-of').textContent";
    for (page, pause) in [("/", true), ("/release?name=plain", false)] {
        browser.open(&shown.bench.dashboard.url(page)).await?;
        if pause {
            until(&browser, "document.getElementById('spoken').textContent").await;
            browser.press("p").await?;
        }
        let before = browser.run(&format!("return {as_of}")).await?;
        let two_hours_later = "const now = Date.now; Date.now = () => now() + 7200000;
            Lockscope.eachSecond(() => { window.counted = true; })";
        browser.run(two_hours_later).await?;
        until(&browser, "window.counted").await;
        assert_eq!(browser.run(&format!("return {as_of}")).await?, before, "{page}");
    }
    Ok(())
}

#[tokio::test]
async fn a_disconnected_page_shows_its_age() -> Result<()> {
    let mut bench = Bench::new().await?;
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/")).await?;
    let lost = "document.getElementById('lost')";
    let hidden = browser.run(&format!("return {lost}.hidden")).await?;
    assert_eq!(hidden, Value::Bool(true));
    bench.dashboard.process().freeze().await?;
    until(&browser, &format!("/No connection .* known \\d+s ago/.test({lost}.innerText)")).await;
    until(&browser, "document.body.classList.contains('cut-off')").await;
    let sign = "return document.querySelector('.health summary').innerText";
    assert_eq!(browser.run(sign).await?, "Not live");
    // A screen reader would read out an age in the live region every second.
    let alert = format!("return {lost}.querySelector('[role=alert]').innerText");
    assert_eq!(browser.run(&alert).await?, "▲ No connection to the dashboard. Trying again.");
    bench.dashboard.process().thaw()?;
    until(&browser, &format!("{lost}.hidden")).await;
    let mut java = Foreign::connect(&bench.redis).await?;
    ensure!(java.lock("afterwards").await?, "taken");
    until(&browser, &says("afterwards")).await;
    Ok(())
}

/// Answers every request to this port, as a proxy does that wants a login, until its end.
async fn ask_for_a_login(port: u16, answer: &str) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        let mut head = [0; 4096];
        // A browser may open a connection that it does not use.
        if stream.read(&mut head).await? > 0 {
            stream.write_all(answer.as_bytes()).await?;
        }
    }
}

#[tokio::test]
async fn a_page_says_so_when_a_proxy_asks_for_a_login_or_the_login_is_over() -> Result<()> {
    let mut bench = Bench::new().await?;
    let browser = Browser::start().await?;
    let page = bench.dashboard.url("/");
    let end = "Content-Length: 7\r\nConnection: close\r\n\r\nLog in!";
    let to = "HTTP/1.1 302 Found\r\nLocation: https://login.invalid/";
    let html = "Content-Type: text/html";
    let json = |body: &str| {
        let head = "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json";
        format!("{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    };
    for (answer, reason) in [
        (format!("{to}\r\n{html}\r\n{end}"), "asks for a login"),
        (format!("HTTP/1.1 403 Forbidden\r\n{html}\r\n{end}"), "asks for a login"),
        (json("{}"), "asks for a login"),
        (json("{\"detail\": \"send a token\"}"), "your login is over, so load this page again"),
    ] {
        browser.open(&page).await?;
        bench.dashboard.process().kill()?;
        let proxy = ask_for_a_login(bench.dashboard.port(), &answer);
        let told = async {
            let lost = "document.getElementById('lost').innerText";
            until(&browser, &format!("{lost}.includes('{reason}')")).await;
            if answer.starts_with("HTTP/1.1 302") {
                let form = "const form = document.createElement('form'); form.method = 'post'; \
                            document.body.append(form); form.submit()";
                browser.run(form).await?;
                let unsent =
                    "document.getElementById('lost').innerText.includes('Nothing was sent')";
                until(&browser, unsent).await;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            ended = proxy => ended?,
            told = told => told?,
        }
        bench.dashboard.restart().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_page_that_was_hidden_shows_its_age_while_the_dashboard_does_not_answer() -> Result<()> {
    let mut bench = Bench::new().await?;
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/")).await?;
    browser.run(&hide(true)).await?;
    bench.dashboard.process().freeze().await?;
    // The tab is hidden for two hours.
    browser.run("const now = Date.now; Date.now = () => now() + 7200000").await?;
    browser.run(&hide(false)).await?;
    let lost = "document.getElementById('lost')";
    let age = format!("/No connection .* known 2h 00m ago/.test({lost}.innerText)");
    until(&browser, &age).await;
    bench.dashboard.process().thaw()?;
    until(&browser, &format!("{lost}.hidden")).await;
    Ok(())
}

/// Leaks these locks of a client, and waits until the dashboard lists their problem.
async fn leak(bench: &mut Bench, client: &mut Foreign, names: &[&str]) -> Result<()> {
    for name in names {
        ensure!(client.lock(name).await?, "{name} is taken");
        bench.listed(name, |_| true).await;
        bench.direct.call(&format!("PERSIST {name}")).await?.ok()?;
        bench.listed(name, |lock| lock["problems"][0]["problem"] == "leaked").await;
    }
    Ok(())
}

#[tokio::test]
async fn a_box_that_the_reader_opened_stays_open_when_its_row_changes_or_moves() -> Result<()> {
    let mut bench = Bench::new().await?;
    let browser = Browser::start().await?;
    let mut first = Foreign::connect(&bench.redis).await?;
    leak(&mut bench, &mut first, &["early:1", "early:2"]).await?;
    let mut second = other_client(&bench, "0b54a7c1-7f0e-4c58-9a51-1d6a3f0e2b77").await?;
    leak(&mut bench, &mut second, &["late:1", "late:2"]).await?;
    browser.open(&bench.dashboard.url("/problems")).await?;
    let row = |place: usize| format!("document.querySelectorAll('#rows tr')[{place}]");
    let late = row(1);
    until(&browser, &format!("{late}?.innerText.includes('2 locks late:')")).await;
    browser.run(&format!("{late}.querySelector('details').open = true")).await?;
    leak(&mut bench, &mut second, &["late:3"]).await?;
    until(&browser, &format!("{late}.innerText.includes('3 locks late:')")).await;
    assert_eq!(browser.run(&format!("return {late}.querySelector('details').open")).await?, true);
    ensure!(first.unlock("early:1").await? && first.unlock("early:2").await?, "not held");
    let top = row(0);
    until(&browser, &format!("{top}.innerText.includes('3 locks late:')")).await;
    assert_eq!(browser.run(&format!("return {top}.querySelector('details').open")).await?, true);
    // A paragraph is added before the box, and is removed again.
    let headers = [("Content-Type", "application/json")];
    for (action, is_known) in [("acknowledge", true), ("unacknowledge", false)] {
        for name in ["late:1", "late:2", "late:3"] {
            let word = json!({"problem": "leaked", "reason": "known since noon", "for": "1h"});
            let path = format!("/api/v1/{action}?name={name}");
            let port = bench.dashboard.port();
            let answer = http::request(port, "POST", &path, &headers, &word.to_string()).await?;
            ensure!(answer.status == 200, "{}", answer.body);
        }
        until(&browser, &format!("Boolean({top}.querySelector('.in-hand')) === {is_known}")).await;
        let open = format!("return {top}.querySelector('details').open");
        assert_eq!(browser.run(&open).await?, true, "{action}");
    }
    Ok(())
}
