//! Forced releases. An operator sees a lock's current state and states a reason, and one script compares that state and
//! ends it. A new holder is never affected. Every attempt appears in the log, in the history and in a metric.

pub mod batch;
mod offer;
mod route;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, Registry};
use redis::Value;
use redisson::name::is_invisible;
use redisson::script::{self, ForceReleaseOutcome, parse_force_release, unannounced};
use redisson::{HolderId, Moment};
use service_kit::redis::{CallError, Link, resolve};
use service_kit::shutdown::Shutdown;
use tokio::time::Instant;

use crate::archive::ArchiveSender;
use crate::clock::{SteadyMillis, now};
use crate::config::Config;
use crate::metrics::registrar;
use crate::model::actor::{Hub, ModelHandle};
use crate::model::types::{ArchiveEntry, LockId, Observation, OperatorAction, ScopeId};
use crate::redis::{TIMEOUT, resolver_options};
use crate::text::visible;

use batch::Batch;
use offer::{Offers, StartOutcome};
use route::{Nodes, Route};

pub use offer::{Choice, Offer, Running, Target};

/// The validity of an offer.
pub const VALID: Duration = Duration::from_secs(60);
/// The maximum number of offers, and of batches, that are stored at once.
const MAX_OFFERS: usize = 256;
const MAX_BATCHES: usize = 16;
/// The maximum number of releases within a minute.
pub const MAX_PER_MINUTE: usize = 10;
/// The maximum number of rejected requests that are recorded individually within a minute.
const MAX_REJECTIONS_PER_MINUTE: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);
/// The word for a rejected request in the history and the metric.
const REJECTED: &str = "rejected";
/// The longest wait for a reply of Redis, which is doubled if Redis does not have the script yet.
const REPLY_TIMEOUT: Duration = Duration::from_millis(1_500);
/// The longest wait for a reading right before a release. With the wait for the reply, it is shorter than a request's
/// wait for the outcome.
const READING_TIMEOUT: Duration = Duration::from_millis(900);
/// The longest reason, in characters.
pub const MAX_REASON: usize = 500;

/// The outcome of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The offered state was ended.
    Released,
    /// The offered queue entry was removed, and no hold was ended.
    Removed,
    /// The offered state had already ended.
    Free,
    /// The offered queue entry had already left the queue.
    NotQueued,
    /// The state had changed, or its problem was over, so nothing was done.
    Changed,
    /// The key is not a lock, so nothing was done.
    NoLock,
    /// Redis refused the script, so nothing was done.
    Refused(String),
    /// Redis could not be reached, so nothing was done.
    Unsent(String),
    /// The lock could not be read again, so its problem may be over, and nothing was done.
    Unread,
    /// The reply was lost. The script may have run, or may still run.
    Unknown(String),
    /// There were too many releases within the last minute, so nothing was done.
    Limited,
}

impl Outcome {
    /// The words of successful and of failed releases.
    pub const SUCCEEDED: [&'static str; 2] = ["released", "free"];
    pub const FAILED: [&'static str; 6] =
        ["changed", "no_lock", "refused", "unsent", "unknown", "limited"];

    /// Returns the word for the outcome in the API, the history and the metric.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Released | Self::Removed => "released",
            Self::Free | Self::NotQueued => "free",
            Self::Changed => "changed",
            Self::NoLock => "no_lock",
            Self::Refused(_) => "refused",
            Self::Unsent(_) | Self::Unread => "unsent",
            Self::Unknown(_) => "unknown",
            Self::Limited => "limited",
        }
    }

    /// Returns whether the release ended what it was meant to end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Released | Self::Removed)
    }

    /// Explains the outcome in sentences.
    #[must_use]
    pub fn explained(&self) -> String {
        match self {
            Self::Released => "Released. Waiters and the agent of the holder, if any, were notified; the holder’s \
                process was not stopped."
                .to_owned(),
            Self::Removed => "Removed from the queue. If the lock is free, the next living waiter was notified."
                .to_owned(),
            Self::Free => "The lock was already free: no hold was ended.".to_owned(),
            Self::NotQueued => "This entry is no longer in the queue. Nothing was done.".to_owned(),
            Self::Changed => "The lock has changed since it was shown: holder, count, mode, TTL or \
                deadline differ, or its problem is over. Nothing was done. Look at the lock as it is now, then decide again."
                .to_owned(),
            Self::NoLock => "The key is no longer a lock. Nothing was done.".to_owned(),
            Self::Refused(why) => format!("Redis rejected the release: {why}. Nothing was done."),
            Self::Unsent(why) => format!("Redis cannot be reached: {why}. Nothing was done."),
            Self::Unread => "The lock could not be read again in time, so its problem may be over. Nothing was done. \
                Look at the lock again, then decide."
                .to_owned(),
            Self::Unknown(why) => format!(
                "The outcome is unknown: {why}. The lock may have been released, or may yet be once Redis continues, \
                 but only if it is then still exactly as shown. Its page shows what has become of it."
            ),
            Self::Limited => format!("The limit is {MAX_PER_MINUTE} releases a minute. Nothing was done; try again in a minute."),
        }
    }
}

