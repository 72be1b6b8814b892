//! Tests of the page of sources.

use super::fixtures::{chrome, server, source};
use crate::sources::view::{ServerView, SourceState, SourceView};
use crate::views::{Chrome, SourcesPage, sources_page};

#[test]
fn sources_of_each_database_are_listed_under_their_server() {
    let on = |name, node: &str| SourceView {
        node: node.into(),
        ..source(name, 400, SourceState::On, "")
    };
    let page = |sources| {
        let other = ServerView { address: "127.0.0.1:63790".into(), ..server() };
        let servers = vec![server(), other];
        let chrome = Chrome { sources, servers, ..chrome("/sources") };
        sources_page(&SourcesPage { chrome, limits: Vec::new(), notices: [].into() }).unwrap()
    };
    let html = page(vec![
        on("scan", "127.0.0.1:6379/0"),
        on("scan", "127.0.0.1:6379/1"),
        on("channels", "127.0.0.1:6379"),
        on("poll", "127.0.0.1:63790"),
    ]);
    let (first, second) = html.split_once("127.0.0.1:63790").unwrap();
    for label in ["Scan, db 0", "Scan, db 1", "Channels"] {
        assert!(first.contains(&format!("<th scope=\"row\">{label}</th>")), "{label}: {html}");
    }
    assert!(second.contains("<th scope=\"row\">Poll</th>"), "{html}");
    assert_eq!(html.matches("<th scope=\"row\">").count(), 4, "each once: {html}");
    let elsewhere = SourceView { deployment: "other".into(), ..on("scan", "127.0.0.1:6379/0") };
    assert!(!page(vec![elsewhere]).contains("<th scope=\"row\">"), "no server of its own");
}

#[test]
fn a_source_that_is_off_shows_no_success_and_promises_none() {
    let off = SourceView { last_success: None, ..source("monitor", 0, SourceState::Off, "") };
    let chrome = Chrome { sources: vec![off], servers: vec![server()], ..chrome("/sources") };
    let html =
        sources_page(&SourcesPage { chrome, limits: Vec::new(), notices: [].into() }).unwrap();
    assert!(html.contains("<td data-label=\"Last success\">–</td>"), "{html}");
}
