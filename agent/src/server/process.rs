//! Detects the death of worker processes, even if a child inherited the socket and keeps it open.
//!
//! Uses one pidfd per process, shared by all its sessions, up to a limit. Above the limit only a closed socket reveals a
//! worker's death.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{Interest, unix::AsyncFd};

use crate::collections::HashMap;

/// The watched processes.
#[derive(Debug)]
pub struct Processes {
    watched: Mutex<HashMap<i32, Weak<Process>>>,
    most: usize,
}

/// A watched process, alive when the watch began.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    registry: Weak<Processes>,
}

/// The outcome of a request to watch a process.
#[derive(Debug)]
pub enum Watch {
    /// [`Process::died`] reports its death.
    Watched(Arc<Process>),
    Dead,
    /// Cannot be watched: the pid is not visible, or no descriptor is left.
    Unwatched,
}

impl Processes {
    /// Creates a set of at most `most` watched processes.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { watched: Mutex::default(), most })
    }

    /// Watches the process `pid`.
    pub fn watch(self: &Arc<Self>, pid: Option<i32>) -> Watch {
        let Some(pid) = pid else { return Watch::Unwatched };
        // Dropping a process locks the map, so the guard must be dropped first.
        let (known, full) = {
            let watched = self.watched.lock();
            (watched.get(&pid).and_then(Weak::upgrade), watched.len() >= self.most)
        };
        match known {
            // The pid of a dead process may have been reused.
            Some(process) if !process.has_died() => return Watch::Watched(process),
            None if full => return Watch::Unwatched,
            _ => {}
        }
        let Some(id) = Pid::from_raw(pid) else { return Watch::Unwatched };
        let pidfd = match pidfd_open(id, PidfdFlags::NONBLOCK) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Watch::Dead,
            Err(error) => {
                tracing::debug!(pid, %error, "no pidfd; only a closed socket will reveal this worker's death");
                return Watch::Unwatched;
            }
        };
        #[expect(deprecated, reason = "sound with an OwnedFd, and its replacement is unsafe")]
        match AsyncFd::with_interest(pidfd, Interest::READABLE) {
            Ok(pidfd) => {
                let process = Arc::new(Process { pid, pidfd, registry: Arc::downgrade(self) });
                self.watched.lock().insert(pid, Arc::downgrade(&process));
                Watch::Watched(process)
            }
            Err(_) => Watch::Unwatched,
        }
    }
}

impl Process {
    /// Waits until the process has died.
    pub async fn died(&self) {
        // Readiness is never cleared, since death is final and all sessions wait for the same descriptor.
        if self.pidfd.readable().await.is_err() {
            // The runtime is shutting down, and the session with it.
            std::future::pending::<()>().await;
        }
    }

    fn has_died(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            let mut watched = registry.watched.lock();
            if watched.get(&self.pid).is_some_and(|entry| entry.strong_count() == 0) {
                watched.remove(&self.pid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            Self(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap())
        }
        fn pid(&self) -> Option<i32> {
            i32::try_from(self.0.id()).ok()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.kill().ok();
            self.0.wait().ok();
        }
    }

    #[tokio::test]
    async fn a_death_is_reported_to_all_sessions_and_ends_the_watch() {
        let processes = Processes::new(10);
        let mut worker = Sleeper::start();
        let (Watch::Watched(one), Watch::Watched(two)) =
            (processes.watch(worker.pid()), processes.watch(worker.pid()))
        else {
            panic!("not watched")
        };
        assert!(Arc::ptr_eq(&one, &two), "one descriptor per process");
        assert!(!one.has_died());
        worker.0.kill().unwrap();
        let both = async { tokio::join!(one.died(), two.died()) };
        tokio::time::timeout(std::time::Duration::from_secs(20), both).await.unwrap();
        // A zombie's pid cannot be reused, but the old watch must not be shared anyway.
        let Watch::Watched(zombie) = processes.watch(worker.pid()) else { panic!("not watched") };
        assert!(!Arc::ptr_eq(&one, &zombie));
        zombie.died().await;
        worker.0.wait().unwrap();
        assert!(matches!(processes.watch(worker.pid()), Watch::Dead));
        drop(one);
        drop(two);
        assert_eq!(processes.watched.lock().len(), 1, "an older watch does not remove the newer");
        drop(zombie);
        assert_eq!(processes.watched.lock().len(), 0);
    }

    #[tokio::test]
    async fn the_number_of_watches_is_bounded() {
        let processes = Processes::new(1);
        let (one, two) = (Sleeper::start(), Sleeper::start());
        let first = processes.watch(one.pid());
        assert!(matches!(first, Watch::Watched(_)));
        assert!(matches!(processes.watch(two.pid()), Watch::Unwatched));
        assert!(matches!(processes.watch(one.pid()), Watch::Watched(_)), "already watched");
        assert!(matches!(processes.watch(None), Watch::Unwatched));
        drop(first);
        assert!(matches!(processes.watch(two.pid()), Watch::Watched(_)));
    }
}
