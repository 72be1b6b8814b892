//! The agent's identity in Redis: a uuid that survives restarts, and an epoch that separates the numbers of this run from
//! those of all earlier runs.
//!
//! The uuid is stored in the state folder, which only one agent uses at a time. It is bound to the machine and to the
//! folder itself, so that a copy of its files cannot make two agents look like one holder. It is the same on a copy of the whole
//! disk that keeps the machine id.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use redisson::ClientId;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The default state folder of an agent that may write there.
pub(crate) const SYSTEM_FOLDER: &str = "/var/lib/lockscope";
const FILE: &str = "identity.json";
/// The file that is locked while the folder is in use. It is never replaced, so its inode distinguishes the folder from a copy.
const LOCK: &str = "lock";
/// The count of numbers per epoch; holder numbers are `epoch * NUMBERS_PER_EPOCH + n`.
const NUMBERS_PER_EPOCH: i64 = 1 << 30;
/// The distance from the last epoch if that is in the future, as after the clock was set back: the last run may have used the
/// numbers of many epochs, while the clock did not reach it.
const EPOCH_STEP: u64 = 1 << 10;
/// The distance from the last epoch within which the clock has not been set back: quick restarts came before it.
const QUICK_RESTARTS: u64 = 16;
/// The last epoch whose numbers [`redisson::HolderId::looks_like_agent`] recognizes, in the year 2106.
const LAST_EPOCH: u64 = (1 << 32) - 1;

#[derive(Debug)]
pub struct Identity {
    /// The uuid part of its holder ids.
    pub client: ClientId,
    /// Greater than that of every earlier run with this uuid.
    pub epoch: u64,
    /// The state folder; `None` if the identity lasts for this run only.
    pub folder: Option<Arc<StateFolder>>,
}

/// The state folder of a running agent, which no other agent can use.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    client: ClientId,
    epoch: u64,
    machine: String,
    /// Held locked for as long as the agent runs.
    lock: Mutex<File>,
}

/// The content of the identity file.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    uuid: String,
    epoch: u64,
    machine: String,
    folder: u64,
}

/// The reason why the stored uuid cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("another agent uses it")]
    InUse,
    #[error("agent {0} has used it since")]
    Taken(ClientId),
    #[error("cannot write it: {0}")]
    Io(#[from] io::Error),
}

impl Identity {
    /// Loads the identity from `folder`, or creates and stores one. If the folder cannot be used, logs it and returns a
    /// temporary identity, which inherits nothing from earlier runs. `now` is the wall clock in seconds.
    ///
    /// # Errors
    /// Fails if the kernel provides no random bytes.
    pub fn load(folder: Option<&Path>, now: u64) -> Result<Self, getrandom::Error> {
        let fresh = random_client()?;
        let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let now = now.min(LAST_EPOCH);
        let Some(folder) = folder else {
            tracing::warn!(agent = %fresh, "no state folder; using a new identity for this run");
            return Ok(Self { client: fresh, epoch: now, folder: None });
        };
        match Self::load_or_create(folder, machine.trim(), fresh, now) {
            Ok(identity) => Ok(identity),
            Err(why) => {
                tracing::warn!(
                    folder = %folder.display(), %why, agent = %fresh,
                    "cannot use the state folder; using a new identity for this run"
                );
                Ok(Self { client: fresh, epoch: now, folder: None })
            }
        }
    }

