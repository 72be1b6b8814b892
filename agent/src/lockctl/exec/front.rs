//! The process that the shell started: forwards signals, manages the terminal, and exits with the command's status.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use super::control::{FrontControl, GuardMessage};
use super::process_tree::ProcessTree;
use super::terminal::{self, Terminal, own_group};
use crate::cli::ExecArgs;
use crate::exit::Exit;
use crate::output::notice;
use crate::runtime;
use crate::signals::{self, Signals};

/// The interval of checks whether the killed processes are gone.
const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// The status after SIGINT.
const INTERRUPTED: Exit = Exit(130);

/// Runs a command under its locks and returns the exit status.
pub(crate) fn run(args: &ExecArgs) -> Exit {
    if let Some(name) = args.repeated_lock() {
        notice(&format!("`{name}` is given twice: give each lock once"));
        return Exit(args.exits.exit_usage);
    }
    let runtime = runtime::create();
    let ended = runtime.and_then(|runtime| runtime.block_on(serve(args)));
    ended.unwrap_or_else(|error| {
        notice(&format!("cannot run a command under a lock: {error}"));
        Exit::OS
    })
}

async fn serve(args: &ExecArgs) -> io::Result<Exit> {
    let mut caught = Signals::catch(&[])?;
    // If the parent left this signal ignored, the kernel would discard the status of the guard.
    let _ended = signal(SignalKind::child())?;
    signals::allow_terminal_access()?;
    let tree = ProcessTree::adopt_orphans()?;
    let (ours, theirs) = UnixStream::pair()?;
    let mut guard = start_guard(theirs)?;
    let in_pipeline = terminal::in_pipeline();
    // The command takes the terminal from this group.
    let group = own_group().filter(|_| !in_pipeline);
    let group = group.map_or(0, |group| group.as_raw_nonzero().get());
    let control = match FrontControl::open(ours, group, io::stdin().as_fd()) {
        // A signal to this process group, such as Ctrl-C, has ended the guard before it left the group.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            return guard.wait().await?.signal().map(Exit::signal).ok_or(error);
        }
        control => control?,
    };
    let mut front = Front {
        control,
        terminal: Terminal::open(),
        in_pipeline,
        group: None,
        interrupt: Interrupt::None,
    };
    loop {
        tokio::select! {
            biased;
            message = front.control.next() => match message {
                GuardMessage::Running(group) => front.group = Pid::from_raw(group),
                GuardMessage::Stopped(signal) => front.on_stop(signal),
                GuardMessage::Ended => front.take_terminal_back(),
                GuardMessage::GuardEnded => break,
            },
            number = caught.next() => front.forward(number).await,
        }
    }
    let status = guard.wait().await?;
    front.take_terminal_back();
    match (status.code(), status.signal()) {
        (Some(code), _) if code == i32::from(INTERRUPTED.0) => {
            front.pass_interrupt_on();
            Ok(INTERRUPTED)
        }
        (Some(code), _) => Ok(Exit(u8::try_from(code).unwrap_or(u8::MAX))),
        // A guard that has left the group catches this signal.
        (None, Some(number)) if front.group.is_none() && signals::terminates(number) => {
            Ok(Exit::signal(number))
        }
        _ => Ok(kill_descendants(&tree, front.group, status, args).await),
    }
}

/// Starts the same program with the same arguments, in a separate process group, which Ctrl-C does not reach.
fn start_guard(control: UnixStream) -> io::Result<Child> {
    // The running program itself, even if another version has been installed since.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(super::GUARD).args(std::env::args_os().skip(1));
    command.stdin(std::os::fd::OwnedFd::from(control)).process_group(0);
    tokio::process::Command::from(command).spawn()
}

