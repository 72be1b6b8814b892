//! The agent's Unix socket: its path, permissions, creation and removal.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, chmodat, chownat, flock, fstat, open,
};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::getpid;
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::types::Status;

/// The length of the accept queue; the kernel limits it to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// The default of `--socket-mode`.
const DEFAULT_MODE: u32 = 0o660;
/// The longest path in bytes to which clients can connect.
const LONGEST_PATH: usize = 107;
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time without a connection after which the agent checks that the socket's file is in its place.
const CHECK_AFTER: Duration = Duration::from_secs(1);
/// The pause between two connections to another process's socket in its place.
const PROBE_PAUSE: Duration = Duration::from_secs(10);
/// The number of attempts, 10 ms apart, to lock a folder in which another agent is creating its socket.
const TRIES: usize = 200;

/// The path and permissions of a socket to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketSettings {
    pub path: PathBuf,
    /// The permissions, such as 0o660 for owner and group.
    pub mode: u32,
    /// The group of the file; `None` for that of the process.
    pub group: Option<u32>,
}

/// Returns the default path: in `/run/lockscope` if that exists or can be created, otherwise in the user's runtime folder.
///
/// # Errors
/// Fails if neither folder is available.
pub fn default_path() -> anyhow::Result<PathBuf> {
    let system = Path::new("/run/lockscope");
    if system.is_dir() || fs::create_dir(system).is_ok() {
        return Ok(system.join("agent.sock"));
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => Ok(Path::new(&folder).join("lockscope").join("agent.sock")),
        None => bail!(
            "no folder for the socket: /run/lockscope cannot be created and XDG_RUNTIME_DIR is not set; \
             set a path with --socket"
        ),
    }
}

/// Resolves a group, given by number or by its name in `/etc/group`.
///
/// # Errors
/// Returns a message if no group has that name.
pub fn group_id(group: &str) -> Result<u32, String> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group")
        .map_err(|error| format!("cannot read /etc/group: {error}; use the group's number"))?;
    groups
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
        })
        .ok_or_else(|| format!("group `{group}` is not in /etc/group; use its number"))
}

/// The listening socket. Its file is removed on drop, unless the service manager owns it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    /// `None` if the folder of the service manager's file is not visible here, as in a container.
    file: Option<SocketFile>,
    /// Receives whether the file is missing.
    status: watch::Sender<Status>,
}

/// A socket's file. Device and inode distinguish it from a later one at the same path.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// `None` if it was missing when the service manager passed the socket.
    inode: Option<(u64, u64)>,
    /// The settings to create it again; `None` if the service manager owns it.
    settings: Option<SocketSettings>,
    /// The latest attempt to create it again, which has failed.
    failed: Option<Instant>,
}

/// The thing at the path of a socket's file.
#[derive(Debug, PartialEq, Eq)]
enum PathState {
    Own,
    Nothing,
    /// Another process has put it there. Its socket may be stale.
    Other,
}

impl Socket {
    /// Takes over the socket passed by the service manager, or creates one.
    ///
    /// # Errors
    /// Fails if the path is in use by a running agent, is not a socket, or cannot be written.
    pub async fn open(settings: &SocketSettings) -> anyhow::Result<Self> {
        match passed().context("cannot use the socket passed by the service manager")? {
            Some(listener) => {
                if settings.group.is_some() || settings.mode != DEFAULT_MODE {
                    let warning = "--socket-mode and --socket-group have no effect on a socket that the service manager \
                                   passes: set SocketMode= and SocketGroup= in its unit";
                    tracing::warn!(warning, "risky setting");
                }
                Ok(Self::owned_by_manager(listener))
            }
            None => Self::bind(settings).await,
        }
    }

    fn owned_by_manager(listener: UnixListener) -> Self {
        let address = listener.local_addr().ok();
        let path = address.as_ref().and_then(|address| address.as_pathname());
        let path = path.filter(|path| path.parent().is_some_and(Path::is_dir));
        let file = path.map(|path| {
            let inode = inode_of(path).ok();
            SocketFile { path: path.to_owned(), inode, settings: None, failed: None }
        });
        Self { listener, file, status: watch::Sender::default() }
    }

