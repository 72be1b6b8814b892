//! Facts that a server reports about itself.

use std::collections::HashMap;
use std::net::IpAddr;

use super::target::Address;

/// A server's role in replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Accepts writes.
    Master,
    /// Follows another server and rejects writes.
    Replica,
}

/// The facts of INFO, read on each connect and again by each check. A fact that the server does not
/// report, usually because the account may not read it, is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// The address that was connected to.
    pub address: Option<Address>,
    /// The IP address at the other end of a TCP connection.
    pub peer: Option<IpAddr>,
    /// The version, such as `7.0.15`.
    pub version: Option<String>,
    /// The id of the server's process; each start has another one.
    pub run_id: Option<String>,
    /// The role in replication.
    pub role: Option<Role>,
    /// The id of the replication history; a failover starts another one.
    pub replid: Option<String>,
    /// The number of connected replicas.
    pub replicas: Option<u32>,
    /// Set for a master that refuses scripts while too few replicas follow it: one with `min-replicas-to-write`, which concerns
    /// scripts since Redis 7.0.
    pub requires_replicas: bool,
    /// The policy for full memory, such as `noeviction`.
    pub maxmemory_policy: Option<String>,
    /// The memory limit in bytes; 0 is no limit.
    pub maxmemory: Option<u64>,
    /// Set for a node of a cluster.
    pub cluster: bool,
    /// The number of steps of the server's clock that the checks of the connection have found. Counted only with
    /// [`LinkOptions::check`](super::LinkOptions::check).
    pub clock_steps: u32,
    /// The instant at which the handshake ended, by [`crate::clock::boot_micros`].
    pub connected_at_micros: u64,
}

impl ServerInfo {
    /// Returns `true` if keys may be evicted: with an evicting policy, and a memory limit that is set or unknown.
    #[must_use]
    pub fn evicts(&self) -> bool {
        let policy = self.maxmemory_policy.as_deref();
        policy.is_some_and(|policy| policy != "noeviction") && self.maxmemory != Some(0)
    }

    /// Returns `true` if the server supports sharded pub/sub: a cluster node of Redis 7.0 or later.
    #[must_use]
    pub fn has_shards(&self) -> bool {
        let version = self.version.as_deref();
        self.cluster && is_redis_7(version)
    }

    /// Parses the text of any sections of INFO.
    pub(crate) fn from_info(text: &str) -> Self {
        let fields: HashMap<&str, &str> =
            text.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let field = |name: &str| fields.get(name).map(|value| (*value).to_owned());
        let is_redis_7 = is_redis_7(fields.get("redis_version").copied());
        Self {
            address: None,
            peer: None,
            version: field("redis_version"),
            run_id: field("run_id"),
            role: fields.get("role").and_then(|role| match *role {
                "master" => Some(Role::Master),
                "slave" | "replica" => Some(Role::Replica),
                _ => None,
            }),
            replid: field("master_replid"),
            replicas: fields.get("connected_slaves").and_then(|count| count.parse().ok()),
            // Absent unless it is on.
            requires_replicas: is_redis_7 && fields.contains_key("min_slaves_good_slaves"),
            maxmemory_policy: field("maxmemory_policy"),
            maxmemory: fields.get("maxmemory").and_then(|bytes| bytes.parse().ok()),
            cluster: fields.get("cluster_enabled") == Some(&"1"),
            clock_steps: 0,
            connected_at_micros: 0,
        }
    }
}

/// Returns whether a server that reports this `redis_version` behaves as Redis 7.0 and later do. Versions of `KeyDB` are below 7,
/// those of Valkey are not.
#[must_use]
pub fn is_redis_7(version: Option<&str>) -> bool {
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major >= 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_missing_from_info_are_none() {
        let text = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n\r\n# Memory\r\n\
                    maxmemory:1048576\r\nmaxmemory_policy:allkeys-lru\r\nrole:slave\r\ncluster_enabled:1\r\n";
        let info = ServerInfo::from_info(text);
        assert_eq!(info.version.as_deref(), Some("7.0.15"));
        assert_eq!(info.role, Some(Role::Replica));
        assert_eq!(info.replid, None);
        assert!(info.cluster && info.evicts());
        assert_eq!(ServerInfo::from_info(""), ServerInfo::default());
    }

    #[test]
    fn a_master_reports_its_replicas_and_whether_it_requires_them() {
        let replicas = |text: &str| {
            let info = ServerInfo::from_info(text);
            (info.replicas, info.requires_replicas)
        };
        assert_eq!(replicas("role:master\r\nconnected_slaves:2\r\n"), (Some(2), false));
        let guarded = "connected_slaves:1\r\nmin_slaves_good_slaves:1\r\n";
        for (version, requires) in [("6.2.14", false), ("7.0.15", true), ("10.0.0", true)] {
            let text = format!("redis_version:{version}\r\n{guarded}");
            assert_eq!(replicas(&text), (Some(1), requires), "{version}");
        }
        assert_eq!(replicas(guarded), (Some(1), false), "an unknown version");
    }

    #[test]
    fn sharded_pubsub_takes_a_cluster_of_redis_7() {
        let has = |version: Option<&str>, cluster| {
            let version = version.map(str::to_owned);
            ServerInfo { version, cluster, ..ServerInfo::default() }.has_shards()
        };
        assert!(has(Some("7.0.15"), true) && has(Some("10.1"), true));
        assert!(!has(Some("6.2.14"), true) && !has(None, true) && !has(Some("7.0.15"), false));
    }

    #[test]
    fn eviction_takes_a_policy_and_a_limit() {
        let evicts = |policy: &str, maxmemory: Option<u64>| {
            let maxmemory_policy = Some(policy.to_owned());
            ServerInfo { maxmemory_policy, maxmemory, ..ServerInfo::default() }.evicts()
        };
        assert!(evicts("volatile-ttl", Some(1)));
        assert!(evicts("allkeys-lfu", None));
        assert!(!evicts("allkeys-lfu", Some(0)));
        assert!(!evicts("noeviction", Some(1)));
        assert!(!ServerInfo::default().evicts());
    }
}
