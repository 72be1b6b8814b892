//! Writes entries to the history.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::columns::stored;
use super::earlier_rows::EarlierRows;
use super::folder::{Folder, Restored};
use super::insert::insert;
use super::late_write::outcome;
use super::missed::OpenRows;
use super::reader::Reader;
use super::{ArchiveSender, MAX_AGE_MS, MAX_BYTES, MAX_NAMES};
use crate::clock::{self, SteadyMillis};
use crate::model::actor::Hub;
use crate::model::types::{ArchiveEntry, Snapshot};
use crate::text::counted;

/// The maximum number of entries in one transaction.
const BATCH: usize = 20_000;
/// The interval at which entries and the time of observation are written. A queue that is half full is written at once.
const INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which rows are removed by age, missed ends are added, and free pages released.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// The time after a start, or a large step of the wall clock, in which no row is removed by age, in milliseconds. A clock
/// that is far ahead for a moment would remove everything of earlier runs.
const SETTLING_MS: u64 = 3_600_000;
/// The smallest step of the wall clock that is large, in milliseconds.
const LARGE_STEP_MS: u64 = 60_000;
/// The maximum number of rows of a kind that are removed after a transaction, so that the next entries do not wait
/// long. A transaction adds no more, so the removal of the oldest rows keeps up with any rate.
const PRUNE_ROWS: usize = BATCH;
/// The maximum number of free pages that are released after a transaction.
const VACUUM_PAGES: u32 = 2_000;
/// Removes the oldest rows of each table that can be large, with the least valuable table first. Rows that have not
/// ended remain.
const REMOVE_OLDEST: [&str; 4] = [
    "DELETE FROM act WHERE rowid IN
     (SELECT rowid FROM act WHERE what = 'release_rejected' ORDER BY at LIMIT ?1)",
    "DELETE FROM hold WHERE rowid IN
     (SELECT rowid FROM hold WHERE ended IS NOT NULL ORDER BY ended LIMIT ?1)",
    "DELETE FROM problem WHERE rowid IN
     (SELECT rowid FROM problem WHERE cleared IS NOT NULL ORDER BY cleared LIMIT ?1)",
    "DELETE FROM act WHERE rowid IN (SELECT rowid FROM act ORDER BY at LIMIT ?1)",
];

/// The maximum number of entries about acknowledgements that are kept until they can be written.
const MAX_UNWRITTEN: usize = BATCH;

/// The row of no span.
const NO_SPAN: i64 = -1;

/// The writer of the history. Its folder is locked as long as this value exists.
#[derive(Debug)]
pub struct Writer {
    table: Table,
    entries: mpsc::Receiver<ArchiveEntry>,
    lost: Arc<AtomicU64>,
    half_full: Arc<Notify>,
}

#[derive(Debug)]
struct Table {
    connection: Connection,
    folder: Folder,
    /// The reader of the same file.
    reader: Reader,
    /// The row of the current span of observation.
    span: i64,
    earlier: EarlierRows,
    /// The beginning of this run, by the wall clock.
    first: i64,
    /// The offset of the wall clock at the last correction of rows.
    set: i64,
    /// Returns the offset of the wall clock.
    set_by: fn() -> i64,
    /// The instant before which no row is removed by age.
    settled: SteadyMillis,
    /// The maximum number of bytes that rows may need.
    limit: u64,
    /// True if the last write failed.
    has_failed: bool,
    /// True if rows may lack an end that `open_rows` does not know of.
    has_lost: bool,
    /// The rows that may lack an end, since entries were lost before that.
    open_rows: Option<OpenRows>,
    /// The entries about acknowledgements that could not be written yet, oldest first.
    unwritten: Vec<ArchiveEntry>,
}

