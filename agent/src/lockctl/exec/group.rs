//! The command as the guard's child: its process group, and all that has come of it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, waitid};

use super::environment;
use super::grant::Grant;
use super::tree::Tree;
use crate::cli::ExecArgs;
use crate::exit::Exit;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, with this status.
    Status(u8),
    /// By this signal.
    Signal(i32),
}

impl Ended {
    /// The status to end with.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Status(status) => Exit(status),
            Self::Signal(number) => Exit::signal(number),
        }
    }
}

/// A command that has been started. It is waited for only by the guard's own end, so that its pid, which is its
/// group's number too, stays its own for as long as signals are sent there.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
    tree: Tree,
    ended: Option<Ended>,
}

impl Group {
    /// Starts the command.
    ///
    /// # Errors
    /// When no process can be made.
    pub(crate) fn start(
        args: &ExecArgs,
        grant: &Grant,
        socket: &Path,
        traceparent: Option<&str>,
        stdin: OwnedFd,
        front: i32,
    ) -> io::Result<Self> {
        let tree = Tree::begin()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(super::LAUNCH);
        command.arg(format!("--guard={}", getpid())).arg(format!("--foreground-of={front}"));
        command.arg("--").args(&args.command).stdin(stdin).process_group(0);
        environment::set(&mut command, grant, socket, traceparent);
        // Dropped without being waited for: see above.
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let leader = pid.ok_or_else(|| io::Error::other("the kernel gave no pid"))?;
        Ok(Self { leader, tree, ended: None })
    }

    /// Its group's number.
    pub(crate) fn number(&self) -> i32 {
        self.leader.as_raw_nonzero().get()
    }

    /// Whether it has just been stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(self.leader), options)
            .is_ok_and(|status| status.is_some_and(|status| status.stopped()))
    }

    /// How the command ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let status = waitid(WaitId::Pid(self.leader), options).ok().flatten();
            self.ended = status.and_then(|status| {
                let by_itself = status.exit_status().and_then(|status| u8::try_from(status).ok());
                by_itself
                    .map(Ended::Status)
                    .or_else(|| status.terminating_signal().map(Ended::Signal))
            });
        }
        self.ended
    }

    /// Passes a signal on to the group. A group that has gone needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process_group(self.leader, signal).unwrap_or_default();
    }

    /// Sends a signal to the group, and to what has left it too, stopped or not.
    pub(crate) fn end_all(&self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::CONT);
        for signal in [signal, Signal::CONT] {
            self.tree.signal_outside(signal, self.leader);
        }
    }

    /// Those that still live, the command itself and all that has come of it.
    pub(crate) fn living(&self) -> Vec<i32> {
        self.tree.reap(self.leader);
        self.tree.living()
    }
}
