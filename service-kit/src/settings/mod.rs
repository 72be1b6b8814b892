//! Settings in layers: a flag beats the environment, which beats the TOML file of `--config`,
//! which beats the default.
//!
//! A program describes its settings once, as a [`clap::Parser`] struct, whose value parsers and
//! defaults apply to all layers. The field `max_groups` is the flag `--max-groups`, the variable
//! `<PREFIX>_MAX_GROUPS` and the key `max_groups`. A repeatable flag (`Vec`) is a list in the file
//! and a whitespace-separated list in the environment; a switch (`bool`) is `true` or `false`.
//! An empty variable counts as absent. Fields must not be `required`: the `build` of
//! [`load`] reports missing ones, so that all mistakes are reported together.

mod docs;
mod file_mode;
mod folder;
mod layers;
mod print;
mod value;
pub mod watched_file;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use rustix::fs::{Access, access};
use serde::de::DeserializeOwned;

pub use file_mode::changeable_by_all;
pub(crate) use value::mask_credentials;
pub(crate) use value::mask_url_passwords;
pub use value::{HumanDuration, Secret, socket_address};

/// The exit status for invalid settings (`EX_USAGE` of sysexits.h).
pub const EXIT_USAGE: u8 = 64;

/// The exit status if a file of the settings cannot be read, which may change without a change of the settings (`EX_NOINPUT`).
const EXIT_NO_INPUT: u8 = 66;

/// The parts of a program's settings that are not in its [`clap::Parser`] struct.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// The prefix of its environment variables without the `_`: `LOCKSCOPE_AGENT`.
    pub env_prefix: &'static str,
    /// Common variables that are used when the program's own is not set, as (field, variable):
    /// `("redis_url", "REDIS_URL")`. They override the file.
    pub env_fallbacks: &'static [(&'static str, &'static str)],
    /// The arrays of tables that the file may have, read by [`Raw::tables`]: `["redis", "lock"]`.
    pub tables: &'static [&'static str],
}

/// Reads the settings of this process. `build` turns them into the program's configuration and
/// validates combinations of values. It returns all mistakes that it finds, each made by
/// [`Raw::mistake`].
///
/// # Errors
///
/// [`Stop`] if the program must end: for invalid settings, but also for `--help`, `--version`,
/// `--check-config`, `--print-config`, and the hidden `--man` and `--completions`.
pub fn load<T, C>(
    program: &Program,
    build: impl FnOnce(Raw<T>) -> Result<C, Vec<String>>,
) -> Result<C, Stop>
where
    T: clap::Parser,
{
    load_from(program, std::env::args_os(), std::env::vars_os(), build)
}

/// Reads the settings from these arguments (the program's name first) and this environment, as [`load`] does.
///
/// # Errors
///
/// Those of [`load`].
pub fn load_from<T, C>(
    program: &Program,
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    build: impl FnOnce(Raw<T>) -> Result<C, Vec<String>>,
) -> Result<C, Stop>
where
    T: clap::Parser,
{
    let command = with_own_flags(T::command(), program);
    let args: Vec<OsString> = args.into_iter().collect();
    if let Some(text) = docs::requested(&command, &args) {
        return Err(Stop::done(text));
    }
    let env: Vec<(OsString, OsString)> = env.into_iter().collect();
    let mut resolved = layers::resolve(program, &command, args, env.iter().cloned())?;
    let values = T::from_arg_matches_mut(&mut resolved.matches.clone()).map_err(Stop::clap)?;
    let printed = print::effective(&command, &resolved);
    let (check, print) = (resolved.asks("check_config"), resolved.asks("print_config"));
    let warnings = Rc::<RefCell<Vec<String>>>::default();
    let raw = Raw {
        values,
        file: resolved.file.take(),
        origins: resolved.origins,
        tables: resolved.tables,
        env,
        warnings: Rc::clone(&warnings),
        only_checks: check,
    };
    if let Some(mistake) = raw.file.as_deref().and_then(changeable_by_all) {
        return Err(Stop::mistakes(&[mistake], false));
    }
    // Before they are read: a file that appears meanwhile is there at the next start.
    let lacks_file = files(&command, &resolved.matches).iter().any(|file| is_unreadable(file));
    let built = build(raw).map_err(|mistakes| Stop::mistakes(&mistakes, lacks_file))?;
    if print {
        return Err(Stop::done(printed));
    }
    if check {
        let warnings: String =
            warnings.take().iter().map(|warning| format!("warning: {warning}\n")).collect();
        return Err(Stop::done(format!("{warnings}the settings are valid\n")));
    }
    Ok(built)
}