    fn load_or_create(
        folder: &Path,
        machine: &str,
        fresh: ClientId,
        now: u64,
    ) -> Result<Self, Unusable> {
        let lock = lock(folder)?;
        let inode = lock.metadata()?.ino();
        let path = folder.join(FILE);
        let (client, epoch) = match stored(&path, machine, inode) {
            Ok(Some((client, last))) if now > last => (client, now),
            Ok(Some((client, last))) if last <= LAST_EPOCH - EPOCH_STEP => {
                let step = if last - now <= QUICK_RESTARTS { 1 } else { EPOCH_STEP };
                (client, last + step)
            }
            Ok(None) => (fresh, now),
            Ok(Some(_)) => {
                tracing::warn!(path = %path.display(), agent = %fresh, "epochs exhausted; using a new identity");
                (fresh, now)
            }
            Err(why) => {
                tracing::warn!(path = %path.display(), why, agent = %fresh, "using a new identity");
                (fresh, now)
            }
        };
        let folder = StateFolder {
            path: folder.to_owned(),
            client,
            epoch,
            machine: machine.to_owned(),
            lock: Mutex::new(lock),
        };
        // Written before the first number of this epoch is used.
        folder.write_identity(inode)?;
        Ok(Self { client, epoch, folder: Some(Arc::new(folder)) })
    }

    /// Returns the first holder number of this run.
    #[must_use]
    pub fn first_number(&self) -> i64 {
        i64::try_from(self.epoch).unwrap_or(0) * NUMBERS_PER_EPOCH
    }
}

impl StateFolder {
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the folder, its lock and the identity again if they were removed or replaced while the agent runs. Without
    /// them the next agent would not take over the sessions of this one.
    ///
    /// # Errors
    /// Fails if the folder cannot be written, or if the one that is at the path now is another agent's, running or not.
    pub fn restore(&self) -> io::Result<()> {
        let mut own = self.lock.lock();
        let (ours, path) = (own.metadata()?, self.path.join(LOCK));
        let in_place = fs::symlink_metadata(path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()));
        if in_place && self.path.join(FILE).exists() {
            return Ok(());
        }
        if !in_place {
            *own = self.lock_new().map_err(|why| {
                io::Error::other(format!("{} was removed, and {why}", self.path.display()))
            })?;
        }
        self.write_identity(own.metadata()?.ino())?;
        let folder = self.path.display();
        tracing::warn!(%folder, "the state folder was removed: it is created again");
        Ok(())
    }

    /// Locks the folder that is at the path now, unless its identity is another agent's.
    fn lock_new(&self) -> Result<File, Unusable> {
        let lock = lock(&self.path)?;
        match stored(&self.path.join(FILE), &self.machine, lock.metadata()?.ino()) {
            Ok(Some((client, _))) if client != self.client => Err(Unusable::Taken(client)),
            _ => Ok(lock),
        }
    }

    /// Returns a folder that is not locked.
    #[cfg(test)]
    pub fn unlocked(path: &Path) -> Arc<Self> {
        let lock = private().truncate(false).open(path.join(LOCK)).unwrap();
        let client = random_client().unwrap();
        let folder = Self {
            path: path.to_owned(),
            client,
            epoch: 0,
            machine: String::new(),
            lock: Mutex::new(lock),
        };
        folder.write_identity(0).unwrap();
        Arc::new(folder)
    }

    fn write_identity(&self, inode: u64) -> io::Result<()> {
        let (uuid, machine) = (self.client.to_string(), self.machine.clone());
        let stored = Stored { uuid, epoch: self.epoch, machine, folder: inode };
        write(&self.path, &serde_json::to_vec(&stored)?)
    }
}

/// Creates `folder` if it does not exist, and locks it.
fn lock(folder: &Path) -> Result<File, Unusable> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let lock = private().truncate(false).open(folder.join(LOCK))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Unusable::InUse),
        Err(error) => Err(Unusable::Io(error.into())),
    }
}

/// Returns the default state folder: the system's if usable, otherwise the user's.
#[must_use]
pub fn default_folder() -> Option<PathBuf> {
    let system = Path::new(SYSTEM_FOLDER);
    let writable = |folder: &Path| rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok();
    if writable(system) || fs::DirBuilder::new().mode(0o700).create(system).is_ok() {
        return Some(system.to_owned());
    }
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local/state")))
        .map(|folder| folder.join("lockscope"))
}