impl Writer {
    pub(super) fn new(
        file: (Connection, Folder),
        reader: Reader,
        (entries, sender): (mpsc::Receiver<ArchiveEntry>, &ArchiveSender),
        now: SteadyMillis,
    ) -> rusqlite::Result<Self> {
        let (lost, half_full) = (Arc::clone(&sender.lost), Arc::clone(&sender.half_full));
        Ok(Self { table: Table::new(file, reader, now)?, entries, lost, half_full })
    }

    /// Writes until all senders have been dropped. After a loss of entries, the snapshots show what has ended. After
    /// each write, `report` receives the reason if it failed, and while one is late too.
    pub async fn run(self, hub: Arc<Hub>, mut report: impl FnMut(Option<String>)) {
        let Self { mut table, mut entries, lost, half_full } = self;
        let mut trouble = None;
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pruned = Instant::now();
        let mut open = true;
        while open {
            // The entries of a second share a transaction, since many short transactions would be expensive.
            tokio::select! {
                _ = tick.tick() => {}
                () = half_full.notified() => {}
            }
            loop {
                // The entries about everything in it have been sent.
                let snapshot = hub.snapshot();
                let mut batch = Vec::new();
                while batch.len() < BATCH {
                    match entries.try_recv() {
                        Ok(entry) => batch.push(entry),
                        Err(ended) => {
                            open = ended != TryRecvError::Disconnected;
                            break;
                        }
                    }
                }
                let last = batch.len() < BATCH;
                let prune = last && pruned.elapsed() >= PRUNE_INTERVAL;
                if prune {
                    pruned = Instant::now();
                }
                let missed = lost.swap(0, Ordering::Relaxed);
                // This runs on a separate thread, since it waits for the disk.
                let written = tokio::task::spawn_blocking(move || {
                    let now = SteadyMillis::now();
                    let in_place = table.keep_in_place(now);
                    let mut written = table.write_all(batch, missed, prune, now);
                    if prune && written.is_ok() {
                        written = table.end_missed(&snapshot, now);
                    }
                    (table, in_place, written)
                });
                let (same, in_place, written) = match outcome(written, &mut report).await {
                    Ok(written) => written,
                    Err(error) => {
                        let ended = "The history is no longer written: its writer has panicked. \
                                     Restart the dashboard.";
                        while error.is_panic() && !entries.is_closed() {
                            report(Some(ended.to_owned()));
                            tick.tick().await;
                        }
                        return;
                    }
                };
                table = same;
                table.has_failed = written.is_err();
                let failed = written.map_err(anyhow::Error::from).and(in_place).err();
                let failed = failed.map(|error| format!("{error:#}"));
                if failed != trouble {
                    match &failed {
                        Some(error) if table.has_failed => {
                            tracing::error!(error, "history write failed; the history has a gap");
                        }
                        Some(error) => {
                            tracing::error!(error, "history file missing and cannot be recreated");
                        }
                        None => tracing::info!("history written again"),
                    }
                    trouble.clone_from(&failed);
                }
                let failed = failed.map(|why| format!("The history cannot be written: {why}."));
                report(failed.or_else(|| {
                    let missed = (missed > 0).then(|| counted(missed, "event"))?;
                    Some(format!("The history lacks {missed} that came too fast."))
                }));
                if last {
                    break;
                }
            }
        }
    }
}

/// Starts a span of observation.
fn begin_span(connection: &Connection, now: SteadyMillis) -> rusqlite::Result<i64> {
    let now = stored(now);
    connection.execute("INSERT INTO span (began, alive) VALUES (?1, ?1)", [now])?;
    Ok(connection.last_insert_rowid())
}

/// Returns the span that was observed last.
fn last_span(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    let last = "SELECT rowid FROM span ORDER BY alive DESC, began DESC, rowid DESC LIMIT 1";
    connection.query_row(last, [], |row| row.get(0)).optional()
}

