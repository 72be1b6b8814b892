//! Counts of the connections that listen for a lock's release. Each represents at least one waiter.
//!
//! Counting costs the server about a third of a microsecond per name, and shows waiters of any client without watching
//! its traffic. Fair locks with a queue are left out, since it shows more. Up to a thousand locks with waiters are counted
//! every second, the others in turn, at least once a minute.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use redisson::{Kind, LockName};
use service_kit::redis::{CallError, Link};
use tokio::time::Instant;

use super::connection::{RETRY_AFTER, pause_until, wait_until_up};
use super::read::integer;
use super::scope::Scope;
use super::shards::{Shards, channel};
use super::slot_share::SlotShare;
use super::status::SourceStatus;
use crate::clock::Time;
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{LockView, Observation, ScopeId, Snapshot, SubscriberCount, Walk};
use crate::sources::view::SourceState;

/// The interval of the rounds.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of names in one command.
const NAMES: usize = 500;
/// The minimum number of names in one round, if there are as many. Further locks follow in the next rounds.
const ROUND: usize = 2_000;
/// The number of rounds in which all locks are counted.
const ROUNDS: usize = 60;

/// The counter of one server. Channels have no databases, so a name in several of them is counted once.
#[derive(Debug)]
pub struct Subscribers {
    pub scopes: Vec<Scope>,
    pub link: Link,
    pub model: ModelHandle,
    pub hub: Arc<Hub>,
    /// The sharded channels to which dashboards are subscribed.
    pub shards: Shards,
    /// The server's share of the deployment's locks.
    pub(super) share: SlotShare,
    pub status: Arc<SourceStatus>,
}

struct Requested {
    scope: ScopeId,
    name: LockName,
    channel: Vec<u8>,
    was_awaited: bool,
}

impl Subscribers {
    /// Runs until the connection is given up.
    pub async fn run(self) {
        let mut walk = Walk::default();
        loop {
            let Some(server) = wait_until_up(&self.link, &self.status).await else { return };
            let requested = self.next(&mut walk);
            match self.count(requested, server.has_shards()).await {
                Ok(()) => {
                    self.status.set(SourceState::On, "");
                    self.status.succeeded();
                }
                Err(CallError::Refused(refused)) if !refused.is_transient() => {
                    self.status.set(SourceState::Denied, refused.to_string());
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                Err(error) => self.status.set(SourceState::Down, error.to_string()),
            }
            pause_until(&self.link, &self.status, Instant::now() + INTERVAL).await;
        }
    }

    /// Returns the locks of this round.
    fn next(&self, walk: &mut Walk) -> Vec<Requested> {
        round(&self.hub.snapshot(), walk, |lock| {
            let scope = self.scopes.iter().find(|scope| scope.has(lock))?;
            (may_have_listeners(lock) && self.share.has(&lock.id.name)).then(|| Requested {
                scope: scope.id,
                name: lock.id.name.clone(),
                channel: channel(lock),
                was_awaited: lock.waiting > 0,
            })
        })
    }

    async fn count(&self, requested: Vec<Requested>, shards: bool) -> Result<(), CallError> {
        for requested in requested.chunks(NAMES) {
            let plain = self.count_channels("NUMSUB", requested).await?;
            let sharded = match shards {
                true => self.count_channels("SHARDNUMSUB", requested).await?,
                false => HashMap::new(),
            };
            let mut of_scope: HashMap<ScopeId, Vec<(LockName, SubscriberCount)>> = HashMap::new();
            for requested in requested {
                let of = |counts: &HashMap<Vec<u8>, u64>| {
                    counts.get(&requested.channel).copied().unwrap_or(0)
                };
                let dashboards = self.shards.dashboards(&requested.channel);
                let count = SubscriberCount {
                    plain: of(&plain),
                    sharded: of(&sharded).saturating_sub(dashboards),
                };
                if count.sum() > 0 || requested.was_awaited {
                    of_scope
                        .entry(requested.scope)
                        .or_default()
                        .push((requested.name.clone(), count));
                }
            }
            for (scope, counts) in of_scope {
                let seen = Observation::Subscribers { counts, at: Time::now() };
                self.model.observe(scope, seen).await;
            }
        }
        Ok(())
    }

    async fn count_channels(
        &self,
        verb: &str,
        requested: &[Requested],
    ) -> Result<HashMap<Vec<u8>, u64>, CallError> {
        let mut command = cmd("PUBSUB");
        command.arg(verb);
        for one in requested {
            command.arg(&one.channel);
        }
        let Value::Array(reply) = self.link.call(command).await? else { return Ok(HashMap::new()) };
        let mut counts = HashMap::new();
        for pair in reply.chunks_exact(2) {
            if let (Value::BulkString(channel), Some(count)) = (&pair[0], integer(&pair[1])) {
                counts.insert(channel.clone(), count);
            }
        }
        Ok(counts)
    }
}

/// Returns whether the listeners of a lock are counted.
fn may_have_listeners(lock: &LockView) -> bool {
    // A listener proves that a hash is a lock, so hashes that only look like one are counted too. A lock that has had a
    // queue counts as fair, and may be used as a plain one by now.
    (lock.kind != Kind::Fair || !lock.queued) && (lock.is_held() || lock.waiting > 0)
}

/// Returns what is requested in one round: locks with waiters in each round, the others in turn. `request` returns `None`
/// for the locks of other servers.
fn round<T>(
    snapshot: &Snapshot,
    walk: &mut Walk,
    request: impl Fn(&Arc<LockView>) -> Option<T>,
) -> Vec<T> {
    let most = ROUND.max(snapshot.len() / ROUNDS);
    let awaited = snapshot.notable().filter(|lock| lock.waiting > 0);
    let mut awaited = awaited.filter_map(&request);
    let mut all: Vec<T> = awaited.by_ref().take(most / 2).collect();
    // If there are too many locks with waiters for one round, they take turns like the others.
    let skips_awaited = awaited.next().is_none();
    for part in snapshot.visit(walk, snapshot.len()) {
        let others = part.iter().filter(|lock| lock.waiting == 0 || !skips_awaited);
        all.extend(others.filter_map(&request));
        if all.len() >= most {
            break;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::query::fixtures::{lock, published};

    #[test]
    fn the_listeners_of_a_fair_lock_are_counted_unless_it_has_a_queue() {
        let fair = |queued| LockView { kind: Kind::Fair, queued, ..lock("a") };
        assert!(may_have_listeners(&fair(false)), "it may be used as a plain lock by now");
        assert!(!may_have_listeners(&fair(true)), "its queue shows more");
        assert!(may_have_listeners(&lock("a")));
    }

    #[test]
    fn each_lock_has_its_turn_however_many_have_waiters() {
        let awaited = (0..1_500).map(|n| LockView { waiting: 1, ..lock(&format!("awaited:{n}")) });
        let others = (0..500).map(|n| lock(&format!("other:{n}")));
        let snapshot = published(awaited.chain(others)).snapshot;
        let (mut walk, mut counted) = (Walk::default(), HashSet::new());
        for _ in 0..4 {
            let ids = round(&snapshot, &mut walk, |lock| Some(lock.id.clone()));
            assert!(ids.len() < 2 * ROUND, "{}", ids.len());
            counted.extend(ids);
        }
        assert_eq!(counted.len(), 2_000);
    }
}
