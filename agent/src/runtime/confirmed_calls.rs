//! Scripts that replicas must confirm: they are sent to the server in batches, each followed by one WAIT.
//!
//! WAIT counts the replicas that have the writes of its own connection, and blocks that connection until it ends. So
//! grants and renewals use separate connections, and scripts that arrive during one WAIT share the next one: a thousand
//! workers wait for at most two of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, Pipeline, Value as RedisValue, cmd};
use redisson::millis;
use redisson::script::Call;
use service_kit::redis::{CallError, Endpoint, Link, LinkOptions, LinkState, ServerError, eval};
use service_kit::shutdown::Shutdown;
use tokio::sync::{mpsc, oneshot, watch};

use crate::core::Confirmed;
use crate::metrics::Metrics;

/// The maximum number of scripts sent together, so that other clients of the server are served in between.
const TOGETHER: usize = 256;
/// The maximum number of scripts that wait for their turn. Any beyond that are retried a little later.
const MOST: usize = 4096;

/// The time after which a renewal that waits for replicas is also sent without waiting.
const PATIENCE: Duration = Duration::from_millis(20);

/// The answer of a server to a script.
#[derive(Debug)]
pub(super) enum Answer {
    /// The reply, if no replicas are required.
    Plain(RedisValue),
    /// The reply, and the number of replicas that have its writes.
    Confirmed(RedisValue, Confirmed),
    /// The script was not sent, because too few replicas are connected.
    TooFewReplicas(String),
}

type Outcome = Result<Answer, CallError>;

/// The number of replicas that must confirm a script, and the time to wait for them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replicas {
    pub(super) wanted: u32,
    pub(super) timeout: Duration,
}

/// The connections for scripts that replicas must confirm.
pub(super) struct Replicated {
    pub(super) grants: ConfirmedCalls,
    pub(super) renewals: ConfirmedCalls,
}

impl Replicated {
    /// Starts connecting. `options` returns the settings of a connection for commands, by its name.
    pub(super) fn start(
        replicas: Replicas,
        endpoint: &Endpoint,
        options: impl Fn(&str) -> LinkOptions,
        metrics: &Arc<Metrics>,
        shutdown: &Shutdown,
    ) -> Self {
        let start = |batch, name| {
            ConfirmedCalls::start(batch, replicas, endpoint, options(name), metrics, shutdown)
        };
        Self {
            grants: start(Batch::Grants, "lockscope-agent-grants"),
            renewals: start(Batch::Renewals, "lockscope-agent-replicated"),
        }
    }

    /// Returns the states of both connections, and their changes.
    pub(super) fn states(&self) -> [watch::Receiver<LinkState>; 2] {
        [self.grants.state.clone(), self.renewals.state.clone()]
    }
}

/// The scripts that share a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Batch {
    /// They are not sent while too few replicas are connected.
    Grants,
    /// They are sent in any case, since Redis must keep the locks.
    Renewals,
}

impl Batch {
    /// Returns its label in metrics.
    fn label(self) -> &'static str {
        match self {
            Self::Grants => "grants",
            Self::Renewals => "renewals",
        }
    }
}

/// The sending end of a connection for scripts that replicas must confirm.
pub(super) struct ConfirmedCalls {
    scripts: mpsc::Sender<Script>,
    state: watch::Receiver<LinkState>,
}

/// A script to be sent.
struct Script {
    call: Arc<Call>,
    /// It follows an ASKING.
    asking: bool,
    answer: oneshot::Sender<Outcome>,
}

impl ConfirmedCalls {
    /// Starts connecting. `options` are those of the connection for commands.
    fn start(
        batch: Batch,
        replicas: Replicas,
        endpoint: &Endpoint,
        options: LinkOptions,
        metrics: &Arc<Metrics>,
        shutdown: &Shutdown,
    ) -> Self {
        // A reply waits for the replicas, too.
        let timeout = options.response_timeout + replicas.timeout;
        let options = LinkOptions { response_timeout: timeout, heartbeat: timeout, ..options };
        let link = Link::start(endpoint.clone(), options, shutdown);
        let state = link.state();
        let (scripts, wanted) = mpsc::channel(MOST);
        let (node, metrics) = (endpoint.to_string(), Arc::clone(metrics));
        let sender = Sender { batch, replicas, link, unsure: true, node, metrics };
        let stopped = shutdown.child_token();
        shutdown.spawn(format!("{} {endpoint}", batch.label()), async move {
            stopped.run_until_cancelled(sender.run(wanted)).await;
        });
        Self { scripts, state }
    }

