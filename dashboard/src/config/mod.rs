//! The settings, from flags, environment and file.

mod access;
mod deployments;
mod doctor;
mod lock_table;
mod parsers;
mod public;
mod redis_table;
mod sources;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use redisson::Grouping;
use redisson::group::Pattern;
use service_kit::redis;
use service_kit::settings::{self, HumanDuration, Program, Raw, Stop};
use service_kit::telemetry::{self, LogFormat, LogSettings};

use crate::access::Access;
use crate::access::agent_keys::AgentKeys;
use crate::model;

pub use doctor::DoctorOptions;
use lock_table::rules;
pub use parsers::ByteSize;
use parsers::{
    NamedUrl, at_least_a_second, badge, deployment_name, glob, host_of, link, note, public_url,
};
use redis_table::RedisTable;
pub use sources::{MonitorMode, MonitorSettings, ReadFrom, ScanSettings};

/// The maximum number of deployments, and of databases of one.
const MAX_DEPLOYMENTS: usize = 32;

const PROGRAM: Program = Program {
    env_prefix: "LOCKSCOPE_DASHBOARD",
    env_fallbacks: &[("redis_url", "REDIS_URL"), ("log", "LOCKSCOPE_LOG")],
    tables: &["redis", "lock", "access"],
};

/// Finds Redisson-compatible locks in Redis and shows who holds them, live. `lockscope-dashboard doctor` reports once and exits; `lockscope-dashboard rules` prints alerts for Prometheus
#[derive(Debug, Parser)]
#[command(name = "lockscope-dashboard", version)]
struct Flags {
    /// A Redis deployment to watch: redis://, rediss:// (TLS) or unix://, preceded by a name where there are several; for a cluster some of its nodes, redis+cluster://host:port,host:port or rediss+cluster://; for a master behind Sentinel redis+sentinel://host:port,host:port/name or rediss+sentinel://; by default the server at 127.0.0.1:6379, unless the file has `[[redis]]` tables
    #[arg(long, value_name = "[NAME=]URL")]
    redis_url: Vec<NamedUrl>,
    /// A database to watch on every server; by default the one in the server's URL
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(..=65_535))]
    db: Vec<u32>,
    /// File with the password of all servers in its first line, read again for each new connection; overrides the URLs'
    #[arg(long, value_name = "FILE")]
    redis_password_file: Option<PathBuf>,
    /// File with the password of all sentinels in its first line, read again for each new connection; overrides the URLs'
    #[arg(long, value_name = "FILE")]
    sentinel_password_file: Option<PathBuf>,
    /// Certificate authorities (PEM) of the servers; by default the system's
    #[arg(long, value_name = "FILE")]
    redis_ca_file: Option<PathBuf>,
    /// Address for pages, API and metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9761", value_parser = settings::socket_address)]
    listen: SocketAddr,
    /// Separate address for metrics; by default the address of the pages
    #[arg(long, value_name = "ADDRESS", value_parser = settings::socket_address)]
    metrics_listen: Option<SocketAddr>,
    /// Serve other hosts without authentication or without TLS, or allow releases without a login on loopback
    #[arg(long)]
    insecure: bool,
    /// File of access tokens with lines `token[,name[,rights]]`; rights are look, ack, watch and release, joined by `+`
    #[arg(long, value_name = "FILE")]
    auth_token_file: Option<PathBuf>,
    /// File of the public keys of agents that sign what they publish about holders, with lines `name key`; with it, pages show which processes are verified and which are only claimed
    #[arg(long, value_name = "FILE")]
    agent_keys_file: Option<PathBuf>,
    /// Header in which a trusted proxy passes the user's name
    #[arg(long, value_name = "HEADER")]
    trusted_user_header: Option<String>,
    /// Header in which a trusted proxy passes the user's groups, separated by commas
    #[arg(long, value_name = "HEADER")]
    trusted_groups_header: Option<String>,
    /// Header in which a trusted proxy passes the client's address, such as X-Forwarded-For; by default the proxy's own address counts
    #[arg(long, value_name = "HEADER")]
    trusted_address_header: Option<String>,
    /// Addresses or networks of trusted proxies
    #[arg(long, value_name = "ADDRESS[/BITS]")]
    trusted_proxy: Vec<String>,
    /// Path or address at which a trusted proxy logs its users out; pages have a link to it
    #[arg(long, value_name = "ADDRESS", value_parser = link)]
    proxy_logout_url: Option<String>,
    /// Certificate (PEM, with its chain) to serve pages over TLS; reloaded when it is renewed
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Address that users open when there is a proxy in front of the dashboard; its host name is accepted in requests
    #[arg(long, value_name = "URL", value_parser = public_url)]
    public_url: Option<String>,
    /// Name of the environment, shown as a badge on every page
    #[arg(long, value_name = "TEXT", value_parser = badge)]
    environment: Option<String>,
    /// Notice at the top of every page
    #[arg(long, value_name = "TEXT", value_parser = note)]
    note: Option<String>,
    /// Maximum number of keys that a scan of the keyspace covers per second
    #[arg(long, value_name = "KEYS", default_value_t = 250_000, value_parser = clap::value_parser!(u32).range(100..))]
    scan_rate: u32,
    /// Maximum time between two scans of the keyspace; small databases are scanned more often
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = at_least_a_second)]
    scan_every: HumanDuration,
    /// Scan only keys that match this Redis pattern
    #[arg(long, value_name = "PATTERN")]
    scan_match: Option<String>,
    /// Lock names to ignore; `*` matches any text
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    ignore: Vec<String>,
    /// Read from each server itself, or from a replica while one is up to date, which takes load off the server
    #[arg(long, value_enum, value_name = "WHICH", default_value = "master")]
    read_from: ReadFrom,
    /// Maximum number of reads of known locks per second in each database; by default 2000, or more if reading each lock once in two minutes needs more
    #[arg(long, value_name = "READS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    poll_rate: Option<u32>,
    /// Maximum number of locks to track; further ones are only counted
    #[arg(long, value_name = "LOCKS", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=5_000_000))]
    max_locks: u32,
    /// Use of MONITOR, which shows waiters and attempts and costs the server: `off`, `on`, or `auto` while the server is quiet
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    monitor: MonitorMode,
    /// Commands per second from which `--monitor auto` considers a server busy
    #[arg(long, value_name = "COMMANDS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    monitor_max_ops: u64,
    /// Memory that MONITOR may take in Redis if the dashboard stalls; it is used only where a limit of Redis ends it there
    #[arg(long, value_name = "SIZE", default_value = "64mb")]
    monitor_budget: ByteSize,
    /// Use MONITOR even if no limit of Redis ends a stalled reader, whose output may then fill the memory of Redis
    #[arg(long)]
    monitor_unbounded: bool,
    /// URL of the same server with a user that may run MONITOR; preceded by the server's name where there are several
    #[arg(long, value_name = "[NAME=]URL")]
    monitor_redis_url: Vec<NamedUrl>,
    /// Let users with the `release` right release locks by force; needs a login
    #[arg(long)]
    allow_release: bool,
    /// URL of the same server with a user that may release locks; preceded by the server's name where there are several
    #[arg(long, value_name = "[NAME=]URL")]
    release_redis_url: Vec<NamedUrl>,
    /// Time after which a lock that is held and renewed is reported as stuck
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = at_least_a_second)]
    stuck_after: HumanDuration,
    /// Time after which a waiter is reported as starving
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = at_least_a_second)]
    starving_after: HumanDuration,
    /// Folder for the history of holds and problems, with which they survive a restart and can be queried; by default one in the service's or the user's state folder
    #[arg(long, value_name = "FOLDER")]
    history_dir: Option<PathBuf>,
    /// Store no history
    #[arg(long, conflicts_with = "history_dir")]
    no_history: bool,
    /// Metrics label for locks whose names match; by default digits and ids are replaced by `*`
    #[arg(long, value_name = "GLOB[=LABEL]")]
    group: Vec<String>,
    /// Maximum number of lock groups in metrics; further ones are counted as `overflow`
    #[arg(long, value_name = "GROUPS", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    max_groups: u16,
    /// Omit lock names from metrics
    #[arg(long)]
    no_lock_names_in_metrics: bool,
    /// Log filter: error, warn, info, debug or trace, or such levels by module
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = telemetry::check_filter)]
    log: String,
    /// Log format: `text`, `json`, or `auto` for text on a terminal and JSON elsewhere
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Auto, hide_possible_values = true)]
    log_format: LogFormat,
}

