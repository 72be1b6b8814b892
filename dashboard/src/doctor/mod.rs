//! `lockscope-dashboard doctor`: one read-only scan of Redis, and a report on its locks and their risks.
//!
//! It reads like the dashboard, at the same pace, and changes nothing. It neither turns MONITOR on nor changes
//! settings.

mod account;
mod connection;
mod deployment;
mod finding;
mod locks;
mod report;
mod server;
mod shown;
mod survey;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use service_kit::shutdown::Shutdown;
use tokio::time::{Instant, timeout};

use crate::config::{Config, DoctorOptions};
use report::{Parts, Report, Unreachable};

const EXIT_WARNINGS: u8 = 1;
const EXIT_PROBLEMS: u8 = 2;
/// `EX_UNAVAILABLE` of sysexits.h.
const EXIT_UNREACHABLE: u8 = 69;
/// `EX_SOFTWARE`, if there is no report.
const EXIT_FAILED: u8 = 70;

/// The longest time limit; more would exceed what clocks can add.
const MAX_TIME_LIMIT: Duration = Duration::from_secs(7 * 86_400);
/// The time limit for everything except reading keys.
const EXTRA_TIME: Duration = Duration::from_secs(120);

/// Runs the command with these arguments, with the program's name first and without `doctor`.
pub fn main(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let (config, options) = match Config::load_doctor(args, env) {
        Ok(loaded) => loaded,
        Err(stop) => return stop.report(),
    };
    service_kit::redis::install_crypto_provider();
    let status = run(&config, &options).unwrap_or_else(|error| {
        complain(&format!("cannot make or print the report: {error}"));
        EXIT_FAILED
    });
    ExitCode::from(status)
}

/// Prints the report, and returns the exit status.
fn run(config: &Config, options: &DoctorOptions) -> io::Result<u8> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(check(config, options));
    runtime.shutdown_background();
    let text = if options.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        report.to_string()
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(report.exit_status)
}

fn complain(error: &str) {
    // If this fails, nobody can read the error.
    drop(writeln!(io::stderr(), "error: {error}"));
}

/// Checks every deployment, one after the other.
async fn check(config: &Config, options: &DoctorOptions) -> Report {
    let begun = Instant::now();
    let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
    let mut parts = Parts::default();
    for deployment in &config.deployments {
        let shutdown = Shutdown::new();
        let time_limit = Duration::from(options.time_limit).min(MAX_TIME_LIMIT);
        let checked =
            deployment::check(config, deployment, time_limit, limit, &mut parts, &shutdown);
        let reason = match timeout(time_limit + EXTRA_TIME, checked).await {
            Ok(Ok(())) => None,
            Ok(Err(reason)) => Some(reason),
            Err(_) => Some("the server takes too long for each reply".to_owned()),
        };
        shutdown.cancel();
        if let Some(reason) = reason {
            let (name, server) = (Arc::clone(&deployment.name), deployment.target.place());
            complain(&format!(
                "cannot check {server}: {reason}; check the address and the login, and that the server answers PING"
            ));
            parts.unreachable.push(Unreachable { deployment: name, server, reason });
        }
    }
    parts.cost.seconds = begun.elapsed().as_secs_f64();
    Report::new(parts, limit)
}
