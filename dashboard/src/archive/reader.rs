//! Queries of the history.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redisson::{HolderId, LockName};
use rusqlite::{Connection, OpenFlags, Row, params};
use serde::Serialize;
use utoipa::ToSchema;

use super::writer::millis;
use crate::clock::{SteadyMillis, WallMillis};
use crate::model::RestoredLock;
use crate::model::types::{
    Acknowledgement, Ending, LockId, PastHold, PastHoldView, ProblemKind, Since,
};
use crate::schema::words;

/// The most holders at one instant: a lock has at most that many readers.
const MAX_HOLDERS: usize = 1_024;
/// The most holds of a lock in one answer.
const MAX_HOLDS: usize = 1_000;
/// The most events in one answer.
pub const MAX_EVENTS: usize = 1_000;
/// The most past holds of one lock that the next run restores.
const MAX_RESTORED_PER_LOCK: usize = 64;
/// The most rows of each kind that the next run restores.
const MAX_RESTORED_ROWS: usize = 500_000;
/// The detail of an operator's action.
const ACT: &str =
    "outcome || ': ' || who || ' from ' || from_ip || ', ' || was || '; why: ' || reason";
/// The time after a start within which an acknowledged problem must be found again to count as the same.
const FOUND_AGAIN_MS: u64 = 600_000;
/// The most names of owners that the next run restores.
const MAX_NAMES: usize = 25_000;
/// The most gaps in one answer.
const MAX_GAPS: usize = 100;

/// A reader of the history. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reader(Arc<Mutex<Connection>>);

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
    /// The end of the last observation; none: there was none before.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub from: Option<SteadyMillis>,
    /// The beginning of the next observation; none: there has been none since.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub to: Option<SteadyMillis>,
}

/// An event of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PastEvent {
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    #[schema(schema_with = event_words)]
    pub event: String,
    pub lock: LockId,
    /// The holder or the problem; `lock` for the whole lock.
    pub subject: String,
    /// The ending of a hold, or the certainty of a problem; or an action's operator, address, reason, state before, and
    /// outcome.
    pub detail: Option<String>,
}

/// The last five are an operator's actions.
fn event_words() -> utoipa::openapi::Object {
    words([
        "taken",
        "ended",
        "problem",
        "cleared",
        "acknowledged",
        "unacknowledged",
        "force_released",
        "place_removed",
        "release_rejected",
    ])
}

