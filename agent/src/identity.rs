//! Who this agent is in Redis: a uuid kept from run to run, and an epoch that sets its numbers apart from those of
//! every earlier run.
//!
//! The uuid lives in the state folder, which one agent uses at a time. It is bound to this machine and to this very
//! folder: were a copy used elsewhere, two agents would be one holder to Redis.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use redisson::ClientId;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The file that says who we are.
const FILE: &str = "identity.json";
/// The file that is locked while the folder is in use. It is never replaced, so its inode tells the folder from a copy.
const LOCK: &str = "lock";
/// Numbers of one epoch; holder numbers are `epoch * SPAN + n`.
const SPAN: i64 = 1 << 30;
/// The last epoch whose numbers fit into 63 bits, in the year 2242.
const LAST_EPOCH: u64 = (1 << 33) - 1;

/// Who this agent is.
#[derive(Debug)]
pub struct Identity {
    /// The uuid of its holders.
    pub client: ClientId,
    /// Later than that of every earlier run with this uuid.
    pub epoch: u64,
    /// The folder that keeps it; none where it is kept for this run only.
    pub folder: Option<PathBuf>,
    /// Keeps the folder ours as long as we run.
    _lock: Option<File>,
}

/// The file's content.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    uuid: String,
    epoch: u64,
    machine: String,
    folder: u64,
}

/// Why the uuid of the folder cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("another agent uses it")]
    InUse,
    #[error("it cannot be written: {0}")]
    Io(#[from] io::Error),
}

impl Identity {
    /// Takes the identity that `folder` keeps, or makes one and keeps it there. Where that cannot be done the agent
    /// is somebody new for this run, which is logged; then nothing of an earlier run is known to be ours. `now` is the
    /// wall clock in seconds.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn take(folder: Option<&Path>, now: u64) -> Result<Self, getrandom::Error> {
        let fresh = random_client()?;
        let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let now = now.min(LAST_EPOCH);
        let Some(folder) = folder else {
            tracing::warn!(agent = %fresh, "there is no state folder: the agent has a new identity for this run");
            return Ok(Self { client: fresh, epoch: now, folder: None, _lock: None });
        };
        match Self::keep(folder, machine.trim(), fresh, now) {
            Ok(identity) => Ok(identity),
            Err(why) => {
                tracing::warn!(
                    folder = %folder.display(), %why, agent = %fresh,
                    "the state folder cannot be used: the agent has a new identity for this run"
                );
                Ok(Self { client: fresh, epoch: now, folder: None, _lock: None })
            }
        }
    }

    fn keep(folder: &Path, machine: &str, fresh: ClientId, now: u64) -> Result<Self, Unusable> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let lock = private().truncate(false).open(folder.join(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Unusable::InUse),
            Err(error) => return Err(Unusable::Io(error.into())),
        }
        let inode = lock.metadata()?.ino();
        let path = folder.join(FILE);
        let (client, epoch) = match stored(&path, machine, inode) {
            Ok(Some((client, last))) if last < LAST_EPOCH => (client, now.max(last + 1)),
            Ok(None) => (fresh, now),
            Ok(Some(_)) => {
                tracing::warn!(path = %path.display(), agent = %fresh, "the epochs are used up: the agent has a new identity");
                (fresh, now)
            }
            Err(why) => {
                tracing::warn!(path = %path.display(), why, agent = %fresh, "the agent has a new identity");
                (fresh, now)
            }
        };
        let stored =
            Stored { uuid: client.to_string(), epoch, machine: machine.to_owned(), folder: inode };
        // Before the first number of this epoch is used.
        write(folder, &serde_json::to_vec(&stored).map_err(io::Error::from)?)?;
        Ok(Self { client, epoch, folder: Some(folder.to_owned()), _lock: Some(lock) })
    }

    /// The first number of this run: a holder's number is this plus how many were drawn before.
    #[must_use]
    pub fn first_number(&self) -> i64 {
        i64::try_from(self.epoch).unwrap_or(0) * SPAN
    }
}

