//! The program of the dashboard: it reads the settings, then starts the logs, the listeners, and everything else.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use lockscope_dashboard::config::Config;
use lockscope_dashboard::{Listeners, doctor, rules, run};
use service_kit::shutdown::Shutdown;
use service_kit::{open_files, redis, telemetry};

/// A million locks are millions of small blocks, for which the system's allocator needs more time and memory. On other
/// architectures, jemalloc assumes the page size of the machine that builds the program, which may be smaller than that
/// of the machine that runs it.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    match args.get(1).and_then(|command| command.to_str()) {
        Some("doctor") => {
            args.remove(1);
            return doctor::main(args, std::env::vars_os());
        }
        Some("rules") => {
            args.remove(1);
            return rules::main(args);
        }
        _ => {}
    }
    let config = match Config::load() {
        Ok(config) => config,
        Err(stop) => return stop.report(),
    };
    redis::install_crypto_provider();
    let started = telemetry::init(&config.log, "lockscope-dashboard", env!("CARGO_PKG_VERSION"));
    let served = started.map_err(anyhow::Error::from).and_then(|telemetry| {
        let served = serve(config);
        telemetry.finish();
        served
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(config: Config) -> anyhow::Result<()> {
    for warning in &config.warnings {
        tracing::warn!(warning, "risky setting");
    }
    open_files::raise();
    let runtime = tokio::runtime::Runtime::new()?;
    let served = runtime.block_on(async {
        let listeners = Listeners::bind(&config).await?;
        let shutdown = Shutdown::new();
        shutdown.listen_for_signals()?;
        run(config, listeners, &shutdown).await
    });
    // Does not wait for files on a mount that hangs.
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}
