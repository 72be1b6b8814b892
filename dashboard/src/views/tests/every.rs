//! Every possible page.

use std::sync::Arc;

use redisson::Kind;

use super::super::*;
use super::fixtures::*;
use crate::model::types::*;
use crate::query::LockRow;
use crate::query::contention::ContentionRow;
use crate::query::incidents::IncidentRow;
use crate::sources::view::{Down, SourceState};

/// Returns every possible page, with the name of a file for it.
pub(super) fn all() -> Vec<(String, String)> {
    let mut pages: Vec<(&str, String)> = Vec::new();
    let mut table = |name, page: ListPage<LockRow>| pages.push((name, list_page(&page).unwrap()));

    table("healthy", locks(healthy_rows()));
    table("contended", contended());
    table("hostile", hostile());
    let hundred =
        (1..=100).map(|n| held(format!("job:{n:04}:run").as_bytes(), n, n * 1_700)).collect();
    let mut many = locks(hundred);
    many.total = 10_482;
    many.skipped = 200;
    many.cursor = Some("abc".into());
    many.next = Some("def".into());
    many.prev = Some("ghi".into());
    many.filter = "job:*".into();
    many.sort = "age";
    many.chrome.counts.held = 10_482;
    many.chrome.counts.not_kept = 12_000;
    many.chrome.several_deployments = true;
    many.chrome.several_dbs = true;
    table("many", many);
    table("empty-none", locks(Vec::new()));
    let mut denied = locks(Vec::new());
    denied.chrome.sources[0] =
        source("scan", 50_000, SourceState::Denied, "the user lacks `scan`: grant `+scan`");
    table("empty-denied", denied);
    let mut no_match = locks(Vec::new());
    no_match.filter = "owner:nobody age:>5m".into();
    no_match.chrome.counts.held = 14;
    table("empty-filter", no_match);
    let mut bad = locks(Vec::new());
    bad.filter = "age:>5parsecs".into();
    bad.filter_error =
        Some("age: `>5parsecs` is no duration; write it as 500ms, 10s, 5m or 2h".into());
    table("empty-bad-filter", bad);
    let mut scanning = locks(Vec::new());
    scanning.chrome.first_scan = Some(Progress { seen: 431_200, of: Some(1_000_000) });
    table("empty-scanning", scanning);
    let mut partly = locks(Vec::new());
    partly.chrome.partly_visible = vec![("main".into(), "1 slot is served by no node.".into())];
    table("empty-partly", partly);
    let mut down = locks(Vec::new());
    down.chrome.first_scan = Some(Progress { seen: 0, of: None });
    let reason = "connection refused (os error 111)";
    down.chrome.servers[0].down = Some(Down { since: ago(47_000), reason: reason.into() });
    down.chrome.sources.iter_mut().for_each(|s| {
        s.state = SourceState::Down;
        s.last_success = None;
    });
    let mut lost = down.clone();
    lost.chrome.first_scan = None;
    table("empty-down", down);
    table("empty-lost", lost);
    let mut blind = contended();
    blind.chrome.servers[0].down =
        Some(Down { since: ago(47_000), reason: "no reply within 2 s".into() });
    blind.chrome.sources.iter_mut().for_each(|s| s.state = SourceState::Down);
    for row in &mut blind.rows {
        let row = Arc::make_mut(row);
        row.state = State::Unknown;
        row.observed = Observed::new(ago(48_000));
    }
    table("blind", blind);

    let mut one = |name, page: LockPage| pages.push((name, lock_page(&page).unwrap()));
    one("lock-stuck", lock(stuck()));
    one("lock-leaked", lock(leaked()));
    one("lock-overdue", LockPage { may_acknowledge: true, ..lock(overdue()) });
    one("lock-healthy", lock(healthy_rows().remove(4)));
    one("lock-readers", lock(healthy_rows().into_iter().find(|l| l.kind == Kind::Read).unwrap()));
    one("lock-fair", lock(healthy_rows().into_iter().find(|l| l.kind == Kind::Fair).unwrap()));
    one(
        "lock-free",
        lock(LockView { state: State::Free, holders: Vec::new(), ..held(b"orders:42", 1, 4_000) }),
    );
    one(
        "lock-long-expected",
        lock(LockView { expected_long: true, ..held(b"leader", 1, 9_000_000) }),
    );
    one("lock-unconfirmed", lock(LockView { confirmed: false, ..held(b"cache:x", 1, 4_000) }));
    let about = |subject| LockPage {
        chrome: chrome("/lock?name=x"),
        id: id(b"orders:9"),
        home: Some((9_186, None)),
        subject,
        then: None,
        release: ReleaseAccess::Off,
        may_acknowledge: false,
        may_watch: true,
        trace: None,
        past: past(),
    };
    one("lock-absent", about(Subject::Absent { read_at: ago(20) }));
    one("lock-no-lock", about(Subject::NoLock("it is a string.".into())));
    one(
        "lock-unreadable",
        about(Subject::Unreadable("Its server cannot be read: timed out.".into())),
    );
    let mut hostile_lock = |name, of: ListPage<LockRow>, n: usize| {
        let subject = (*of.rows[n]).clone();
        one(name, LockPage { chrome: of.chrome, ..lock(subject) });
    };
    hostile_lock("lock-script", hostile(), 0);
    hostile_lock("lock-attribute", hostile(), 1);
    hostile_lock("lock-long", hostile(), 4);
    hostile_lock("lock-emoji", hostile(), 5);
    hostile_lock("lock-bidi", hostile(), 6);
    hostile_lock("lock-control", hostile(), 7);
    hostile_lock("lock-bytes", hostile(), 8);

    pages.push(("lock-deadlock", lock_page(&lock(deadlocked())).unwrap()));
    pages.push(("lock-contended", lock_page(&lock(contended_lock())).unwrap()));
    let unkept = PastWindow { kept: false, holds: Vec::new(), ..past() };
    let bare = LockPage { past: unkept, ..lock(held(b"bare", 1, 900)) };
    pages.push(("lock-without-history", lock_page(&bare).unwrap()));
    let readers = lock(healthy_rows().into_iter().find(|l| l.kind == Kind::Read).unwrap());
    for (name, page) in [
        ("lock-then", lock_at(lock(stuck()), true)),
        ("lock-then-hostile", lock_at(LockPage { id: id(&hostile_names()[0]), ..readers }, true)),
        ("lock-then-nothing", lock_at(lock(stuck()), false)),
    ] {
        pages.push((name, lock_page(&page).unwrap()));
    }
    pages.push(("overview", overview_page(&overview(troubled())).unwrap()));
    pages.push(("overview-none", overview_page(&overview(Vec::new())).unwrap()));
    pages.push(("owners", list_page(&owners()).unwrap()));
    pages.push(("owners-by-service", list_page(&grouped_owners("service")).unwrap()));
    pages.push(("owners-by-host", list_page(&grouped_owners("host")).unwrap()));
    pages.push(("problems", list_page(&list::<IncidentRow>(troubled())).unwrap()));
    pages.push(("problems-none", list_page(&list::<IncidentRow>(Vec::new())).unwrap()));
    pages.push(("incident", incident_page(&incident(vec![leaked(), overdue()])).unwrap()));
    pages.push(("incident-deadlock", incident_page(&incident(vec![deadlocked()])).unwrap()));
    let mut odd: Vec<LockView> = hostile().rows.iter().map(|row| (**row).clone()).collect();
    odd.iter_mut().for_each(|lock| lock.problems = leaked().problems);
    pages.push(("incident-hostile", incident_page(&incident(odd)).unwrap()));
    pages.push(("contention", list_page(&list::<ContentionRow>(troubled())).unwrap()));
    pages.push(("contention-none", list_page(&list::<ContentionRow>(Vec::new())).unwrap()));
    pages.push(("owner", owner_page(&owner(&stuck())).unwrap()));
    pages.push(("owner-hostile", owner_page(&owner(&hostile().rows[1])).unwrap()));
    pages.push(("history", history_page(&history(true, happened())).unwrap()));
    pages.push(("history-at", history_page(&history_at()).unwrap()));
    pages.push(("history-remembered", history_page(&history(false, happened())).unwrap()));
    pages.push(("history-none", history_page(&history(true, Vec::new())).unwrap()));
    let wrong = HistoryPage {
        filter: "event:x".into(),
        filter_error: Some("`event:x` is not understood".into()),
        ..history(true, Vec::new())
    };
    pages.push(("history-bad-filter", history_page(&wrong).unwrap()));
    let mistake = Some(("from", "invalid time `\"><script>`".to_owned()));
    let wrong = HistoryPage { mistake, ..history(true, Vec::new()) };
    pages.push(("history-bad-instant", history_page(&wrong).unwrap()));

    let sources = |chrome: Chrome| {
        let limits = vec![
            "A lock of a name not seen before shows once a scan meets it, 2 s on average.".into(),
            "A lock held shorter than that may be seen by its release message only.".into(),
            "Who waits for a lock is not seen.".into(),
        ];
        let notices = vec![Notice {
            at: ago(400_000),
            deployment: "main".into(),
            text: "The server was restarted: 12 locks are gone.".into(),
        }];
        sources_page(&SourcesPage { chrome, limits, notices: notices.into() }).unwrap()
    };
    pages.push(("sources", sources(chrome("/sources"))));
    pages.push(("sources-hostile", sources(hostile().chrome)));
    for (name, status, message) in [
        ("error-400", 400, "the query has no `name` and no `name64`"),
        ("error-404", 404, "no such page or API path"),
        (
            "error-503",
            503,
            "stream limit reached (1000 streams): try again later or reload the page",
        ),
    ] {
        let page = ErrorPage { chrome: chrome("/x"), status, message: message.into() };
        pages.push((name, error_page(&page).unwrap()));
    }
    let denied = denied_page(false, "no [[access]] row matches anna").unwrap();
    pages.push(("denied", denied));
    pages.into_iter().map(|(name, html)| (name.to_owned(), html)).collect()
}
