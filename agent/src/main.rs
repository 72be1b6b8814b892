//! The agent's program: settings, logs, sockets, then [`lockscope_agent::run`].

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use lockscope_agent::config::Config;
use lockscope_agent::{Listeners, run};
use service_kit::shutdown::Shutdown;
use service_kit::{redis, telemetry};

/// The time for which an idle thread is kept for blocking work. A host that is out of processes or memory may refuse another
/// one, and work without any thread panics.
const KEEP_THREAD: Duration = Duration::from_secs(365 * 24 * 60 * 60);

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
        .thread_keep_alive(KEEP_THREAD)
        .build()
        .context("cannot create a runtime")?;
    let served = runtime.block_on(async {
        start_thread().await.context(
            "cannot start a thread: raise the limit of processes (TasksMax=, ulimit -u) or of memory",
        )?;
        let listeners = Listeners::open(&config).await?;
        let shutdown = Shutdown::new();
        shutdown.listen_for_signals().context("cannot listen for signals")?;
        run(config, listeners, shutdown).await
    });
    // Does not wait for pending DNS lookups.
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}

/// Starts the first thread for blocking work, before any lock depends on it.
async fn start_thread() -> anyhow::Result<()> {
    // The runtime panics where this fails.
    let probe = thread::Builder::new().spawn(|| {})?;
    drop(probe.join());
    Ok(tokio::task::spawn_blocking(|| {}).await?)
}