/// The settings of all layers, each value valid by itself.
#[derive(Debug)]
pub struct Raw<T> {
    /// The program's settings, from all layers.
    pub values: T,
    file: Option<PathBuf>,
    origins: BTreeMap<String, Origin>,
    tables: toml::Table,
    env: Vec<(OsString, OsString)>,
    warnings: Rc<RefCell<Vec<String>>>,
    /// True for `--check-config`.
    only_checks: bool,
}

impl<T> Raw<T> {
    /// Converts the values, and keeps where each of them comes from.
    #[must_use]
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Raw<U> {
        let Self { values, file, origins, tables, env, warnings, only_checks } = self;
        Raw { values: convert(values), file, origins, tables, env, warnings, only_checks }
    }

    /// Removes the file's array of tables `name`.
    #[must_use]
    pub fn without_tables(mut self, name: &str) -> Self {
        self.tables.remove(name);
        self
    }

    /// Returns the file's array of tables `name`, which must be in [`Program::tables`]; empty if the
    /// file has none.
    ///
    /// # Errors
    ///
    /// All mistakes in the tables, each with the file, the table and the key.
    pub fn tables<R: DeserializeOwned>(&self, name: &str) -> Result<Vec<R>, Vec<String>> {
        let Some(value) = self.tables.get(name) else { return Ok(Vec::new()) };
        let place = self.file.as_deref().unwrap_or_else(|| Path::new("the settings")).display();
        let toml::Value::Array(tables) = value else {
            return Err(vec![format!("{place}: `{name}` must be given as [[{name}]] tables")]);
        };
        let mut read = Vec::with_capacity(tables.len());
        let mut mistakes = Vec::new();
        for (index, table) in tables.iter().enumerate() {
            match table.clone().try_into() {
                Ok(row) => read.push(row),
                Err(error) => mistakes.push(format!(
                    "{place}: [[{name}]] number {}: {}",
                    index + 1,
                    mask_url_passwords(&one_line(&error.to_string())),
                )),
            }
        }
        if mistakes.is_empty() { Ok(read) } else { Err(mistakes) }
    }

    /// Returns `true` if some layer sets `field`, so that its value is not the default.
    #[must_use]
    pub fn is_set(&self, field: &str) -> bool {
        self.origins.contains_key(field)
    }

    /// Checks the permissions of the files that `field` names, which hold secrets. A file that
    /// all users may read is a warning.
    ///
    /// # Errors
    ///
    /// The mistake, if all users may change a file.
    pub fn check_permissions<'p>(
        &self,
        field: &str,
        paths: impl IntoIterator<Item = &'p PathBuf>,
    ) -> Result<(), String> {
        for path in paths {
            if let Some(mistake) = changeable_by_all(path) {
                return Err(self.mistake(field, mistake));
            }
            self.warn_if_readable(field, path);
        }
        Ok(())
    }

    /// Warns of a file that `field` names and that holds secrets, if all users may read it.
    pub fn warn_if_readable(&self, field: &str, path: &Path) {
        if let Some(warning) = file_mode::readable_by_all(path) {
            self.warn(field, warning);
        }
    }

    /// Checks that the folder that `field` names is there or can be created.
    ///
    /// # Errors
    ///
    /// The mistake, if something else is in its place.
    pub fn check_folder(&self, field: &str, folder: &Path) -> Result<(), String> {
        folder::obstacle(folder).map_or(Ok(()), |why| Err(self.mistake(field, why)))
    }

    /// Checks the folder that `field` names as [`check_folder`](Self::check_folder) does, for `--check-config` also whether
    /// this process may write to it. At a start that is no mistake in the settings: the folder may be mounted later.
    ///
    /// # Errors
    ///
    /// The mistake, if the folder cannot be used.
    pub fn check_data_folder(&self, field: &str, folder: &Path) -> Result<(), String> {
        self.check_folder(field, folder)?;
        let why = if self.only_checks { folder::write_obstacle(folder) } else { None };
        why.map_or(Ok(()), |why| Err(self.mistake(field, why)))
    }

    /// Checks the environment's variables that another part of the program reads at its start, for `--check-config` only: that
    /// part reports its mistakes itself.
    ///
    /// # Errors
    ///
    /// Fails with the error of `check`, which receives the values of variables by name.
    pub fn check_variables(
        &self,
        check: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<(), String>,
    ) -> Result<(), String> {
        let find = |name: &str| {
            let (_, value) = self.env.iter().find(|(variable, _)| variable == name)?;
            value.to_str().map(str::to_owned)
        };
        if self.only_checks { check(&find) } else { Ok(()) }
    }

    /// Adds a warning about the value of `field`.
    pub fn warn(&self, field: &str, what: impl fmt::Display) {
        self.warnings.borrow_mut().push(self.mistake(field, what));
    }

    /// Returns the warnings so far, which `--check-config` prints, for the program's log.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.borrow().clone()
    }

    /// Returns the text of a mistake in `field`: the origin of its value, then `what`.
    #[must_use]
    pub fn mistake(&self, field: &str, what: impl fmt::Display) -> String {
        match self.origins.get(field) {
            Some(origin) => format!("{origin}: {what}"),
            None => format!("{}: {what}", flag_of(field)),
        }
    }
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(String),
    Env(String),
    File(PathBuf, String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(field) => f.write_str(&flag_of(field)),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::File(path, key) => write!(f, "{}: key `{key}`", path.display()),
        }
    }
}

