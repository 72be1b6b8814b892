//! What the shell started: it passes signals on, has the terminal while the command has not, and ends as the command
//! does.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use tokio::process::Child;

use super::control::{Front, News};
use super::signals::{self, Signals};
use super::terminal::{Terminal, own_group};
use super::tree::Tree;
use crate::cli::ExecArgs;
use crate::exit::Exit;
use crate::runtime;
use crate::say::say;

/// How often it is looked whether what was killed is gone.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a command under its locks, to the end.
pub(crate) fn run(args: &ExecArgs) -> Exit {
    let runtime = runtime::one_thread();
    let ended = runtime.and_then(|runtime| runtime.block_on(serve(args)));
    ended.unwrap_or_else(|error| {
        say(&format!("cannot run a command under a lock: {error}"));
        Exit::OS
    })
}

async fn serve(args: &ExecArgs) -> io::Result<Exit> {
    let mut caught = Signals::catch(&[])?;
    signals::may_use_terminal()?;
    let tree = Tree::begin()?;
    let (ours, theirs) = UnixStream::pair()?;
    let mut guard = start_guard(theirs)?;
    let group = own_group().map_or(0, |group| group.as_raw_nonzero().get());
    let control = Front::open(ours, group, io::stdin().as_fd())?;
    let mut front = Session { control, terminal: Terminal::open(), group: None };
    loop {
        tokio::select! {
            biased;
            news = front.control.next() => match news {
                News::Runs(group) => front.group = Pid::from_raw(group),
                News::Stopped => front.stop(),
                News::End => break,
            },
            number = caught.next() => front.pass_on(number).await,
        }
    }
    let status = guard.wait().await?;
    if let (Some(terminal), Some(group)) = (&front.terminal, front.group) {
        // Whoever reads from it next is our shell, or a command beside us.
        let _taken: bool = terminal.take_back(group);
    }
    match status.code() {
        Some(code) => Ok(Exit(u8::try_from(code).unwrap_or(u8::MAX))),
        None => Ok(clear_up(&tree, front.group, status, args).await),
    }
}

/// The same program with the same arguments, in a process group of its own, which a Ctrl-C does not reach.
fn start_guard(control: UnixStream) -> io::Result<Child> {
    // By this name it is the very program that runs, even when another one has been installed in its place.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(super::GUARD).args(std::env::args_os().skip(1));
    command.stdin(std::os::fd::OwnedFd::from(control)).process_group(0);
    tokio::process::Command::from(command).spawn()
}

/// The guard was killed, and the locks are released already: all that was started must go at once.
async fn clear_up(tree: &Tree, group: Option<Pid>, status: ExitStatus, args: &ExecArgs) -> Exit {
    let how =
        status.signal().map_or_else(|| status.to_string(), |number| format!("signal {number}"));
    say(&format!(
        "lost {}: the process that keeps it was ended by {how}; killing the command",
        args.shown()
    ));
    loop {
        if let Some(group) = group {
            // Where it has gone already, there is none to be killed.
            kill_process_group(group, Signal::KILL).unwrap_or_default();
        }
        tree.signal(Signal::KILL);
        if tree.living().is_empty() {
            return Exit(args.exits.exit_lost);
        }
        tokio::time::sleep(LOOK).await;
    }
}

struct Session {
    control: Front,
    terminal: Option<Terminal>,
    /// The command's process group, once it runs.
    group: Option<Pid>,
}

impl Session {
    async fn pass_on(&mut self, number: i32) {
        let (cont, stop) = (Signal::CONT.as_raw(), Signal::TSTP.as_raw());
        match (&self.terminal, self.group) {
            // Brought to the foreground again: then the command is, too.
            (Some(terminal), Some(group)) if number == cont => {
                let _given: bool = terminal.give(group);
            }
            (_, None) if number == stop => return stop_self(),
            _ => {}
        }
        self.control.pass_on(number).await;
    }

    /// The command has been stopped. Where there is a terminal, so is all that was started with it, so that the shell
    /// has it again; SIGCONT makes it go on.
    fn stop(&self) {
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group) {
            let _taken: bool = terminal.take_back(group);
            match own_group() {
                // A group of one's own is always there.
                Some(own) => kill_process_group(own, Signal::STOP).unwrap_or_default(),
                None => stop_self(),
            }
        }
    }
}

fn stop_self() {
    // One may always stop oneself.
    kill_process(getpid(), Signal::STOP).unwrap_or_default();
}
