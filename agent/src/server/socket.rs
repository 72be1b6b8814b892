//! The socket's place in the file system: where it is, who may use it, whose it is.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, chmodat, chownat, flock, open};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::getpid;
use tokio::net::{UnixListener, UnixStream};

/// How many connections may wait for the accept loop; the kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// How long a socket that does not answer at once is asked whether it lives.
const ASK: Duration = Duration::from_secs(1);
/// How often, 10 ms apart, the folder is tried that another agent is just working in.
const TRIES: usize = 200;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The socket's path.
    pub path: PathBuf,
    /// Its permissions: 0o660 lets the owner and the group in.
    pub mode: u32,
    /// Its group, where it shall not be the process' own.
    pub group: Option<u32>,
}

/// The socket's usual path: in `/run/lockscope` where that is there or can be made, else in the user's own run-time
/// folder.
///
/// # Errors
/// When there is neither.
pub fn default_path() -> anyhow::Result<PathBuf> {
    let system = Path::new("/run/lockscope");
    if system.is_dir() || fs::create_dir(system).is_ok() {
        return Ok(system.join("agent.sock"));
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => Ok(Path::new(&folder).join("lockscope").join("agent.sock")),
        None => bail!(
            "there is no place for the socket: /run/lockscope cannot be made and XDG_RUNTIME_DIR is not set; \
             name one by --socket"
        ),
    }
}

/// The number of a group, given as such or by its name in `/etc/group`.
///
/// # Errors
/// When there is none of that name, in words.
pub fn group_id(group: &str) -> Result<u32, String> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group")
        .map_err(|error| format!("cannot read /etc/group: {error}; give the group's number"))?;
    groups
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
        })
        .ok_or_else(|| format!("`{group}` is no group in /etc/group; give its number"))
}

/// A socket that workers connect to.
#[derive(Debug)]
pub struct Socket {
    /// Where they come in.
    pub listener: UnixListener,
    /// The file to remove at the end; none where the service manager owns the socket.
    file: Option<SocketFile>,
}

/// A socket's file, by its path and by what tells it from a later one at the same path.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Socket {
    /// Takes the socket that the service manager has passed, or makes one at `place`.
    ///
    /// # Errors
    /// When `place` is taken by a living agent or by something else than a socket, or cannot be written.
    pub async fn open(place: &Place) -> anyhow::Result<Self> {
        match passed().context("cannot take the socket that the service manager passes")? {
            Some(listener) => Ok(Self { listener, file: None }),
            None => Self::bind(place).await,
        }
    }

    /// Makes the socket at `place`. A dead one there is replaced. Nobody ever sees it half made: it gets its
    /// permissions under another name, before it listens.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn bind(place: &Place) -> anyhow::Result<Self> {
        let path = &place.path;
        let told = || format!("cannot listen at {}", path.display());
        let (Some(folder), Some(_)) = (path.parent(), path.file_name()) else {
            bail!("{} is no path of a socket", path.display());
        };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        fs::create_dir_all(folder).with_context(told)?;
        let _lock = lock(folder).await.with_context(told)?;
        if is_alive(path).await? {
            bail!(
                "{} is in use: another agent listens there; stop it, or name another path by --socket",
                path.display()
            );
        }
        let temporary = folder.join(format!(".{:x}", getpid().as_raw_nonzero()));
        let made = make(&temporary, place).and_then(|listener| {
            let id = id_of(&temporary)?;
            fs::rename(&temporary, path)?;
            Ok((listener, id))
        });
        let (listener, id) = match made {
            Ok(made) => made,
            Err(error) => {
                // It may not even be there.
                fs::remove_file(&temporary).ok();
                return Err(error).with_context(told);
            }
        };
        let file = Some(SocketFile { path: path.clone(), id });
        Ok(Self { listener, file })
    }

    /// Where workers find it, as far as this process has made it.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }
}

/// A later agent's socket at the same path is left alone.
impl Drop for SocketFile {
    fn drop(&mut self) {
        if id_of(&self.path).is_ok_and(|id| id == self.id)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "the socket's file stays behind");
        }
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => file.path.display().fmt(f),
            None => f.write_str("the service manager's socket"),
        }
    }
}

