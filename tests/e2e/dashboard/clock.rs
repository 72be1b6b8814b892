//! Changes to the wall clock of the dashboard's host while the dashboard runs.

use anyhow::{Context as _, Result, ensure};
use harness::{Client, Dashboard, RedisServer, WallClock, eventually};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{HOLDER, problems};

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
