//! The agent's settings from flags, environment and file.

mod parsers;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use redisson::group::Pattern;
use redisson::script::Publish;
use redisson::{Grouping, Lease};
use service_kit::redis::{Deployment, Password, Target, check_ca_file};
use service_kit::settings::{self, HumanDuration, Program, Raw, Stop};
use service_kit::signing::SigningKey;
use service_kit::telemetry::{self, LogFormat, LogSettings};

use crate::core;
use crate::policy::Policy;
use crate::server::socket;

use parsers::{
    cluster_messages, deployment, drain_timeout, frozen, host_name, lease, lock_delay,
    node_timeout, octal, poll,
};

/// The maximum number of servers of red locks; more would make each attempt too expensive.
const MAX_RED_SERVERS: usize = 15;
/// The longest timeout for connecting to Redis; short leases have a shorter one.
const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

const PROGRAM: Program = Program {
    env_prefix: "LOCKSCOPE_AGENT",
    env_fallbacks: &[("redis_url", "REDIS_URL"), ("log", "LOCKSCOPE_LOG")],
    tables: &[],
};

/// Acquires locks in Redis for the workers of this host, renews them, and releases those of dead workers.
#[derive(Debug, Parser)]
#[command(name = "lockscope-agent", version)]
struct Flags {
    /// The Redis deployment with the locks: redis://, rediss:// (TLS) or unix://, with user, password and database; for
    /// a cluster some of its nodes, redis+cluster://host:port,host:port or rediss+cluster://; for a master behind
    /// Sentinel redis+sentinel://host:port,host:port/name or rediss+sentinel://
    #[arg(long, value_name = "URL", default_value = "redis://127.0.0.1:6379")]
    redis_url: Deployment,
    /// Refuse to start unless --redis-url is set explicitly, so that no host uses a local Redis by default
    #[arg(long)]
    require_redis_url: bool,
    /// The name of the set of hosts whose workers exclude each other; an alert fires if agents of one name use different servers
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = deployment)]
    deployment: String,
    /// The channels for releases in a cluster of Redis 7 or later: `publish` as Redisson before 3.22, `spublish` as
    /// later versions, or `both`
    #[arg(long, value_name = "HOW", default_value = "both", value_parser = cluster_messages)]
    cluster_messages: Publish,
    /// File with the password in its first line, read again for each new connection; overrides the URL's
    #[arg(long, value_name = "FILE")]
    redis_password_file: Option<PathBuf>,
    /// File with the sentinels' password in its first line, read again for each new connection; overrides the URL's
    #[arg(long, value_name = "FILE")]
    sentinel_password_file: Option<PathBuf>,
    /// One of the independent servers of red locks; repeat for each of an odd number, at least three
    #[arg(long, value_name = "URL")]
    redlock_url: Vec<Target>,
    /// File with the password of the servers of red locks in its first line, read again for each new connection;
    /// overrides the URLs'
    #[arg(long, value_name = "FILE")]
    redlock_password_file: Option<PathBuf>,
    /// Timeout for the answer of each server of a red lock
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = node_timeout)]
    node_timeout: HumanDuration,
    /// Replicas that must acknowledge an acquisition before it is granted, and a renewal before it extends validity; with
    /// fewer, LOCK fails with -UNAVAILABLE and holds end with their last confirmed lease
    #[arg(long, value_name = "REPLICAS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    min_replicas: u32,
    /// Certificate authorities (PEM) of the servers; by default the system's
    #[arg(long, value_name = "FILE")]
    redis_ca_file: Option<PathBuf>,
    /// Unix socket for workers; by default /run/lockscope/agent.sock, otherwise in the user's runtime folder. A socket
    /// passed by the service manager takes precedence
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Permissions of the socket, in octal digits; not of one that the service manager passes
    #[arg(long, value_name = "MODE", default_value = "0660", value_parser = octal)]
    socket_mode: u32,
    /// Accept a socket mode that gives every user of this host access, which is rejected otherwise
    #[arg(long)]
    world_writable_socket: bool,
    /// File with rules about who may acquire which locks, reloaded on SIGHUP; without it every user of the socket may
    /// acquire all locks
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Group of the socket, by name or number; not of one that the service manager passes
    #[arg(long, value_name = "GROUP", value_parser = socket::group_id)]
    socket_group: Option<u32>,
    /// Address for metrics and health checks over HTTP
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9760", value_parser = settings::socket_address)]
    http: SocketAddr,
    /// Also show holds and waits over HTTP, with pids and lock names, where the socket's permissions do not protect
    /// them
    #[arg(long)]
    http_sessions: bool,
    /// Also publish the command lines of holders and waiters in Redis, with likely secrets masked
    #[arg(long)]
    publish_cmdline: bool,
    /// File with an Ed25519 key (PEM) that signs what is published in Redis about holders and waiters, for dashboards with
    /// --agent-keys-file
    #[arg(long, value_name = "FILE")]
    signing_key_file: Option<PathBuf>,
    /// Name of this host that pages and other agents show for its workers; by default the kernel's, which in a container
    /// is often the container's
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    host_name: Option<String>,
    /// Additional host name accepted in HTTP requests; IP addresses, localhost and the names of this host always are
    #[arg(long, value_name = "HOST")]
    http_allowed_host: Vec<String>,
    /// Folder for the agent's identity and journal; by default /var/lib/lockscope, otherwise in the user's state folder
    #[arg(long, value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
    /// Lease of a lock in Redis, which outlives the agent by at most this long; renewed every third of it
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    lease: HumanDuration,
    /// Time before the end of validity at which a lock that cannot be renewed is reported lost; at most a tenth of the
    /// lease
    #[arg(long, value_name = "DURATION", default_value = "500ms")]
    lost_margin: HumanDuration,
    /// Time for workers to finish when the agent shuts down
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = drain_timeout)]
    drain_timeout: HumanDuration,
    /// Maximum grace period that a session may request for its holds after a disconnect (SESSION GRACE); 0s disables
    /// grace
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    max_grace: HumanDuration,
    /// Maximum number of consecutive hand-overs of a lock within this host while other hosts wait for it
    #[arg(long, value_name = "TIMES", default_value_t = 32)]
    handover_max: u32,
    /// Maximum time of consecutive hand-overs of a lock within this host, in milliseconds, while other hosts wait for it
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=60_000))]
    handover_max_ms: u32,
    /// Metrics label for locks whose names match; by default digits and ids are replaced by `*`
    #[arg(long, value_name = "GLOB[=LABEL]")]
    group: Vec<String>,
    /// Maximum number of lock groups in metrics; further ones are counted as `overflow`
    #[arg(long, value_name = "GROUPS", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    max_groups: u16,
    /// Label locks whose names match no --group as `other` in metrics, so that metrics show no part of a name
    #[arg(long)]
    no_lock_names_in_metrics: bool,
    /// Maximum number of concurrent sessions; a user other than root and the agent's may have three quarters of them
    #[arg(long, value_name = "SESSIONS", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_sessions: u32,
    /// Maximum number of locks held or awaited at a time; a user other than root and the agent's may have three quarters of them
    #[arg(long, value_name = "LOCKS", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    max_locks: u32,
    /// Maximum number of commands that wait for locks at a time; a user other than root and the agent's may have three quarters of them
    #[arg(long, value_name = "WAITERS", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    max_waiters: u32,
    /// Reject LOCK in a session that has not requested its id, so that no client reconnects unnoticed
    #[arg(long)]
    require_session: bool,
    /// Keep a dead worker's locks unavailable for this long, for resources that cannot check a fencing token; does not
    /// apply after UNLOCK or QUIT
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = lock_delay)]
    lock_delay: HumanDuration,
    /// Handling of locks of a worker stopped by SIGSTOP: `keep` renewing them, or let them `lapse`
    #[arg(long, value_name = "WHAT", default_value = "keep", value_parser = frozen)]
    frozen: core::Frozen,
    /// Maximum time between two attempts of a waiter, even without a release message
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = poll)]
    poll_max: HumanDuration,
    /// Log filter: error, warn, info, debug or trace, or such levels by module
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = telemetry::check_filter)]
    log: String,
    /// Log format: `text`, `json`, or `auto` for text on a terminal and JSON elsewhere
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Auto, hide_possible_values = true)]
    log_format: LogFormat,
}