/// Kills all descendants at once after the guard was killed, since the locks are already released.
async fn kill_descendants(
    tree: &ProcessTree,
    group: Option<Pid>,
    status: ExitStatus,
    args: &ExecArgs,
) -> Exit {
    let how = status.signal().map_or_else(
        || format!("ended with {status}"),
        |number| format!("was killed by signal {number}"),
    );
    let names = args.lock_names();
    let exit = if group.is_some() {
        notice(&format!("lost {names}: its guard process {how}; killing the command"));
        Exit(args.exits.exit_lost)
    } else {
        notice(&format!("gave up on {names}: its guard process {how}"));
        Exit::OS
    };
    loop {
        if let Some(group) = group {
            // The group may be gone already.
            kill_process_group(group, Signal::KILL).unwrap_or_default();
        }
        tree.signal(Signal::KILL);
        if tree.living().is_empty() {
            return exit;
        }
        tokio::time::sleep(KILL_INTERVAL).await;
    }
}

struct Front {
    control: FrontControl,
    terminal: Option<Terminal>,
    /// The command gets the terminal only when it needs it, since others in this process group may use it.
    in_pipeline: bool,
    /// The command's process group, once it runs.
    group: Option<Pid>,
    interrupt: Interrupt,
}

/// The process group that a SIGINT for the command has reached, if one can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupt {
    None,
    /// This process's group.
    Ours,
    /// The command's alone, which had the terminal.
    Command,
}

impl Front {
    async fn forward(&mut self, number: i32) {
        let (cont, stop) = (Signal::CONT.as_raw(), Signal::TSTP.as_raw());
        if number == Signal::INT.as_raw() {
            self.interrupt = Interrupt::Ours;
        }
        match (&self.terminal, self.group) {
            // The shell resumed this job in the foreground; the command follows.
            (Some(terminal), Some(group)) if number == cont && !self.in_pipeline => {
                let _given: bool = terminal.give(group);
            }
            (_, None) if number == stop && !terminal::is_orphaned() => return stop_self(),
            _ => {}
        }
        self.control.forward(number).await;
    }

    /// Stops this job as well after the command was stopped, so that the shell gets the terminal back. SIGCONT resumes it.
    /// A command that needs the terminal gets it instead.
    fn on_stop(&self, signal: i32) {
        let (Some(terminal), Some(group)) = (&self.terminal, self.group) else { return };
        let needs_terminal = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw).contains(&signal);
        if needs_terminal && terminal.give(group) {
            return resume(group);
        }
        if terminal::is_orphaned() {
            // As the kernel does for a job that no shell would resume.
            if signal == Signal::TSTP.as_raw() {
                resume(group);
            }
            return;
        }
        let _taken: bool = terminal.take_back(group);
        match own_group() {
            // The own group always exists.
            Some(own) => kill_process_group(own, Signal::STOP).unwrap_or_default(),
            None => stop_self(),
        }
    }

    /// Returns the terminal to the shell's job.
    fn take_terminal_back(&mut self) {
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group)
            && terminal.take_back(group)
            && self.interrupt == Interrupt::None
        {
            self.interrupt = Interrupt::Command;
        }
    }

    /// Ends this process by SIGINT, if that is what ended the command, so that a script that runs it ends too. Returns if it
    /// does not end so.
    fn pass_interrupt_on(&self) {
        if self.interrupt == Interrupt::None {
            return;
        }
        if let Some(own) = own_group().filter(|_| self.interrupt == Interrupt::Command) {
            // The terminal would have sent it to the script as well. The own group always exists.
            kill_process_group(own, Signal::INT).unwrap_or_default();
        }
        // A new program has the default response to signals.
        let error = Command::new("/proc/self/exe").arg0(super::INTERRUPTED).exec();
        notice(&format!("cannot end by SIGINT: {error}"));
    }
}

/// Ends this process by SIGINT; returns if that is ignored.
pub(crate) fn end_by_interrupt() -> Exit {
    // A process may always signal itself.
    kill_process(getpid(), Signal::INT).unwrap_or_default();
    INTERRUPTED
}

fn resume(group: Pid) {
    // The command may have ended meanwhile.
    kill_process_group(group, Signal::CONT).unwrap_or_default();
}

fn stop_self() {
    // A process may always stop itself.
    kill_process(getpid(), Signal::STOP).unwrap_or_default();
}