    /// Reports from now on whether the socket's file is missing.
    pub fn report_to(&mut self, status: watch::Sender<Status>) {
        self.status = status;
    }

    /// Creates the socket, replacing a stale one. It appears at its path only once it has its permissions and listens.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::open`].
    pub async fn bind(settings: &SocketSettings) -> anyhow::Result<Self> {
        let path = &settings.path;
        let context = || format!("cannot listen at {} (--socket)", path.display());
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            bail!("{} is not a valid socket path", path.display());
        };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        fs::create_dir_all(folder).with_context(context)?;
        let lock = [OsStr::new("."), name, OsStr::new(".lock")].join(OsStr::new(""));
        let _lock = LockFile::take(folder.join(lock)).await.with_context(context)?;
        let temporary = folder.join(format!(".{:x}", getpid().as_raw_nonzero()));
        if is_alive(path, &temporary).await? {
            bail!(
                "{} is in use by another agent; stop it, or set another path with --socket",
                path.display()
            );
        }
        let made = make(&temporary, settings).and_then(|listener| {
            let inode = inode_of(&temporary)?;
            fs::rename(&temporary, path)?;
            Ok((listener, inode))
        });
        let (listener, inode) = match made {
            Ok(made) => made,
            Err(error) => {
                // The file may not exist.
                fs::remove_file(&temporary).ok();
                return Err(error).with_context(context);
            }
        };
        let (path, settings) = (path.clone(), Some(settings.clone()));
        let file = Some(SocketFile { path, inode: Some(inode), settings, failed: None });
        Ok(Self { listener, file, status: watch::Sender::default() })
    }

    /// Accepts a connection. If the socket's file is removed meanwhile, or replaced by a socket on which nobody listens, no client
    /// could connect: it is created again, or its absence is logged if the service manager owns it.
    ///
    /// # Errors
    /// Fails if the kernel has no connection for the process, mostly for lack of file descriptors.
    pub async fn accept(&mut self) -> io::Result<(UnixStream, SocketAddr)> {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => return accepted,
                () = tokio::time::sleep(CHECK_AFTER) => self.restore().await,
            }
        }
    }

    async fn restore(&mut self) {
        let Some(file) = &mut self.file else { return };
        match file.path_state() {
            PathState::Own => {
                file.failed = None;
                return self.report();
            }
            PathState::Other if file.failed.is_some_and(|at| at.elapsed() < PROBE_PAUSE) => return,
            PathState::Nothing | PathState::Other => {}
        }
        let path = file.path.clone();
        let created = match &file.settings {
            Some(settings) => Self::bind(settings).await,
            None => Err(anyhow!(
                "the service manager creates it: restart the unit of the socket, such as lockscope-agent.socket"
            )),
        };
        match created {
            Ok(Self { listener, file, .. }) => {
                (self.listener, self.file) = (listener, file);
                tracing::warn!(path = %path.display(), "the socket's file was removed or replaced: it is created again");
            }
            Err(error) => {
                if file.failed.replace(Instant::now()).is_none() {
                    let error = format!("{error:#}");
                    tracing::error!(path = %path.display(), error, "the socket's file was removed or replaced: no worker can connect");
                }
            }
        }
        self.report();
    }

    fn report(&self) {
        let missing = self.file.as_ref().is_some_and(|file| file.failed.is_some());
        self.status.send_if_modified(|status| {
            std::mem::replace(&mut status.socket_missing, missing) != missing
        });
    }
}

impl SocketFile {
    fn path_state(&self) -> PathState {
        use io::ErrorKind::{NotADirectory, NotFound};
        match inode_of(&self.path) {
            Ok(inode) if Some(inode) != self.inode => PathState::Other,
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => PathState::Nothing,
            Ok(_) | Err(_) => PathState::Own,
        }
    }
}

