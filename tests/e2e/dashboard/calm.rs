//! Pages under changes: what the reader points at keeps its place, and the browser stays responsive.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::browser::Browser;
use harness::{Foreign, eventually};
use serde_json::Value;
use tokio::time::Instant;

use super::Bench;
use super::browsing::until;

const LOCKS: usize = 2_000;
/// The number of acquisitions and releases per second.
const CHANGES: u64 = 600;
/// The time for which the page is watched: two frames and a half.
const WATCHED: Duration = Duration::from_secs(25);
/// The minimum time between two frames in milliseconds, with an allowance for timers on a busy host.
const FRAME_MS: f64 = 9_500.0;
/// The maximum time from the first move of a frame to its last, in milliseconds. Without frames, rows would move all the time.
const TOGETHER_MS: f64 = 3_000.0;

/// Records the times at which rows change places, and layout shifts as browsers sum them up.
const WATCH: &str = "
    window.moves = []; window.shifts = { worst: 0, sum: 0, first: 0, last: 0, what: [] };
    let places = '';
    const look = () => {
      const now = [...document.querySelectorAll('#rows tr')].map((row) => row.id).join(' ');
      if (places && now !== places) window.moves.push(performance.now());
      places = now;
    };
    new MutationObserver(look).observe(document.getElementById('rows'),
      { childList: true, subtree: true, attributes: true, attributeFilter: ['id'] });
    new PerformanceObserver((list) => {
      for (const shift of list.getEntries()) {
        const all = window.shifts;
        if (shift.startTime - all.last > 1000 || shift.startTime - all.first > 5000) {
          [all.sum, all.first] = [0, shift.startTime];
        }
        all.last = shift.startTime;
        all.sum += shift.value;
        all.worst = Math.max(all.worst, all.sum);
        const named = (node) => node?.id || node?.className || node?.nodeName || 'gone';
        const place = (rect) => [rect.x, rect.y, rect.width, rect.height].map(Math.round).join(',');
        const from = (shift.sources ?? []).map(({ node, previousRect, currentRect }) =>
          `${named(node)} (${place(previousRect)} to ${place(currentRect)})`).join(' ');
        all.what.push(`${Math.round(shift.startTime)}: ${shift.value.toFixed(4)} of ${from}`);
      }
    }).observe({ type: 'layout-shift' });";

fn name(i: usize) -> String {
    format!("churn:{i:04}")
}

/// Returns whether a lock is held at the beginning. Neighbours in the order of changes take turns, so half of the locks are always
/// held, and the page always has as many rows as it can.
fn is_held(i: usize) -> bool {
    i.is_multiple_of(2)
}

