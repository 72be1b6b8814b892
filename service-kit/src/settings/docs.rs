//! The manual page and the shell completions of a program, for its packages.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};
use clap_complete::Shell;

/// Returns the hidden flags `--man` and `--completions SHELL`.
pub(super) fn flags() -> [Arg; 2] {
    [
        Arg::new("man").long("man").hide(true).action(ArgAction::SetTrue).exclusive(true),
        Arg::new("completions")
            .long("completions")
            .hide(true)
            .value_parser(clap::value_parser!(Shell))
            .exclusive(true),
    ]
}

/// Returns the text that one of [`flags`] asks for.
pub(super) fn requested(command: &Command, args: &[OsString]) -> Option<String> {
    // Invalid arguments are reported with all other mistakes.
    let matches = command.clone().try_get_matches_from(args).ok()?;
    let mut text = Vec::new();
    if matches.get_flag("man") {
        clap_mangen::Man::new(command.clone()).render(&mut text).ok()?;
    } else {
        let shell = *matches.get_one::<Shell>("completions")?;
        let name = command.get_name().to_owned();
        clap_complete::generate(shell, &mut command.clone(), name, &mut text);
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}
