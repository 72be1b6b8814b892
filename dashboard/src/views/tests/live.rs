//! Tests of the events that a stream sends.

use std::sync::Arc;
use thin_vec::thin_vec;

use serde_json::Value;

use super::fixtures::{
    ago, chrome, contended, contended_lock, healthy_rows, held, hostile, list, list_rows, lock,
    locks, owners, read_again, source, stuck,
};
use crate::clock::SteadyMillis;
use crate::model::types::{LockView, State};
use crate::query::LockRow;
use crate::query::contention::ContentionRow;
use crate::sources::view::{SourceState, SourceView};
use crate::views::fragments::Fragments;
use crate::views::live::{Picture, beat};
use crate::views::{ListPage, SourcesPage, Subject, list_page, lock_page, row};

/// A visitor of a page who has received every event so far.
#[derive(Default)]
struct Stream {
    fragments: Fragments,
    seen: Option<Picture>,
}

impl Stream {
    fn new(fragments: Fragments) -> Self {
        Self { fragments, seen: None }
    }

    fn show(&mut self, picture: Picture) -> Option<Value> {
        let json = picture.patch(self.seen.as_ref()).unwrap();
        self.seen = Some(picture);
        json.map(|json| serde_json::from_str(&json).unwrap())
    }
}

fn patch(stream: &mut Stream, page: &ListPage<LockRow>) -> Option<Value> {
    let picture = Picture::list(page, stream.seen.as_ref(), &stream.fragments).unwrap();
    stream.show(picture)
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
    assert_eq!(
        keys(&first["regions"]),
        ["alerts", "facets", "foot", "health", "spoken", "status", "views"]
    );
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
    read_again(row, ago(0), 29_500);
    let second = patch(&mut stream, &page).unwrap();
    assert_eq!(keys(&second), ["now", "set", "ttl"]);
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
    assert_eq!(keys(&changed), ["cells", "now", "set"], "only what changed");
    let cells = changed["cells"].as_object().unwrap().values().next().unwrap();
    assert_eq!(keys(cells), ["3"], "the holder's cell, the start tag being 0");
    assert!(cells["3"].as_str().unwrap().contains("×2"));

    page.rows.remove(0);
    let gone = patch(&mut stream, &page).unwrap();
    assert_eq!(keys(&gone), ["now", "order", "regions", "set"]);
    assert_eq!(keys(&gone["regions"]), ["foot"]);
    assert_eq!(gone["order"], first["order"]);
}

