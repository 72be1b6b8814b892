//! The folder of the history: locked against other dashboards, and created again if its file was removed.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rusqlite::Connection;
use rustix::fs::{FlockOperation, flock};
use tokio::time::{Duration, Instant};

use super::{FILE, PRIVATE, make_private, schema, with_tail};

/// The temporary name of a history that is created again.
const NEW: &str = "history.new";

/// The pause after a copy that failed.
const COPY_PAUSE: Duration = Duration::from_secs(60);

/// A file's device and its number there.
type FileId = (u64, u64);

/// The folder of the history. It is locked as long as this value exists.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    lock: File,
    file: FileId,
    /// A copy that was made after a removal, until it is in use.
    copied: Option<FileId>,
    /// The instant before which no other copy is made.
    next_copy: Option<Instant>,
}

/// The history in place of one that was removed.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) connection: Connection,
    pub(super) folder: Folder,
    /// False if it is another file, without the rows of the removed one.
    pub(super) is_copy: bool,
}

impl Folder {
    /// Returns the folder with its lock and the history's file, which has just been opened.
    pub(super) fn new(path: &Path, lock: File) -> io::Result<Self> {
        let file = id(&fs::metadata(path.join(FILE))?);
        Ok(Self { path: path.to_owned(), lock, file, copied: None, next_copy: None })
    }

    /// Returns whether the history's file is still in its place.
    pub(super) fn has_file(&self) -> io::Result<bool> {
        Ok(self.id_in_place()? == Some(self.file))
    }

    fn id_in_place(&self) -> io::Result<Option<FileId>> {
        use io::ErrorKind::{NotADirectory, NotFound};
        match fs::symlink_metadata(self.file()) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
            Err(error) => Err(error),
            // A link to a file on a disk that is not mounted fails here.
            Ok(_) => Ok(Some(id(&fs::metadata(self.file())?))),
        }
    }

    /// Creates the folder and the file again, with the rows of `removed`, the open connection to the file that was removed.
    /// If there is another file by now, opens that one.
    pub(super) fn restore(&mut self, removed: &Connection) -> anyhow::Result<Restored> {
        let lock = create(&self.path)?;
        // Our own lock is on the same file, unless that was removed as well.
        if id(&lock.metadata()?) != id(&self.lock.metadata()?) {
            flock(&lock, FlockOperation::NonBlockingLockExclusive)
                .with_context(|| format!("cannot lock {}", self.path.display()))?;
            self.lock = lock;
        }
        let path = self.file();
        let in_place = self.id_in_place()?;
        // A copy that could not be used lacks what was written since.
        let is_copy = in_place.is_none() || in_place == self.copied;
        if is_copy {
            self.copy(removed).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let connection = schema::open(&path)?;
        let folder = Self::new(&self.path, self.lock.try_clone()?)?;
        Ok(Restored { connection, folder, is_copy })
    }

    /// Writes all rows to a new file in place of the removed one. After a failure it waits, so that it does not fill a disk
    /// again and again.
    fn copy(&mut self, removed: &Connection) -> anyhow::Result<()> {
        if self.next_copy.is_some_and(|next| Instant::now() < next) {
            anyhow::bail!("a copy of its rows has just failed");
        }
        let (path, new) = (self.file(), self.path.join(NEW));
        let written = write_rows(removed, &new).and_then(|()| {
            remove_logs(&path)?;
            self.copied = Some(id(&fs::metadata(&new)?));
            fs::rename(&new, &path)?;
            Ok(File::open(&self.path)?.sync_all()?)
        });
        if written.is_err() {
            self.next_copy = Some(Instant::now() + COPY_PAUSE);
            remove(&new)?;
        }
        written
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
    ["-wal", "-shm"].into_iter().try_for_each(|tail| remove(&with_tail(file, tail)))
}

fn write_rows(from: &Connection, to: &Path) -> anyhow::Result<()> {
    remove(to)?;
    // SQLite accepts an empty file, and keeps its mode.
    make_private(to);
    let name = to.to_str().context("its name is not UTF-8")?;
    from.execute("VACUUM INTO ?1", [name])?;
    Ok(File::open(to)?.sync_all()?)
}

fn remove(file: &Path) -> io::Result<()> {
    fs::remove_file(file).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a folder with its history.
    fn folder(path: &Path) -> (Folder, Connection) {
        let lock = create(path).unwrap();
        let connection = schema::open(&path.join(FILE)).unwrap();
        (Folder::new(path, lock).unwrap(), connection)
    }

    fn add_row(to: &Connection) {
        to.execute("INSERT INTO span VALUES (1, 2)", []).unwrap();
    }

    fn rows(of: &Connection) -> u64 {
        of.query_row("SELECT count(*) FROM span", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_copy_that_could_not_be_used_is_made_again() {
        let path = tempfile::tempdir().unwrap();
        let (mut folder, removed) = folder(path.path());
        add_row(&removed);
        fs::remove_file(folder.file()).unwrap();
        assert!(folder.restore(&removed).unwrap().is_copy);
        // The writer could not begin to use it, and continues in the removed file.
        assert!(!folder.has_file().unwrap());
        add_row(&removed);
        let restored = folder.restore(&removed).unwrap();
        assert_eq!((restored.is_copy, rows(&restored.connection)), (true, 2));
        assert!(restored.folder.has_file().unwrap());
    }

    #[test]
    fn a_copy_keeps_the_numbers_of_the_rows() {
        let path = tempfile::tempdir().unwrap();
        let (mut folder, removed) = folder(path.path());
        (0..3).for_each(|_| add_row(&removed));
        removed.execute("DELETE FROM span WHERE rowid < 3", []).unwrap();
        fs::remove_file(folder.file()).unwrap();
        let Restored { connection, .. } = folder.restore(&removed).unwrap();
        let row: i64 =
            connection.query_row("SELECT rowid FROM span", [], |row| row.get(0)).unwrap();
        assert_eq!(row, 3);
    }

    #[test]
    fn another_file_in_its_place_is_kept() {
        let (path, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut folder, removed) = folder(path.path());
        add_row(&removed);
        fs::remove_file(folder.file()).unwrap();
        remove_logs(&folder.file()).unwrap();
        drop(schema::open(&folder.file()).unwrap());
        let restored = folder.restore(&removed).unwrap();
        assert_eq!((restored.is_copy, rows(&restored.connection)), (false, 0));
        // The history is on a disk that is not mounted any more.
        fs::remove_file(folder.file()).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join(FILE), folder.file()).unwrap();
        folder.has_file().unwrap_err();
        folder.restore(&removed).unwrap_err();
        assert!(folder.file().is_symlink());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_failed_copy_the_next_one_waits() {
        let path = tempfile::tempdir().unwrap();
        let (mut folder, removed) = folder(path.path());
        fs::remove_file(folder.file()).unwrap();
        let in_the_way = path.path().join(NEW);
        fs::create_dir(&in_the_way).unwrap();
        folder.restore(&removed).unwrap_err();
        fs::remove_dir(&in_the_way).unwrap();
        let error = folder.restore(&removed).unwrap_err();
        assert!(format!("{error:#}").contains("has just failed"), "{error:#}");
        tokio::time::advance(COPY_PAUSE).await;
        assert!(folder.restore(&removed).unwrap().is_copy);
    }
}
