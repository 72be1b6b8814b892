//! The facts and settings of a server, and the resulting risks for locks.

use std::sync::Arc;

use redis::cmd;
use serde::Serialize;
use service_kit::redis::{CallError, Link, is_redis_7};

use super::finding::{Finding, FindingId, Severity, Subject};
use super::shown::{amount, bytes, count, counted};
use crate::config::ByteSize;
use crate::sources::monitor::Bound;
use crate::sources::read::text;
use crate::sources::refusal::{self, Fields, Refusal, fields};

/// The oldest version whose locks can be read, since it introduced HRANDFIELD.
const OLDEST: (u32, u32) = (6, 2);
/// The silence of a replica from which it counts as lagging, in seconds. Replicas report every second.
const LAGGING: u64 = 5;
/// The maximum number of bytes of replication that a replica may lack.
const BEHIND: u64 = 16 * 1024 * 1024;
/// The length of a MONITOR line without its command: the time, the database, the address and quotes.
const MONITOR_LINE: u64 = 60;
/// The settings that are read in addition to [`refusal::SETTINGS`].
const SETTINGS: [&str; 2] = ["appendonly", "notify-keyspace-events"];

/// The facts of one server.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerState {
    info: Fields,
    settings: Fields,
    bound: Option<Bound>,
}

/// The summary of a server in a report. A fact that the Redis user may not read is null.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ServerSummary {
    pub deployment: Arc<str>,
    pub server: Arc<str>,
    pub version: Option<String>,
    pub role: Option<String>,
    pub replicas: Option<u64>,
    pub clients: Option<u64>,
    pub commands_per_second: Option<u64>,
    pub input_bytes_per_second: Option<u64>,
    /// The estimated output of MONITOR.
    pub monitor_bytes_per_second: Option<u64>,
}

/// The findings about one server so far.
struct Found<'a> {
    subject: &'a Subject,
    findings: Vec<Finding>,
}

impl Found<'_> {
    fn add(
        &mut self,
        id: FindingId,
        severity: Severity,
        evidence: String,
        next_step: impl Into<String>,
    ) {
        self.findings.push(Finding::new(id, severity, self.subject, evidence, next_step));
    }
}

impl ServerState {
    /// Reads the facts that the Redis user may read. `budget` is the memory that MONITOR may use.
    ///
    /// # Errors
    /// Fails if the connection fails.
    pub(super) async fn read(link: &Link, budget: ByteSize) -> Result<Self, CallError> {
        let info = match link.call(cmd("INFO")).await {
            Ok(info) => text(&info),
            Err(CallError::Refused(_)) => String::new(),
            Err(error) => return Err(error),
        };
        let names = [&SETTINGS[..], &refusal::SETTINGS].concat();
        let settings = refusal::settings(link, &names).await?;
        let bound = crate::sources::monitor::bound(link, budget).await?;
        Ok(Self { info: fields(&info), settings, bound: Some(bound) })
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    /// Returns the whole part of a number.
    fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.split('.').next()?.parse().ok()
    }

    fn is_master(&self) -> bool {
        self.field("role") == Some("master")
    }

    pub(super) fn clients(&self) -> Option<u64> {
        self.number("connected_clients")
    }

    /// Returns the version, with the name of a substitute for Redis.
    fn version(&self) -> Option<String> {
        match (self.field("valkey_version"), self.field("redis_version")) {
            (Some(version), _) => Some(format!("Valkey {version}")),
            (None, version) => version.map(|version| format!("Redis {version}")),
        }
    }

    /// Returns whether the server is too old for its locks to be read.
    pub(super) fn is_too_old(&self) -> bool {
        let parts = self.field("redis_version").map(|version| {
            let mut parts = version.split('.').map(str::parse::<u32>);
            (parts.next(), parts.next())
        });
        matches!(parts, Some((Some(Ok(major)), Some(Ok(minor)))) if (major, minor) < OLDEST)
    }

