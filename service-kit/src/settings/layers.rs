//! Merges arguments, environment and file into one set of matches.
//!
//! Values of the lower layers are passed to clap as flags, for settings without a flag, so that one
//! parser validates them all. Each value is first parsed separately: a mistake can then name the
//! variable or the key, and all mistakes are reported together.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::num::ParseIntError;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::builder::TypedValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{
    Origin, Program, Stop, is_unreadable, mask_credentials, mask_url_passwords, one_line,
    settings_of,
};

/// The merged layers.
pub(super) struct Resolved {
    pub(super) matches: ArgMatches,
    pub(super) origins: BTreeMap<String, Origin>,
    pub(super) file: Option<PathBuf>,
    pub(super) tables: toml::Table,
}

impl Resolved {
    pub(super) fn asks(&self, order: &str) -> bool {
        self.matches.get_flag(order)
    }
}

pub(super) fn resolve(
    program: &Program,
    command: &Command,
    args: Vec<OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Resolved, Stop> {
    let flags = command.clone().try_get_matches_from(&args).map_err(Stop::clap)?;
    let mut layers =
        Layers { program, command, flags: &flags, given: Vec::new(), mistakes: Vec::new() };

    let env = Env::new(env);
    let mut file = flags.get_one::<PathBuf>("config").cloned();
    file = file.or_else(|| env.get(&layers.variable("config")).map(PathBuf::from));
    let content = match &file {
        Some(path) => {
            let lacks_file = is_unreadable(path);
            read(path).map_err(|mistake| Stop::mistakes(&[mistake], lacks_file))?
        }
        None => toml::Table::new(),
    };

    layers.take_env(&env);
    let tables = layers.take_file(file.as_deref().unwrap_or_else(|| Path::new("")), content);
    if !layers.mistakes.is_empty() {
        return Err(Stop::mistakes(&layers.mistakes, false));
    }

    let mut origins: BTreeMap<String, Origin> = settings_of(command)
        .map(|arg| arg.get_id().as_str())
        .filter(|field| layers.is_flag(field))
        .map(|field| (field.to_owned(), Origin::Flag(field.to_owned())))
        .collect();
    let mut all_args = args;
    let after_name = all_args.len().min(1);
    let mut given_args = Vec::new();
    for given in layers.given {
        given_args.extend(given.args.into_iter().map(OsString::from));
        origins.insert(given.field, given.origin);
    }
    all_args.splice(after_name..after_name, given_args);
    let matches = command.clone().try_get_matches_from(all_args).map_err(Stop::clap)?;
    Ok(Resolved { matches, origins, file, tables })
}

fn read(path: &Path) -> Result<toml::Table, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    text.parse::<toml::Table>().map_err(|error| {
        let line = error.span().map_or(1, |span| {
            1 + text.bytes().take(span.start).filter(|&byte| byte == b'\n').count()
        });
        // The error's own text quotes the line, which may hold a password.
        format!("{} line {line}: {}", path.display(), error.message())
    })
}

struct Layers<'a> {
    program: &'a Program,
    command: &'a Command,
    flags: &'a ArgMatches,
    given: Vec<Given>,
    mistakes: Vec<String>,
}

/// A setting of a lower layer.
struct Given {
    field: String,
    origin: Origin,
    args: Vec<String>,
}

impl Layers<'_> {
    fn variable(&self, field: &str) -> String {
        format!("{}_{}", self.program.env_prefix, field.to_uppercase())
    }

    fn is_flag(&self, field: &str) -> bool {
        self.flags.value_source(field) == Some(ValueSource::CommandLine)
    }

    fn take_env(&mut self, env: &Env) {
        let mut known = vec![self.variable("config")];
        for arg in settings_of(self.command) {
            let field = arg.get_id().as_str();
            let own = self.variable(field);
            let fallbacks = self.program.env_fallbacks.iter();
            let fallback =
                fallbacks.filter(|(of, _)| *of == field).map(|(_, name)| (*name).to_owned());
            let names = std::iter::once(own.clone()).chain(fallback);
            if let Some((name, value)) = names.into_iter().find_map(|name| {
                let value = env.get(&name)?;
                Some((name, value))
            }) {
                let origin = Origin::Env(name);
                match env_values(arg, value) {
                    Ok(values) => self.take(arg, origin, &values),
                    Err(what) => self.mistakes.push(format!("{origin}: {what}")),
                }
            }
            known.push(own);
        }
        let prefix = format!("{}_", self.program.env_prefix);
        for name in env.names_with(&prefix) {
            if !known.contains(name) && !is_service_link(name) {
                let meant = similar(name, known.iter().map(String::as_str));
                let meant = meant.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
                self.mistakes.push(format!("environment variable {name}: unknown setting{meant}"));
            }
        }
    }

    /// Applies the file's keys and returns its tables.
    fn take_file(&mut self, path: &Path, content: toml::Table) -> toml::Table {
        let mut tables = toml::Table::new();
        for (key, value) in content {
            if self.program.tables.contains(&key.as_str()) {
                tables.insert(key, value);
                continue;
            }
            let origin = Origin::File(path.to_owned(), key.clone());
            let Some(arg) = settings_of(self.command).find(|arg| arg.get_id() == key.as_str())
            else {
                self.mistakes.push(format!("{origin}: {}", self.no_such_key(&key)));
                continue;
            };
            match file_values(arg, &value) {
                Ok(values) => self.take(arg, origin, &values),
                Err(what) => self.mistakes.push(format!("{origin}: {what}")),
            }
        }
        tables
    }

    /// Validates the values, even if a higher layer overrides them: a mistake in a file must not stay hidden until a flag
    /// is removed.
    fn take(&mut self, arg: &Arg, origin: Origin, values: &[String]) {
        let field = arg.get_id().as_str();
        let long = arg.get_long().unwrap_or(field);
        let is_switch = is_switch(arg);
        let mut args = Vec::new();
        for value in values {
            if is_switch {
                args.extend((value == "true").then(|| format!("--{long}")));
                continue;
            }
            let argument = format!("--{long}={value}");
            match check(arg, &argument, value) {
                Ok(()) => args.push(argument),
                Err(what) => {
                    self.mistakes.push(format!("{origin}: {what}"));
                    return;
                }
            }
        }
        let higher_layer =
            self.is_flag(field) || self.given.iter().any(|given| given.field == field);
        if !higher_layer {
            self.given.push(Given { field: field.to_owned(), origin, args });
        }
    }

    fn no_such_key(&self, key: &str) -> String {
        let snake = key.replace('-', "_").to_lowercase();
        let mut known: Vec<&str> =
            settings_of(self.command).map(|arg| arg.get_id().as_str()).collect();
        known.extend(self.program.tables);
        if known.contains(&snake.as_str()) {
            return format!("unknown setting; write `{snake}`");
        }
        if let Some(name) = similar(&snake, known.iter().copied()) {
            return format!("unknown setting; did you mean `{name}`?");
        }
        known.sort_unstable();
        format!("unknown setting; the settings are {}", known.join(", "))
    }
}

