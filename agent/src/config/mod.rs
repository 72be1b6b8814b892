//! The agent's settings from flags, environment and file.

mod parsers;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use redisson::group::Pattern;
use redisson::script::Publish;
use redisson::{Grouping, Lease};
use service_kit::redis::{Deployment, Target};
use service_kit::settings::{self, HumanDuration, Program, Raw, Secret, Stop};
use service_kit::telemetry;

use crate::core;
use crate::policy::Policy;
use crate::server::socket;

use parsers::{cluster_messages, frozen, lease, lock_delay, node_timeout, octal, poll};

/// The most servers of red locks; more would make each attempt too expensive.
const MAX_RED_SERVERS: usize = 15;
/// The longest timeout for connecting to Redis; short leases have a shorter one.
const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

const PROGRAM: Program = Program {
    env_prefix: "LOCKSCOPE_AGENT",
    env_fallbacks: &[("redis_url", "REDIS_URL"), ("log", "LOCKSCOPE_LOG")],
    tables: &[],
};

/// Takes locks in Redis for the workers of this host, keeps them alive, and frees what dead workers held.
#[derive(Debug, Parser)]
#[command(name = "lockscope-agent", version)]
struct Flags {
    /// Where the locks are: redis://, rediss:// (TLS) or unix://, with user, password and database; a cluster by some of
    /// its nodes, redis+cluster://host:port,host:port or rediss+cluster://; the master that sentinels name,
    /// redis+sentinel://host:port,host:port/name or rediss+sentinel://
    #[arg(long, value_name = "URL", default_value = "redis://127.0.0.1:6379")]
    redis_url: Deployment,
    /// Refuse to start unless --redis-url is set, in the file or elsewhere, so that no host uses a Redis of its own by default
    #[arg(long)]
    require_redis_url: bool,
    /// How releases are told in a cluster of Redis 7 or later, and heard: by PUBLISH, as Redisson before 3.22 does, by
    /// SPUBLISH, as later ones do, or by both
    #[arg(long, value_name = "HOW", default_value = "both", value_parser = cluster_messages)]
    cluster_messages: Publish,
    /// The password, in the file's first line; beats one in the URL
    #[arg(long, value_name = "FILE")]
    redis_password_file: Option<PathBuf>,
    /// The password of the sentinels, in the file's first line; beats one in the URL
    #[arg(long, value_name = "FILE")]
    sentinel_password_file: Option<PathBuf>,
    /// One of the independent servers that have the red locks, given once for each: an odd number, at least three
    #[arg(long, value_name = "URL")]
    redlock_url: Vec<Target>,
    /// The password of all of these, in the file's first line; beats those in the URLs
    #[arg(long, value_name = "FILE")]
    redlock_password_file: Option<PathBuf>,
    /// How long an attempt at a red lock waits for one of its servers
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = node_timeout)]
    node_timeout: HumanDuration,
    /// How many replicas must have a lock before it is given out: with fewer it is given back, and LOCK answers -UNAVAILABLE
    #[arg(long, value_name = "REPLICAS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    min_replicas: u32,
    /// The authorities (PEM) that sign the servers' certificates, instead of the system's
    #[arg(long, value_name = "FILE")]
    redis_ca_file: Option<PathBuf>,
    /// The socket that workers connect to; by default /run/lockscope/agent.sock, else one in the user's run-time
    /// folder. One that the service manager passes comes first
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The socket's permissions, in octal digits
    #[arg(long, value_name = "MODE", default_value = "0660", value_parser = octal)]
    socket_mode: u32,
    /// Let everybody on this host use the socket: without this a mode that does so is refused
    #[arg(long)]
    world_writable_socket: bool,
    /// Who may take which locks, in a file of rules, read again upon SIGHUP; without one whoever may use the socket
    /// may take all
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The socket's group, by name or number
    #[arg(long, value_name = "GROUP", value_parser = socket::group_id)]
    socket_group: Option<u32>,
    /// Where metrics and health are served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9760")]
    http: SocketAddr,
    /// Show holds and waits over HTTP too, with pids and names of locks; the socket's permissions do not guard them there
    #[arg(long)]
    http_sessions: bool,
    /// Tell in Redis the command lines of the workers that hold or wait, too; what looks like a secret is left out
    #[arg(long)]
    publish_cmdline: bool,
    /// Another host name that HTTP requests may use, besides IP addresses, localhost and the names of this host
    #[arg(long, value_name = "HOST")]
    http_allowed_host: Vec<String>,
    /// Where the agent keeps who it is; by default /var/lib/lockscope, else in the user's state folder
    #[arg(long, value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
    /// How long Redis keeps a lock after the agent is gone; it is renewed each third of this
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    lease: HumanDuration,
    /// How long before a lock that cannot be renewed ends its worker is told so, at most a tenth of the lease
    #[arg(long, value_name = "DURATION", default_value = "500ms")]
    lost_margin: HumanDuration,
    /// How long workers have to finish once the agent is asked to end
    #[arg(long, value_name = "DURATION", default_value = "25s")]
    drain_timeout: HumanDuration,
    /// The longest that a session may ask its holds to outlive its connection (SESSION GRACE); 0s where none may
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    max_grace: HumanDuration,
    /// How often a lock is passed on within this host in a row while other hosts wait for it
    #[arg(long, value_name = "TIMES", default_value_t = 32)]
    handover_max: u32,
    /// For how many milliseconds a lock is passed on within this host while other hosts wait for it
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=60_000))]
    handover_max_ms: u32,
    /// How metrics call locks whose names match; by default digits and ids are replaced by `*`
    #[arg(long, value_name = "GLOB[=LABEL]")]
    group: Vec<String>,
    /// The most groups in metrics; later ones are counted as `overflow`
    #[arg(long, value_name = "GROUPS", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    max_groups: u16,
    /// The most sessions at a time
    #[arg(long, value_name = "SESSIONS", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_sessions: u32,
    /// The most commands that wait for locks at a time
    #[arg(long, value_name = "WAITERS", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    max_waiters: u32,
    /// Refuse LOCK in a session that has not asked for its id, so that no client reconnects unnoticed
    #[arg(long)]
    require_session: bool,
    /// For how long nobody else gets the lock of a worker that has died, for resources that cannot check a token;
    /// a worker that says QUIT or UNLOCK is not meant
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = lock_delay)]
    lock_delay: HumanDuration,
    /// What becomes of the locks of a worker that is stopped (SIGSTOP): they are renewed, or not until it goes on
    #[arg(long, value_name = "WHAT", default_value = "keep", value_parser = frozen)]
    frozen: core::Frozen,
    /// The longest that a waiter sleeps before it looks again whether its lock is free, whatever it was told
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = poll)]
    poll_max: HumanDuration,
    /// What is logged: a level, or levels by module
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = telemetry::check_filter)]
    log: String,
}