    pub(super) fn summary(&self, subject: &Subject) -> ServerSummary {
        let input = self.number("instantaneous_input_kbps").map(|kib| kib * 1024);
        let commands = self.number("instantaneous_ops_per_sec");
        ServerSummary {
            deployment: Arc::clone(&subject.deployment),
            server: Arc::clone(&subject.server),
            version: self.version(),
            role: self
                .field("role")
                .map(|role| if role == "slave" { "replica" } else { role }.to_owned()),
            replicas: self.number("connected_slaves"),
            clients: self.clients(),
            commands_per_second: commands,
            input_bytes_per_second: input,
            monitor_bytes_per_second: commands
                .zip(input)
                .map(|(n, input)| input + n * MONITOR_LINE),
        }
    }

    /// Returns the risks. `dbs` are the databases that are checked, and `max_ops` is the load up to which the dashboard
    /// turns MONITOR on.
    pub(super) fn judge(&self, subject: &Subject, dbs: &[u32], max_ops: u64) -> Vec<Finding> {
        let mut found = Found { subject, findings: Vec::new() };
        if self.is_too_old() {
            found.add(
                FindingId::UnsupportedVersion,
                Severity::Problem,
                format!(
                    "{} has no HRANDFIELD, so its locks cannot be read.",
                    self.version().unwrap_or_default()
                ),
                "Upgrade to Redis 6.2 or later.",
            );
        }
        if let Some(evidence) = self.eviction() {
            let next = format!(
                "Give locks a Redis of their own or, while its memory is far from full, run `{} CONFIG SET maxmemory-policy noeviction`: docs/runbooks/redis-evicts.md.",
                subject.cli
            );
            found.add(FindingId::Evicts, Severity::Problem, evidence, next);
        }
        if let Some(refusal) = Refusal::find(&self.info, &self.settings) {
            let (evidence, next) = self.refusal(refusal, &subject.cli);
            found.add(FindingId::RefusesWrites, Severity::Problem, evidence, next);
        }
        self.persistence(&mut found);
        self.replication(&mut found);
        if let Some(evidence) = self.other_databases(dbs) {
            let next = "Check them too: add `--db NUMBER` for each.";
            found.add(FindingId::UncheckedDatabases, Severity::Note, evidence, next);
        }
        self.sources(max_ops, &mut found);
        found.findings
    }

    fn eviction(&self) -> Option<String> {
        let policy = self.field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
        let limit = self.number("maxmemory").filter(|limit| *limit > 0)?;
        let used = self.number("used_memory").unwrap_or(0);
        let evicted = self.number("evicted_keys").unwrap_or(0);
        Some(format!(
            "maxmemory-policy is {policy}: once {} are in use ({} now) the server deletes locks that are held; it has evicted {} since its start.",
            bytes(limit),
            bytes(used),
            counted(evicted, "key")
        ))
    }

    /// Returns the evidence for a refusal, and the next step.
    fn refusal(&self, refusal: Refusal, cli: &str) -> (String, String) {
        let evidence = match refusal {
            Refusal::Memory => format!(
                "{} are in use, and maxmemory is {}: the server refuses new locks and the releases of Redisson (OOM). Agents renew and release their locks.",
                bytes(self.number("used_memory").unwrap_or(0)),
                bytes(self.number("maxmemory").unwrap_or(0))
            ),
            Refusal::Disk => {
                let of = |field| self.field(field).unwrap_or("unknown");
                format!(
                    "The server cannot save its data (rdb_last_bgsave_status {}, aof_last_write_status {}), so it refuses all writes (MISCONF): no lock is acquired, renewed or released, and held locks end with their leases.",
                    of("rdb_last_bgsave_status"),
                    of("aof_last_write_status")
                )
            }
            Refusal::Replicas => format!(
                "{} and in time (min-replicas-max-lag), fewer than min-replicas-to-write requires, so the server refuses all writes (NOREPLICAS): no lock is acquired, renewed or released, and held locks end with their leases.",
                amount(
                    self.number("min_slaves_good_slaves").unwrap_or(0),
                    "replica is online",
                    "replicas are online"
                )
            ),
        };
        let next = match refusal {
            Refusal::Memory => format!(
                "Raise `maxmemory`, or delete what fills the memory: `{cli} --bigkeys` finds it."
            ),
            Refusal::Disk => {
                "Read the server's log, which names the cause, often a full disk or too little memory to fork: docs/runbooks/redis-refuses.md.".to_owned()
            }
            Refusal::Replicas => {
                "Start the replicas, or find out why they lag: docs/runbooks/redis-refuses.md.".to_owned()
            }
        };
        (evidence, next)
    }