/// One deployment of Redis that is watched.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// The name of the deployment in addresses, the API and metrics.
    pub name: Arc<str>,
    /// The server, the sentinels or the nodes.
    pub target: redis::Deployment,
    /// The databases to watch.
    pub dbs: Vec<u32>,
    /// The credentials for MONITOR, which shows all databases.
    pub monitor: redis::Deployment,
    /// The credentials for forced releases.
    pub release: redis::Deployment,
}

/// The location of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum History {
    Off,
    /// A folder that must be usable.
    In(PathBuf),
    /// The state folder of the service or the user, if it is usable.
    Default,
}

/// All settings of the program.
#[derive(Debug, Clone)]
pub struct Config {
    /// The deployments to watch.
    pub deployments: Vec<Deployment>,
    /// The address of pages and API.
    pub listen: SocketAddr,
    /// The address of metrics, if it is separate.
    pub metrics_listen: Option<SocketAddr>,
    /// Authentication and rights.
    pub access: Access,
    /// The keys with which agents sign their entries in the holder registry.
    pub agent_keys: Option<AgentKeys>,
    /// The certificate and key, if pages are served over TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The host in the address that visitors use.
    pub public_host: Option<String>,
    /// The badge of every page.
    pub environment: Option<String>,
    /// The note at the head of every page.
    pub note: Option<String>,
    /// The servers that are read: the masters, or a replica of each.
    pub read_from: ReadFrom,
    /// The settings of the scans of all keys.
    pub scan: ScanSettings,
    /// The settings of MONITOR.
    pub monitor: MonitorSettings,
    /// True if locks may be released by force.
    pub allow_release: bool,
    /// The history of holds and problems.
    pub history: History,
    /// The settings of the model.
    pub model: model::types::Settings,
    /// The labels of locks in metrics.
    pub groups: Vec<Pattern>,
    /// The maximum number of groups in metrics.
    pub max_groups: usize,
    /// True if metrics may name single locks.
    pub lock_names_in_metrics: bool,
    pub log: LogSettings,
    /// The settings that are valid but risky, as sentences for the log.
    pub warnings: Vec<String>,
}

