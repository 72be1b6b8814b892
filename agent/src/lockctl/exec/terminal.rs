//! The controlling terminal of `lockctl exec`, and the process group in its foreground.

use std::fs::File;

use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

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
    Pid::from_raw(nix::unistd::getpgrp().as_raw())
}