impl Table {
    fn new(
        file: (Connection, Folder),
        reader: Reader,
        now: SteadyMillis,
    ) -> rusqlite::Result<Self> {
        let (connection, folder) = file;
        let earlier = EarlierRows::read(&connection)?;
        let span = begin_span(&connection, now).inspect_err(
            |error| tracing::error!(%error, "history write failed; the history has a gap"),
        );
        Ok(Self {
            // After a failure, the next write begins a span.
            has_failed: span.is_err(),
            span: span.unwrap_or(NO_SPAN),
            connection,
            folder,
            reader,
            earlier,
            first: stored(now),
            set: clock::set_by(),
            set_by: clock::set_by,
            settled: now.plus(SETTLING_MS),
            limit: MAX_BYTES,
            has_lost: false,
            open_rows: None,
            unwritten: Vec::new(),
        })
    }

    /// Creates the history again if its file was removed.
    fn keep_in_place(&mut self, now: SteadyMillis) -> anyhow::Result<()> {
        if self.folder.has_file().context("its file cannot be found")? {
            return Ok(());
        }
        self.restore(now).context("its file was removed, and cannot be created again")
    }

    fn restore(&mut self, now: SteadyMillis) -> anyhow::Result<()> {
        let Restored { connection, folder, is_copy } = self.folder.restore(&self.connection)?;
        let copied = if is_copy { last_span(&connection)? } else { None };
        if !is_copy {
            self.earlier = EarlierRows::read(&connection)?;
        }
        let span = copied.map_or_else(|| begin_span(&connection, now), Ok)?;
        self.reader.change_to(&folder.file())?;
        (self.connection, self.folder, self.span) = (connection, folder, span);
        (self.has_lost, self.open_rows) = (true, None);
        let file = self.folder.file();
        if is_copy {
            tracing::warn!(file = %file.display(), "history removed; created it again");
        } else {
            tracing::error!(file = %file.display(), "history replaced by another file, which lacks what this run wrote before");
        }
        Ok(())
    }

    /// Writes entries, after those that were kept. If that fails, the latest entry about each acknowledgement is kept, since
    /// one that was withdrawn would silence the alerts of the next run.
    fn write_all(
        &mut self,
        batch: Vec<ArchiveEntry>,
        lost: u64,
        prune: bool,
        now: SteadyMillis,
    ) -> rusqlite::Result<()> {
        use ArchiveEntry::{Acknowledged, Unacknowledged};
        let mut entries = std::mem::take(&mut self.unwritten);
        entries.extend(batch);
        let written = self.write(&entries, lost, prune, now);
        if written.is_err() {
            let mut seen = HashSet::new();
            entries.reverse();
            entries.retain(|entry| match entry {
                Acknowledged(lock, problem, _) | Unacknowledged(lock, problem, _) => {
                    seen.insert((lock.clone(), *problem))
                }
                _ => false,
            });
            entries.truncate(MAX_UNWRITTEN);
            entries.reverse();
            self.unwritten = entries;
        }
        written
    }

    /// Writes entries. If some were lost, the span ends, which leaves a gap.
    fn write(
        &mut self,
        batch: &[ArchiveEntry],
        lost: u64,
        prune: bool,
        now: SteadyMillis,
    ) -> rusqlite::Result<()> {
        if lost > 0 {
            tracing::warn!(lost, "history has a gap: too many entries");
        }
        loop {
            let by = (self.set_by)().saturating_sub(self.set);
            if by != 0 {
                self.correct_clock(by, now)?;
                self.set += by;
            }
            let transaction = self.connection.transaction()?;
            if lost > 0 || self.has_failed {
                self.span = begin_span(&transaction, now)?;
                self.has_lost = true;
            }
            for entry in batch {
                insert(&transaction, entry)?;
                if let ArchiveEntry::Unacknowledged(..) = entry {
                    self.earlier.follow_deletions(&transaction)?;
                }
            }
            let alive = [stored(now), self.span];
            transaction
                .prepare_cached("UPDATE span SET alive = ?1 WHERE rowid = ?2")?
                .execute(alive)?;
            // If the clock was set in between, only some of these rows have its offset.
            if (self.set_by)() == self.set {
                transaction.commit()?;
                break;
            }
        }
        if prune {
            self.prune(now)?;
            self.limit_names()?;
        }
        self.limit_size(prune)?;
        self.earlier.follow_deletions(&self.connection)
    }

