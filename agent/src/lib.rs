//! The agent: local workers ask it for locks over a Unix socket, and it takes them in Redis as Redisson would.
//!
//! Everything that a lock passes through runs in one thread: [`server`] turns bytes into [`protocol`] commands, the
//! [`core`] decides, and the [`runtime`] carries out its decisions in Redis. HTTP has a thread of its own.

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
pub mod types;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prometheus::{Gauge, Registry};
use sd_notify::NotifyState;
use service_kit::redis::{Cluster, ClusterOptions, SentinelOptions, resolve};
use service_kit::shutdown::Shutdown;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::core::Input;
use crate::identity::Identity;
use crate::metrics::Figures;
use crate::policy::Policy;
use crate::runtime::{Main, ServersStart, Start};
use crate::server::connection::Shared;
use crate::server::handshake::AgentInfo;
use crate::server::process::Processes;
use crate::server::socket::Socket;
use crate::server::{accept, limits, stopped};
use crate::types::Status;

/// How long connections have at the end to write what they were given last.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How much longer than the drain may take the core's end is waited for.
const CORE_GRACE: Duration = Duration::from_secs(5);

/// Where the agent is reached.
#[derive(Debug)]
pub struct Listeners {
    pub socket: Socket,
    /// By scrapers and people.
    pub http: TcpListener,
}

impl Listeners {
    /// Opens both as they are set.
    ///
    /// # Errors
    /// When one of them cannot be had; the text says which.
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        let http = TcpListener::bind(config.http)
            .with_context(|| format!("cannot serve HTTP at {}", config.http))?;
        Ok(Self { socket: Socket::open(&config.place()?).await?, http })
    }
}

/// Serves workers until `shutdown` begins, then drains: no more connections, no more locks, and time for holders to
/// finish. Must run on a current-thread runtime, since connections, core and Redis share a thread.
///
/// # Errors
/// When it cannot start. Nothing that happens later ends it.
pub async fn run(config: Config, listeners: Listeners, shutdown: Shutdown) -> anyhow::Result<()> {
    let Listeners { socket, http } = listeners;
    let room = limits::room(limits::raise_open_files(), config.max_sessions);
    if room.sessions < config.max_sessions {
        tracing::warn!(
            sessions = room.sessions,
            max_sessions = config.max_sessions,
            "the limit of open files allows fewer sessions than max_sessions: raise it (LimitNOFILE=, ulimit -n)"
        );
    }
    let folder = config.state_dir.clone().or_else(identity::default_folder);
    let identity = Identity::take(folder.as_deref(), service_kit::clock::wall_millis() / 1000)
        .context("the kernel gives no random bytes")?;
    let journal = match &identity.folder {
        Some(folder) => journal::open(folder, identity.client).map_err(|error| {
            format!("the journal in {} cannot be read: {error}", folder.display())
        }),
        None => Err("there is none that this agent can use; its log says why".to_owned()),
    };
    if let Err(why) = &journal {
        tracing::warn!(why, "no session can outlive its connection (SESSION GRACE)");
    }
    let registry = Registry::new();
    let figures = figures(&config, &registry)?;
    let policy = match &config.policy {
        Some(path) => Some(Policy::read(path).map_err(anyhow::Error::msg).context("--policy")?),
        None => None,
    };

    // Redis is needed until the last hold has been dealt with, long after the shutdown has begun.
    let stage = Shutdown::new();
    let main = main_redis(&config, &stage);
    let mut core = runtime::start(
        Start {
            settings: config.core.clone(),
            first_number: identity.first_number(),
            servers: ServersStart {
                client: identity.client,
                main: main.clone(),
                cluster_messages: config.cluster_messages,
                red: config.red.clone(),
                connect_timeout: config.connect_timeout,
            },
            drain_timeout: config.drain_timeout,
            journal,
            policy,
            watchdog: sd_notify::watchdog_enabled(),
        },
        Arc::clone(&figures),
        &stage,
    );
    let red = config.red.iter().map(|target| (Main::Server(target.clone().into()), true));
    for (place, red) in std::iter::once((main, false)).chain(red) {
        let start = holder_registry::Start {
            client: identity.client,
            place,
            red,
            connect_timeout: config.connect_timeout,
            response_timeout: config.core.response_timeout,
            cmdline: config.publish_cmdline,
            core: core.sender(),
        };
        holder_registry::start(start, &stage);
    }
    stopped::start(core.sender(), &stage);
    let sources = http::Sources {
        registry,
        status: core.status(),
        core: config.http_sessions.then(|| core.sender()),
        hosts: config.http_allowed_hosts.clone(),
    };
    let http_address = http.local_addr().context("cannot serve HTTP")?;
    let http = http::start(http, sources, stage.token())?;
    tokio::spawn(report_status(core.status(), stage.token()));
    // Also where there is nothing to be read again: it must not end the agent.
    let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let path = config.policy.clone();
    let reread = reread_policy(path, hangups, core.sender(), Arc::clone(&figures));
    tokio::spawn(stage.token().run_until_cancelled_owned(reread));

    let sessions = TaskTracker::new();
    let stop = CancellationToken::new();
    let shared = Shared {
        core: core.sender(),
        processes: Processes::new(room.processes),
        stop: stop.clone(),
        agent: AgentInfo { client: identity.client, status: core.status() }.into(),
        figures,
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), agent = %identity.client, socket = %socket, http = %http_address,
        redis = %config.target, "serving locks"
    );
    notify(&[NotifyState::Ready]);
    accept::accept(&socket.listener, shared, room.sessions, sessions.clone(), shutdown.token())
        .await;

    notify(&[NotifyState::Stopping]);
    drop(socket);
    core.drain();
    if tokio::time::timeout(config.drain_timeout + CORE_GRACE, core.done()).await.is_err() {
        tracing::error!("the core has not come to its end: ending without it");
    }
    stop.cancel();
    sessions.close();
    if tokio::time::timeout(LAST_WORDS, sessions.wait()).await.is_err() {
        tracing::warn!(sessions = sessions.len(), "not all connections ended in time");
    }
    stage.finish(LAST_WORDS).await;
    if tokio::task::spawn_blocking(move || http.join()).await.is_ok_and(|joined| joined.is_err()) {
        tracing::error!("the HTTP thread has panicked");
    }
    tracing::info!("ended");
    Ok(())
}

