//! Checks of settings.md against the flags of the programs, and of error messages for mistakes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use harness::{Dashboard, RedisServer, process, programs, project};

use crate::documents::documents;

fn run(program: &str, args: &[&str]) -> Result<Output> {
    let mut command = process::command(&programs::path(program)?);
    // In a wide terminal no line is broken.
    Ok(command.args(args).env("COLUMNS", "10000").output()?)
}

/// Returns the flags that `--help` lists, with their defaults.
fn flags(program: &str, verb: &[&str]) -> Result<BTreeMap<String, Option<String>>> {
    let output = run(program, &[verb, &["--help"]].concat())?;
    let help = String::from_utf8(output.stdout)?;
    let (_, options) = help.split_once("Options:").with_context(|| help.clone())?;
    let mut flags = BTreeMap::new();
    let mut last = None;
    for line in options.lines() {
        let words = line.trim_start();
        let indented = line.len() - words.len();
        let short = words.split_once(", ").filter(|(short, _)| short.len() == 2);
        let long = short.map_or(words, |(_, long)| long);
        if indented <= 6 && long.starts_with("--") {
            let flag: String =
                long.chars().take_while(|c| *c == '-' || c.is_ascii_alphanumeric()).collect();
            flags.insert(flag.clone(), None);
            last = Some(flag);
        }
        let default = line.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
        if let (Some((default, _)), Some(flag)) = (default, &last) {
            flags.insert(flag.clone(), Some(default.to_owned()));
        }
    }
    flags.retain(|flag, _| flag != "--help" && flag != "--version");
    ensure!(!flags.is_empty(), "no flags: {help}");
    Ok(flags)
}

const VERBS: [&str; 10] =
    ["exec", "ls", "show", "status", "watch", "tail", "unlock", "kick", "completions", "man"];

fn all_flags(program: &str) -> Result<BTreeMap<String, Option<String>>> {
    if program != "lockctl" {
        return flags(program, &[]);
    }
    let mut all = BTreeMap::new();
    for verb in VERBS {
        all.extend(flags(program, &[verb])?);
    }
    Ok(all)
}

const SERVICES: [&str; 2] = ["lockscope-agent", "lockscope-dashboard"];

#[test]
fn flags_and_their_documentation_match() -> Result<()> {
    let text = project::text("docs/reference/settings.md")?;
    for program in SERVICES {
        let (_, section) =
            text.split_once(&format!("\n## {program}\n")).with_context(|| program.to_owned())?;
        let section = section.split("\n## ").next().unwrap_or_default();
        let mut rows = BTreeMap::new();
        for row in section.lines().filter_map(|line| line.strip_prefix("| `")) {
            let flag = row.split([' ', '`']).next().unwrap_or_default();
            ensure!(rows.insert(flag.to_owned(), row).is_none(), "{program} {flag}: twice");
        }
        let known = all_flags(program)?;
        let (named, known_names): (BTreeSet<_>, BTreeSet<_>) =
            (rows.keys().collect(), known.keys().collect());
        let missing: Vec<_> = known_names.difference(&named).collect();
        let invented: Vec<_> = named.difference(&known_names).collect();
        ensure!(missing.is_empty(), "{program}: not in settings.md: {missing:?}");
        ensure!(invented.is_empty(), "{program}: in settings.md, and no flag: {invented:?}");
        for (flag, default) in &known {
            let shown =
                default.as_ref().map_or_else(|| "| – |".to_owned(), |d| format!("| `{d}` |"));
            ensure!(rows[flag].contains(&shown), "{program} {flag} {default:?}: {}", rows[flag]);
        }
    }
    Ok(())
}

#[test]
fn every_flag_of_lockctl_is_documented_next_to_its_default() -> Result<()> {
    let text = project::text("docs/reference/lockctl.md")?;
    for (flag, default) in all_flags("lockctl")? {
        let words = |line: &str| {
            let ends = |c: char| c != '-' && !c.is_ascii_alphanumeric();
            line.split(ends).any(|word| word == flag)
        };
        let lines: Vec<&str> = text.lines().filter(|line| words(line)).collect();
        ensure!(!lines.is_empty(), "{flag} is not in lockctl.md");
        let Some(default) = default else { continue };
        let shown = format!("`{default}`");
        ensure!(lines.iter().any(|line| line.contains(&shown)), "{flag} {default}: {lines:?}");
    }
    Ok(())
}