/// The reason why no release was attempted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// The offer is no longer valid.
    #[error("the form is older than {} s, was used for something else, or was shown to another user: check the lock again, in a new form", VALID.as_secs())]
    Stale,
    /// The typed name differs.
    #[error("the name does not match: type the name of this lock")]
    Name,
    /// The reason is missing or malformed.
    #[error(
        "missing or invalid reason: enter 3 to {MAX_REASON} characters on one line, which are recorded with the release"
    )]
    Reason,
    /// The typed number of locks differs.
    #[error("the number does not match: enter the number of locks to release")]
    Count,
    /// There were too many requests within the last minute.
    #[error("the limit is {MAX_PER_MINUTE} releases a minute: try again in a minute")]
    Limited,
    /// The offer does not include that target.
    #[error("invalid target: expected `lock`, `holder:<id>` or `place:<id>` from the offer")]
    Target,
    /// Only its shape shows that it is a lock, and the request does not confirm that.
    #[error(
        "only its shape shows that this key is a lock: confirm that it is one (`unproven` in the API)"
    )]
    Unproven,
}

/// The operator who requests a release.
#[derive(Debug, Clone)]
pub struct Operator {
    /// The name, if they had to log in.
    pub name: Option<Arc<str>>,
    /// The address of the connection, or of the last proxy's client.
    pub from: IpAddr,
}

impl Operator {
    fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or("someone")
    }
}

/// A request for a release.
#[derive(Debug, Clone, serde::Deserialize, utoipa::ToSchema)]
pub struct ReleaseRequest {
    /// The id of the offer.
    #[schema(min_length = 1)]
    pub seen: String,
    /// One of the offered targets.
    #[schema(pattern = "^(?:lock|(?:holder|place):.+)$")]
    pub target: String,
    /// 3 to 500 characters on one line.
    #[schema(min_length = 3, max_length = 500)]
    pub reason: String,
    /// The lock's name again, literally or as pages show it.
    #[schema(min_length = 1)]
    pub name: String,
    /// Confirms that the key is a lock, although only its shape shows it (`confirmed` of the lock is false).
    #[serde(default, deserialize_with = "flag")]
    pub unproven: bool,
}

/// A member of a JSON document, or a field of a form, which is text.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Member<T> {
    Json(T),
    Form(String),
}

fn flag<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(match serde::Deserialize::deserialize(deserializer)? {
        Member::Json(set) => set,
        Member::Form(text) => text == "true",
    })
}

/// The forced releases of locks.
#[derive(Debug)]
pub struct Releases {
    routes: HashMap<ScopeId, Route>,
    offers: Mutex<Offers<Offer, MAX_OFFERS>>,
    batches: Mutex<Offers<Batch, MAX_BATCHES>>,
    release_limit: RateLimit,
    /// The limit on rejected requests that are recorded individually.
    record_limit: RateLimit,
    model: ModelHandle,
    hub: Arc<Hub>,
    archive: Option<ArchiveSender>,
    outcomes: IntCounterVec,
}

impl Releases {
    /// Connects to every database. Returns `None` if the settings do not allow releases.
    ///
    /// # Errors
    /// If the registry has a metric of that name.
    pub fn start(
        config: &Config,
        (model, hub): (&ModelHandle, &Arc<Hub>),
        archive: Option<ArchiveSender>,
        registry: &Registry,
        shutdown: &Shutdown,
    ) -> prometheus::Result<Option<Self>> {
        if !config.allow_release {
            return Ok(None);
        }
        let help = "Requested forced releases, by outcome.";
        let outcomes = registrar(registry).counters("releases_total", help, &["outcome"])?;
        for outcome in Outcome::SUCCEEDED.into_iter().chain(Outcome::FAILED).chain([REJECTED]) {
            drop(outcomes.with_label_values(&[outcome]));
        }
        let routes = routes(config, model, shutdown);
        let (offers, batches) = (Mutex::default(), Mutex::default());
        Ok(Some(Self {
            routes,
            offers,
            batches,
            release_limit: RateLimit::new(MAX_PER_MINUTE),
            record_limit: RateLimit::new(MAX_REJECTIONS_PER_MINUTE),
            model: model.clone(),
            hub: Arc::clone(hub),
            archive,
            outcomes,
        }))
    }