fn figures(config: &Config, registry: &Registry) -> anyhow::Result<Arc<Figures>> {
    let figures = Arc::new(Figures::new(config.grouping(), registry)?);
    runtime::register_oldest(&figures, registry)?;
    // Margins and lateness of renewals mean something only beside it.
    let lease =
        Gauge::new("lockscope_agent_lease_seconds", "The lease that the watchdog keeps up.")?;
    lease.set(config.core.lease.duration().as_secs_f64());
    registry.register(Box::new(lease))?;
    let revision = option_env!("LOCKSCOPE_REVISION").unwrap_or("unknown");
    service_kit::metrics::register_build_info(
        registry,
        "lockscope_agent",
        env!("CARGO_PKG_VERSION"),
        revision,
    )?;
    service_kit::metrics::register_process(registry)?;
    service_kit::metrics::register_spans(registry, "lockscope_agent")?;
    service_kit::metrics::register_runtime(registry, "locks", Handle::current())?;
    Ok(figures)
}

/// Reads the policy again upon each SIGHUP. One that cannot be read leaves the old one in force.
async fn reread_policy(
    path: Option<PathBuf>,
    mut hangups: Signal,
    core: mpsc::Sender<Input>,
    figures: Arc<Figures>,
) {
    while hangups.recv().await.is_some() {
        let Some(path) = &path else {
            tracing::info!("SIGHUP: there is no policy to be read anew (--policy)");
            continue;
        };
        let outcome = match Policy::read(path) {
            Ok(policy) => {
                tracing::info!(path = %path.display(), rules = policy.len(), "the policy is read anew");
                if core.send(Input::PolicyReloaded(policy)).await.is_err() {
                    return;
                }
                "applied"
            }
            Err(error) => {
                tracing::error!(error, "the policy is not read anew: the old one stays in force");
                "refused"
            }
        };
        figures.policy_reloads.with_label_values(&[outcome]).inc();
    }
}

/// The Redis of all kinds but red.
fn main_redis(config: &Config, stage: &Shutdown) -> Main {
    let (connect_timeout, response_timeout) =
        (config.connect_timeout, config.core.response_timeout);
    let name = "lockscope-agent-sentinel".to_owned();
    let options = SentinelOptions { name, connect_timeout, response_timeout };
    match resolve(&config.target, options, stage) {
        Ok(endpoint) => Main::Server(endpoint),
        Err(cluster) => {
            let name = "lockscope-agent-cluster".to_owned();
            let options = ClusterOptions { name, connect_timeout, response_timeout };
            Main::Cluster(Cluster::start(cluster, options, stage))
        }
    }
}

/// Tells the service manager how the agent fares whenever that changes, at most each second.
async fn report_status(mut status: tokio::sync::watch::Receiver<Status>, stop: CancellationToken) {
    let report = async {
        loop {
            let text = {
                let status = status.borrow_and_update();
                let redis =
                    if status.redis_up { "Redis answers" } else { "Redis cannot be reached" };
                let draining = if status.draining { "draining, " } else { "" };
                format!("{draining}{redis}, {} holds, {} waiting", status.holds, status.waiters)
            };
            notify(&[NotifyState::Status(&text)]);
            tokio::time::sleep(Duration::from_secs(1)).await;
            if status.changed().await.is_err() {
                return;
            }
        }
    };
    stop.run_until_cancelled(report).await;
}

/// Without a service manager this does nothing.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager has not been told");
    }
}
