//! The state of each source, for every page, the API and metrics.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redisson::slot;
use service_kit::clock;
use service_kit::redis::{Address, LinkState, LinkStatus, ReadsFrom, Role, ServerInfo, Slots};
use tokio::sync::watch;

use super::monitor::switch::Switch;
use super::refusal::Refusal;
use super::trace::Traces;
use crate::clock::{SteadyMillis, millis};
use crate::model::types::{LockId, ScopeId, Source};
use crate::sources::view::{Down, Progress, ServerView, SourceState, SourceView};

/// One source of one server, or of one of its databases.
#[derive(Debug)]
pub struct SourceStatus {
    pub deployment: Arc<str>,
    /// The server's address, with the database if there are several.
    pub node: String,
    pub source: Source,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    state: SourceState,
    detail: String,
    remedy: Option<&'static str>,
    last_success: Option<SteadyMillis>,
    lag: Option<Duration>,
    pass: Pass,
    refused: bool,
}

/// The progress of scans.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pass {
    /// The progress of the first scan, or `None` once it is complete.
    pub first: Option<Progress>,
    /// The approximate time from the beginning of the newest complete scan to the end of the next.
    pub round: Option<Duration>,
}

impl SourceStatus {
    fn new(deployment: Arc<str>, node: String, source: Source) -> Self {
        let first = (source == Source::Scan).then_some(Progress { seen: 0, of: None });
        let now = Now {
            state: SourceState::Down,
            detail: "not connected yet".to_owned(),
            remedy: None,
            last_success: None,
            lag: None,
            pass: Pass { first, round: None },
            refused: false,
        };
        Self { deployment, node, source, now: Mutex::new(now) }
    }

    /// Sets the state, with details in words.
    pub fn set(&self, state: SourceState, detail: impl Into<String>) {
        let (mut now, detail) = (self.now.lock(), detail.into());
        if now.state != state {
            tracing::info!(
                deployment = &*self.deployment,
                node = self.node,
                source = self.source.as_str(),
                state = state.as_str(),
                detail,
                "source state changed"
            );
        }
        now.state = state;
        now.detail = detail;
        now.remedy = None;
    }

    /// Sets the state, with details in words and the step that turns the source on.
    pub fn set_remediable(
        &self,
        state: SourceState,
        detail: impl Into<String>,
        remedy: &'static str,
    ) {
        self.set(state, detail);
        self.now.lock().remedy = Some(remedy);
    }

    /// Sets whether the server replies but refuses all reads of locks.
    pub fn set_refused(&self, refused: bool) {
        self.now.lock().refused = refused;
    }

    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.now.lock().refused
    }

    /// Records a success.
    pub fn succeeded(&self) {
        self.now.lock().last_success = Some(SteadyMillis::now());
    }

    /// Sets the lag. If it is at least `behind`, the state reports it.
    pub fn set_lag(&self, lag: Duration, behind: Duration) {
        let mut now = self.now.lock();
        now.lag = Some(lag);
        match now.state {
            SourceState::On | SourceState::Behind if lag >= behind => {
                now.state = SourceState::Behind;
                now.detail = format!(
                    "known locks are read {} s late; raise --poll-rate, or watch fewer locks",
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

    /// Sets the lag without changing the state.
    pub fn record_lag(&self, lag: Duration) {
        self.now.lock().lag = Some(lag);
    }

    pub fn set_pass(&self, pass: Pass) {
        self.now.lock().pass = pass;
    }

    #[must_use]
    pub fn pass(&self) -> Pass {
        self.now.lock().pass
    }

    #[must_use]
    pub fn state(&self) -> SourceState {
        self.now.lock().state
    }

    /// Returns the source for display.
    #[must_use]
    pub fn view(&self) -> SourceView {
        let now = self.now.lock();
        SourceView {
            deployment: self.deployment.to_string(),
            node: self.node.clone(),
            source: self.source.as_str(),
            state: now.state,
            detail: now.detail.clone(),
            remedy: now.remedy,
            last_success: now.last_success.filter(|_| now.state != SourceState::Off),
            lag_ms: now.lag.map(millis),
        }
    }
}

/// A watched server.
#[derive(Debug)]
pub struct Server {
    pub deployment: Arc<str>,
    pub node: String,
    /// The state of the connection that reads its locks.
    pub link: watch::Receiver<LinkState>,
    /// The replica that is read instead, if the settings request one.
    pub reads: Option<watch::Receiver<Option<ReadsFrom>>>,
    /// The reason for which it refuses writes, as of the latest reading.
    pub refusal: watch::Receiver<Option<Refusal>>,
    /// True if the other nodes of its cluster are watched too, if it is in one.
    pub whole: bool,
}

impl Server {
    /// Returns the facts that the server reports, or `None` while it cannot be reached.
    #[must_use]
    pub fn info(&self) -> Option<Arc<ServerInfo>> {
        match &self.link.borrow().status {
            LinkStatus::Up(info) => Some(Arc::clone(info)),
            LinkStatus::Down { .. } => None,
        }
    }

    /// Returns the reason for which the server refuses writes, or `None` if it accepts them or cannot be reached.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        *self.refusal.borrow()
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
            refusal: self.refusal(),
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
                let since = SteadyMillis::now().minus(ago);
                view.down = Some(Down { since, reason: reason.clone() });
            }
        }
        view
    }
}

