//! Queries of the history.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OpenFlags, Row, params};
use serde::Serialize;
use utoipa::ToSchema;

use super::MAX_NAMES;
use super::columns::{holder, instant, lock, problem, since, stored};
use crate::clock::SteadyMillis;
use crate::model::RestoredLock;
use crate::model::types::{
    Acknowledgement, Certainty, Ending, LockId, PastEnding, PastHold, PastHoldView, ProblemKind,
};

/// The maximum number of holders at one instant, since a lock has at most that many readers.
const MAX_HOLDERS: usize = 1_024;
/// The maximum number of holds of a lock that are searched for those that had ended. A lock that is taken often has a
/// million.
const MAX_SEARCHED: usize = 20_000;
/// The maximum number of holds of a lock in one answer.
const MAX_HOLDS: usize = 1_000;
/// The maximum number of past holds of one lock that the next run restores.
const MAX_RESTORED_PER_LOCK: usize = 64;
/// The maximum number of rows of each kind that the next run restores.
const MAX_RESTORED_ROWS: usize = 500_000;
/// The maximum number of gaps in one answer.
const MAX_GAPS: usize = 1_000;

/// A reader of the history. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reader {
    connection: Arc<SerialConnection>,
    /// The connection for queries that may take long, so that other queries do not wait for them.
    searches: Arc<SerialConnection>,
}

/// A connection that runs one query at a time. The others wait without a thread, however many there are.
#[derive(Debug)]
struct SerialConnection {
    turn: Arc<tokio::sync::Mutex<()>>,
    connection: Mutex<Connection>,
}

/// The holders of a lock at an instant.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct HoldersAt {
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    /// The holds that had begun by then and had not ended.
    pub holders: Vec<PastHoldView>,
    /// The gap around the instant, if nobody observed it.
    pub gap: Option<Gap>,
}

/// A time without observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Gap {
    /// The end of the last observation, or `None` if there was none before.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub from: Option<SteadyMillis>,
    /// The beginning of the next observation, or `None` if there has been none since.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub to: Option<SteadyMillis>,
}

impl Reader {
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        let (connection, searches) = (read_only(path)?, read_only(path)?);
        Ok(Self {
            connection: Arc::new(SerialConnection::new(connection)),
            searches: Arc::new(SerialConnection::new(searches)),
        })
    }

    /// Reads another file from now on, and so do all clones.
    pub(super) fn change_to(&self, path: &Path) -> rusqlite::Result<()> {
        let (connection, searches) = (read_only(path)?, read_only(path)?);
        *self.connection.lock() = connection;
        *self.searches.lock() = searches;
        Ok(())
    }

    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        self.connection.run(query).await
    }

    /// Runs a query that may take long.
    pub(super) async fn search<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        self.searches.run(query).await
    }

    /// Returns the holders of a lock at an instant, as far as [`Self::holds`] finds them.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn at(&self, lock: LockId, at: SteadyMillis) -> rusqlite::Result<HoldersAt> {
        self.query(move |connection| {
            let mut holders = holds(connection, &lock, at.plus(1), at, MAX_HOLDERS)?;
            holders.reverse();
            Ok(HoldersAt { at, holders, gap: gap_at(connection, at)? })
        })
        .await
    }

    /// Returns the latest holds of a lock that overlap a span of time, newest first. Those that lasted while thousands of
    /// others began, which only readers can, are left out once they have ended.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn holds(
        &self,
        lock: LockId,
        from: SteadyMillis,
        to: SteadyMillis,
    ) -> rusqlite::Result<Vec<PastHoldView>> {
        self.query(move |connection| holds(connection, &lock, from, to, MAX_HOLDS)).await
    }

    /// Returns the gaps between two instants.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn gaps(&self, from: SteadyMillis, to: SteadyMillis) -> rusqlite::Result<Vec<Gap>> {
        self.query(move |connection| {
            let mut spans = connection.prepare_cached(
                "SELECT began, alive FROM span WHERE alive >= ?1 AND began <= ?2 ORDER BY began LIMIT ?3",
            )?;
            let spans = spans.query_map(params![stored(from), stored(to), MAX_GAPS], |row| {
                Ok((instant(row.get(0)?), instant(row.get(1)?)))
            })?;
            let mut gaps = Vec::new();
            let (mut observed_to, mut count) = (observed_before(connection, from)?, 0);
            for span in spans {
                count += 1;
                let (began, alive) = span?;
                if observed_to.max(Some(from)) < Some(began) {
                    gaps.push(Gap { from: observed_to, to: Some(began) });
                }
                observed_to = observed_to.max(Some(alive));
            }
            if observed_to.max(Some(from)) < Some(to) && count < MAX_GAPS {
                gaps.push(Gap { from: observed_to, to: observed_after(connection, to)? });
            }
            Ok(gaps)
        })
        .await
    }

    /// Returns the names of owners that earlier runs have learned, latest last.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn owner_names(&self) -> rusqlite::Result<Vec<(String, String)>> {
        let connection = self.connection.lock();
        let mut names = connection.prepare(
            "SELECT id, name FROM (SELECT * FROM owner ORDER BY seen DESC LIMIT ?1) ORDER BY seen",
        )?;
        let names = names.query_map([MAX_NAMES], |row| Ok((row.get(0)?, row.get(1)?)))?;
        names.collect()
    }

    /// Returns the state of each lock at the end of an earlier run: its last holders and problems, and its latest past holds.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn restored(&self) -> rusqlite::Result<HashMap<LockId, RestoredLock>> {
        self.restored_up_to(MAX_RESTORED_ROWS)
    }

    /// Returns the state with at most this number of rows of each kind.
    pub(super) fn restored_up_to(
        &self,
        limit: usize,
    ) -> rusqlite::Result<HashMap<LockId, RestoredLock>> {
        let connection = self.connection.lock();
        let mut restored = HashMap::new();
        restore_past_holds(&connection, limit, &mut restored)?;
        restore_holds(&connection, limit, &mut restored)?;
        restore_problems(&connection, limit, &mut restored)?;
        restore_acknowledgements(&connection, limit, &mut restored)?;
        Ok(restored)
    }
}

