//! Writes entries to the history.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, Transaction, params};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::columns::stored;
use super::missed::Unsure;
use super::{MAX_AGE_MS, MAX_BYTES, MAX_NAMES};
use crate::clock::{self, SteadyMillis};
use crate::model::actor::Hub;
use crate::model::types::{
    Acknowledgement, ArchiveEntry, Certainty, HolderField, LockId, OperatorAction, PastHold,
    ProblemKind, Since, Snapshot,
};

/// The most entries in one transaction.
const BATCH: usize = 20_000;
/// The interval at which entries and the time of observation are written.
const INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which rows are removed by age, missed ends are added, and free pages released.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// The time after a start, or a large step of the wall clock, in which no row is removed by age, in milliseconds. A clock
/// that is far ahead for a moment would remove everything of earlier runs.
const SETTLING_MS: u64 = 3_600_000;
/// The smallest step of the wall clock that is large, in milliseconds.
const LARGE_STEP_MS: u64 = 60_000;
/// The most rows of a kind that are removed after a transaction, so that the next entries do not wait long. A
/// transaction adds no more, so the removal of the oldest rows keeps up with any rate.
const PRUNE_ROWS: usize = BATCH;
/// The most free pages that are released after a transaction.
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

/// The writer of the history. Its folder is locked as long as this value exists.
#[derive(Debug)]
pub struct Writer {
    table: Table,
    entries: mpsc::Receiver<ArchiveEntry>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Table {
    connection: Connection,
    /// The row of the current span of observation.
    span: i64,
    /// The beginning of this run, by the wall clock.
    first: i64,
    /// The offset of the wall clock at the last correction of rows.
    set: i64,
    /// The instant before which no row is removed by age.
    settled: SteadyMillis,
    /// The most bytes that rows may need.
    limit: u64,
    /// True if entries were lost since rows were last removed.
    has_lost: bool,
    /// The rows that may lack an end, since entries were lost before that.
    unsure: Option<Unsure>,
    _lock: File,
}

impl Writer {
    pub(super) fn new(
        connection: Connection,
        entries: mpsc::Receiver<ArchiveEntry>,
        lost: Arc<AtomicU64>,
        lock: File,
        now: SteadyMillis,
    ) -> rusqlite::Result<Self> {
        let span = begin_span(&connection, now)?;
        let (first, set, limit) = (stored(now), clock::set_by(), MAX_BYTES);
        let settled = now.plus(SETTLING_MS);
        let (has_lost, unsure) = (false, None);
        let table =
            Table { connection, span, first, set, settled, limit, has_lost, unsure, _lock: lock };
        Ok(Self { table, entries, lost })
    }

    /// Writes until all senders have been dropped. After a loss of entries, the snapshots show what has ended.
    pub async fn run(self, hub: Arc<Hub>) {
        let Self { mut table, mut entries, lost } = self;
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pruned = Instant::now();
        let mut open = true;
        while open {
            // The entries of a second share a transaction, since many short transactions would be expensive.
            tick.tick().await;
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
                    let mut written = table.write(&batch, missed, prune, now);
                    if prune && written.is_ok() {
                        written = table.end_missed(&snapshot, now);
                    }
                    (table, written)
                });
                let Ok((same, written)) = written.await else { return };
                table = same;
                if let Err(error) = written {
                    tracing::error!(%error, "history write failed; the history has a gap");
                    lost.fetch_add(1, Ordering::Relaxed);
                }
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

impl Table {
    /// Writes entries. If some were lost, the span ends, which leaves a gap.
    fn write(
        &mut self,
        batch: &[ArchiveEntry],
        lost: u64,
        prune: bool,
        now: SteadyMillis,
    ) -> rusqlite::Result<()> {
        let by = clock::set_by().saturating_sub(self.set);
        if by != 0 {
            self.correct_clock(by, now)?;
            self.set += by;
        }
        if lost > 0 {
            tracing::warn!(lost, "history has a gap: too many entries");
            self.span = begin_span(&self.connection, now)?;
            self.has_lost = true;
        }
        let transaction = self.connection.transaction()?;
        for entry in batch {
            insert(&transaction, entry)?;
        }
        let alive = [stored(now), self.span];
        transaction
            .prepare_cached("UPDATE span SET alive = ?1 WHERE rowid = ?2")?
            .execute(alive)?;
        transaction.commit()?;
        if prune {
            self.prune(now)?;
            self.limit_names()?;
        }
        self.limit_size(prune)
    }