impl Reader {
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(Duration::from_secs(1))?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        let connection = Arc::clone(&self.0);
        let result = tokio::task::spawn_blocking(move || {
            query(&connection.lock().unwrap_or_else(PoisonError::into_inner))
        });
        result.await.unwrap_or(Err(rusqlite::Error::InvalidQuery))
    }

    /// Returns the holders of a lock at an instant.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn at(&self, lock: LockId, at: SteadyMillis) -> rusqlite::Result<HoldersAt> {
        self.query(move |connection| {
            let mut holds = connection.prepare_cached(
                "SELECT holder, began, exact, ended, how FROM hold WHERE deployment = ?1 AND db = ?2 AND name = ?3
                 AND began <= ?4 AND (ended IS NULL OR ended > ?4) ORDER BY began LIMIT ?5",
            )?;
            let key = params![&*lock.deployment, lock.db, lock.name.as_bytes(), millis(at), MAX_HOLDERS];
            let holders = holds.query_map(key, hold)?.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(HoldersAt { at, holders, gap: gap_at(connection, at)? })
        })
        .await
    }

    /// Returns the latest holds of a lock that overlap a span of time, newest first.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn holds(
        &self,
        lock: LockId,
        from: SteadyMillis,
        to: SteadyMillis,
    ) -> rusqlite::Result<Vec<PastHoldView>> {
        self.query(move |connection| {
            let mut holds = connection.prepare_cached(
                "SELECT holder, began, exact, ended, how FROM hold WHERE deployment = ?1 AND db = ?2 AND name = ?3
                 AND began <= ?5 AND (ended IS NULL OR ended >= ?4) ORDER BY began DESC LIMIT ?6",
            )?;
            let (from, to) = (millis(from), millis(to));
            let key = params![&*lock.deployment, lock.db, lock.name.as_bytes(), from, to, MAX_HOLDS];
            holds.query_map(key, hold)?.collect()
        })
        .await
    }

    /// Returns the events between two instants, at most [`MAX_EVENTS`] from either end, of one lock or of all.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn between(
        &self,
        lock: Option<LockId>,
        from: SteadyMillis,
        to: SteadyMillis,
        newest_first: bool,
    ) -> rusqlite::Result<Vec<PastEvent>> {
        self.query(move |connection| {
            let order = if newest_first { "DESC" } else { "ASC" };
            let mut all = Vec::new();
            for (event, table, time, subject, detail) in [
                ("'taken'", "hold", "began", "holder", "NULL"),
                ("'ended'", "hold", "ended", "holder", "how"),
                ("'problem'", "problem", "began", "problem", "certainty"),
                ("'cleared'", "problem", "cleared", "problem", "certainty"),
                ("what", "act", "at", "subject", ACT),
            ] {
                let of_lock = match &lock {
                    Some(_) => "AND deployment = ?4 AND db = ?5 AND name = ?6",
                    None => "",
                };
                let mut events = connection.prepare_cached(&format!(
                    "SELECT {time}, deployment, db, name, {subject}, {detail}, {event} FROM {table}
                     WHERE {time} BETWEEN ?1 AND ?2 {of_lock} ORDER BY {time} {order} LIMIT ?3"
                ))?;
                let (from, to) = (millis(from), millis(to));
                let rows = match &lock {
                    Some(lock) => {
                        let name = lock.name.as_bytes();
                        let of = params![from, to, MAX_EVENTS, &*lock.deployment, lock.db, name];
                        events.query_map(of, past_event)?.collect::<rusqlite::Result<Vec<_>>>()?
                    }
                    None => events
                        .query_map(params![from, to, MAX_EVENTS], past_event)?
                        .collect::<rusqlite::Result<Vec<_>>>()?,
                };
                all.extend(rows.into_iter().flatten());
            }
            all.sort_by_key(|event| event.at);
            if newest_first {
                all.reverse();
            }
            all.truncate(MAX_EVENTS);
            Ok(all)
        })
        .await
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
            let spans = spans.query_map(params![millis(from), millis(to), MAX_GAPS], |row| {
                Ok((instant(row.get(0)?), instant(row.get(1)?)))
            })?;
            let mut gaps = Vec::new();
            let mut observed_to = None;
            for span in spans {
                let (began, alive) = span?;
                if observed_to.unwrap_or(from) < began {
                    gaps.push(Gap { from: observed_to, to: Some(began) });
                }
                observed_to = observed_to.max(Some(alive));
            }
            if observed_to.unwrap_or(from) < to {
                gaps.push(Gap { from: observed_to, to: None });
            }
            Ok(gaps)
        })
        .await
    }

    /// Returns the names of owners that earlier runs have learned, the latest last.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn owner_names(&self) -> rusqlite::Result<Vec<(String, String)>> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut restored: HashMap<LockId, RestoredLock> = HashMap::new();
        let mut past = connection.prepare(
            "SELECT deployment, db, name, holder, began, exact, ended, how FROM (
               SELECT *, row_number() OVER (PARTITION BY deployment, db, name ORDER BY ended DESC) AS n FROM hold
               WHERE ended IS NOT NULL) WHERE n <= ?1 ORDER BY ended LIMIT ?2",
        )?;
        let mut rows = past.query(params![MAX_RESTORED_PER_LOCK, MAX_RESTORED_ROWS])?;
        while let Some(row) = rows.next()? {
            let how: String = row.get(7)?;
            let ended = Ending::ALL.into_iter().find(|ending| ending.as_str() == how);
            let (Some(lock), Some(id)) = (lock(row, 0)?, holder(row, 3)?) else { continue };
            let since = Since { at: instant(row.get(4)?), exact: row.get(5)? };
            let to = instant(row.get(6)?);
            if let Some(ended) = ended {
                restored.entry(lock).or_default().past.push(PastHold { id, since, to, ended });
            }
        }
        let mut open = connection.prepare(
            "SELECT deployment, db, name, holder, began, exact FROM hold WHERE ended IS NULL LIMIT ?1",
        )?;
        let mut rows = open.query([MAX_RESTORED_ROWS])?;
        while let Some(row) = rows.next()? {
            let (Some(lock), Some(id)) = (lock(row, 0)?, holder(row, 3)?) else { continue };
            let since = Since { at: instant(row.get(4)?), exact: row.get(5)? };
            restored.entry(lock).or_default().holds.push((id, since));
        }
        let mut open = connection.prepare(
            "SELECT deployment, db, name, problem, began FROM problem WHERE cleared IS NULL LIMIT ?1",
        )?;
        let mut rows = open.query([MAX_RESTORED_ROWS])?;
        while let Some(row) = rows.next()? {
            let problem: String = row.get(3)?;
            let problem = ProblemKind::ALL.into_iter().find(|kind| kind.as_str() == problem);
            let (Some(lock), Some(problem)) = (lock(row, 0)?, problem) else { continue };
            restored.entry(lock).or_default().problems.push((problem, instant(row.get(4)?)));
        }
        let now = SteadyMillis::now();
        let found_by = SteadyMillis(now.0.saturating_add(FOUND_AGAIN_MS));
        let mut acknowledgements = connection.prepare(
            "SELECT deployment, db, name, problem, who, reason, at, until FROM acknowledged WHERE until > ?1 LIMIT ?2",
        )?;
        let mut rows = acknowledgements.query(params![millis(now), MAX_RESTORED_ROWS])?;
        while let Some(row) = rows.next()? {
            let word: String = row.get(3)?;
            let problem = ProblemKind::ALL.into_iter().find(|kind| kind.as_str() == word);
            let (Some(lock), Some(problem)) = (lock(row, 0)?, problem) else { continue };
            let acknowledgement = Acknowledgement {
                by: row.get(4)?,
                reason: row.get(5)?,
                at: instant(row.get(6)?),
                until: instant(row.get(7)?),
            };
            let acknowledged = &mut restored.entry(lock).or_default().acknowledged;
            acknowledged.push((problem, Arc::new(acknowledgement), found_by));
        }
        Ok(restored)
    }
}