    /// Ends the holds and problems whose end was lost before the previous call. Every entry about the snapshot must have been
    /// written, or lost.
    fn end_missed(&mut self, snapshot: &Snapshot, now: SteadyMillis) -> rusqlite::Result<()> {
        if let Some(open_rows) = self.open_rows.take() {
            // The rows of other databases are left.
            self.has_lost |= !open_rows.complete;
            open_rows.end(&mut self.connection, snapshot)?;
            self.earlier.follow_deletions(&self.connection)?;
        }
        if self.has_lost {
            self.open_rows = Some(OpenRows::new(&self.connection, snapshot, now)?);
            self.has_lost = false;
        }
        Ok(())
    }

    /// Corrects the rows of this run after the wall clock was set.
    fn correct_clock(&mut self, by: i64, now: SteadyMillis) -> rusqlite::Result<()> {
        if by.unsigned_abs() >= LARGE_STEP_MS {
            self.settled = now.plus(SETTLING_MS);
        }
        let transaction = self.connection.transaction()?;
        self.earlier.shift_others(&transaction, by, self.first)?;
        transaction.commit()?;
        self.first += by;
        Ok(())
    }

    /// Removes old rows, unless the wall clock may be wrong.
    fn prune(&self, now: SteadyMillis) -> rusqlite::Result<()> {
        if now < self.settled {
            return Ok(());
        }
        let oldest = stored(now.minus(MAX_AGE_MS));
        let holds = "DELETE FROM hold WHERE rowid IN
            (SELECT rowid FROM hold WHERE ended < ?1 ORDER BY ended LIMIT ?2)";
        self.connection.execute(holds, params![oldest, PRUNE_ROWS])?;
        self.connection.execute("DELETE FROM problem WHERE cleared < ?1", [oldest])?;
        self.connection.execute("DELETE FROM act WHERE at < ?1", [oldest])?;
        self.connection.execute("DELETE FROM acknowledged WHERE until < ?1", [stored(now)])?;
        self.connection.execute("DELETE FROM span WHERE alive < ?1", [oldest])?;
        self.connection.execute("DELETE FROM owner WHERE seen < ?1", [oldest])?;
        Ok(())
    }

    /// Removes the oldest names of owners beyond [`MAX_NAMES`]. Each hold may have another one.
    fn limit_names(&self) -> rusqlite::Result<()> {
        let remove = "DELETE FROM owner WHERE rowid IN
            (SELECT rowid FROM owner ORDER BY seen DESC LIMIT -1 OFFSET ?1)";
        self.connection.execute(remove, [MAX_NAMES]).map(drop)
    }

    /// Removes some of the oldest rows if all rows together need too much space, and releases free pages if `vacuum` is
    /// true or the file is much larger than its limit. Otherwise new rows use the free pages.
    fn limit_size(&self, vacuum: bool) -> rusqlite::Result<()> {
        let whole = self.number("page_count")?;
        let limit = self.limit / self.number("page_size")?.max(1);
        let mut rows = PRUNE_ROWS;
        for remove in REMOVE_OLDEST {
            if whole.saturating_sub(self.number("freelist_count")?) <= limit {
                break;
            }
            rows -= self.connection.prepare_cached(remove)?.execute([rows])?.min(rows);
        }
        if vacuum || whole > limit + limit / 8 {
            // Each step of this statement releases one page.
            let vacuum = format!("PRAGMA incremental_vacuum({VACUUM_PAGES})");
            let mut vacuum = self.connection.prepare(&vacuum)?;
            let mut pages = vacuum.query([])?;
            while pages.next()?.is_some() {}
        }
        Ok(())
    }

