//! Tests of the numbers and durations on pages: what they count, since when, and whether they are lower bounds.

use std::sync::Arc;
use thin_vec::thin_vec;

use redisson::{Kind, Moment};

use super::fixtures::{
    ago, contended_lock, happened, held, history, history_at, holder, incident, leaked, list, lock,
    overview, owner, past, stuck,
};
use crate::model::contention::Contention;
use crate::model::types::{
    HolderView, LockId, LockView, PastHoldView, PastOfLock, RedView, Since, WaiterView,
};
use crate::query::LockRow;
use crate::query::contention::ContentionRow;
use crate::query::incidents::IncidentRow;
use crate::release::batch::Batch;
use crate::release::{Offer, Outcome};
use crate::views::{
    HistoryPage, IncidentPage, IncidentStep, LockPage, OverviewPage, PastWindow, history_page,
    incident_page, list_page, lock_page, overview_page, owner_page,
};

/// Creates leaked locks of one holder.
fn leaks(names: &[&str]) -> Vec<LockView> {
    names.iter().map(|name| LockView { id: held(name.as_bytes(), 1, 0).id, ..leaked() }).collect()
}

#[test]
fn the_row_of_an_incident_leads_to_its_page_and_says_what_a_filter_leaves_out() {
    let mut page = list::<IncidentRow>(leaks(&["a:1", "a:2", "a:3"]));
    let html = list_page(&page).unwrap();
    let link = "<a class=\"several\" href=\"/incident?deployment=main&#38;problem=leaked&#38;key=";
    assert!(html.contains(link), "{html}");
    assert!(html.contains("<strong>3 locks</strong> <bdi>a:*</bdi>"), "{html}");
    assert!(html.contains(">Acknowledge or release together</a>"), "{html}");

    page.rows[0].locks.truncate(2);
    let html = list_page(&page).unwrap();
    assert!(html.contains(link) && html.contains("<strong>2 of its 3 locks</strong>"), "{html}");
    assert!(html.contains(">Acknowledge or release all 3 locks together</a>"), "{html}");
    page.rows[0].locks.truncate(1);
    let html = list_page(&page).unwrap();
    assert!(html.contains(">Acknowledge or release all 3 locks together</a>"), "{html}");
}

#[test]
fn the_waiters_of_a_red_lock_count_once_in_the_form_that_releases_it() {
    let part = |deployment: &str| {
        let red = RedView {
            group: "red".into(),
            held: vec!["a".into(), "b".into(), "c".into()],
            unread: Vec::new(),
            of: 3,
        };
        let id = LockId { deployment: deployment.into(), ..leaked().id };
        LockView { id, waiting: 3, red: Some(Box::new(red)), ..leaked() }
    };
    let page = incident(["a", "b", "c"].map(part).into());
    let offer = |lock: &Arc<LockView>| Offer {
        id: lock.id.clone(),
        view: Arc::clone(lock),
        hash: None,
        ttl: None,
        dead: Vec::new(),
        asked: Moment::from_micros(0),
        read_at: ago(0),
        problem: None,
    };
    let offers: Vec<_> =
        page.incident.locks.iter().map(|lock| (Arc::new(offer(lock)), Vec::new())).collect();
    assert_eq!(offers.len(), 3);
    let batch = Arc::new(Batch { incident: page.incident.clone(), offers, left_out: Vec::new() });
    let step = IncidentStep::Ask {
        batch,
        seen: String::new(),
        more: 0,
        mistake: None,
        reason: String::new(),
    };
    let html = incident_page(&IncidentPage { step, ..page }).unwrap();
    assert!(html.contains("<dd>at least 3</dd>"), "{html}");
}

#[test]
fn a_lock_whose_queue_entries_were_removed_is_released_and_counts_once() {
    let [a, b, c] = ["a", "b", "c"].map(|name| held(name.as_bytes(), 1, 0).id);
    let outcomes = vec![
        (a.clone(), Outcome::Removed),
        (a, Outcome::Removed),
        (b, Outcome::Released),
        (c.clone(), Outcome::Removed),
        (c, Outcome::Changed),
    ];
    let shown = |outcomes: Vec<_>, of| {
        let step = IncidentStep::Done { outcomes, of };
        incident_page(&IncidentPage { step, ..incident(vec![leaked()]) }).unwrap()
    };
    let html = shown(outcomes.clone(), 5);
    assert!(html.contains("<p>1 changed, 2 released.</p>"), "{html}");
    assert!(html.contains("<bdi>c</bdi>") && !html.contains("<bdi>a</bdi>"), "{html}");
    let html = shown(outcomes[..3].to_vec(), 3);
    assert!(html.contains("class=\"note\" role=\"status\">"), "all of them are: {html}");
    let html = shown(outcomes[..1].to_vec(), 3);
    assert!(html.contains("<p>1 released, 2 releases still under way: "), "{html}");
}

/// Creates a lock with these readers, of which each has held it longer than the next.
fn read(name: &str, readers: &[u64]) -> LockView {
    let reader = |(n, since): (&u64, u64)| HolderView {
        mode: Kind::Read,
        ..holder(*n, 1, 90_000 - since * 1_000, true)
    };
    let holders = readers.iter().zip(0..).map(reader).collect();
    LockView { kind: Kind::Read, holders, waiting: 1, ..held(name.as_bytes(), 1, 0) }
}

