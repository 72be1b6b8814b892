//! Writes single entries to the tables.

use rusqlite::{Transaction, params};

use super::columns::stored;
use crate::clock::SteadyMillis;
use crate::model::types::{
    Acknowledgement, ArchiveEntry, Certainty, HolderField, LockId, OperatorAction, PastHold,
    ProblemKind, Since,
};

/// Writes an entry.
pub(super) fn insert(to: &Transaction<'_>, entry: &ArchiveEntry) -> rusqlite::Result<()> {
    match entry {
        ArchiveEntry::Began(lock, holder, since) => insert_beginning(to, lock, holder, since),
        ArchiveEntry::Ended(lock, past) => insert_end(to, lock, past),
        ArchiveEntry::Forced(lock, holder, at) => {
            let (deployment, db, name) = key(lock);
            to.prepare_cached(
                "UPDATE hold SET how = 'forced' WHERE deployment = ?1 AND db = ?2 AND name = ?3
                 AND holder = ?4 AND ended = max(began, ?5)",
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
            "UPDATE hold SET ended = max(began, ?5), how = ?6 WHERE deployment = ?1 AND db = ?2 AND name = ?3
             AND holder = ?4 AND ended IS NULL",
        )?
        .execute(params![deployment, db, name, holder, ended, how])?;
    if closed > 0 {
        return Ok(());
    }
    to.prepare_cached(
        "INSERT INTO hold (deployment, db, name, holder, began, exact, ended, how)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, max(?5, ?7), ?8)",
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
        "INSERT INTO problem (deployment, db, name, problem, certainty, began, latest)
         VALUES (?1, ?2, ?3, ?4, ?5, max(?6, coalesce((SELECT max(cleared) FROM problem
           WHERE deployment = ?1 AND db = ?2 AND name = ?3 AND problem = ?4 AND cleared <= ?7), ?6)), ?6)
         ON CONFLICT (deployment, db, name, problem) WHERE cleared IS NULL
         DO UPDATE SET certainty = excluded.certainty, latest = excluded.latest",
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
    // The problem's beginning may have been lost.
    to.prepare_cached(
        "INSERT OR IGNORE INTO problem (deployment, db, name, problem, certainty, began)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![deployment, db, name, problem, Certainty::Certain.as_str(), at])?;
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
