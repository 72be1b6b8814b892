//! What a stream sends.

use std::sync::Arc;

use serde_json::Value;

use super::fixtures::{ago, chrome, contended, healthy_rows, held, lock, locks, stuck};
use crate::model::view::{LockView, State, WallMillis};
use crate::views::live::{Fragments, Stream, beat};
use crate::views::{LocksPage, SourcesPage, Subject};

fn patch(stream: &mut Stream, page: &LocksPage) -> Option<Value> {
    let json = stream.locks(page).unwrap()?;
    Some(serde_json::from_str(&json).unwrap())
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_first_event_holds_everything() {
    let page = contended();
    let first = patch(&mut Stream::new(Fragments::default()), &page).unwrap();
    assert_eq!(first["full"], true);
    assert!(first["build"].is_string());
    assert_eq!(first["title"], "(3) Locks · Lockscope · production");
    assert_eq!(first["order"].as_array().unwrap().len(), page.rows.len());
    for id in first["order"].as_array().unwrap() {
        let id = id.as_str().unwrap();
        assert!(first["rows"][id].as_str().unwrap().starts_with(&format!("<tr id=\"{id}\"")));
    }
    assert_eq!(keys(&first["regions"]), ["alerts", "foot", "spoken", "status", "views"]);
}

#[test]
fn nothing_new_is_nothing_sent() {
    let mut stream = Stream::new(Fragments::default());
    let mut page = contended();
    patch(&mut stream, &page).unwrap();
    assert_eq!(patch(&mut stream, &page), None);
    page.chrome.now.0 += 1_000;
    assert_eq!(patch(&mut stream, &page), None, "ages are the browser's to count");
}

#[test]
fn a_read_that_finds_no_change_sends_the_time_to_live_only() {
    let mut stream = Stream::new(Fragments::default());
    let mut page = locks(healthy_rows());
    let first = patch(&mut stream, &page).unwrap();
    let row = Arc::make_mut(&mut page.rows[3]);
    row.ttl_ms = Some(29_500);
    row.observed_at = ago(0);
    let second = patch(&mut stream, &page).unwrap();
    assert_eq!(keys(&second), ["now", "ttl"]);
    let id = first["order"][3].as_str().unwrap();
    assert_eq!(second["ttl"][id], serde_json::json!([29_500, ago(0).0]));
}

#[test]
fn rows_come_change_and_go() {
    let mut stream = Stream::new(Fragments::default());
    let mut page = locks(healthy_rows());
    let first = patch(&mut stream, &page).unwrap();

    page.rows.insert(0, Arc::new(held(b"new", 50, 10)));
    let came = patch(&mut stream, &page).unwrap();
    assert_eq!(came["rows"].as_object().unwrap().len(), 1);
    assert_eq!(came["order"][1], first["order"][0]);

    Arc::make_mut(&mut page.rows[0]).holders[0].count = 2;
    let changed = patch(&mut stream, &page).unwrap();
    assert_eq!(keys(&changed), ["now", "rows"]);
    assert!(changed["rows"].to_string().contains("×2"));

    page.rows.remove(0);
    let gone = patch(&mut stream, &page).unwrap();
    assert_eq!(keys(&gone), ["now", "order", "regions"]);
    assert_eq!(keys(&gone["regions"]), ["foot"]);
    assert_eq!(gone["order"], first["order"]);
}

#[test]
fn a_lost_time_to_live_is_a_new_row() {
    let mut stream = Stream::new(Fragments::default());
    let mut page = locks(healthy_rows());
    patch(&mut stream, &page).unwrap();
    Arc::make_mut(&mut page.rows[0]).ttl_ms = None;
    let changed = patch(&mut stream, &page).unwrap();
    assert!(changed["rows"].to_string().contains("no expiry"));
}

#[test]
fn ages_of_sources_wait_but_their_states_do_not() {
    let mut stream = Stream::new(Fragments::default());
    let mut page = locks(healthy_rows());
    patch(&mut stream, &page).unwrap();
    page.chrome.now.0 += 100;
    page.chrome.sources[2].last_success = Some(page.chrome.now);
    assert_eq!(patch(&mut stream, &page), None);
    page.chrome.now.0 += 2_000;
    let later = patch(&mut stream, &page).unwrap();
    assert_eq!(keys(&later["regions"]), ["status"]);
    page.chrome.now.0 += 1;
    page.chrome.sources[2].state = crate::model::view::SourceState::Down;
    let down = patch(&mut stream, &page).unwrap();
    assert!(down["regions"]["status"].as_str().unwrap().contains("poll down"));
}

#[test]
fn streams_share_rendered_rows_without_mixing_views() {
    let fragments = Fragments::default();
    let page = locks(healthy_rows());
    let with_db = {
        let mut page = page.clone();
        page.chrome.several_dbs = true;
        page
    };
    let plain = patch(&mut Stream::new(fragments.clone()), &page).unwrap();
    let placed = patch(&mut Stream::new(fragments.clone()), &with_db).unwrap();
    assert!(!plain["rows"].to_string().contains("class=\\\"place"));
    assert!(placed["rows"].to_string().contains("db 0"));
    assert_eq!(patch(&mut Stream::new(fragments), &page).unwrap()["rows"], plain["rows"]);
}

#[test]
fn a_row_is_the_same_in_page_and_patch() {
    let mut page = contended();
    page.chrome.now = WallMillis(0);
    let html = crate::views::locks_page(&page).unwrap();
    let first = patch(&mut Stream::new(Fragments::default()), &page).unwrap();
    for row in first["rows"].as_object().unwrap().values() {
        assert!(html.contains(row.as_str().unwrap()));
    }
    for (id, region) in first["regions"].as_object().unwrap() {
        if id != "spoken" {
            assert!(html.contains(region.as_str().unwrap()), "{id}");
        }
    }
}

#[test]
fn the_page_of_one_lock_follows_it() {
    let mut stream = Stream::new(Fragments::default());
    let mut page = lock(stuck());
    let first: Value = serde_json::from_str(&stream.lock(&page).unwrap().unwrap()).unwrap();
    assert!(first["title"].as_str().unwrap().starts_with("▲ billing:invoice-run"));
    assert_eq!(stream.lock(&page).unwrap(), None);
    let free = LockView { state: State::Free, holders: vec![], problems: vec![], ..stuck() };
    page.subject = Subject::Known(Arc::new(free));
    let then: Value = serde_json::from_str(&stream.lock(&page).unwrap().unwrap()).unwrap();
    assert_eq!(keys(&then["regions"]), ["lock-holders", "lock-problems", "lock-state"]);
    assert_eq!(then["regions"]["lock-holders"], "");
}

#[test]
fn the_page_of_sources_follows_them() {
    let mut stream = Stream::new(Fragments::default());
    let mut page =
        SourcesPage { chrome: chrome("/sources"), limits: vec![], notices: Arc::default() };
    assert!(stream.sources(&page).unwrap().is_some());
    assert_eq!(stream.sources(&page).unwrap(), None);
    page.limits.push("Waiters are not seen.".into());
    assert!(stream.sources(&page).unwrap().unwrap().contains("Waiters are not seen."));
}

#[test]
fn a_page_without_a_stream_asks_for_none() {
    let mut page = contended();
    assert!(crate::views::locks_page(&page).unwrap().contains(" data-live=\"/live?path=/\""));
    page.filter_error = Some("no".into());
    assert!(!crate::views::locks_page(&page).unwrap().contains("data-live"));
}

#[test]
fn a_beat_is_a_patch() {
    let beat: Value = serde_json::from_str(&beat(WallMillis(5))).unwrap();
    assert_eq!(beat, serde_json::json!({ "now": 5 }));
}

/// What a stream sends while rows come, change, move and go, for trying the script in a browser.
pub(super) fn story() -> String {
    let mut stream = Stream::new(Fragments::default());
    let mut page = locks(healthy_rows());
    let mut story = Vec::new();
    let mut then = |what: &str, change: &dyn Fn(&mut LocksPage)| {
        change(&mut page);
        page.total = page.rows.len();
        page.chrome.counts.held = page.total;
        story.push(serde_json::json!({ "what": what, "patch": patch(&mut stream, &page) }));
    };
    then("begin", &|_| ());
    then("new", &|page| page.rows.insert(0, Arc::new(stuck())));
    then("count", &|page| Arc::make_mut(&mut page.rows[2]).holders[0].count = 7);
    then("ttl", &|page| {
        let row = Arc::make_mut(&mut page.rows[3]);
        row.ttl_ms = Some(5_000);
        row.observed_at = ago(0);
    });
    then("gone", &|page| drop(page.rows.remove(4)));
    then("moved", &|page| page.rows.swap(1, 5));
    then("last", &|page| page.rows.push(Arc::new(held(b"at:the:end", 77, 10))));
    then("none", &|page| page.rows.clear());
    then("again", &|page| page.rows = locks(healthy_rows()).rows);
    serde_json::to_string(&story).unwrap()
}