fn make(path: &Path, place: &Place) -> io::Result<UnixListener> {
    // Left over from a process of the same number.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Some(group) = place.group {
        chownat(CWD, path, None, Some(Gid::from_raw(group)), AtFlags::empty())?;
    }
    chmodat(CWD, path, Mode::from_raw_mode(place.mode), AtFlags::empty())?;
    listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

fn id_of(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Whether somebody listens at `path`.
async fn is_alive(path: &Path) -> anyhow::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            bail!(
                "{} is there and is no socket; remove it, or name another path by --socket",
                path.display()
            )
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot look at {}", path.display()));
        }
    }
    match tokio::time::timeout(ASK, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        // A full backlog, or no right to connect: somebody is there.
        _ => Ok(true),
    }
}

/// Keeps another agent that starts now from judging and replacing the same socket. Ends with the descriptor.
async fn lock(folder: &Path) -> io::Result<OwnedFd> {
    let folder = open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for _ in 0..TRIES {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            result => return result.map(|()| folder).map_err(Into::into),
        }
    }
    Err(io::Error::other("another process keeps the folder locked"))
}

/// The listening socket that systemd has passed, if any.
fn passed() -> anyhow::Result<Option<UnixListener>> {
    let mut passed = listenfd::ListenFd::from_env();
    if passed.len() > 1 {
        bail!("more than one socket is passed; one is expected");
    }
    let taken = passed.take_unix_listener(0).context("what is passed is no Unix socket")?;
    let Some(listener) = taken else { return Ok(None) };
    listener.set_nonblocking(true)?;
    Ok(Some(UnixListener::from_std(listener)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(folder: &tempfile::TempDir) -> Place {
        Place { path: folder.path().join("agent.sock"), mode: 0o620, group: None }
    }

    fn entries(folder: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn it_is_there_with_its_permissions_and_gone_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { group: Some(rustix::process::getgid().as_raw()), ..place(&folder) };
        let socket = Socket::bind(&place).await.unwrap();
        assert_eq!(fs::metadata(&place.path).unwrap().mode() & 0o777, 0o620);
        UnixStream::connect(&place.path).await.unwrap();
        socket.listener.accept().await.unwrap();
        assert_eq!(entries(&folder), ["agent.sock"]);
        drop(socket);
        assert!(entries(&folder).is_empty());
    }

    #[tokio::test]
    async fn a_folder_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("a/b/agent.sock"), ..place(&folder) };
        Socket::bind(&place).await.unwrap();
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(&folder);
        drop(std::os::unix::net::UnixListener::bind(&place.path).unwrap());
        let socket = Socket::bind(&place).await.unwrap();
        let error = Socket::bind(&place).await.unwrap_err().to_string();
        assert!(error.contains("is in use") && error.contains("agent.sock"), "{error}");
        UnixStream::connect(&place.path).await.unwrap();
        drop(socket);
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(&folder);
        fs::write(&place.path, "precious").unwrap();
        let error = Socket::bind(&place).await.unwrap_err().to_string();
        assert!(error.contains("is no socket"), "{error}");
        assert_eq!(fs::read_to_string(&place.path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_successors_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(&folder);
        let socket = Socket::bind(&place).await.unwrap();
        fs::remove_file(&place.path).unwrap();
        let successor = Socket::bind(&place).await.unwrap();
        drop(socket);
        UnixStream::connect(&place.path).await.unwrap();
        drop(successor);
        assert!(entries(&folder).is_empty());
    }

    #[tokio::test]
    async fn a_path_too_long_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { path: folder.path().join("x".repeat(200)), ..place(&folder) };
        assert!(Socket::bind(&place).await.is_ok(), "only the name it is made under must be short");
        let deep = folder.path().join("y".repeat(100)).join("agent.sock");
        let error = Socket::bind(&Place { path: deep, ..place }).await.unwrap_err();
        assert!(format!("{error:#}").contains("cannot listen at"), "{error:#}");
    }

    #[test]
    fn groups_by_name_and_number() {
        assert_eq!(group_id("0"), Ok(0));
        assert_eq!(group_id("root"), Ok(0));
        assert!(group_id("no-such-group").unwrap_err().contains("no-such-group"));
    }
}