/// The validated settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The Redis deployment of all kinds but red.
    pub target: Deployment,
    /// The name of the set of hosts whose workers exclude each other.
    pub deployment: String,
    /// The way to publish releases in a cluster that supports sharded pub/sub.
    pub cluster_messages: Publish,
    /// The servers of red locks; empty if red locks are disabled.
    pub red: Vec<Target>,
    pub connect_timeout: Duration,
    pub socket: Option<PathBuf>,
    pub socket_mode: u32,
    /// None for the group of the process.
    pub socket_group: Option<u32>,
    pub policy: Option<PathBuf>,
    pub http: SocketAddr,
    /// Holds and sessions are shown over HTTP.
    pub http_sessions: bool,
    /// Workers' command lines are published in the holder registry.
    pub publish_cmdline: bool,
    /// The key that signs the entries of the holder registry.
    pub signing_key: Option<Arc<SigningKey>>,
    /// None for the kernel's name of the host.
    pub host_name: Option<String>,
    pub http_allowed_hosts: Vec<String>,
    pub state_dir: Option<PathBuf>,
    pub core: core::Settings,
    pub drain_timeout: Duration,
    /// The patterns by which metrics group locks.
    pub groups: Vec<Pattern>,
    pub max_groups: usize,
    pub max_sessions: usize,
    pub log: LogSettings,
    /// The settings that are valid but risky, as sentences for the log.
    pub warnings: Vec<String>,
}

