//! Opening of the file. One that cannot be read is set aside, since a damaged history must not stop the dashboard.

use std::collections::HashMap;
use std::fs::rename;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use rusqlite::Connection;

use super::reader::Reader;
use super::{folder, make_private, schema, with_tail};
use crate::clock::SteadyMillis;
use crate::model::RestoredLock;
use crate::model::types::LockId;

/// The data of earlier runs.
#[derive(Debug, Default)]
pub struct Earlier {
    /// The state of each lock.
    pub locks: HashMap<LockId, RestoredLock>,
    /// The names of owners, latest last.
    pub owner_names: Vec<(String, String)>,
    /// Sentences with the reason and with the new place of their history, if it could not be read.
    pub set_aside: Option<String>,
}

/// An open file.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) reader: Reader,
    pub(super) earlier: Earlier,
}

/// Opens the file and reads what earlier runs have left. If it cannot be read, renames it and creates a new one.
pub(super) fn open(path: &Path, now: SteadyMillis) -> anyhow::Result<Opened> {
    let cannot = || format!("cannot open the history {}", path.display());
    let error = match read(path) {
        Err(error) if schema::is_unreadable(&error) => error,
        opened => return opened.with_context(cannot),
    };
    let aside = path.with_extension(format!("db.broken-{}", now.0));
    set_aside(path, &aside).with_context(|| format!("cannot rename {}", path.display()))?;
    let named = aside.display();
    tracing::error!(%error, aside = %named, "history unreadable; renamed it and started a new one");
    make_private(path);
    let mut opened = read(path).with_context(cannot)?;
    opened.earlier.set_aside = Some(format!(
        "The history of earlier runs cannot be read ({error}), so a new one began at the start of the dashboard. The old \
         one is kept as {named}."
    ));
    Ok(opened)
}

fn read(path: &Path) -> rusqlite::Result<Opened> {
    let connection = schema::open(path)?;
    // An unreadable file stays as it is, with its log.
    schema::keep_log(&connection, true)?;
    schema::check(&connection)?;
    let reader = Reader::open(path)?;
    let (locks, owner_names) = (reader.restored()?, reader.owner_names()?);
    schema::keep_log(&connection, false)?;
    Ok(Opened { connection, reader, earlier: Earlier { locks, owner_names, set_aside: None } })
}

/// Renames a file with its log, so that `SQLite` can still read both.
fn set_aside(path: &Path, aside: &Path) -> io::Result<()> {
    // The log comes first, since SQLite removes a log without its file.
    match rename(with_tail(path, "-wal"), with_tail(aside, "-wal")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => rename(path, aside)?,
    }
    folder::remove_logs(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt as _;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    const NOW: SteadyMillis = SteadyMillis(42);
    /// The size of a page of the file, in bytes.
    const PAGE: usize = 4_096;

    /// Returns a folder as a crash leaves it: the last of many rows are in the log.
    fn crashed() -> (TempDir, PathBuf) {
        let (folder, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join("history.db");
        let connection = schema::open(&path).unwrap();
        let add = |name: &str| {
            let row = "INSERT INTO owner VALUES (?1, hex(zeroblob(1000)), 1)";
            connection.execute(row, [name]).unwrap();
        };
        (0..100).for_each(|n| add(&format!("earlier-{n}")));
        connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        add("in-the-log");
        let copy = crashed.path().join("history.db");
        for tail in ["", "-wal"] {
            fs::copy(with_tail(&path, tail), with_tail(&copy, tail)).unwrap();
        }
        (crashed, copy)
    }

    fn overwrite(path: &Path, page: usize) {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[0xa5; PAGE], (page * PAGE) as u64).unwrap();
    }

    #[test]
    fn the_rows_of_a_file_and_of_its_log_are_read() {
        let (_folder, path) = crashed();
        let earlier = open(&path, NOW).unwrap().earlier;
        assert_eq!((earlier.owner_names.len(), earlier.set_aside), (101, None));
    }

    #[test]
    fn a_file_that_is_damaged_anywhere_is_kept_with_its_log_and_a_new_one_begins() {
        let pages = fs::read(crashed().1).unwrap().len() / PAGE;
        assert!(pages > 20, "{pages}");
        let mut kept = 0;
        for page in 0..pages {
            let (_folder, path) = crashed();
            overwrite(&path, page);
            let files =
                |path: &Path| ["", "-wal"].map(|tail| fs::read(with_tail(path, tail)).unwrap());
            let damaged = files(&path);
            let opened = open(&path, NOW).unwrap();
            // The log may have a newer version of the damaged page.
            let Some(why) = &opened.earlier.set_aside else { continue };
            kept += 1;
            let aside = path.with_extension("db.broken-42");
            assert!(why.contains(&*aside.to_string_lossy()), "{page}: {why}");
            assert!(!why.contains("***"), "{page}: {why}");
            assert_eq!(opened.earlier.owner_names.len(), 0, "{page}");
            assert!(files(&aside) == damaged, "{page}: the files have changed");
            drop(opened);
            assert_eq!(open(&path, NOW).unwrap().earlier.set_aside, None, "{page}");
        }
        // Its frames have a header of 24 bytes each, after one of 32 bytes for all.
        let in_log = (fs::read(with_tail(&crashed().1, "-wal")).unwrap().len() - 32) / (PAGE + 24);
        assert!(kept + in_log >= pages && in_log < 10, "{kept} of {pages}, {in_log} in the log");
    }

    #[test]
    fn a_file_with_values_of_other_types_is_kept_too() {
        let (_folder, path) = crashed();
        let other = Connection::open(&path).unwrap();
        other.execute("INSERT INTO owner VALUES ('a', x'ff', 1)", []).unwrap();
        drop(other);
        let why = open(&path, NOW).unwrap().earlier.set_aside.unwrap();
        assert!(why.contains("db.broken-42"), "{why}");
    }
}
