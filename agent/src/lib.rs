//! The agent: acquires Redisson-compatible locks in Redis for local workers, which request them over a Unix socket.
//!
//! Everything that a lock passes through runs in one thread: [`server`] turns bytes into [`protocol`] commands, the
//! [`core`] decides, and the [`runtime`] carries out its decisions in Redis. HTTP has a separate thread.

mod collections;
pub mod config;
pub mod core;
pub mod holder_registry;
pub mod http;
pub mod identity;
pub mod journal;
pub mod metrics;
pub mod policy;
pub mod protocol;
pub mod runtime;
pub mod server;
mod state;
mod systemd;
pub mod thread_time;
pub mod types;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail};
use prometheus::{Gauge, Registry};
use sd_notify::NotifyState;
use service_kit::http::ListenError;
use service_kit::metrics::Registrar;
use service_kit::open_files;
use service_kit::redis::{Cluster, ResolverOptions, resolve};
use service_kit::shutdown::Shutdown;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::core::Input;
use crate::identity::Identity;
use crate::metrics::{Metrics, PREFIX};
use crate::policy::Policy;
use crate::runtime::{Backend, Channels, ServersStart, Start};
use crate::server::connection::{BYTES_OF_COMMAND, Buffers, Shared};
use crate::server::file_budget::{self, FileBudget};
use crate::server::handshake::AgentInfo;
use crate::server::process::Processes;
use crate::server::socket::Socket;
use crate::server::{accept, stopped};
use crate::state::State;
use crate::thread_time::ThreadTime;

/// The time that connections have at shutdown to write their last replies.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// The time that the core has to stop after the drain timeout.
const CORE_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The agent's open sockets.
#[derive(Debug)]
pub struct Listeners {
    pub socket: Socket,
    pub http: TcpListener,
}

impl Listeners {
    /// Opens both sockets.
    ///
    /// # Errors
    /// Fails if either address cannot be bound.
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        let http = TcpListener::bind(config.http).map_err(|error| ListenError {
            address: config.http,
            flag: "--http",
            error,
        })?;
        Ok(Self { socket: Socket::open(&config.socket_settings()?).await?, http })
    }
}

