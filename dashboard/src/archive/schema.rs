//! The tables of the history file.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, ErrorCode, ffi};

/// The version of the tables. A file of another version is renamed, and a new one is created.
const VERSION: i64 = 1;
/// The longest time for which one connection waits for the other.
const BUSY: Duration = Duration::from_secs(5);

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS span (began INTEGER NOT NULL, alive INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS hold (
  deployment TEXT NOT NULL, db INTEGER NOT NULL, name BLOB NOT NULL, holder TEXT NOT NULL,
  began INTEGER NOT NULL, exact INTEGER NOT NULL, ended INTEGER, how TEXT);
CREATE INDEX IF NOT EXISTS hold_of_lock ON hold (deployment, db, name, began);
CREATE INDEX IF NOT EXISTS hold_ended ON hold (ended);
CREATE INDEX IF NOT EXISTS hold_began ON hold (began);
CREATE UNIQUE INDEX IF NOT EXISTS hold_open ON hold (deployment, db, name, holder) WHERE ended IS NULL;
CREATE TABLE IF NOT EXISTS problem (
  deployment TEXT NOT NULL, db INTEGER NOT NULL, name BLOB NOT NULL, problem TEXT NOT NULL,
  certainty TEXT NOT NULL, began INTEGER NOT NULL, cleared INTEGER, latest INTEGER);
CREATE INDEX IF NOT EXISTS problem_began ON problem (began);
CREATE INDEX IF NOT EXISTS problem_of_lock ON problem (deployment, db, name, began);
CREATE INDEX IF NOT EXISTS problem_cleared ON problem (cleared);
CREATE UNIQUE INDEX IF NOT EXISTS problem_open ON problem (deployment, db, name, problem) WHERE cleared IS NULL;
CREATE TABLE IF NOT EXISTS act (
  deployment TEXT NOT NULL, db INTEGER NOT NULL, name BLOB NOT NULL, at INTEGER NOT NULL, who TEXT NOT NULL,
  from_ip TEXT NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL, reason TEXT NOT NULL, was TEXT NOT NULL,
  outcome TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS act_at ON act (at);
CREATE TABLE IF NOT EXISTS acknowledged (
  deployment TEXT NOT NULL, db INTEGER NOT NULL, name BLOB NOT NULL, problem TEXT NOT NULL,
  who TEXT NOT NULL, reason TEXT NOT NULL, at INTEGER NOT NULL, until INTEGER NOT NULL,
  PRIMARY KEY (deployment, db, name, problem));
CREATE TABLE IF NOT EXISTS owner (id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL, seen INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS owner_seen ON owner (seen);
";

/// Opens the file, and creates its tables if necessary.
pub(super) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    keep_log(&connection, true)?;
    connection.busy_timeout(BUSY)?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version == 0 {
        connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL")?;
    } else if version != VERSION {
        return Err(Error::SqliteFailure(
            ffi::Error::new(ffi::SQLITE_MISMATCH),
            Some(format!(
                "the file has version {version}; this program supports version {VERSION}"
            )),
        ));
    }
    // A crash of the machine loses the last moments, while a crash of the program loses nothing. The cache of 500 KiB
    // is small, since the kernel caches the file too. A log that has grown during a long read shrinks again to 16 MiB.
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 4000;
         PRAGMA journal_size_limit = 16777216; PRAGMA cache_size = -500",
    )?;
    connection.execute_batch(TABLES)?;
    add_latest(&connection)?;
    if version == 0 {
        connection.pragma_update(None, "user_version", VERSION)?;
    }
    keep_log(&connection, false)?;
    Ok(connection)
}

/// Adds the instant at which a problem last occurred, which older files lack.
fn add_latest(connection: &Connection) -> rusqlite::Result<()> {
    let has = "SELECT EXISTS (SELECT * FROM pragma_table_info('problem') WHERE name = 'latest')";
    if connection.query_row(has, [], |row| row.get(0))? {
        return Ok(());
    }
    connection.execute_batch("ALTER TABLE problem ADD COLUMN latest INTEGER")
}

/// Sets whether the log is kept as it is when the last connection is closed. By default its rows are moved to the file.
pub(super) fn keep_log(connection: &Connection, keep: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep).map(drop)
}

/// Reads every page of the file.
///
/// # Errors
/// Fails if one is damaged.
pub(super) fn check(connection: &Connection) -> rusqlite::Result<()> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    // A mistake follows a line with the name of the database.
    match found.lines().last() {
        Some("ok") => Ok(()),
        mistake => {
            let mistake = mistake.map(str::to_owned);
            Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), mistake))
        }
    }
}

/// Returns whether the file itself is the reason: it is damaged, no database, or of another version. Otherwise it is intact
/// as far as known, for example on a full disk.
pub(super) fn is_unreadable(error: &Error) -> bool {
    use ErrorCode::{DatabaseCorrupt, NotADatabase, TypeMismatch, Unknown};
    let code = error.sqlite_error_code();
    // `SQLITE_ERROR` is `Unknown`: the tables are others.
    matches!(code, Some(DatabaseCorrupt | NotADatabase | TypeMismatch | Unknown))
        // A row has values that this program does not write.
        || matches!(
            error,
            Error::FromSqlConversionFailure(..)
                | Error::IntegralValueOutOfRange(..)
                | Error::InvalidColumnType(..)
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_the_latest_occurrences_of_problems_gets_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let add = |connection: &Connection, columns: &str| {
            let row = format!(
                "INSERT INTO problem VALUES ('main', 0, x'61', 'expired', 'certain', {columns})"
            );
            connection.execute(&row, [])
        };
        let file = open(&path).unwrap();
        file.execute_batch("ALTER TABLE problem DROP COLUMN latest").unwrap();
        add(&file, "1, NULL").unwrap();
        drop(file);
        for _ in 0..2 {
            let file = open(&path).unwrap();
            add(&file, "2, 3, 4").unwrap();
            let query = "SELECT began, latest FROM problem ORDER BY began LIMIT 1";
            let first: (i64, Option<i64>) =
                file.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            assert_eq!(first, (1, None));
        }
    }

    #[test]
    fn a_log_that_has_grown_during_a_read_shrinks_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let log = || std::fs::metadata(folder.path().join("history-wal")).unwrap().len();
        let writer = open(&path).unwrap();
        let write = |id: usize| {
            let row = "INSERT INTO owner VALUES (?1, hex(zeroblob(500000)), 0)";
            writer.execute(row, [id.to_string()]).unwrap();
        };
        let reader = open(&path).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM owner").unwrap();
        (0..40).for_each(write);
        assert!(log() > 32 << 20);
        reader.execute_batch("END").unwrap();
        (40..60).for_each(write);
        assert!(log() <= 16 << 20, "{}", log());
    }
}
