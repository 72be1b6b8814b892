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

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Verb};
use exit::Exit;

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    match program.to_str() {
        Some(exec::LAUNCH) => with_args(|launch| exec::launch::run(&launch)),
        Some(exec::GUARD) => with_args(|cli: Cli| match &cli.verb {
            Verb::Exec(args) => exec::guard::run(&cli.socket(), args),
            _ => Exit(Exit::USAGE),
        }),
        _ => with_args(|cli: Cli| match &cli.verb {
            Verb::Exec(args) => exec::front::run(args),
            verb => verbs::run(&cli.socket(), verb),
        }),
    }
}

fn with_args<T: Parser>(run: impl FnOnce(T) -> Exit) -> ExitCode {
    match cli::parse::<T>() {
        Ok(parsed) => run(parsed).into(),
        Err(error) => cli::report_error(error).into(),
    }
}