/// The validated settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The Redis deployment of all kinds but red.
    pub target: Deployment,
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
    pub http_allowed_hosts: Vec<String>,
    pub state_dir: Option<PathBuf>,
    pub core: core::Settings,
    pub drain_timeout: Duration,
    /// The patterns by which metrics group locks.
    pub groups: Vec<Pattern>,
    pub max_groups: usize,
    pub max_sessions: usize,
    /// The log filter.
    pub log: String,
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
    if raw.values.socket_mode & 0o002 != 0 && !raw.values.world_writable_socket {
        let sentence = "every user of this host could acquire every lock: grant access to a group instead \
                        (--socket-group), or set --world-writable-socket";
        mistakes.push(raw.mistake("socket_mode", sentence));
    }
    if let Some(Err(error)) = raw.values.policy.as_deref().map(Policy::read) {
        mistakes.push(raw.mistake("policy", error));
    }
    let mut groups = Vec::new();
    for group in &raw.values.group {
        match Pattern::parse(group) {
            Ok(pattern) => groups.push(pattern),
            Err(error) => mistakes.push(raw.mistake("group", error)),
        }
    }
    let (Some(target), Some(lease), true) = (target, lease, mistakes.is_empty()) else {
        return Err(mistakes);
    };
    let flags = raw.values;
    let red_settings = (!red.is_empty()).then(|| core::RedSettings {
        nodes: red.iter().map(ToString::to_string).collect(),
        node_timeout: flags.node_timeout.into(),
    });
    // Several attempts must fit between the first renewal, after a third of the lease, and the end of the lease.
    let response_timeout =
        (lease.duration() / 15).clamp(Duration::from_millis(50), Duration::from_secs(2));
    let slots = target.is_cluster();
    Ok(Config {
        target,
        cluster_messages: flags.cluster_messages,
        red,
        connect_timeout: (response_timeout * 2).min(MAX_CONNECT_TIMEOUT),
        socket: flags.socket,
        socket_mode: flags.socket_mode,
        socket_group: flags.socket_group,
        policy: flags.policy,
        http: flags.http,
        http_sessions: flags.http_sessions,
        publish_cmdline: flags.publish_cmdline,
        http_allowed_hosts: flags.http_allowed_host,
        state_dir: flags.state_dir,
        core: core::Settings {
            lease,
            lost_margin: flags.lost_margin.into(),
            handover_max: flags.handover_max,
            handover_max_time: Duration::from_millis(u64::from(flags.handover_max_ms)),
            poll_max: flags.poll_max.into(),
            max_waiters: usize::try_from(flags.max_waiters).unwrap_or(usize::MAX),
            max_grace: flags.max_grace.into(),
            max_graced: usize::try_from(flags.max_sessions).unwrap_or(usize::MAX),
            require_session: flags.require_session,
            response_timeout,
            // Until the servers are known to support more.
            publish: Publish::Plain,
            slots,
            lock_delay: flags.lock_delay.into(),
            frozen: flags.frozen,
            min_replicas: flags.min_replicas,
            red: red_settings,
        },
        drain_timeout: flags.drain_timeout.into(),
        groups,
        max_groups: usize::from(flags.max_groups),
        max_sessions: usize::try_from(flags.max_sessions).unwrap_or(usize::MAX),
        log: flags.log,
    })
}

