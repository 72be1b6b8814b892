use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::atomic::Ordering;

use redisson::{ClientId, HolderId, LockName};
use rusqlite::Connection;
use tokio::time::{sleep, timeout};

use super::*;
use crate::model::actor::Hub;
use crate::model::owner_names::OwnerNames;
use crate::model::types::{
    Acknowledgement, Certainty, Ending, EventFields, LockId, PastEnding, PastHold, ProblemKind,
    Since,
};

fn id(thread: i64) -> HolderId {
    HolderId::new(ClientId::from_random([7; 16]), thread)
}

fn lock(name: &[u8]) -> LockId {
    LockId { deployment: "main".into(), db: 3, name: LockName::new(name).unwrap() }
}

fn since(at: u64) -> Since {
    Since { at: SteadyMillis(at), exact: true }
}

fn ended(name: &[u8], thread: i64, from: u64, to: u64) -> ArchiveEntry {
    let ended = Ending::Released;
    ArchiveEntry::Ended(
        lock(name),
        PastHold { id: id(thread).into(), since: since(from), to: SteadyMillis(to), ended },
    )
}

/// Returns a hub that has published nothing.
fn no_locks() -> Arc<Hub> {
    Arc::new(Hub::new(OwnerNames::default()))
}

/// Writes entries and returns a reader.
async fn written(
    folder: &Path,
    now: u64,
    entries: impl IntoIterator<Item = ArchiveEntry>,
) -> Reader {
    let Archive { sender, writer, reader, .. } = open(folder, SteadyMillis(now)).await.unwrap();
    entries.into_iter().for_each(|entry| sender.send(entry));
    drop(sender);
    writer.run(no_locks(), drop).await;
    reader
}

async fn holders(reader: &Reader, name: &[u8], at: u64) -> Vec<String> {
    let answer = reader.at(lock(name), SteadyMillis(at)).await.unwrap();
    answer.holders.into_iter().map(|hold| hold.id).collect()
}

#[tokio::test(start_paused = true)]
async fn many_entries_are_written_before_the_queue_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let Archive { sender, writer, .. } = open(folder.path(), SteadyMillis(0)).await.unwrap();
    let written = tokio::spawn(writer.run(no_locks(), drop));
    // The first tick comes at once.
    sleep(Duration::from_millis(10)).await;
    (0..QUEUE / 2 + 1).for_each(|_| sender.send(ended(b"a", 1, 1_000, 2_000)));
    let empty = async {
        while sender.queue.capacity() < QUEUE {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_millis(500), empty).await.expect("before the next tick");
    assert_eq!(sender.lost.load(Ordering::Relaxed), 0);
    drop(sender);
    written.await.unwrap();
}

#[test]
fn waiting_queries_occupy_no_thread() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(2).build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let reader = written(folder.path(), 1_000, []).await;
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let mut queries = tokio::task::JoinSet::new();
        let slow = reader.clone();
        queries.spawn(async move { slow.search(move |_| Ok(ended.recv().is_err())).await });
        for _ in 0..3 {
            let reader = reader.clone();
            queries.spawn(async move { reader.search(|_| Ok(true)).await });
        }
        // Each of them is polled once.
        tokio::task::yield_now().await;
        let free = spawn_blocking(|| ());
        timeout(Duration::from_secs(30), free).await.unwrap().unwrap();
        drop(end);
        while let Some(query) = queries.join_next().await {
            assert!(query.unwrap().unwrap());
        }
    });
}

#[tokio::test]
async fn holders_at_an_instant_are_known_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = b"\xff'; DROP TABLE hold; --\0";
    written(
        folder.path(),
        100,
        [
            ArchiveEntry::Began(lock(hostile), id(1).into(), since(1_000)),
            ended(hostile, 1, 1_000, 2_000),
            ArchiveEntry::Began(lock(hostile), id(2).into(), since(2_000)),
            ended(b"other", 9, 500, 5_000),
        ],
    )
    .await;
    let reader = written(folder.path(), 9_000, []).await;
    assert_eq!(holders(&reader, hostile, 999).await, Vec::<String>::new());
    assert_eq!(holders(&reader, hostile, 1_000).await, [id(1).to_string()]);
    assert_eq!(holders(&reader, hostile, 2_000).await, [id(2).to_string()], "never both");
    assert_eq!(holders(&reader, hostile, 99_999).await, [id(2).to_string()], "it lasts");
    assert_eq!(holders(&reader, b"unknown", 1_000).await, Vec::<String>::new());
    let restored = reader.restored().unwrap();
    assert_eq!(restored.len(), 2);
    let lock = &restored[&lock(hostile)];
    assert_eq!((lock.holds.clone(), lock.past.len()), (vec![(id(2).into(), since(2_000))], 1));
}