/// All sources and servers. Those of a cluster's nodes are added and removed.
#[derive(Debug, Default)]
pub struct Sources {
    lists: Mutex<Lists>,
    traces: Traces,
}

#[derive(Debug, Default)]
struct Lists {
    statuses: Vec<Arc<SourceStatus>>,
    polls: HashMap<ScopeId, Arc<SourceStatus>>,
    servers: Vec<Arc<Server>>,
    switches: Vec<(Arc<str>, String, Switch)>,
    /// The problems of whole clusters.
    clusters: HashMap<Arc<str>, String>,
    /// The slots of each cluster's nodes.
    slots: HashMap<Arc<str>, Arc<Slots>>,
    /// The reason why the history cannot be written.
    history_trouble: Option<String>,
    /// Where the history of earlier runs is, if it cannot be read.
    history_set_aside: Option<String>,
}

impl Sources {
    /// Returns the traces that the MONITOR readers record.
    #[must_use]
    pub fn traces(&self) -> &Traces {
        &self.traces
    }

    pub fn add(&self, deployment: &Arc<str>, node: &str, source: Source) -> Arc<SourceStatus> {
        let status = SourceStatus::new(Arc::clone(deployment), node.to_owned(), source);
        let status = Arc::new(status);
        self.lists.lock().statuses.push(Arc::clone(&status));
        status
    }

    pub fn add_poll(&self, deployment: &Arc<str>, node: &str, scope: ScopeId) -> Arc<SourceStatus> {
        let status = self.add(deployment, node, Source::Poll);
        self.lists.lock().polls.insert(scope, Arc::clone(&status));
        status
    }

    #[must_use]
    pub fn poll(&self, scope: ScopeId) -> Option<Arc<SourceStatus>> {
        self.lists.lock().polls.get(&scope).cloned()
    }

    /// Adds the switch of a server's MONITOR reader.
    pub fn add_switch(&self, deployment: &Arc<str>, node: &str, switch: Switch) {
        self.lists.lock().switches.push((Arc::clone(deployment), node.to_owned(), switch));
    }

    /// Turns on a deployment's MONITOR readers for a while. Without a name, it is the only deployment. Returns false if
    /// MONITOR is switched off, or `None` if the deployment is ambiguous or has no server yet.
    #[must_use]
    pub fn watch(&self, deployment: Option<&str>) -> Option<bool> {
        let lists = self.lists.lock();
        let first = lists.switches.first().map(|(name, ..)| &**name)?;
        let wanted = deployment.unwrap_or(first);
        let only = lists.switches.iter().all(|(name, ..)| **name == *wanted);
        if deployment.is_none() && !only {
            return None;
        }
        let chosen = lists.switches.iter().filter(|(name, ..)| **name == *wanted);
        chosen.map(|(.., switch)| switch.watch()).reduce(|one, other| one | other)
    }

