//! Pages for tests: calm, troubled, hostile and empty.

use std::sync::Arc;
use thin_vec::thin_vec;

use redisson::{Kind, LockName};

use super::super::*;
use crate::archive::{HeldLock, ProblemThen};
use crate::model::contention::{Contention, GroupTally, LockTally, Minute, Tally};
use crate::model::owner_names::OwnerNames;
use crate::model::types::*;
use crate::query::contention::ContentionRow;
use crate::query::fixtures;
use crate::query::incidents::IncidentRow;
use crate::query::owners::OwnerRow;
use crate::query::{Filter, Listed, LockRow, Published, Query, Rows};
use crate::sources::view::{Down, SourceState};

pub(super) const NOW: u64 = 1_795_223_742_000;

pub(super) fn ago(millis: u64) -> SteadyMillis {
    SteadyMillis(NOW - millis)
}

pub(super) fn id(name: &[u8]) -> LockId {
    LockId { deployment: "main".into(), db: 0, name: LockName::new(name).unwrap() }
}

pub(in crate::views) fn holder(n: u64, count: i64, held_ms: u64, exact: bool) -> HolderView {
    let uuid = format!("{:08x}-52c1-4d0e-9a6f-0b7c3de1{:04x}", 0x3f2a_81c4_u64 ^ (n * 7919), n);
    HolderView {
        id: format!("{uuid}:{}", 31 + n).into(),
        mode: Kind::Lock,
        count,
        marker_ttl_ms: None,
        zombie: false,
        client: None,
        since: Since { at: ago(held_ms), exact },
    }
}

