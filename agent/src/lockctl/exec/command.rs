//! The running command: its process group and all its descendants.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::wait::{self, Id, WaitPidFlag};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, waitid};

use super::environment;
use super::grant::Grant;
use super::process_tree::ProcessTree;
use crate::cli::ExecArgs;
use crate::exit::Exit;
use crate::signals;

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(u8),
    /// Ended by a signal.
    Signal(i32),
}

impl Ended {
    /// Returns the exit status, as a shell would.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Exited(status) => Exit(status),
            Self::Signal(number) => Exit::signal(number),
        }
    }

    /// Returns whether a signal ended the command, or its exit status says that one asked it to end, as in a shell.
    pub(crate) fn is_by_signal(self) -> bool {
        match self {
            Self::Exited(status) => {
                status.checked_sub(128).is_some_and(|number| signals::terminates(number.into()))
            }
            Self::Signal(_) => true,
        }
    }
}

/// A started command. It is never reaped while the guard lives, so that its pid, which also numbers its group, cannot be
/// reused while signals are sent to it.
#[derive(Debug)]
pub(crate) struct CommandGroup {
    leader: Pid,
    tree: ProcessTree,
    ended: Option<Ended>,
}

impl CommandGroup {
    /// Starts the command.
    ///
    /// # Errors
    /// Fails if the process cannot be created.
    pub(crate) fn start(
        args: &ExecArgs,
        grant: &Grant,
        socket: &Path,
        traceparent: Option<&str>,
        stdin: OwnedFd,
        front: i32,
    ) -> io::Result<Self> {
        let tree = ProcessTree::adopt_orphans()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(super::LAUNCH);
        command.arg(format!("--guard={}", getpid())).arg(format!("--foreground-of={front}"));
        command.arg("--").args(&args.command).stdin(stdin).process_group(0);
        environment::set(&mut command, grant, socket, traceparent);
        // Dropped without being reaped, as explained above.
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let leader = pid.ok_or_else(|| io::Error::other("the kernel gave no pid"))?;
        Ok(Self { leader, tree, ended: None })
    }

    pub(crate) fn number(&self) -> i32 {
        self.leader.as_raw_nonzero().get()
    }

    /// Returns the signal that has stopped the command since the last call, if one has.
    pub(crate) fn poll_stop(&self) -> Option<i32> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(self.leader), options).ok()??.stopping_signal()
    }

    /// Reaps dead orphans of the command, which are children of this process.
    pub(crate) fn reap_orphans(&self) {
        let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
        loop {
            let dead = wait::waitid(Id::All, options | WaitPidFlag::WNOWAIT);
            match dead.map(|status| status.pid()) {
                Ok(Some(pid)) if pid.as_raw() != self.number() => {
                    // Without another thread that reaps, it is still there.
                    wait::waitid(Id::Pid(pid), options).ok();
                }
                // Killed by a real-time signal, which has no name.
                Err(Errno::EINVAL) => return self.tree.reap(self.leader),
                _ => return,
            }
        }
    }

    /// Returns how the command ended; `None` while it runs.
    pub(crate) fn poll_end(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let status = waitid(WaitId::Pid(self.leader), options).ok().flatten();
            self.ended = status.and_then(|status| {
                let exited = status.exit_status().and_then(|status| u8::try_from(status).ok());
                exited.map(Ended::Exited).or_else(|| status.terminating_signal().map(Ended::Signal))
            });
        }
        self.ended
    }

    /// Sends a signal to the group, if it still exists.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process_group(self.leader, signal).unwrap_or_default();
    }

    /// Sends a signal to the group and to all other descendants, and resumes stopped ones so that they receive it.
    pub(crate) fn signal_all(&self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::CONT);
        for signal in [signal, Signal::CONT] {
            self.tree.signal_outside(signal, self.leader);
        }
    }

    /// Returns the pids of the command and its descendants that are alive.
    pub(crate) fn living(&self) -> Vec<i32> {
        self.tree.reap(self.leader);
        self.tree.living()
    }
}
