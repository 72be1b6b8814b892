use std::sync::atomic::Ordering;

use redisson::{ClientId, HolderId, LockName};

use super::*;
use crate::model::types::{Certainty, Ending, LockId, PastHold, ProblemKind, Since};

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
        PastHold { id: id(thread), since: since(from), to: SteadyMillis(to), ended },
    )
}

/// Writes entries, and returns a reader.
async fn written(
    folder: &Path,
    now: u64,
    entries: impl IntoIterator<Item = ArchiveEntry>,
) -> Reader {
    let Archive { sender, writer, reader } = open(folder, SteadyMillis(now)).await.unwrap();
    entries.into_iter().for_each(|entry| sender.send(entry));
    drop(sender);
    writer.run().await;
    reader
}

async fn holders(reader: &Reader, name: &[u8], at: u64) -> Vec<String> {
    let answer = reader.at(lock(name), SteadyMillis(at)).await.unwrap();
    answer.holders.into_iter().map(|hold| hold.id).collect()
}

#[tokio::test]
async fn holders_at_an_instant_are_known_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = b"\xff'; DROP TABLE hold; --\0";
    written(
        folder.path(),
        100,
        [
            ArchiveEntry::Began(lock(hostile), id(1), since(1_000)),
            ended(hostile, 1, 1_000, 2_000),
            ArchiveEntry::Began(lock(hostile), id(2), since(2_000)),
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
    assert_eq!((lock.holds.clone(), lock.past.len()), (vec![(id(2), since(2_000))], 1));
}

#[tokio::test]
async fn a_hold_found_again_is_one_and_a_missed_end_is_reported_as_unseen() {
    let folder = tempfile::tempdir().unwrap();
    let began = |at| ArchiveEntry::Began(lock(b"a"), id(1), since(at));
    written(folder.path(), 0, [began(1_000)]).await;
    let reader = written(folder.path(), 0, [began(1_000)]).await;
    assert_eq!(holders(&reader, b"a", 3_000).await.len(), 1);
    let reader = written(folder.path(), 0, [began(7_000)]).await;
    let then = reader.at(lock(b"a"), SteadyMillis(3_000)).await.unwrap();
    assert_eq!((then.holders.len(), then.holders[0].ended), (1, Some("unseen")));
    assert_eq!(holders(&reader, b"a", 8_000).await.len(), 1);
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
            ArchiveEntry::Began(lock(b"a"), id(1), since(1_500)),
            ArchiveEntry::Unseen(lock(b"a"), id(1), SteadyMillis(4_000)),
            ArchiveEntry::Unseen(lock(b"a"), id(2), SteadyMillis(4_000)),
        ],
    )
    .await;
    let restored = &reader.restored().unwrap()[&lock(b"a")];
    assert_eq!(restored.problems, [(leaked, SteadyMillis(2_000))], "it is the same problem");
    assert_eq!((restored.holds.len(), holders(&reader, b"a", 3_999).await.len()), (0, 1));
    assert_eq!(holders(&reader, b"a", 4_000).await.len(), 0);
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
        let found =
            reader.between(lock, SteadyMillis(from), SteadyMillis(to), false).await.unwrap();
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
    let problem =
        &reader.between(None, SteadyMillis(2_500), SteadyMillis(2_500), true).await.unwrap()[0];
    assert_eq!((problem.subject.as_str(), problem.detail.as_deref()), ("stuck", Some("certain")));
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
async fn entries_without_room_leave_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let Archive { sender, writer, reader } = open(folder.path(), SteadyMillis(5)).await.unwrap();
    for i in 0..QUEUE as u64 + 10 {
        sender.send(ended(b"a", 1, i, i + 1));
    }
    assert_eq!(sender.lost.load(Ordering::Relaxed), 10);
    drop(sender);
    writer.run().await;
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
    // One that ends meanwhile releases it to the next.
    let end = async {
        tokio::time::sleep(LOCK_WAIT / 2).await;
        drop(first);
    };
    let (next, ()) = tokio::join!(open(folder.path(), SteadyMillis(1)), end);
    next.unwrap();
}
