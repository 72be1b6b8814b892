//! What a server says of itself when we connect.

use std::collections::HashMap;

use super::target::Address;

/// Whether a server takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It does.
    Master,
    /// It follows another server.
    Replica,
}

/// Read from INFO on each connect, and again at each check. What the server did not tell, for lack
/// of rights mostly, is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Where it is; known of whatever was connected to.
    pub address: Option<Address>,
    /// Such as `7.0.15`.
    pub version: Option<String>,
    /// Another one after each start of the server.
    pub run_id: Option<String>,
    /// Whether it takes writes.
    pub role: Option<Role>,
    /// The replication history's id; another one after a failover.
    pub replid: Option<String>,
    /// What it does when memory is full, such as `noeviction`.
    pub maxmemory_policy: Option<String>,
    /// Its memory limit in bytes; 0 is none.
    pub maxmemory: Option<u64>,
    /// Whether it is part of a cluster.
    pub cluster: bool,
    /// The server's clock less [`crate::clock::boot_micros`], in microseconds, when it was first seen
    /// or last stepped. Known only where a link checks.
    pub clock_offset_micros: Option<i64>,
    /// When we had this connection ready, by [`crate::clock::boot_micros`].
    pub connected_at_micros: u64,
}

impl ServerInfo {
    /// Whether keys may vanish to make room: an evicting policy, and a limit to come up against
    /// (or one that we may not know).
    #[must_use]
    pub fn evicts(&self) -> bool {
        let policy = self.maxmemory_policy.as_deref();
        policy.is_some_and(|policy| policy != "noeviction") && self.maxmemory != Some(0)
    }

    /// Whether it has channels of shards: it is part of a cluster, of Redis 7.0 or later.
    #[must_use]
    pub fn has_shards(&self) -> bool {
        let version = self.version.as_deref();
        let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        self.cluster && major.is_some_and(|major| major >= 7)
    }

    /// From the text of INFO, whichever sections it has.
    pub(crate) fn from_info(text: &str) -> Self {
        let fields: HashMap<&str, &str> =
            text.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let field = |name: &str| fields.get(name).map(|value| (*value).to_owned());
        Self {
            address: None,
            version: field("redis_version"),
            run_id: field("run_id"),
            role: fields.get("role").and_then(|role| match *role {
                "master" => Some(Role::Master),
                "slave" | "replica" => Some(Role::Replica),
                _ => None,
            }),
            replid: field("master_replid"),
            maxmemory_policy: field("maxmemory_policy"),
            maxmemory: fields.get("maxmemory").and_then(|bytes| bytes.parse().ok()),
            cluster: fields.get("cluster_enabled") == Some(&"1"),
            clock_offset_micros: None,
            connected_at_micros: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_and_gaps_stay_gaps() {
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
    fn shards_came_with_7_0_and_are_a_clusters() {
        let has = |version: Option<&str>, cluster| {
            let version = version.map(str::to_owned);
            ServerInfo { version, cluster, ..ServerInfo::default() }.has_shards()
        };
        assert!(has(Some("7.0.15"), true) && has(Some("10.1"), true));
        assert!(!has(Some("6.2.14"), true) && !has(None, true) && !has(Some("7.0.15"), false));
    }

    #[test]
    fn evicting_takes_a_policy_and_a_limit() {
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