    /// Ends the holds and problems whose end was lost before the previous call. Every entry about the snapshot must have been
    /// written, or lost.
    fn end_missed(&mut self, snapshot: &Snapshot, now: SteadyMillis) -> rusqlite::Result<()> {
        // Until then it lacks locks that an earlier run knew.
        if !snapshot.complete {
            return Ok(());
        }
        if let Some(unsure) = self.unsure.take() {
            unsure.end(&mut self.connection, snapshot)?;
        }
        if self.has_lost {
            self.unsure = Some(Unsure::new(&self.connection, now)?);
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
        let of_tables: [(&str, &[&str]); 6] = [
            ("hold", &["began", "ended"]),
            ("problem", &["began", "cleared"]),
            ("act", &["at"]),
            ("acknowledged", &["at", "until"]),
            ("span", &["began", "alive"]),
            ("owner", &["seen"]),
        ];
        for (table, columns) in of_tables {
            for column in columns {
                let update =
                    format!("UPDATE {table} SET {column} = {column} + ?1 WHERE {column} >= ?2");
                transaction.execute(&update, [by, self.first])?;
            }
        }
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

fn insert(to: &Transaction<'_>, entry: &ArchiveEntry) -> rusqlite::Result<()> {
    match entry {
        ArchiveEntry::Began(lock, holder, since) => insert_beginning(to, lock, holder, since),
        ArchiveEntry::Ended(lock, past) => insert_end(to, lock, past),
        ArchiveEntry::Forced(lock, holder, at) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "UPDATE hold SET how = 'forced' WHERE deployment = ?1 AND db = ?2 AND name = ?3
                 AND holder = ?4 AND ended = ?5",
            )?
            .execute(params![deployment, db, name, holder.text(), stored(*at)])
            .map(drop)
        }
        ArchiveEntry::Unseen(lock, holder, at) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "UPDATE hold SET ended = max(began, ?5), how = 'unseen' WHERE deployment = ?1 AND db = ?2
                 AND name = ?3 AND holder = ?4 AND ended IS NULL",
            )?
            .execute(params![deployment, db, name, holder.text(), stored(*at)])
            .map(drop)
        }
        ArchiveEntry::Problem(lock, problem, certainty, at) => {
            insert_problem(to, lock, *problem, *certainty, *at)
        }
        ArchiveEntry::Cleared(lock, problem, at) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "UPDATE problem SET cleared = max(began, ?5) WHERE deployment = ?1 AND db = ?2 AND name = ?3
                 AND problem = ?4 AND cleared IS NULL",
            )?
            .execute(params![deployment, db, name, problem.as_str(), stored(*at)])
            .map(drop)
        }
        ArchiveEntry::Acknowledged(lock, problem, acknowledgement) => {
            insert_acknowledgement(to, lock, *problem, acknowledgement)
        }
        ArchiveEntry::Unacknowledged(lock, problem, _) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "DELETE FROM acknowledged WHERE deployment = ?1 AND db = ?2 AND name = ?3 AND problem = ?4",
            )?
            .execute(params![deployment, db, name, problem.as_str()])
            .map(drop)
        }
        ArchiveEntry::Named { owner, name, at } => to
            .prepare_cached("INSERT OR REPLACE INTO owner (id, name, seen) VALUES (?1, ?2, ?3)")?
            .execute(params![owner, name, stored(*at)])
            .map(drop),
        ArchiveEntry::Acted(lock, action) => insert_action(to, lock, action),
    }
}