impl Config {
    /// Loads the settings of this process.
    ///
    /// # Errors
    /// Returns a stop for invalid settings, and for flags such as `--help`.
    pub fn load() -> Result<Self, Stop> {
        settings::load(&PROGRAM, build)
    }

    /// Returns the grouping of locks in metrics.
    #[must_use]
    pub fn grouping(&self) -> Grouping {
        Grouping::new(self.groups.clone(), self.max_groups)
    }

    /// Returns the path and permissions of the socket.
    ///
    /// # Errors
    /// Fails if no path is set and no default folder is available.
    pub fn socket_settings(&self) -> anyhow::Result<socket::SocketSettings> {
        let path = match &self.socket {
            Some(path) => path.clone(),
            None => socket::default_path()?,
        };
        Ok(socket::SocketSettings { path, mode: self.socket_mode, group: self.socket_group })
    }
}

fn build(raw: Raw<Flags>) -> Result<Config, Vec<String>> {
    let mut mistakes = Vec::new();
    if raw.values.require_redis_url && !raw.is_set("redis_url") {
        mistakes.push(raw.mistake(
            "redis_url",
            "no Redis is chosen: set redis_url in the settings file, to the same Redis on every host whose workers are to \
             exclude each other",
        ));
    }
    let target = target(&raw, &mut mistakes);
    let red = red_targets(&raw, &mut mistakes);
    let lease = Lease::new(raw.values.lease.into());
    if lease.is_none() {
        mistakes.push(raw.mistake("lease", "expected 500ms to a year"));
    }
    check_socket(&raw, &mut mistakes);
    if raw.values.http_sessions && !raw.values.http.ip().is_loopback() {
        let sentence = "other hosts could read who holds and awaits which locks, with pids: serve --http on 127.0.0.1, or leave \
                        this out and use lockctl ls";
        mistakes.push(raw.mistake("http_sessions", sentence));
    }
    if let Some(Err(error)) = raw.values.policy.as_deref().map(Policy::read) {
        mistakes.push(raw.mistake("policy", error));
    }
    let signing_key = signing_key(&raw, &mut mistakes);
    mistakes.extend(secret_files(&raw));
    mistakes.extend(raw.check_variables(telemetry::check_traces).err());
    let groups = groups(&raw, &mut mistakes);
    let warnings = raw.warnings();
    let (Some(target), Some(lease), true) = (target, lease, mistakes.is_empty()) else {
        return Err(mistakes);
    };
    let flags = raw.values;
    let core = core_settings(&flags, lease, &red, target.is_cluster());
    Ok(Config {
        target,
        deployment: flags.deployment,
        cluster_messages: flags.cluster_messages,
        red,
        connect_timeout: (core.response_timeout * 2).min(MAX_CONNECT_TIMEOUT),
        socket: flags.socket,
        socket_mode: flags.socket_mode,
        socket_group: flags.socket_group,
        policy: flags.policy,
        http: flags.http,
        http_sessions: flags.http_sessions,
        publish_cmdline: flags.publish_cmdline,
        signing_key,
        host_name: flags.host_name,
        http_allowed_hosts: flags.http_allowed_host,
        state_dir: flags.state_dir,
        core,
        drain_timeout: flags.drain_timeout.into(),
        groups,
        max_groups: usize::from(flags.max_groups),
        max_sessions: usize::try_from(flags.max_sessions).unwrap_or(usize::MAX),
        log: LogSettings { filter: flags.log, format: flags.log_format },
        warnings,
    })
}

