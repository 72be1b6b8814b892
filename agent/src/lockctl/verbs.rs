//! The verbs other than `exec`: most send one request and print its result.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use clap::{Command, CommandFactory as _};

use crate::cli::{Cli, EXIT_HELP_START, Format, Verb};
use crate::client::{Agent, Failure};
use crate::exit::Exit;
use crate::output::{notice, print};
use crate::reply::{Fields as _, number, printable};
use crate::{list, runtime, show, tail, watch};

/// The failure of a verb.
enum VerbError {
    Agent(Failure),
    Output(io::Error),
    Tail(tail::TailError),
}

impl From<Failure> for VerbError {
    fn from(failure: Failure) -> Self {
        Self::Agent(failure)
    }
}

impl From<io::Error> for VerbError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<tail::TailError> for VerbError {
    fn from(error: tail::TailError) -> Self {
        match error {
            tail::TailError::Output(error) => Self::Output(error),
            error => Self::Tail(error),
        }
    }
}

/// Runs a verb and returns its exit status.
pub(crate) fn run(socket: &Path, verb: &Verb) -> Exit {
    let runtime = match runtime::create() {
        Ok(runtime) => runtime,
        Err(error) => {
            notice(&format!("cannot start: {error}"));
            return Exit::OS;
        }
    };
    match runtime.block_on(serve(socket, verb)) {
        Ok(exit) => exit,
        // The reader closed the pipe early, as `head` does.
        Err(VerbError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::OK,
        Err(VerbError::Output(error)) => {
            notice(&format!("cannot write to standard output: {error}"));
            Exit::OS
        }
        Err(VerbError::Tail(error)) => {
            notice(&error.to_string());
            error.exit()
        }
        Err(VerbError::Agent(failure)) => {
            notice(&failure.to_string());
            failure.exit(Exit::NO_AGENT, Exit::USAGE)
        }
    }
}

async fn serve(socket: &Path, verb: &Verb) -> Result<Exit, VerbError> {
    match verb {
        Verb::Ls { glob, format } => {
            let glob = glob.as_ref().map(|glob| glob.as_bytes());
            let mut agent = Agent::connect(socket).await?;
            print(&list::list(&mut agent, glob, format.json).await?)?;
        }
        Verb::Show { lock, format } => {
            let mut agent = Agent::connect(socket).await?;
            match show::lock(&mut agent, lock.as_bytes(), format.json).await? {
                Some(lines) => print(&lines)?,
                None => print(&[format!("{} is free", printable(lock.as_bytes()))])?,
            }
        }
        Verb::Status { format } => {
            let mut agent = Agent::connect(socket).await?;
            let status = show::status(&mut agent, format.json).await?;
            print(&status.lines)?;
            return Ok(if status.healthy { Exit::OK } else { Exit(Exit::NO_AGENT) });
        }
        Verb::Watch { glob, interval, format } => {
            let glob = glob.as_ref().map(|glob| glob.as_bytes());
            watch::watch(socket, glob, *interval, format.json).await?;
        }
        Verb::Tail(args) => tail::tail(args).await?,
        Verb::Unlock { holder, lock, format, force: _ } => {
            let holder = holder.as_ref().map(|holder| holder.as_bytes());
            print(&[unlock(socket, lock.as_bytes(), holder, *format).await?])?;
        }
        Verb::Kick { session, format } => {
            print(&[kick(socket, session.as_bytes(), *format).await?])?;
        }
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "lockctl", &mut script);
            io::stdout().lock().write_all(&script)?;
        }
        Verb::Man => io::stdout().lock().write_all(&man()?)?,
        // Handled by `exec::front`.
        Verb::Exec(_) => {}
    }
    Ok(Exit::OK)
}

/// Releases a lock by force and describes what was done.
async fn unlock(
    socket: &Path,
    lock: &[u8],
    holder: Option<&[u8]>,
    format: Format,
) -> Result<String, VerbError> {
    let mut force = redis::cmd("FORCE");
    force.arg(lock);
    if let Some(holder) = holder {
        force.arg("HOLDER").arg(holder);
    }
    force.arg("REPORT");
    let mut agent = Agent::connect(socket).await?;
    let reply = agent.call(&force).await?;
    let count = |field| reply.field(field).and_then(number).unwrap_or(0);
    let (holders, waiters) = (count("holders"), count("waiters"));
    if format.json {
        return Ok(serde_json::json!({ "released": holders, "waiters": waiters }).to_string());
    }
    let name = printable(lock);
    let freed = match (holders, holder) {
        (0, _) => format!("{name} is free"),
        (_, None) => format!("released {name}, holders: {holders}"),
        (_, Some(id)) => format!("released {name}, holder: {}", printable(id)),
    };
    Ok(match waiters {
        0 => freed,
        _ => format!("{freed}; removed from its queue, dead waiters: {waiters}"),
    })
}

/// Ends a session and describes what was done.
async fn kick(socket: &Path, session: &[u8], format: Format) -> Result<String, VerbError> {
    let mut agent = Agent::connect(socket).await?;
    let reply = agent.call(redis::cmd("KICK").arg(session)).await?;
    let released = number(&reply).unwrap_or(0);
    if format.json {
        return Ok(serde_json::json!({ "released": released }).to_string());
    }
    let name = printable(session);
    Ok(match released {
        0 => format!("ended {name}, which held nothing"),
        _ => format!("ended {name}, locks released: {released}"),
    })
}

/// Renders one manual page for `lockctl` and all its verbs.
fn man() -> io::Result<Vec<u8>> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    let whole = clap_mangen::Man::new(command.clone());
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    synopsis(&mut page, &mut command)?;
    whole.render_options_section(&mut page)?;
    let mut variables = BTreeMap::new();
    for verb in command.get_subcommands_mut().filter(|verb| !verb.is_hide_set()) {
        writeln!(page, ".SH LOCKCTL {}", verb.get_name().to_uppercase())?;
        synopsis(&mut page, verb)?;
        let section = clap_mangen::Man::new(verb.clone());
        section.render_description_section(&mut page)?;
        section.render_options_section(&mut page)?;
        if let Some(text) = verb.get_after_help() {
            let text = text.to_string();
            let text = text.strip_prefix(EXIT_HELP_START).unwrap_or(&text);
            writeln!(page, ".SH \"EXIT STATUS\"\n{}", escaped(text))?;
        }
        for arg in verb.get_arguments() {
            let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
            variables.extend(variable.zip(arg.get_long().map(str::to_owned)));
        }
    }
    writeln!(page, ".SH ENVIRONMENT")?;
    for (variable, flag) in variables {
        writeln!(page, ".TP\n\\fB{variable}\\fR\nthe value of \\-\\-{}", escaped(&flag))?;
    }
    Ok(page)
}

/// Appends the usage of a command, which shows where its `--` belongs.
fn synopsis(page: &mut Vec<u8>, command: &mut Command) -> io::Result<()> {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    writeln!(page, ".SH SYNOPSIS\n{}", escaped(usage))
}

/// Returns the text for a manual page, without the characters that roff would interpret. No line begins with a dot.
fn escaped(text: &str) -> String {
    text.replace('\\', r"\e").replace('-', r"\-").replace('\'', r"\(aq")
}