/// Removes the file, unless the service manager owns it or another agent's socket has replaced it.
impl Drop for SocketFile {
    fn drop(&mut self) {
        let path = &self.path;
        if self.settings.is_some()
            && inode_of(path).is_ok_and(|inode| Some(inode) == self.inode)
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), %error, "could not remove the socket file");
        }
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file.as_ref().and_then(|file| file.settings.as_ref()) {
            Some(settings) => settings.path.display().fmt(f),
            None => f.write_str("the service manager's socket"),
        }
    }
}

fn make(path: &Path, settings: &SocketSettings) -> io::Result<UnixListener> {
    remove_if_there(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Some(group) = settings.group {
        chownat(CWD, path, None, Some(Gid::from_raw(group)), AtFlags::empty())?;
    }
    chmodat(CWD, path, Mode::from_raw_mode(settings.mode), AtFlags::empty())?;
    listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// Removes a leftover of an earlier process with the same pid.
fn remove_if_there(temporary: &Path) -> io::Result<()> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_long(path: &Path) -> bool {
    path.as_os_str().len() > LONGEST_PATH
}

fn inode_of(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Returns a sentence about a path that is too long to connect to.
pub fn long_path(path: &Path) -> Option<String> {
    is_long(path).then(|| {
        format!(
            "{} has {} bytes, and workers can connect to a path of {LONGEST_PATH} at most: they need a \
             shorter one, such as that of a mount",
            path.display(),
            path.as_os_str().len()
        )
    })
}

/// Returns a sentence about a file at `path` that is not a socket, if there is one.
pub fn other_file(path: &Path) -> Option<String> {
    let metadata = fs::symlink_metadata(path).ok()?;
    (!metadata.file_type().is_socket()).then(|| {
        let path = path.display();
        format!("{path} exists and is not a socket; remove it, or set another path with --socket")
    })
}

/// Returns whether a process listens at `path`. If that is too long to connect to, a link to it at `temporary` serves instead.
async fn is_alive(path: &Path, temporary: &Path) -> anyhow::Result<bool> {
    if let Some(sentence) = other_file(path) {
        bail!(sentence);
    }
    match fs::symlink_metadata(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot access {}", path.display()));
        }
    }
    let link = path.file_name().filter(|_| is_long(path));
    if let Some(name) = link {
        remove_if_there(temporary)?;
        symlink(name, temporary)?;
    }
    let connectable = if link.is_some() { temporary } else { path };
    let probe = tokio::time::timeout(PROBE_TIMEOUT, UnixStream::connect(connectable)).await;
    if link.is_some() {
        fs::remove_file(temporary)?;
    }
    match probe {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        // A full backlog or a lack of permission also means that a process listens.
        _ => Ok(true),
    }
}

/// Prevents another starting agent from replacing the same socket. Removed when dropped.
///
/// It is a separate file, since everyone who may read a folder may lock it.
#[derive(Debug)]
struct LockFile {
    path: PathBuf,
    _file: OwnedFd,
}

impl LockFile {
    async fn take(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for _ in 0..TRIES {
            let file = open(&path, flags, Mode::RUSR | Mode::WUSR)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => return Err(error.into()),
                Ok(())
                    if inode_of(&path).ok()
                        == fstat(&file).ok().map(|stat| (stat.st_dev, stat.st_ino)) =>
                {
                    return Ok(Self { path, _file: file });
                }
                // Its owner has removed it meanwhile.
                Ok(()) => {}
            }
        }
        Err(io::Error::other(format!("another process has locked {}", path.display())))
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // A leftover file does no harm.
        fs::remove_file(&self.path).ok();
    }
}

/// Returns the listening socket passed by systemd, if any.
fn passed() -> anyhow::Result<Option<UnixListener>> {
    let mut passed = listenfd::ListenFd::from_env();
    if passed.len() > 1 {
        bail!("expected one socket from the service manager, got {}", passed.len());
    }
    let taken = passed
        .take_unix_listener(0)
        .context("the file descriptor passed by the service manager is not a Unix socket")?;
    let Some(listener) = taken else { return Ok(None) };
    listener.set_nonblocking(true)?;
    Ok(Some(UnixListener::from_std(listener)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(folder: &tempfile::TempDir) -> SocketSettings {
        SocketSettings { path: folder.path().join("agent.sock"), mode: 0o620, group: None }
    }

    fn entries(folder: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn the_file_has_its_permissions_and_is_removed_on_drop() {
        let folder = tempfile::tempdir().unwrap();
        let own = rustix::process::getgid().as_raw();
        // Without root, a process can only give its files to a group that it is in.
        let of_root = rustix::process::geteuid().is_root().then_some(own + 1);
        let groups = rustix::process::getgroups().unwrap();
        let others = || groups.iter().map(|group| group.as_raw()).find(|group| *group != own);
        let group = of_root.or_else(others).unwrap_or(own);
        let settings = SocketSettings { group: Some(group), ..settings(&folder) };
        let mut socket = Socket::bind(&settings).await.unwrap();
        let file = fs::metadata(&settings.path).unwrap();
        assert_eq!((file.mode() & 0o777, file.gid()), (0o620, group));
        UnixStream::connect(&settings.path).await.unwrap();
        socket.accept().await.unwrap();
        assert_eq!(entries(&folder), ["agent.sock"]);
        drop(socket);
        assert!(entries(&folder).is_empty());
    }

    #[tokio::test]
    async fn a_missing_folder_is_created() {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            SocketSettings { path: folder.path().join("a/b/agent.sock"), ..settings(&folder) };
        Socket::bind(&settings).await.unwrap();
    }

    #[tokio::test]
    async fn a_removed_socket_is_created_again_as_soon_as_its_folder_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("run");
        let settings = SocketSettings { path: own.join("agent.sock"), ..settings(&folder) };
        let mut socket = Socket::bind(&settings).await.unwrap();
        fs::remove_dir_all(&own).unwrap();
        fs::write(&own, "in the way").unwrap();
        socket.restore().await;
        assert!(socket.file.as_ref().unwrap().failed.is_some());
        fs::remove_file(&own).unwrap();
        let connecting = async {
            while let Err(error) = UnixStream::connect(&settings.path).await {
                assert_eq!(error.kind(), io::ErrorKind::NotFound);
                tokio::task::yield_now().await;
            }
        };
        let (accepted, ()) = tokio::join!(socket.accept(), connecting);
        accepted.unwrap();
        assert_eq!(fs::metadata(&settings.path).unwrap().mode() & 0o777, 0o620);
        drop(socket);
        assert!(!settings.path.exists());
    }

    #[tokio::test]
    async fn a_removed_socket_of_the_service_manager_is_reported_and_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passed.sock");
        let mut socket = Socket::owned_by_manager(UnixListener::bind(&path).unwrap());
        let (status, reported) = watch::channel(Status::default());
        socket.report_to(status);
        socket.restore().await;
        assert!(!reported.borrow().socket_missing);
        let away = folder.path().join("away");
        fs::rename(&path, &away).unwrap();
        socket.restore().await;
        assert!(reported.borrow().socket_missing);
        fs::rename(&away, &path).unwrap();
        socket.restore().await;
        assert!(!reported.borrow().socket_missing);
        drop(socket);
        assert_eq!(entries(&folder), ["passed.sock"]);
    }

    #[tokio::test]
    async fn a_socket_that_was_removed_before_the_agent_got_it_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passed.sock");
        let listener = UnixListener::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let mut socket = Socket::owned_by_manager(listener);
        let (status, reported) = watch::channel(Status::default());
        socket.report_to(status);
        socket.restore().await;
        assert!(reported.borrow().socket_missing);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&folder);
        drop(std::os::unix::net::UnixListener::bind(&settings.path).unwrap());
        let socket = Socket::bind(&settings).await.unwrap();
        let error = Socket::bind(&settings).await.unwrap_err().to_string();
        assert!(error.contains("is in use") && error.contains("agent.sock"), "{error}");
        UnixStream::connect(&settings.path).await.unwrap();
        drop(socket);
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&folder);
        fs::write(&settings.path, "precious").unwrap();
        let error = Socket::bind(&settings).await.unwrap_err().to_string();
        assert!(error.contains("is not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&settings.path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_reader_of_the_folder_cannot_prevent_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let reader = fs::File::open(folder.path()).unwrap();
        flock(&reader, FlockOperation::NonBlockingLockExclusive).unwrap();
        let socket = Socket::bind(&settings(&folder)).await.unwrap();
        assert_eq!(entries(&folder), ["agent.sock"]);
        drop(socket);
    }

    #[tokio::test]
    async fn of_agents_that_start_at_the_same_time_one_gets_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&folder);
        let starts = (0..10).map(|_| Socket::bind(&settings));
        let sockets = futures_util::future::join_all(starts).await;
        let listening: Vec<Socket> = sockets.into_iter().filter_map(Result::ok).collect();
        assert_eq!(listening.len(), 1);
        assert_eq!(entries(&folder), ["agent.sock"]);
    }

    #[tokio::test]
    async fn a_successors_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&folder);
        let socket = Socket::bind(&settings).await.unwrap();
        fs::remove_file(&settings.path).unwrap();
        let successor = Socket::bind(&settings).await.unwrap();
        drop(socket);
        UnixStream::connect(&settings.path).await.unwrap();
        drop(successor);
        assert!(entries(&folder).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_another_process_has_replaced_is_created_again_once_that_one_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&folder);
        let mut socket = Socket::bind(&settings).await.unwrap();
        fs::remove_file(&settings.path).unwrap();
        let other = std::os::unix::net::UnixListener::bind(&settings.path).unwrap();
        other.set_nonblocking(true).unwrap();
        let probes = || std::iter::from_fn(|| other.accept().ok()).count();
        for expected in [1, 0, 0] {
            socket.restore().await;
            assert_eq!(probes(), expected);
            assert_eq!(socket.file.as_ref().unwrap().path_state(), PathState::Other);
        }
        tokio::time::advance(PROBE_PAUSE).await;
        socket.restore().await;
        assert_eq!(probes(), 1);
        // Its file stays.
        drop(other);
        tokio::time::advance(PROBE_PAUSE).await;
        socket.restore().await;
        UnixStream::connect(&settings.path).await.unwrap();
        socket.accept().await.unwrap();
        drop(socket);
        assert!(entries(&folder).is_empty());
    }

    #[tokio::test]
    async fn the_error_for_a_path_that_is_too_long_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            SocketSettings { path: folder.path().join("x".repeat(200)), ..settings(&folder) };
        let first = Socket::bind(&settings).await.expect("only the temporary name must be short");
        let error = Socket::bind(&settings).await.unwrap_err();
        assert!(error.to_string().contains("in use by another agent"), "{error:#}");
        let stale = folder.path().join("stale");
        fs::hard_link(&settings.path, &stale).unwrap();
        drop(first);
        fs::rename(stale, &settings.path).unwrap();
        Socket::bind(&settings).await.expect("a killed agent's socket can be replaced");
        assert!(entries(&folder).is_empty(), "nothing is left: {:?}", entries(&folder));
        let deep = folder.path().join("y".repeat(100)).join("agent.sock");
        let error = Socket::bind(&SocketSettings { path: deep, ..settings }).await.unwrap_err();
        assert!(format!("{error:#}").contains("cannot listen at"), "{error:#}");
    }

    #[test]
    fn groups_by_name_and_number() {
        assert_eq!(group_id("0"), Ok(0));
        assert_eq!(group_id("root"), Ok(0));
        assert!(group_id("no-such-group").unwrap_err().contains("no-such-group"));
    }
}