#[tokio::test]
async fn a_hold_found_again_is_one_and_a_missed_end_is_reported_as_unseen() {
    let folder = tempfile::tempdir().unwrap();
    let began = |at| ArchiveEntry::Began(lock(b"a"), id(1).into(), since(at));
    written(folder.path(), 0, [began(1_000)]).await;
    let reader = written(folder.path(), 0, [began(1_000)]).await;
    assert_eq!(holders(&reader, b"a", 3_000).await.len(), 1);
    let reader = written(folder.path(), 0, [began(7_000)]).await;
    let then = reader.at(lock(b"a"), SteadyMillis(3_000)).await.unwrap();
    assert_eq!((then.holders.len(), then.holders[0].ended), (1, Some(PastEnding::Unseen)));
    assert_eq!(holders(&reader, b"a", 8_000).await.len(), 1);
}

#[tokio::test]
async fn only_the_end_that_turned_out_to_be_by_force_is_corrected() {
    let folder = tempfile::tempdir().unwrap();
    let forced = ArchiveEntry::Forced(lock(b"a"), id(1).into(), SteadyMillis(4_000));
    let holds = [ended(b"a", 1, 1_000, 2_000), ended(b"a", 1, 3_000, 4_000)];
    written(folder.path(), 0, holds).await;
    let reader = written(folder.path(), 0, [ended(b"a", 2, 3_500, 4_000), forced]).await;
    let how = async |at| {
        let answer = reader.at(lock(b"a"), SteadyMillis(at)).await.unwrap();
        answer.holders.iter().map(|hold| hold.ended.map(PastEnding::as_str)).collect::<Vec<_>>()
    };
    assert_eq!(how(1_500).await, [Some("released")]);
    assert_eq!(how(3_200).await, [Some("forced")]);
    assert_eq!(how(3_600).await.len(), 2);
    assert!(how(3_600).await.contains(&Some("released")));
}

#[tokio::test]
async fn a_problem_found_again_does_not_overlap_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (stuck, cleared) = (ProblemKind::Stuck, SteadyMillis(3_000));
    let problem = || {
        let began = SteadyMillis(1_000);
        ArchiveEntry::Problem(lock(b"a"), stuck, Certainty::Certain, began)
    };
    let over = ArchiveEntry::Cleared(lock(b"a"), stuck, cleared);
    let reader = written(folder.path(), 0, [problem(), over, problem()]).await;
    let at = async |at| reader.problems_at(lock(b"a"), SteadyMillis(at)).await.unwrap();
    let before = at(2_000).await;
    assert_eq!((before.len(), before[0].to), (1, Some(cleared)), "{before:?}");
    let after = at(4_000).await;
    assert_eq!((after.len(), after[0].since, after[0].to), (1, cleared, None), "{after:?}");
}

#[tokio::test]
async fn a_problem_does_not_begin_later_than_now_after_the_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let (stuck, now) = (ProblemKind::Stuck, SteadyMillis::now());
    let problem = || ArchiveEntry::Problem(lock(b"a"), stuck, Certainty::Certain, now);
    let over = ArchiveEntry::Cleared(lock(b"a"), stuck, SteadyMillis(now.0 + 3_600_000));
    let reader = written(folder.path(), 0, [problem(), over, problem()]).await;
    let open = reader.problems_at(lock(b"a"), now).await.unwrap();
    assert!(open.iter().any(|problem| problem.to.is_none()), "{open:?}");
}

