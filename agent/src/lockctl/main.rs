//! `lockctl`: runs commands under locks, and shows what the agent knows, at a shell.
//!
//! It is a client of the agent's socket like any other. `exec` is three processes: the one that the shell started
//! ([`exec::front`]), a guard that has the session and lives in a process group of its own ([`exec::guard`]), and the
//! command itself, which [`exec::launch`] becomes.

mod cli;
mod client;
mod duration;
mod exec;
mod exit;
mod holders;
mod list;
mod runtime;
mod say;
mod show;
mod table;
mod views;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Verb};
use exit::Exit;

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    match called.to_str() {
        Some(exec::LAUNCH) => parsed(|launch| exec::launch::run(&launch)),
        Some(exec::GUARD) => parsed(|cli: Cli| match &cli.verb {
            Verb::Exec(args) => exec::guard::run(&cli.socket(), args),
            _ => Exit(Exit::USAGE),
        }),
        _ => parsed(|cli: Cli| match &cli.verb {
            Verb::Exec(args) => exec::front::run(args),
            verb => views::run(&cli.socket(), verb),
        }),
    }
}

fn parsed<T: Parser>(run: impl FnOnce(T) -> Exit) -> ExitCode {
    match T::try_parse() {
        Ok(parsed) => run(parsed).into(),
        Err(error) => cli::refuse(&error).into(),
    }
}