/// Reads the stored uuid and epoch; `None` without a file.
///
/// # Errors
/// Returns the reason why the stored identity must not be used.
fn stored(path: &Path, machine: &str, inode: u64) -> Result<Option<(ClientId, u64)>, &'static str> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err("the identity file cannot be read"),
    };
    let stored: Stored =
        serde_json::from_slice(&bytes).map_err(|_| "the identity file is damaged")?;
    let client = ClientId::parse(stored.uuid.as_bytes()).ok_or("the identity file is damaged")?;
    // Without a machine id a copy on another machine could not be detected.
    if machine.is_empty() {
        return Err(
            "/etc/machine-id is missing, so this machine cannot be identified; mount the host's into the container",
        );
    }
    if stored.machine != machine {
        return Err("the state folder comes from another machine");
    }
    if stored.folder != inode {
        return Err("the state folder is a copy");
    }
    Ok(Some((client, stored.epoch)))
}

/// Replaces the file atomically. On a full disk it is overwritten in place, which needs no space, so that the agent keeps
/// its identity and can restore its sessions.
fn write(folder: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = folder.join(".identity.new");
    let written = replace(folder, &temporary, content);
    match written {
        Err(error) if is_full(&error) => {
            fs::remove_file(&temporary).ok();
            overwrite(&folder.join(FILE), content).map_err(|_| error)
        }
        _ => written,
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Overwrites a file of the same length. A crash in the middle damages it, and the next start uses a new identity.
fn overwrite(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    if file.metadata()?.len() != content.len() as u64 {
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all(content)?;
    file.sync_all()
}

fn replace(folder: &Path, temporary: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = private().truncate(true).open(temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(temporary, folder.join(FILE))?;
    File::open(folder)?.sync_all()
}

/// Returns options for a file that only the agent's user can read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

fn random_client() -> Result<ClientId, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(ClientId::from_random(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn try_load(folder: &Path, machine: &str, now: u64) -> Result<Identity, Unusable> {
        Identity::load_or_create(folder, machine, random_client().unwrap(), now)
    }

    /// Retries while the folder is in use: a child just forked by another test has a copy of the lock until it executes
    /// its program.
    fn load(folder: &Path, machine: &str, now: u64) -> Result<Identity, Unusable> {
        let give_up = service_kit::clock::boot_micros() + 10_000_000;
        loop {
            match try_load(folder, machine, now) {
                Err(Unusable::InUse) if service_kit::clock::boot_micros() < give_up => {
                    std::thread::yield_now();
                }
                result => return result,
            }
        }
    }

    #[test]
    fn the_uuid_survives_restarts_and_the_epoch_grows() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let first = load(&state, "m", NOW).unwrap();
        assert_eq!((first.epoch, first.first_number()), (NOW, 1_800_000_000 << 30));
        let client = first.client;
        drop(first);
        assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
        let same_second = load(&state, "m", NOW).unwrap();
        assert_eq!((same_second.client, same_second.epoch), (client, NOW + 1));
        drop(same_second);
        let clock_set_back = load(&state, "m", 5).unwrap();
        assert_eq!((clock_set_back.client, clock_set_back.epoch), (client, NOW + 1 + EPOCH_STEP));
        drop(clock_set_back);
        let later = load(&state, "m", NOW + 1_000_000).unwrap();
        assert_eq!((later.client, later.epoch), (client, NOW + 1_000_000));
    }

    #[test]
    fn the_uuid_survives_a_restart_on_a_full_disk() {
        let folder = tempfile::tempdir().unwrap();
        let client = load(folder.path(), "m", NOW).unwrap().client;
        // Every write to that device fails as on a full disk.
        let full = || {
            let new = folder.path().join(".identity.new");
            std::os::unix::fs::symlink("/dev/full", new).unwrap();
        };
        for restarts in 1..=2 {
            full();
            let restarted = load(folder.path(), "m", NOW).unwrap();
            assert_eq!((restarted.client, restarted.epoch), (client, NOW + restarts));
        }
        let roomy = load(folder.path(), "m", NOW).unwrap();
        assert_eq!((roomy.client, roomy.epoch), (client, NOW + 3));
        drop(roomy);
        fs::remove_file(folder.path().join(FILE)).unwrap();
        full();
        assert!(matches!(load(folder.path(), "m", NOW), Err(Unusable::Io(_))), "none to overwrite");
    }

    #[test]
    fn a_folder_that_is_removed_is_created_again_with_its_identity() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        let first = load(&path, "m", NOW).unwrap();
        let folder = first.folder.clone().unwrap();
        let is_there = || path.join(FILE).exists() && path.join(LOCK).exists();
        folder.restore().unwrap();
        for missing in [FILE, LOCK] {
            fs::remove_file(path.join(missing)).unwrap();
            folder.restore().unwrap();
            assert!(is_there(), "{missing}");
        }
        fs::remove_dir_all(&path).unwrap();
        folder.restore().unwrap();
        assert!(is_there());
        assert!(matches!(try_load(&path, "m", NOW), Err(Unusable::InUse)));
        let client = first.client;
        drop((first, folder));
        let next = load(&path, "m", NOW).unwrap();
        assert_eq!((next.client, next.epoch), (client, NOW + 1));
    }

    #[test]
    fn a_folder_that_another_agent_has_replaced_is_left_to_it() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("state");
        let first = load(&path, "m", NOW).unwrap();
        fs::remove_dir_all(&path).unwrap();
        let second = load(&path, "m", NOW).unwrap();
        assert_ne!(first.client, second.client);
        let stored = fs::read(path.join(FILE)).unwrap();
        let (folder, client) = (first.folder.unwrap(), second.client);
        let refused = || folder.restore().unwrap_err().to_string();
        assert!(refused().contains("another agent uses it"), "{}", refused());
        drop(second);
        assert!(refused().contains(&format!("agent {client} has used it since")), "{}", refused());
        assert_eq!(fs::read(path.join(FILE)).unwrap(), stored);
    }

    #[test]
    fn a_second_agent_gets_another_identity() {
        let folder = tempfile::tempdir().unwrap();
        let first = load(folder.path(), "m", NOW).unwrap();
        assert!(matches!(try_load(folder.path(), "m", NOW), Err(Unusable::InUse)));
        let second = Identity::load(Some(folder.path()), NOW).unwrap();
        assert_ne!(first.client, second.client);
    }

    #[test]
    fn a_copied_folder_gets_another_identity() {
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("one");
        let first = load(&one, "m", NOW).unwrap().client;
        let two = folder.path().join("two");
        fs::create_dir(&two).unwrap();
        fs::copy(one.join(FILE), two.join(FILE)).unwrap();
        let copied = load(&two, "m", NOW).unwrap().client;
        assert_ne!(copied, first);
        assert_eq!(load(&two, "m", NOW).unwrap().client, copied, "the copy keeps its new identity");
        assert_ne!(load(&one, "other", NOW).unwrap().client, first);
        let no_machine_id = folder.path().join("no-machine-id");
        let first = load(&no_machine_id, "", NOW).unwrap().client;
        assert_ne!(load(&no_machine_id, "", NOW).unwrap().client, first);
    }

    #[test]
    fn an_unusable_folder_yields_a_temporary_identity() {
        assert_eq!(Identity::load(None, NOW).unwrap().epoch, NOW);
        let unusable = Path::new("/proc/no/such");
        assert_eq!(Identity::load(Some(unusable), NOW).unwrap().epoch, NOW);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(load(folder.path(), "m", NOW).unwrap().epoch, NOW);
    }

    #[test]
    fn numbers_fit_up_to_the_last_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let last = Identity::load(None, u64::MAX).unwrap();
        assert!(
            last.first_number() > 0
                && last.first_number().checked_add(NUMBERS_PER_EPOCH - 1).is_some()
        );
        let exhausted = load(folder.path(), "m", LAST_EPOCH).unwrap().client;
        assert_ne!(load(folder.path(), "m", NOW).unwrap().client, exhausted);
    }
}