#[test]
fn no_document_names_a_flag_that_does_not_exist() -> Result<()> {
    let mut known: BTreeSet<String> = ["--help", "--version"].map(str::to_owned).into();
    for program in SERVICES.into_iter().chain(["lockctl"]) {
        known.extend(all_flags(program)?.into_keys());
    }
    for verb in ["doctor", "rules"] {
        known.extend(flags("lockscope-dashboard", &[verb])?.into_keys());
    }
    // Flags of Docker and redis-cli.
    known.extend(["--cacert", "--group-add", "--hostname", "--tls"].map(str::to_owned));
    // chaos.md describes a program of the tests.
    for file in [documents("")?, documents("docs")?].concat() {
        if file.ends_with("/chaos.md") {
            continue;
        }
        for span in project::text(&file)?.split("`--").skip(1) {
            let name: String =
                span.chars().take_while(|c| *c == '-' || c.is_ascii_alphanumeric()).collect();
            let flag = format!("--{name}");
            // `--` alone ends the flags of a command.
            ensure!(name.is_empty() || known.contains(&flag), "{file}: {flag}");
        }
    }
    Ok(())
}

#[test]
fn checked_settings_are_printed_and_parse_back() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for program in ["lockscope-agent", "lockscope-dashboard"] {
        let url = "redis://me:hunter2@host:7";
        let args = ["--redis-url", url, "--log", "warn"];
        let checked = run(program, &[&args[..], &["--check-config"]].concat())?;
        ensure!(checked.status.success() && checked.stdout == b"the settings are valid\n");
        let printed = run(program, &[&args[..], &["--print-config"]].concat())?;
        let text = String::from_utf8(printed.stdout)?;
        ensure!(printed.status.success() && !text.contains("hunter2"), "{text}");
        ensure!(text.contains("# --log") && text.contains("# default"), "{text}");
        let file = folder.path().join(format!("{program}.toml"));
        std::fs::write(&file, &text)?;
        let file = file.display().to_string();
        let again = run(program, &["--config", &file, "--print-config"])?;
        let again = String::from_utf8(again.stdout)?;
        let values = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.filter_map(|line| Some(line.rsplit_once(" # ")?.0.to_owned())).collect::<Vec<_>>()
        };
        ensure!(values(&text) == values(&again), "{text}\n\n{again}");
    }
    Ok(())
}

#[test]
fn logs_have_the_chosen_format() -> Result<()> {
    let url = ["--redis-url", "redis://127.0.0.1:1", "--http", "127.0.0.1:0"];
    for (format, is_json) in [(None, true), (Some("json"), true), (Some("text"), false)] {
        let state = tempfile::tempdir()?;
        let state = state.path().display().to_string();
        let mut args =
            [&url[..], &["--socket", "/proc/none/agent.sock", "--state-dir", &state]].concat();
        args.extend(format.into_iter().flat_map(|format| ["--log-format", format]));
        // The agent cannot create this socket, so it logs the error and ends.
        let log = String::from_utf8(run("lockscope-agent", &args)?.stderr)?;
        let json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        ensure!(
            log.contains("/proc/none/agent.sock") && !log.contains('\u{1b}'),
            "{format:?}: {log}"
        );
        ensure!(log.lines().all(|line| json(line) == is_json), "{format:?}: {log}");
    }
    Ok(())
}

#[test]
fn mistakes_name_the_file_the_key_and_what_is_expected() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("settings.toml");
    let path = file.display().to_string();
    for (program, text, words) in [
        ("lockscope-agent", "lease = \"soon\"", &["lease", "soon"][..]),
        ("lockscope-agent", "lease = \"1ms\"", &["lease", "500ms to a year"]),
        ("lockscope-agent", "frozen = \"thaw\"", &["frozen", "keep or lapse"]),
        ("lockscope-agent", "lock_delay = \"9h\"", &["lock_delay", "0s to 1h"]),
        ("lockscope-agent", "max_sessions = \"many\"", &["max_sessions", "whole number"]),
        ("lockscope-agent", "max-sessions = 7", &["max-sessions", "write `max_sessions`"]),
        ("lockscope-agent", "http = [\"a\", \"b\"]", &["http", "one value, not a list"]),
        (
            "lockscope-agent",
            "redis_url = \"redis+sentinel://a:26379\"",
            &["redis_url", "names no master", "/mymaster"],
        ),
        (
            "lockscope-agent",
            "redis_url = \"redis+sentinel://a/m?quorum=2\"",
            &["redis_url", "`quorum`", "sentinel_password"],
        ),
        (
            "lockscope-agent",
            "redlock_url = [\"redis+sentinel://a/m\"]",
            &["redlock_url", "`redis+sentinel://` is not supported here"],
        ),
        (
            "lockscope-agent",
            "sentinel_password_file = \"/dev/null\"",
            &["sentinel_password_file", "redis+sentinel://"],
        ),
        (
            "lockscope-dashboard",
            "sentinel_password_file = \"/dev/null\"",
            &["sentinel_password_file", "redis+sentinel://"],
        ),
        ("lockscope-dashboard", "stuck_after = \"never\"", &["stuck_after", "never"]),
        ("lockscope-dashboard", "insecure = 7", &["insecure", "true or false"]),
        ("lockscope-dashboard", "monitor = \"maybe\"", &["monitor", "maybe"]),
        ("lockscope-dashboard", "stuk_after = \"1m\"", &["stuk_after", "stuck_after"]),
        ("lockscope-dashboard", "[[lock]]\nmatch = 7", &["[[lock]] number 1", "match"]),
        ("lockscope-dashboard", "lease", &["line 1"]),
    ] {
        std::fs::write(&file, text)?;
        let output = run(program, &["--config", &path, "--check-config"])?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(64), "{program} {text}: {}", output.status);
        ensure!(said.starts_with("error: ") && said.contains(&path), "{program} {text}: {said}");
        for word in words {
            ensure!(said.contains(word), "{program} {text}: `{word}` is not in {said}");
        }
    }
    let two = "lease = \"soon\"\nmax_sessions = \"many\"";
    std::fs::write(&file, two)?;
    let said = String::from_utf8(run("lockscope-agent", &["--config", &path])?.stderr)?;
    ensure!(said.lines().count() == 2, "all mistakes at once: {said}");
    Ok(())
}

