//! The command, before it is itself: what only the process itself can set up.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::signals;
use super::terminal::{Terminal, own_group};
use crate::cli::{Launch, shown};
use crate::exit::Exit;
use crate::say::say;

/// Takes the terminal over where the front has it, asks the kernel to be killed when the guard dies, and becomes the
/// command.
pub(crate) fn run(args: &Launch) -> Exit {
    let prepared = signals::may_use_terminal()
        .and_then(|()| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    if let Err(error) = prepared {
        say(&format!("cannot prepare the command: {error}"));
        return Exit::OS;
    }
    // It may have died before the kernel knew that we want to hear of it.
    if getppid() != Pid::from_raw(args.guard) {
        return Exit::signal(Signal::KILL.as_raw());
    }
    let groups = (Pid::from_raw(args.foreground_of), own_group());
    if let (Some(terminal), (Some(front), Some(own))) = (Terminal::open(), groups) {
        // In the background it stays there.
        let _given: bool = terminal.pass(front, own);
    }
    let Some((program, arguments)) = args.command.split_first() else { return Exit(Exit::USAGE) };
    let error = Command::new(program).args(arguments).exec();
    say(&format!("cannot run {}: {error}", shown(program.as_encoded_bytes())));
    if error.kind() == io::ErrorKind::NotFound { Exit::NOT_FOUND } else { Exit::CANNOT_RUN }
}
