use redisson::shape::LockHash;

use super::super::finding::fixtures::server;
use super::*;
use crate::model::types::{Companions, QueueEntry};

const CLIENT: &str = "285475da-9152-4c83-822a-67ee2f116a79";
/// The server's clock, in milliseconds.
const CLOCK: u64 = 1_795_219_200_000;

fn name(text: &str) -> LockName {
    LockName::new(text.as_bytes()).unwrap()
}

fn holder(thread: i64) -> HolderId {
    HolderId::new(ClientId::parse(CLIENT.as_bytes()).unwrap(), thread)
}

fn lock(fields: &[(&str, &str)], ttl: Option<u64>) -> Lock {
    Lock {
        hash: LockHash::parse(fields.iter().copied()),
        ttl: ttl.map(Duration::from_secs),
        companions: Companions::default(),
        idle: None,
        bytes: None,
        subscribers: 0,
    }
}

fn plain(thread: i64, ttl: Option<u64>) -> Lock {
    lock(&[(&holder(thread).to_string(), "1")], ttl)
}

fn subject() -> Subject {
    server().with_db(3)
}

fn queue(deadline: Option<u64>) -> Queue {
    let entry = QueueEntry { id: holder(9), deadline };
    Queue { len: 1, front: vec![entry], deadlines: 1, passed: 1 }
}

/// Returns a survey of one lock.
fn survey(of: &str, lock: Lock) -> Survey {
    let mut survey = Survey { clock: CLOCK, ..Survey::default() };
    survey.locks.insert(name(of), lock);
    survey
}

/// Returns the findings after two readings with the same result.
fn findings(survey: &Survey, holders: &Holders) -> Vec<Finding> {
    let suspects = suspects(survey, CLOCK).into_iter().collect();
    judge(survey, &suspects, holders, &subject())
}

fn ids(survey: &Survey, holders: &Holders) -> Vec<(FindingId, Severity, Option<Certainty>)> {
    let found = findings(survey, holders).into_iter();
    found.map(|found| (found.id, found.severity, found.certainty)).collect()
}

const CERTAIN: (FindingId, Severity, Option<Certainty>) =
    (FindingId::Leaked, Severity::Problem, Some(Certainty::Certain));
const SUSPECTED: (FindingId, Severity, Option<Certainty>) =
    (FindingId::Leaked, Severity::Warning, Some(Certainty::Suspected));

#[test]
fn a_lock_with_a_ttl_is_sound() {
    for ttl in [1, 29, 86_400] {
        assert_eq!(ids(&survey("a", plain(52, Some(ttl))), &Holders::default()), []);
    }
}

#[test]
fn a_hash_without_a_ttl_is_a_certain_leak_once_anything_proves_it_a_lock() {
    let bare = plain(52, None);
    assert_eq!(ids(&survey("a", bare.clone()), &Holders::default()), [SUSPECTED]);
    let queue = Some(queue(Some(CLOCK + 1)));
    let proofs = [
        Companions { queue, ..Companions::default() },
        Companions { token: Token::Value(7), ..Companions::default() },
        Companions { markers: vec![(holder(52), Marker::Persistent)], ..Companions::default() },
    ];
    for companions in proofs {
        let proved = Lock { companions, ..bare.clone() };
        assert_eq!(ids(&survey("a", proved), &Holders::default()), [CERTAIN]);
    }
    let awaited = Lock { subscribers: 2, ..bare.clone() };
    let found = findings(&survey("a", awaited), &Holders::default());
    assert!(found[0].evidence.contains("2 connections wait for its release"), "{found:?}");
    let mut active = survey("a", bare.clone());
    active.locks.insert(name("b"), plain(53, Some(20)));
    let mut holders = Holders::default();
    holders.count_active(&active);
    assert_eq!(ids(&active, &holders), [CERTAIN]);
    let published = Standing::Published(Some("process 7 (java) on the host web-1".into()));
    let holders = Holders { standing: [(holder(52), published)].into(), ..Holders::default() };
    let found = findings(&survey("a", bare), &holders);
    assert_eq!(found[0].certainty, Some(Certainty::Certain));
    assert!(found[0].evidence.contains("its agent reports process 7 (java) on the host web-1"));
}

#[test]
fn a_long_lease_of_a_gone_agent_is_a_suspected_leak() {
    let grant = 1_800_000_000 << 30;
    let standing =
        |standing| Holders { standing: [(holder(grant), standing)].into(), ..Holders::default() };
    let long = survey("a", plain(grant, Some(3_600)));
    assert_eq!(ids(&long, &standing(Standing::AgentGone)), [SUSPECTED]);
    assert_eq!(ids(&long, &standing(Standing::Unpublished)), [SUSPECTED]);
    assert_eq!(ids(&long, &standing(Standing::Published(None))), []);
    assert_eq!(ids(&survey("a", plain(grant, Some(30))), &standing(Standing::AgentGone)), []);
    let thread =
        Holders { standing: [(holder(5), Standing::AgentGone)].into(), ..Holders::default() };
    assert_eq!(ids(&survey("a", plain(5, Some(3_600))), &thread), [], "of a Redisson client");
}