#[test]
fn a_check_reads_the_variables_of_traces_as_the_start_does() -> Result<()> {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317");
    let checked = |program: &str, variables: &[(&str, &str)]| -> Result<Output> {
        let mut check = process::command(&programs::path(program)?);
        Ok(check.arg("--check-config").envs(variables.iter().copied()).output()?)
    };
    for program in ["lockscope-agent", "lockscope-dashboard"] {
        for (variable, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such.pem"),
        ] {
            let output = checked(program, &[endpoint, (variable, value)])?;
            let said = String::from_utf8(output.stderr)?;
            ensure!(output.status.code() == Some(64), "{program} {variable}: {}", output.status);
            ensure!(said.starts_with(&format!("error: {variable}: ")), "{program}: {said}");
        }
        for variables in [&[endpoint][..], &[("OTEL_TRACES_SAMPLER", "unused without an endpoint")]]
        {
            let output = checked(program, variables)?;
            ensure!(output.status.success(), "{program} {variables:?}: {output:?}");
        }
    }
    Ok(())
}

#[test]
fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is_reported() -> Result<()> {
    for (program, words) in [
        ("lockscope-agent", "--print-config"),
        ("lockscope-agent", "--check-config"),
        ("lockscope-dashboard", "--print-config"),
        ("lockscope-dashboard", "rules"),
    ] {
        let command = || Ok::<_, anyhow::Error>(process::command(&programs::path(program)?));
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = command()?.arg(words).stdout(writer).stderr(Stdio::piped()).spawn()?;
        let output = output.wait_with_output()?;
        ensure!(
            output.status.success() && output.stderr.is_empty(),
            "{program} {words}: {output:?}"
        );
        let full = || OpenOptions::new().write(true).open("/dev/full");
        let output = command()?.arg(words).stdout(full()?).stderr(Stdio::piped()).spawn()?;
        let output = output.wait_with_output()?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1), "{program} {words}: {}: {said}", output.status);
        ensure!(said.contains("cannot write to standard output: No space left"), "{said}");
        let status = command()?.arg("--nonsense").stderr(full()?).status()?;
        ensure!(status.code() == Some(64), "{program}: {status}");
    }
    Ok(())
}

#[tokio::test]
async fn a_dashboard_whose_history_is_in_use_ends_before_it_serves() -> Result<()> {
    let redis = RedisServer::start().await?;
    let url = redis.url();
    let folder = tempfile::tempdir()?;
    let folder = folder.path().display().to_string();
    let _first = Dashboard::start(&url, &["--history-dir", &folder]).await?;
    let same = ["--redis-url", &url, "--listen", "127.0.0.1:0", "--history-dir", &folder];
    let output = run("lockscope-dashboard", &same)?;
    let log = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && log.contains("another dashboard stores"), "{log}");
    ensure!(log.contains("waiting for its end") && !log.contains("is serving"), "{log}");
    // The check succeeds, as it must before a restart of the first dashboard.
    let checked = run("lockscope-dashboard", &[&same[..], &["--check-config"]].concat())?;
    ensure!(checked.status.success(), "{checked:?}");
    Ok(())
}
