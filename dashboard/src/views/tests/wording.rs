//! Tests of the words and colours of single facts on pages.

use redisson::Moment;
use redisson::shape::LockHash;
use thin_vec::thin_vec;

use super::fixtures::{
    ago, chrome, contended_lock, deadlocked, happened, held, history, holder, incident, leaked,
    list, lock, lock_at, overview, owner, stuck,
};
use crate::archive::{Gap, PastEvent};
use crate::clock::SteadyMillis;
use crate::model::types::{
    Acknowledgement, Certainty, ClientView, Companions, Counts, LockEvent, LockView, PastOfLock,
    ProblemKind, ProblemView, Reading, RedView, Source, State,
};
use crate::query::LockRow;
use crate::query::contention::ContentionRow;
use crate::query::fixtures::acknowledged;
use crate::query::incidents::IncidentRow;
use crate::query::owners::OwnerRow;
use crate::release::{Offer, Outcome};
use crate::sources::refusal::Refusal;
use crate::sources::view::Progress;
use crate::text;
use crate::views::{
    ErrorPage, EventRow, HistoryPage, LockPage, OverviewPage, ReleasePage, ReleaseStep, Subject,
    error_page, history_page, incident_page, list_page, lock_page, overview_page, owner_page, page,
    release_page,
};