/// The state folder where none is set: the system's where it can be used, else the user's own.
#[must_use]
pub fn default_folder() -> Option<PathBuf> {
    let system = Path::new("/var/lib/lockscope");
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

/// The uuid and the last epoch in the file, if there is one.
///
/// # Errors
/// Why what is there is not ours, in words.
fn stored(path: &Path, machine: &str, inode: u64) -> Result<Option<(ClientId, u64)>, &'static str> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err("the identity file cannot be read"),
    };
    let stored: Stored =
        serde_json::from_slice(&bytes).map_err(|_| "the identity file is damaged")?;
    let client = ClientId::parse(stored.uuid.as_bytes()).ok_or("the identity file is damaged")?;
    // Without a machine id nothing tells this machine from another that has a copy.
    if machine.is_empty() {
        return Err(
            "nothing tells this machine from others: /etc/machine-id is not there; give a container the host's",
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

/// Replaces the file as a whole: after a crash it is the old one or the new one.
fn write(folder: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = folder.join(".identity.new");
    let mut file = private().truncate(true).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, folder.join(FILE))?;
    File::open(folder)?.sync_all()
}

/// For files that only we may read.
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

    fn try_keep(folder: &Path, machine: &str, now: u64) -> Result<Identity, Unusable> {
        Identity::keep(folder, machine, random_client().unwrap(), now)
    }

    /// Tries again while it is in use: a child that another test has just forked has a copy of the lock until it
    /// runs its program.
    fn keep(folder: &Path, machine: &str, now: u64) -> Result<Identity, Unusable> {
        let give_up = service_kit::clock::boot_micros() + 10_000_000;
        loop {
            match try_keep(folder, machine, now) {
                Err(Unusable::InUse) if service_kit::clock::boot_micros() < give_up => {
                    std::thread::yield_now();
                }
                kept => return kept,
            }
        }
    }

    #[test]
    fn it_is_kept_and_the_epoch_grows() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let first = keep(&state, "m", NOW).unwrap();
        assert_eq!((first.epoch, first.first_number()), (NOW, 1_800_000_000 << 30));
        let client = first.client;
        drop(first);
        assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
        let same_second = keep(&state, "m", NOW).unwrap();
        assert_eq!((same_second.client, same_second.epoch), (client, NOW + 1));
        drop(same_second);
        let clock_set_back = keep(&state, "m", 5).unwrap();
        assert_eq!((clock_set_back.client, clock_set_back.epoch), (client, NOW + 2));
        drop(clock_set_back);
        let later = keep(&state, "m", NOW + 100).unwrap();
        assert_eq!((later.client, later.epoch), (client, NOW + 100));
    }

    #[test]
    fn a_second_agent_is_somebody_else() {
        let folder = tempfile::tempdir().unwrap();
        let first = keep(folder.path(), "m", NOW).unwrap();
        assert!(matches!(try_keep(folder.path(), "m", NOW), Err(Unusable::InUse)));
        let second = Identity::take(Some(folder.path()), NOW).unwrap();
        assert_ne!(first.client, second.client);
    }

    #[test]
    fn a_copy_is_somebody_else() {
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("one");
        let first = keep(&one, "m", NOW).unwrap().client;
        let two = folder.path().join("two");
        fs::create_dir(&two).unwrap();
        fs::copy(one.join(FILE), two.join(FILE)).unwrap();
        let copied = keep(&two, "m", NOW).unwrap().client;
        assert_ne!(copied, first);
        assert_eq!(keep(&two, "m", NOW).unwrap().client, copied, "from now on it is its own");
        assert_ne!(keep(&one, "other", NOW).unwrap().client, first);
        let nameless = folder.path().join("nameless");
        let first = keep(&nameless, "", NOW).unwrap().client;
        assert_ne!(keep(&nameless, "", NOW).unwrap().client, first);
    }

    #[test]
    fn what_cannot_be_used_is_no_reason_not_to_start() {
        assert_eq!(Identity::take(None, NOW).unwrap().epoch, NOW);
        let unusable = Path::new("/proc/no/such");
        assert_eq!(Identity::take(Some(unusable), NOW).unwrap().epoch, NOW);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(keep(folder.path(), "m", NOW).unwrap().epoch, NOW);
    }

    #[test]
    fn numbers_fit_to_the_last_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let last = Identity::take(None, u64::MAX).unwrap();
        assert!(last.first_number() > 0 && last.first_number().checked_add(SPAN - 1).is_some());
        let used_up = keep(folder.path(), "m", LAST_EPOCH).unwrap().client;
        assert_ne!(keep(folder.path(), "m", NOW).unwrap().client, used_up);
    }
}