    /// Stores an offer that this operator has seen. Returns its id, which is valid for [`VALID`], only for its
    /// operator, and for one release. A repeated request for that release has its outcome.
    #[must_use]
    pub fn offer(&self, offer: Offer, shown_to: Option<Arc<str>>) -> (String, Arc<Offer>) {
        let offer = Arc::new(offer);
        (self.offers.lock().store(Arc::clone(&offer), shown_to, Instant::now()), offer)
    }

    /// Releases the requested target of that lock. The release continues, and is recorded, if nobody waits for it.
    ///
    /// # Errors
    /// Fails if the request is invalid. Then nothing was attempted, and the rejection is recorded.
    pub async fn release(
        self: &Arc<Self>,
        id: &LockId,
        request: &ReleaseRequest,
        operator: &Operator,
    ) -> Result<Outcome, ReleaseError> {
        let outcome = self.release_offered(id, request, operator).await;
        if let Err(error) = &outcome {
            self.record_error(id, operator, &request.reason, error);
        }
        outcome
    }

    /// Records a request that was rejected before anything was attempted, without the reason that the operator may have given.
    pub fn record_rejection(&self, id: &LockId, operator: &Operator, why: &str) {
        self.record_unattempted(id, operator, "", (REJECTED, why));
    }

    /// Records a request that led to no attempt. `reason` is the operator's.
    fn record_error(&self, id: &LockId, operator: &Operator, reason: &str, error: &ReleaseError) {
        let outcome = match error {
            ReleaseError::Limited => Outcome::Limited.as_str(),
            _ => REJECTED,
        };
        self.record_unattempted(id, operator, reason.trim(), (outcome, &error.to_string()));
    }

    /// Records a request that led to no attempt, with the word for its outcome and the cause.
    fn record_unattempted(
        &self,
        id: &LockId,
        operator: &Operator,
        reason: &str,
        (outcome, why): (&str, &str),
    ) {
        self.outcomes.with_label_values(&[outcome]).inc();
        if !self.record_limit.take() {
            return;
        }
        let reason: String = visible(reason.as_bytes()).chars().take(MAX_REASON).collect();
        let who = operator.shown_name();
        tracing::warn!(
            deployment = &*id.deployment,
            db = id.db,
            lock = %id.name,
            who,
            from = %operator.from,
            reason,
            why,
            "forced release rejected"
        );
        let action = OperatorAction {
            at: SteadyMillis::now(),
            who: who.to_owned(),
            from: operator.from,
            what: "release_rejected",
            subject: "lock".to_owned(),
            reason,
            was: String::new(),
            outcome: format!("{outcome}: {why}"),
        };
        self.store(id, action);
    }

    /// Adds an action to the history.
    fn store(&self, id: &LockId, action: OperatorAction) {
        if let Some(archive) = &self.archive {
            archive.send(ArchiveEntry::Acted(id.clone(), Box::new(action)));
        }
    }

