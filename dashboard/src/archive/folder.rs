//! The folder of the history: locked against other dashboards, and created again if its file was removed.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rusqlite::Connection;
use rustix::fs::{FlockOperation, flock};

use super::{FILE, PRIVATE, make_private, schema, with_tail};

/// The temporary name of a history that is created again.
const NEW: &str = "history.new";

/// A file's device and its number there.
type FileId = (u64, u64);

/// The folder of the history. It is locked as long as this value exists.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    lock: File,
    file: FileId,
}

impl Folder {
    /// Returns the folder with its lock and the history's file, which has just been opened.
    pub(super) fn new(path: &Path, lock: File) -> io::Result<Self> {
        let file = id(&fs::metadata(path.join(FILE))?);
        Ok(Self { path: path.to_owned(), lock, file })
    }

    /// Returns whether the history's file is still in its place.
    pub(super) fn has_file(&self) -> bool {
        fs::metadata(self.path.join(FILE)).is_ok_and(|there| id(&there) == self.file)
    }

    /// Creates the folder and the file again, with the rows of `removed`, the open connection to the file that was removed.
    /// If there is another file by now, returns a connection to that one.
    pub(super) fn restore(&mut self, removed: &Connection) -> anyhow::Result<(Connection, Self)> {
        let lock = create(&self.path)?;
        // Our own lock is on the same file, unless that was removed as well.
        if id(&lock.metadata()?) != id(&self.lock.metadata()?) {
            flock(&lock, FlockOperation::NonBlockingLockExclusive)
                .with_context(|| format!("cannot lock {}", self.path.display()))?;
            self.lock = lock;
        }
        let path = self.path.join(FILE);
        if !path.try_exists()? {
            let new = self.path.join(NEW);
            copy(removed, &new).with_context(|| format!("cannot write {}", new.display()))?;
            remove_logs(&path)?;
            fs::rename(&new, &path)?;
        }
        let connection = schema::open(&path)?;
        Ok((connection, Self::new(&self.path, self.lock.try_clone()?)?))
    }

    /// Returns the path of the history's file.
    pub(super) fn file(&self) -> PathBuf {
        self.path.join(FILE)
    }
}

fn id(of: &Metadata) -> FileId {
    (of.dev(), of.ino())
}

/// Creates the folder if necessary, and opens the file in it that dashboards lock.
pub(super) fn create(folder: &Path) -> anyhow::Result<File> {
    let named = || folder.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot create the history folder {}", named()))?;
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(PRIVATE)
        .open(folder.join("lock"))
        .with_context(|| format!("cannot write to the history folder {}", named()))
}

/// Removes the logs of a file that has been removed or renamed.
pub(super) fn remove_logs(file: &Path) -> io::Result<()> {
    for tail in ["-wal", "-shm"] {
        match fs::remove_file(with_tail(file, tail)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Writes all rows to a new file.
fn copy(from: &Connection, to: &Path) -> anyhow::Result<()> {
    fs::remove_file(to).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    // SQLite accepts an empty file, and keeps its mode.
    make_private(to);
    let name = to.to_str().context("its name is not UTF-8")?;
    from.execute("VACUUM INTO ?1", [name])?;
    Ok(())
}