    /// Turns on the MONITOR reader of a lock's server for a while. In a cluster, this is the server of one node.
    pub fn watch_lock(&self, id: &LockId) {
        self.switches_of(id, |switch| {
            switch.watch();
        });
    }

    /// Returns whether the settings allow MONITOR on a lock's server, or `None` if there is no server yet.
    #[must_use]
    pub fn may_watch(&self, id: &LockId) -> Option<bool> {
        let mut allowed = None;
        self.switches_of(id, |switch| allowed = Some(switch.is_allowed()));
        allowed
    }

    fn switches_of(&self, id: &LockId, mut then: impl FnMut(&Switch)) {
        let node = self.slot_of(id).and_then(|(_, node)| node).map(|node| node.to_string());
        let lists = self.lists.lock();
        let its = lists.switches.iter().filter(|(deployment, at, _)| {
            *deployment == id.deployment && node.as_ref().is_none_or(|node| node == at)
        });
        its.for_each(|(.., switch)| then(switch));
    }

    pub fn add_server(&self, server: Server) {
        self.lists.lock().servers.push(Arc::new(server));
    }

    /// Removes a server with its sources.
    pub fn remove(&self, deployment: &str, node: &str) {
        let lists = &mut *self.lists.lock();
        lists.statuses.retain(|status| *status.deployment != *deployment || status.node != node);
        lists.polls.retain(|_, status| *status.deployment != *deployment || status.node != node);
        lists.servers.retain(|server| *server.deployment != *deployment || server.node != node);
        lists.switches.retain(|(of, at, _)| **of != *deployment || at != node);
    }

    /// Sets or clears the problem of a whole cluster.
    pub fn set_cluster(&self, deployment: &Arc<str>, problem: Option<String>) {
        let clusters = &mut self.lists.lock().clusters;
        match problem {
            Some(problem) => clusters.insert(Arc::clone(deployment), problem),
            None => clusters.remove(deployment),
        };
    }

    /// Returns the clusters that are only partly visible, each with the reason.
    #[must_use]
    pub fn partly_visible(&self) -> Vec<(Arc<str>, String)> {
        let clusters = self.lists.lock().clusters.clone();
        let mut clusters: Vec<_> = clusters.into_iter().collect();
        clusters.sort();
        clusters
    }

    /// Sets or clears the reason why the history cannot be written.
    pub fn set_history_trouble(&self, trouble: Option<String>) {
        self.lists.lock().history_trouble = trouble;
    }

    /// Sets where the history of earlier runs is, if it cannot be read.
    pub fn set_history_set_aside(&self, place: Option<String>) {
        self.lists.lock().history_set_aside = place;
    }

    /// Returns the reason why the history cannot be written, if there is one.
    #[must_use]
    pub fn history_trouble(&self) -> Option<String> {
        self.lists.lock().history_trouble.clone()
    }

    pub(super) fn history_set_aside(&self) -> Option<String> {
        self.lists.lock().history_set_aside.clone()
    }

    /// Sets the slots of a cluster's nodes.
    pub fn set_slots(&self, deployment: &Arc<str>, slots: Arc<Slots>) {
        self.lists.lock().slots.insert(Arc::clone(deployment), slots);
    }

    /// Returns the number of slots that no node serves, for each cluster.
    #[must_use]
    pub fn unserved_slots(&self) -> Vec<(Arc<str>, u32)> {
        let of = |(name, slots): (&Arc<str>, &Arc<Slots>)| (Arc::clone(name), slots.unserved());
        self.lists.lock().slots.iter().map(of).collect()
    }

    /// Returns the slot of a cluster's lock, and the node that serves it, if any.
    #[must_use]
    pub fn slot_of(&self, id: &LockId) -> Option<(u16, Option<Address>)> {
        let slot = slot(id.name.as_bytes());
        let lists = self.lists.lock();
        let slots = lists.slots.get(&id.deployment)?;
        Some((slot, slots.owner(slot).cloned()))
    }

