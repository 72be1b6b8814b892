//! Forms that are updated while a user fills them in.

use anyhow::{Result, ensure};
use harness::browser::Browser;

use super::browsing::until;
use super::browsing::{Shown, WIDE};

#[tokio::test]
async fn the_form_to_release_counts_down_and_says_when_the_lease_ran_out() -> Result<()> {
    let mut shown = Shown::new().await?;
    let browser = Browser::start().await?;
    shown.java.lease_ms = 50_000;
    ensure!(shown.java.lock("brief").await?, "taken");
    shown.bench.listed("brief", |_| true).await;
    browser.open(&shown.bench.dashboard.url("/release?name=brief")).await?;
    let left = "parseInt(document.querySelector('.lasts .left').textContent)";
    let seen = |what: &str| format!("document.querySelector('{what}').getClientRects().length > 0");
    let first = browser.run(&format!("return {left}")).await?;
    until(&browser, &format!("{left} < {first}")).await;
    assert_eq!(browser.run(&format!("return {}", seen(".lasts .ran-out"))).await?, false);
    // Shortens the time to live on the page, so that it runs out soon.
    browser.run("document.querySelector('.lasts').dataset.ttl = 1").await?;
    until(&browser, &seen(".lasts .ran-out")).await;
    assert_eq!(browser.run(&format!("return {}", seen(".validity .left"))).await?, true);
    browser.run("document.querySelector('.validity').dataset.ttl = 1").await?;
    until(&browser, &seen(".validity .ran-out")).await;
    assert_eq!(browser.run(&format!("return {}", seen(".validity .left"))).await?, false);
    Ok(())
}

#[tokio::test]
async fn a_digit_beside_the_field_of_a_form_to_release_opens_no_other_page() -> Result<()> {
    let shown = Shown::new().await?;
    let browser = Browser::start().await?;
    browser.open(&shown.bench.dashboard.url("/release?name=plain")).await?;
    browser.press("3").await?;
    browser.press("u").await?;
    until(&browser, "document.getElementById('zone')?.innerText === 'Local'").await;
    assert_eq!(browser.run("return location.pathname").await?, "/release");
    Ok(())
}

#[tokio::test]
async fn the_form_to_release_a_lock_of_many_readers_folds_up_their_list() -> Result<()> {
    let mut shown = Shown::new().await?;
    let readers: String =
        (1..=120).map(|n| format!(" 0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:{n} 1")).collect();
    shown.bench.direct.call(&format!("HSET catalogue mode read{readers}")).await?.ok()?;
    shown.bench.direct.call("PEXPIRE catalogue 3600000").await?.ok()?;
    shown.bench.listed("catalogue", |lock| lock["state"] == "held").await;
    let browser = Browser::start().await?;
    let whole = "[name=target][value=lock]";
    for size in [(1280, 900), (390, 844)] {
        browser.show_as(size, false).await?;
        browser.open(&shown.bench.dashboard.url("/release?name=catalogue")).await?;
        let says = "document.querySelector('form.release summary').innerText";
        until(&browser, &format!("{says} === 'Only one of 120 holds'")).await;
        // The question and the answers to it are close to each other.
        let height = "document.querySelector('form.release fieldset').clientHeight < innerHeight";
        for open in [false, true] {
            let fold = format!("document.querySelector('form.release details').open = {open}");
            browser.run(&fold).await?;
            until(&browser, height).await;
            let seen = "[...document.querySelectorAll('[name=target]')]
                .filter((choice) => choice.checkVisibility()).length";
            let expected = if open { 101 } else { 1 };
            until(&browser, &format!("{seen} === {expected}")).await;
            assert_eq!(browser.run(WIDE).await?, false, "{size:?}, open: {open}");
        }
        let rest = "document.querySelector('form.release .choices .hint').innerText";
        until(&browser, &format!("{rest}.startsWith('and 20 more')")).await;
        until(&browser, &format!("document.querySelector('{whole}').checkVisibility()")).await;
    }
    // A choice that is submitted with a mistake is shown again, with the whole lock.
    let send = "const form = document.querySelector('form.release');
        form.querySelector('.choices [value$=\":7\"]').checked = true;
        form.reason.value = 'a test'; form.elements.name.value = 'another'; form.requestSubmit()";
    browser.run(send).await?;
    until(&browser, "document.getElementById('mistake')").await;
    let chosen = "document.querySelector('[name=target]:checked')";
    until(&browser, &format!("{chosen}.value.endsWith(':7') && {chosen}.checkVisibility()")).await;
    Ok(())
}

