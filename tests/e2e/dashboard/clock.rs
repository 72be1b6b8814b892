//! Changes to the wall clock of the dashboard's host while the dashboard runs.

use anyhow::{Context as _, Result, ensure};
use harness::browser::Browser;
use harness::{Agent, Client, Dashboard, RedisServer, WallClock, eventually};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{Bench, HOLDER, problems};

const HOUR: i64 = 3_600;
/// The tolerance for times: far more than any test takes, and far less than the change of the clock.
const ABOUT: u64 = 900;
/// Returns the correct time in seconds since 1970, by Redis' clock, which is not changed.
async fn now(direct: &mut Client) -> Result<i64> {
    Ok(direct.call("TIME").await?.items()?[0].text().parse()?)
}

/// Converts an instant of the API to seconds since 1970 (the proleptic Gregorian calendar, in years that begin in March).
fn seconds(instant: &Value) -> Result<i64> {
    let text = instant.as_str().with_context(|| format!("{instant} is no instant"))?;
    let number = |from: usize, to: usize| -> Result<i64> {
        Ok(text.get(from..to).context("an instant")?.parse()?)
    };
    let (year, month) = (number(0, 4)?, number(5, 7)?);
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_years = 365 * year + year / 4 - year / 100 + year / 400;
    let days = of_years + (153 * month + 2) / 5 + number(8, 10)? - 1 - 719_468;
    Ok(((days * 24 + number(11, 13)?) * 60 + number(14, 16)?) * 60 + number(17, 19)?)
}

fn about(told: i64, due: i64) -> Result<()> {
    ensure!(told.abs_diff(due) < ABOUT, "{told}, and it is {due}");
    Ok(())
}

/// Waits until every time that the dashboard reports for these locks matches a clock that is `ahead` seconds fast.
async fn until_times_match(dashboard: &Dashboard, direct: &mut Client, ahead: i64) {
    eventually("all to be told by the clock as it is", async || {
        let due = now(direct).await? + ahead;
        let held = dashboard.json("/api/v1/lock?name=held").await?;
        let leaked = dashboard.json("/api/v1/lock?name=leaked").await?;
        let past = dashboard.json("/api/v1/lock?name=past").await?;
        let told = [
            &held["observed_at"],
            &held["holders"][0]["since"]["at"],
            &held["events"][0]["at"],
            &leaked["problems"][0]["since"],
            &leaked["problems"][0]["evidence"][0]["at"],
            &past["past"][0]["to"],
        ];
        for told in told {
            about(seconds(told)?, due)?;
        }
        // Times that were stored before the change follow it too.
        let at = past["past"][0]["since"]["at"].as_str().context("an instant")?;
        let at = utf8_percent_encode(at, NON_ALPHANUMERIC);
        let then = dashboard.json(&format!("/api/v1/lock?name=past&at={at}")).await?;
        ensure!(then["holders"][0]["id"] == HOLDER, "{then}");
        let metrics = dashboard.metrics().await?;
        let oldest = "lockscope_dashboard_oldest_hold_start_timestamp_seconds";
        about(format!("{:.0}", metrics.sum(oldest, &[("lock_group", "held")])).parse()?, due)?;
        let read = "lockscope_dashboard_source_last_success_timestamp_seconds";
        about(format!("{:.0}", metrics.sum(read, &[("source", "poll")])).parse()?, due)?;
        // The change causes no problems and hides none.
        ensure!((problems(&held).len(), problems(&leaked).len()) == (0, 1), "{held} {leaked}");
        Ok(())
    })
    .await;
    let list = dashboard.json("/api/v1/locks?filter=age:%3E20m").await.expect("the list");
    assert_eq!(list["total"], 0, "nothing is held for that long: {list}");
}

#[tokio::test]
async fn a_clock_change_affects_displayed_times_only() -> Result<()> {
    let clock = WallClock::new()?;
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    let folder = tempfile::tempdir()?;
    let history = folder.path().display().to_string();
    let flags = ["--monitor", "off", "--history-dir", &*history];
    let mut dashboard =
        Dashboard::in_environment(&redis.url(), &flags, &clock.environment()).await?;
    for name in ["held", "leaked", "past"] {
        direct.call(&format!("HINCRBY {name} {HOLDER} 1")).await?.ok()?;
        direct.call(&format!("PEXPIRE {name} 36000000")).await?.ok()?;
        eventually("it to be seen", async || {
            let lock = dashboard.json(&format!("/api/v1/lock?name={name}")).await?;
            ensure!(lock["state"] == "held" && lock["confirmed"] == true, "{lock}");
            Ok(())
        })
        .await;
    }
    direct.call("PERSIST leaked").await?.ok()?;
    direct.call("DEL past").await?.ok()?;
    eventually("one to leak, and one to be over", async || {
        let leaked = dashboard.json("/api/v1/lock?name=leaked").await?;
        ensure!(problems(&leaked) == ["leaked"], "{leaked}");
        let past = dashboard.json("/api/v1/lock?name=past").await?;
        ensure!(past["state"] == "free", "{past}");
        Ok(())
    })
    .await;

    for ahead in [0, HOUR, -HOUR, HOUR] {
        clock.set(ahead)?;
        until_times_match(&dashboard, &mut direct, ahead).await;
    }
    let found = dashboard.metrics().await?.sum("lockscope_dashboard_problems_detected_total", &[]);
    assert_eq!(found, 1.0, "no problem but the one that there is");

    // The next dashboard, which never saw the clock change, reports everything with its correct age.
    dashboard.process().kill()?;
    WallClock::clear_up(dashboard.process().pid());
    dashboard.restart().await?;
    eventually("both to be read", async || {
        let list = dashboard.json("/api/v1/locks").await?;
        ensure!(list["total"] == 2 && list["locks"][0]["problems"][0].is_object(), "{list}");
        Ok(())
    })
    .await;
    let due = now(&mut direct).await? + HOUR;
    let held = dashboard.json("/api/v1/lock?name=held").await?;
    about(seconds(&held["holders"][0]["since"]["at"])?, due)?;
    assert_eq!(problems(&held), [""; 0]);
    let leaked = dashboard.json("/api/v1/lock?name=leaked").await?;
    about(seconds(&leaked["problems"][0]["since"])?, due)?;
    dashboard.process().kill()?;
    WallClock::clear_up(dashboard.process().pid());
    Ok(())
}