/// Returns the settings of the core. `cluster`: locks are in slots.
fn core_settings(flags: &Flags, lease: Lease, red: &[Target], cluster: bool) -> core::Settings {
    let red = (!red.is_empty()).then(|| core::RedSettings {
        nodes: red.iter().map(ToString::to_string).collect(),
        node_timeout: flags.node_timeout.into(),
    });
    // Several attempts must fit between the first renewal, after a third of the lease, and the end of the lease.
    let response_timeout =
        (lease.duration() / 15).clamp(Duration::from_millis(50), Duration::from_secs(2));
    core::Settings {
        lease,
        lost_margin: flags.lost_margin.into(),
        handover_max: flags.handover_max,
        handover_max_time: Duration::from_millis(u64::from(flags.handover_max_ms)),
        poll_max: flags.poll_max.into(),
        limits: core::Limits {
            max_waiters: usize::try_from(flags.max_waiters).unwrap_or(usize::MAX),
            max_locks: usize::try_from(flags.max_locks).unwrap_or(usize::MAX),
        },
        max_grace: flags.max_grace.into(),
        max_graced: usize::try_from(flags.max_sessions).unwrap_or(usize::MAX),
        require_session: flags.require_session,
        response_timeout,
        // Until the servers are known to support more.
        publish: Publish::Plain,
        slots: cluster,
        lock_delay: flags.lock_delay.into(),
        frozen: flags.frozen,
        min_replicas: flags.min_replicas,
        red,
    }
}

fn check_socket(raw: &Raw<Flags>, mistakes: &mut Vec<String>) {
    let flags = &raw.values;
    if flags.socket_mode & 0o002 != 0 && !flags.world_writable_socket {
        let sentence = "every user of this host could acquire every lock: grant access to a group instead \
                        (--socket-group), or set --world-writable-socket";
        mistakes.push(raw.mistake("socket_mode", sentence));
    }
    let socket_folder = flags.socket.as_deref().and_then(Path::parent);
    let socket_folder = socket_folder.map_or(Ok(()), |path| raw.check_folder("socket", path));
    mistakes.extend(socket_folder.err());
    let in_the_way = flags.socket.as_deref().and_then(socket::other_file);
    mistakes.extend(in_the_way.map(|sentence| raw.mistake("socket", sentence)));
    if let Some(warning) = flags.socket.as_deref().and_then(socket::long_path) {
        raw.warn("socket", warning);
    }
}

