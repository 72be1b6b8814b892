//! The agent's program: settings, logs, sockets, then [`lockscope_agent::run`].

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use lockscope_agent::config::Config;
use lockscope_agent::{Listeners, run};
use service_kit::shutdown::Shutdown;
use service_kit::{redis, telemetry};

fn main() -> ExitCode {
    let config = match Config::load() {
        Ok(config) => config,
        Err(stop) => return stop.report(),
    };
    match start(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(config: Config) -> anyhow::Result<()> {
    let telemetry = telemetry::init(&config.log, "lockscope-agent", env!("CARGO_PKG_VERSION"))?;
    let ended = serve(config);
    telemetry.finish();
    ended
}

fn serve(config: Config) -> anyhow::Result<()> {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        "lockscope-agent"
    );
    for warning in &config.warnings {
        tracing::warn!(warning, "risky setting");
    }
    redis::install_crypto_provider();
    // One thread for everything that a lock passes through: switching threads costs more than it gains.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot create a runtime")?;
    let served = runtime.block_on(async {
        let listeners = Listeners::open(&config).await?;
        let shutdown = Shutdown::new();
        shutdown.listen_for_signals().context("cannot listen for signals")?;
        run(config, listeners, shutdown).await
    });
    // Does not wait for pending DNS lookups.
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}
