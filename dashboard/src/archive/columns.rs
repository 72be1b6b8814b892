//! Conversions between values and the columns that store them.

use redisson::LockName;
use rusqlite::Row;

use crate::clock::{SteadyMillis, WallMillis};
use crate::model::types::{HolderField, LockId, ProblemKind, Since};

/// Returns the instant by the wall clock, so that the next run, whose steady clock differs, can read it.
pub(super) fn stored(at: SteadyMillis) -> i64 {
    i64::try_from(at.to_wall().0).unwrap_or(i64::MAX)
}

pub(super) fn instant(millis: i64) -> SteadyMillis {
    WallMillis(u64::try_from(millis).unwrap_or(0)).to_steady()
}

pub(super) fn lock(row: &Row<'_>, from: usize) -> rusqlite::Result<Option<LockId>> {
    let deployment: String = row.get(from)?;
    let name: Vec<u8> = row.get(from + 2)?;
    let db = row.get(from + 1)?;
    Ok(LockName::new(name).ok().map(|name| LockId { deployment: deployment.into(), db, name }))
}

pub(super) fn holder(row: &Row<'_>, column: usize) -> rusqlite::Result<HolderField> {
    Ok(HolderField::parse(row.get(column)?))
}

/// Parses the beginning of a hold from this column and the next.
pub(super) fn since(row: &Row<'_>, first: usize) -> rusqlite::Result<Since> {
    Ok(Since { at: instant(row.get(first)?), exact: row.get(first + 1)? })
}

/// Parses a problem, or returns `None` if this program does not know it.
pub(super) fn problem(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<ProblemKind>> {
    let word: String = row.get(column)?;
    Ok(ProblemKind::parse(&word))
}
