//! `lockctl`: a command-line client of the agent that runs commands under locks and shows locks.
//!
//! `lockctl exec` uses three processes: the one that the shell started ([`exec::front`]), a guard in a separate process
//! group that owns the session ([`exec::guard`]), and the command itself, which [`exec::launch`] becomes.

mod cli;
mod client;
mod columns;
mod duration;
mod exec;
mod exit;
mod holders;
mod list;
mod output;
mod reply;
mod runtime;
mod show;
mod signals;
mod table;
mod tail;
mod verbs;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::Verb;
use exit::Exit;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let program = args.first().and_then(|program| program.to_str());
    let exit = match program {
        Some(exec::LAUNCH) => cli::parse(&args).map(|launch| exec::launch::run(&launch)),
        Some(exec::GUARD) => cli::parse_cli(&args).map(|cli| match &cli.verb {
            Verb::Exec(args) => exec::guard::run(&cli.socket(), args),
            _ => Exit(Exit::USAGE),
        }),
        Some(exec::INTERRUPTED) => Ok(exec::front::end_by_interrupt()),
        _ => cli::parse_cli(&args).map(|cli| match &cli.verb {
            Verb::Exec(args) => exec::front::run(args),
            verb => verbs::run(&cli.socket(), verb),
        }),
    };
    exit.unwrap_or_else(cli::report_error).into()
}
