//! The poll: reads of known locks at the model's request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use redisson::Moment;
use service_kit::redis::{
    CallError, Link, LinkState, LinkStatus, Redirect, Role, ServerError, ServerInfo,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::read::{
    AskingLink, Findings, Found, ReadError, ServerFacts, Unpaced, clock_micros, read, text,
};
use super::scope::Scope;
use super::slot_share::SlotShare;
use super::status::SourceStatus;
use crate::clock::{SteadyMillis, now};
use crate::model::actor::ModelHandle;
use crate::model::types::{Observation, ReadRequest, Source};
use crate::sources::view::SourceState;

/// The number of locks in one part of a batch. All parts are in flight at the same time.
const PART: usize = 64;
/// The time without reads after which the server is pinged, or a lock that it has refused to read is requested again.
const QUIET: Duration = Duration::from_secs(2);
/// The interval at which the server's clock is read, since the clock can be set and drifts.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);

/// A read that the server refused.
#[derive(Debug)]
struct Refusal {
    /// One of the locks, which is to be read again.
    request: ReadRequest,
    error: ServerError,
}

/// The poll of one database.
#[derive(Debug)]
pub struct Poll {
    pub scope: Scope,
    pub link: Link,
    pub batches: mpsc::Receiver<Vec<ReadRequest>>,
    pub model: ModelHandle,
    pub status: Arc<SourceStatus>,
    pub facts: ServerFacts,
    /// The server's share of the deployment's locks.
    pub(super) share: SlotShare,
}

impl Poll {
    /// Reads the requested locks until the end, and reports to the model whether the server can be read.
    pub async fn run(mut self) {
        let mut state = self.link.state();
        let mut up = None;
        // The read that is repeated until the server no longer refuses it, or `None` while it refuses none.
        let mut refused = None;
        self.report_link(&mut state, &mut up, &mut refused).await;
        let mut quiet = interval(QUIET);
        quiet.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut clock = interval(CLOCK_INTERVAL);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                changed = state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.report_link(&mut state, &mut up, &mut refused).await;
                    clock.reset_immediately();
                }
                _ = clock.tick(), if up.is_some() => {
                    self.read_clock().await;
                    self.read_databases().await;
                }
                batch = self.batches.recv() => {
                    let Some(batch) = batch else { return };
                    if let Some(refusal) = self.read(batch).await {
                        self.report_refusal(refusal, &mut refused).await;
                    }
                    quiet.reset();
                }
                _ = quiet.tick(), if up.is_some() => {
                    refused = match refused.take() {
                        Some(request) => self.try_again(request).await,
                        None => {
                            // Without locks to read, this reply is the only sign of success.
                            if self.link.ping().await.is_ok() {
                                self.status.succeeded();
                            }
                            None
                        }
                    };
                }
            }
        }
    }

    /// Reports a new or lost connection to the model.
    async fn report_link(
        &self,
        state: &mut watch::Receiver<LinkState>,
        up: &mut Option<u64>,
        refused: &mut Option<ReadRequest>,
    ) {
        let LinkState { generation, status } = state.borrow_and_update().clone();
        match status {
            // Only a new connection is a reason to expect that the server can be read now.
            LinkStatus::Up(_) if refused.is_some() && *up == Some(generation) => {}
            LinkStatus::Up(info) => {
                *refused = None;
                if up.is_some_and(|before| before != generation) {
                    self.model.observe(self.scope.id, Observation::ServerDown).await;
                }
                *up = Some(generation);
                if let Some(address) = &info.address {
                    let at = Observation::ServerAddress {
                        address: address.to_string(),
                        replica: info.role == Some(Role::Replica),
                        replid: info.replid.clone(),
                    };
                    self.model.observe(self.scope.id, at).await;
                }
                self.facts.forget_denials();
                self.report_up(&info, Moment::from_micros(info.connected_at_micros)).await;
            }
            LinkStatus::Down { reason, .. } => {
                (*up, *refused) = (None, None);
                self.model.observe(self.scope.id, Observation::ServerDown).await;
                self.status.set(SourceState::Down, reason);
                self.share.suspect();
            }
        }
    }

    /// Reports that the server can be read since that instant.
    async fn report_up(&self, info: &ServerInfo, since: Moment) {
        let (run_id, cluster) = (info.run_id.clone(), info.cluster);
        let up = Observation::ServerUp { since, at: SteadyMillis::now(), run_id, cluster };
        self.model.observe(self.scope.id, up).await;
        self.status.set(SourceState::On, "");
        self.status.set_refused(false);
        self.status.succeeded();
    }

    /// Reports that the server refuses reads of one database or of all.
    async fn report_refusal(&self, refusal: Refusal, refused: &mut Option<ReadRequest>) {
        let Refusal { request, error } = refusal;
        if refused.is_none() {
            self.model.observe(self.scope.id, Observation::ServerDown).await;
            *refused = Some(request);
        }
        self.status.set_refused(true);
        self.set_refused_state(&error);
    }

    fn set_refused_state(&self, error: &ServerError) {
        // The server is loading its data, or its cluster is temporarily down.
        if error.is_transient() {
            self.status.set(SourceState::Down, error.to_string());
            self.share.suspect();
        } else {
            self.status.set(SourceState::Denied, error.to_string());
        }
    }

    /// Reads a lock again that the server has refused to read. Returns the lock if the read is still refused. Otherwise
    /// the server is reported as up, and locks that were read before this read remain unknown until they are read
    /// again.
    async fn try_again(&self, request: ReadRequest) -> Option<ReadRequest> {
        let since = now();
        let result = read(&mut Unpaced(&self.link, &self.facts), vec![request.clone()]).await;
        let Findings { found, redirected } = match result {
            // The connection's state reports its loss.
            Err(ReadError::Call(CallError::Unsent { .. } | CallError::Lost { .. })) => {
                return Some(request);
            }
            Err(ReadError::Call(CallError::Refused(error))) if concerns_all_keys(&error) => {
                self.set_refused_state(&error);
                return Some(request);
            }
            // Something else is wrong with this lock only.
            Err(_) => Findings::default(),
            Ok(findings) => findings,
        };
        let LinkStatus::Up(info) = self.link.state().borrow().status.clone() else {
            return Some(request);
        };
        self.report_up(&info, since).await;
        self.send(found).await;
        self.follow(redirected).await;
        None
    }

    /// Reads the server's clock, by which the deadlines in queues of fair locks are judged. If the Redis user may not
    /// read it, the dashboard's clock is used.
    async fn read_clock(&self) {
        let before = SteadyMillis::now().0;
        let Ok(reply) = self.link.call(cmd("TIME")).await else { return };
        let Some(theirs) = clock_micros(&reply).map(|micros| micros / 1_000) else { return };
        // The server made the reply about halfway between.
        let at = SteadyMillis::now();
        let ours = before.midpoint(at.0);
        let ahead_ms = i64::try_from(i128::from(theirs) - i128::from(ours)).unwrap_or(0);
        self.facts.set_ahead(ahead_ms);
        self.model.observe(self.scope.id, Observation::Clock { ahead_ms, at }).await;
    }

    /// Reads the numbers of the databases that have keys. A release message may be about a lock in any of them.
    async fn read_databases(&self) {
        let mut info = cmd("INFO");
        info.arg("keyspace");
        let Ok(reply) = self.link.call(info).await else { return };
        let with_keys = databases(&text(&reply));
        self.model.observe(self.scope.id, Observation::Databases(with_keys)).await;
    }

    /// Reads locks. Returns a refusal that concerns all keys, if any.
    async fn read(&self, batch: Vec<ReadRequest>) -> Option<Refusal> {
        let parts = batch.chunks(PART).map(|part| self.read_part(part.to_vec()));
        futures_util::future::join_all(parts).await.into_iter().flatten().next()
    }

    async fn read_part(&self, part: Vec<ReadRequest>) -> Option<Refusal> {
        let again = to_read_again(&part);
        match read(&mut Unpaced(&self.link, &self.facts), part).await {
            Ok(Findings { found, redirected }) => {
                self.send(found).await;
                self.follow(redirected).await;
                // A batch that was requested before the refusal of another one does not end the refusal.
                if !self.status.is_refused() {
                    self.report_success();
                }
                if self.facts.take_redirected() {
                    self.share.suspect();
                }
            }
            // The connection's state reports its loss. Nothing waits here, so that the loss is reported at once.
            Err(ReadError::Call(CallError::Unsent { .. } | CallError::Lost { .. })) => {}
            Err(ReadError::Call(CallError::Refused(error))) => {
                if let Some(request) = again.filter(|_| concerns_all_keys(&error)) {
                    return Some(Refusal { request, error });
                }
                self.set_refused_state(&error);
            }
            Err(error) => self.status.set(SourceState::Denied, error.to_string()),
        }
        None
    }

    fn report_success(&self) {
        match self.facts.companions_denied() {
            Some(why) => self.status.set(
                SourceState::On,
                format!("queues, tokens and markers of readers are not read: {why}"),
            ),
            None if [SourceState::Denied, SourceState::Down].contains(&self.status.state()) => {
                self.status.set(SourceState::On, "");
            }
            None => {}
        }
        self.status.succeeded();
    }

    /// Reads keys on the nodes to which the server has redirected while their slots are moving. Keys of a node that cannot be
    /// reached keep their last state.
    async fn follow(&self, redirected: Vec<(ReadRequest, Redirect)>) {
        let mut by_node: HashMap<(String, u16), (Redirect, Vec<ReadRequest>)> = HashMap::new();
        // Slots that have moved permanently are discovered by querying the nodes.
        for (request, redirect) in redirected.into_iter().filter(|(_, redirect)| redirect.ask) {
            let node = (redirect.host.clone(), redirect.port);
            by_node.entry(node).or_insert_with(|| (redirect, Vec::new())).1.push(request);
        }
        for (redirect, requests) in by_node.into_values() {
            let Some(link) = self.share.link_at(&redirect) else { continue };
            if let Ok(findings) = read(&mut AskingLink(&link, &self.facts), requests).await {
                self.send(findings.found).await;
            }
        }
    }

    async fn send(&self, found: Vec<Found>) {
        for found in found {
            self.model.observe(self.scope.id, found.observed_by(Source::Poll)).await;
        }
    }
}