    fn persistence(&self, found: &mut Found<'_>) {
        let cli = &found.subject.cli;
        let append_only = match self.settings.get("appendonly") {
            Some(value) => value == "yes",
            None => self.number("aof_enabled") != Some(0),
        };
        let Some(save) = self.settings.get("save").filter(|_| !append_only) else { return };
        if save.is_empty() {
            found.add(
                FindingId::PersistenceOff,
                Severity::Warning,
                "Neither snapshots nor the append-only file are on (save \"\", appendonly no): a restart frees every lock while its holder still works.".to_owned(),
                format!("Run `{cli} CONFIG SET appendonly yes`, or restart this Redis only while no lock is held."),
            );
        } else {
            let changes = self.number("rdb_changes_since_last_save").unwrap_or(0);
            found.add(
                FindingId::SnapshotsOnly,
                Severity::Note,
                format!(
                    "Only snapshots are on (save \"{save}\", appendonly no): a crash now would undo {}, and free locks that were acquired since the last snapshot.",
                    counted(changes, "change")
                ),
                format!("Run `{cli} CONFIG SET appendonly yes` to lose at most a second."),
            );
        }
    }

    fn replication(&self, found: &mut Found<'_>) {
        let cli = &found.subject.cli;
        if self.field("role").is_some() && !self.is_master() {
            let master = self.field("master_host").zip(self.field("master_port"));
            let master =
                master.map_or_else(String::new, |(host, port)| format!(" of {host}:{port}"));
            found.add(
                FindingId::IsReplica,
                Severity::Warning,
                format!(
                    "This server is a replica{master}: what it shows may be out of date, and subscribers of the master are not counted."
                ),
                "Check the master, or name the sentinels: `--redis-url redis+sentinel://host:port/name`.",
            );
            return;
        }
        let replicas = self.number("connected_slaves").unwrap_or(0);
        let guards = is_redis_7(self.field("redis_version"));
        // The field only exists if both settings are above zero.
        let requires = guards && self.field("min_slaves_good_slaves").is_some();
        if replicas > 0 && !requires {
            let (why, next) = if guards {
                (
                    " without min-replicas-to-write",
                    format!(
                        "Run `{cli} CONFIG SET min-replicas-to-write 1`, and start agents with `--min-replicas 1`."
                    ),
                )
            } else {
                (
                    ", and before Redis 7.0 min-replicas-to-write stops no script",
                    "Start agents with `--min-replicas 1`.".to_owned(),
                )
            };
            found.add(
                FindingId::ReplicasNotRequired,
                Severity::Warning,
                format!(
                    "{}{why}: a master that is cut off keeps granting locks that the new master grants again.",
                    amount(replicas, "replica is connected", "replicas are connected")
                ),
                next,
            );
        }
        let offset = self.number("master_repl_offset");
        for (name, replica) in self.info.iter().filter(|(name, _)| is_replica(name)) {
            let field = |key: &str| {
                replica.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
            };
            let number = |key: &str| field(key).and_then(|text| text.parse::<u64>().ok());
            let behind = offset.zip(number("offset")).map_or(0, |(of, at)| of.saturating_sub(at));
            let (state, lag) = (field("state").unwrap_or("unknown"), number("lag").unwrap_or(0));
            if state == "online" && lag < LAGGING && behind < BEHIND {
                continue;
            }
            let place = field("ip").zip(field("port"));
            let place = place.map_or_else(|| name.clone(), |(ip, port)| format!("{ip}:{port}"));
            found.add(
                FindingId::ReplicaLagging,
                Severity::Warning,
                format!(
                    "The replica {place} is {state}, {} behind, and last reported {lag} s ago: a failover to it loses the newest locks.",
                    bytes(behind)
                ),
                "Check that replica and its network before you fail over.",
            );
        }
    }