#[test]
fn a_tree_names_the_waiter_above_and_counts_the_other_holders() {
    let (root, below) = (read("prices", &[1, 2, 3]), read("stock", &[4, 5]));
    let waiter = WaiterView {
        id: holder(5, 1, 0, true).id,
        since: Since { at: ago(9_000), exact: true },
        attempts: None,
        client: None,
    };
    let root = LockView { waiting: 4, waiters: thin_vec![waiter], ..root };
    let blockers = |exact| {
        let exactly = |lock: &LockView| LockView { waiters_exact: exact, ..lock.clone() };
        let html = overview_page(&overview(vec![exactly(&root), exactly(&below)])).unwrap();
        let (_, trees) = html.split_once("class=\"trees\"").expect("a tree");
        trees.split("</ul>").next().unwrap().to_owned()
    };
    let trees = blockers(false);
    assert!(trees.contains("thread 32") && trees.contains("and 2 more"), "{trees}");
    let (_, second) = trees.split_once("depth-1").expect("a second line");
    assert!(second.contains("thread 36") && second.contains("and 1 more"), "{second}");
    assert!(trees.contains(">≥ 5 wait behind the first lock."), "{trees}");
    assert!(blockers(true).contains(">5 wait behind the first lock."), "{}", blockers(true));

    let html = overview_page(&overview(vec![root.clone()])).unwrap();
    let (_, oldest) = html.split_once("id=\"overview-oldest\"").expect("a list");
    assert!(oldest.contains("and 2 more"), "{oldest}");
    let contention = list_page(&list::<ContentionRow>(vec![root])).unwrap();
    let row = contention.split("<tr id=").find(|row| row.contains("prices")).expect("a row");
    assert!(row.contains("and 2 more"), "{row}");
}

#[test]
fn counts_of_less_than_an_hour_say_since_when() {
    let page = overview(vec![contended_lock()]);
    let html = overview_page(&page).unwrap();
    assert!(html.contains("<dt>Ran out or lost in an hour</dt>"), "{html}");
    assert!(!html.contains("Counted since") && !html.contains("url(#hatch)"), "{html}");
    let from = ago(180_000);
    let contention = Arc::new(Contention { from, ..(*page.contention).clone() });
    let html = overview_page(&OverviewPage { contention, ..page }).unwrap();
    let since = format!("since <time data-minute=\"{}\">", from.to_wall().0);
    for heading in ["Acquired", "Wait p99", "Ran out or lost", "Counted"] {
        assert!(html.contains(&format!("{heading} {since}")), "{heading}: {html}");
    }
    assert!(html.contains("url(#hatch)") && html.contains("Hatched: before <time"), "{html}");
}

fn inexact(holds: Vec<PastHoldView>) -> Vec<PastHoldView> {
    let unseen =
        |hold: PastHoldView| PastHoldView { since: Since { exact: false, ..hold.since }, ..hold };
    holds.into_iter().map(unseen).collect()
}

#[test]
fn a_hold_whose_beginning_was_not_seen_has_a_lower_bound() {
    let mut page = owner(&stuck());
    page.past.iter_mut().for_each(|(_, hold)| hold.since.exact = false);
    let html = owner_page(&page).unwrap();
    assert!(html.contains("data-label=\"Held for\">≥ 1m 30s</td>"), "{html}");

    let window = PastWindow { holds: inexact(past().holds), ..past() };
    let html = lock_page(&LockPage { past: window, ..lock(stuck()) }).unwrap();
    assert!(html.contains(" or earlier for ≥ 1m 30s, handed over"), "{html}");
    assert!(html.contains("holds it since ") && html.contains("Z or earlier"), "{html}");
    assert!(!html.contains("class=\"durations\""), "nobody knows how long they were held");

    let mut known = contended_lock();
    known.history = PastOfLock { past: inexact(past().holds), ..PastOfLock::default() }.into();
    let html = lock_page(&lock(known.clone())).unwrap();
    assert!(html.contains("data-label=\"Held for\">≥ 1m 30s</td>"), "{html}");
    let html = list_page(&list::<LockRow>(vec![known])).unwrap();
    assert!(html.contains("the oldest first: ≥ 3m 20s"), "{html}");
}

#[test]
fn the_links_of_the_history_lead_to_what_it_shows() {
    let shown = |page: HistoryPage| history_page(&page).unwrap().replace("&#38;", "&");
    let first = shown(history(true, happened()));
    assert!(!first.contains("&order=desc&cursor="), "{first}");
    let cursor = Some("before-1-2-3".to_owned());
    let older = shown(HistoryPage { cursor, ..history(true, happened()) });
    for format in ["json", "csv"] {
        let link = format!("&order=desc&cursor=before-1-2-3&format={format}\"");
        assert!(older.contains(&link), "{older}");
    }
    let filter = "orders:* event:ended problem:any ended:released owner:x".to_owned();
    let then = shown(HistoryPage { filter, ..history_at() });
    let at = crate::views::rfc3339(ago(60_000));
    for format in ["json", "csv"] {
        let query = format!("at={at}&filter=orders:*%20owner:x&format={format}");
        assert!(then.contains(&format!("href=\"/api/v1/held?{query}\"")), "{then}");
    }
    assert!(owner_page(&owner(&stuck())).unwrap().contains("format=csv\">as CSV</a>"));
}
