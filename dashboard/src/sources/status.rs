//! How each source fares: on every page, in the API and in metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redisson::slot;
use service_kit::clock;
use service_kit::redis::{Address, LinkState, LinkStatus, ReadsFrom, Role, ServerInfo, Slots};
use tokio::sync::watch;

use super::monitor::switch::Switch;
use crate::clock::SteadyMillis;
use crate::model::types::{LockId, ScopeId, Source};
use crate::sources::view::{Down, Progress, ServerView, SourceState, SourceView};

/// One source of one server, or of one of its databases.
#[derive(Debug)]
pub struct SourceStatus {
    pub deployment: Arc<str>,
    /// The server's address, with the database where there are several.
    pub node: String,
    pub source: Source,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    state: SourceState,
    detail: String,
    last_success: Option<SteadyMillis>,
    lag: Option<Duration>,
    pass: Pass,
}

/// What the passes over all keys have come to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pass {
    /// How far the first one is; none once it is through.
    pub first: Option<Progress>,
    /// From the start of the newest complete one to the end of the next, about.
    pub round: Option<Duration>,
}

impl SourceStatus {
    fn new(deployment: Arc<str>, node: String, source: Source) -> Self {
        let first = (source == Source::Scan).then_some(Progress { seen: 0, of: None });
        let now = Now {
            state: SourceState::Down,
            detail: "not connected yet".to_owned(),
            last_success: None,
            lag: None,
            pass: Pass { first, round: None },
        };
        Self { deployment, node, source, now: Mutex::new(now) }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It works, or not, and why.
    pub fn set(&self, state: SourceState, detail: impl Into<String>) {
        let mut now = self.now();
        if now.state != state {
            tracing::info!(
                deployment = &*self.deployment,
                node = self.node,
                source = self.source.as_str(),
                state = state.as_str(),
                "source changed its state"
            );
        }
        now.state = state;
        now.detail = detail.into();
    }

    /// It saw something through just now.
    pub fn succeeded(&self) {
        self.now().last_success = Some(SteadyMillis::now());
    }

    /// How late it is; it says so from `behind` on.
    pub fn set_lag(&self, lag: Duration, behind: Duration) {
        let mut now = self.now();
        now.lag = Some(lag);
        match now.state {
            SourceState::On if lag >= behind => {
                now.state = SourceState::Behind;
                now.detail = format!(
                    "known locks are read {} s later than due; raise --poll-rate or narrow what is looked at",
                    lag.as_secs()
                );
            }
            SourceState::Behind if lag < behind / 2 => {
                now.state = SourceState::On;
                now.detail = String::new();
            }
            _ => {}
        }
    }

    /// How late it is; what to say of it is the source's own business.
    pub fn note_lag(&self, lag: Duration) {
        self.now().lag = Some(lag);
    }

    /// How the passes go.
    pub fn set_pass(&self, pass: Pass) {
        self.now().pass = pass;
    }

    /// How the passes go.
    #[must_use]
    pub fn pass(&self) -> Pass {
        self.now().pass
    }

    #[must_use]
    pub fn state(&self) -> SourceState {
        self.now().state
    }

    /// As it is shown.
    #[must_use]
    pub fn view(&self) -> SourceView {
        let now = self.now();
        SourceView {
            deployment: self.deployment.to_string(),
            node: self.node.clone(),
            source: self.source.as_str(),
            state: now.state,
            detail: now.detail.clone(),
            last_success: now.last_success,
            lag_ms: now.lag.map(|lag| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// A server that is looked at.
#[derive(Debug)]
pub struct Server {
    pub deployment: Arc<str>,
    pub node: String,
    /// Whether its locks can be read.
    pub link: watch::Receiver<LinkState>,
    /// What is read in its place, where a replica is wished.
    pub reads: Option<watch::Receiver<Option<ReadsFrom>>>,
    /// Whether the other nodes of its cluster are looked at too, where it is in one.
    pub whole: bool,
}

impl Server {
    /// What it said of itself; none while it cannot be reached.
    #[must_use]
    pub fn info(&self) -> Option<Arc<ServerInfo>> {
        match &self.link.borrow().status {
            LinkStatus::Up(info) => Some(Arc::clone(info)),
            LinkStatus::Down { .. } => None,
        }
    }

    /// Why no replica of it is read, where that is wished.
    fn unspared(&self) -> Option<String> {
        match &*self.reads.as_ref()?.borrow() {
            Some(ReadsFrom::Server { reason }) => Some(reason.clone()),
            Some(ReadsFrom::Replica(_)) | None => None,
        }
    }

    fn view(&self) -> ServerView {
        let mut view = ServerView {
            deployment: self.deployment.to_string(),
            address: self.node.clone(),
            master: None,
            replica: None,
            version: None,
            down: None,
            evicts: None,
        };
        match &self.link.borrow().status {
            LinkStatus::Up(info) => {
                view.version.clone_from(&info.version);
                let address = info.address.as_ref().map(ToString::to_string);
                let address = address.filter(|address| *address != self.node);
                match info.role {
                    Some(Role::Replica) => view.replica = address,
                    Some(Role::Master) | None => view.master = address,
                }
                view.evicts = info.maxmemory_policy.clone().filter(|_| info.evicts());
            }
            LinkStatus::Down { reason, since_micros } => {
                let ago = clock::boot_micros().saturating_sub(*since_micros) / 1000;
                let since = SteadyMillis(SteadyMillis::now().0.saturating_sub(ago));
                view.down = Some(Down { since, reason: reason.clone() });
            }
        }
        view
    }
}

/// All of them. Those of a cluster's nodes come and go.
#[derive(Debug, Default)]
pub struct Sources(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    statuses: Vec<Arc<SourceStatus>>,
    polls: HashMap<ScopeId, Arc<SourceStatus>>,
    servers: Vec<Arc<Server>>,
    switches: Vec<(Arc<str>, String, Switch)>,
    /// What is to be said of a cluster as a whole.
    clusters: HashMap<Arc<str>, String>,
    /// Who serves which slot of a cluster.
    slots: HashMap<Arc<str>, Arc<Slots>>,
}

impl Sources {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a source.
    pub fn add(&self, deployment: &Arc<str>, node: &str, source: Source) -> Arc<SourceStatus> {
        let status = SourceStatus::new(Arc::clone(deployment), node.to_owned(), source);
        let status = Arc::new(status);
        self.lists().statuses.push(Arc::clone(&status));
        status
    }

    /// Adds the poll of that scope.
    pub fn add_poll(&self, deployment: &Arc<str>, node: &str, scope: ScopeId) -> Arc<SourceStatus> {
        let status = self.add(deployment, node, Source::Poll);
        self.lists().polls.insert(scope, Arc::clone(&status));
        status
    }

    /// The poll of that scope.
    #[must_use]
    pub fn poll(&self, scope: ScopeId) -> Option<Arc<SourceStatus>> {
        self.lists().polls.get(&scope).cloned()
    }

    /// Adds what asks a server's reader of MONITOR for a look.
    pub fn add_switch(&self, deployment: &Arc<str>, node: &str, switch: Switch) {
        self.lists().switches.push((Arc::clone(deployment), node.to_owned(), switch));
    }

    /// Asks a deployment's readers of MONITOR for a look; without a name, those of the only one. False where MONITOR is
    /// switched off, none where it is not known which deployment is meant, or it has no server yet.
    #[must_use]
    pub fn watch(&self, deployment: Option<&str>) -> Option<bool> {
        let lists = self.lists();
        let first = lists.switches.first().map(|(name, ..)| &**name)?;
        let wished = deployment.unwrap_or(first);
        let only = lists.switches.iter().all(|(name, ..)| **name == *wished);
        if deployment.is_none() && !only {
            return None;
        }
        let meant = lists.switches.iter().filter(|(name, ..)| **name == *wished);
        meant.map(|(.., switch)| switch.watch()).reduce(|one, other| one | other)
    }

    /// Adds a server.
    pub fn add_server(&self, server: Server) {
        self.lists().servers.push(Arc::new(server));
    }

    /// A server is looked at no longer.
    pub fn remove(&self, deployment: &str, node: &str) {
        let lists = &mut *self.lists();
        lists.statuses.retain(|status| *status.deployment != *deployment || status.node != node);
        lists.polls.retain(|_, status| *status.deployment != *deployment || status.node != node);
        lists.servers.retain(|server| *server.deployment != *deployment || server.node != node);
        lists.switches.retain(|(of, at, _)| **of != *deployment || at != node);
    }

    /// Says what is amiss with a cluster as a whole, or that nothing is.
    pub fn tell_cluster(&self, deployment: &Arc<str>, amiss: Option<String>) {
        let clusters = &mut self.lists().clusters;
        match amiss {
            Some(amiss) => clusters.insert(Arc::clone(deployment), amiss),
            None => clusters.remove(deployment),
        };
    }

    /// Says who serves which slot of a cluster.
    pub fn set_slots(&self, deployment: &Arc<str>, slots: Arc<Slots>) {
        self.lists().slots.insert(Arc::clone(deployment), slots);
    }

    /// Where a lock stands, if it is in a cluster: its slot, and the node that serves that, where one does.
    #[must_use]
    pub fn home(&self, id: &LockId) -> Option<(u16, Option<Address>)> {
        let slot = slot(id.name.as_bytes());
        let lists = self.lists();
        let slots = lists.slots.get(&id.deployment)?;
        Some((slot, slots.owner(slot).cloned()))
    }

    /// Whether all keys of a deployment have been passed over once.
    #[must_use]
    pub fn is_passed_over(&self, deployment: &str) -> bool {
        let lists = self.lists();
        let mut scans = lists
            .statuses
            .iter()
            .filter(|status| status.source == Source::Scan && *status.deployment == *deployment);
        let some = scans.clone().next().is_some();
        some && scans.all(|status| status.pass().first.is_none())
    }

    #[must_use]
    pub fn statuses(&self) -> Vec<Arc<SourceStatus>> {
        self.lists().statuses.clone()
    }

    #[must_use]
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.lists().servers.clone()
    }

    /// Every source, as shown.
    #[must_use]
    pub fn views(&self) -> Vec<SourceView> {
        let statuses = self.statuses();
        let mut views: Vec<SourceView> = statuses.iter().map(|status| status.view()).collect();
        let place = |view: &SourceView| Source::ALL.iter().position(|s| s.as_str() == view.source);
        views.sort_by_key(place);
        views
    }

    /// Every server, as shown.
    #[must_use]
    pub fn server_views(&self) -> Vec<ServerView> {
        self.servers().iter().map(|server| server.view()).collect()
    }

    /// How far the first passes have come, together; none once they are through.
    #[must_use]
    pub fn first_scan(&self) -> Option<Progress> {
        let statuses = self.statuses();
        let firsts = statuses.iter().filter_map(|status| status.pass().first);
        firsts.reduce(|a, b| Progress {
            seen: a.seen + b.seen,
            of: a.of.zip(b.of).map(|(a, b)| a + b),
        })
    }

    /// What is not seen by the sources as they are now, a sentence each.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        let part =
            |server: &&Arc<Server>| !server.whole && server.info().is_some_and(|info| info.cluster);
        let servers = self.servers();
        let parts = servers.iter().filter(part).map(|server| {
            format!(
                "{} ({}): it is one node of a cluster, and only the locks in its slots are seen; \
                 redis+cluster:// in its --redis-url finds the others.",
                server.deployment, server.node
            )
        });
        let mut limits: Vec<String> = parts.collect();
        limits.extend(servers.iter().filter_map(|server| {
            let reason = server.unspared()?;
            Some(format!(
                "{} ({}): the server itself is looked at, and no replica: {reason}.",
                server.deployment, server.node
            ))
        }));
        limits.extend(
            self.lists()
                .clusters
                .iter()
                .map(|(deployment, amiss)| format!("{deployment}: {amiss}.")),
        );
        let mut of_nodes = Vec::new();
        for status in self.statuses() {
            let limit = match (status.source, status.state()) {
                (Source::Channels | Source::Subscribers, SourceState::On)
                | (Source::Identity, SourceState::On | SourceState::Off)
                // What it hears would be read a little later anyway.
                | (Source::Keyspace, _)
                | (Source::Monitor, SourceState::On | SourceState::Behind)
                | (Source::Poll, SourceState::On | SourceState::Off | SourceState::Paused)
                | (Source::Operator, _) => continue,
                (Source::Scan, SourceState::Down | SourceState::Denied) => {
                    "locks taken under new names are not found.".to_owned()
                }
                (Source::Scan, _) => match status.pass().round {
                    Some(round) => format!(
                        "a lock under a name not seen before is found within about {} s; \
                         one that is held for less may be seen only by its release message.",
                        round.as_secs() + 1
                    ),
                    None => "not all keys have been looked at yet.".to_owned(),
                },
                (Source::Channels, _) => "release messages are not heard, so a lock freed and taken again by the same \
                     thread looks like one long hold, and `stuck` is only suspected."
                    .to_owned(),
                (Source::Poll, SourceState::Down | SourceState::Denied) => "known locks are not read again; what is shown of them is as of their last reading."
                    .to_owned(),
                (Source::Poll, SourceState::Behind) => "known locks are read later than they should be; their problems are found, and cleared, as late."
                    .to_owned(),
                (Source::Subscribers, _) => "connections that wait for a release are not counted; only fair locks' queues show waiters."
                    .to_owned(),
                (Source::Monitor, _) => "MONITOR is not on, so refused attempts and holds between two readings are not seen."
                    .to_owned(),
                (Source::Identity, _) => "whether holders' hosts are still connected is not known; only agents tell of their holders."
                    .to_owned(),
            };
            of_nodes.push((Arc::clone(&status.deployment), status.node.clone(), limit));
        }
        limits.extend(merged(of_nodes));
        limits.push(
            "Releases of spin locks, of fair locks that nobody waits for, and on a cluster's sharded channels \
             send no message that is heard here: they are noticed when the lock is read next."
                .to_owned(),
        );
        limits.push(
            "Waiters are known by name where they stand in a fair lock's queue. Others are counted by the connections \
             that listen for a release, of which one may stand for many threads; those that only try again and again \
             are not seen."
                .to_owned(),
        );
        limits
    }
}

/// Limits of nodes, where those of a deployment have the same one in one sentence: a cluster may have many.
fn merged(limits: Vec<(Arc<str>, String, String)>) -> Vec<String> {
    let mut merged: Vec<(Arc<str>, Vec<String>, String)> = Vec::new();
    for (deployment, node, limit) in limits {
        let same = merged.iter_mut().find(|(of, _, said)| *of == deployment && *said == limit);
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
    fn what_several_nodes_do_not_see_is_said_once() {
        let limit =
            |of: &str, node: &str, text: &str| (of.into(), node.to_owned(), text.to_owned());
        let mut limits = vec![limit("a", "1", "x."), limit("b", "1", "x."), limit("a", "2", "y.")];
        limits.push(limit("a", "2", "x."));
        assert_eq!(merged(limits.clone()), ["a (1, 2): x.", "b (1): x.", "a (2): y."]);
        limits.extend((3..=64).map(|n| limit("a", &n.to_string(), "x.")));
        assert_eq!(merged(limits)[0], "a (1 and 63 more, see above): x.");
    }
}