#[tokio::test]
async fn the_last_problems_are_restored() {
    let folder = tempfile::tempdir().unwrap();
    let [leaked, stuck] = [ProblemKind::Leaked, ProblemKind::Stuck];
    let problem =
        |kind, at| ArchiveEntry::Problem(lock(b"a"), kind, Certainty::Certain, SteadyMillis(at));
    let reader = written(
        folder.path(),
        0,
        [
            problem(stuck, 1_000),
            problem(leaked, 2_000),
            ArchiveEntry::Cleared(lock(b"a"), stuck, SteadyMillis(3_000)),
            problem(leaked, 9_000),
            ArchiveEntry::Began(lock(b"a"), id(1).into(), since(1_500)),
            ArchiveEntry::Unseen(lock(b"a"), id(1).into(), SteadyMillis(4_000)),
            ArchiveEntry::Unseen(lock(b"a"), id(2).into(), SteadyMillis(4_000)),
        ],
    )
    .await;
    let restored = &reader.restored().unwrap()[&lock(b"a")];
    assert_eq!(restored.problems, [(leaked, SteadyMillis(2_000))], "it is the same problem");
    assert_eq!((restored.holds.len(), holders(&reader, b"a", 3_999).await.len()), (0, 1));
    assert_eq!(holders(&reader, b"a", 4_000).await.len(), 0);
}

#[tokio::test]
async fn the_latest_expiry_and_whether_its_holder_returned_too_late_are_restored() {
    for (certainty, late) in [(Certainty::Certain, true), (Certainty::Suspected, false)] {
        let folder = tempfile::tempdir().unwrap();
        let [expired, stuck] = [ProblemKind::Expired, ProblemKind::Stuck];
        let row = |kind, how, at| ArchiveEntry::Problem(lock(b"a"), kind, how, SteadyMillis(at));
        let first = row(expired, Certainty::Suspected, 1_000);
        let others = [row(expired, certainty, 3_000), row(stuck, Certainty::Certain, 2_000)];
        let reader = written(folder.path(), 0, [first].into_iter().chain(others)).await;
        let restored = &reader.restored().unwrap()[&lock(b"a")];
        assert_eq!(restored.problems[0], (expired, SteadyMillis(1_000)));
        assert_eq!(restored.expired_again, Some(SteadyMillis(3_000)));
        assert_eq!(restored.returned_late, late);
    }
}

#[tokio::test]
async fn the_newest_past_holds_are_restored_oldest_first() {
    let folder = tempfile::tempdir().unwrap();
    // The holds are not in the order in which they ended.
    let holds = [(b"a", 4_000), (b"b", 2_000), (b"a", 1_000), (b"b", 5_000), (b"a", 3_000)];
    let holds = holds.map(|(name, to)| ended(name, 1, to - 500, to));
    let reader = written(folder.path(), 0, holds).await;
    let ends = |limit, name: &[u8]| -> Vec<u64> {
        let restored = reader.restored_up_to(limit).unwrap().remove(&lock(name));
        restored.map_or(Vec::new(), |lock| lock.past.iter().map(|hold| hold.to.0).collect())
    };
    assert_eq!((ends(5, b"a"), ends(5, b"b")), (vec![1_000, 3_000, 4_000], vec![2_000, 5_000]));
    assert_eq!((ends(3, b"a"), ends(3, b"b")), (vec![3_000, 4_000], vec![5_000]), "the newest");
}

#[tokio::test]
async fn events_are_in_order_for_one_lock_and_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let stuck = ProblemKind::Stuck;
    let reader = written(
        folder.path(),
        0,
        [
            ended(b"a", 1, 1_000, 4_000),
            ended(b"b", 2, 2_000, 3_000),
            ArchiveEntry::Problem(lock(b"a"), stuck, Certainty::Suspected, SteadyMillis(2_500)),
            ArchiveEntry::Problem(lock(b"a"), stuck, Certainty::Certain, SteadyMillis(2_600)),
            ArchiveEntry::Cleared(lock(b"a"), stuck, SteadyMillis(3_500)),
        ],
    )
    .await;
    let events = async |lock, from, to| -> Vec<(String, u64)> {
        let search = EventSearch { lock, ..search(from, to) };
        let found = reader.events(search, |_| true).await.unwrap().events;
        found.iter().map(|event| (event.event.clone(), event.at.0)).collect()
    };
    let all = [
        ("taken", 1_000),
        ("taken", 2_000),
        ("problem", 2_500),
        ("ended", 3_000),
        ("cleared", 3_500),
        ("ended", 4_000),
    ]
    .map(|(event, at)| (event.to_owned(), at));
    assert_eq!(events(None, 0, 9_000).await, all);
    assert_eq!(events(None, 1_500, 2_500).await, all[1..3]);
    assert_eq!(events(Some(lock(b"b")), 0, 9_000).await, [all[1].clone(), all[3].clone()]);
    let problem = &reader.events(search(2_500, 2_500), |_| true).await.unwrap().events[0];
    assert_eq!((problem.subject.as_str(), problem.detail.as_deref()), ("stuck", Some("certain")));
}

