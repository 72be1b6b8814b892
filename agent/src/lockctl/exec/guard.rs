//! The process that has the session, and with it the locks: it waits for them, runs the command, minds it, and
//! releases.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::Signal;

use super::control::{Guard, Order};
use super::group::Group;
use super::mind::Mind;
use super::signals::{self, Signals};
use super::{environment, waiting};
use crate::cli::ExecArgs;
use crate::exit::Exit;
use crate::runtime;
use crate::say::say;

/// Runs as the front's guard.
pub(crate) fn run(socket: &Path, args: &ExecArgs) -> Exit {
    let (stream, front, stdin) = match Guard::accept() {
        Ok(accepted) => accepted,
        Err(error) => {
            say(&format!("{} is started by `lockctl exec` alone: {error}", super::GUARD));
            return Exit(Exit::USAGE);
        }
    };
    let runtime = runtime::one_thread();
    let ended = runtime.and_then(|runtime| {
        runtime.block_on(async {
            // Another name than the front's: who kills all that are called lockctl leaves this one to clear up.
            rustix::thread::set_name(c"lock-guard")?;
            signals::may_use_terminal()?;
            let signals = Signals::catch(&[Signal::CHILD])?;
            serve(socket, args, Guard::new(stream)?, signals, stdin, front).await
        })
    });
    ended.unwrap_or_else(|error| {
        say(&format!("cannot run the command: {error}"));
        Exit::OS
    })
}

async fn serve(
    socket: &Path,
    args: &ExecArgs,
    mut control: Guard,
    mut signals: Signals,
    stdin: OwnedFd,
    front: i32,
) -> io::Result<Exit> {
    let traceparent = environment::traceparent();
    let waiting = waiting::acquire(socket, args, traceparent.as_deref());
    let mut waiting = std::pin::pin!(waiting);
    let granted = loop {
        let number = tokio::select! {
            biased;
            order = control.next() => match order {
                Order::FrontDied => return Ok(Exit::OS),
                Order::Signal(number) => number,
            },
            number = signals.next() => number,
            granted = &mut waiting => match granted {
                Ok(granted) => break granted,
                Err(exit) => return Ok(exit),
            },
        };
        // Nothing runs yet that a signal could be passed on to; the agent ends the wait with the connection.
        if signals::ends(number) {
            return Ok(Exit::signal(number));
        }
    };
    let group = Group::start(args, &granted.grant, socket, traceparent.as_deref(), stdin, front)?;
    control.runs(group.number()).await;
    Ok(Mind::new(socket, args, granted, group).run(control, signals).await)
}