/// Simulates a service whose threads acquire and release locks at a steady pace.
async fn churn(mut java: Foreign) -> Result<()> {
    let mut held: Vec<bool> = (0..LOCKS).map(is_held).collect();
    let begun = Instant::now();
    for change in 0_u64.. {
        // Takes every lock in turn, far from the one before.
        let i = usize::try_from(change)? * 769 % LOCKS;
        let done = if held[i] { java.unlock(&name(i)).await? } else { java.lock(&name(i)).await? };
        ensure!(done, "{} belongs to someone else", name(i));
        held[i] = !held[i];
        let due = Duration::from_micros(change * 1_000_000 / CHANGES);
        tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_keep_their_places_under_600_changes_a_second() -> Result<()> {
    let bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    for i in (0..LOCKS).filter(|i| is_held(*i)) {
        ensure!(java.lock(&name(i)).await?, "{} is taken", name(i));
    }
    let mut direct = bench.redis.client().await?;
    eventually("all held locks to be listed", async || {
        let list = bench.dashboard.json("/api/v1/locks?limit=1").await?;
        ensure!(list["total"] == LOCKS / 2, "{}", list["total"]);
        Ok(())
    })
    .await;
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/")).await?;
    let churn = tokio::spawn(churn(java));
    browser.run(WATCH).await?;
    // The first change is shown at once and starts the first frame.
    eventually("the first rows to move", async || {
        ensure!(browser.run("return moves.length").await? != 0, "none has moved");
        Ok(())
    })
    .await;
    let (began, busy) = (Instant::now(), browser.busy_seconds().await?);
    tokio::time::sleep(WATCHED).await;
    let busy = (browser.busy_seconds().await? - busy) / began.elapsed().as_secs_f64();
    let moves = browser.run("return moves").await?;
    let moves: Vec<f64> =
        moves.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    let shift = browser.run("return shifts.worst").await?.as_f64().context("no shift")?;
    eprintln!("layout shift {shift:.4}, main thread busy {:.1} %, moves {moves:?}", busy * 100.0);
    ensure!(moves.len() > 1, "nothing moved any more");
    // The rows of one frame move together, apart from delays on a busy host.
    let mut frames = vec![(moves[0], moves[0])];
    for at in &moves[1..] {
        match frames.last_mut() {
            Some((_, last)) if at - *last < TOGETHER_MS => *last = *at,
            _ => frames.push((*at, *at)),
        }
    }
    let brief = frames.iter().all(|(first, last)| last - first < TOGETHER_MS);
    let apart = frames.windows(2).all(|pair| pair[1].0 - pair[0].0 > FRAME_MS);
    ensure!(brief && apart, "rows moved at {moves:?}");
    let what = browser.run("return shifts.what.slice(-40)").await?;
    ensure!(shift < 0.1, "a layout shift of {shift}: {what}");

    // A problem is shown without waiting for the frame.
    direct.call("HSET zz-leaked 0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:8 1").await?.ok()?;
    direct.call("PUBLISH redisson_lock__channel:{zz-leaked} 0").await?.ok()?;
    eventually("the problem to be first", async || {
        let first = browser.run("return document.querySelector('#rows .name').innerText").await?;
        ensure!(first.as_str().is_some_and(|name| name.contains("zz-leaked")), "{first}");
        Ok(())
    })
    .await;
    churn.abort();
    Ok(())
}

/// Waits until the page has received the first event of its stream.
async fn until_live(browser: &Browser) {
    until(browser, "document.getElementById('spoken').textContent").await;
}

#[tokio::test]
async fn a_button_under_the_pointer_keeps_its_holder_until_the_pointer_leaves() -> Result<()> {
    let reader = |n: usize| format!("0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:{n}");
    let mut bench = Bench::new().await?;
    for n in 1..=5 {
        bench.direct.call(&format!("HSET shared mode read {} 1", reader(n))).await?.ok()?;
        let marker = format!("SET {{shared}}:{}:rwlock_timeout:1 1 PX 3600000", reader(n));
        bench.direct.call(&marker).await?.ok()?;
    }
    bench.direct.call("PEXPIRE shared 3600000").await?.ok()?;
    bench.listed("shared", |lock| lock["holders"][4].is_object()).await;
    let (first, second) = (reader(1), reader(2));
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/lock?name=shared")).await?;
    until_live(&browser).await;
    // What is above the holders stays as high as it is, so that the pointer stays on the button.
    browser.run("document.getElementById('lock-pictures').hidden = true").await?;
    let button = "document.querySelector('#lock-holders .copy')";
    until(&browser, &format!("{button}.dataset.copy === '{first}'")).await;
    let middle = format!(
        "{button}.scrollIntoView({{ block: 'center' }});
         const box = {button}.getBoundingClientRect();
         return [box.x + box.width / 2, box.y + box.height / 2].map(Math.round)"
    );
    let middle = browser.run(&middle).await?;
    let place = middle[0].as_i64().zip(middle[1].as_i64()).context("no place")?;
    browser.point_at(place).await?;
    until(&browser, &format!("{button}.matches(':hover')")).await;
    bench.direct.call(&format!("HDEL shared {first}")).await?.ok()?;
    // The state of the lock never waits.
    until(&browser, "document.getElementById('lock-state').innerText.includes('and 1 more')").await;
    until(&browser, "document.getElementById('lock-holders').matches('.waits')").await;
    assert_eq!(browser.run(&format!("return {button}.dataset.copy")).await?, first.as_str());
    browser.point_at((0, 0)).await?;
    until(&browser, &format!("{button}.dataset.copy === '{second}'")).await;
    until(&browser, "!document.querySelector('.waits')").await;
    Ok(())
}

#[tokio::test]
async fn a_link_with_the_focus_stays_the_same_until_the_focus_leaves() -> Result<()> {
    let bench = Bench::new().await?;
    let mut java = Foreign::connect(&bench.redis).await?;
    ensure!(java.lock("first").await?, "taken");
    bench.listed("first", |_| true).await;
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/overview")).await?;
    until_live(&browser).await;
    let list = "document.getElementById('overview-oldest')";
    until(&browser, &format!("{list}.innerText.includes('first')")).await;
    browser.run(&format!("{list}.querySelector('a').focus()")).await?;
    ensure!(java.lock("second").await?, "taken");
    until(&browser, &format!("{list}.matches('.waits')")).await;
    ensure!(java.unlock("first").await?, "released");
    bench.until_not_listed("first").await;
    until(&browser, "document.querySelector('#overview-figures dd').innerText === '1'").await;
    let focused = "document.activeElement.innerText";
    assert_eq!(browser.run(&format!("return {focused}")).await?, "first");
    browser.run("document.activeElement.blur()").await?;
    until(&browser, &format!("{list}.innerText.includes('second')")).await;
    assert_eq!(browser.run(&format!("return {list}.innerText.includes('first')")).await?, false);
    Ok(())
}
