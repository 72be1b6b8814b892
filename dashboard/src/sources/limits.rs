//! What the sources do not show, in sentences.

use std::sync::Arc;

use service_kit::redis::{ReadsFrom, Role, ServerInfo};

use super::status::{Server, SourceStatus, Sources};
use crate::model::types::Source;
use crate::sources::view::SourceState;

impl SourceStatus {
    /// Returns a sentence about what the source does not show in its current state, or `None` if that is nothing.
    fn limit(&self) -> Option<String> {
        let limit = match (self.source, self.state()) {
            (Source::Channels | Source::Subscribers, SourceState::On)
            | (Source::Identity, SourceState::On | SourceState::Off)
            // The poll observes the same a little later.
            | (Source::Keyspace, _)
            | (Source::Monitor, SourceState::On | SourceState::Behind)
            | (Source::Poll, SourceState::On | SourceState::Off | SourceState::Paused)
            | (Source::Operator, _) => return None,
            (Source::Scan, SourceState::Down | SourceState::Denied) => {
                "locks under new names are not discovered."
            }
            (Source::Scan, _) => match self.pass().round {
                Some(round) => {
                    return Some(format!(
                        "a lock under a new name is discovered within about {} s; \
                         one that is held for less may show only in its release message.",
                        round.as_secs() + 1
                    ));
                }
                None => "not all keys have been scanned yet.",
            },
            (Source::Channels, _) => {
                "release messages are not received, so a lock released and acquired again by the same thread looks like \
                 one long hold, and `stuck` is only suspected."
            }
            (Source::Poll, SourceState::Down | SourceState::Denied) => {
                "known locks are not read; they are shown as of their last reading."
            }
            (Source::Poll, SourceState::Behind) => {
                "known locks are read late; their problems are detected, and cleared, with the same delay."
            }
            (Source::Subscribers, _) => {
                "connections that wait for a release are not counted; only the queues of fair locks show waiters."
            }
            (Source::Monitor, _) => {
                "MONITOR is off, so refused attempts and holds between two readings are not observed."
            }
            (Source::Identity, _) => {
                "it is unknown whether the hosts of holders are still connected; only agents report their holders."
            }
        };
        Some(limit.to_owned())
    }
}

impl Server {
    /// Returns whether the server is a replica, although the settings name it as the server to read.
    fn is_replica(&self) -> bool {
        let is_replica = |info: Arc<ServerInfo>| info.role == Some(Role::Replica);
        self.reads.is_none() && !self.whole && self.info().is_some_and(is_replica)
    }

    /// Returns the reason why the server itself is read although the settings request a replica.
    fn replica_unused(&self) -> Option<String> {
        match &*self.reads.as_ref()?.borrow() {
            Some(ReadsFrom::Server { reason }) => Some(reason.clone()),
            Some(ReadsFrom::Replica(_)) | None => None,
        }
    }
}

impl Sources {
    /// Returns the current limits of the sources, one sentence each.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        let is_single_node =
            |server: &&Arc<Server>| !server.whole && server.info().is_some_and(|info| info.cluster);
        let servers = self.servers();
        let parts = servers.iter().filter(is_single_node).map(|server| {
            format!(
                "{} ({}): one node of a cluster, of which only the locks in its slots are visible; \
                 use redis+cluster:// in --redis-url to watch all nodes.",
                server.deployment, server.node
            )
        });
        let of_history = [self.history_trouble(), self.history_set_aside()];
        let mut limits: Vec<String> = of_history.into_iter().flatten().chain(parts).collect();
        limits.extend(servers.iter().filter_map(|server| {
            let reason = server.replica_unused()?;
            Some(format!(
                "{} ({}): the server itself is read, and no replica: {reason}.",
                server.deployment, server.node
            ))
        }));
        limits.extend(servers.iter().filter(|server| server.is_replica()).map(|server| {
            format!(
                "{} ({}): the server is a replica, so its locks may be out of date and waiters at its master are not \
                 counted; name the master in --redis-url.",
                server.deployment, server.node
            )
        }));
        let clusters = self.partly_visible();
        limits.extend(clusters.iter().map(|(deployment, why)| format!("{deployment}: {why}.")));
        let of_nodes = self.statuses().into_iter().filter_map(|status| {
            Some((Arc::clone(&status.deployment), status.node.clone(), status.limit()?))
        });
        limits.extend(merged(of_nodes));
        limits.push(
            "Releases of spin locks, of fair locks without waiters, and on a cluster's sharded channels \
             send no message to this dashboard: they are noticed at the next reading of the lock."
                .to_owned(),
        );
        limits.push(
            "Waiters in the queue of a fair lock are known by name. Others are counted by the connections that wait \
             for a release, each of which may represent many threads; waiters that only retry are not visible."
                .to_owned(),
        );
        limits
    }
}

/// Merges equal limits of a deployment's nodes into one sentence, since a cluster may have many nodes.
fn merged(limits: impl IntoIterator<Item = (Arc<str>, String, String)>) -> Vec<String> {
    let mut merged: Vec<(Arc<str>, Vec<String>, String)> = Vec::new();
    for (deployment, node, limit) in limits {
        let same = merged.iter_mut().find(|(of, _, text)| *of == deployment && *text == limit);
        match same {
            Some((_, nodes, _)) => nodes.push(node),
            None => merged.push((deployment, vec![node], limit)),
        }
    }
    let sentence = |(deployment, nodes, limit): (Arc<str>, Vec<String>, String)| {
        let at = match nodes.as_slice() {
            [first, _, _, _, rest @ ..] => {
                format!("{first} and {} more, see above", rest.len() + 3)
            }
            few => few.join(", "),
        };
        format!("{deployment} ({at}): {limit}")
    };
    merged.into_iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_limits_of_several_nodes_are_merged() {
        let limit =
            |of: &str, node: &str, text: &str| (of.into(), node.to_owned(), text.to_owned());
        let mut limits = vec![limit("a", "1", "x."), limit("b", "1", "x."), limit("a", "2", "y.")];
        limits.push(limit("a", "2", "x."));
        assert_eq!(merged(limits.clone()), ["a (1, 2): x.", "b (1): x.", "a (2): y."]);
        limits.extend((3..=64).map(|n| limit("a", &n.to_string(), "x.")));
        assert_eq!(merged(limits)[0], "a (1 and 63 more, see above): x.");
    }
}
