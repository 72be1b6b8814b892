//! MONITOR: every command of every client as the server prints it. Only commands about locks are parsed.
//!
//! MONITOR is the one source that costs the server time for every command of other clients, and the one that can harm
//! it: unread output fills the server's memory. Therefore there is only one connection for each server. It is opened
//! only if the server itself disconnects a reader that stalls, as it does by default with one that [also
//! subscribes](mod@bound). By default, a [governor] opens it only in quiet times, and closes it within a second when
//! they end.

mod bound;
mod delivery;
mod governor;
mod meter;
mod server;
pub mod switch;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use redisson::monitor::ServerRole;
use service_kit::redis::{
    CallError, Endpoint, Link, LinkStatus, Monitor as Connection, MonitorError, OutputClass, Role,
    ServerError, ServerInfo,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::connection::RETRY_AFTER;
use super::scope::Scope;
use super::status::SourceStatus;
use super::trace::Traces;
use crate::config::{MonitorMode, MonitorSettings};
use crate::metrics::MonitorNodeMetrics;
use crate::model::actor::ModelHandle;
use crate::model::types::Observation;
use crate::redis::{CLIENT_NAME, TIMEOUT};
use crate::sources::view::SourceState;

use bound::Limit;
pub use bound::{Bound, bound};
use delivery::Delivery;
use governor::{Governor, Load};
use meter::Meter;
use switch::Switch;

/// The interval at which the load is judged.
const JUDGE_INTERVAL: Duration = Duration::from_secs(1);
/// The number of quiet judgements before MONITOR is opened.
const QUIET_CHECKS: u32 = 3;
/// The interval at which forbidding settings of the server are read again.
const REFUSED_INTERVAL: Duration = Duration::from_secs(300);
/// The interval at which denied commands are tried again, since each adds a row to the server's ACL log.
const DENIED_INTERVAL: Duration = Duration::from_secs(3_600);
/// The number of judgements between two checks of the server's other clients and of its memory.
const CHECK_TURNS: u32 = 10;
/// The silence after which a script's lines are complete, since they arrive in one go.
const PAUSE: Duration = Duration::from_millis(10);
/// The number of judgements without a line after which the connection counts as dead, since our own commands appear on
/// it. A time would not do: after a stall of this process it would be over before the waiting lines are read.
const SILENT_TURNS: u32 = 10;
/// The lag from which the source is reported as behind.
const BEHIND: Duration = Duration::from_secs(1);

/// The reader of one server.
#[derive(Debug)]
pub struct MonitorReader {
    endpoint: Endpoint,
    link: Link,
    settings: MonitorSettings,
    scopes: Vec<Scope>,
    model: ModelHandle,
    status: Arc<SourceStatus>,
    metrics: MonitorNodeMetrics,
    requests: watch::Receiver<Option<Instant>>,
    governor: Governor,
    delivery: Delivery,
    /// The limit that ends the connection if it stalls, as of the latest check.
    limit: Limit,
}

/// The reason why MONITOR is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenReason {
    On,
    Auto,
    Watch(Instant),
}

/// The reason why MONITOR was turned off.
#[derive(Debug)]
enum CloseReason {
    /// The requested watch ended.
    WatchEnded,
    /// MONITOR has to stay closed for a while, for this reason.
    Pause(String),
    /// The connection was lost, or could not be made.
    Broken(String),
    /// The server does not let the Redis user use MONITOR.
    Denied(ServerError),
}

/// The load, and a reason to close MONITOR, if any.
type Judgement = Result<(Load, Option<String>), CallError>;

/// The reason why a judgement of the server does not open MONITOR.
#[derive(Debug)]
enum Objection {
    /// The server did not answer, which says nothing about its load.
    Unanswered(String),
    /// MONITOR has to stay closed for a while, for this reason.
    Pause(String),
}

/// The reason why MONITOR may not be opened.
#[derive(Debug)]
struct Refusal {
    why: String,
    remedy: Option<&'static str>,
    /// The time until the next check.
    retry_after: Duration,
}

/// The remedy if the Redis user may not use MONITOR.
const ALLOW: &str = "Allow it `+monitor +psubscribe &lockscope:monitor[]`, or set another user with `--monitor-redis-url`.";

