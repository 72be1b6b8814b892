//! The terminal that `lockctl exec` was started from, if there is one, and whose turn it is to read from it.

use std::fs::File;

use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// Opens it; none where the process has none.
    pub(crate) fn open() -> Option<Self> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Self)
    }

    /// Whether that process group is in the foreground.
    pub(crate) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == group)
    }

    /// Puts `to` in the foreground, if `from` is there now. A terminal that has been hung up is nobody's.
    pub(crate) fn pass(&self, from: Pid, to: Pid) -> bool {
        self.is_of(from) && tcsetpgrp(&self.0, to).is_ok()
    }

    /// Takes it back from the command's group.
    pub(crate) fn take_back(&self, group: Pid) -> bool {
        own_group().is_some_and(|own| self.pass(group, own))
    }

    /// Gives it to the command's group, if it is ours to give.
    pub(crate) fn give(&self, group: Pid) -> bool {
        own_group().is_some_and(|own| self.pass(own, group))
    }
}

/// The process group that we are in. None where it belongs to another pid name space and has no number in ours, as under
/// `nsenter` and the like.
pub(crate) fn own_group() -> Option<Pid> {
    Pid::from_raw(nix::unistd::getpgrp().as_raw())
}