/// Creates a log of events, given as milliseconds ago, oldest first.
fn happenings<const N: usize>(of: [(u64, Source, &'static str, &str); N]) -> EventLog {
    let mut history = EventLog::default();
    for (millis, source, word, text) in of {
        history.push(ago(millis), source, LockEvent::Acted(word, text.into()));
    }
    history
}

/// Sets a lock's last reading, and its time to live then.
pub(super) fn read_again(lock: &mut LockView, at: SteadyMillis, ttl_ms: u64) {
    lock.observed = Observed::new(at);
    lock.expires_at = Some(SteadyMillis(at.0 + ttl_ms));
}

/// Creates a healthy hold that is `held_ms` old.
pub(in crate::views) fn held(name: &[u8], n: u64, held_ms: u64) -> LockView {
    let passed = held_ms % 10_000;
    LockView {
        id: id(name),
        holders: vec![holder(n, 1, held_ms, true)],
        expires_at: Some(SteadyMillis(ago(700).0 + 30_000 - passed.saturating_sub(700))),
        observed: Observed::new(ago(700)),
        lease_ms: Some(30_000),
        renewed: held_ms > 20_000,
        events: happenings([
            (held_ms + 1_200, Source::Channels, "released", "A release was told on its channel."),
            (held_ms, Source::Poll, "taken", "Thread 31 took it; the lease is 30 s."),
        ]),
        sources: [Source::Scan, Source::Poll, Source::Channels].into_iter().collect(),
        group: "orders:*".into(),
        ..fixtures::lock("x")
    }
}

pub(super) fn stuck() -> LockView {
    LockView {
        renewed: true,
        holders: vec![holder(9, 2, 912_000, false)],
        problems: thin_vec![ProblemView {
            problem: ProblemKind::Stuck,
            certainty: Certainty::Certain,
            since: ago(612_000),
            evidence: vec![
                Evidence {
                    at: ago(912_000),
                    source: "scan",
                    text: "Already held by the same holder when first looked at.".into(),
                },
                Evidence {
                    at: ago(4_000),
                    source: "poll",
                    text: "Renewed again to 30 s by the same holder, 91 times so far.".into(),
                },
            ],
            advice:
                "Look at what thread 40 of client 3f2b97bb is doing: on its host run `jcmd <pid> \
                     Thread.print` and find the thread with number 40."
                    .into(),
            cycle: Arc::default(),
            times: 1,
            acknowledged: None,
        }],
        ..held(b"billing:invoice-run:2026-11", 9, 912_000)
    }
}

pub(super) fn leaked() -> LockView {
    LockView {
        expires_at: None,
        lease_ms: None,
        renewed: false,
        problems: thin_vec![ProblemView {
            problem: ProblemKind::Leaked,
            certainty: Certainty::Certain,
            since: ago(83_000),
            evidence: vec![Evidence {
                at: ago(83_000),
                source: "poll",
                text: "Two reads 5 s apart found no TTL.".into(),
            }],
            advice:
                "Find out whether its holder still works; if it is gone, release the lock by hand."
                    .into(),
            cycle: Arc::default(),
            times: 1,
            acknowledged: None,
        }],
        ..held(b"import:customers", 12, 7_400_000)
    }
}

pub(super) fn overdue() -> LockView {
    let mut lock = LockView { renewed: true, ..held(b"session-sweep", 13, 24_000) };
    let problem = ProblemKind::RenewalOverdue;
    lock.problems =
        thin_vec![ProblemView { problem, since: ago(2_000), ..leaked().problems.remove(0) }];
    lock
}

pub(super) fn source(name: &'static str, age: u64, state: SourceState, detail: &str) -> SourceView {
    SourceView {
        deployment: "main".into(),
        node: "127.0.0.1:6379".into(),
        source: name,
        state,
        detail: detail.into(),
        remedy: None,
        last_success: Some(ago(age)),
        lag_ms: None,
    }
}

pub(super) fn server() -> ServerView {
    ServerView {
        deployment: "main".into(),
        address: "127.0.0.1:6379".into(),
        master: None,
        replica: None,
        version: Some("7.0.15".into()),
        down: None,
        evicts: None,
        refusal: None,
    }
}

pub(super) fn chrome(address: &str) -> Chrome {
    Chrome {
        names: OwnerNames::default(),
        now: SteadyMillis(NOW),
        version: "0.1.0",
        environment: Some("production".into()),
        note: None,
        address: address.into(),
        sources: vec![
            source("scan", 12_000, SourceState::On, "A pass over 41,208 keys takes 1.9 s."),
            source("channels", 400, SourceState::On, ""),
            source("poll", 300, SourceState::On, "14 locks, each read at least every 5 s."),
        ],
        servers: vec![server()],
        partly_visible: Vec::new(),
        first_scan: None,
        counts: Counts { held: 14, ..Counts::default() },
        several_deployments: false,
        several_dbs: false,
        visitor: None,
        csrf: Some("a-word-of-ours".into()),
    }
}

pub(in crate::views) fn locks(rows: Vec<LockView>) -> ListPage<LockRow> {
    let mut chrome = chrome("/");
    let total = rows.len();
    chrome.counts.held = total;
    chrome.counts.with_problems = rows.iter().filter(|row| !row.problems.is_empty()).count();
    ListPage {
        chrome,
        filter: String::new(),
        filter_error: None,
        by: "",
        sort: "problems",
        order: Order::Descending,
        rows: rows.into_iter().map(Arc::new).collect(),
        total,
        skipped: 0,
        cursor: None,
        next: None,
        prev: None,
        facets: Some(facets()),
        cleared: Arc::default(),
        contention: None,
    }
}

pub(super) fn lock(subject: LockView) -> LockPage {
    LockPage {
        chrome: chrome("/lock?name=x"),
        id: subject.id.clone(),
        home: None,
        subject: Subject::Known(Arc::new(subject)),
        then: None,
        release: ReleaseAccess::Off,
        may_acknowledge: false,
        may_watch: true,
        trace: None,
        past: past(),
    }
}

/// Creates a lock's page at an instant in the past, with holders and problems, or with nothing known.
pub(super) fn lock_at(page: LockPage, known: bool) -> LockPage {
    let at = ago(150_000);
    let then = LockThen {
        at,
        holders: if known { past().holds } else { Vec::new() },
        problems: if known { vec![problem_then()] } else { Vec::new() },
        events: if known { happened() } else { Vec::new() },
        before: known.then(|| ago(200_000)),
        after: known.then(|| ago(90_000)),
        gap: (!known).then_some(Gap { from: None, to: None }),
    };
    LockPage { then: Some(then), past: PastWindow { at: Some(at), ..past() }, ..page }
}

fn problem_then() -> ProblemThen {
    ProblemThen {
        problem: "leaked".into(),
        certainty: "certain".into(),
        since: ago(170_000),
        to: None,
    }
}

fn past_hold(n: u64, began_ms: u64, lasted_ms: u64, ended: &'static str) -> PastHoldView {
    PastHoldView {
        id: holder(n, 1, 0, true).id.into(),
        since: Since { at: ago(began_ms), exact: true },
        to: Some(ago(began_ms - lasted_ms)),
        ended: Some(PastEnding::parse(ended)),
    }
}

/// Creates the past of a lock.
pub(super) fn past() -> PastWindow {
    let holds = vec![
        past_hold(3, 100_000, 4_000, "released"),
        past_hold(4, 200_000, 30_000, "ran_out"),
        past_hold(3, 300_000, 90_000, "handed_over"),
        past_hold(5, 800_000, 200_000, "vanished"),
    ];
    PastWindow { millis: 900_000, holds, kept: true, unreadable: false, chosen: None, at: None }
}

/// Creates a lock in a deadlock of two waiters, over locks with hostile names.
pub(super) fn deadlocked() -> LockView {
    let wait = |name: &[u8], from: u64, to: u64| WaitView {
        waiter: holder(from, 1, 0, true).id.into(),
        lock: id(name),
        holder: holder(to, 1, 0, true).id.into(),
    };
    let names = hostile_names();
    let problem = ProblemView {
        problem: ProblemKind::Deadlock,
        cycle: [wait(&names[0], 1, 2), wait(&names[1], 2, 1)].into(),
        ..stuck().problems.remove(0)
    };
    LockView { problems: thin_vec![problem], ..held(&names[0], 2, 40_000) }
}

pub(super) fn contended_lock() -> LockView {
    let waiter = |n: u64, ms: u64| WaiterView {
        id: holder(n, 1, 0, true).id,
        since: Since { at: ago(ms), exact: n.is_multiple_of(2) },
        attempts: Some(3),
        client: None,
    };
    LockView {
        waiting: 2,
        waiters: thin_vec![waiter(30, 9_000), waiter(31, 4_000)],
        history: PastOfLock {
            past: past().holds,
            longest_hold: Some(past_hold(3, 300_000, 90_000, "handed_over")),
            ..PastOfLock::default()
        }
        .into(),
        ..held(b"hot:<b>", 2, 40_000)
    }
}

fn published(locks: Vec<LockView>) -> Published {
    Published { contention: Arc::new(last_hour()), ..fixtures::published(locks) }
}

fn rows<T: Listed>(published: &Published) -> Rows<T> {
    let order = T::default_order(T::SORTS[0]);
    let query = Query::<T>::new(("", Filter::default()), (T::SORTS[0], order), None, 100).unwrap();
    query.rows(published, SteadyMillis(NOW))
}

/// Creates counts of locks whose owners have hostile names.
pub(super) fn facets() -> Arc<Facets> {
    let names = hostile_names();
    let hostile = |i: usize| Arc::from(String::from_utf8_lossy(&names[i]));
    let mut facets = Facets { views: [14, 3, 2, 1, 1, 0, 4], ..Facets::default() };
    facets.top[0] = vec![("orders:".into(), 9), (hostile(0), 2)];
    facets.top[1] = vec![(hostile(1), 7), ("payments".into(), 1)];
    facets.top[2] = vec![(hostile(0), 8)];
    facets.more[2] = 1_234;
    facets.top[3] = vec![("leaked".into(), 3), ("renewal_overdue".into(), 1)];
    facets.top[4] = vec![("lock".into(), 12), ("fair".into(), 2)];
    Arc::new(facets)
}

pub(super) fn list<T: ListView>(locks: Vec<LockView>) -> ListPage<T> {
    let published = published(locks);
    let rows = rows::<T>(&published);
    ListPage {
        chrome: chrome(&format!("/{}", T::NAME)),
        filter: String::new(),
        filter_error: None,
        by: T::GROUPINGS[0],
        sort: T::SORTS[0],
        order: T::default_order(T::SORTS[0]),
        rows: rows.rows,
        total: rows.total,
        skipped: rows.skipped,
        cursor: None,
        next: rows.next,
        prev: rows.prev,
        facets: None,
        cleared: Arc::default(),
        contention: T::GROUPS.then(|| Arc::clone(&published.contention)),
    }
}

fn last_hour() -> Contention {
    let tally = Tally { acquisitions: 1_204, waiting_ms: 90_000, ..Tally::default() };
    let lock = contended_lock().id;
    let (deployment, lock_group) = (Arc::clone(&lock.deployment), Arc::from("hot:<b>*"));
    let minute = |column, waiting_ms, problems| Minute { column, waiting_ms, problems };
    let minutes = vec![minute(30, 60_000, 0), minute(31, 30_000, 1)];
    Contention {
        from: ago(3_600_000),
        to: ago(0),
        minute: ago(NOW % 60_000),
        groups: vec![GroupTally { deployment, lock_group, tally: tally.clone(), minutes }],
        locks: vec![LockTally { lock, lock_group: "hot:<b>*".into(), tally }],
        locks_left_out: 3,
    }
}

pub(super) fn troubled() -> Vec<LockView> {
    let hostile = hostile().rows.into_iter().map(|lock| (*lock).clone());
    [stuck(), leaked(), overdue(), deadlocked(), contended_lock()]
        .into_iter()
        .chain(hostile)
        .collect()
}

pub(super) fn overview(locks: Vec<LockView>) -> OverviewPage {
    let published = published(locks);
    OverviewPage {
        chrome: chrome("/overview"),
        incidents: rows(&published),
        blockers: rows(&published),
        oldest: published.snapshot.locks().filter(|lock| lock.is_held()).cloned().collect(),
        contention: Arc::clone(&published.contention),
        summary: Summary { waiting: 4, waiters_exact: false, owners: 3, hosts: 1 },
    }
}

pub(super) fn owners() -> ListPage<OwnerRow> {
    list(troubled())
}

/// Creates owners by service or by host, one of them hostile, one gone and one unknown.
pub(in crate::views) fn grouped_owners(by: &'static str) -> ListPage<OwnerRow> {
    let mut locks = troubled();
    let name = String::from_utf8_lossy(&hostile_names()[0]).into_owned();
    let hostile =
        ClientView { name: Some(name.clone()), host: Some(name.into()), ..ClientView::default() };
    let gone = ClientView {
        name: Some("payments-6f7d9c5b44-x2k9p".into()),
        host: Some("web-7".into()),
        alive: Some(false),
        unverified_because: Some("its agent signs nothing"),
        ..ClientView::default()
    };
    locks[0].holders[0].client = Some(Box::new(hostile));
    locks[1].holders[0].client = Some(Box::new(gone));
    let rows = OwnerRow::all(&published(locks), &Filter::default(), SteadyMillis(NOW));
    ListPage { by, rows: OwnerRow::joined(&rows, by), ..owners() }
}

/// Returns every row of the lists other than that of locks.
pub(super) fn list_rows() -> Vec<String> {
    fn html<T: ListView>(page: &ListPage<T>) -> Vec<String> {
        let rows = &page.rows;
        assert!(!rows.is_empty());
        rows.iter().map(|row| row.html(&page.chrome, page.chrome.now).unwrap()).collect()
    }
    let problems: ListPage<IncidentRow> = list(troubled());
    let contention: ListPage<ContentionRow> = list(troubled());
    [html(&owners()), html(&problems), html(&contention)].concat()
}

/// Creates the page of the first incident of these locks.
pub(super) fn incident(locks: Vec<LockView>) -> IncidentPage {
    IncidentPage {
        chrome: chrome("/incident?problem=x"),
        incident: list::<IncidentRow>(locks).rows.remove(0),
        may_acknowledge: true,
        may_release: true,
        step: IncidentStep::Show,
    }
}

pub(super) fn owner(of: &LockView) -> OwnerPage {
    let deployment = &of.id.deployment;
    let mut owner = OwnerRow::new(deployment, client_of(&of.holders[0].id));
    owner.add(of, 0);
    let lock = Arc::new(of.clone());
    OwnerPage {
        chrome: chrome("/owner?id=x"),
        owner,
        locks: vec![Arc::clone(&lock)],
        total: 1,
        waits: vec![(Arc::new(contended_lock()), 0)],
        past: past().holds.into_iter().map(|hold| (Arc::clone(&lock), hold)).collect(),
    }
}

pub(in crate::views) fn history(kept: bool, rows: Vec<EventRow>) -> HistoryPage {
    let (from, to) = (ago(3_600_000), ago(0));
    let mut density = Density::new(from, to);
    for row in &rows {
        density.add(row.at, &row.event);
    }
    HistoryPage {
        chrome: chrome("/history"),
        from_text: String::new(),
        to_text: String::new(),
        at_text: "\"><script>".into(),
        filter: "\"><script>".into(),
        filter_error: None,
        mistake: None,
        types: Vec::new(),
        from,
        to,
        lock: kept.then(|| id(&hostile_names()[0])),
        cursor: None,
        older: (!rows.is_empty()).then(|| "before-1-2-3".into()),
        newer: None,
        reached: None,
        rows,
        density,
        gaps: vec![Gap { from: None, to: Some(ago(90_000)) }],
        kept,
        trouble: None,
        then: None,
    }
}

/// Creates a history with a time cursor, among locks with hostile names.
pub(super) fn history_at() -> HistoryPage {
    let problem = problem_then();
    let holds = hostile_names().into_iter().zip(past().holds).map(|(name, hold)| HeldLock {
        lock: id(&name),
        hold,
        problems: vec![problem.clone()],
    });
    let holds: Vec<HeldLock> = holds.collect();
    let (at, total, gap) = (ago(60_000), holds.len() + 7, Gap { from: None, to: None });
    HistoryPage {
        then: Some(HeldThen { at, holds, total, complete: false, gap: Some(gap) }),
        newer: Some("after-1-2-3".into()),
        reached: Some(ago(100_000)),
        ..history(true, happened())
    }
}

pub(in crate::views) fn happened() -> Vec<EventRow> {
    let locks = troubled();
    let seen = |lock: &LockView| -> Vec<EventRow> {
        lock.events.views().map(|event| EventRow::seen(&lock.id, event)).collect()
    };
    let overdue = |event, detail: &str| {
        EventRow::past(&crate::archive::PastEvent {
            at: ago(6),
            event: String::from(event),
            lock: overdue().id,
            subject: "renewal_overdue".into(),
            detail: Some(detail.into()),
        })
    };
    let told = |event, detail: Option<&str>| {
        EventRow::past(&crate::archive::PastEvent {
            at: ago(5),
            event: String::from(event),
            lock: locks[4].id.clone(),
            subject: "<script>".into(),
            detail: detail.map(Into::into),
        })
    };
    let told = [
        told("ended", Some("ran_out")),
        told("problem", Some("certain")),
        told("other", None),
        overdue("problem", "certain"),
        overdue("acknowledged", "done: anna from ::1, renewal_overdue; why: known"),
    ];
    told.into_iter().chain(locks.iter().flat_map(seen)).collect()
}

pub(super) fn healthy_rows() -> Vec<LockView> {
    let names = [
        "orders:42",
        "orders:43",
        "orders:1077",
        "cart:checkout:9f3e",
        "billing:ledger",
        "report:daily",
        "search:reindex",
        "tenant:7:sync",
        "tenant:12:sync",
        "tenant:31:sync",
        "mail:digest",
        "cleanup:tmp",
    ];
    let mut rows: Vec<LockView> = names
        .iter()
        .zip(1..)
        .map(|(name, n)| {
            held(
                name.as_bytes(),
                n,
                [400, 3_100, 18_000, 52_000, 131_000][usize::try_from(n).unwrap() % 5] * n,
            )
        })
        .collect();
    rows[4].holders[0].count = 3;
    rows[6].kind = Kind::Fair;
    rows[6].queued = true;
    rows[7].kind = Kind::Read;
    rows[7].holders =
        (0..4).map(|n| HolderView { mode: Kind::Read, ..holder(20 + n, 1, 9_000, true) }).collect();
    rows[8].lease_ms = None;
    rows.sort_by_key(|row| row.holders[0].since.at);
    rows
}

pub(super) fn contended() -> ListPage<LockRow> {
    let mut rows = vec![leaked(), stuck()];
    let suspected = &mut rows[1].problems[0];
    suspected.certainty = Certainty::Certain;
    rows.push(LockView {
        problems: thin_vec![ProblemView {
            certainty: Certainty::Suspected,
            since: ago(41_000),
            ..stuck().problems.remove(0)
        }],
        ..held(b"warehouse:sync:{eu-west}", 17, 341_000)
    });
    rows.extend(healthy_rows());
    read_again(&mut rows[5], ago(34_000), 29_000);
    read_again(&mut rows[6], ago(2_000), 200);
    let mut page = locks(rows);
    page.chrome.counts.unconfirmed = 3;
    page.chrome.sources[0] = source(
        "scan",
        190_000,
        SourceState::Behind,
        "The last pass took 190 s, since Redis answers slowly.",
    );
    page
}

/// Returns names that are meant to do harm, or are just odd.
pub(super) fn hostile_names() -> Vec<Vec<u8>> {
    vec![
        b"<script>alert(1)</script>".to_vec(),
        br#""onmouseover="alert(1)" style="x"#.to_vec(),
        b"'><img src=x onerror=alert(1)>".to_vec(),
        b"{{ 7*7 }}${7*7}".to_vec(),
        "long:".bytes().chain(std::iter::repeat_n(b'x', 295)).collect(),
        "🔒 löck – 鎖 قفل".as_bytes().to_vec(),
        "user\u{202e}nimda\u{202c}\u{200b}".as_bytes().to_vec(),
        b"line\r\nbreak\ttab\0zero".to_vec(),
        b"\xff\xfe\xc3(bytes".to_vec(),
        b"a`id`$(id);'\\".to_vec(),
        b" ".to_vec(),
        "z\u{300}\u{301}\u{302}\u{303}\u{304}\u{305}\u{306}\u{307}\u{308}\u{309}algo"
            .as_bytes()
            .to_vec(),
    ]
}

pub(super) fn hostile() -> ListPage<LockRow> {
    let text = "<script>alert(2)</script>";
    let rows = hostile_names().into_iter().zip(1..).map(|(name, n)| {
        let mut lock = LockView { problems: stuck().problems, ..held(&name, n, 1_000 * n) };
        if n > 2 {
            lock.problems.clear();
        }
        for problem in &mut lock.problems {
            problem.advice = text.into();
            problem.evidence[0].text = text.into();
        }
        lock.events = happenings([(5, Source::Poll, "taken", text)]);
        lock
    });
    let mut page = locks(rows.collect());
    page.filter = format!("\">{text}");
    page.filter_error = Some(format!("unknown term {text}"));
    page.chrome.environment = Some(text.into());
    page.chrome.address = format!("/?filter={text}");
    page.chrome.servers[0].evicts = Some(text.into());
    page.chrome.partly_visible = vec![(text.into(), text.into())];
    page.chrome.servers[0].down = Some(Down { since: ago(9_000), reason: text.into() });
    page.chrome.sources[0].detail = text.into();
    page
}
