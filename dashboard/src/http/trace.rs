//! The steps of a lock's trace, for the API.
#![expect(unused_qualifications, reason = "in code that utoipa generates")]

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::app::App;
use super::error::ApiError;
use super::params::{LockParams, Params, understood};
use crate::clock::SteadyMillis;
use crate::model::types::LockId;
use crate::sources::trace::Step;
use crate::sources::view::SourceView;
use crate::views::trace;

/// The longest wait of a request for the next step, in milliseconds. A response has to begin within five seconds.
const MAX_WAIT_MS: u64 = 4_000;

/// The range of steps to return.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TraceParams {
    /// `next` of the response before: only later steps are returned.
    #[param(value_type = Option<u64>, maximum = 9007199254740991_u64)]
    from: Option<String>,
    /// Milliseconds to wait for a step, if there is none yet.
    #[param(value_type = Option<u64>, maximum = 4000, default = 0)]
    wait: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Trace)]
pub(super) struct TraceJson {
    #[serde(flatten)]
    lock: LockId,
    /// True while steps are being recorded.
    tracing: bool,
    /// The beginning of the latest trace; null if none was running in the last 15 minutes.
    #[serde(serialize_with = "crate::clock::as_wall")]
    since: Option<SteadyMillis>,
    #[serde(serialize_with = "crate::clock::as_wall")]
    until: Option<SteadyMillis>,
    /// The MONITOR readers of the lock's servers. Steps are seen while they are on.
    monitor: Vec<SourceView>,
    /// The number of steps that were dropped for newer ones.
    dropped: u64,
    /// The `from` of the next request.
    next: u64,
    /// The steps, oldest first.
    steps: Vec<StepJson>,
}

/// A step of a lock's life.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TraceStep)]
struct StepJson {
    seq: u64,
    /// By the server's clock.
    #[serde(serialize_with = "crate::clock::as_wall")]
    at: SteadyMillis,
    /// Microseconds since the step before.
    gap_us: Option<u64>,
    /// Such as `acquired`, `refused`, `subscribed`, `renewed`, `released`.
    step: &'static str,
    /// The step in a word or two.
    label: &'static str,
    /// Its meaning in a sentence.
    text: String,
    /// False if something else may resemble it.
    certain: bool,
    /// The holder or waiter, or otherwise its client.
    owner: Option<String>,
    /// Its service and host, if known.
    name: Option<String>,
    /// The address of the connection.
    address: Option<String>,
    /// The lines as MONITOR printed them, shortened: the script's call and the commands that it ran.
    lines: Vec<String>,
}

/// The latest trace of a lock: its steps as MONITOR shows them. POST starts one.
#[utoipa::path(
    get,
    path = "/api/v1/trace",
    params(LockParams, TraceParams),
    responses(
        (status = 200, description = "The steps, which may be none.", body = TraceJson),
        (status = 400, description = "A parameter is missing or wrong."),
        (status = 404, description = "There is no such deployment or database."),
    ),
)]
pub(super) async fn read(
    State(app): State<App>,
    lock: Params<LockParams>,
    params: Params<TraceParams>,
) -> Result<Json<TraceJson>, ApiError> {
    let (lock, params) = (app.lock_id(&understood(lock)?)?, understood(params)?);
    let first = number("from", params.from.as_deref(), u64::MAX)?;
    let wait = number("wait", params.wait.as_deref(), MAX_WAIT_MS)?;
    let traces = app.sources.traces();
    if wait > 0 {
        let wait = traces.wait(&lock, first, Duration::from_millis(wait));
        app.stop.run_until_cancelled(wait).await;
    }
    let now = SteadyMillis::now();
    let node = app.sources.slot_of(&lock).and_then(|(_, node)| node).map(|node| node.to_string());
    let mut monitor = app.sources.views();
    monitor.retain(|source| {
        source.source == "monitor"
            && *source.deployment == *lock.deployment
            && node.as_ref().is_none_or(|node| *node == source.node)
    });
    let known = traces.get(&lock, now);
    let bounds = known.as_ref().map(|trace| (trace.since, trace.until));
    let trace = known.unwrap_or_default();
    let senders = trace::Senders::new(&trace);
    let steps = trace.steps.iter().filter(|step| step.seq >= first);
    Ok(Json(TraceJson {
        tracing: trace.is_running(now),
        since: bounds.map(|(since, _)| since),
        until: bounds.map(|(_, until)| until),
        monitor,
        dropped: trace.dropped,
        next: trace.next,
        steps: steps.map(|step| step_json(&app, step, &senders)).collect(),
        lock,
    }))
}

fn step_json(app: &App, step: &Step, senders: &trace::Senders) -> StepJson {
    let (event, names) = (&step.event, app.hub.names());
    let owner = senders.owner(event);
    StepJson {
        seq: step.seq,
        at: step.at(),
        gap_us: step.gap_micros,
        step: event.action.as_str(),
        label: trace::label(&event.action),
        text: trace::sentence(&event.action, names),
        certain: step.is_certain(),
        name: owner.as_deref().and_then(|id| names.name(id)).map(|name| name.to_string()),
        owner,
        address: trace::address(event),
        lines: trace::raw_lines(&step.raw),
    }
}

fn number(name: &str, text: Option<&str>, most: u64) -> Result<u64, ApiError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(0) };
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| ApiError::bad_request(format!("`{name}` must be from 0 to {most}")))
}