fn target(raw: &Raw<Flags>, mistakes: &mut Vec<String>) -> Option<Deployment> {
    let flags = &raw.values;
    let mut target = flags.redis_url.clone();
    if let Some(file) = &flags.redis_password_file {
        match Secret::from_file(file) {
            Ok(password) => target = target.with_password(password),
            Err(error) => mistakes.push(raw.mistake("redis_password_file", error)),
        }
    }
    if let Some(file) = &flags.sentinel_password_file {
        if !target.has_sentinels() {
            let wanted = "applies only to a redis+sentinel:// URL";
            mistakes.push(raw.mistake("sentinel_password_file", wanted));
        }
        match Secret::from_file(file) {
            Ok(password) => target = target.with_sentinel_password(&password),
            Err(error) => mistakes.push(raw.mistake("sentinel_password_file", error)),
        }
    }
    if let Some(file) = &flags.redis_ca_file {
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
        match Secret::from_file(file) {
            Ok(secret) => password = Some(secret),
            Err(error) => mistakes.push(raw.mistake("redlock_password_file", error)),
        }
        if count == 0 {
            let wanted = "applies only with --redlock-url";
            mistakes.push(raw.mistake("redlock_password_file", wanted));
        }
    }
    let mut names = HashSet::new();
    let mut targets = Vec::with_capacity(count);
    for target in &flags.redlock_url {
        let mut target = target.clone();
        if let Some(password) = &password {
            target = target.with_password(password.clone());
        }
        if let Some(file) = flags.redis_ca_file.as_ref().filter(|_| target.uses_tls()) {
            target = target.with_ca_file(file.clone());
        }
        if !names.insert(target.to_string()) {
            let twice = format!("{target} is given twice; the servers must be independent");
            mistakes.push(raw.mistake("redlock_url", twice));
        }
        match target.validate() {
            Ok(target) => targets.push(target),
            Err(error) => mistakes.push(raw.mistake("redlock_url", error)),
        }
    }
    targets
}
