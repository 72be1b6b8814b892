//! The settings of `lockscope-dashboard doctor`: its own options and those of the dashboard, so that both can share one
//! file.

use std::ffi::OsString;

use clap::{Args, Parser};
use service_kit::settings::{self, HumanDuration, Stop};

use super::parsers::at_least_a_second;
use super::{Config, Flags, PROGRAM, build};

/// The options that the dashboard does not have.
#[derive(Debug, Clone, Args)]
pub struct DoctorOptions {
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Findings of each kind that are listed; the others are counted
    #[arg(long, value_name = "FINDINGS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
    /// The longest time for reading keys; what was read until then is reported
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = at_least_a_second)]
    pub time_limit: HumanDuration,
}

/// Reports the locks in Redis and what puts them at risk, in one read-only pass. Exit status: 0 no problem or warning, 1 warnings, 2 problems, 64 wrong settings, 66 a file of the settings cannot be read, 69 a Redis could not be checked
#[derive(Debug, Parser)]
#[command(name = "lockscope-dashboard doctor", bin_name = "lockscope-dashboard doctor", version)]
struct DoctorFlags {
    #[command(flatten)]
    options: DoctorOptions,
    #[command(
        flatten,
        next_help_heading = "Settings of the dashboard; those of pages have no effect here"
    )]
    dashboard: Flags,
}

/// Returns the settings without those for serving pages: a report needs neither their files nor their protection.
fn without_pages(flags: Flags) -> Flags {
    Flags {
        insecure: true,
        auth_token_file: None,
        trusted_user_header: None,
        trusted_groups_header: None,
        trusted_address_header: None,
        trusted_proxy: Vec::new(),
        proxy_logout_url: None,
        tls_cert: None,
        tls_key: None,
        metrics_listen: None,
        allow_release: false,
        release_redis_url: Vec::new(),
        history_dir: None,
        ..flags
    }
}

impl Config {
    /// Reads the settings of `doctor` from these arguments, with the program's name first, and this environment.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_doctor(
        args: impl IntoIterator<Item = OsString>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(Self, DoctorOptions), Stop> {
        settings::load_from(&PROGRAM, args, env, |raw: settings::Raw<DoctorFlags>| {
            let options = raw.values.options.clone();
            let raw = raw.map(|flags| without_pages(flags.dashboard)).without_tables("access");
            let config = build(raw)?;
            Ok((config, options))
        })
    }
}