    /// Describes databases with keys that are not checked.
    fn other_databases(&self, dbs: &[u32]) -> Option<String> {
        let others = self.info.iter().filter_map(|(name, value)| {
            let db: u32 = name.strip_prefix("db")?.parse().ok()?;
            let keys = value.strip_prefix("keys=")?.split(',').next()?.parse().ok()?;
            (!dbs.contains(&db)).then(|| format!("db{db} ({})", counted(keys, "key")))
        });
        let others: Vec<String> = others.collect();
        (!others.is_empty()).then(|| format!("Not checked: {}.", others.join(", ")))
    }

    /// Reports settings that limit the view of a dashboard.
    fn sources(&self, max_ops: u64, found: &mut Found<'_>) {
        let cli = &found.subject.cli;
        if let Some(flags) = self.settings.get("notify-keyspace-events")
            && !crate::sources::keyspace::shows_locks(flags)
        {
            found.add(
                FindingId::NotificationsOff,
                Severity::Note,
                format!(
                    "notify-keyspace-events is \"{flags}\": a dashboard learns of changes that are not releases seconds later, by polling."
                ),
                format!(
                    "Run `{cli} CONFIG SET notify-keyspace-events KEghx` where that matters and the server is not busy."
                ),
            );
        }
        if let Some(Bound::Unbounded(reason, advice)) = &self.bound {
            let text = format!("{reason}, so dashboards leave MONITOR off.");
            found.add(FindingId::MonitorUnbounded, Severity::Note, text, *advice);
        }
        if let Some(commands) = self.number("instantaneous_ops_per_sec")
            && commands > max_ops
        {
            found.add(
                FindingId::MonitorBusy,
                Severity::Note,
                format!(
                    "{} commands a second, above --monitor-max-ops {}: MONITOR would send each of them, and stays off.",
                    count(commands),
                    count(max_ops)
                ),
                "Keep `--monitor auto`; it waits until the server is quiet.",
            );
        }
    }
}