fn search(from: u64, to: u64) -> EventSearch {
    EventSearch {
        from: SteadyMillis(from),
        to: SteadyMillis(to),
        lock: None,
        newest_first: false,
        cursor: None,
        limit: MAX_EVENTS,
    }
}

#[tokio::test]
async fn pages_of_events_lead_to_the_end_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let stuck = ProblemKind::Stuck;
    // Many events are at the same instant, so that their order depends on more than the instant.
    let holds = (0..7).map(|i| ended(b"a", i, 1_000 + i.unsigned_abs() / 3, 1_002));
    let problem = ArchiveEntry::Problem(lock(b"a"), stuck, Certainty::Certain, SteadyMillis(1_002));
    let reader = written(folder.path(), 0, holds.chain([problem])).await;
    for newest_first in [false, true] {
        let page = async |cursor: Option<EventCursor>, limit| {
            // The cursor is converted to text and back, like in an address.
            let cursor = cursor.map(|cursor| cursor.to_string().parse().unwrap());
            let search = EventSearch { newest_first, cursor, limit, ..search(0, 9_000) };
            reader.events(search, |event| event.event != "cleared").await.unwrap()
        };
        let whole = page(None, 100).await;
        assert_eq!((whole.events.len(), whole.next, whole.prev), (15, None, None));
        for limit in [1, 2, 4, 7, 15] {
            let mut forth = vec![page(None, limit).await];
            while let Some(next) = forth.last().unwrap().next {
                forth.push(page(Some(next), limit).await);
            }
            let events: Vec<_> = forth.iter().flat_map(|page| page.events.clone()).collect();
            assert_eq!(events, whole.events, "{limit} {newest_first}");
            let mut prev = forth.pop().unwrap().prev;
            for before in forth.iter().rev() {
                let back = page(prev, limit).await;
                assert_eq!(back.events, before.events, "{limit} {newest_first}");
                assert!(back.next.is_some());
                prev = back.prev;
            }
            assert_eq!(prev, None);
        }
    }
    // A page before one that is not full begins with the first event.
    let first = EventSearch { limit: 4, ..search(0, 9_000) };
    let at = reader.events(first.clone(), |_| true).await.unwrap().next;
    let second = EventSearch { cursor: at, limit: 2, ..first.clone() };
    let back = reader.events(second, |_| true).await.unwrap().prev;
    let wider = EventSearch { cursor: back, limit: 10, ..first };
    assert_eq!(reader.events(wider, |_| true).await.unwrap().events.len(), 10);
    for bad in ["", "before", "before-1-2", "after-1-2-3-4", "later-1-2-3", "before-x-0-1"] {
        assert!(bad.parse::<EventCursor>().is_err(), "{bad}");
    }
}