fn read_only(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.busy_timeout(Duration::from_secs(1))?;
    Ok(connection)
}

fn restore_past_holds(
    connection: &Connection,
    limit: usize,
    restored: &mut HashMap<LockId, RestoredLock>,
) -> rusqlite::Result<()> {
    // These are the newest of all, in the order in which they ended.
    let mut past = connection.prepare(
        "SELECT deployment, db, name, holder, began, exact, ended, how FROM (
           SELECT * FROM (
             SELECT *, row_number() OVER (PARTITION BY deployment, db, name ORDER BY ended DESC) AS n FROM hold
             WHERE ended IS NOT NULL) WHERE n <= ?1 ORDER BY ended DESC LIMIT ?2) ORDER BY ended",
    )?;
    let mut rows = past.query(params![MAX_RESTORED_PER_LOCK, limit])?;
    while let Some(row) = rows.next()? {
        let how: String = row.get(7)?;
        let (Some(lock), Some(ended)) = (lock(row, 0)?, Ending::parse(&how)) else { continue };
        let (id, since) = (holder(row, 3)?, since(row, 4)?);
        let past = PastHold { id, since, to: instant(row.get(6)?), ended };
        restored.entry(lock).or_default().past.push(past);
    }
    Ok(())
}

fn restore_holds(
    connection: &Connection,
    limit: usize,
    restored: &mut HashMap<LockId, RestoredLock>,
) -> rusqlite::Result<()> {
    let mut open = connection.prepare(
        "SELECT deployment, db, name, holder, began, exact FROM hold WHERE ended IS NULL LIMIT ?1",
    )?;
    let mut rows = open.query([limit])?;
    while let Some(row) = rows.next()? {
        let Some(lock) = lock(row, 0)? else { continue };
        let hold = (holder(row, 3)?, since(row, 4)?);
        restored.entry(lock).or_default().holds.push(hold);
    }
    Ok(())
}

fn restore_problems(
    connection: &Connection,
    limit: usize,
    restored: &mut HashMap<LockId, RestoredLock>,
) -> rusqlite::Result<()> {
    let mut open = connection.prepare(
        "SELECT deployment, db, name, problem, began, certainty, latest FROM problem WHERE cleared IS NULL LIMIT ?1",
    )?;
    let mut rows = open.query([limit])?;
    while let Some(row) = rows.next()? {
        let (Some(lock), Some(problem)) = (lock(row, 0)?, problem(row, 3)?) else { continue };
        let certainty: String = row.get(5)?;
        let restored = restored.entry(lock).or_default();
        restored.problems.push((problem, instant(row.get(4)?)));
        if problem == ProblemKind::Expired {
            restored.returned_late = certainty == Certainty::Certain.as_str();
            restored.expired_again = row.get::<_, Option<i64>>(6)?.map(instant);
        }
    }
    Ok(())
}

fn restore_acknowledgements(
    connection: &Connection,
    limit: usize,
    restored: &mut HashMap<LockId, RestoredLock>,
) -> rusqlite::Result<()> {
    // An acknowledgement ends with its problem, also if that ended unobserved.
    let mut acknowledgements = connection.prepare(
        "SELECT deployment, db, name, problem, who, reason, at, until
         FROM acknowledged JOIN problem USING (deployment, db, name, problem)
         WHERE cleared IS NULL AND began <= at AND until > ?1 LIMIT ?2",
    )?;
    let mut rows = acknowledgements.query(params![stored(SteadyMillis::now()), limit])?;
    while let Some(row) = rows.next()? {
        let (Some(lock), Some(problem)) = (lock(row, 0)?, problem(row, 3)?) else { continue };
        let acknowledgement = Acknowledgement {
            by: row.get(4)?,
            reason: row.get(5)?,
            at: instant(row.get(6)?),
            until: instant(row.get(7)?),
        };
        let acknowledged = &mut restored.entry(lock).or_default().acknowledged;
        acknowledged.push((problem, Arc::new(acknowledgement)));
    }
    Ok(())
}