/// Serves workers until `shutdown` begins, then drains: accepts no connections, grants no locks, and gives holders time
/// to finish. Must run on a current-thread runtime, since connections, core and Redis share a thread.
///
/// # Errors
/// Fails during startup, and if the core panics: the next agent takes over the sessions with grace.
pub async fn run(config: Config, listeners: Listeners, shutdown: Shutdown) -> anyhow::Result<()> {
    let Listeners { mut socket, http } = listeners;
    let files = file_budget(config.max_sessions);
    let registry = Registry::new();
    let metrics = register_metrics(&config, &registry)?;

    // Redis is needed until the last hold has ended, long after the shutdown has begun.
    let stage = Shutdown::new();
    let channels = Channels::default();
    reload_policy_on_hangup(&config, &channels, &metrics, &stage)?;
    let http_address = http.local_addr().context("cannot serve HTTP")?;
    let http = start_http(http, &config, registry, &channels, &stage)?;
    tokio::spawn(systemd::report_status(channels.status.subscribe(), stage.token()));
    let loading = state::load(config.state_dir.clone(), &channels.status);
    let Some(state) = shutdown.token().run_until_cancelled(loading).await else {
        systemd::notify(&NotifyState::Stopping);
        stage.finish(FLUSH_TIMEOUT).await;
        tracing::info!("stopped before the state folder answered");
        return Ok(());
    };
    let State { identity, journal } = state?;

    let backend = connect(&config, &stage);
    let time = ThreadTime::start();
    let servers = ServersStart {
        client: identity.client,
        main: backend.clone(),
        cluster_messages: config.cluster_messages,
        red: config.red.clone(),
        connect_timeout: config.connect_timeout,
    };
    let start = Start {
        settings: config.core.clone(),
        grouping: config.grouping(),
        first_number: identity.first_number(),
        servers,
        drain_timeout: config.drain_timeout,
        journal,
        policy: read_policy(&config)?,
        thread_time: time.clone(),
        watchdog: sd_notify::watchdog_enabled(),
    };
    socket.report_to(channels.status.clone());
    let mut core = runtime::start(start, channels, Arc::clone(&metrics), &stage);
    publish_holders(&config, &identity, backend, &core, &stage);
    stopped::start(core.sender(), &stage);

    let sessions = TaskTracker::new();
    let stop = CancellationToken::new();
    let shared = Shared {
        core: core.sender(),
        processes: Processes::new(files.processes),
        stop: stop.clone(),
        agent: AgentInfo { client: identity.client, status: core.status() }.into(),
        metrics,
        buffers: Buffers::new(config.core.limits.max_waiters.saturating_mul(BYTES_OF_COMMAND)),
        time,
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), agent = %identity.client, socket = %socket, http = %http_address,
        redis = %config.target, "serving locks"
    );
    let stopping = shutdown.token();
    tokio::spawn(async move { stopping.run_until_cancelled(systemd::report_ready()).await });
    let accepting =
        accept::accept(&mut socket, shared, files.sessions, sessions.clone(), shutdown.token());
    until_closed(accepting, core.done()).await?;

    systemd::notify(&NotifyState::Stopping);
    drop(socket);
    core.drain();
    if tokio::time::timeout(config.drain_timeout + CORE_STOP_TIMEOUT, core.done()).await.is_err() {
        tracing::error!("core did not stop in time; exiting without it");
    }
    stop.cancel();
    sessions.close();
    if tokio::time::timeout(FLUSH_TIMEOUT, sessions.wait()).await.is_err() {
        tracing::warn!(sessions = sessions.len(), "not all connections closed in time");
    }
    stage.finish(FLUSH_TIMEOUT).await;
    if tokio::task::spawn_blocking(move || http.join()).await.is_ok_and(|joined| joined.is_err()) {
        tracing::error!("HTTP thread panicked");
    }
    tracing::info!("stopped");
    Ok(())
}

/// Waits until no more connections are accepted.
///
/// # Errors
/// Fails if the core ends before that, which only a panic does.
async fn until_closed(
    accepting: impl Future<Output = ()>,
    core_ended: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::select! {
        biased;
        () = accepting => Ok(()),
        () = core_ended => bail!("the task that serves locks has panicked: exiting, so that another agent can start"),
    }
}

/// Raises the limit of open files and divides it among sessions and process watches.
fn file_budget(max_sessions: usize) -> FileBudget {
    let files = file_budget::budget(open_files::raise(), max_sessions);
    if files.sessions < max_sessions {
        tracing::warn!(
            sessions = files.sessions,
            max_sessions,
            "the limit of open files allows fewer sessions than max_sessions; raise it (LimitNOFILE=, ulimit -n)"
        );
    }
    files
}

fn register_metrics(config: &Config, registry: &Registry) -> anyhow::Result<Arc<Metrics>> {
    let metrics = Arc::new(Metrics::new(registry, &config.deployment)?);
    // Dashboards compare the margins and the lateness of renewals with it.
    let make = Registrar::new(registry, PREFIX);
    let lease = make.opts("lease_seconds", "The lease that the watchdog renews.");
    let lease = make.register(Gauge::with_opts(lease))?;
    lease.set(config.core.lease.duration().as_secs_f64());
    let revision = option_env!("LOCKSCOPE_REVISION").unwrap_or("unknown");
    service_kit::metrics::register_build_info(
        registry,
        PREFIX,
        env!("CARGO_PKG_VERSION"),
        revision,
    )?;
    service_kit::metrics::register_process(registry)?;
    service_kit::metrics::register_spans(registry, PREFIX)?;
    service_kit::metrics::register_runtime(registry, "locks", Handle::current())?;
    Ok(metrics)
}