/// Returns the read of a part that is repeated after a refusal: of a known lock if there is one, and of the whole lock,
/// since revalidation needs fewer rights.
fn to_read_again(part: &[ReadRequest]) -> Option<ReadRequest> {
    let known = part.iter().find(|request| !request.known.fields.is_empty());
    let mut again = known.or_else(|| part.first())?.clone();
    again.known.revalidate = None;
    Some(again)
}

/// Returns whether the server refuses to read every lock, not only those of a slot that moves or has no node.
fn concerns_all_keys(error: &ServerError) -> bool {
    let of_slot = error.code == "CLUSTERDOWN" && error.message.contains("slot not served");
    !of_slot && !error.is_split()
}

/// Returns the databases that `INFO keyspace` lists, such as `db3:keys=5,expires=5,avg_ttl=29000`.
fn databases(info: &str) -> Vec<u32> {
    let number = |line: &str| line.strip_prefix("db")?.split_once(':')?.0.parse().ok();
    info.lines().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_one_slot_leaves_the_other_locks_known() {
        let refusal = |code: &str, message: &str| {
            concerns_all_keys(&ServerError { code: code.into(), message: message.into() })
        };
        assert!(refusal("CLUSTERDOWN", "The cluster is down"));
        assert!(refusal("LOADING", "Redis is loading the dataset in memory"));
        assert!(refusal("NOPERM", "User x has no permissions to run the 'hlen' command"));
        assert!(!refusal("CLUSTERDOWN", "Hash slot not served"));
        assert!(!refusal("TRYAGAIN", "Multiple keys request during rehashing of slot"));
    }

    #[test]
    fn databases_with_keys_are_listed() {
        let info = "# Keyspace\r\ndb0:keys=2,expires=0,avg_ttl=0\r\ndb12:keys=1,expires=1,avg_ttl=9\r\nrubbish\r\n";
        assert_eq!(databases(info), [0, 12]);
        assert!(databases("# Keyspace\r\n").is_empty());
    }
}