/// A reason for the program to end at once: the text to print, and the exit status.
#[derive(Debug)]
pub struct Stop {
    text: String,
    status: u8,
}

impl Stop {
    /// Prints results to stdout and mistakes to stderr, and returns the exit status: 0 for results
    /// such as `--help`, [`EXIT_USAGE`] for mistakes, 66 if a file that the settings name cannot be read.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        if self.failed() {
            // Standard error may be closed.
            io::stderr().write_all(self.text.as_bytes()).unwrap_or_default();
            return ExitCode::from(self.status);
        }
        print_result(&self.text)
    }

    /// Returns the text that [`report`](Self::report) prints.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns `true` for invalid settings.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.status != 0
    }

    fn done(text: String) -> Self {
        Self { text, status: 0 }
    }

    /// Reports these mistakes in settings, of which `lacks_file` says whether they name a file that cannot be read.
    fn mistakes(mistakes: &[String], lacks_file: bool) -> Self {
        let text = mistakes.iter().map(|mistake| format!("error: {mistake}\n")).collect();
        Self { text, status: if lacks_file { EXIT_NO_INPUT } else { EXIT_USAGE } }
    }

    #[expect(clippy::needless_pass_by_value, reason = "used as map_err's function")]
    fn clap(error: clap::Error) -> Self {
        let failed = !matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        let mut text = error.render().to_string();
        if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
            text = text.replace(value, &mask_credentials(value));
        }
        Self { text: mask_url_passwords(&text), status: if failed { EXIT_USAGE } else { 0 } }
    }
}

/// Prints a program's result to stdout, and returns the exit status: 1 if it cannot be written, but 0 if its reader has
/// closed the pipe, as `head` does.
#[must_use]
pub fn print_result(text: &str) -> ExitCode {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let why = format!("error: cannot write to standard output: {error}\n");
            io::stderr().write_all(why.as_bytes()).unwrap_or_default();
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn with_own_flags(command: Command, program: &Program) -> Command {
    let path = clap::value_parser!(PathBuf);
    command
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(path)
                .help("Read settings from this TOML file; keys are the flags' names with _ for -"),
        )
        .arg(
            Arg::new("check_config")
                .long("check-config")
                .action(ArgAction::SetTrue)
                .help("Check all settings, report all mistakes, and exit"),
        )
        .arg(
            Arg::new("print_config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Print the settings in force as TOML, secrets masked, and exit"),
        )
        .args(docs::flags())
        .after_help(format!(
            "Every setting can be given as a flag, as an environment variable ({}_<NAME>) or in \
             the file; a flag overrides the environment, which overrides the file. Durations have units: 500ms, \
             3s, 5m, 1h.",
            program.env_prefix
        ))
}

/// Returns the arguments that are settings, without the flags of [`load`] itself.
fn settings_of(command: &Command) -> impl Iterator<Item = &Arg> {
    const ORDERS: [&str; 5] = ["config", "check_config", "print_config", "help", "version"];
    command.get_arguments().filter(|arg| {
        arg.get_long().is_some() && !arg.is_hide_set() && !ORDERS.contains(&arg.get_id().as_str())
    })
}

fn is_unreadable(file: &Path) -> bool {
    access(file, Access::READ_OK).is_err()
}

/// Returns the files that the settings name.
fn files(command: &Command, matches: &ArgMatches) -> Vec<PathBuf> {
    let is_file = |arg: &&Arg| {
        arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.as_str() == "FILE"))
    };
    settings_of(command)
        .filter(is_file)
        .filter_map(|arg| matches.try_get_many::<PathBuf>(arg.get_id().as_str()).ok()?)
        .flatten()
        .cloned()
        .collect()
}

fn flag_of(field: &str) -> String {
    format!("--{}", field.replace('_', "-"))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns `true` if the field's values are [`Secret`]s.
fn is_secret(matches: &ArgMatches, field: &str) -> bool {
    matches!(matches.try_get_many::<Secret>(field), Ok(Some(_)))
}

#[cfg(test)]
mod tests;
