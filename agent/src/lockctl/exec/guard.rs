//! The process that owns the session and thus the locks: acquires them, runs and supervises the command, releases them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::Signal;

use super::acquire::{Attempts, acquire};
use super::command::CommandGroup;
use super::control::{FrontMessage, GuardControl};
use super::environment;
use super::supervisor::Supervisor;
use crate::cli::ExecArgs;
use crate::exit::Exit;
use crate::output::notice;
use crate::runtime;
use crate::signals::{self, Signals};

/// Runs the guard of a front.
pub(crate) fn run(socket: &Path, args: &ExecArgs) -> Exit {
    let (stream, front, stdin) = match GuardControl::accept() {
        Ok(accepted) => accepted,
        Err(error) => {
            notice(&format!("{} can only be started by `lockctl exec`: {error}", super::GUARD));
            return Exit(Exit::USAGE);
        }
    };
    let runtime = runtime::create();
    let ended = runtime.and_then(|runtime| {
        runtime.block_on(async {
            // A different name from the front's, so that `killall lockctl` spares the guard, which cleans up.
            rustix::thread::set_name(c"lock-guard")?;
            signals::allow_terminal_access()?;
            let signals = Signals::catch(&[Signal::CHILD])?;
            serve(socket, args, GuardControl::new(stream)?, signals, stdin, front).await
        })
    });
    ended.unwrap_or_else(|error| {
        notice(&format!("cannot run the command: {error}"));
        Exit::OS
    })
}

async fn serve(
    socket: &Path,
    args: &ExecArgs,
    mut control: GuardControl,
    mut signals: Signals,
    stdin: OwnedFd,
    front: i32,
) -> io::Result<Exit> {
    let traceparent = environment::traceparent();
    let mut attempts = Attempts::default();
    let granted = {
        let acquiring = acquire(socket, args, traceparent.as_deref(), &mut attempts);
        let mut acquiring = std::pin::pin!(acquiring);
        loop {
            let number = tokio::select! {
                biased;
                message = control.next() => match message {
                    FrontMessage::FrontDied => break Err(Exit::OS),
                    FrontMessage::Signal(number) => number,
                },
                number = signals.next() => number,
                granted = &mut acquiring => break granted,
            };
            // No command runs yet. Closing the connection ends the wait.
            if signals::terminates(number) {
                break Err(Exit::signal(number));
            }
        }
    };
    let granted = match granted {
        Ok(granted) => granted,
        Err(exit) => {
            attempts.end(socket, args).await;
            return Ok(exit);
        }
    };
    let traceparent = traceparent.as_deref();
    let group = match CommandGroup::start(args, &granted.grant, socket, traceparent, stdin, front) {
        Ok(group) => group,
        Err(error) => {
            drop(granted);
            attempts.end(socket, args).await;
            return Err(error);
        }
    };
    control.report_running(group.number()).await;
    Ok(Supervisor::new(socket, args, granted, group).run(control, signals).await)
}