    fn number(&self, what: &str) -> rusqlite::Result<u64> {
        self.connection.query_row(&format!("PRAGMA {what}"), [], |row| row.get(0))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::ops::Range;
    use std::path::Path;

    use redisson::{ClientId, HolderId, LockName};

    use super::super::{folder, schema};
    use super::*;
    use crate::model::types::{
        Acknowledgement, Certainty, Ending, LockId, OperatorAction, PastHold, ProblemKind, Since,
    };

    const MIB: u64 = 1024 * 1024;

    fn table(folder: &Path, limit: u64) -> Table {
        let lock = folder::create(folder).unwrap();
        let connection = schema::open(&folder.join("history.db")).unwrap();
        let folder = Folder::new(folder, lock).unwrap();
        let reader = Reader::open(&folder.file()).unwrap();
        let table = Table::new((connection, folder), reader, SteadyMillis(1_000)).unwrap();
        Table { first: 1_000, set: 0, settled: SteadyMillis(0), limit, ..table }
    }

    fn lock(at: u64) -> LockId {
        let name = LockName::new(format!("orders:{}", at * 7_919 % 10_007).into_bytes()).unwrap();
        LockId { deployment: "main".into(), db: 0, name }
    }

    fn since(at: u64) -> Since {
        Since { at: SteadyMillis(at), exact: true }
    }

    fn id(at: u64) -> HolderId {
        HolderId::new(ClientId::from_random([7; 16]), i64::try_from(at).unwrap())
    }

    /// Returns a hold of one millisecond for each of these instants.
    fn holds(ended: Range<u64>) -> Vec<ArchiveEntry> {
        let hold = |at| {
            let to = SteadyMillis(at + 1);
            let past =
                PastHold { id: id(at).into(), since: since(at), to, ended: Ending::Released };
            ArchiveEntry::Ended(lock(at), past)
        };
        ended.map(hold).collect()
    }

    #[test]
    fn an_acknowledgement_withdrawn_while_the_disk_is_full_does_not_return() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = table(folder.path(), MAX_BYTES);
        let (problem, now) = (ProblemKind::Leaked, SteadyMillis::now());
        let until = now.plus(30 * 24 * 3_600_000);
        let word = Acknowledgement { by: "a".to_owned(), reason: "b".to_owned(), at: now, until };
        let found = ArchiveEntry::Problem(lock(1), problem, Certainty::Certain, now);
        let acknowledged = ArchiveEntry::Acknowledged(lock(1), problem, word.into());
        let again = acknowledged.clone();
        let withdrawn = ArchiveEntry::Unacknowledged(lock(1), problem, now);
        let kept = |table: &Table| {
            let restored = table.reader.restored().unwrap();
            restored.get(&lock(1)).is_some_and(|lock| !lock.acknowledged.is_empty())
        };
        table.write_all(vec![found, acknowledged], 0, false, now).unwrap();
        assert!(kept(&table));
        table.connection.execute_batch("PRAGMA query_only = 1").unwrap();
        let mut batch = holds(0..3);
        batch.extend([again, withdrawn]);
        table.write_all(batch, 0, false, now).unwrap_err();
        table.write_all(holds(3..6), 0, false, now).unwrap_err();
        assert_eq!(table.unwritten.len(), 1, "the others leave a gap");
        table.connection.execute_batch("PRAGMA query_only = 0").unwrap();
        assert!(kept(&table));
        table.write_all(Vec::new(), 0, false, now).unwrap();
        assert!(!kept(&table) && table.unwritten.is_empty());
    }

    fn write(table: &mut Table, batch: &[ArchiveEntry]) {
        table.write(batch, 0, false, SteadyMillis(1_000_000)).unwrap();
    }

    /// Returns the size of the file after all changes.
    fn size(table: &Table) -> u64 {
        table.number("page_count").unwrap() * table.number("page_size").unwrap()
    }