impl MonitorReader {
    /// Creates the reader and its switch. `link` is a separate connection to the same server with the same user.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "each is a part that it is put together from")]
    pub fn new(
        endpoint: Endpoint,
        link: Link,
        settings: MonitorSettings,
        scopes: Vec<Scope>,
        model: ModelHandle,
        status: Arc<SourceStatus>,
        metrics: MonitorNodeMetrics,
        traces: Traces,
    ) -> (Self, Switch) {
        let switch = Switch::new(settings.mode != MonitorMode::Off);
        let governor = Governor::new(settings.max_ops);
        let delivery = Delivery::new(scopes.clone(), model.clone(), metrics.clone(), traces);
        let requests = switch.until.subscribe();
        let reader = Self {
            endpoint,
            link,
            settings,
            scopes,
            model,
            status,
            metrics,
            requests,
            governor,
            delivery,
            limit: Limit::NONE,
        };
        (reader, switch)
    }

    /// Opens and closes the connection until the end.
    pub async fn run(mut self) {
        loop {
            let (open_reason, load) = self.wait_to_open().await;
            let class = self.limit.class;
            let end = match Connection::open(&self.endpoint, CLIENT_NAME, TIMEOUT, class).await {
                Ok(connection) => self.follow(connection, open_reason, load).await,
                Err(MonitorError::Denied(error)) => CloseReason::Denied(error),
                Err(error) => CloseReason::Broken(error.to_string()),
            };
            self.report_end(end).await;
        }
    }

    async fn report_end(&mut self, end: CloseReason) {
        match end {
            CloseReason::WatchEnded => {
                self.status.set(SourceState::Paused, "the requested watch has ended");
            }
            CloseReason::Pause(why) => {
                self.governor.closed(Instant::now());
                tracing::info!(why, "MONITOR closed");
                if self.requested_watch().is_some() {
                    // The connection is retried soon, but not without a pause.
                    self.status.set(SourceState::Paused, format!("closed: {why}"));
                    sleep(RETRY_AFTER).await;
                }
                self.pause(format!("closed: {why}")).await;
            }
            CloseReason::Broken(why) => {
                tracing::warn!(why, "MONITOR connection lost");
                self.status.set(SourceState::Down, why);
                sleep(RETRY_AFTER).await;
            }
            CloseReason::Denied(error) if error.is_unknown_command() => {
                let why = format!("the server does not offer MONITOR: {error}");
                self.status.set(SourceState::Denied, why);
                self.wait_for_request(DENIED_INTERVAL).await;
            }
            CloseReason::Denied(why) => {
                let needs = match self.limit.class {
                    OutputClass::Normal => "",
                    OutputClass::PubSub => {
                        " with PSUBSCRIBE, without which Redis would not limit it (`+psubscribe &lockscope:monitor[]`)"
                    }
                };
                let why = format!("the Redis user may not use MONITOR{needs}: {why}");
                self.status.set_remediable(SourceState::Denied, why, ALLOW);
                self.wait_for_request(DENIED_INTERVAL).await;
            }
        }
    }

    /// Reports why MONITOR is closed, until the governor's pause ends or a watch is requested.
    async fn pause(&mut self, why: String) {
        while self.requested_watch().is_none() {
            let left = self.governor.pause_left(Instant::now());
            if left.is_zero() {
                return;
            }
            let detail = format!("{why}; tried again in {} s", left.as_secs() + 1);
            self.status.set(SourceState::Paused, detail);
            self.wait_for_request(left.min(JUDGE_INTERVAL)).await;
        }
    }

