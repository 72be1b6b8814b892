//! The reason for which a server refuses writes, if it does.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::cmd;
use service_kit::redis::{CallError, Link, LinkStatus, is_redis_7};
use tokio::sync::watch;
use tokio::time::Instant;

use super::read::{pipeline, strings, text};

/// The interval between two readings.
const INTERVAL: Duration = Duration::from_secs(5);
/// The time for which a server counts as full after it was: at its limit, it refuses some commands and executes others.
const FULL_FOR: Duration = Duration::from_secs(60);
/// The time for which hidden settings are not requested again, since each denial adds to the server's log.
const HIDDEN_FOR: Duration = Duration::from_secs(60);
/// The sections of INFO that are read.
const SECTIONS: [&str; 5] = ["server", "memory", "persistence", "replication", "keyspace"];
/// The settings that [`Refusal::find`] needs, each read separately, since older servers accept only one.
pub const SETTINGS: [&str; 3] = ["min-replicas-to-write", "save", "stop-writes-on-bgsave-error"];

/// The fields of INFO, or settings.
pub type Fields = BTreeMap<String, String>;

/// The reason for which a server refuses writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its memory is full, and it evicts nothing. It executes writes that need no memory.
    Memory,
    /// It cannot save its data.
    Disk,
    /// Fewer replicas are online, and have reported lately, than it requires. Redis before 7.0 runs scripts anyway.
    Replicas,
}

impl Refusal {
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Replicas];

    /// Returns the first word of the server's errors.
    #[must_use]
    pub const fn error(self) -> &'static str {
        match self {
            Self::Memory => "OOM",
            Self::Disk => "MISCONF",
            Self::Replicas => "NOREPLICAS",
        }
    }

    /// Finds the reason in the fields of INFO and in [`SETTINGS`]. A reason that depends on an unknown setting is not
    /// reported. A replica has none, since it refuses all writes of clients.
    #[must_use]
    pub fn find(info: &Fields, settings: &Fields) -> Option<Self> {
        let is = |field: &str, value: &str| info.get(field).is_some_and(|found| found == value);
        let number = |field: &str| info.get(field)?.parse::<u64>().ok();
        if is("role", "slave") {
            return None;
        }
        let file_fails = is("aof_enabled", "1") && is("aof_last_write_status", "err");
        let stops = settings.get("stop-writes-on-bgsave-error").is_some_and(|stops| stops == "yes");
        let saves = settings.get("save").is_some_and(|save| !save.is_empty());
        if file_fails || is("rdb_last_bgsave_status", "err") && stops && saves {
            return Some(Self::Disk);
        }
        let required = settings.get("min-replicas-to-write").and_then(|min| min.parse().ok());
        // The field exists only if at least one replica is required.
        let lacks = |good| good < required.unwrap_or(1);
        if number("min_slaves_good_slaves").is_some_and(lacks)
            && is_redis_7(info.get("redis_version").map(String::as_str))
        {
            return Some(Self::Replicas);
        }
        // The server leaves out the buffers of its replicas.
        let buffers = number("mem_not_counted_for_evict").unwrap_or(0);
        let used = number("used_memory")?.saturating_sub(buffers);
        let limit = number("maxmemory").filter(|limit| *limit > 0)?;
        let policy = info.get("maxmemory_policy")?;
        let evicts_nothing =
            policy == "noeviction" || policy.starts_with("volatile-") && !has_expiring_keys(info);
        (evicts_nothing && used > limit).then_some(Self::Memory)
    }
}

/// Returns whether any key has a time to live. The fields of databases are like `db0:keys=3,expires=1,avg_ttl=0`.
fn has_expiring_keys(info: &Fields) -> bool {
    let databases = info.iter().filter(|(name, _)| name.starts_with("db"));
    let mut counts = databases.flat_map(|(_, counts)| counts.split(','));
    counts.any(|count| count.strip_prefix("expires=").is_some_and(|keys| keys != "0"))
}

/// Returns whether [`Refusal::find`] needs the settings.
fn depends_on_settings(info: &Fields) -> bool {
    info.get("rdb_last_bgsave_status").is_some_and(|status| status == "err")
        || info.get("min_slaves_good_slaves").is_some_and(|good| good != "0")
}

