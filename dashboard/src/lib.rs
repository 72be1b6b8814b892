//! Finds Redisson-compatible locks in Redis automatically, and shows their holders live.
//!
//! - [`sources`] read Redis, at a pace that other clients hardly notice, and report observations;
//! - the [`model`] derives the state of every lock from these, and publishes it as snapshots;
//! - [`http`] answers from the newest snapshot: pages made by [`views`], an API, streams, and [`metrics`].
//!
//! The only writes to Redis are forced releases ([`release`]).

pub mod access;
pub mod archive;
pub mod clock;
pub mod config;
pub mod doctor;
pub mod exporter;
pub mod http;
pub mod metrics;
pub mod model;
pub mod query;
pub mod redis;
pub mod release;
pub mod rules;
mod schema;
pub mod sources;
pub mod text;
pub mod views;

use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use prometheus::Registry;
use service_kit::http::{
    AllowedHosts, HttpMetrics, Limits, ListenError, ServerTls, serve, serve_with_tls,
};
use service_kit::shutdown::Shutdown;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use crate::clock::{SteadyMillis, now};
use access::Access;
use config::{Config, History};
use exporter::ModelMetrics;
use http::{App, MAX_STREAMS, PageSettings};
use metrics::{MonitorMetrics, ScanMetrics, StreamMetrics, registrar};
use model::Model;
use model::actor;
use release::Releases;

/// The time limit for tasks to end.
const GRACE: Duration = Duration::from_secs(3);
/// The number of connections in addition to those of streams.
const SPARE_CONNECTIONS: usize = 256;

/// The listeners of the program.
#[derive(Debug)]
pub struct Listeners {
    /// Pages and API.
    pub pages: TcpListener,
    /// The listener of metrics, if they have a separate address.
    pub metrics: Option<TcpListener>,
}

impl Listeners {
    /// Binds the addresses in the settings.
    ///
    /// # Errors
    /// If an address is in use or not of this host.
    pub async fn bind(config: &Config) -> anyhow::Result<Self> {
        let bind = async |address, flag| {
            let listener = TcpListener::bind(address).await;
            listener.map_err(|error| ListenError { address, flag, error })
        };
        let metrics = match config.metrics_listen {
            Some(address) => Some(bind(address, "--metrics-listen").await?),
            None => None,
        };
        Ok(Self { pages: bind(config.listen, "--listen").await?, metrics })
    }

    /// Returns the address of metrics, which may be that of the pages.
    fn metrics_address(&self) -> io::Result<SocketAddr> {
        self.metrics.as_ref().unwrap_or(&self.pages).local_addr()
    }
}

/// Runs until `shutdown` is cancelled, and then ends all tasks that it has started.
///
/// # Errors
/// If certificate or key cannot be read, or two metrics have one name, which is a bug.
pub async fn run(config: Config, listeners: Listeners, shutdown: &Shutdown) -> anyhow::Result<()> {
    let (pages, metrics) = (listeners.pages.local_addr()?, listeners.metrics_address()?);
    let tls = match &config.tls {
        Some((certificate, key)) => {
            Some(ServerTls::load(certificate, key).map_err(anyhow::Error::msg)?)
        }
        None => None,
    };
    let registry = Registry::new();
    let Some(history) = shutdown.token().run_until_cancelled(open_history(&config)).await else {
        tracing::info!("asked to end before the history was open");
        return Ok(());
    };
    let (app, model) = start(&config, history?, &registry, shutdown)?;
    let help = "Requests and logins with an unknown token.";
    config.access.attempts.count_in(registrar(&registry).counter("rejected_tokens_total", help)?);
    let stop = shutdown.token();
    let (viewers, handle) = (app.viewers.clone(), app.model.clone());
    let ended = stop.clone();
    shutdown.spawn("viewers", async move {
        ended.run_until_cancelled(viewers.run(handle)).await;
    });
    let hosts = AllowedHosts::new(config.public_host.clone(), "--public-url");
    let requests = HttpMetrics::register(&registry, metrics::PREFIX)?;
    let limits = Limits { connections: MAX_STREAMS + SPARE_CONNECTIONS, ..Limits::default() };
    if let Some(listener) = listeners.metrics {
        let router = http::metrics_router(
            hosts.clone().with_own_names(metrics.ip()),
            registry.clone(),
            &stop,
        );
        shutdown.spawn("metrics server", serve(listener, router, Limits::default(), stop.clone()));
    }
    let own = config.metrics_listen.is_none().then_some(registry);
    let hosts = hosts.with_own_names(pages.ip());
    let router = http::router(app, config.access.clone(), hosts, requests, own, &stop);
    if let Some(tls) = tls.clone() {
        shutdown.spawn("certificate", tls.follow_files(stop.clone()));
    }
    follow_tokens(&config.access, shutdown)?;
    if let Some(keys) = config.agent_keys.clone() {
        let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        shutdown.spawn("agent keys", keys.follow(hangups, stop.clone()));
    }
    shutdown
        .spawn("web server", serve_with_tls(listeners.pages, tls, router, limits, stop.clone()));
    announce(&config, pages, metrics)?;
    let panicked = tokio::select! {
        () = stop.cancelled() => false,
        ended = model => ended.is_err(),
    };
    shutdown.cancel();
    shutdown.finish(GRACE).await;
    anyhow::ensure!(!panicked, "the task that follows the locks has panicked, which is a bug");
    Ok(())
}