#[tokio::test]
async fn events_are_counted_by_time_and_type() {
    let folder = tempfile::tempdir().unwrap();
    let stuck = ProblemKind::Stuck;
    let problem = ArchiveEntry::Problem(lock(b"a"), stuck, Certainty::Certain, SteadyMillis(899));
    let entries = [ended(b"a", 1, 0, 10), ended(b"b", 2, 5, 900), ended(b"b", 3, 2_000, 2_001)];
    let reader = written(folder.path(), 0, entries.into_iter().chain([problem])).await;
    let all = reader.density(search(0, 900), None::<fn(&EventFields<'_>) -> bool>).await.unwrap();
    assert_eq!((all.buckets.len(), all.counted_from), (BUCKETS, None));
    assert_eq!(all.by_type()[..3], [2, 2, 1]);
    assert_eq!((all.buckets[0][0], all.buckets[1][1]), (2, 1));
    assert_eq!((all.buckets[BUCKETS - 1][1], all.buckets[BUCKETS - 1][2]), (1, 1), "the end");
    let counted = reader.density(search(0, 900), Some(|_: &EventFields<'_>| true)).await.unwrap();
    assert_eq!(counted, all, "the same one by one");
    let of_b = |event: &EventFields<'_>| event.name == b"b";
    assert_eq!(reader.density(search(0, 900), Some(of_b)).await.unwrap().by_type()[..3], [1, 1, 0]);
    let of_a = EventSearch { lock: Some(lock(b"a")), ..search(0, 900) };
    let of_a = reader.density(of_a, None::<fn(&EventFields<'_>) -> bool>).await.unwrap();
    assert_eq!(of_a.by_type()[..3], [1, 1, 1]);
}

#[tokio::test]
async fn all_locks_held_at_an_instant_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let leaked = ProblemKind::Leaked;
    let problem =
        |name, at| ArchiveEntry::Problem(lock(name), leaked, Certainty::Certain, SteadyMillis(at));
    let entries = [
        ended(b"a", 1, 1_000, 4_000),
        ended(b"b", 2, 2_000, 3_000),
        ended(b"c", 3, 5_000, 9_000),
        ArchiveEntry::Began(lock(b"d"), id(4).into(), since(1_500)),
        problem(b"a", 2_000),
        ArchiveEntry::Cleared(lock(b"a"), leaked, SteadyMillis(2_600)),
        problem(b"d", 8_000),
    ];
    let reader = written(folder.path(), 0, entries).await;
    let held = async |at, limit, name: &'static [u8]| {
        let of = move |hold: &EventFields<'_>| name.is_empty() || hold.name == name;
        let then = reader.held_at(SteadyMillis(at), limit, of).await.unwrap();
        let names: Vec<String> = then.holds.iter().map(|h| h.lock.name.to_string()).collect();
        assert!(then.complete);
        (names.concat(), then.total, then.holds)
    };
    let (names, total, holds) = held(2_500, 10, b"").await;
    assert_eq!((names.as_str(), total), ("adb", 3), "the oldest first");
    assert_eq!((holds[0].problems.len(), holds[1].problems.len()), (1, 0));
    assert_eq!(holds[0].problems[0].to, Some(SteadyMillis(2_600)));
    assert_eq!(held(2_500, 1, b"").await.1, 3, "all are counted");
    assert_eq!(held(2_500, 10, b"b").await.0, "b");
    for (at, names) in [(0, ""), (1_000, "a"), (3_000, "ad"), (4_000, "d"), (6_000, "dc")] {
        assert_eq!(held(at, 10, b"").await.0, names, "{at}");
    }
    let problems = reader.problems_at(lock(b"d"), SteadyMillis(9_000)).await.unwrap();
    assert_eq!((problems[0].problem.as_str(), problems[0].to), ("leaked", None));
}

#[tokio::test]
async fn times_without_observation_are_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let at = |ms| Some(SteadyMillis(ms));
    let long_ago = written(folder.path(), 1_000, []).await;
    // The end of a span is the present, which is far from the beginnings given here.
    let alive = SteadyMillis::now().0;
    let gaps = long_ago.gaps(SteadyMillis(0), SteadyMillis(5_000)).await.unwrap();
    assert_eq!(gaps, [Gap { from: None, to: at(1_000) }]);
    let later = alive + 100_000_000;
    let reader = written(folder.path(), later, []).await;
    let then = reader.at(lock(b"a"), SteadyMillis(later - 1_000)).await.unwrap();
    let gap = then.gap.unwrap();
    assert!(gap.from >= at(alive) && gap.to == at(later), "{gap:?}");
    assert_eq!(reader.at(lock(b"a"), SteadyMillis(5_000)).await.unwrap().gap, None);
    let gaps = reader.gaps(SteadyMillis(5_000), SteadyMillis(later + 5)).await.unwrap();
    assert_eq!(gaps[0].to, at(later));
}

#[tokio::test]
async fn a_gap_extends_beyond_the_time_for_which_it_is_requested() {
    let folder = tempfile::tempdir().unwrap();
    let reader = written(folder.path(), SteadyMillis::now().0, []).await;
    let connection = schema::open(&folder.path().join(FILE)).unwrap();
    let spans = "INSERT INTO span VALUES (1000, 2000), (5000, 6000), (9000, 9500)";
    connection.execute(spans, []).unwrap();
    let gaps = async |from, to| -> Vec<(u64, u64)> {
        let gaps = reader.gaps(SteadyMillis(from), SteadyMillis(to)).await.unwrap();
        gaps.iter().map(|gap| (gap.from.unwrap().0, gap.to.unwrap().0)).collect()
    };
    assert_eq!(gaps(3_000, 5_500).await, [(2_000, 5_000)]);
    assert_eq!(gaps(3_000, 4_000).await, [(2_000, 5_000)]);
    assert_eq!(gaps(5_500, 8_000).await, [(6_000, 9_000)]);
    assert_eq!(gaps(5_000, 6_000).await, [], "the gaps before and after are not part of it");
}

#[tokio::test]
async fn entries_without_room_leave_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let Archive { sender, writer, reader, .. } =
        open(folder.path(), SteadyMillis(5)).await.unwrap();
    for i in 0..QUEUE as u64 + 10 {
        sender.send(ended(b"a", 1, i, i + 1));
    }
    assert_eq!(sender.lost.load(Ordering::Relaxed), 10);
    drop(sender);
    writer.run(no_locks(), drop).await;
    let gaps = reader.gaps(SteadyMillis(5), SteadyMillis(u64::MAX >> 2)).await.unwrap();
    assert!(
        gaps.iter().any(|gap| gap.from == Some(SteadyMillis(5)) && gap.to.is_some()),
        "{gaps:?}"
    );
    assert_eq!(reader.restored().unwrap()[&lock(b"a")].past.len(), 64);
}

#[tokio::test]
async fn a_broken_file_is_renamed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), "no database").unwrap();
    let reader = written(folder.path(), 42, [ended(b"a", 1, 1_000, 2_000)]).await;
    assert_eq!(holders(&reader, b"a", 1_500).await.len(), 1);
    let aside = std::fs::read(folder.path().join("history.db.broken-42")).unwrap();
    assert_eq!(aside, b"no database");
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    // The history is on a disk that is not mounted.
    let path = folder.path().join(FILE);
    std::os::unix::fs::symlink("/not/mounted/history.db", &path).unwrap();
    let error = open(folder.path(), SteadyMillis(42)).await.unwrap_err();
    assert!(format!("{error:#}").contains("cannot open the history"), "{error:#}");
    assert!(path.is_symlink());
    assert!(!folder.path().join("history.db.broken-42").exists());
}