impl SerialConnection {
    fn new(connection: Connection) -> Self {
        Self { turn: Arc::default(), connection: Mutex::new(connection) }
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock()
    }

    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        // The thread keeps the turn, since this future may be dropped before the query has ended.
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let shared = Arc::clone(self);
        let result = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            query(&shared.lock())
        });
        result.await.unwrap_or(Err(rusqlite::Error::InvalidQuery))
    }
}

pub(super) fn gap_at(connection: &Connection, at: SteadyMillis) -> rusqlite::Result<Option<Gap>> {
    let observed = "SELECT EXISTS (SELECT * FROM span WHERE began <= ?1 AND alive >= ?1)";
    if connection.prepare_cached(observed)?.query_row([stored(at)], |row| row.get(0))? {
        return Ok(None);
    }
    Ok(Some(Gap { from: observed_before(connection, at)?, to: observed_after(connection, at)? }))
}

/// Returns the end of the last observation before an instant.
fn observed_before(
    connection: &Connection,
    at: SteadyMillis,
) -> rusqlite::Result<Option<SteadyMillis>> {
    nearest(connection, "SELECT max(alive) FROM span WHERE alive < ?1", at)
}

/// Returns the beginning of the next observation after an instant.
fn observed_after(
    connection: &Connection,
    at: SteadyMillis,
) -> rusqlite::Result<Option<SteadyMillis>> {
    nearest(connection, "SELECT min(began) FROM span WHERE began > ?1", at)
}

fn nearest(
    connection: &Connection,
    query: &str,
    at: SteadyMillis,
) -> rusqlite::Result<Option<SteadyMillis>> {
    let found: Option<i64> =
        connection.prepare_cached(query)?.query_row([stored(at)], |row| row.get(0))?;
    Ok(found.map(instant))
}

/// Returns the latest holds of a lock that began at `to` or before and ended at `from` or later, newest first.
fn holds(
    connection: &Connection,
    lock: &LockId,
    from: SteadyMillis,
    to: SteadyMillis,
    limit: usize,
) -> rusqlite::Result<Vec<PastHoldView>> {
    let columns = "SELECT holder, began, exact, ended, how FROM";
    let begun = "WHERE deployment = ?1 AND db = ?2 AND name = ?3 AND began <= ?4";
    let mut holds = connection.prepare_cached(&format!(
        "{columns} (SELECT * FROM hold {begun} ORDER BY began DESC LIMIT ?5) WHERE ended >= ?6
         UNION ALL {columns} hold INDEXED BY hold_open {begun} AND ended IS NULL ORDER BY began DESC LIMIT ?7"
    ))?;
    let (to, from) = (stored(to), stored(from));
    let name = lock.name.as_bytes();
    let key = params![&*lock.deployment, lock.db, name, to, MAX_SEARCHED, from, limit];
    holds.query_map(key, |row| hold_from(row, 0))?.collect()
}

/// Parses a hold whose holder is in this column.
pub(super) fn hold_from(row: &Row<'_>, first: usize) -> rusqlite::Result<PastHoldView> {
    let how: Option<String> = row.get(first + 4)?;
    let ended = how.map(|how| PastEnding::parse(&how));
    Ok(PastHoldView {
        id: row.get(first)?,
        since: since(row, first + 1)?,
        to: row.get::<_, Option<i64>>(first + 3)?.map(instant),
        ended,
    })
}

#[cfg(test)]
mod tests {
    use redisson::LockName;

    use super::super::schema;
    use super::*;

    #[tokio::test]
    async fn only_the_latest_holds_of_a_busy_lock_are_searched_for_those_that_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.db");
        let connection = schema::open(&path).unwrap();
        let reader = Reader::open(&path).unwrap();
        let (name, at) = (LockName::new(&b"a"[..]).unwrap(), SteadyMillis(50_000));
        let lock = LockId { deployment: "main".into(), db: 0, name };
        let held = async || -> Vec<String> {
            let at = reader.at(lock.clone(), at).await.unwrap().holders;
            let during = reader.holds(lock.clone(), SteadyMillis(49_000), SteadyMillis(50_000));
            assert_eq!(during.await.unwrap().len(), at.len());
            at.into_iter().map(|hold| hold.id).collect()
        };
        connection
            .execute_batch(
                "INSERT INTO hold VALUES ('main', 0, x'61', 'lasts', 1000, 1, NULL, NULL),
                 ('main', 0, x'61', 'ended', 2000, 1, 90000, 'released')",
            )
            .unwrap();
        assert_eq!(held().await, ["lasts", "ended"], "the oldest first");
        let others = "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?1)
            INSERT INTO hold SELECT 'main', 0, x'61', 'other', 3000 + n, 1, 3000 + n, 'released' FROM number";
        connection.execute(others, [MAX_SEARCHED]).unwrap();
        assert_eq!(held().await, ["lasts"]);
    }
}