#[test]
fn malformed_locks_are_problems_and_lookalikes_notes() {
    let fields = [(&*holder(1).to_string(), "0")];
    let malformed = (FindingId::Malformed, Severity::Problem, Some(Certainty::Certain));
    assert_eq!(ids(&survey("a", lock(&fields, Some(20))), &Holders::default()), [malformed]);
    let alike = (FindingId::LookAlike, Severity::Note, None);
    assert_eq!(ids(&survey("a", lock(&fields, None)), &Holders::default()), [alike]);
    let awaited = Lock { subscribers: 1, ..lock(&fields, None) };
    assert_eq!(ids(&survey("a", awaited), &Holders::default()), [CERTAIN, malformed]);
    // The holders of another client library are named too.
    let foreign = lock(&[("worker\n1", "1"), ("worker2", "2")], Some(20));
    let found = findings(&survey("a", foreign), &Holders::default());
    assert_eq!(found[0].holders, ["worker\\n1", "worker2"]);
    assert!(found[0].evidence.contains("held by worker\\n1, worker2 (count 2)."), "{found:?}");
}

#[test]
fn a_queue_whose_head_passed_its_deadline_is_dead() {
    let companions =
        |deadline| Companions { queue: Some(queue(deadline)), ..Companions::default() };
    let fair = |deadline| Lock { companions: companions(deadline), ..plain(8, Some(20)) };
    let dead = survey("a", fair(Some(CLOCK - 90_000)));
    let found = findings(&dead, &Holders::default());
    assert_eq!((found[0].id, found[0].severity), (FindingId::DeadWaiter, Severity::Warning));
    assert!(found[0].evidence.contains("past its deadline for 1 min 30 s"), "{found:?}");
    assert_eq!(ids(&survey("a", fair(Some(CLOCK + 1))), &Holders::default()), []);
    let mut orphan = Survey { clock: CLOCK, ..Survey::default() };
    orphan.queues.insert(name("q"), queue(Some(CLOCK - 1)));
    let found = findings(&orphan, &Holders::default());
    assert_eq!((found[0].id, found[0].severity), (FindingId::Orphan, Severity::Warning));
    assert!(
        found[0]
            .next_step
            .contains("redis-cli -h 'a' -p 1 -n 3 LRANGE 'redisson_lock_queue:{q}' 0 9")
    );
    orphan.queues.insert(name("q"), queue(Some(CLOCK + 60_000)));
    assert_eq!(ids(&orphan, &Holders::default()), [], "a queue between two attempts");
}

#[test]
fn markers_and_latches_are_left_over_only_if_they_stay() {
    let marker = |ttl: Option<u64>| Leftover {
        key: b"{a}:marker".to_vec(),
        reader: Some((vec![name("a")], holder(5))),
        ttl: ttl.map(Duration::from_secs),
    };
    let latch = |ttl: Option<u64>| Leftover { reader: None, ..marker(ttl) };
    let found = |leftover: Leftover| {
        let survey = Survey { leftovers: vec![leftover], ..Survey::default() };
        ids(&survey, &Holders::default()).len()
    };
    assert_eq!([found(marker(None)), found(marker(Some(3_600)))], [1, 1]);
    assert_eq!([found(latch(None)), found(latch(Some(3_600)))], [1, 0]);
}

#[test]
fn a_lock_that_was_read_once_is_not_judged() {
    let survey = survey("a", plain(52, None));
    assert_eq!(judge(&survey, &BTreeSet::new(), &Holders::default(), &subject()), []);
}

#[test]
fn names_are_escaped_for_people_and_for_shells() {
    let found = findings(&survey("x\n'\u{1b}[31m", plain(52, None)), &Holders::default());
    assert_eq!(found[0].subject.name.as_deref(), Some("x\\n'\\u{1b}[31m"));
    assert!(!found[0].next_step.contains(['\n', '\u{1b}']), "{found:?}");
    assert!(found[0].next_step.contains(r"HGETALL 'x'$'\x0a'''\'''$'\x1b''[31m'"), "{found:?}");
}

#[test]
fn a_summary_counts_by_kind_and_names_the_most_contended() {
    let mut survey = survey("plain", Lock { subscribers: 2, ..plain(1, Some(20)) });
    let write = format!("{}:write", holder(2));
    survey.locks.insert(name("write"), lock(&[("mode", "write"), (&write, "1")], Some(90)));
    let fenced = Companions { token: Token::Value(3), ..Companions::default() };
    survey.locks.insert(name("fenced"), Lock { companions: fenced, ..plain(3, None) });
    let summary = LockSummary::of(&survey, &subject(), 10);
    let kinds: Vec<_> = summary.by_kind.into_iter().collect();
    assert_eq!(kinds, [("fenced", 1), ("lock", 1), ("write", 1)]);
    assert_eq!((summary.locks, summary.without_ttl), (3, 1));
    let longest = LongestTtl { name: "write".into(), milliseconds: 90_000 };
    assert_eq!(summary.longest_ttl, Some(longest));
    let contended = Contended { name: "plain".into(), kind: "lock", waiters: 2 };
    assert_eq!(summary.contended, [contended]);
}