    async fn release_offered(
        self: &Arc<Self>,
        id: &LockId,
        request: &ReleaseRequest,
        operator: &Operator,
    ) -> Result<Outcome, ReleaseError> {
        let reason = checked_reason(&request.reason)?;
        let offer = self.offers.lock().get(&request.seen, operator, Instant::now());
        let offer = offer.filter(|offer| offer.id == *id).ok_or(ReleaseError::Stale)?;
        if !offer.has_name(&request.name) {
            return Err(ReleaseError::Name);
        }
        if !offer.view.confirmed && !request.unproven {
            return Err(ReleaseError::Unproven);
        }
        let choice = Target::parse(&request.target).and_then(|target| offer.choice(target));
        let choice = choice.ok_or(ReleaseError::Target)?;
        let wanted = (Some(choice.target()), 1);
        let begun =
            self.offers.lock().begin(&request.seen, wanted, &self.release_limit, Instant::now());
        let running = match begun {
            Ok(StartOutcome::Before(running)) => running,
            Ok(StartOutcome::Now(outcomes, running)) => {
                let (this, operator) = (Arc::clone(self), operator.clone());
                let reason = reason.to_owned();
                // A browser drops the request of a first click when a second one follows.
                tokio::spawn(async move {
                    let outcome = this.send(&offer, &choice).await;
                    this.report(&offer, &choice, &reason, &operator, &outcome).await;
                    outcomes.send_modify(|all| all.push((offer.id.clone(), outcome)));
                });
                running
            }
            Err(ReleaseError::Limited) => {
                let outcome = Outcome::Limited;
                self.report(&offer, &choice, reason, operator, &outcome).await;
                return Ok(outcome);
            }
            Err(error) => return Err(error),
        };
        let outcome = running.outcomes().await.pop().map(|(_, outcome)| outcome);
        Ok(outcome.unwrap_or_else(|| Outcome::Unknown("there was no reply in time".to_owned())))
    }

    /// Sends the script that compares and releases.
    async fn send(&self, offer: &Offer, choice: &Choice) -> Outcome {
        let route = self
            .model
            .scope(&offer.id.deployment, offer.id.db)
            .and_then(|scope| Some((scope, self.routes.get(&scope)?)));
        let Some((scope, route)) = route else {
            return Outcome::Unsent("this database is not watched".to_owned());
        };
        if let Err(outcome) = self.check_problem(offer, choice).await {
            return outcome;
        }
        // The release is announced first, because its message arrives before the reply.
        let begun = now();
        self.announce(scope, offer, choice.holders(offer), begun).await;
        let at = now();
        let sent = route.send(&offer.id.name, |publish| choice.call(offer, publish, at)).await;
        if let Ok(reply) = &sent
            && let Some(error) = unannounced(&read(reply))
        {
            tracing::warn!(
                deployment = &*offer.id.deployment, db = offer.id.db, lock = %offer.id.name, error,
                "Redis refuses the message about a release: waiters elsewhere notice it later"
            );
        }
        let outcome = outcome(sent);
        if !matches!(outcome, Outcome::Released | Outcome::Unknown(_)) {
            // A later end of the hold is not due to this request.
            self.announce(scope, offer, Vec::new(), begun).await;
        }
        match (outcome, choice) {
            (Outcome::Released, Choice::Place(_)) => Outcome::Removed,
            (Outcome::Free, Choice::Place(_)) => Outcome::NotQueued,
            (outcome, _) => outcome,
        }
    }

    /// Reads the lock again, and checks that it still has the problem for which it was offered, if any.
    ///
    /// # Errors
    /// The outcome, if the problem is over, so that the hold may be healthy, or if nothing shows that it is not.
    async fn check_problem(&self, offer: &Offer, choice: &Choice) -> Result<(), Outcome> {
        // A queue entry that was dead is dead.
        if offer.problem.is_none() || matches!(choice, Choice::Place(_)) {
            return Ok(());
        }
        if self.model.request_reading(&offer.id, READING_TIMEOUT).await.is_none() {
            return Err(Outcome::Unread);
        }
        let snapshot = self.hub.snapshot();
        // The script knows best whether the lock is free.
        match snapshot.get(&offer.id).filter(|lock| lock.is_held()) {
            Some(lock) if !offer.has_problem(lock) => Err(Outcome::Changed),
            _ => Ok(()),
        }
    }

    /// Announces to the model the holders whose holds a request may end from that instant on, or that it has ended none.
    async fn announce(&self, scope: ScopeId, offer: &Offer, holders: Vec<HolderId>, at: Moment) {
        let name = offer.id.name.clone();
        self.model.observe(scope, Observation::ForceRelease { name, holders, at }).await;
    }