    #[test]
    fn the_file_stays_below_its_limit_at_any_rate() {
        let folder = tempfile::tempdir().unwrap();
        let (limit, batch) = (4 * MIB, BATCH as u64 / 4);
        let mut table = table(folder.path(), limit);
        write(&mut table, &[ArchiveEntry::Began(lock(1), id(1).into(), since(1))]);
        let mut largest = 0;
        for i in 1..=16 {
            write(&mut table, &holds(i * batch..(i + 1) * batch));
            largest = largest.max(size(&table));
        }
        assert!((limit..limit + 2 * MIB).contains(&largest), "{largest} bytes");
        let of = |query: &str| -> Option<i64> {
            table.connection.query_row(query, [], |row| row.get(0)).unwrap()
        };
        assert_eq!(of("SELECT max(ended) FROM hold"), Some(17 * 5_000), "the newest stay");
        assert!(of("SELECT min(ended) FROM hold") > Some(5 * 5_000), "the oldest are gone");
        assert_eq!(of("SELECT began FROM hold WHERE ended IS NULL"), Some(1), "it lasts");
    }

    #[test]
    fn a_flood_of_operators_actions_stays_below_the_limit_and_rejected_ones_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let (limit, now) = (2 * MIB, SteadyMillis(1_000));
        let mut table = table(folder.path(), limit);
        let act = |what| {
            let action = OperatorAction {
                at: now,
                who: "anna".to_owned(),
                from: IpAddr::from([127, 0, 0, 1]),
                what,
                subject: "lock".to_owned(),
                reason: "x".repeat(500),
                was: String::new(),
                outcome: String::new(),
            };
            ArchiveEntry::Acted(lock(1), Box::new(action))
        };
        let mut flood = |what, number: usize| {
            let batch: Vec<ArchiveEntry> = (0..1_000).map(|_| act(what)).collect();
            for _ in 0..number {
                write(&mut table, &batch);
                assert!(size(&table) < 2 * limit, "{} bytes", size(&table));
            }
            let count = |rows: &str| -> i64 {
                let query = format!("SELECT count(*) FROM {rows}");
                table.connection.query_row(&query, [], |row| row.get(0)).unwrap()
            };
            (count("hold"), count("act WHERE what = 'force_released'"))
        };
        assert_eq!(flood("force_released", 1), (0, 1_000));
        assert_eq!(flood("release_rejected", 9), (0, 1_000), "the others stay");
        flood("acknowledged", 9);
    }

    #[test]
    fn the_names_of_holders_that_never_return_leave_room_for_holds() {
        let folder = tempfile::tempdir().unwrap();
        let limit = 12 * MIB;
        let mut table = table(folder.path(), limit);
        write(&mut table, &holds(0..1_000));
        let (batch, now) = (MAX_NAMES as u64, SteadyMillis(1_000_000));
        for i in 0..6 {
            let named = |n: u64| ArchiveEntry::Named {
                owner: id(n).to_string(),
                name: "python3@web-7".to_owned(),
                at: SteadyMillis(n),
            };
            let names: Vec<_> = (i * batch..(i + 1) * batch).map(named).collect();
            table.write(&names, 0, true, now).unwrap();
        }
        let of = |query: &str| -> i64 {
            table.connection.query_row(query, [], |row| row.get(0)).unwrap()
        };
        assert_eq!(of("SELECT count(*) FROM owner"), i64::try_from(MAX_NAMES).unwrap());
        assert_eq!(of("SELECT min(seen) FROM owner"), stored(SteadyMillis(5 * batch)));
        assert_eq!(of("SELECT count(*) FROM hold"), 1_000);
        assert!(size(&table) < limit, "{} bytes", size(&table));
    }

    #[test]
    fn a_file_far_above_its_limit_shrinks_step_by_step() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = table(folder.path(), u64::MAX);
        let batch = BATCH as u64;
        for i in 0..3 {
            write(&mut table, &holds(i * batch..(i + 1) * batch));
        }
        let (before, limit) = (size(&table), 2 * MIB);
        assert!(before > 3 * limit, "{before} bytes");
        table.limit = limit;
        let count = |table: &Table| -> usize {
            table.connection.query_row("SELECT count(*) FROM hold", [], |row| row.get(0)).unwrap()
        };
        write(&mut table, &[]);
        assert_eq!(count(&table), 3 * BATCH - PRUNE_ROWS, "one step");
        let mut steps = 1;
        while size(&table) > limit + limit / 8 {
            assert!(steps < 10, "still {} bytes, before {before}", size(&table));
            write(&mut table, &[]);
            steps += 1;
        }
    }

    #[test]
    fn entries_that_are_written_while_the_clock_is_set_are_corrected_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = table(folder.path(), MAX_BYTES);
        static READINGS: AtomicU64 = AtomicU64::new(0);
        // The clock is set during the first transaction.
        table.set_by = || if READINGS.fetch_add(1, Ordering::Relaxed) == 0 { 0 } else { 500 };
        for (batch, lost) in [(holds(2_000..2_001), 1), (Vec::new(), 0)] {
            table.write(&batch, lost, false, SteadyMillis(3_000)).unwrap();
        }
        let rows = "SELECT (SELECT sum(began) FROM hold), (SELECT count(*) FROM span)";
        let rows = table.connection.query_row(rows, [], |row| Ok((row.get(0)?, row.get(1)?)));
        assert_eq!(rows, Ok((2_000, 2)), "a span from the start, and one after the loss");
    }

    #[test]
    fn a_hold_whose_end_was_lost_ends_once_the_locks_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = table(folder.path(), MAX_BYTES);
        write(&mut table, &[ArchiveEntry::Began(lock(1), id(1).into(), since(1))]);
        let now = SteadyMillis(1_000);
        let mut snapshot = Snapshot::empty();
        let is_open = |table: &Table| -> bool {
            let open = "SELECT count(*) FROM hold WHERE ended IS NULL";
            table.connection.query_row(open, [], |row| row.get(0)).unwrap()
        };
        snapshot.complete = true;
        for _ in 0..3 {
            table.end_missed(&snapshot, now).unwrap();
        }
        assert!(is_open(&table), "nothing was lost");
        table.write(&[], 1, false, now).unwrap();
        snapshot.complete = false;
        for _ in 0..3 {
            table.end_missed(&snapshot, now).unwrap();
        }
        assert!(is_open(&table), "the first scan is not over");
        // Another server is never reached.
        snapshot.scanned = vec![("main".into(), 0)];
        table.end_missed(&snapshot, now).unwrap();
        assert!(is_open(&table), "its beginning may be unpublished");
        table.end_missed(&snapshot, now).unwrap();
        assert!(!is_open(&table));
        snapshot.complete = true;
        for _ in 0..2 {
            table.end_missed(&snapshot, now).unwrap();
        }
        assert!(table.open_rows.is_none() && !table.has_lost);
    }

    #[test]
    fn a_clock_that_is_far_ahead_for_a_moment_removes_no_rows() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = table(folder.path(), MAX_BYTES);
        let hold = "INSERT INTO hold VALUES ('main', 0, x'61', 'a', 10, 1, 20, NULL)";
        table.connection.execute(hold, []).unwrap();
        let count = |table: &Table| -> u64 {
            table.connection.query_row("SELECT count(*) FROM hold", [], |row| row.get(0)).unwrap()
        };
        let ahead = SteadyMillis(MAX_AGE_MS + 2_000);
        table.correct_clock(500, ahead).unwrap();
        assert!(table.settled <= ahead, "corrections of the clock are common");
        for step in [MAX_AGE_MS.cast_signed(), -MAX_AGE_MS.cast_signed()] {
            table.correct_clock(step, ahead).unwrap();
            table.prune(ahead.plus(SETTLING_MS - 1)).unwrap();
            assert_eq!(count(&table), 1);
        }
        table.prune(ahead.plus(SETTLING_MS)).unwrap();
        assert_eq!(count(&table), 0);
    }
}
