//! The poll: reads of known locks at the model's request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use redisson::Moment;
use service_kit::redis::{CallError, Link, LinkState, LinkStatus, Redirect, Role};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::read::{
    AskingLink, Findings, Found, ReadError, ServerFacts, Unpaced, clock_micros, read, text,
};
use super::scope::Scope;
use super::slot_share::SlotShare;
use super::status::SourceStatus;
use crate::clock::SteadyMillis;
use crate::model::actor::ModelHandle;
use crate::model::types::{Observation, ReadRequest, Source};
use crate::sources::view::SourceState;

/// Locks in one part of a batch; all parts are in flight at the same time.
const PART: usize = 32;
/// The time without reads after which the server is pinged.
const QUIET: Duration = Duration::from_secs(2);
/// The interval at which the server's clock is read. It can be set, and drifts.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);

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
        self.report_link(&mut state, &mut up).await;
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
                    self.report_link(&mut state, &mut up).await;
                    clock.reset_immediately();
                }
                _ = clock.tick(), if up.is_some() => {
                    self.read_clock().await;
                    self.read_databases().await;
                }
                batch = self.batches.recv() => {
                    let Some(batch) = batch else { return };
                    self.read(batch).await;
                    quiet.reset();
                }
                _ = quiet.tick(), if up.is_some() => {
                    // Without locks to read, this reply is the only sign of success.
                    if self.link.call(cmd("PING")).await.is_ok() {
                        self.status.succeeded();
                    }
                }
            }
        }
    }

    /// Reports a new or lost connection to the model.
    async fn report_link(&self, state: &mut watch::Receiver<LinkState>, up: &mut Option<u64>) {
        let LinkState { generation, status } = state.borrow_and_update().clone();
        match status {
            LinkStatus::Up(info) => {
                if up.is_some_and(|before| before != generation) {
                    self.model.observe(self.scope.id, Observation::ServerDown).await;
                }
                *up = Some(generation);
                let at = Moment::from_micros(info.connected_at_micros);
                let run_id = info.run_id.clone();
                let cluster = info.cluster;
                if let Some(address) = &info.address {
                    let at = Observation::ServerAddress {
                        address: address.to_string(),
                        replica: info.role == Some(Role::Replica),
                    };
                    self.model.observe(self.scope.id, at).await;
                }
                self.facts.forget_denials();
                let observation =
                    Observation::ServerUp { at, steady: SteadyMillis::now(), run_id, cluster };
                self.model.observe(self.scope.id, observation).await;
                self.status.set(SourceState::On, "");
                self.status.succeeded();
            }
            LinkStatus::Down { reason, .. } => {
                *up = None;
                self.model.observe(self.scope.id, Observation::ServerDown).await;
                self.status.set(SourceState::Down, reason);
                self.share.suspect();
            }
        }
    }

    /// Reads the server's clock, by which the deadlines in queues of fair locks are judged. If the account may not read it, the
    /// dashboard's clock is used.
    async fn read_clock(&self) {
        let before = SteadyMillis::now().0;
        let Ok(reply) = self.link.call(cmd("TIME")).await else { return };
        let Some(theirs) = clock_micros(&reply).map(|micros| micros / 1_000) else { return };
        // The reply was made about halfway between.
        let ours = before.midpoint(SteadyMillis::now().0);
        let ahead_ms = i64::try_from(i128::from(theirs) - i128::from(ours)).unwrap_or(0);
        self.facts.set_ahead(ahead_ms);
        self.model.observe(self.scope.id, Observation::Clock { ahead_ms }).await;
    }

    /// Reads which databases have keys. A release message may be about a lock in any of them.
    async fn read_databases(&self) {
        let mut info = cmd("INFO");
        info.arg("keyspace");
        let Ok(reply) = self.link.call(info).await else { return };
        let with_keys = databases(&text(&reply));
        self.model.observe(self.scope.id, Observation::Databases(with_keys)).await;
    }

    async fn read(&self, batch: Vec<ReadRequest>) {
        let parts = batch.chunks(PART).map(|part| self.read_part(part.to_vec()));
        futures_util::future::join_all(parts).await;
    }

    async fn read_part(&self, part: Vec<ReadRequest>) {
        match read(&mut Unpaced(&self.link, &self.facts), part).await {
            Ok(Findings { found, redirected }) => {
                self.send(found).await;
                self.follow(redirected).await;
                match self.facts.companions_denied() {
                    Some(why) => self.status.set(
                        SourceState::On,
                        format!("queues, tokens and markers of readers are not read: {why}"),
                    ),
                    None if [SourceState::Denied, SourceState::Down]
                        .contains(&self.status.state()) =>
                    {
                        self.status.set(SourceState::On, "");
                    }
                    None => {}
                }
                self.status.succeeded();
                if self.facts.take_redirected() {
                    self.share.suspect();
                }
            }
            // The connection's state reports its loss. Nothing waits here, so that this happens at once.
            Err(ReadError::Call(CallError::Unsent { .. } | CallError::Lost { .. })) => {}
            // It is loading its data, or its cluster is down for the moment.
            Err(ReadError::Call(CallError::Refused(error))) if error.is_transient() => {
                self.status.set(SourceState::Down, error.to_string());
                self.share.suspect();
            }
            Err(error) => self.status.set(SourceState::Denied, error.to_string()),
        }
    }

    /// Reads keys on the nodes to which the server has redirected while their slots are moving. Keys of a node that cannot be
    /// reached keep their last state.
    async fn follow(&self, redirected: Vec<(ReadRequest, Redirect)>) {
        let mut by_node: HashMap<(String, u16), (Redirect, Vec<ReadRequest>)> = HashMap::new();
        // Slots that have moved for good are discovered by asking the nodes.
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
        for Found { name, stamp, reading } in found {
            let source = Source::Poll;
            let read = Observation::Read { name, stamp, source, reading };
            self.model.observe(self.scope.id, read).await;
        }
    }
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
    fn databases_with_keys_are_listed() {
        let info = "# Keyspace\r\ndb0:keys=2,expires=0,avg_ttl=0\r\ndb12:keys=1,expires=1,avg_ttl=9\r\nrubbish\r\n";
        assert_eq!(databases(info), [0, 12]);
        assert!(databases("# Keyspace\r\n").is_empty());
    }
}