/// Starts the resolver of the main deployment, which has the locks of all kinds but red.
fn connect(config: &Config, stage: &Shutdown) -> Backend {
    let (connect_timeout, response_timeout) =
        (config.connect_timeout, config.core.response_timeout);
    let name = "lockscope-agent-sentinel".to_owned();
    let options = ResolverOptions { name, connect_timeout, response_timeout };
    match resolve(&config.target, options, stage) {
        Ok(endpoint) => Backend::Server(endpoint),
        Err(cluster) => {
            let name = "lockscope-agent-cluster".to_owned();
            let options = ResolverOptions { name, connect_timeout, response_timeout };
            Backend::Cluster(Cluster::start(*cluster, options, stage))
        }
    }
}

fn read_policy(config: &Config) -> anyhow::Result<Option<Policy>> {
    let policy = config.policy.as_deref().map(Policy::read).transpose();
    policy.map_err(anyhow::Error::msg).context("--policy")
}

/// Starts a holder registry on the main deployment and on each server of red locks.
fn publish_holders(
    config: &Config,
    identity: &Identity,
    main: Backend,
    core: &runtime::Handle,
    stage: &Shutdown,
) {
    if let Some(key) = &config.signing_key {
        tracing::info!(public_key = %key.public(), "signing the holder registry");
    }
    let red = config.red.iter().map(|target| (Backend::Server(target.clone().into()), true));
    for (backend, red_only) in std::iter::once((main, false)).chain(red) {
        let settings = holder_registry::Settings {
            client: identity.client,
            backend,
            red_only,
            connect_timeout: config.connect_timeout,
            response_timeout: config.core.response_timeout,
            cmdline: config.publish_cmdline,
            host: config.host_name.clone(),
            signing_key: config.signing_key.clone(),
        };
        holder_registry::start(settings, core.sender(), stage);
    }
}

fn start_http(
    listener: TcpListener,
    config: &Config,
    registry: Registry,
    channels: &Channels,
    stage: &Shutdown,
) -> anyhow::Result<JoinHandle<()>> {
    let sources = http::Sources {
        registry,
        status: channels.status.subscribe(),
        locks: Handle::current(),
        core: config.http_sessions.then(|| channels.sender()),
        hosts: config.http_allowed_hosts.clone(),
    };
    http::start(listener, sources, stage.token())
}

/// Handles SIGHUP, also without a policy, since the signal would otherwise end the agent.
fn reload_policy_on_hangup(
    config: &Config,
    channels: &Channels,
    metrics: &Arc<Metrics>,
    stage: &Shutdown,
) -> anyhow::Result<()> {
    let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let reload =
        reload_policy(config.policy.clone(), hangups, channels.sender(), Arc::clone(metrics));
    tokio::spawn(stage.token().run_until_cancelled_owned(reload));
    Ok(())
}

/// Reloads the policy on each SIGHUP. An invalid one leaves the previous one in force.
async fn reload_policy(
    path: Option<PathBuf>,
    mut hangups: Signal,
    core: mpsc::Sender<Input>,
    metrics: Arc<Metrics>,
) {
    while hangups.recv().await.is_some() {
        let Some(path) = path.clone() else {
            tracing::info!("ignored SIGHUP: no policy to reload (--policy)");
            continue;
        };
        let named = path.display().to_string();
        // The file may be on a mount that hangs.
        let read = tokio::task::spawn_blocking(move || Policy::read(&path)).await;
        let outcome = match read.unwrap_or_else(|panic| Err(panic.to_string())) {
            Ok(policy) => {
                tracing::info!(path = named, rules = policy.rules(), "policy reloaded");
                if core.send(Input::PolicyReloaded(policy)).await.is_err() {
                    return;
                }
                "applied"
            }
            Err(error) => {
                tracing::error!(error, "policy reload failed; keeping previous policy");
                "refused"
            }
        };
        metrics.policy_reloads.with_label_values(&[outcome]).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn an_agent_does_not_outlive_its_core() {
        assert!(until_closed(ready(()), pending()).await.is_ok());
        let error = until_closed(pending(), ready(())).await.unwrap_err().to_string();
        assert!(error.contains("has panicked"), "{error}");
    }
}