#[tokio::test]
async fn the_fields_of_the_history_have_the_zone_that_the_page_shows() -> Result<()> {
    let shown = Shown::new().await?;
    let browser = Browser::start().await?;
    browser.move_to("Asia/Kolkata").await?;
    let page = "/history?from=2026-11-20T20:00:00Z&to=2026-11-21T03:12:30.500Z&at=-1s";
    browser.open(&shown.bench.dashboard.url(page)).await?;
    let fields =
        "[...document.querySelectorAll('.ask [data-instant]')].map((field) => field.value)";
    let labels = "[...document.querySelectorAll('.ask .zone-name')].map((name) => name.innerText)";
    let says = async |script: &str, wanted: [&str; 3]| {
        let is = browser.run(&format!("return {script}")).await?;
        ensure!(is == serde_json::json!(wanted), "{script} is {is}, not {wanted:?}");
        anyhow::Ok(())
    };
    let utc = ["2026-11-20T20:00:00Z", "2026-11-21T03:12:30.500Z", "-1s"];
    says(labels, ["UTC", "UTC", "UTC"]).await?;
    says(fields, utc).await?;
    browser.press("u").await?;
    says(labels, ["local time", "local time", "local time"]).await?;
    says(fields, ["2026-11-21T01:30:00", "2026-11-21T08:42:30.500", "-1s"]).await?;
    browser.press("u").await?;
    says(fields, utc).await?;
    // The form sends every typed instant in UTC and shows local time again afterwards.
    browser.press("u").await?;
    let typed = ["2026-11-21 01:45", "2026-11-21T02:00:00Z", "nonsense"];
    let fill = format!(
        "document.querySelectorAll('.ask [data-instant]').forEach((field, i) => {{
             field.value = {}[i];
         }});
         window.mark = 'this page'; document.querySelector('.ask').requestSubmit()",
        serde_json::json!(typed)
    );
    browser.run(&fill).await?;
    until(&browser, "window.mark === undefined && document.readyState === 'complete'").await;
    let sent = "['from', 'to', 'at'].map((name) => new URLSearchParams(location.search).get(name))";
    says(sent, ["2026-11-20T20:15:00Z", "2026-11-21T02:00:00Z", "nonsense"]).await?;
    says(fields, ["2026-11-21T01:45:00", "2026-11-21T07:30:00", "nonsense"]).await?;
    until(&browser, "document.querySelector('[name=at][aria-invalid]')").await;
    let said = "document.getElementById('instant-error').innerText";
    until(&browser, &format!("{said}.includes('nonsense')")).await;
    // A time of day remains a time of day.
    browser.open(&shown.bench.dashboard.url("/history?from=-1h&at=03:12")).await?;
    says(fields, ["-1h", "", "08:42"]).await?;
    Ok(())
}

#[tokio::test]
async fn a_first_problem_is_acknowledged_and_released_on_the_page_that_was_open_before()
-> Result<()> {
    let mut shown = Shown::new().await?;
    let browser = Browser::start().await?;
    browser.open(&shown.bench.dashboard.url("/lock?name=calm")).await?;
    browser.run("window.mark = 'this page'").await?;
    let seen = |what: &str| format!("document.querySelector('{what}').checkVisibility()");
    let (link, form) = (seen(".lock-head .danger"), seen("#acknowledge form"));
    let (choice, undo) = (seen("#open-problems"), seen("#acknowledged-problems button"));
    assert_eq!(browser.run(&format!("return {link} || {form}")).await?, false, "nobody holds it");
    ensure!(shown.java.lock("calm").await?, "taken");
    until(&browser, &link).await;
    assert_eq!(
        browser.run(&format!("return {}", seen("#acknowledge"))).await?,
        false,
        "no problem"
    );
    shown.bench.direct.call("PERSIST calm").await?.ok()?;
    until(&browser, &seen("#acknowledge")).await;
    browser.run("document.querySelector('#acknowledge').open = true").await?;
    until(
        &browser,
        &format!("{choice} && !document.querySelector('#acknowledged-problems button')"),
    )
    .await;
    assert_eq!(
        browser.run("return document.querySelector('#open-problems').value").await?,
        "leaked"
    );
    browser
        .run("document.querySelector('#acknowledge [name=reason]').value = 'a long import'")
        .await?;
    // Another problem joins it, and what the reader has chosen and typed stays.
    shown.bench.direct.call("HSET calm progress 7").await?.ok()?;
    until(&browser, "document.querySelectorAll('#open-problems option').length === 2").await;
    let kept = "document.querySelector('#open-problems').value === 'leaked'
        && document.querySelector('#acknowledge [name=reason]').value === 'a long import'";
    until(&browser, kept).await;
    assert_eq!(browser.run("return window.mark").await?, "this page");
    browser.run("document.querySelector('#acknowledge form').requestSubmit()").await?;
    let acknowledged = format!(
        "window.mark === undefined && document.querySelector('#acknowledge') &&
        (document.querySelector('#acknowledge').open = true) && {undo}"
    );
    until(&browser, &acknowledged).await;
    browser.run("document.querySelector('#acknowledged-problems button').click()").await?;
    until(
        &browser,
        "!document.querySelector('#acknowledged-problems button') &&
        document.querySelectorAll('#open-problems option').length === 2",
    )
    .await;
    // A choice whose problem ends never becomes another one.
    browser
        .run(
            "document.querySelector('#acknowledge').open = true;
        document.querySelector('#open-problems').value = 'malformed'",
        )
        .await?;
    shown.bench.direct.call("HDEL calm progress").await?.ok()?;
    until(&browser, "document.querySelectorAll('#open-problems option').length === 1").await;
    assert_eq!(browser.run("return document.querySelector('#open-problems').value").await?, "");
    Ok(())
}

#[tokio::test]
async fn a_double_click_and_a_reload_show_that_the_release_worked() -> Result<()> {
    let mut shown = Shown::new().await?;
    ensure!(shown.java.lock("twice").await?, "taken");
    shown.bench.listed("twice", |lock| lock["state"] == "held").await;
    let browser = Browser::start().await?;
    browser.open(&shown.bench.dashboard.url("/release?name=twice")).await?;
    let send = "const form = document.querySelector('form.release');
        form.reason.value = 'a test'; form.elements.name.value = 'twice';
        const button = form.querySelector('button.danger'); button.click(); button.click()";
    browser.run(send).await?;
    let worked = "document.getElementById('outcome')?.innerText.startsWith('Released.')";
    until(&browser, worked).await;
    browser.run("window.mark = 'before'; location.reload()").await?;
    until(&browser, &format!("window.mark === undefined && {worked}")).await;
    Ok(())
}