#[tokio::test]
async fn a_history_that_cannot_be_written_at_the_start_is_written_later() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 100, [ended(b"a", 1, 1_000, 2_000)]).await;
    let other = Connection::open(folder.path().join(FILE)).unwrap();
    let full = "CREATE TRIGGER full BEFORE INSERT ON span BEGIN SELECT RAISE(FAIL, 'full'); END";
    other.execute_batch(full).unwrap();
    let Archive { sender, writer, reader, .. } =
        open(folder.path(), SteadyMillis(3_000)).await.unwrap();
    assert_eq!(holders(&reader, b"a", 1_500).await, [id(1).to_string()]);
    other.execute_batch("DROP TRIGGER full").unwrap();
    sender.send(ended(b"a", 2, 4_000, 5_000));
    drop(sender);
    writer.run(no_locks(), drop).await;
    assert_eq!(holders(&reader, b"a", 4_500).await, [id(2).to_string()]);
    let spans = other.query_row("SELECT count(*) FROM span", [], |row| row.get::<_, i64>(0));
    assert_eq!(spans.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lock_failure_is_not_reported_as_another_dashboard() {
    let tries = std::cell::Cell::new(0);
    let answer = |errno: Errno| {
        tries.set(tries.get() + 1);
        Err(errno)
    };
    for errno in [Errno::NOLCK, Errno::NOSYS] {
        tries.set(0);
        let error = lock_folder(Path::new("/h"), || answer(errno)).await.unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("cannot lock") && text.contains("/h"), "{text}");
        assert!(text.contains(&errno.to_string()), "the reason is included: {text}");
        assert_eq!(tries.get(), 1, "it is not retried");
    }
    let error = lock_folder(Path::new("/h"), || answer(Errno::AGAIN)).await.unwrap_err();
    assert!(error.to_string().contains("another dashboard"), "{error}");
    // An interrupted call is retried.
    tries.set(0);
    let interrupted = || if tries.get() < 2 { answer(Errno::INTR) } else { Ok(()) };
    lock_folder(Path::new("/h"), interrupted).await.unwrap();
    assert_eq!(tries.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn two_dashboards_need_two_folders() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), SteadyMillis(0)).await.unwrap();
    let error = open(folder.path(), SteadyMillis(0)).await.unwrap_err().to_string();
    assert!(error.contains("another dashboard"), "{error}");
    // A dashboard that ends in the meantime releases the folder to the next.
    let end = async {
        sleep(LOCK_WAIT / 2).await;
        drop(first);
    };
    let (next, ()) = tokio::join!(open(folder.path(), SteadyMillis(1)), end);
    next.unwrap();
}