fn signing_key(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Option<Arc<SigningKey>> {
    let key = SigningKey::from_file(raw.values.signing_key_file.as_deref()?);
    let key = key.map_err(|error| raw.mistake("signing_key_file", error));
    key.map(Arc::new).map_err(|mistake| mistakes.push(mistake)).ok()
}

/// Returns the patterns by which metrics group locks.
fn groups(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Vec<Pattern> {
    let mut groups = Vec::new();
    for group in &raw.values.group {
        match Pattern::parse(group) {
            Ok(pattern) => groups.push(pattern),
            Err(error) => mistakes.push(raw.mistake("group", error)),
        }
    }
    if raw.values.no_lock_names_in_metrics {
        groups.extend(Pattern::parse("*=other"));
    }
    groups
}

/// Checks the permissions of the files that hold secrets. Returns the mistakes.
fn secret_files<'r>(raw: &'r Raw<Flags>) -> impl Iterator<Item = String> + use<'r> {
    let flags = &raw.values;
    let files = [
        ("redis_password_file", &flags.redis_password_file),
        ("sentinel_password_file", &flags.sentinel_password_file),
        ("redlock_password_file", &flags.redlock_password_file),
        ("signing_key_file", &flags.signing_key_file),
    ];
    files.into_iter().filter_map(|(field, path)| raw.check_permissions(field, path).err())
}

fn target(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Option<Deployment> {
    let flags = &raw.values;
    let mut target = flags.redis_url.clone();
    if let Some(file) = &flags.redis_password_file {
        match Password::from_file(file) {
            Ok(password) => target = target.with_password(password),
            Err(error) => mistakes.push(raw.mistake("redis_password_file", error)),
        }
    }
    if let Some(file) = &flags.sentinel_password_file {
        if !target.has_sentinels() {
            let wanted = "applies only to a redis+sentinel:// URL";
            mistakes.push(raw.mistake("sentinel_password_file", wanted));
        }
        match Password::from_file(file) {
            Ok(password) => target = target.with_sentinel_password(&password),
            Err(error) => mistakes.push(raw.mistake("sentinel_password_file", error)),
        }
    }
    if let Some(file) = &flags.redis_ca_file {
        if let Err(error) = check_ca_file(file) {
            mistakes.push(raw.mistake("redis_ca_file", error));
        }
        if target.uses_tls() {
            target = target.with_ca_file(file.clone());
        } else if !flags.redlock_url.iter().any(Target::uses_tls) {
            mistakes.push(raw.mistake("redis_ca_file", "applies only to a rediss:// URL"));
        }
    }
    target.validate().map_err(|error| mistakes.push(raw.mistake("redis_url", error))).ok()
}

/// Validates the servers of red locks. A quorum requires that each appears only once.
fn red_targets(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Vec<Target> {
    let flags = &raw.values;
    let count = flags.redlock_url.len();
    if count > 0 && (count < 3 || count.is_multiple_of(2) || count > MAX_RED_SERVERS) {
        let wanted =
            format!("expected an odd number of servers from 3 to {MAX_RED_SERVERS}, not {count}");
        mistakes.push(raw.mistake("redlock_url", wanted));
    }
    let mut password = None;
    if let Some(file) = &flags.redlock_password_file {
        match Password::from_file(file) {
            Ok(secret) => password = Some(secret),
            Err(error) => mistakes.push(raw.mistake("redlock_password_file", error)),
        }
        if count == 0 {
            let wanted = "applies only with --redlock-url";
            mistakes.push(raw.mistake("redlock_password_file", wanted));
        }
    }
    let mut addresses = HashSet::new();
    let mut targets = Vec::with_capacity(count);
    for target in &flags.redlock_url {
        let mut target = target.clone();
        if let Some(password) = &password {
            target = target.with_password(password.clone());
        }
        if let Some(file) = flags.redis_ca_file.as_ref().filter(|_| target.uses_tls()) {
            target = target.with_ca_file(file.clone());
        }
        let address = target.address().clone();
        if addresses.contains(&address) {
            let twice = format!("{address} is given twice; the servers must be independent");
            mistakes.push(raw.mistake("redlock_url", twice));
        }
        if let Deployment::Server(main) = &flags.redis_url
            && (main.address(), main.db()) == (&address, target.db())
        {
            let shared = format!(
                "{address} has the locks of other kinds in the same database (--redis-url): use another database there"
            );
            mistakes.push(raw.mistake("redlock_url", shared));
        }
        addresses.insert(address);
        match target.validate() {
            Ok(target) => targets.push(target),
            Err(error) => mistakes.push(raw.mistake("redlock_url", error)),
        }
    }
    targets
}