/// Matches the fields of INFO that describe one replica: `slave0`.
fn is_replica(field: &str) -> bool {
    field
        .strip_prefix("slave")
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::finding::fixtures::server;
    use super::*;

    const CALM: &str = "redis_version:7.0.15\r\nrole:master\r\nconnected_slaves:0\r\n\
        maxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\ninstantaneous_ops_per_sec:12\r\n\
        instantaneous_input_kbps:1.50\r\ndb0:keys=3,expires=0,avg_ttl=0\r\n";

    fn findings(info: &str, settings: &[(&str, &str)]) -> Vec<(FindingId, Severity, String)> {
        let settings = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let state = ServerState { info: fields(&format!("{CALM}{info}")), settings, bound: None };
        let found = state.judge(&server(), &[0], 10_000).into_iter();
        found.map(|found| (found.id, found.severity, found.evidence)).collect()
    }

    fn ids(info: &str, settings: &[(&str, &str)]) -> Vec<FindingId> {
        findings(info, settings).into_iter().map(|(id, ..)| id).collect()
    }

    #[test]
    fn a_calm_server_has_no_findings() {
        let settings = [("save", ""), ("appendonly", "yes"), ("notify-keyspace-events", "KEA")];
        assert_eq!(findings("", &settings), []);
        assert_eq!(findings("", &[]), [], "nor does one whose settings are hidden");
    }

    #[test]
    fn eviction_takes_a_policy_and_a_memory_limit() {
        let full = "maxmemory_policy:allkeys-lru\r\nmaxmemory:1048576\r\nevicted_keys:4711\r\n";
        let found = findings(full, &[]);
        assert_eq!((found[0].0, found[0].1), (FindingId::Evicts, Severity::Problem));
        assert!(
            found[0].2.contains("allkeys-lru") && found[0].2.contains("4,711 keys"),
            "{found:?}"
        );
        assert_eq!(ids("maxmemory_policy:allkeys-lru\r\n", &[]), []);
    }

    #[test]
    fn a_full_memory_is_a_problem_where_nothing_is_evicted() {
        let full = "maxmemory:1048576\r\nused_memory:2097152\r\n";
        let found = findings(full, &[]);
        assert_eq!((found[0].0, found[0].1), (FindingId::RefusesWrites, Severity::Problem));
        assert!(found[0].2.contains("2 MiB are in use, and maxmemory is 1 MiB"), "{found:?}");
        assert_eq!(ids("maxmemory:1048576\r\nused_memory:1048576\r\n", &[]), []);
        assert_eq!(ids("used_memory:1048576\r\n", &[]), [], "without a limit");
        let evicts = format!("{full}maxmemory_policy:allkeys-lru\r\n");
        assert_eq!(ids(&evicts, &[]), [FindingId::Evicts]);
    }

    #[test]
    fn a_failing_disk_and_missing_replicas_are_problems() {
        let disk = findings("aof_last_write_status:err\r\n", &[]);
        assert_eq!((disk[0].0, disk[0].1), (FindingId::RefusesWrites, Severity::Problem));
        assert!(disk[0].2.contains("aof_last_write_status err), so it refuses"), "{disk:?}");
        let replicas = findings("min_slaves_good_slaves:1\r\n", &[("min-replicas-to-write", "2")]);
        assert_eq!(replicas[0].0, FindingId::RefusesWrites);
        assert!(replicas[0].2.starts_with("1 replica is online and in time"), "{replicas:?}");
    }

    #[test]
    fn a_restart_loses_more_without_the_append_only_file() {
        let off = [("save", ""), ("appendonly", "no")];
        assert_eq!(ids("", &off), [FindingId::PersistenceOff]);
        let found = findings("", &[("save", "3600 1"), ("appendonly", "no")]);
        assert_eq!((found[0].0, found[0].1), (FindingId::SnapshotsOnly, Severity::Note));
    }

    #[test]
    fn replicas_are_judged_by_settings_and_lag() {
        let one = "connected_slaves:1\r\nmaster_repl_offset:500\r\n\
                   slave0:ip=10.0.0.2,port=6379,state=online,offset=500,lag=1\r\n";
        assert_eq!(ids(one, &[]), [FindingId::ReplicasNotRequired]);
        let required = format!("{one}min_slaves_good_slaves:1\r\n");
        assert_eq!(ids(&required, &[]), []);
        let old = findings(&format!("{required}redis_version:6.2.14\r\n"), &[]);
        assert_eq!(old[0].0, FindingId::ReplicasNotRequired, "it runs scripts without replicas");
        assert!(old[0].2.contains("before Redis 7.0"), "{old:?}");
        for bad in ["state=wait_bgsave,offset=0,lag=0", "state=online,offset=500,lag=31"] {
            let lagging = format!(
                "connected_slaves:1\r\nmin_slaves_good_slaves:1\r\nslave0:ip=10.0.0.2,port=6379,{bad}\r\n"
            );
            let found = findings(&lagging, &[]);
            assert_eq!(found[0].0, FindingId::ReplicaLagging);
            assert!(found[0].2.contains("10.0.0.2:6379"), "{found:?}");
        }
        let replica = "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6380\r\n";
        assert!(findings(replica, &[])[0].2.contains("a replica of 10.0.0.1:6380"));
    }

    #[test]
    fn old_versions_other_databases_and_missing_sources_are_reported() {
        assert_eq!(ids("redis_version:5.0.14\r\n", &[]), [FindingId::UnsupportedVersion]);
        assert_eq!(ids("redis_version:6.2.0\r\n", &[]), []);
        let found = findings("db3:keys=120,expires=1,avg_ttl=0\r\n", &[]);
        assert_eq!(found[0].2, "Not checked: db3 (120 keys).");
        assert_eq!(ids("", &[("notify-keyspace-events", "")]), [FindingId::NotificationsOff]);
        assert_eq!(ids("instantaneous_ops_per_sec:10001\r\n", &[]), [FindingId::MonitorBusy]);
        let unbounded = Bound::Unbounded("Redis ends no reader".to_owned(), "Set a limit.");
        let (info, settings) = (fields(CALM), Fields::new());
        let state = ServerState { info, settings, bound: Some(unbounded) };
        assert_eq!(state.judge(&server(), &[0], 1_000)[0].id, FindingId::MonitorUnbounded);
        let summary = state.summary(&server());
        assert_eq!(summary.monitor_bytes_per_second, Some(1024 + 12 * MONITOR_LINE));
        assert_eq!(summary.version.as_deref(), Some("Redis 7.0.15"));
    }
}