#[test]
fn a_lost_time_to_live_is_sent() {
    let mut stream = Stream::new(Fragments::default());
    let mut page = locks(healthy_rows());
    patch(&mut stream, &page).unwrap();
    Arc::make_mut(&mut page.rows[0]).expires_at = None;
    let changed = patch(&mut stream, &page).unwrap();
    assert_eq!(keys(&changed), ["cells", "now", "set", "ttl"]);
    assert!(changed["cells"].to_string().contains("no expiry"));
    assert_eq!(changed["ttl"].as_object().unwrap().values().next().unwrap()[0], Value::Null);
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
    page.chrome.sources[2].state = SourceState::Down;
    let down = patch(&mut stream, &page).unwrap();
    assert!(down["regions"]["status"].as_str().unwrap().contains(">down"));
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

/// Removes the text that the script counts: ages, and times to live as read.
fn uncounted(html: &str) -> String {
    let mut text = html.to_owned();
    for (from, to) in [
        (" data-observed=\"", "\""),
        (" data-ttl=\"", "\""),
        ("class=\"left\">", "<"),
        ("class=\"read-ago\">", "<"),
        (" max=\"", "\""),
        (" value=\"", "\""),
    ] {
        let mut parts = text.split(from);
        let mut kept = parts.next().unwrap().to_owned();
        for part in parts {
            let (_, rest) = part.split_once(to).unwrap();
            kept.push_str(rest);
        }
        text = kept;
    }
    text
}

#[test]
fn a_row_is_the_same_in_page_and_patch() {
    let mut page = contended();
    page.chrome.now = SteadyMillis(0);
    let html = uncounted(&list_page(&page).unwrap());
    let first = patch(&mut Stream::default(), &page).unwrap();
    for row in first["rows"].as_object().unwrap().values() {
        assert!(html.contains(&uncounted(row.as_str().unwrap())), "{row}");
    }
    for (id, region) in first["regions"].as_object().unwrap() {
        if id != "spoken" {
            assert!(html.contains(region.as_str().unwrap()), "{id}");
        }
    }
}

#[test]
fn a_row_has_its_start_tag_and_each_cell_on_a_line() {
    let cells = |html: &str| {
        let lines: Vec<&str> = html.lines().collect();
        assert!(lines[0].starts_with("<tr id=") && lines[0].ends_with('>'), "{html}");
        assert_eq!(*lines.last().unwrap(), "</tr>");
        for line in &lines[1..lines.len() - 1] {
            let cell = line.starts_with("<td") && line.ends_with("</td>");
            assert!(cell || line.starts_with("<th") && line.ends_with("</th>"), "{line}");
        }
    };
    for lock in contended().rows.iter().chain(&hostile().rows) {
        cells(&row::live_row(lock, true, true).unwrap());
    }
    for html in list_rows() {
        cells(&html);
    }
}

#[test]
fn a_reader_that_lags_gets_the_difference_from_its_page() {
    let (mut quick, mut slow) = (Stream::default(), Stream::default());
    let mut page = locks(healthy_rows());
    patch(&mut quick, &page);
    patch(&mut slow, &page);
    for count in 2..9 {
        Arc::make_mut(&mut page.rows[0]).holders[0].count = count;
        page.rows.swap(1, 2);
        patch(&mut quick, &page);
    }
    let all = patch(&mut slow, &page).unwrap();
    assert_eq!(keys(&all), ["cells", "now", "order", "set"]);
    assert!(all["cells"].to_string().contains("×8"));
}

#[test]
fn the_page_of_one_lock_follows_it() {
    let mut stream = Stream::default();
    let mut page = lock(stuck());
    let mut then = |page: &crate::views::LockPage| {
        let picture = Picture::lock(page, stream.seen.as_ref()).unwrap();
        stream.show(picture)
    };
    let first = then(&page).unwrap();
    assert!(first["title"].as_str().unwrap().starts_with("▲ billing:invoice-run"));
    assert_eq!(then(&page), None);
    let free = LockView { state: State::Free, holders: vec![], problems: thin_vec![], ..stuck() };
    page.subject = Subject::Known(Arc::new(free));
    let changed = then(&page).unwrap();
    assert_eq!(
        keys(&changed["regions"]),
        [
            "lock-by-hand",
            "lock-holders",
            "lock-pictures",
            "lock-problems",
            "lock-state",
            "open-problems"
        ]
    );
    assert_eq!(changed["regions"]["lock-holders"], "");
    let by_hand = changed["regions"]["lock-by-hand"].as_str().unwrap();
    assert!(by_hand.contains(" --holder none "), "{by_hand}");
    assert_eq!(changed["regions"]["open-problems"], "");
    assert!(changed["regions"]["lock-state"].as_str().unwrap().contains("verdict free\""));
    // The forms of an open page follow its problems, for any visitor.
    page.subject = Subject::Known(Arc::new(stuck()));
    let regions = &then(&page).unwrap()["regions"];
    assert_eq!(regions["open-problems"], "<option value=\"stuck\">stuck</option>");
    assert!(regions["lock-state"].as_str().unwrap().contains(" releasable\""));
}

#[test]
fn a_page_that_lacks_waiters_names_the_step_that_turns_monitor_on() {
    const STEP: &str = "Allow <code>+monitor</code>.";
    let remediable = |chrome: &mut crate::views::Chrome| {
        let monitor = source("monitor", 0, SourceState::Denied, "");
        let remedy = Some("Allow `+monitor`.");
        chrome.sources.push(SourceView { remedy, ..monitor });
    };
    let mut page = lock(LockView { waiters_exact: false, ..stuck() });
    let told = |page: &crate::views::LockPage| lock_page(page).unwrap().matches(STEP).count();
    assert_eq!(told(&page), 0);
    remediable(&mut page.chrome);
    assert_eq!(told(&page), 2, "at its waiters and at the sources");
    let exact = LockView { waiters_exact: true, ..stuck() };
    page.subject = Subject::Known(Arc::new(exact));
    assert_eq!(told(&page), 1);
    // The MONITOR of another deployment shows nothing of this lock.
    page.subject = Subject::Known(Arc::new(LockView { waiters_exact: false, ..stuck() }));
    page.id.deployment = "elsewhere".into();
    assert_eq!(told(&page), 1);

    let mut page = list::<ContentionRow>(vec![contended_lock()]);
    assert!(!list_page(&page).unwrap().contains(STEP));
    remediable(&mut page.chrome);
    page.contention = Some(Arc::default());
    assert_eq!(list_page(&page).unwrap().matches(STEP).count(), 2);
    // The hint disappears while the page is open.
    page.chrome = chrome("/contention");
    let regions = crate::views::list::regions(&page).unwrap();
    assert!(regions.iter().any(|(id, html)| *id == "hint" && html.is_empty()));
}

#[test]
fn other_pages_follow_what_they_show() {
    let mut stream = Stream::default();
    let mut page =
        SourcesPage { chrome: chrome("/sources"), limits: vec![], notices: Arc::default() };
    let mut then = |page: &SourcesPage| {
        let picture = Picture::sources(page, stream.seen.as_ref()).unwrap();
        stream.show(picture)
    };
    assert!(then(&page).is_some());
    assert_eq!(then(&page), None);
    page.limits.push("Waiters are not seen.".into());
    assert!(then(&page).unwrap().to_string().contains("Waiters are not seen."));

    let (mut stream, mut page) = (Stream::default(), owners());
    let mut then = |page: &_| {
        let picture = Picture::list(page, stream.seen.as_ref(), &stream.fragments).unwrap();
        stream.show(picture)
    };
    let first = then(&page).unwrap();
    assert_eq!(first["order"].as_array().unwrap().len(), page.rows.len());
    assert_eq!(then(&page), None);
    page.rows[0].holds += 1;
    assert_eq!(keys(&then(&page).unwrap()), ["cells", "now", "set"]);
}

#[test]
fn a_page_without_a_stream_asks_for_none() {
    let mut page = contended();
    assert!(list_page(&page).unwrap().contains(" data-live=\"/live?path=/\""));
    page.filter_error = Some("no".into());
    assert!(!list_page(&page).unwrap().contains("data-live"));
}

#[test]
fn a_beat_is_a_patch() {
    let beat =
        |unread_for| -> Value { serde_json::from_str(&beat(SteadyMillis(5), unread_for)).unwrap() };
    assert_eq!(beat(None), serde_json::json!({ "now": 5, "set": 0 }));
    let unread = serde_json::json!({ "now": 5, "set": 0, "unread": 12_000 });
    assert_eq!(beat(Some(std::time::Duration::from_secs(12))), unread);
}

/// Returns the events of a stream whose rows appear, change, move and disappear, for trying the script in a browser.
pub(super) fn story() -> String {
    let mut stream = Stream::new(Fragments::default());
    let mut page = locks(healthy_rows());
    let mut story = Vec::new();
    let mut then = |what: &str, change: &dyn Fn(&mut ListPage<LockRow>)| {
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
        read_again(row, ago(0), 5_000);
    });
    then("gone", &|page| drop(page.rows.remove(4)));
    then("moved", &|page| page.rows.swap(1, 5));
    then("last", &|page| page.rows.push(Arc::new(held(b"at:the:end", 77, 10))));
    then("none", &|page| page.rows.clear());
    then("again", &|page| page.rows = locks(healthy_rows()).rows);
    serde_json::to_string(&story).unwrap()
}