    /// Returns the reason why a lock cannot be read, if there is one. In a cluster, it is that of the node that serves the
    /// lock's slot.
    #[must_use]
    pub fn why_unreadable(&self, id: &LockId) -> Option<String> {
        let node = match self.slot_of(id) {
            Some((slot, None)) => {
                return Some(format!("no node of the cluster serves its slot, {slot}"));
            }
            Some((_, Some(node))) => Some(node.to_string()),
            None => None,
        };
        let is_its = |deployment: &str, at: &str| {
            *deployment == *id.deployment && node.as_ref().is_none_or(|node| node == at)
        };
        let servers = self.servers();
        let mut its = servers.iter().filter(|server| is_its(&server.deployment, &server.node));
        let statuses = self.statuses();
        let mut refused = statuses
            .iter()
            .filter(|status| is_its(&status.deployment, &status.node) && status.is_refused());
        let down = its.find_map(|server| server.view().down).map(|down| down.reason);
        down.or_else(|| Some(refused.next()?.now.lock().detail.clone()))
    }

    /// Returns whether all keys of a deployment have been scanned once.
    #[must_use]
    pub fn is_scanned(&self, deployment: &str) -> bool {
        let lists = self.lists.lock();
        let mut scans = lists
            .statuses
            .iter()
            .filter(|status| status.source == Source::Scan && *status.deployment == *deployment);
        let some = scans.clone().next().is_some();
        some && scans.all(|status| status.pass().first.is_none())
    }

    #[must_use]
    pub fn statuses(&self) -> Vec<Arc<SourceStatus>> {
        self.lists.lock().statuses.clone()
    }

    #[must_use]
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.lists.lock().servers.clone()
    }

    /// Returns whether the locks of a server can be read: the server can be reached, and does not refuse the reads.
    #[must_use]
    pub fn can_read(&self, server: &Server) -> bool {
        let of_server = |status: &SourceStatus| {
            let database = || status.node.strip_prefix(&*server.node)?.strip_prefix('/');
            *status.deployment == *server.deployment
                && (status.node == server.node || database().is_some())
        };
        let refuses = |status: &Arc<SourceStatus>| status.is_refused() && of_server(status);
        server.info().is_some() && !self.lists.lock().polls.values().any(refuses)
    }

    /// Returns every source for display.
    #[must_use]
    pub fn views(&self) -> Vec<SourceView> {
        let statuses = self.statuses();
        let mut views: Vec<SourceView> = statuses.iter().map(|status| status.view()).collect();
        let position =
            |view: &SourceView| Source::ALL.iter().position(|s| s.as_str() == view.source);
        views.sort_by_key(position);
        views
    }

    /// Returns every server for display.
    #[must_use]
    pub fn server_views(&self) -> Vec<ServerView> {
        self.servers().iter().map(|server| server.view()).collect()
    }

    /// Returns the progress of all first scans together, or `None` once they are complete.
    #[must_use]
    pub fn first_scan(&self) -> Option<Progress> {
        let statuses = self.statuses();
        let firsts = statuses.iter().filter_map(|status| status.pass().first);
        firsts.reduce(|a, b| Progress {
            seen: a.seen + b.seen,
            of: a.of.zip(b.of).map(|(a, b)| a + b),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_reported_as_it_grows_until_it_is_over() {
        let status = SourceStatus::new("main".into(), "a:1".to_owned(), Source::Poll);
        status.set(SourceState::On, "");
        let said = |secs| {
            status.set_lag(Duration::from_secs(secs), Duration::from_secs(2));
            let now = status.now.lock();
            (now.state, now.detail.split(';').next().unwrap_or_default().to_owned())
        };
        assert_eq!(said(1), (SourceState::On, String::new()));
        for secs in [2, 490] {
            let detail = format!("known locks are read {secs} s late");
            assert_eq!(said(secs), (SourceState::Behind, detail));
        }
        assert_eq!(said(0), (SourceState::On, String::new()));
    }

    #[test]
    fn a_source_that_is_off_has_no_last_success() {
        let status = SourceStatus::new("main".into(), "a:1".to_owned(), Source::Keyspace);
        status.set(SourceState::On, "");
        status.succeeded();
        assert!(status.view().last_success.is_some());
        status.set(SourceState::Off, "");
        assert_eq!(status.view().last_success, None);
    }
}