/// Returns the class of the row that has this text.
fn class(html: &str, text: &str) -> String {
    let mut rows = html.split("<tr id=").skip(1);
    let row = rows.find(|row| row.contains(text)).expect("a row");
    row.split("class=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

#[test]
fn a_row_is_amber_only_where_nothing_is_surely_wrong() {
    let suspected = |mut lock: LockView| {
        lock.problems[0].certainty = Certainty::Suspected;
        lock
    };
    let owners = |lock| class(&list_page(&list::<OwnerRow>(vec![lock])).unwrap(), "");
    assert_eq!(owners(held(b"orders:1", 1, 4_000)), "row");
    assert_eq!(owners(leaked()), "row wrong");
    assert_eq!(owners(suspected(leaked())), "row wrong suspected");
    let waits = |mut lock: LockView| {
        lock.waiting = 1;
        let name = text::visible(lock.id.name.as_bytes());
        class(&list_page(&list::<ContentionRow>(vec![lock])).unwrap(), &name)
    };
    assert_eq!(waits(held(b"orders:1", 1, 4_000)), "row");
    assert_eq!(waits(leaked()), "row wrong");
    assert_eq!(waits(suspected(leaked())), "row wrong suspected");
}

#[test]
fn an_open_problem_comes_before_a_worse_one_that_is_acknowledged() {
    let known =
        ProblemView { acknowledged: acknowledged().acknowledged, ..leaked().problems.remove(0) };
    let both = thin_vec![known.clone(), stuck().problems.remove(0)];
    let view = LockView { problems: both, ..leaked() };
    let page = lock_page(&lock(view.clone())).unwrap();
    let (verdict, sections) = page.split_once("</section>").unwrap();
    assert!(verdict.contains("verdict certain") && verdict.contains("</span> stuck"), "{verdict}");
    let section = "<h2><span aria-hidden=\"true\">▲</span> leaked";
    assert!(sections.contains(section), "{sections}");
    let list_of = |view: &LockView| list_page(&list::<LockRow>(vec![view.clone()])).unwrap();
    let html = list_of(&view);
    assert!(class(&html, "title=\"stuck, leaked\"") == "row wrong", "{html}");

    let in_hand = LockView { problems: thin_vec![known], waiting: 1, ..leaked() };
    let html = list_of(&in_hand);
    assert!(class(&html, "acknowledged</span>") == "row", "{html}");
    assert_eq!(class(&list_page(&list::<OwnerRow>(vec![in_hand.clone()])).unwrap(), ""), "row");
    let name = text::visible(in_hand.id.name.as_bytes());
    let waits = list_page(&list::<ContentionRow>(vec![in_hand])).unwrap();
    assert_eq!(class(&waits, &name), "row");
}

#[test]
fn a_button_names_what_it_copies() {
    let view = leaked();
    let id = view.holders[0].id.clone();
    let page = lock_page(&lock(view)).unwrap();
    let button = format!("Copy <span class=\"unseen\">the holder id {id}</span></button>");
    assert!(page.contains(&button) && !page.contains("aria-label=\"Copy"), "{page}");
}

#[test]
fn a_cell_that_may_be_cut_off_has_all_of_it_as_its_title() {
    let mut lock = held(b"prices", 1, 4_000);
    lock.holders.push(holder(2, 3, 9_000, true));
    lock.holders[1].mode = redisson::Kind::Read;
    let list = list_page(&list::<LockRow>(vec![lock])).unwrap();
    assert!(list.contains("title=\"3f2abc1a · thread 33 ×3 read and 1 more\""), "{list}");
    let overview = overview_page(&overview(vec![leaked()])).unwrap();
    let heat = overview.split("class=\"heat-names\"").nth(1).unwrap().split("</a>").next().unwrap();
    assert!(heat.contains("title=\""), "{heat}");
}

#[test]
fn waiters_that_are_not_listed_are_counted() {
    let mut busy = contended_lock();
    busy.waiting = 1_002;
    let named = ClientView { name: Some("prices".into()), ..ClientView::default() };
    busy.waiters[0].client = Some(Box::new(named));
    let page = lock_page(&lock(busy.clone())).unwrap();
    assert!(page.contains("1,002 waiting"), "{page}");
    assert!(page.contains("prices ×1, 1,001 others"), "{page}");
    assert!(page.contains("and at least 1,000 more</p>"), "{page}");
    assert!(page.contains("; at least 1,002 waiters"), "{page}");
    assert!(page.contains("and at least 1,000 more waiting"), "{page}");
    let glance = overview_page(&overview(vec![busy.clone()])).unwrap();
    assert!(glance.contains(": prices ×1, 1,001 others"), "{glance}");
    let troubled = LockView { problems: leaked().problems, ..busy };
    for page in [
        overview_page(&overview(vec![troubled.clone()])).unwrap(),
        list_page(&list::<IncidentRow>(vec![troubled])).unwrap(),
    ] {
        assert!(page.contains("data-label=\"Waiting\">≥ 1,002</td>"), "{page}");
    }
    let all_named = lock_page(&lock(contended_lock())).unwrap();
    assert!(!all_named.contains("others") && !all_named.contains(" more</p>"), "{all_named}");
}

#[test]
fn a_holder_of_an_unknown_client_is_called_so_also_with_an_address() {
    let mut view = held(b"orders:1", 1, 4_000);
    view.holders[0].id = format!("{}:8b2d9f10-0c1d", view.holders[0].uuid()).into();
    let addr = ClientView { addr: Some("10.0.0.7:5000".into()), ..ClientView::default() };
    view.holders[0].client = Some(Box::new(addr));
    let page = lock_page(&lock(view)).unwrap();
    assert!(page.contains("10.0.0.7") && page.contains("unknown client"), "{page}");
    let mut view = held(b"orders:1", 1, 4_000);
    view.holders[0].id = "worker\u{202e}1".into();
    let page = lock_page(&lock(view)).unwrap();
    // Only the text to copy is the field as stored.
    assert_eq!(page.matches('\u{202e}').count(), 1, "{page}");
    assert!(page.contains("<bdi>worker\\u{202e}1</bdi>"), "{page}");
}

#[test]
fn each_server_of_a_red_lock_shows_on_how_many_it_is_held() {
    let red = RedView {
        group: "g".into(),
        held: vec!["a".into(), "b".into()],
        unread: Vec::new(),
        of: 3,
    };
    let lock = LockView { red: Some(Box::new(red)), ..leaked() };
    for page in [
        list_page(&list::<LockRow>(vec![lock.clone()])).unwrap(),
        list_page(&list::<IncidentRow>(vec![lock.clone()])).unwrap(),
        overview_page(&overview(vec![lock])).unwrap(),
    ] {
        assert!(page.contains(">red 2 of 3</span></th>"), "{page}");
    }
}

#[test]
fn the_head_of_a_page_marks_a_reader_that_is_gone() {
    let mut view = held(b"prices", 1, 4_000);
    view.holders[0].zombie = true;
    let page = lock_page(&lock(view)).unwrap();
    let head = page.split("</section>").next().unwrap();
    assert!(head.contains(">zombie</span>"), "{head}");
}

#[test]
fn an_incident_shows_the_time_of_its_evidence_and_its_other_holders() {
    let mut locks = vec![leaked(), leaked()];
    locks[1].id = held(b"orders:2", 1, 0).id;
    locks[1].holders[0].id = format!("{}1", locks[0].holders[0].id).into();
    for page in [
        list_page(&list::<IncidentRow>(locks.clone())).unwrap(),
        incident_page(&incident(locks.clone())).unwrap(),
    ] {
        assert!(page.contains("and 1 more"), "{page}");
        assert!(page.contains("evidence-line\"><span class=\"clock\">"), "{page}");
    }
    assert!(overview_page(&overview(locks)).unwrap().contains("and 1 more"));
}

#[test]
fn names_in_backticks_are_code_on_every_page_that_shows_evidence() {
    let mut malformed = leaked();
    malformed.problems[0].problem = ProblemKind::Malformed;
    let text = format!("unexpected field {}", text::code("<script>`"));
    malformed.problems[0].evidence.iter_mut().for_each(|it| it.text.clone_from(&text));
    malformed.events.push(SteadyMillis(1), Source::Poll, LockEvent::Acted("acted", text));
    let code = "unexpected field <code>&#60;script&#62;\\x60</code>";
    let event = EventRow::seen(&malformed.id, malformed.events.views().next().unwrap());
    for page in [
        lock_page(&lock(malformed.clone())).unwrap(),
        list_page(&list::<IncidentRow>(vec![malformed.clone()])).unwrap(),
        incident_page(&incident(vec![malformed.clone()])).unwrap(),
        history_page(&history(true, vec![event])).unwrap(),
    ] {
        assert!(page.contains(code), "{page}");
    }
    let evidence = malformed.problems[0].evidence.len();
    let page = lock_page(&lock(malformed)).unwrap();
    assert_eq!(page.matches(code).count(), evidence + 1, "all evidence, and an event: {page}");
}

#[test]
fn an_event_says_that_an_end_was_not_seen() {
    let event = |detail: &str| PastEvent {
        at: SteadyMillis(1),
        event: "ended".into(),
        lock: held(b"orders:1", 1, 4_000).id,
        subject: "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47".into(),
        detail: Some(detail.into()),
    };
    assert!(EventRow::past(&event("unseen")).text.ends_with("the end was not observed"));
    assert_eq!(EventRow::past(&event("released")).text, "released it");
}

#[test]
fn the_page_of_an_incident_draws_its_circle_of_waits() {
    let shown = |lock: LockView| incident_page(&incident(vec![lock])).unwrap();
    let circle = "<figure class=\"circle\">";
    assert!(!shown(leaked()).contains(circle));
    let page = shown(deadlocked());
    assert!(page.contains(circle) && page.contains("waits for"), "{page}");
    assert!(page.find(circle) < page.find("Acknowledge all"), "the picture comes first");
}

#[test]
fn a_lease_that_ran_out_is_called_intended_unless_it_is_the_problem() {
    let page = |lock_with: LockView| {
        let ran_out = vec![ago(9_000)];
        let history = PastOfLock { ran_out, ..PastOfLock::default() }.into();
        lock_page(&lock(LockView { history, ..lock_with })).unwrap()
    };
    let intended = "this lock may be meant to expire";
    assert!(page(held(b"orders:1", 1, 4_000)).contains(intended));
    let mut expired = leaked();
    expired.problems[0].problem = ProblemKind::Expired;
    let page = page(expired);
    assert!(page.contains("once in the last hour") && !page.contains(intended), "{page}");
}

#[test]
fn the_command_that_releases_a_lock_by_hand_names_a_holder() {
    let command = |page: LockPage| {
        let page = lock_page(&page).unwrap().replace("&#39;", "'");
        let (_, hint) = page.split_once("class=\"hint why-not\"").expect("a hint");
        let (command, _) = hint.split_once("</bdi></code>").expect("a command");
        command.split_once("<code id=\"lock-by-hand\"><bdi>").unwrap().1.to_owned()
    };
    let mut view = leaked();
    let id = view.holders[0].id.clone();
    let name = view.id.name.to_string();
    let of = |holder: &str| format!("lockctl unlock --force --holder '{holder}' '{name}'");
    assert_eq!(command(lock(view.clone())), of(&id));
    view.holders.push(holder(2, 1, 9_000, true));
    let chosen = format!("lockctl unlock --force --holder HOLDER '{name}'");
    assert_eq!(command(lock(view.clone())), chosen);
    view.holders[1].zombie = true;
    let gone = view.holders[1].id.clone();
    assert_eq!(command(lock(view.clone())), of(&gone));
    view.holders.clear();
    assert_eq!(command(lock(view)), format!("lockctl unlock --force --holder none '{name}'"));
    // The holder of a lock that is not known is filled in, since there may soon be another one.
    let absent = Subject::Absent { read_at: ago(20) };
    for subject in [absent, Subject::Unreadable("It cannot be read.".into())] {
        let page = LockPage { subject, ..lock(leaked()) };
        assert_eq!(command(page), chosen);
    }
}

#[test]
fn no_page_calls_free_what_was_not_read() {
    let mut then = lock_at(lock(stuck()), false);
    then.then.as_mut().unwrap().gap = None;
    let html = lock_page(&then).unwrap();
    assert!(html.contains("not known to be held") && !html.contains("○"), "{html}");

    let held_by = |state| {
        let free = LockView { state, holders: Vec::new(), ..contended_lock() };
        let html = list_page(&list::<ContentionRow>(vec![free])).unwrap();
        html.split_once("data-label=\"Held by\">")
            .unwrap()
            .1
            .split_once("</td>")
            .unwrap()
            .0
            .to_owned()
    };
    assert!(held_by(State::Free).contains("nobody"));
    assert!(held_by(State::Unknown).contains(">unknown<"), "{}", held_by(State::Unknown));

    let said = |first_scan| {
        let mut chrome = chrome("/");
        chrome.first_scan = first_scan;
        page::spoken(&chrome)
    };
    assert_eq!(said(None), "no lock has a problem");
    assert_eq!(said(Some(Progress { seen: 9, of: None })), "no lock has a problem so far");
}

#[test]
fn a_page_is_not_called_live_before_it_has_updated() {
    let mut page = incident(vec![leaked()]);
    let still = incident_page(&page).unwrap();
    for html in [&still, &overview_page(&overview(Vec::new())).unwrap()] {
        assert!(html.contains("As loaded</span>") && !html.contains("Live</span>"), "{html}");
    }
    let regions = page::regions(&chrome("/")).unwrap();
    let (_, health) = regions.iter().find(|(id, _)| *id == "health").expect("a region");
    assert!(health.contains("Live</span>"), "{health}");
    let absent = Subject::Absent { read_at: ago(20) };
    let html = lock_page(&LockPage { subject: absent, ..lock(leaked()) }).unwrap();
    assert!(html.contains("<span class=\"scripted\">This page updates itself"), "{html}");
    let again = "<a href=\"/incident?problem=x\">Load again</a>";
    assert!(still.contains(again), "{still}");
    page.chrome.first_scan = Some(Progress { seen: 9, of: None });
    assert!(incident_page(&page).unwrap().contains("First scan</span>"));
}

#[test]
fn a_mistaken_instant_keeps_the_form_as_typed_and_marks_its_field() {
    let page = HistoryPage {
        from_text: "bad".into(),
        at_text: "03:12".into(),
        filter: "orders:*".into(),
        mistake: Some(("from", "invalid time `bad`".into())),
        ..history(true, happened())
    };
    let html = history_page(&page).unwrap();
    let field = |name: &str| {
        let (_, field) = html.split_once(&format!("<input name=\"{name}\"")).expect("a field");
        field.split('>').next().unwrap().to_owned()
    };
    assert!(field("from").contains("value=\"bad\"") && field("from").contains("aria-invalid"));
    assert!(field("at").contains("value=\"03:12\"") && !field("at").contains("aria-invalid"));
    assert!(html.contains("value=\"orders:*\""));
    assert!(html.contains("From: invalid time <code>bad</code>"), "{html}");
    assert!(!html.contains("id=\"event-list\""), "there is nothing to list");
}

#[test]
fn the_mistakes_in_the_form_of_the_history_are_shown_together() {
    let page = HistoryPage {
        mistake: Some(("from", "invalid time `bad`".into())),
        filter_error: Some("`event:x` is not understood".into()),
        ..history(true, Vec::new())
    };
    let html = history_page(&page).unwrap();
    let (_, form) = html.split_once("<form class=\"ask\"").expect("a form");
    let form = form.split("</form>").next().unwrap();
    assert_eq!(form.matches("role=\"alert\"").count(), 2, "{form}");
}

#[test]
fn every_page_reports_a_cluster_that_is_only_partly_visible() {
    let mut page = overview(Vec::new());
    page.chrome.partly_visible = vec![("main".into(), "1 slot is served by no node".into())];
    let html = overview_page(&page).unwrap();
    assert!(html.contains("A cluster is only partly visible</strong> main: 1 slot"), "{html}");
    assert!(html.contains("Partial") && !html.contains(">Live<"), "{html}");
}

#[test]
fn every_page_reports_a_redis_that_refuses_writes() {
    let mut page = overview(Vec::new());
    let sentences = [
        "Redis is full and grants no locks</strong> 127.0.0.1:6379 (main) has used all of its maxmemory",
        "cannot save its data and refuses all writes</strong> 127.0.0.1:6379 (main) answers MISCONF:",
        "lacks replicas and refuses all writes</strong> 127.0.0.1:6379 (main) answers NOREPLICAS,",
    ];
    for (refusal, sentence) in Refusal::ALL.into_iter().zip(sentences) {
        page.chrome.servers[0].refusal = Some(refusal);
        let html = overview_page(&page).unwrap();
        assert!(html.contains(sentence), "{html}");
        assert!(html.contains("Partial") && !html.contains(">Live<"), "{html}");
    }
}

#[test]
fn a_history_that_cannot_be_written_says_so_and_lists_its_gaps() {
    let gap = |from| Gap { from: Some(ago(from)), to: Some(ago(from - 1_000)) };
    let page = HistoryPage {
        trouble: Some("The history cannot be written: the disk is full.".into()),
        gaps: [400_000, 300_000, 200_000, 100_000].map(gap).into(),
        ..history(true, Vec::new())
    };
    let html = history_page(&page).unwrap();
    assert!(html.contains("The history cannot be written: the disk is full."), "{html}");
    assert!(html.contains(" and in 1 more gap. Events of that time are missing."), "{html}");
    let gaps = vec![gap(200_000), gap(100_000)];
    let html = history_page(&HistoryPage { trouble: None, gaps, ..page }).unwrap();
    assert!(!html.contains("cannot be written"), "{html}");
    assert!(html.contains("UTC</span> and from <time"), "{html}");
}

#[test]
fn only_a_release_that_did_not_happen_is_marked() {
    for (outcome, mark) in [
        (Outcome::Released, ""),
        (Outcome::Removed, ""),
        (Outcome::Free, " warn"),
        (Outcome::NotQueued, " warn"),
        (Outcome::Changed, " warn"),
        (Outcome::Unread, " warn"),
        (Outcome::Limited, " warn"),
    ] {
        let words = outcome.explained();
        let (id, step) = (leaked().id.clone(), ReleaseStep::Done(outcome));
        let page = ReleasePage { chrome: chrome("/release?name=a"), id, step };
        let html = release_page(&page).unwrap();
        let note = format!("id=\"outcome\" class=\"note{mark}\" role=\"status\">");
        assert!(html.contains(&note), "{words}: {html}");
    }
}

#[test]
fn the_form_of_a_release_shows_the_certainty_the_acknowledgement_and_the_servers_of_a_red_lock() {
    let word = Acknowledgement {
        by: "anna".into(),
        reason: "long <import>".into(),
        at: ago(9_000),
        until: ago(0).plus(3_600_000),
    };
    let mut red = leaked();
    red.problems[0].certainty = Certainty::Suspected;
    red.problems[0].acknowledged = Some(word.into());
    let on = vec!["main".into(), "other".into()];
    red.red = Some(RedView { group: "red".into(), held: on, unread: Vec::new(), of: 3 }.into());
    let form = |lock: &LockView| {
        let (hash, companions) = (LockHash::default(), Companions::default());
        let reading = Reading::Lock { hash, ttl: None, companions };
        let at = (Moment::from_micros(0), ago(0));
        let offer = Offer::new(lock.clone().into(), reading, at).unwrap().into();
        let (seen, reason) = ("x".to_owned(), String::new());
        let step = ReleaseStep::Ask { offer, seen, mistake: None, target: None, reason };
        let chrome = chrome("/release?name=a");
        release_page(&ReleasePage { chrome, id: lock.id.clone(), step }).unwrap()
    };
    let html = form(&red);
    let words = "leaked: acknowledged</strong> by anna until <span class=\"clock\">";
    for part in [words, ": long &#60;import&#62;", "suspected</span>", "releases it on main only."]
    {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(html.contains("holds it on main, other (2 of 3)"), "{html}");
    assert!(html.contains("<a href=\"/incident/release?"), "{html}");
    let plain = form(&leaked());
    assert!(plain.contains("certain</span>"), "{plain}");
    assert!(!plain.contains("acknowledged") && !plain.contains("red lock"), "{plain}");
    // One of two locks of an incident is acknowledged.
    let mut second = leaked();
    second.id = held(b"second", 1, 0).id;
    let html = incident_page(&incident(vec![red, second])).unwrap();
    assert!(html.contains("acknowledged</strong> for 1 of 2 locks by anna"), "{html}");
}

#[test]
fn the_page_of_a_missing_incident_says_so_and_where_to_go_on() {
    let at = |address: &str, status| {
        let message = "this is over".to_owned();
        error_page(&ErrorPage { chrome: chrome(address), status, message }).unwrap()
    };
    let problems = "<a href=\"/problems\">Current problems</a>";
    for address in ["/incident?problem=leaked&key=x", "/incident/release?problem=leaked&key=x"] {
        let page = at(address, 404);
        assert!(page.contains("<h1>No such incident</h1>"), "{page}");
        assert!(page.contains("<p>This is over.</p>") && page.contains(problems), "{page}");
        assert!(page.contains("<a href=\"/history?filter=event:problem\">"), "{page}");
    }
    for (address, status) in [("/incidents", 404), ("/nothing", 404), ("/incident?x", 400)] {
        let page = at(address, status);
        assert!(!page.contains("No such incident") && !page.contains(problems), "{page}");
    }
}

#[test]
fn until_the_first_pass_is_complete_the_overview_claims_no_totals() {
    let mut page = overview(vec![leaked()]);
    page.chrome.counts = Counts { held: 7, ..Counts::default() };
    let held = |page: &OverviewPage, text: &str| {
        overview_page(page).unwrap().contains(&format!("<a href=\"/\">{text}</a>"))
    };
    assert!(held(&page, "7"));
    page.chrome.first_scan = Some(Progress { seen: 9, of: None });
    assert!(held(&page, "≥ 7"));
    page.chrome.counts = Counts::default();
    assert!(held(&page, "?"), "an unreachable Redis is not an empty one");
}

#[test]
fn the_title_of_an_earlier_state_has_the_whole_name_and_no_sign_of_its_own() {
    let page = lock_at(lock(held("● a".as_bytes(), 1, 90_000)), true);
    let html = lock_page(&page).unwrap();
    let (title, _) = html.split_once("</title>").unwrap();
    let at = page.then.unwrap().at.to_wall().to_string();
    let time = at.get(11..19).unwrap();
    assert!(title.ends_with(&format!(">{time} · ● a · Lockscope · production")), "{title}");
}

#[test]
fn the_locks_of_an_owner_are_found_whatever_its_id_is_and_only_in_its_deployment() {
    let mut page = owner(&stuck());
    page.owner.id = "foo bar:1".to_owned();
    let html = owner_page(&page).unwrap();
    assert!(html.contains("filter=owner:%22foo%20bar:1%22\""), "{html}");
    page.chrome.several_deployments = true;
    let html = owner_page(&page).unwrap();
    assert!(html.contains("filter=owner:%22foo%20bar:1%22%20deployment:main\""), "{html}");
}

#[test]
fn an_owner_without_a_name_is_called_the_same_on_its_page_as_in_lists() {
    let mut lock = stuck();
    lock.holders[0].id = "worker\\1\u{202e}".into();
    let shown = "worker\\\\1\\u{202e}";
    let page = owner_page(&owner(&lock)).unwrap();
    assert!(page.contains(&format!("Owner {shown} · ")), "{page}");
    let owners = list_page(&list::<OwnerRow>(vec![lock])).unwrap();
    assert!(owners.contains(&format!(">{shown}<")), "{owners}");
}