/// Parses the text of INFO.
#[must_use]
pub fn fields(info: &str) -> Fields {
    let fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Reads settings. Those that the Redis user may not read are missing.
///
/// # Errors
/// Fails if the connection fails.
pub async fn settings(link: &Link, names: &[&str]) -> Result<Fields, CallError> {
    let commands = names.iter().map(|name| cmd("CONFIG").arg("GET").arg(name).clone()).collect();
    let replies = link.pipeline(pipeline(commands)).await?;
    let settings = names.iter().zip(replies).filter_map(|(name, reply)| {
        let value = strings(&reply.ok()?)?.into_iter().nth(1)?;
        Some(((*name).to_owned(), String::from_utf8_lossy(&value).into_owned()))
    });
    Ok(settings.collect())
}

/// Reads one server's refusal again and again.
pub(super) struct RefusalReader {
    pub(super) link: Link,
    pub(super) found: watch::Sender<Option<Refusal>>,
}

impl RefusalReader {
    /// Runs until the connection is given up.
    pub(super) async fn run(self) {
        let mut state = self.link.state();
        while self.link.up().await.is_some() {
            let connection = state.borrow().generation;
            let lost = state.wait_for(|now| {
                now.generation != connection || matches!(now.status, LinkStatus::Down { .. })
            });
            tokio::select! {
                _ = lost => {}
                () = self.read_until_lost() => {}
            }
            // What a lost server refused says nothing about the next one.
            self.found.send_replace(None);
        }
    }

    async fn read_until_lost(&self) {
        let mut full_at: Option<Instant> = None;
        let mut hidden_at: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let is_hidden = hidden_at.is_some_and(|at| now.duration_since(at) < HIDDEN_FOR);
            // A failed reading says nothing.
            if let Ok(Some(Read { refusal, hidden })) = self.read(is_hidden).await {
                if hidden {
                    hidden_at = Some(now);
                }
                if refusal == Some(Refusal::Memory) {
                    full_at = Some(now);
                }
                let full = full_at.is_some_and(|at| now.duration_since(at) < FULL_FOR);
                self.found.send_replace(if full {
                    refusal.or(Some(Refusal::Memory))
                } else {
                    refusal
                });
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Reads the refusal, without the settings if they are hidden. Returns `None` if INFO is refused.
    async fn read(&self, is_hidden: bool) -> Result<Option<Read>, CallError> {
        let sections = SECTIONS.map(|section| cmd("INFO").arg(section).clone());
        let replies = self.link.pipeline(pipeline(sections.to_vec())).await?;
        let Ok(replies) = replies.into_iter().collect::<Result<Vec<_>, _>>() else {
            return Ok(None);
        };
        let info = fields(&replies.iter().map(text).collect::<Vec<_>>().join("\r\n"));
        if is_hidden || !depends_on_settings(&info) {
            let refusal = Refusal::find(&info, &Fields::new());
            return Ok(Some(Read { refusal, hidden: false }));
        }
        let settings = settings(&self.link, &SETTINGS).await?;
        let refusal = Refusal::find(&info, &settings);
        Ok(Some(Read { refusal, hidden: settings.is_empty() }))
    }
}

struct Read {
    refusal: Option<Refusal>,
    /// The Redis user may not read the settings.
    hidden: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOPS: [(&str, &str); 2] = [("save", "60 1"), ("stop-writes-on-bgsave-error", "yes")];

    fn refusal(info: &str, settings: &[(&str, &str)]) -> Option<Refusal> {
        let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Refusal::find(&fields(info), &settings.collect())
    }

    #[test]
    fn memory_is_full_above_a_limit_at_which_nothing_is_evicted() {
        let is_full = |used: u64, others: &str| {
            let info = format!("used_memory:{used}\r\nmaxmemory:1000\r\n{others}");
            refusal(&info, &[]) == Some(Refusal::Memory)
        };
        let kept = "maxmemory_policy:noeviction\r\n";
        assert!(is_full(1_001, kept) && !is_full(1_000, kept));
        assert!(!is_full(1_001, &format!("{kept}mem_not_counted_for_evict:1\r\n")));
        assert!(!is_full(2_000, "maxmemory_policy:allkeys-lru\r\n"));
        let volatile = "maxmemory_policy:volatile-lru\r\ndb0:keys=7,expires=0,avg_ttl=0\r\n";
        assert!(is_full(1_001, volatile), "there is nothing left to evict");
        assert!(!is_full(2_000, &format!("{volatile}db2:keys=2,expires=1,avg_ttl=9\r\n")));
        assert_eq!(refusal(&format!("used_memory:1\r\nmaxmemory:0\r\n{kept}"), &[]), None);
        assert!(!is_full(2_000, &format!("{kept}role:slave\r\n")));
    }

    #[test]
    fn a_failed_snapshot_stops_writes_if_the_settings_say_so() {
        let failed = "role:master\r\naof_enabled:0\r\nrdb_last_bgsave_status:err\r\n";
        assert_eq!(refusal(failed, &STOPS), Some(Refusal::Disk));
        assert_eq!(refusal(failed, &[]), None, "unknown settings");
        assert_eq!(refusal(failed, &[("save", ""), STOPS[1]]), None, "without snapshots");
        assert_eq!(refusal(failed, &[STOPS[0], ("stop-writes-on-bgsave-error", "no")]), None);
        assert_eq!(refusal("rdb_last_bgsave_status:ok\r\n", &STOPS), None);
        assert_eq!(refusal(&failed.replace("master", "slave"), &STOPS), None);
    }

    #[test]
    fn a_failing_append_only_file_stops_writes() {
        let failed = "aof_enabled:1\r\naof_last_write_status:err\r\n";
        assert_eq!(refusal(failed, &[]), Some(Refusal::Disk));
        assert_eq!(refusal(&failed.replace('1', "0"), &[]), None, "the file is off by now");
        let full = "used_memory:2\r\nmaxmemory:1\r\nmaxmemory_policy:noeviction\r\n";
        let both = format!("{failed}{full}");
        assert_eq!(refusal(&both, &[]), Some(Refusal::Disk), "it refuses more than full memory");
    }

    #[test]
    fn fewer_replicas_than_required_stop_writes() {
        let lacks_in = |version: &str, good: u64, settings: &[(&str, &str)]| {
            let info = format!(
                "redis_version:{version}\r\nrole:master\r\nmin_slaves_good_slaves:{good}\r\n"
            );
            refusal(&info, settings) == Some(Refusal::Replicas)
        };
        let lacks = |good, settings: &[(&str, &str)]| lacks_in("7.0.15", good, settings);
        let two = [("min-replicas-to-write", "2")];
        assert!(lacks(0, &[]) && lacks(1, &two));
        assert!(!lacks(2, &two) && !lacks(1, &[]), "unknown settings");
        assert!(!lacks_in("6.2.14", 0, &two), "it runs scripts");
        assert_eq!(refusal("role:master\r\nconnected_slaves:0\r\n", &two), None);
    }
}