/// Returns the one of the `known` names that `name` is most likely a misspelling of.
fn similar<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.map(|known| (strsim::damerau_levenshtein(name, known), known));
    distances
        .filter(|(distance, known)| *distance <= known.len().div_ceil(4).min(2))
        .min()
        .map(|(_, known)| known)
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

fn env_values(arg: &Arg, value: &OsStr) -> Result<Vec<String>, String> {
    let value = value.to_str().ok_or("the value is not valid UTF-8")?;
    if is_switch(arg) {
        let parsed = BoolishValueParser::new().parse_ref(&Command::new(""), None, value.as_ref());
        let on = parsed.map_err(|_| format!("invalid value `{value}`: expected true or false"))?;
        Ok(vec![on.to_string()])
    } else if is_list(arg) {
        Ok(value.split_whitespace().map(str::to_owned).collect())
    } else {
        Ok(vec![value.to_owned()])
    }
}

fn file_values(arg: &Arg, value: &toml::Value) -> Result<Vec<String>, String> {
    match value {
        toml::Value::Boolean(on) if is_switch(arg) => Ok(vec![on.to_string()]),
        _ if is_switch(arg) => Err("expected true or false".to_owned()),
        toml::Value::Array(values) if is_list(arg) => values.iter().map(scalar).collect(),
        toml::Value::Array(_) => Err("expected one value, not a list".to_owned()),
        one => Ok(vec![scalar(one)?]),
    }
}

fn scalar(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(on) => Ok(on.to_string()),
        toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => {
            Err(format!("expected a text or a number, not {} {}", article(value), value.type_str()))
        }
    }
}

fn article(value: &toml::Value) -> &'static str {
    if matches!(value, toml::Value::Array(_)) { "an" } else { "a" }
}

/// Validates one value with clap.
fn check(arg: &Arg, argument: &str, value: &str) -> Result<(), String> {
    let alone = Command::new("").no_binary_name(true).disable_help_flag(true);
    let arg = arg.clone().required(false);
    let error = match alone.arg(arg).try_get_matches_from([argument]) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let what = match error.source() {
        Some(source) if source.is::<ParseIntError>() => "expected a whole number".to_owned(),
        Some(source) => source.to_string(),
        None => one_line(error.render().to_string().trim_start_matches("error: ")),
    };
    let shown = mask_credentials(value);
    let what = mask_url_passwords(&what.replace(value, &shown));
    Err(format!("invalid value `{shown}`: {what}"))
}

/// Returns `true` for a variable that an orchestrator sets for a service with the program's name.
fn is_service_link(name: &str) -> bool {
    name.contains("_SERVICE_HOST") || name.contains("_SERVICE_PORT") || {
        let mut parts = name.split('_').skip_while(|part| *part != "PORT");
        parts.next().is_some() && parts.next().is_none_or(|port| port.parse::<u16>().is_ok())
    }
}

/// The environment. Names that are not UTF-8 are ignored; an empty value counts as absent.
struct Env(BTreeMap<String, OsString>);

impl Env {
    fn new(env: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        Self(env.into_iter().filter_map(named).filter(|(_, value)| !value.is_empty()).collect())
    }

    fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(name).map(OsString::as_os_str)
    }

    fn names_with<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a String> {
        self.0.keys().filter(move |name| name.starts_with(prefix))
    }
}
