//! The resolver of masters that sentinels report.
//!
//! It subscribes to one sentinel, so that a failover is noticed at once. It believes only answers to its queries: an
//! answer is the state of the moment, while a missed message leaves no trace.

mod listener;
mod view;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use self::listener::Listener;
use self::view::{View, choose};
use super::resolver::{ResolverOptions, spawn};
use crate::redis::deployment::SentinelTarget;
use crate::redis::endpoint::{Destination, Endpoint, Rules};
use crate::redis::error::ConnectError;
use crate::redis::handshake::{self, Handshake};
use crate::redis::target::Target;
use crate::redis::wire::Wire;
use crate::shutdown::Shutdown;

/// The interval between queries, each to the next sentinel, while the subscription is active: its sentinel may be cut
/// off from the others.
const CALM: Duration = Duration::from_secs(5);
/// The interval without a subscription, or while no sentinel answers.
const HURRY: Duration = Duration::from_secs(1);
/// The minimum time between two queries, however often connections break.
const LEAST: Duration = Duration::from_millis(200);
/// The time in which the other sentinels may contradict the first answer.
const GRACE: Duration = Duration::from_millis(100);

const RULES: Rules = Rules {
    first_result: Duration::from_secs(1),
    moved: "the sentinels report another master",
    master_only: true,
};

/// Reasons for a query before the interval is over.
#[derive(Debug, Default)]
struct Signs {
    /// A sentinel has announced another master.
    switched: Notify,
    /// A connection has seen a sign that its server was replaced.
    suspect: Arc<Notify>,
    /// Set while the subscription to a sentinel is active.
    subscribed: AtomicBool,
}

/// Starts to follow the master. The tasks end with the last clone of the endpoint, or with their stage of shutdown.
pub(super) fn start(
    target: SentinelTarget,
    options: ResolverOptions,
    shutdown: &Shutdown,
) -> Endpoint {
    let target = Arc::new(target);
    let signs = Arc::new(Signs::default());
    let suspect = Arc::clone(&signs.suspect);
    let (sender, current) = watch::channel(Destination::Unknown);
    let handshake = options.handshake();
    let listener = Listener {
        target: Arc::clone(&target),
        handshake: handshake.clone(),
        signs: Arc::clone(&signs),
    };
    let resolver = Resolver {
        target: Arc::clone(&target),
        handshake,
        turn: 0,
        best: None,
        failure: None,
        current: sender,
        signs,
    };
    let name = format!("sentinels of {}", target.name());
    let task = async move {
        tokio::select! {
            never = resolver.run() => match never {},
            never = listener.run() => match never {},
        }
    };
    let stop = spawn(name, task, shutdown);
    let login = target.master.clone();
    Endpoint::resolved(login, Some(target), current, suspect, RULES, stop)
}

struct Resolver {
    target: Arc<SentinelTarget>,
    handshake: Handshake,
    /// The sentinel queried last.
    turn: usize,
    /// The latest view that was believed.
    best: Option<View>,
    /// The reason why the latest query brought no view.
    failure: Option<String>,
    current: watch::Sender<Destination>,
    signs: Arc<Signs>,
}

impl Resolver {
    async fn run(mut self) -> Infallible {
        let mut all = true;
        loop {
            let result = if all { self.query_all(None).await } else { self.query_next().await };
            let answered = result.is_ok();
            self.publish(result);
            let calm = answered && self.signs.subscribed.load(Ordering::Relaxed);
            let pause = if calm { CALM } else { HURRY };
            let queried = Instant::now();
            let suspected = async {
                self.signs.suspect.notified().await;
                sleep_until(queried + LEAST).await;
            };
            all = tokio::select! {
                () = sleep(pause) => !answered,
                () = suspected => true,
                () = self.signs.switched.notified() => true,
            };
        }
    }

