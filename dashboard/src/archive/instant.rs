//! The state of all locks at an instant, as far as the history knows it.

use rusqlite::{Connection, Row, params};
use serde::Serialize;
use utoipa::ToSchema;

use super::columns::{instant, lock, stored};
use super::reader::{Gap, Reader, gap_at, hold_from};
use super::search_deadline::SearchDeadline;
use crate::clock::SteadyMillis;
use crate::model::types::{EventFields, LockId, PastHoldView};

/// The maximum number of problems of one lock in an answer. There are fewer kinds.
const MAX_PROBLEMS: usize = 32;

/// The holds of all locks at an instant.
#[derive(Debug, Clone)]
pub struct HeldThen {
    pub at: SteadyMillis,
    /// The first holds, oldest first.
    pub holds: Vec<HeldLock>,
    /// The number of all holds at that instant.
    pub total: usize,
    /// False if finding all of them would have taken too long.
    pub complete: bool,
    /// The gap around the instant, if nobody observed it.
    pub gap: Option<Gap>,
}

/// A hold at an instant, with its lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct HeldLock {
    pub lock: LockId,
    pub hold: PastHoldView,
    /// The problems that the lock had at that instant.
    pub problems: Vec<ProblemThen>,
}

/// A problem of a lock at an instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ProblemThen {
    pub problem: String,
    pub certainty: String,
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub since: SteadyMillis,
    /// The instant at which the problem ended, or `None` while it lasts.
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub to: Option<SteadyMillis>,
}

impl Reader {
    /// Returns the holds at an instant for which `matches` returns true: their number, and the oldest of them.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn held_at(
        &self,
        at: SteadyMillis,
        limit: usize,
        matches: impl Fn(&EventFields<'_>) -> bool + Send + 'static,
    ) -> rusqlite::Result<HeldThen> {
        self.search(move |connection| {
            let (mut found, complete) = matching(connection, at, &matches)?;
            let total = found.len();
            found.sort_unstable();
            found.truncate(limit);
            let mut holds = Vec::with_capacity(found.len());
            let mut by_row = connection.prepare_cached(
                "SELECT deployment, db, name, holder, began, exact, ended, how FROM hold WHERE rowid = ?1",
            )?;
            for (_, row) in found {
                let mut rows = by_row.query([row])?;
                let Some(row) = rows.next()? else { continue };
                let Some(lock) = lock(row, 0)? else { continue };
                let (hold, problems) = (hold_from(row, 3)?, problems_at(connection, &lock, at)?);
                holds.push(HeldLock { lock, hold, problems });
            }
            Ok(HeldThen { at, holds, total, complete, gap: gap_at(connection, at)? })
        })
        .await
    }

    /// Returns the problems of a lock at an instant, oldest first.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn problems_at(
        &self,
        lock: LockId,
        at: SteadyMillis,
    ) -> rusqlite::Result<Vec<ProblemThen>> {
        self.search(move |connection| problems_at(connection, &lock, at)).await
    }
}

/// Returns the beginnings and the rows of matching holds, and whether these are all of them.
fn matching(
    connection: &Connection,
    at: SteadyMillis,
    matches: &impl Fn(&EventFields<'_>) -> bool,
) -> rusqlite::Result<(Vec<(i64, i64)>, bool)> {
    let (at, mut deadline, mut found) = (stored(at), SearchDeadline::new(), Vec::new());
    // The query reads either all holds before the instant or all after it, whichever are fewer.
    let bounds = "SELECT (SELECT min(began) FROM hold), (SELECT max(began) FROM hold)";
    let (first, last): (Option<i64>, Option<i64>) =
        connection.query_row(bounds, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let is_early = at.saturating_sub(first.unwrap_or(at)) < last.unwrap_or(at).saturating_sub(at);
    let ended = match is_early {
        true => "began <= ?1 AND +ended > ?1",
        false => "ended > ?1 AND +began <= ?1",
    };
    for condition in [ended, "ended IS NULL AND +began <= ?1"] {
        let mut holds = connection.prepare_cached(&format!(
            "SELECT rowid, began, deployment, db, name, holder FROM hold WHERE {condition}"
        ))?;
        let mut rows = holds.query([at])?;
        while let Some(row) = rows.next()? {
            if deadline.spend_row() {
                return Ok((found, false));
            }
            if fields(row)?.is_some_and(|hold| matches(&hold)) {
                found.push((row.get(1)?, row.get(0)?));
            }
        }
    }
    Ok((found, true))
}

/// Returns a hold as the event that began it.
fn fields<'r>(row: &'r Row<'_>) -> rusqlite::Result<Option<EventFields<'r>>> {
    let (deployment, name) = (row.get_ref(2)?.as_str(), row.get_ref(4)?.as_bytes());
    let (Ok(deployment), Ok(name), Ok(subject)) = (deployment, name, row.get_ref(5)?.as_str())
    else {
        return Ok(None);
    };
    let db = row.get(3)?;
    Ok(Some(EventFields { event: "taken", deployment, db, name, subject, detail: None }))
}

fn problems_at(
    connection: &Connection,
    lock: &LockId,
    at: SteadyMillis,
) -> rusqlite::Result<Vec<ProblemThen>> {
    let mut problems = connection.prepare_cached(
        "SELECT problem, certainty, began, cleared FROM problem WHERE deployment = ?1 AND db = ?2 AND name = ?3
         AND began <= ?4 AND (cleared IS NULL OR cleared > ?4) ORDER BY began LIMIT ?5",
    )?;
    let name = lock.name.as_bytes();
    let of = params![&*lock.deployment, lock.db, name, stored(at), MAX_PROBLEMS];
    let problems = problems.query_map(of, |row| {
        Ok(ProblemThen {
            problem: row.get(0)?,
            certainty: row.get(1)?,
            since: instant(row.get(2)?),
            to: row.get::<_, Option<i64>>(3)?.map(instant),
        })
    })?;
    problems.collect()
}