/// Logs the address on which pages are served.
fn announce(config: &Config, pages: SocketAddr, metrics: SocketAddr) -> anyhow::Result<()> {
    let deployments: Vec<String> =
        config.deployments.iter().map(|d| format!("{}={}", d.name, d.target)).collect();
    let page = format!("{}://{pages}/", if config.tls.is_some() { "https" } else { "http" });
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        page,
        metrics = %metrics,
        redis = deployments.join(" "),
        "lockscope-dashboard is serving"
    );
    if io::stderr().is_terminal() {
        // A person has started the dashboard, and the log line hides the address among other fields.
        writeln!(io::stderr(), "\n  {page}\n")?;
    }
    Ok(())
}

/// Reads the token file again when it changes or at SIGHUP. SIGHUP does not end the program without a token file
/// either.
fn follow_tokens(access: &Access, shutdown: &Shutdown) -> anyhow::Result<()> {
    let mut hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let stop = shutdown.token();
    match access.tokens.clone() {
        Some(tokens) => drop(shutdown.spawn("token file", tokens.follow(hangups, stop))),
        None => drop(shutdown.spawn("hangups", async move {
            let ignore = async { while hangups.recv().await.is_some() {} };
            stop.run_until_cancelled(ignore).await;
        })),
    }
    Ok(())
}

/// Opens the history. Only a folder from the settings must be usable.
async fn open_history(config: &Config) -> anyhow::Result<Option<archive::Archive>> {
    let now = SteadyMillis::now();
    let folder = match &config.history {
        History::Off => return Ok(None),
        History::In(folder) => return archive::open(folder, now).await.map(Some),
        History::Default => {
            let urls: Vec<String> =
                config.deployments.iter().map(|known| known.target.to_string()).collect();
            archive::default_folder(&urls, |name| std::env::var_os(name))
        }
    };
    let Some(folder) = folder else {
        tracing::warn!("no history: set --history-dir, no state folder is known");
        return Ok(None);
    };
    match archive::open(&folder, now).await {
        Ok(history) => {
            tracing::info!(folder = %folder.display(), "history stored");
            Ok(Some(history))
        }
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "no history: its default folder cannot be used");
            Ok(None)
        }
    }
}

/// Starts model and sources. Returns the model's task, too.
fn start(
    config: &Config,
    history: Option<archive::Archive>,
    registry: &Registry,
    shutdown: &Shutdown,
) -> anyhow::Result<(App, JoinHandle<()>)> {
    let revision = option_env!("LOCKSCOPE_REVISION").unwrap_or("unknown");
    let version = env!("CARGO_PKG_VERSION");
    service_kit::metrics::register_build_info(registry, metrics::PREFIX, version, revision)?;
    service_kit::metrics::register_process(registry)?;
    service_kit::metrics::register_spans(registry, metrics::PREFIX)?;
    let runtime = tokio::runtime::Handle::current();
    service_kit::metrics::register_runtime(registry, "main", runtime)?;
    let streams = StreamMetrics::register(registry)?;
    let scans = ScanMetrics::register(registry)?;
    let taps = MonitorMetrics::register(registry)?;

    let scopes = config.scopes();
    let mut model = Model::new(config.model.clone(), config.grouping(), &scopes, now());
    let mut archived = None;
    let mut archive_sender: Option<archive::ArchiveSender> = None;
    let mut archive_writer = None;
    let mut set_aside = None;
    if let Some(archive::Archive { sender, writer, reader, earlier }) = history {
        model.restore(earlier.locks, SteadyMillis::now());
        for (owner, name) in earlier.owner_names {
            model.names().record(&owner, &name);
        }
        set_aside = earlier.set_aside;
        (archived, archive_sender, archive_writer) = (Some(reader), Some(sender), Some(writer));
    }
    let (task, model, hub, batches) = actor::new(model, &scopes);
    let sources = sources::start(config, &model, &hub, batches, (&scans, &taps), shutdown);
    sources.set_history_set_aside(set_aside);
    let help = "Failed writes of the history, and losses of entries.";
    let failures = registrar(registry).counter("history_errors_total", help)?;
    if let Some(writer) = archive_writer {
        let sources = Arc::clone(&sources);
        let report = move |trouble: Option<String>| {
            failures.inc_by(trouble.is_some().into());
            sources.set_history_trouble(trouble);
        };
        shutdown.spawn("history", writer.run(Arc::clone(&hub), report));
    }
    let listener: ModelMetrics =
        exporter::register(registry, &hub, &sources, config.lock_names_in_metrics)?
            .with_archive(archive_sender.clone());
    let task = shutdown.spawn("model", task.run(listener, shutdown.token()));
    let about = PageSettings {
        environment: config.environment.clone(),
        note: config.note.clone(),
        settings: config.public(),
    };
    let releases =
        Releases::start(config, (&model, &hub), archive_sender, registry, shutdown)?.map(Arc::new);
    let stop = shutdown.token();
    Ok((App::new(hub, model, sources, about, streams, archived, releases, stop), task))
}