fn insert_beginning(
    to: &Transaction<'_>,
    lock: &LockId,
    holder: &HolderField,
    since: &Since,
) -> rusqlite::Result<()> {
    let (deployment, db, name) = key(lock);
    let (holder, began) = (holder.text(), stored(since.at));
    // The unobserved end was before this beginning.
    to.prepare_cached(
        "UPDATE hold SET ended = max(began, ?5), how = 'unseen' WHERE deployment = ?1 AND db = ?2
         AND name = ?3 AND holder = ?4 AND ended IS NULL AND began <> ?5",
    )?
    .execute(params![deployment, db, name, holder, began])?;
    to.prepare_cached(
        "INSERT OR IGNORE INTO hold (deployment, db, name, holder, began, exact)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![deployment, db, name, holder, began, since.exact])
    .map(drop)
}

fn insert_end(to: &Transaction<'_>, lock: &LockId, past: &PastHold) -> rusqlite::Result<()> {
    let (deployment, db, name) = key(lock);
    let (holder, began) = (past.id.text(), stored(past.since.at));
    let (ended, how) = (stored(past.to), past.ended.as_str());
    let closed = to
        .prepare_cached(
            "UPDATE hold SET ended = ?5, how = ?6 WHERE deployment = ?1 AND db = ?2 AND name = ?3
             AND holder = ?4 AND ended IS NULL",
        )?
        .execute(params![deployment, db, name, holder, ended, how])?;
    if closed > 0 {
        return Ok(());
    }
    to.prepare_cached(
        "INSERT INTO hold (deployment, db, name, holder, began, exact, ended, how)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![deployment, db, name, holder, began, past.since.exact, ended, how])
    .map(drop)
}

fn insert_problem(
    to: &Transaction<'_>,
    lock: &LockId,
    problem: ProblemKind,
    certainty: Certainty,
    at: SteadyMillis,
) -> rusqlite::Result<()> {
    let (deployment, db, name) = key(lock);
    let (problem, certainty) = (problem.as_str(), certainty.as_str());
    let (began, now) = (stored(at), stored(SteadyMillis::now()));
    // A problem that is found again began no earlier than it was cleared, even if its condition has been true since
    // then. An end after the current instant comes from a clock that has been set back.
    to.prepare_cached(
        "INSERT INTO problem (deployment, db, name, problem, certainty, began)
         VALUES (?1, ?2, ?3, ?4, ?5, max(?6, coalesce((SELECT max(cleared) FROM problem
           WHERE deployment = ?1 AND db = ?2 AND name = ?3 AND problem = ?4 AND cleared <= ?7), ?6)))
         ON CONFLICT (deployment, db, name, problem) WHERE cleared IS NULL
         DO UPDATE SET certainty = excluded.certainty",
    )?
    .execute(params![deployment, db, name, problem, certainty, began, now])
    .map(drop)
}

fn insert_acknowledgement(
    to: &Transaction<'_>,
    lock: &LockId,
    problem: ProblemKind,
    acknowledgement: &Acknowledgement,
) -> rusqlite::Result<()> {
    let (deployment, db, name) = key(lock);
    let Acknowledgement { by, reason, at, until, .. } = acknowledgement;
    let (problem, at, until) = (problem.as_str(), stored(*at), stored(*until));
    to.prepare_cached(
        "INSERT OR REPLACE INTO acknowledged (deployment, db, name, problem, who, reason, at, until)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![deployment, db, name, problem, by, reason, at, until])
    .map(drop)
}

fn insert_action(
    to: &Transaction<'_>,
    lock: &LockId,
    action: &OperatorAction,
) -> rusqlite::Result<()> {
    let (deployment, db, name) = key(lock);
    let OperatorAction { at, who, from, what, subject, reason, was, outcome } = action;
    let (at, from) = (stored(*at), from.to_string());
    to.prepare_cached(
        "INSERT INTO act (deployment, db, name, at, who, from_ip, what, subject, reason, was, outcome)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute(params![deployment, db, name, at, who, from, what, subject, reason, was, outcome])
    .map(drop)
}

fn key(lock: &LockId) -> (&str, u32, &[u8]) {
    (&lock.deployment, lock.db, lock.name.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::ops::Range;
    use std::path::Path;

    use redisson::{ClientId, HolderId, LockName};

    use super::super::schema;
    use super::*;
    use crate::model::types::{Ending, PastHold, Since};

    const MIB: u64 = 1024 * 1024;

    fn table(folder: &Path, limit: u64) -> Table {
        let lock = File::create(folder.join("lock")).unwrap();
        let connection = schema::open(&folder.join("history.db")).unwrap();
        let span = begin_span(&connection, SteadyMillis(1_000)).unwrap();
        let settled = SteadyMillis(0);
        let (has_lost, unsure) = (false, None);
        Table {
            connection,
            span,
            first: 1_000,
            set: 0,
            settled,
            limit,
            has_lost,
            unsure,
            _lock: lock,
        }
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
    fn rows_of_this_run_follow_the_wall_clock_when_it_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = table(folder.path(), MAX_BYTES);
        let hold = "INSERT INTO hold VALUES ('main', 0, x'61', ?1, ?2, 1, ?3, NULL)";
        // The rows are a hold of an earlier run, one that ended in this run, one within this run, and one that lasts.
        for (holder, began, ended) in [
            ("a", 10, Some(20)),
            ("b", 30, Some(1_005)),
            ("c", 1_001, Some(1_002)),
            ("d", 1_003, None),
        ] {
            table.connection.execute(hold, params![holder, began, ended]).unwrap();
        }
        let rows = |table: &Table| -> Vec<(i64, Option<i64>)> {
            let mut rows =
                table.connection.prepare("SELECT began, ended FROM hold ORDER BY holder").unwrap();
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.map(Result::unwrap).collect()
        };
        let before = rows(&table);
        table.correct_clock(500, SteadyMillis(1_005)).unwrap();
        let right = [(10, Some(20)), (30, Some(1_505)), (1_501, Some(1_502)), (1_503, None)];
        assert_eq!(rows(&table), right);
        let began: i64 =
            table.connection.query_row("SELECT began FROM span", [], |row| row.get(0)).unwrap();
        assert_eq!(began, 1_500);
        table.correct_clock(-500, SteadyMillis(1_005)).unwrap();
        assert_eq!(rows(&table), before);
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
        snapshot.complete = true;
        table.end_missed(&snapshot, now).unwrap();
        assert!(is_open(&table), "its beginning may be unpublished");
        table.end_missed(&snapshot, now).unwrap();
        assert!(!is_open(&table));
        assert!(table.unsure.is_none() && !table.has_lost);
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
