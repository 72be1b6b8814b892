//! Writes entries to the history.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, Transaction, params};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{MAX_AGE_MS, MAX_BYTES};
use crate::clock::{self, SteadyMillis};
use crate::model::types::{ArchiveEntry, LockId};

/// The most entries in one transaction.
const BATCH: usize = 20_000;
/// The interval at which entries, and the time of observation, are written.
const INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which old rows are removed.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// Rows removed at once if the file is too large.
const PRUNE_ROWS: u64 = 20_000;

/// The writer of the history. Its folder is locked for as long as this lives.
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
        let table =
            Table { connection, span, first: millis(now), set: clock::set_by(), _lock: lock };
        Ok(Self { table, entries, lost })
    }

    /// Writes until all senders are gone.
    pub async fn run(self) {
        let Self { mut table, mut entries, lost } = self;
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pruned = Instant::now();
        let mut open = true;
        while open {
            // The entries of a second share a transaction, since many short ones would be costly.
            tick.tick().await;
            loop {
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
                // On a thread of its own, since it waits for the disk.
                let written = tokio::task::spawn_blocking(move || {
                    let written = table.write(&batch, missed, prune, SteadyMillis::now());
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
    let now = millis(now);
    connection.execute("INSERT INTO span (began, alive) VALUES (?1, ?1)", [now])?;
    Ok(connection.last_insert_rowid())
}

impl Table {
    /// Writes entries. Lost ones end the span, which leaves a gap.
    fn write(
        &mut self,
        batch: &[ArchiveEntry],
        lost: u64,
        prune: bool,
        now: SteadyMillis,
    ) -> rusqlite::Result<()> {
        let by = clock::set_by().saturating_sub(self.set);
        if by != 0 {
            self.correct_clock(by)?;
            self.set += by;
        }
        if lost > 0 {
            tracing::warn!(lost, "history has a gap: too many entries");
            self.span = begin_span(&self.connection, now)?;
        }
        let transaction = self.connection.transaction()?;
        for entry in batch {
            insert(&transaction, entry)?;
        }
        let alive = [millis(now), self.span];
        transaction
            .prepare_cached("UPDATE span SET alive = ?1 WHERE rowid = ?2")?
            .execute(alive)?;
        transaction.commit()?;
        if prune {
            self.prune(now)?;
        }
        Ok(())
    }

    /// Corrects the rows of this run after the wall clock was set.
    fn correct_clock(&mut self, by: i64) -> rusqlite::Result<()> {
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

    /// Removes old rows, and the oldest ones if the file is too large.
    fn prune(&mut self, now: SteadyMillis) -> rusqlite::Result<()> {
        let oldest = millis(SteadyMillis(now.0.saturating_sub(MAX_AGE_MS)));
        self.connection.execute("DELETE FROM hold WHERE ended < ?1", [oldest])?;
        self.connection.execute("DELETE FROM problem WHERE cleared < ?1", [oldest])?;
        self.connection.execute("DELETE FROM act WHERE at < ?1", [oldest])?;
        self.connection.execute("DELETE FROM acknowledged WHERE until < ?1", [millis(now)])?;
        self.connection.execute("DELETE FROM span WHERE alive < ?1", [oldest])?;
        self.connection.execute("DELETE FROM owner WHERE seen < ?1", [oldest])?;
        let number = |what: &str| -> rusqlite::Result<u64> {
            self.connection.query_row(&format!("PRAGMA {what}"), [], |row| row.get(0))
        };
        let used = (number("page_count")?.saturating_sub(number("freelist_count")?))
            .saturating_mul(number("page_size")?);
        if used > MAX_BYTES {
            let oldest = "DELETE FROM hold WHERE rowid IN
                (SELECT rowid FROM hold WHERE ended IS NOT NULL ORDER BY ended LIMIT ?1)";
            self.connection.execute(oldest, [PRUNE_ROWS])?;
        }
        self.connection.execute_batch("PRAGMA incremental_vacuum(2000)")
    }
}

fn insert(to: &Transaction<'_>, entry: &ArchiveEntry) -> rusqlite::Result<()> {
    match entry {
        ArchiveEntry::Began(lock, holder, since) => {
            let (deployment, db, name) = key(lock);
            let (holder, began) = (holder.to_string(), millis(since.at));
            // An unobserved end lies before this beginning.
            to.prepare_cached(
                "UPDATE hold SET ended = max(began, ?5), how = 'unseen' WHERE deployment = ?1 AND db = ?2
                 AND name = ?3 AND holder = ?4 AND ended IS NULL AND began <> ?5",
            )?
            .execute(params![deployment, db, name, holder, began])?;
            to.prepare_cached(
                "INSERT OR IGNORE INTO hold (deployment, db, name, holder, began, exact)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![deployment, db, name, holder, began, since.exact])?;
        }
        ArchiveEntry::Ended(lock, past) => {
            let (deployment, db, name) = key(lock);
            let (holder, began) = (past.id.to_string(), millis(past.since.at));
            let (ended, how) = (millis(past.to), past.ended.as_str());
            let closed = to
                .prepare_cached(
                    "UPDATE hold SET ended = ?5, how = ?6 WHERE deployment = ?1 AND db = ?2 AND name = ?3
                     AND holder = ?4 AND ended IS NULL",
                )?
                .execute(params![deployment, db, name, holder, ended, how])?;
            if closed == 0 {
                to.prepare_cached(
                    "INSERT INTO hold (deployment, db, name, holder, began, exact, ended, how)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                )?
                .execute(params![
                    deployment,
                    db,
                    name,
                    holder,
                    began,
                    past.since.exact,
                    ended,
                    how
                ])?;
            }
        }
        ArchiveEntry::Unseen(lock, holder, at) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "UPDATE hold SET ended = max(began, ?5), how = 'unseen' WHERE deployment = ?1 AND db = ?2
                 AND name = ?3 AND holder = ?4 AND ended IS NULL",
            )?
            .execute(params![deployment, db, name, holder.to_string(), millis(*at)])?;
        }
        ArchiveEntry::Problem(lock, problem, certainty, at) => {
            let (deployment, db, name) = key(lock);
            let (problem, certainty) = (problem.as_str(), certainty.as_str());
            to.prepare_cached(
                "INSERT INTO problem (deployment, db, name, problem, certainty, began)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (deployment, db, name, problem) WHERE cleared IS NULL
                 DO UPDATE SET certainty = excluded.certainty",
            )?
            .execute(params![
                deployment,
                db,
                name,
                problem,
                certainty,
                millis(*at)
            ])?;
        }
        ArchiveEntry::Cleared(lock, problem, at) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "UPDATE problem SET cleared = max(began, ?5) WHERE deployment = ?1 AND db = ?2 AND name = ?3
                 AND problem = ?4 AND cleared IS NULL",
            )?
            .execute(params![deployment, db, name, problem.as_str(), millis(*at)])?;
        }
        ArchiveEntry::Acknowledged(lock, problem, word) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "INSERT OR REPLACE INTO acknowledged (deployment, db, name, problem, who, reason, at, until)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                deployment,
                db,
                name,
                problem.as_str(),
                word.by,
                word.reason,
                millis(word.at),
                millis(word.until)
            ])?;
        }
        ArchiveEntry::Unacknowledged(lock, problem, _) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "DELETE FROM acknowledged WHERE deployment = ?1 AND db = ?2 AND name = ?3 AND problem = ?4",
            )?
            .execute(params![deployment, db, name, problem.as_str()])?;
        }
        ArchiveEntry::Named { owner, name, at } => {
            to.prepare_cached("INSERT OR REPLACE INTO owner (id, name, seen) VALUES (?1, ?2, ?3)")?
                .execute(params![owner, name, millis(*at)])?;
        }
        ArchiveEntry::Acted(lock, act) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "INSERT INTO act (deployment, db, name, at, who, from_ip, what, subject, reason, was, outcome)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?
            .execute(params![
                deployment,
                db,
                name,
                millis(act.at),
                act.who,
                act.from.to_string(),
                act.what,
                act.subject,
                act.reason,
                act.was,
                act.outcome
            ])?;
        }
    }
    Ok(())
}

