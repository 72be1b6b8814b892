//! The verbs that show something, or do something to others: one call, one answer.

use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use clap::CommandFactory as _;
use redis::Cmd;

use crate::cli::{Cli, Format, Verb, shown};
use crate::client::{Agent, Failure, number};
use crate::exit::Exit;
use crate::say::say;
use crate::{list, runtime, show, table, watch};

/// Why a verb did not come to its end.
enum Trouble {
    Agent(Failure),
    /// What it prints cannot be written.
    Output(io::Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Agent(failure)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Runs such a verb.
pub(crate) fn run(socket: &Path, verb: &Verb) -> Exit {
    let runtime = match runtime::one_thread() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("cannot begin: {error}"));
            return Exit::OS;
        }
    };
    match runtime.block_on(serve(socket, verb)) {
        Ok(exit) => exit,
        // A reader that has seen enough, as `head`, is no failure.
        Err(Trouble::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::OK,
        Err(Trouble::Output(error)) => {
            say(&format!("cannot write: {error}"));
            Exit::OS
        }
        Err(Trouble::Agent(failure)) => {
            say(&failure.to_string());
            failure.exit(Exit::NO_AGENT, Exit::USAGE)
        }
    }
}

async fn serve(socket: &Path, verb: &Verb) -> Result<Exit, Trouble> {
    match verb {
        Verb::Ls { glob, format } => {
            let glob = glob.as_ref().map(|glob| glob.as_bytes());
            let mut agent = Agent::connect(socket).await?;
            table::print(&list::list(&mut agent, glob, format.json).await?)?;
        }
        Verb::Show { lock, format } => {
            let mut agent = Agent::connect(socket).await?;
            match show::lock(&mut agent, lock.as_bytes(), format.json).await? {
                Some(lines) => table::print(&lines)?,
                None => table::print(&[format!("{} is free", shown(lock.as_bytes()))])?,
            }
        }
        Verb::Status { format } => {
            let mut agent = Agent::connect(socket).await?;
            let status = show::status(&mut agent, format.json).await?;
            table::print(&status.lines)?;
            return Ok(if status.well { Exit::OK } else { Exit(Exit::NO_AGENT) });
        }
        Verb::Watch { glob, interval, format } => {
            let glob = glob.as_ref().map(|glob| glob.as_bytes());
            watch::watch(socket, glob, *interval, format.json).await?;
        }
        Verb::Unlock { holder, lock, format, force: _ } => {
            let mut force = redis::cmd("FORCE");
            force.arg(lock.as_bytes());
            if let Some(holder) = holder {
                force.arg("HOLDER").arg(holder.as_bytes());
            }
            let name = shown(lock.as_bytes());
            let done = format!("released {name}, holders:");
            order(socket, &force, *format, &done, &format!("{name} is free")).await?;
        }
        Verb::Kick { session, format } => {
            let mut kick = redis::cmd("KICK");
            kick.arg(session.as_bytes());
            let name = shown(session.as_bytes());
            let done = format!("ended {name}, locks released:");
            order(socket, &kick, *format, &done, &format!("ended {name}, which held nothing"))
                .await?;
        }
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "lockctl", &mut script);
            io::stdout().lock().write_all(&script)?;
        }
        Verb::Man => io::stdout().lock().write_all(&man()?)?,
        // It is no view.
        Verb::Exec(_) => {}
    }
    Ok(Exit::OK)
}

/// Gives an order that is answered by how many holds it ended.
async fn order(
    socket: &Path,
    order: &Cmd,
    format: Format,
    done: &str,
    nothing: &str,
) -> Result<(), Trouble> {
    let mut agent = Agent::connect(socket).await?;
    let ended = number(&agent.call(order).await?).unwrap_or(0);
    let line = match (format.json, ended) {
        (true, _) => serde_json::json!({ "released": ended }).to_string(),
        (false, 0) => nothing.to_owned(),
        (false, _) => format!("{done} {ended}"),
    };
    Ok(table::print(&[line])?)
}

/// One page for `lockctl` and all its verbs.
fn man() -> io::Result<Vec<u8>> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let has_more = verb.get_after_help().is_some();
        page.extend_from_slice(
            format!(".SH LOCKCTL {}\n", verb.get_name().to_uppercase()).as_bytes(),
        );
        let verb = clap_mangen::Man::new(verb.clone());
        verb.render_synopsis_section(&mut page)?;
        verb.render_description_section(&mut page)?;
        verb.render_options_section(&mut page)?;
        if has_more {
            verb.render_extra_section(&mut page)?;
        }
    }
    Ok(page)
}