/// Returns the names and modes of the files in a folder of a history that is open.
async fn modes(folder: &Path) -> Vec<(String, u32)> {
    let opened = open(folder, SteadyMillis(0)).await.unwrap();
    let files = std::fs::read_dir(folder).unwrap().map(|file| {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        (file.file_name().into_string().unwrap(), mode)
    });
    let mut files: Vec<_> = files.collect();
    files.sort_unstable();
    drop(opened);
    files
}

#[tokio::test]
async fn only_the_owner_can_read_the_files_of_the_history() {
    let private = ["history.db", "history.db-shm", "history.db-wal", "lock"]
        .map(|name| (name.to_owned(), 0o600));
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("open to all");
    DirBuilder::new().mode(0o755).create(&folder).unwrap();
    assert_eq!(modes(&folder).await, private);
    // These are the files after a crash, which others may read.
    let file = folder.join(FILE);
    let connection = schema::open(&file).unwrap();
    connection.execute("INSERT INTO span VALUES (1, 2)", []).unwrap();
    for tail in ["", "-wal", "-shm"] {
        std::fs::set_permissions(with_tail(&file, tail), Permissions::from_mode(0o644)).unwrap();
    }
    assert_eq!(modes(&folder).await, private);
    // A damaged file is renamed, and the new one is as private.
    drop(connection);
    std::fs::write(&file, "no database at all, but a text of some length").unwrap();
    let with_aside = modes(&folder).await;
    assert!(with_aside.iter().all(|(_, mode)| *mode == 0o600), "{with_aside:?}");
    assert_eq!(with_aside.len(), 5, "{with_aside:?}");
}

/// Returns the first report that fits.
async fn reported(
    reports: &mut mpsc::Receiver<Option<String>>,
    fits: impl Fn(Option<&str>) -> bool,
) -> Option<String> {
    loop {
        let report = reports.recv().await.unwrap();
        if fits(report.as_deref()) {
            return report;
        }
    }
}