/// Returns once all instants in the tooltips of the page are those of its elements.
async fn until_tooltips_match(browser: &Browser) {
    let tooltips = "return [...document.querySelectorAll('time[data-at], time[data-when]')]
        .map((time) => [time.title, time.dateTime])";
    eventually("tooltips by the clock as it is", async || {
        let tooltips = browser.run(tooltips).await?;
        let pairs = tooltips.as_array().context("a list")?;
        ensure!(!pairs.is_empty() && pairs.iter().all(|pair| pair[0] == pair[1]), "{tooltips}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_clock_change_shows_on_open_pages() -> Result<()> {
    let clock = WallClock::new()?;
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    let dashboard =
        Dashboard::in_environment(&redis.url(), &["--monitor", "off"], &clock.environment())
            .await?;
    direct.call(&format!("HINCRBY held {HOLDER} 1")).await?.ok()?;
    direct.call("PEXPIRE held 36000000").await?.ok()?;
    let mut bench = Bench { dashboard, redis, direct };
    bench.listed("held", |lock| lock["state"] == "held").await;
    let browser = Browser::start().await?;
    let page = bench.dashboard.url("/lock?name=held");
    for ahead in [HOUR, -HOUR] {
        browser.open(&page).await?;
        clock.set(ahead)?;
        eventually("the open page to follow the clock", async || {
            let due = now(&mut bench.direct).await? + ahead;
            let shown = browser.run("return document.getElementById('as-of').textContent").await?;
            about(seconds(&shown)?, due)
        })
        .await;
        browser.open(&page).await?;
        until_tooltips_match(&browser).await;
    }
    bench.dashboard.process().kill()?;
    WallClock::clear_up(bench.dashboard.process().pid());
    Ok(())
}

#[tokio::test]
async fn a_deadline_that_no_date_can_show_leaves_the_page_alive() -> Result<()> {
    let mut bench = Bench::new().await?;
    bench.direct.call(&format!("HINCRBY fair {HOLDER} 1")).await?.ok()?;
    bench.direct.call("PEXPIRE fair 36000000").await?.ok()?;
    let waiter = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:48";
    let deadline = format!("ZADD redisson_lock_timeout:{{fair}} 8800000000000000 {waiter}");
    bench.direct.call(&deadline).await?.ok()?;
    bench.direct.call(&format!("RPUSH redisson_lock_queue:{{fair}} {waiter}")).await?.ok()?;
    bench.listed("fair", |lock| lock["waiting"] == 1).await;
    let lock = bench.dashboard.json("/api/v1/lock?name=fair").await?;
    assert_eq!(lock["queue"][0]["deadline"], "9999-12-31T23:59:59.999Z");
    let browser = Browser::start().await?;
    browser.open(&bench.dashboard.url("/lock?name=fair")).await?;
    until_tooltips_match(&browser).await;
    bench.direct.call("DEL fair").await?.ok()?;
    eventually("the open page to show it free", async || {
        let held = browser.run("return document.querySelector('.time-left') !== null").await?;
        ensure!(held == false, "it has a time to live");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_wrong_clock_of_an_agents_host_makes_no_wait_longer() -> Result<()> {
    let clock = WallClock::new()?;
    let environment = clock.environment();
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, &**value)).collect();
    let mut bench = Bench::with(&["--monitor", "off", "--scan-every", "1s"]).await?;
    bench.direct.call(&format!("HINCRBY held {HOLDER} 1")).await?.ok()?;
    bench.direct.call("PEXPIRE held 36000000").await?.ok()?;
    clock.set(-HOUR)?;
    let mut agent = Agent::in_environment(&bench.redis, &[], &environment).await?;
    for ahead in [-HOUR, HOUR] {
        clock.set(ahead)?;
        let mut waiter = agent.client().await?;
        waiter.send("LOCK held").await?;
        let lock = bench.listed("held", |lock| lock["waiters"][0].is_object()).await;
        about(seconds(&lock["waiters"][0]["since"]["at"])?, now(&mut bench.direct).await?)?;
        assert_eq!(problems(&lock), [""; 0], "{lock}");
        drop(waiter);
        bench.listed("held", |lock| lock["waiting"] == 0).await;
    }
    agent.process().kill()?;
    WallClock::clear_up(agent.pid());
    Ok(())
}