fn key(lock: &LockId) -> (&str, u32, &[u8]) {
    (&lock.deployment, lock.db, lock.name.as_bytes())
}

/// Returns the instant by the wall clock, so that the next run, whose steady clock differs, can read it.
pub(super) fn millis(at: SteadyMillis) -> i64 {
    i64::try_from(at.to_wall().0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::schema;
    use super::*;

    #[test]
    fn rows_of_this_run_follow_the_wall_clock_when_it_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let lock = File::create(folder.path().join("lock")).unwrap();
        let connection = schema::open(&folder.path().join("history.db")).unwrap();
        let hold = "INSERT INTO hold VALUES ('main', 0, x'61', ?1, ?2, 1, ?3, NULL)";
        // A hold of an earlier run, one that ended in this run, one within this run, and one that lasts.
        for (holder, began, ended) in [
            ("a", 10, Some(20)),
            ("b", 30, Some(1_005)),
            ("c", 1_001, Some(1_002)),
            ("d", 1_003, None),
        ] {
            connection.execute(hold, params![holder, began, ended]).unwrap();
        }
        let span = begin_span(&connection, SteadyMillis(1_000)).unwrap();
        let mut table = Table { connection, span, first: 1_000, set: 0, _lock: lock };
        let rows = |table: &Table| -> Vec<(i64, Option<i64>)> {
            let mut rows =
                table.connection.prepare("SELECT began, ended FROM hold ORDER BY holder").unwrap();
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.map(Result::unwrap).collect()
        };
        let before = rows(&table);
        table.correct_clock(500).unwrap();
        let right = [(10, Some(20)), (30, Some(1_505)), (1_501, Some(1_502)), (1_503, None)];
        assert_eq!(rows(&table), right);
        let began: i64 =
            table.connection.query_row("SELECT began FROM span", [], |row| row.get(0)).unwrap();
        assert_eq!(began, 1_500);
        table.correct_clock(-500).unwrap();
        assert_eq!(rows(&table), before);
    }
}