    /// Makes a result the endpoint's destination. After a failure the last master stays.
    fn publish(&mut self, result: Result<View, String>) {
        match result {
            Ok(view) => {
                let address = &view.master;
                if self.best.as_ref().is_none_or(|best| best.master != *address) {
                    tracing::info!(redis.sentinels = %self.target, master = %address, "sentinels report the master");
                    self.current.send_replace(Destination::Address(address.clone()));
                }
                self.best = Some(view);
                self.failure = None;
            }
            Err(reason) => {
                if self.failure.as_ref() != Some(&reason) {
                    tracing::warn!(redis.sentinels = %self.target, reason, "no sentinel reports the master");
                }
                if self.best.is_none() {
                    self.current.send_replace(Destination::Unavailable(reason.clone()));
                }
                self.failure = Some(reason);
            }
        }
    }

    /// Queries the next sentinel, and all of them if it reports anything new or nothing.
    async fn query_next(&mut self) -> Result<View, String> {
        let sentinels = &self.target.sentinels;
        self.turn = (self.turn + 1) % sentinels.len().max(1);
        let known = self.best.clone();
        let answer = match sentinels.get(self.turn) {
            Some(sentinel) => self.query(sentinel).await.ok(),
            None => None,
        };
        match answer {
            Some(view) if Some(&view) == known.as_ref() => Ok(view),
            answer => self.query_all(answer.map(|view| (self.turn, view))).await,
        }
    }

    /// Queries all sentinels in parallel, so that a dead one causes no delay. The one with the latest failover is right.
    /// `answered` is the sentinel that has answered already, with its view.
    async fn query_all(&self, answered: Option<(usize, View)>) -> Result<View, String> {
        let known = self.best.clone();
        let sentinels = &self.target.sentinels;
        let mut asked: FuturesUnordered<_> = sentinels
            .iter()
            .enumerate()
            .filter(|(place, _)| answered.as_ref().is_none_or(|(answered, _)| place != answered))
            .map(|(place, sentinel)| async move { (place, self.query(sentinel).await) })
            .collect();
        let mut until = answered.as_ref().map(|_| Instant::now() + GRACE);
        let mut views: Vec<View> = answered.iter().map(|(_, view)| view.clone()).collect();
        let mut reasons = Vec::new();
        loop {
            let next = match until {
                Some(until) => timeout_at(until, asked.next()).await.unwrap_or(None),
                None => asked.next().await,
            };
            match next {
                Some((_, Ok(view))) => {
                    views.push(view);
                    until.get_or_insert_with(|| Instant::now() + GRACE);
                }
                Some((place, Err(reason))) => reasons.push((place, reason)),
                None => break,
            }
        }
        if views.is_empty() {
            reasons.sort();
            let reasons: Vec<String> = reasons.into_iter().map(|(_, reason)| reason).collect();
            return Err(reasons.join("; "));
        }
        // `choose` returns `None` when the views are older than the known one.
        let chosen = choose(&views, sentinels.len(), known.as_ref());
        chosen.or(known).ok_or_else(|| "the URL lists no sentinel".to_owned())
    }

    async fn query(&self, sentinel: &Target) -> Result<View, String> {
        let mut wire = connect(sentinel, &self.handshake).await?;
        let limit = self.handshake.response_timeout;
        let answer = view::query(&mut wire, self.target.name(), sentinel.uses_tls());
        timeout(limit, answer)
            .await
            .unwrap_or_else(|_| Err(format!("no reply within {limit:?}")))
            .map_err(|reason| format!("sentinel {}: {reason}", sentinel.address()))
    }
}

async fn connect(sentinel: &Target, handshake: &Handshake) -> Result<Wire, String> {
    match handshake::connect(sentinel, handshake).await {
        Ok((wire, _)) => Ok(wire),
        // The error names the address itself.
        Err(error @ ConnectError::Unreachable { .. }) => Err(format!("sentinel: {error}")),
        Err(error) => Err(format!("sentinel {}: {error}", sentinel.address())),
    }
}
