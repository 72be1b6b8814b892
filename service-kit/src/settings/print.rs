//! `--print-config`: the effective settings as a configuration file.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::layers::Resolved;
use super::{is_secret, mask_url_passwords, settings_of};

/// Returns valid TOML. A comment on each line names the origin of the value; secrets are masked.
pub(super) fn effective(command: &Command, resolved: &Resolved) -> String {
    let mut text = String::new();
    for arg in settings_of(command) {
        let field = arg.get_id().as_str();
        let origin = match resolved.origins.get(field) {
            Some(origin) => origin.to_string(),
            None => "default".to_owned(),
        };
        let line = match value_of(arg, &resolved.matches) {
            Some(value) => format!("{field} = {value} # {}", origin.replace(char::is_control, " ")),
            None => match default_in_words(arg) {
                Some(words) => format!("# {field} is not set: {words}"),
                None => format!("# {field} is not set"),
            },
        };
        text.push_str(&line);
        text.push('\n');
    }
    for (name, value) in &resolved.tables {
        let Some(rows) = value.as_array() else { continue };
        for row in rows.iter().filter_map(toml::Value::as_table) {
            text.push_str(&format!("\n[[{name}]]\n{}", masked_table(row)));
        }
    }
    text
}

/// Returns the part of the help that describes a default without a fixed value: "by default the system's".
fn default_in_words(arg: &Arg) -> Option<String> {
    let help = arg.get_help()?.to_string();
    let words = help.get(help.find("by default ")?..)?;
    Some(words.split([';', ')']).next()?.split(". ").next()?.to_owned())
}

fn value_of(arg: &Arg, matches: &ArgMatches) -> Option<toml::Value> {
    let field = arg.get_id().as_str();
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Some(toml::Value::Boolean(matches.get_flag(field)));
    }
    let secret = is_secret(matches, field);
    let mut values: Vec<toml::Value> = matches
        .get_raw(field)?
        .map(|raw| if secret { "***".into() } else { scalar(&raw.to_string_lossy()) })
        .collect();
    if matches!(arg.get_action(), ArgAction::Append) {
        return Some(toml::Value::Array(values));
    }
    values.pop()
}

/// Returns a number if it is displayed the same, otherwise a string.
fn scalar(text: &str) -> toml::Value {
    match text.parse::<i64>() {
        Ok(number) if number.to_string() == text => toml::Value::Integer(number),
        _ => toml::Value::String(mask_url_passwords(text)),
    }
}

fn masked_table(row: &toml::Table) -> String {
    const SECRET_WORDS: [&str; 3] = ["password", "secret", "token"];
    let mut row = row.clone();
    for (key, value) in &mut row {
        if let toml::Value::String(text) = value {
            let secret = SECRET_WORDS.iter().any(|word| key.contains(word));
            *text = if secret { "***".to_owned() } else { mask_url_passwords(text) };
        }
    }
    row.to_string()
}
