//! The process that becomes the command, after the setup that it has to do itself.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::terminal::{Terminal, own_group};
use crate::cli::Launch;
use crate::exit::Exit;
use crate::output::notice;
use crate::reply::printable;
use crate::signals;

/// Takes over the terminal if the front has it, arranges to be killed when the guard dies, and executes the command.
pub(crate) fn run(args: &Launch) -> Exit {
    let prepared = signals::allow_terminal_access()
        .and_then(|()| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    if let Err(error) = prepared {
        notice(&format!("cannot prepare the command: {error}"));
        return Exit::OS;
    }
    // The guard may have died before the arrangement took effect.
    if getppid() != Pid::from_raw(args.guard) {
        return Exit::signal(Signal::KILL.as_raw());
    }
    let groups = (Pid::from_raw(args.foreground_of), own_group());
    if let (Some(terminal), (Some(front), Some(own))) = (Terminal::open(), groups) {
        // Has no effect if the front is in the background.
        let _passed: bool = terminal.pass(front, own);
    }
    let Some((program, arguments)) = args.command.split_first() else { return Exit(Exit::USAGE) };
    let error = Command::new(program).args(arguments).exec();
    notice(&format!("cannot run {}: {error}", printable(program.as_encoded_bytes())));
    if error.kind() == io::ErrorKind::NotFound { Exit::NOT_FOUND } else { Exit::CANNOT_RUN }
}
