//! Tests of the trace on a lock's page, with recordings of real Redisson clients.

use std::sync::Arc;

use redisson::LockName;
use redisson::monitor::{Decoder, ServerRole};

use super::ROOT;
use super::fixtures::{held, lock, source};
use crate::clock::SteadyMillis;
use crate::sources::trace::Traces;
use crate::sources::view::SourceState;
use crate::views::live::Picture;
use crate::views::trace::raw_lines;
use crate::views::{LockPage, lock_page};

/// Plays a recording of Redisson 4.7.0 into the trace of a lock. Returns the lock's page.
fn played(recording: &str, name: &str) -> LockPage {
    let mut page = lock(held(name.as_bytes(), 1, 1_000));
    let traces = Traces::default();
    let now = page.chrome.now;
    traces.start(&page.id, now).unwrap();
    let mut decoder = Decoder::new(ServerRole::Master);
    decoder.trace_lines(true);
    let mut events = Vec::new();
    let path = format!("{ROOT}/tests/data/monitor/4.7.0/{recording}.txt");
    for line in std::fs::read_to_string(path).unwrap().lines() {
        if !line.starts_with('#') {
            decoder.feed_line(line.as_bytes(), &mut events);
        }
    }
    decoder.flush(&mut events);
    let lines = decoder.take_lines();
    assert_eq!(lines.len(), events.len());
    for (event, lines) in events.iter().zip(&lines) {
        if event.lock == LockName::new(name.as_bytes()).unwrap() {
            traces.record(&page.id, event, lines, now);
        }
    }
    page.trace = traces.get(&page.id, now);
    page
}

/// Returns the labels of the steps.
fn labels(page: &LockPage) -> Vec<String> {
    let html = lock_page(page).unwrap();
    let cells = html.split("<td data-label=\"Step\"><span class=\"what ").skip(1);
    let label = |cell: &str| {
        let (_, rest) = cell.split_once("\">").unwrap();
        rest.split('<').next().unwrap().to_owned()
    };
    cells.map(label).collect()
}

#[test]
fn the_walk_through_of_a_wait_is_complete() {
    let page = played("wait", "orders:42");
    let steps = "acquire refused subscribe refused release acquire unsubscribe release";
    assert_eq!(labels(&page).join(" "), steps);
    let html = lock_page(&page).unwrap();
    for words in ["has it for 30s", "+0.153s", "+0.013s", "&#34;pttl&#34; &#34;orders:42&#34;"] {
        assert!(html.contains(words), "{words}");
    }
    // Both clients are on one host, so a subscription cannot be attributed to one of them.
    assert!(html.contains("127.0.0.1:48306"), "{html}");
    for (recording, name, step) in [
        ("renew", "orders:42", "renew"),
        ("force-unlock", "orders:42", "forced release"),
        ("fair-queue", "orders:42", "queue"),
        ("unlock-stranger", "orders:42", "release failed"),
    ] {
        let labels = labels(&played(recording, name));
        assert!(labels.iter().any(|label| label == step), "{recording}: {labels:?}");
    }
}

#[test]
fn a_stream_sends_new_steps_only() {
    let mut page = played("wait", "orders:42");
    let trace = page.trace.as_mut().unwrap();
    let all = std::mem::take(&mut trace.steps);
    trace.steps = all[..3].to_vec();
    let before = Picture::lock(&page, None).unwrap();
    page.trace.as_mut().unwrap().steps = all;
    let now = Picture::lock(&page, Some(&before)).unwrap();
    let patch: serde_json::Value =
        serde_json::from_str(&now.patch(Some(&before)).unwrap().unwrap()).unwrap();
    let rows: Vec<&String> = patch["rows"].as_object().unwrap().keys().collect();
    assert_eq!(rows, ["step-3", "step-4", "step-5", "step-6", "step-7"]);
    assert_eq!(patch["order"].as_array().unwrap().len(), 8);
}

#[test]
fn a_trace_shows_its_end_and_what_it_lacks() {
    let mut page = played("wait", "orders:42");
    page.chrome.sources.retain(|source| source.source != "monitor");
    let html = lock_page(&page).unwrap();
    assert!(html.contains("tracing</span> until") && html.contains("8 steps"), "{html}");
    let closed = source("monitor", 0, SourceState::Paused, "closed: `a` reason");
    page.chrome.sources.push(closed);
    let html = lock_page(&page).unwrap();
    assert!(html.contains("MONITOR is not open: closed: <code>a</code> reason"), "{html}");
    let trace = page.trace.as_mut().unwrap();
    (trace.until, trace.dropped) = (SteadyMillis(page.chrome.now.0 - 1), 7);
    let html = lock_page(&page).unwrap();
    assert!(html.contains("Ended ") && html.contains("the first 7 not shown"), "{html}");
    assert!(!html.contains("MONITOR is not open"), "{html}");
}

#[test]
fn lines_hide_nothing() {
    let raw: Arc<[u8]> = Arc::from("1.2 [0 unix:/\u{202e}\u{7}] \"a\\x00\"\n\n3 <b>".as_bytes());
    let shown = ["1.2 [0 unix:/\\u{202e}\\u{7}] \"a\\x00\"", "3 <b>"];
    assert_eq!(raw_lines(&raw), shown);
}