    /// Sends a script with the next WAIT; scripts are served in the order of these calls.
    pub(super) fn send(
        &self,
        call: Arc<Call>,
        asking: bool,
    ) -> impl Future<Output = Outcome> + use<> {
        let (answer, answered) = oneshot::channel();
        let sent = self.scripts.try_send(Script { call, asking, answer }).is_ok();
        async move {
            match answered.await {
                Ok(outcome) => outcome,
                Err(_) if sent => Err(CallError::Lost { reason: "the agent is ending".to_owned() }),
                Err(_) => Err(CallError::Unsent {
                    reason: format!("{MOST} scripts wait for replicas already"),
                }),
            }
        }
    }
}

/// Returns the confirmed outcome of a renewal. If that takes long or fails, `plain` renews the lock in Redis, so that
/// slow replicas delay no renewal.
pub(super) async fn renewed(
    confirmed: impl Future<Output = Result<Answer, CallError>>,
    plain: impl Future<Output = Result<Answer, CallError>>,
) -> Result<Answer, CallError> {
    let mut confirmed = std::pin::pin!(confirmed);
    let first = tokio::time::timeout(PATIENCE, &mut confirmed).await;
    match first {
        Ok(Err(CallError::Lost { .. } | CallError::Unsent { .. })) => plain.await,
        // A redirect or refusal is for the caller.
        Ok(known) => known,
        Err(_) => match futures_util::future::join(confirmed, plain).await {
            (Err(CallError::Lost { .. } | CallError::Unsent { .. }), plain) => plain,
            (known, _) => known,
        },
    }
}

struct Sender {
    batch: Batch,
    replicas: Replicas,
    link: Link,
    /// The latest WAIT fell short, or there was none yet: the number of connected replicas is checked first.
    unsure: bool,
    /// The label of the server in metrics.
    node: String,
    metrics: Arc<Metrics>,
}

impl Sender {
    async fn run(mut self, mut wanted: mpsc::Receiver<Script>) {
        let mut scripts = Vec::with_capacity(TOGETHER);
        while wanted.recv_many(&mut scripts, TOGETHER).await > 0 {
            // The receiver of an answer may have been dropped.
            match self.lacking().await {
                Some(why) => scripts.drain(..).for_each(|script| {
                    script.answer.send(Ok(Answer::TooFewReplicas(why.clone()))).ok();
                }),
                None => self.serve(std::mem::take(&mut scripts)).await,
            }
        }
    }

    /// Returns the reason not to send scripts: replicas that are not connected will not confirm in time.
    async fn lacking(&self) -> Option<String> {
        if !self.unsure || self.batch == Batch::Renewals {
            return None;
        }
        // If the server does not answer this query, the scripts are sent and the replicas awaited.
        let connected = connected(&self.link.call(cmd("ROLE")).await.ok()?)?;
        let wanted = self.replicas.wanted;
        (connected < wanted).then(|| {
            format!(
                "{connected} of the {wanted} replicas that must have it (--min-replicas) are connected"
            )
        })
    }

    /// Sends scripts and one WAIT, and passes the outcomes on. Scripts that the server does not know are sent again in
    /// full.
    async fn serve(&mut self, mut scripts: Vec<Script>) {
        let mut verb: fn(&Call) -> Cmd = by_digest;
        while !scripts.is_empty() {
            let mut pipeline = Pipeline::new();
            for Script { call, asking, .. } in &scripts {
                if *asking {
                    // Valid for the very next command only.
                    pipeline.cmd("ASKING");
                }
                pipeline.add_command(verb(call));
            }
            let millis = millis(self.replicas.timeout).max(1);
            pipeline.cmd("WAIT").arg(self.replicas.wanted).arg(millis);
            let mut replies = match self.link.pipeline(pipeline).await {
                Ok(replies) => replies.into_iter(),
                Err(error) => {
                    for script in scripts {
                        script.answer.send(Err(error.clone())).ok();
                    }
                    return;
                }
            };
            let confirmed = parse_wait(replies.next_back());
            self.unsure = confirmed.replicas < self.replicas.wanted;
            let outcome = if self.unsure { "unconfirmed" } else { "confirmed" };
            let batch = self.batch.label();
            self.metrics.servers.on_replica_batch(&self.node, batch, outcome, confirmed.replicas);
            let mut unknown = Vec::new();
            for script in scripts {
                if script.asking {
                    replies.next();
                }
                let outcome = match replies.next() {
                    Some(Ok(value)) => Ok(Answer::Confirmed(value, confirmed.clone())),
                    Some(Err(error)) if error.is_noscript() => {
                        unknown.push(script);
                        continue;
                    }
                    Some(Err(error)) => Err(CallError::Refused(error)),
                    None => Err(CallError::Lost { reason: "too few replies".to_owned() }),
                };
                script.answer.send(outcome).ok();
            }
            (scripts, verb) = (unknown, in_full);
        }
    }
}

fn by_digest(call: &Call) -> Cmd {
    eval("EVALSHA", call.script.sha(), call.keys.iter(), call.args.iter())
}