impl Config {
    /// Reads the settings of this process.
    ///
    /// # Errors
    /// If the program must end: for wrong settings, but also after `--help` and `--version`.
    pub fn load() -> Result<Self, Stop> {
        settings::load(&PROGRAM, build)
    }

    /// Reads the settings from these arguments, with the program's name first, and this environment.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_from(
        args: impl IntoIterator<Item = OsString>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Stop> {
        settings::load_from(&PROGRAM, args, env, build)
    }

    /// Returns the labels of locks in metrics, without any assigned yet.
    #[must_use]
    pub fn grouping(&self) -> Grouping {
        Grouping::new(self.groups.clone(), self.max_groups)
    }

    /// Returns every database that is watched.
    #[must_use]
    pub fn scopes(&self) -> Vec<(Arc<str>, u32)> {
        self.deployments
            .iter()
            .flat_map(|deployment| {
                deployment.dbs.iter().map(|db| (Arc::clone(&deployment.name), *db))
            })
            .collect()
    }
}

fn build(raw: Raw<Flags>) -> Result<Config, Vec<String>> {
    let mut mistakes = Vec::new();
    let tables = raw.tables::<RedisTable>("redis").unwrap_or_else(|errors| {
        mistakes.extend(errors);
        Vec::new()
    });
    let deployments = deployments::build(&raw, &tables, &mut mistakes);
    let red_groups = redis_table::groups(&tables, &mut mistakes);
    let usual = model::types::Rule {
        stuck_after: Some(raw.values.stuck_after.into()),
        starving_after: Some(raw.values.starving_after.into()),
    };
    let rules = raw.tables("lock").map(|rows| rules(rows, usual, &mut mistakes));
    let rules = rules.unwrap_or_else(|errors| {
        mistakes.extend(errors);
        Vec::new()
    });
    let mut groups = Vec::new();
    for group in &raw.values.group {
        match Pattern::parse(group) {
            Ok(pattern) => groups.push(pattern),
            Err(error) => mistakes.push(raw.mistake("group", error)),
        }
    }
    let access = access::build(&raw, &mut mistakes);
    let agent_keys = access::agent_keys(&raw, &mut mistakes);
    check_combinations(&raw, &deployments, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let warnings = raw.warnings();
    let flags = raw.values;
    let model = model::types::Settings {
        max_locks: usize::try_from(flags.max_locks).unwrap_or(usize::MAX),
        poll_rate: flags.poll_rate,
        usual: usual.into(),
        rules,
        ignore: flags.ignore.into_iter().map(String::into_bytes).collect(),
        groups: red_groups,
    };
    Ok(Config {
        deployments,
        listen: flags.listen,
        metrics_listen: flags.metrics_listen,
        access: access.access,
        agent_keys,
        tls: access.tls,
        public_host: flags.public_url.as_deref().and_then(host_of),
        environment: flags.environment,
        note: flags.note,
        read_from: flags.read_from,
        scan: ScanSettings {
            rate: flags.scan_rate,
            every: flags.scan_every.into(),
            pattern: flags.scan_match,
            max_possible: model.max_possible(),
        },
        monitor: MonitorSettings {
            mode: flags.monitor,
            max_ops: flags.monitor_max_ops,
            budget: flags.monitor_budget,
            unbounded: flags.monitor_unbounded,
        },
        allow_release: flags.allow_release,
        history: match flags.history_dir {
            Some(folder) => History::In(folder),
            None if flags.no_history => History::Off,
            None => History::Default,
        },
        model,
        groups,
        max_groups: usize::from(flags.max_groups),
        lock_names_in_metrics: !flags.no_lock_names_in_metrics,
        log: LogSettings { filter: flags.log, format: flags.log_format },
        warnings,
    })
}

/// Checks settings that depend on others, or on the environment.
fn check_combinations(raw: &Raw<Flags>, deployments: &[Deployment], mistakes: &mut Vec<String>) {
    let history = raw.values.history_dir.as_deref();
    let history = history.map_or(Ok(()), |path| raw.check_data_folder("history_dir", path));
    mistakes.extend(history.err());
    let has_cluster = deployments
        .iter()
        .any(|deployment| matches!(deployment.target, redis::Deployment::Cluster(_)));
    if raw.values.read_from == ReadFrom::Replica && has_cluster {
        let why = "not for a cluster: its replicas say of a lock that is moving to another node that there is none";
        mistakes.push(raw.mistake("read_from", why));
    }
    mistakes.extend(raw.check_variables(telemetry::check_traces).err());
    let listen = raw.values.listen;
    if let Some(metrics) = raw.values.metrics_listen.filter(|metrics| overlap(*metrics, listen)) {
        let what = match metrics == listen {
            true => format!("{metrics} is the same address as --listen"),
            false => format!("{metrics} and {listen}, the address of --listen, overlap"),
        };
        mistakes.push(raw.mistake("metrics_listen", format!("{what}: choose another port")));
    }
}

/// Returns whether a system with default settings lets a program listen on only one of the addresses: the ports are
/// equal, and the IP addresses are equal too or one of them means all interfaces. `[::]` includes all interfaces of
/// IPv4.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let includes =
        |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
    let (ip, other) = (a.ip().to_canonical(), b.ip().to_canonical());
    let same_ip = ip == other || includes(ip, other) || includes(other, ip);
    a.port() == b.port() && a.port() != 0 && same_ip
}

#[cfg(test)]
mod tests;