#[tokio::test]
async fn a_history_that_was_removed_is_created_again_with_all_its_rows() {
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("history");
    let Archive { sender, writer, reader, .. } = open(&folder, SteadyMillis(100)).await.unwrap();
    let (report, mut reports) = mpsc::channel(100);
    let writing =
        tokio::spawn(writer.run(no_locks(), move |trouble| drop(report.try_send(trouble))));
    let file = folder.join(FILE);
    let changes: [fn(&Path); 3] = [
        |folder| std::fs::remove_dir_all(folder).unwrap(),
        // Its log stays.
        |folder| std::fs::remove_file(folder.join(FILE)).unwrap(),
        |folder| std::fs::rename(folder, folder.with_extension("aside")).unwrap(),
    ];
    for (number, change) in (0_u32..).zip(changes) {
        let at = u64::from(10 * number);
        sender.send(ended(b"a", number.into(), at, at + 5));
        reported(&mut reports, |trouble| trouble.is_none()).await;
        change(&folder);
        let mut rounds = 0..20;
        while !file.exists() {
            assert!(rounds.next().is_some(), "{number}: not created again");
            reported(&mut reports, |trouble| trouble.is_none()).await;
        }
    }
    sender.send(ended(b"a", 3, 30, 35));
    let expected = [3, 2, 1, 0].map(|thread| id(thread).to_string());
    let held = async |reader: &Reader| -> Vec<String> {
        let holds = reader.holds(lock(b"a"), SteadyMillis(0), SteadyMillis(99)).await.unwrap();
        holds.into_iter().map(|hold| hold.id).collect()
    };
    let mut rounds = 0..20;
    while held(&reader).await != expected {
        assert!(rounds.next().is_some(), "the same reader: {:?}", held(&reader).await);
        reported(&mut reports, |trouble| trouble.is_none()).await;
    }
    let gaps = reader.gaps(SteadyMillis(100), SteadyMillis(u64::MAX >> 2)).await.unwrap();
    assert!(gaps.iter().all(|gap| gap.to.is_none()), "one span: {gaps:?}");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, PRIVATE);

    // Something that is in the way is reported until it is gone, and nothing is lost meanwhile.
    loop {
        // In between, the writer may create the folder again, and reports it if that fails halfway.
        std::fs::remove_dir_all(&folder).ok();
        if std::fs::write(&folder, "").is_ok() {
            break;
        }
    }
    let why = reported(&mut reports, |trouble| {
        trouble.is_some_and(|why| why.contains("cannot create the history folder"))
    });
    let why = why.await.unwrap();
    assert!(why.contains("was removed"), "{why}");
    sender.send(ended(b"a", 4, 40, 45));
    reported(&mut reports, |trouble| trouble.is_some()).await;
    reported(&mut reports, |trouble| trouble.is_some()).await;
    std::fs::remove_file(&folder).unwrap();
    reported(&mut reports, |trouble| trouble.is_none()).await;
    drop(sender);
    writing.await.unwrap();
    assert_eq!(held(&reader).await.len(), 5);
    let again = open(&folder, SteadyMillis(200)).await.unwrap();
    assert_eq!(held(&again.reader).await.len(), 5, "after a restart");
    let setting = |name| -> i64 {
        let query = format!("PRAGMA {name}");
        Connection::open(&file).unwrap().query_row(&query, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((setting("user_version"), setting("auto_vacuum")), (1, 2));
}

#[tokio::test]
async fn a_folder_that_another_dashboard_has_taken_meanwhile_is_left_to_it() {
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("history");
    let Archive { sender, writer, .. } = open(&folder, SteadyMillis(100)).await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let other = open(&folder, SteadyMillis(100)).await.unwrap();
    let (report, mut reports) = mpsc::channel(100);
    let writing =
        tokio::spawn(writer.run(no_locks(), move |trouble| drop(report.try_send(trouble))));
    let why = reported(&mut reports, |_| true).await.unwrap_or_default();
    assert!(why.contains("cannot lock"), "{why}");
    drop(other);
    reported(&mut reports, |trouble| trouble.is_none()).await;
    drop(sender);
    writing.await.unwrap();
}

#[tokio::test]
async fn an_acknowledgement_ends_with_its_problem_although_nobody_saw_that() {
    let folder = tempfile::tempdir().unwrap();
    let (lock, problem) = (lock(b"a"), ProblemKind::Leaked);
    let begins =
        |at| ArchiveEntry::Problem(lock.clone(), problem, Certainty::Certain, SteadyMillis(at));
    let word = Acknowledgement {
        by: "anna".into(),
        reason: "a long import".into(),
        at: SteadyMillis(20),
        until: SteadyMillis::now().plus(3_600_000),
    };
    let acknowledged = ArchiveEntry::Acknowledged(lock.clone(), problem, word.into());
    let over = ArchiveEntry::Cleared(lock.clone(), problem, SteadyMillis(30));
    for (entries, expected) in [
        (vec![begins(10), acknowledged.clone()], 1),
        (vec![over.clone()], 0),
        (vec![begins(40)], 0),
        // The beginning of this problem is lost.
        (vec![over, acknowledged], 1),
    ] {
        let reader = written(folder.path(), 100, entries).await;
        let restored = reader.restored().unwrap();
        let found = restored.get(&lock).map_or(0, |lock| lock.acknowledged.len());
        assert_eq!(found, expected);
    }
}