fn gap_at(connection: &Connection, at: SteadyMillis) -> rusqlite::Result<Option<Gap>> {
    let one = |query: &str| -> rusqlite::Result<Option<i64>> {
        connection.prepare_cached(query)?.query_row([millis(at)], |row| row.get(0))
    };
    let observed = one("SELECT count(*) FROM span WHERE began <= ?1 AND alive >= ?1")?;
    if observed.is_some_and(|spans| spans > 0) {
        return Ok(None);
    }
    Ok(Some(Gap {
        from: one("SELECT max(alive) FROM span WHERE alive < ?1")?.map(instant),
        to: one("SELECT min(began) FROM span WHERE began > ?1")?.map(instant),
    }))
}

fn hold(row: &Row<'_>) -> rusqlite::Result<PastHoldView> {
    let how: Option<String> = row.get(4)?;
    let ended = how.map(|how| {
        let known = Ending::ALL.into_iter().find(|ending| ending.as_str() == how);
        known.map_or("unseen", Ending::as_str)
    });
    Ok(PastHoldView {
        id: row.get(0)?,
        since: Since { at: instant(row.get(1)?), exact: row.get(2)? },
        to: row.get::<_, Option<i64>>(3)?.map(instant),
        ended,
    })
}

/// Parses one event; none if the row's name cannot be a lock's.
fn past_event(row: &Row<'_>) -> rusqlite::Result<Option<PastEvent>> {
    let Some(lock) = lock(row, 1)? else { return Ok(None) };
    let (at, subject, detail) = (instant(row.get(0)?), row.get(4)?, row.get(5)?);
    let event = row.get(6)?;
    Ok(Some(PastEvent { at, event, lock, subject, detail }))
}

fn lock(row: &Row<'_>, from: usize) -> rusqlite::Result<Option<LockId>> {
    let deployment: String = row.get(from)?;
    let name: Vec<u8> = row.get(from + 2)?;
    let db = row.get(from + 1)?;
    Ok(LockName::new(name).ok().map(|name| LockId { deployment: deployment.into(), db, name }))
}

fn holder(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<HolderId>> {
    let text: String = row.get(at)?;
    Ok(HolderId::parse(text.as_bytes()))
}

fn instant(millis: i64) -> SteadyMillis {
    WallMillis(u64::try_from(millis).unwrap_or(0)).to_steady()
}
