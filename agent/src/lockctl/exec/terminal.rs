//! The controlling terminal of `lockctl exec`, and the process group in its foreground.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::unistd;
use rustix::fs::{FileType, fstat};
use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::process_tree;

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// Opens the controlling terminal; `None` if the process has none.
    pub(crate) fn open() -> Option<Self> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Self)
    }

    /// Returns whether a process group is in the foreground.
    fn is_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == group)
    }

    /// Puts `to` in the foreground if `from` is there now. Fails on a terminal that has been hung up.
    pub(crate) fn pass(&self, from: Pid, to: Pid) -> bool {
        self.is_foreground(from) && tcsetpgrp(&self.0, to).is_ok()
    }

    /// Takes the foreground back from the command's group.
    pub(crate) fn take_back(&self, group: Pid) -> bool {
        own_group().is_some_and(|own| self.pass(group, own))
    }

    /// Passes the foreground to the command's group if this process group has it.
    pub(crate) fn give(&self, group: Pid) -> bool {
        own_group().is_some_and(|own| self.pass(own, group))
    }
}

/// Returns the process group of this process; `None` if it belongs to another pid namespace, as under `nsenter`.
pub(crate) fn own_group() -> Option<Pid> {
    Pid::from_raw(unistd::getpgrp().as_raw())
}

/// Returns whether no shell can resume the process group of this process: its nearest ancestor outside the group belongs to
/// another session.
pub(crate) fn is_orphaned() -> bool {
    let own = (unistd::getsid(None), unistd::getpgid(None));
    let mut pid = unistd::getppid().as_raw();
    while pid != 0 {
        let ancestor = Some(unistd::Pid::from_raw(pid));
        if unistd::getsid(ancestor) != own.0 {
            return true;
        }
        if unistd::getpgid(ancestor) != own.1 {
            return false;
        }
        pid = process_tree::parent(pid).unwrap_or(0);
    }
    true
}

/// Returns whether standard output or standard error is a pipe, whose reader may use the terminal.
pub(crate) fn in_pipeline() -> bool {
    is_pipe(io::stdout()) || is_pipe(io::stderr())
}

fn is_pipe(fd: impl AsFd) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}
