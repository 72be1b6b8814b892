//! The history on disk: holds, problems, operators' actions, and the times of observation, in one `SQLite` file.
//!
//! Entries arrive through a queue that never makes the model wait; entries without room leave a gap, which is reported.
//! Reading and writing use separate connections, on other threads than the server's.

mod columns;
mod density;
mod earlier_rows;
mod folder;
mod insert;
mod instant;
mod late_write;
mod missed;
mod opened;
mod place;
mod reader;
mod schema;
mod search;
mod search_deadline;
mod writer;

#[cfg(test)]
mod tests;

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::io::Errno;
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval_at};

use crate::clock::SteadyMillis;
use crate::model::types::ArchiveEntry;

use folder::Folder;
use opened::Opened;

pub use density::{BUCKETS, Density};
pub use instant::{HeldLock, HeldThen, ProblemThen};
pub use opened::Earlier;
pub(crate) use place::default_folder;
pub use reader::{Gap, HoldersAt, Reader};
pub use search::{BadCursor, EventCursor, EventSearch, FoundEvents, MAX_EVENTS, PastEvent};
pub use writer::Writer;

/// The maximum number of entries in the queue of the writer.
const QUEUE: usize = 65_536;
/// The file's name within its folder.
const FILE: &str = "history.db";
/// The mode of the files, to which only their owner has access.
const PRIVATE: u32 = 0o600;
/// The maximum number of bytes that rows may need. The file is a little larger.
const MAX_BYTES: u64 = 256 * 1024 * 1024;
/// The maximum number of names of owners that are stored, and that the next run restores.
const MAX_NAMES: usize = 25_000;
/// The age from which entries are removed.
const MAX_AGE_MS: u64 = 7 * 24 * 3_600_000;

/// A sender of entries. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ArchiveSender {
    queue: mpsc::Sender<ArchiveEntry>,
    lost: Arc<AtomicU64>,
    half_full: Arc<Notify>,
}

impl ArchiveSender {
    /// Sends an entry without waiting. If the queue is full, the entry is only counted, and leaves a gap.
    pub fn send(&self, entry: ArchiveEntry) {
        if self.queue.try_send(entry).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        if self.queue.capacity() < QUEUE / 2 {
            self.half_full.notify_one();
        }
    }
}

/// The longest wait for another dashboard that is about to release the folder, for example at a restart.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// The time that the history may take to open before the log says so.
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval at which the log repeats that.
const REPEAT: Duration = Duration::from_secs(60);

/// An opened history.
#[derive(Debug)]
pub struct Archive {
    pub sender: ArchiveSender,
    pub writer: Writer,
    pub reader: Reader,
    pub earlier: Earlier,
}

/// Opens the history in a folder, which is created if necessary.
///
/// # Errors
/// Fails if the folder or the file cannot be used, or another dashboard uses it.
pub async fn open(folder: &Path, now: SteadyMillis) -> anyhow::Result<Archive> {
    let lock = apart(folder, folder::create).await?;
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    lock_folder(folder, || rustix::fs::flock(&lock, exclusive)).await?;
    let open = move |folder: &Path| {
        let path = folder.join(FILE);
        make_private(&path);
        let opened = opened::open(&path, now)?;
        connect(opened, Folder::new(folder, lock)?, now)
    };
    apart(folder, open).await
}

/// Does a part of the opening on a separate thread, since a folder on a mount that hangs blocks it, and logs that it takes
/// long. Cancel safe; a thread that hangs ends with the process.
async fn apart<T: Send + 'static>(
    folder: &Path,
    part: impl FnOnce(&Path) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let owned = folder.to_owned();
    let mut working = spawn_blocking(move || part(&owned));
    let began = Instant::now();
    let mut late = interval_at(began + PATIENCE, REPEAT);
    loop {
        tokio::select! {
            done = &mut working => {
                return done.context("the thread that opens the history has panicked")?;
            }
            _ = late.tick() => tracing::warn!(
                folder = %folder.display(), waited_ms = began.elapsed().as_millis(),
                "still opening the history; no page is served yet; check the mount and disk of its folder"
            ),
        }
    }
}

/// Locks the folder. Retries for a while, since another dashboard may be shutting down.
async fn lock_folder(
    folder: &Path,
    try_lock: impl Fn() -> rustix::io::Result<()>,
) -> anyhow::Result<()> {
    let named = || folder.display();
    let began = Instant::now();
    let mut logged = false;
    loop {
        match try_lock() {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => continue,
            // `EWOULDBLOCK` has the same number.
            Err(Errno::AGAIN) if began.elapsed() > LOCK_WAIT => bail!(
                "another dashboard stores its history in {}: use a separate folder for each",
                named()
            ),
            Err(Errno::AGAIN) => {
                if !std::mem::replace(&mut logged, true) {
                    tracing::info!(folder = %named(), "another dashboard uses the history folder; waiting for its end");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // Some file systems have no locks, or none left.
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot lock the history folder {} against other dashboards", named())
                });
            }
        }
    }
}

/// Creates the file if necessary, and removes the access of all users but its owner to the file and its log. `SQLite`
/// gives a new log the mode of the file. This does not fail, since `SQLite` reports a file that cannot be used.
fn make_private(path: &Path) {
    let private = |path: &Path, create: bool| -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.create(create).truncate(false).write(true).mode(PRIVATE).open(path)?;
        file.set_permissions(Permissions::from_mode(PRIVATE))
    };
    let log = ["-wal", "-shm"].map(|tail| (with_tail(path, tail), false));
    for (path, create) in std::iter::once((path.to_owned(), true)).chain(log) {
        match private(&path, create) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "file of the history not made private");
            }
        }
    }
}

fn with_tail(path: &Path, tail: &str) -> PathBuf {
    let mut file = path.as_os_str().to_owned();
    file.push(tail);
    file.into()
}

fn connect(opened: Opened, folder: Folder, now: SteadyMillis) -> anyhow::Result<Archive> {
    let Opened { connection, reader, earlier } = opened;
    let (queue, entries) = mpsc::channel(QUEUE);
    let (lost, half_full) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let sender = ArchiveSender { queue, lost, half_full };
    let writer = Writer::new((connection, folder), reader.clone(), (entries, &sender), now)?;
    Ok(Archive { sender, writer, reader, earlier })
}