fn in_full(call: &Call) -> Cmd {
    eval("EVAL", call.script.source, call.keys.iter(), call.args.iter())
}

/// Waits for a change of any of these connections; never returns if there are none, or none that can still change.
pub(super) async fn changed(states: &mut [watch::Receiver<LinkState>]) {
    let mut changes: FuturesUnordered<_> = states.iter_mut().map(|state| state.changed()).collect();
    while let Some(change) = changes.next().await {
        if change.is_ok() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Parses the answer to WAIT.
fn parse_wait(answer: Option<Result<RedisValue, ServerError>>) -> Confirmed {
    match answer {
        Some(Ok(RedisValue::Int(replicas))) => {
            Confirmed { replicas: u32::try_from(replicas).unwrap_or(0), refusal: None }
        }
        Some(Err(error)) => {
            Confirmed { replicas: 0, refusal: Some(format!("WAIT is refused: {error}")) }
        }
        _ => {
            Confirmed { replicas: 0, refusal: Some("the reply to WAIT is not a number".to_owned()) }
        }
    }
}

/// Returns the number of replicas in a master's answer to ROLE; `None` for any other answer.
fn connected(role: &RedisValue) -> Option<u32> {
    let RedisValue::Array(parts) = role else { return None };
    match parts.as_slice() {
        [RedisValue::BulkString(role), _, RedisValue::Array(replicas)] if role == b"master" => {
            u32::try_from(replicas.len()).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn text(text: &str) -> RedisValue {
        RedisValue::BulkString(text.into())
    }

    #[test]
    fn only_a_master_reports_replicas() {
        let replica = RedisValue::Array(vec![text("127.0.0.1"), text("6380"), text("42")]);
        let master = |replicas: Vec<RedisValue>| {
            RedisValue::Array(vec![
                text("master"),
                RedisValue::Int(42),
                RedisValue::Array(replicas),
            ])
        };
        assert_eq!(connected(&master(vec![])), Some(0));
        assert_eq!(connected(&master(vec![replica.clone(), replica])), Some(2));
        let replica = [text("slave"), text("host"), RedisValue::Int(6379), text("connected")];
        assert_eq!(connected(&RedisValue::Array(replica.into())), None);
        assert_eq!(connected(&RedisValue::Nil), None);
    }

    /// Returns the outcome of a renewal, and the number of times that it was sent without waiting for replicas.
    async fn outcome(
        confirmed: impl Future<Output = Result<Answer, CallError>>,
    ) -> (Result<Answer, CallError>, usize) {
        let copies = Cell::new(0);
        let plain = async {
            copies.set(copies.get() + 1);
            Ok(Answer::Plain(RedisValue::Int(1)))
        };
        (renewed(confirmed, plain).await, copies.get())
    }

    fn confirmed() -> Answer {
        Answer::Confirmed(RedisValue::Int(1), Confirmed { replicas: 1, refusal: None })
    }

    #[tokio::test]
    async fn slow_replicas_delay_no_renewal() {
        assert!(matches!(outcome(async { Ok(confirmed()) }).await, (Ok(Answer::Confirmed(..)), 0)));
        let (sent, copy) = oneshot::channel();
        // The replicas do not answer before the copy is sent.
        let slow = async {
            copy.await.expect("the copy is sent first");
            Ok(confirmed())
        };
        let plain = async {
            sent.send(()).expect("the replicas are awaited");
            Ok(Answer::Plain(RedisValue::Int(1)))
        };
        assert!(matches!(renewed(slow, plain).await, Ok(Answer::Confirmed(..))));
    }

    #[tokio::test]
    async fn a_renewal_whose_confirmation_is_lost_is_sent_without_it() {
        let lost = async { Err(CallError::Unsent { reason: "no connection".to_owned() }) };
        assert!(matches!(outcome(lost).await, (Ok(Answer::Plain(_)), 1)));
        let moved =
            ServerError { code: "MOVED".to_owned(), message: "1 127.0.0.1:7001".to_owned() };
        let refused = async { Err(CallError::Refused(moved)) };
        assert!(matches!(outcome(refused).await, (Err(CallError::Refused(_)), 0)));
    }

    #[test]
    fn the_reply_to_wait_is_a_number_of_replicas_or_a_refusal() {
        let replicas = |replicas| Confirmed { replicas, refusal: None };
        assert_eq!(parse_wait(Some(Ok(RedisValue::Int(2)))), replicas(2));
        assert_eq!(parse_wait(Some(Ok(RedisValue::Int(-1)))), replicas(0));
        let denied = ServerError { code: "NOPERM".to_owned(), message: "no wait".to_owned() };
        let refusal = parse_wait(Some(Err(denied))).refusal.unwrap();
        assert!(refusal.contains("NOPERM no wait"), "{refusal}");
        assert!(parse_wait(None).refusal.is_some());
    }
}