    /// Reports a release to the metric, the log, the history and the lock's page.
    async fn report(
        &self,
        offer: &Offer,
        choice: &Choice,
        reason: &str,
        operator: &Operator,
        outcome: &Outcome,
    ) {
        self.outcomes.with_label_values(&[outcome.as_str()]).inc();
        let who = operator.shown_name();
        let (what, was) = (choice.what(), choice.was(offer));
        tracing::warn!(
            deployment = &*offer.id.deployment,
            db = offer.id.db,
            lock = %offer.id.name,
            who,
            from = %operator.from,
            what,
            was,
            reason,
            outcome = outcome.as_str(),
            "forced release requested"
        );
        let action = OperatorAction {
            at: SteadyMillis::now(),
            who: who.to_owned(),
            from: operator.from,
            what: choice.word(),
            subject: choice.subject(),
            reason: reason.to_owned(),
            was: was.clone(),
            outcome: outcome.as_str().to_owned(),
        };
        self.store(&offer.id, action);
        let Some(scope) = self.model.scope(&offer.id.deployment, offer.id.db) else { return };
        let text = match outcome {
            Outcome::Released => {
                format!("{who} released {what} by force, which was {was}: {reason}")
            }
            Outcome::Removed => format!("{who} removed {what}, which was {was}: {reason}"),
            Outcome::Unknown(_) => {
                format!(
                    "{who} tried to release {what} by force, which was {was}: {reason}; the outcome is unknown"
                )
            }
            _ => return,
        };
        let (name, word, at) = (offer.id.name.clone(), choice.word(), SteadyMillis::now());
        let acted = Observation::OperatorActed { name, word, text, at };
        self.model.observe(scope, acted).await;
    }
}

/// Connects to every database for which the model has a scope.
fn routes(config: &Config, model: &ModelHandle, shutdown: &Shutdown) -> HashMap<ScopeId, Route> {
    let mut routes = HashMap::new();
    for deployment in &config.deployments {
        let resolved = resolve(&deployment.release, resolver_options(TIMEOUT), shutdown);
        for db in &deployment.dbs {
            let Some(scope) = model.scope(&deployment.name, *db) else { continue };
            let route = match &resolved {
                Ok(endpoint) => {
                    let endpoint = endpoint.with_db(*db);
                    Route::Server(Link::start(endpoint, route::options(), shutdown))
                }
                Err(cluster) => Route::Cluster(Nodes::new((**cluster).clone(), shutdown)),
            };
            routes.insert(scope, route);
        }
    }
    routes
}

/// Returns a reason without the surrounding white space.
///
/// # Errors
/// [`ReleaseError::Reason`] if it is too short or too long, or has more than one line.
pub fn checked_reason(reason: &str) -> Result<&str, ReleaseError> {
    let reason = reason.trim();
    let fits = (3..=MAX_REASON).contains(&reason.chars().count());
    let plain = !reason.chars().any(|c| c.is_control() || is_invisible(c));
    if fits && plain { Ok(reason) } else { Err(ReleaseError::Reason) }
}

fn outcome(sent: Result<Value, CallError>) -> Outcome {
    match sent {
        Ok(reply) => match parse_force_release(&read(&reply)) {
            Ok(ForceReleaseOutcome::Released) => Outcome::Released,
            Ok(ForceReleaseOutcome::Free) => Outcome::Free,
            Ok(ForceReleaseOutcome::Changed) => Outcome::Changed,
            Ok(ForceReleaseOutcome::WrongType) => Outcome::NoLock,
            Err(error) => Outcome::Unknown(error.to_string()),
        },
        Err(CallError::Unsent { reason }) => Outcome::Unsent(reason),
        Err(CallError::Lost { reason }) => Outcome::Unknown(reason),
        Err(CallError::Refused(error)) if error.is_split() => Outcome::Refused(format!(
            "its slot is moving from one node of the cluster to another; try again once it has moved ({error})"
        )),
        Err(CallError::Refused(error)) => Outcome::Refused(error.to_string()),
    }
}

/// A limit on the number of actions within a minute.
#[derive(Debug)]
struct RateLimit {
    most: usize,
    taken: Mutex<VecDeque<Instant>>,
}

impl RateLimit {
    fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// Uses one of the allowed actions. Returns false if none is left.
    fn take(&self) -> bool {
        let (mut taken, now) = (self.taken.lock(), Instant::now());
        while taken.front().is_some_and(|at| now.duration_since(*at) >= MINUTE) {
            taken.pop_front();
        }
        let free = taken.len() < self.most;
        if free {
            taken.push_back(now);
        }
        free
    }
}

/// Parses a reply of these scripts, which is a list of integers, and perhaps the error of a message.
fn read(reply: &Value) -> script::Value {
    match reply {
        Value::Int(n) => script::Value::Int(*n),
        Value::BulkString(bytes) => script::Value::Bytes(bytes.clone()),
        Value::Array(items) => script::Value::Array(items.iter().map(read).collect()),
        _ => script::Value::Nil,
    }
}