    async fn wait_for_request(&mut self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            changed = self.requests.changed() => {
                if changed.is_err() {
                    // A watch can no longer be requested.
                    sleep(time).await;
                }
            }
        }
    }

    /// Returns the end of the requested watch, if any.
    fn requested_watch(&self) -> Option<Instant> {
        self.requests.borrow().filter(|until| *until > Instant::now())
    }

    /// Waits until MONITOR may be opened. Returns the reason, and the load.
    async fn wait_to_open(&mut self) -> (OpenReason, Load) {
        let mut quiet = 0;
        loop {
            if self.settings.mode == MonitorMode::Off {
                let why = "disabled by --monitor off";
                self.status.set_remediable(
                    SourceState::Off,
                    why,
                    "Start the dashboard with `--monitor auto`.",
                );
                std::future::pending::<()>().await;
            }
            let Some(info) = self.server_info().await else { continue };
            // A watch that is requested from now on needs a new check, since the current one may be nearly over by
            // then.
            self.requests.mark_unchanged();
            if let Err(refusal) = self.check_server(&info).await {
                let Refusal { why, remedy, retry_after } = refusal;
                let why = format!("closed: {why}");
                match remedy {
                    Some(remedy) => {
                        let why = format!("{why}. {remedy}");
                        self.status.set_remediable(SourceState::Paused, why, remedy);
                    }
                    None => self.status.set(SourceState::Paused, why),
                }
                self.wait_for_request(retry_after).await;
                continue;
            }
            let load = server::load(&self.link).await;
            if let Some(until) = self.requested_watch() {
                return (OpenReason::Watch(until), load.unwrap_or_default());
            }
            if self.settings.mode == MonitorMode::On {
                return (OpenReason::On, load.unwrap_or_default());
            }
            match self.judge_before_opening(load).await {
                Ok(load) if quiet + 1 >= QUIET_CHECKS => return (OpenReason::Auto, load),
                Ok(_) => {
                    quiet += 1;
                    let detail = "closed: checking whether the server is quiet enough";
                    self.status.set(SourceState::Paused, detail);
                    self.wait_for_request(JUDGE_INTERVAL).await;
                }
                Err(Objection::Unanswered(why)) => {
                    quiet = 0;
                    self.status.set(SourceState::Down, why);
                    self.wait_for_request(JUDGE_INTERVAL).await;
                }
                Err(Objection::Pause(why)) => {
                    quiet = 0;
                    self.governor.closed(Instant::now());
                    self.pause(format!("closed: {why}")).await;
                }
            }
        }
    }

    /// Returns the facts that the server reports, or `None`, after a moment, if it cannot be reached.
    async fn server_info(&self) -> Option<Arc<ServerInfo>> {
        let status = self.link.state().borrow().status.clone();
        match status {
            LinkStatus::Up(info) => Some(info),
            LinkStatus::Down { reason, .. } => {
                self.status.set(SourceState::Down, reason);
                sleep(JUDGE_INTERVAL).await;
                None
            }
        }
    }

    /// Checks whether MONITOR may be opened with this server's settings.
    ///
    /// # Errors
    /// The reason why not.
    async fn check_server(&mut self, info: &ServerInfo) -> Result<(), Refusal> {
        let refusal =
            |why: &str, remedy, retry_after| Refusal { why: why.to_owned(), remedy, retry_after };
        if info.role.is_none() {
            let why = "the Redis user may not read the server's role";
            return Err(refusal(why, Some("Allow it `+info`."), DENIED_INTERVAL));
        }
        let bound = bound(&self.link, self.settings.budget).await;
        if self.settings.unbounded {
            let known = !matches!(bound, Ok(Bound::Unoffered));
            self.limit = if known { Limit::NONE } else { Limit::UNKNOWN };
            return Ok(());
        }
        match bound {
            Ok(Bound::Bounded(limit)) => {
                self.limit = limit;
                Ok(())
            }
            Ok(Bound::Unbounded(why, remedy)) => Err(refusal(&why, Some(remedy), REFUSED_INTERVAL)),
            Ok(Bound::Unreadable) => {
                let why = "the Redis user may not read the server's output-buffer limits, so they count as absent";
                let remedy = "Allow it `+config|get`, or use --monitor-unbounded.";
                Err(refusal(why, Some(remedy), DENIED_INTERVAL))
            }
            Ok(Bound::Unoffered) => {
                let why =
                    "the server does not offer CONFIG GET, so its output-buffer limits are unknown";
                let remedy = "Use --monitor-unbounded if the service limits the output of pub/sub clients (client-output-buffer-limit).";
                Err(refusal(why, Some(remedy), DENIED_INTERVAL))
            }
            Err(error) => Err(refusal(&error.to_string(), None, RETRY_AFTER)),
        }
    }

    async fn judge_before_opening(&self, load: Result<Load, CallError>) -> Result<Load, Objection> {
        let load = load?;
        self.governor.may_open(load).map_err(Objection::Pause)?;
        match server::another_has_monitor(&self.link, None).await {
            Ok(false) => Ok(load),
            Ok(true) => Err(Objection::Pause(ANOTHER_HAS_MONITOR.to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    /// Follows the connection until it has to be closed. The model knows about it during this time. `load` is the load
    /// just before it was opened.
    async fn follow(
        &mut self,
        connection: Connection,
        open_reason: OpenReason,
        load: Load,
    ) -> CloseReason {
        let role = match connection.info().role {
            Some(Role::Replica) => ServerRole::Replica,
            Some(Role::Master) | None => ServerRole::Master,
        };
        self.delivery.restart(role);
        self.governor.opened(load, Instant::now());
        self.report_active(true).await;
        tracing::info!(why = open_reason.as_str(), node = self.status.node, "MONITOR opened");
        let end = self.read_until_close(connection, open_reason).await;
        self.delivery.pause();
        self.report_active(false).await;
        end
    }

    async fn read_until_close(
        &mut self,
        mut connection: Connection,
        mut open_reason: OpenReason,
    ) -> CloseReason {
        let mut meter = Meter::default();
        meter.roll(&self.delivery);
        let mut pause_at = None;
        let own = connection.id();
        let run_id = connection.info().run_id.clone();
        let link = self.link.clone();
        let limit = self.limit;
        let mut judged = 0_u32;
        let mut silent = 0_u32;
        let judging = next_judgement(&link, own, Some(limit));
        tokio::pin!(judging);
        self.report(open_reason, &meter);
        loop {
            tokio::select! {
                biased;
                judgement = &mut judging => {
                    let unjudged = judgement.as_ref().is_err_and(is_unanswered);
                    match self.apply(judgement, &mut open_reason, &mut meter, silent) {
                        Ok(()) => {}
                        Err(CloseReason::Pause(why)) if unjudged => {
                            return match end_within(&mut connection, JUDGE_INTERVAL).await {
                                Some(error) => self.explain_end(run_id.as_deref(), &error).await,
                                None => CloseReason::Pause(why),
                            };
                        }
                        Err(end) => return end,
                    }
                    judged = judged.wrapping_add(1);
                    silent += 1;
                    let check = judged.is_multiple_of(CHECK_TURNS).then_some(limit);
                    judging.set(next_judgement(&link, own, check));
                }
                read = connection.read() => match read {
                    Ok(bytes) => {
                        meter.bytes += bytes.len() as u64;
                        self.delivery.bytes(bytes);
                        silent = 0;
                        pause_at = Some(Instant::now() + PAUSE);
                    }
                    Err(error) => return self.explain_end(run_id.as_deref(), &error).await,
                },
                () = sleep_until(pause_at.unwrap_or_else(Instant::now)), if pause_at.is_some() => {
                    self.delivery.pause();
                    pause_at = None;
                }
            }
        }
    }

    /// Returns the reason why the connection has ended: either the server is gone or was restarted, or it ended only
    /// this connection. `run_id` is the server's run id from when the connection was opened.
    async fn explain_end(&self, run_id: Option<&str>, error: &MonitorError) -> CloseReason {
        if let MonitorError::Moved(why) = error {
            return CloseReason::Broken(why.clone());
        }
        let answered = !self.link.call(cmd("PING")).await.as_ref().is_err_and(is_unanswered);
        let now = match &self.link.state().borrow().status {
            LinkStatus::Up(info) if answered => info.run_id.clone(),
            LinkStatus::Up(_) | LinkStatus::Down { .. } => {
                let why = format!("{error}; other connections to the server are lost too");
                return CloseReason::Broken(why);
            }
        };
        if run_id.zip(now.as_deref()).is_some_and(|(before, now)| before != now) {
            return CloseReason::Broken(format!("{error}; the server was started again"));
        }
        CloseReason::Pause(format!(
            "{error}; it was probably read too slowly for the server's limit, or killed by an operator"
        ))
    }

    /// Applies a judgement of the load, once a second. `silent` is the number of earlier judgements since the last line.
    fn apply(
        &mut self,
        judgement: Judgement,
        open_reason: &mut OpenReason,
        meter: &mut Meter,
        silent: u32,
    ) -> Result<(), CloseReason> {
        let elapsed = meter.roll(&self.delivery);
        self.metrics.active(self.outcome(*open_reason), elapsed);
        if silent >= SILENT_TURNS {
            return Err(CloseReason::Broken(format!("no line within {silent} s")));
        }
        if let Some(until) = self.requested_watch()
            && *open_reason != OpenReason::On
        {
            *open_reason = OpenReason::Watch(until);
        }
        match open_reason {
            OpenReason::Watch(until) if *until <= Instant::now() => {
                return Err(CloseReason::WatchEnded);
            }
            OpenReason::Auto => {
                let (load, objection) = judgement.map_err(|error| {
                    CloseReason::Pause(format!("the load cannot be judged: {error}"))
                })?;
                if let Some(objection) = objection {
                    return Err(CloseReason::Pause(objection));
                }
                self.governor
                    .may_stay_open(load, meter.bytes_a_second)
                    .map_err(CloseReason::Pause)?;
            }
            OpenReason::On | OpenReason::Watch(_) => {}
        }
        self.report(*open_reason, meter);
        Ok(())
    }

    fn outcome(&self, open_reason: OpenReason) -> &'static str {
        if self.settings.unbounded { "unbounded" } else { open_reason.as_str() }
    }

    /// Reports the reason why MONITOR is on, and its cost.
    fn report(&self, open_reason: OpenReason, meter: &Meter) {
        let reason = match open_reason {
            OpenReason::On => "on by --monitor on".to_owned(),
            OpenReason::Auto => "on while the server is quiet".to_owned(),
            OpenReason::Watch(until) => {
                let left = until.saturating_duration_since(Instant::now());
                format!("on for {} s more", left.as_secs() + 1)
            }
        };
        let bound = match self.limit.memory {
            _ if self.settings.unbounded => {
                "; without an output-buffer limit on the server (--monitor-unbounded)".to_owned()
            }
            Some(memory) => format!("; if the dashboard stalls, Redis closes it at {memory}"),
            None => "; if the dashboard stalls, Redis closes it at maxmemory-clients".to_owned(),
        };
        let missed = match self.delivery.missed() {
            0 => String::new(),
            missed => format!("; {missed} events were dropped because there are too many"),
        };
        let detail = format!(
            "{reason}: {} lines a second, {} of them about locks, {} KiB a second{missed}{bound}",
            meter.lines_a_second,
            meter.lock_lines_a_second,
            meter.bytes_a_second / 1024
        );
        let lag = self.delivery.lag();
        let late = lag >= BEHIND || self.delivery.missed() > 0;
        let detail =
            if lag >= BEHIND { format!("{detail}; {} s behind", lag.as_secs()) } else { detail };
        self.status.set(if late { SourceState::Behind } else { SourceState::On }, detail);
        self.status.record_lag(lag);
        self.status.succeeded();
    }

    async fn report_active(&self, on: bool) {
        for scope in &self.scopes {
            self.model.observe(scope.id, Observation::MonitorActive { on }).await;
        }
    }
}

/// The reason to close if another client has MONITOR on.
const ANOTHER_HAS_MONITOR: &str = "another client already uses MONITOR, which is costly";

impl From<CallError> for Objection {
    fn from(error: CallError) -> Self {
        match is_unanswered(&error) {
            true => Self::Unanswered(error.to_string()),
            false => Self::Pause(format!("the load cannot be judged: {error}")),
        }
    }
}

impl OpenReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Auto => "auto",
            Self::Watch(_) => "watch",
        }
    }
}

/// Returns whether the connection was lost, rather than refused.
fn is_unanswered(error: &CallError) -> bool {
    matches!(error, CallError::Unsent { .. } | CallError::Lost { .. })
}

/// Returns the reason why a connection that is no longer needed ends, if it ends within that time.
async fn end_within(connection: &mut Connection, time: Duration) -> Option<MonitorError> {
    let end = async {
        loop {
            if let Err(error) = connection.read().await {
                return error;
            }
        }
    };
    tokio::time::timeout(time, end).await.ok()
}

/// Judges the server a second from now. `check` is the limit for which the server needs room, or `None` to skip the
/// more expensive checks.
async fn next_judgement(link: &Link, own: Option<i64>, check: Option<Limit>) -> Judgement {
    sleep(JUDGE_INTERVAL).await;
    let load = server::load(link).await?;
    let Some(limit) = check else { return Ok((load, None)) };
    // Without its number, our own connection cannot be distinguished from others.
    if own.is_some() && server::another_has_monitor(link, own).await? {
        return Ok((load, Some(ANOTHER_HAS_MONITOR.to_owned())));
    }
    Ok((load, limit.objection(link).await?.map(|(reason, _)| reason)))
}
