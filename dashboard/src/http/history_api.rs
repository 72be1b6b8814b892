//! The API of the history: events, and the holds at an instant.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::csv::{self, Total};
use super::error::ApiError;
use super::params::{
    EventsParams, Format, HeldParams, Params, limit_up_to, order, required_instant, understood,
};
use crate::archive::{Gap, HeldLock, MAX_EVENTS, PastEvent};
use crate::clock::SteadyMillis;
use crate::query::{EventFilter, FilterError, Order};

/// The maximum number of holds in one answer.
const MAX_HELD: usize = 1_000;

#[derive(Serialize, ToSchema)]
#[schema(as = Events)]
pub(super) struct EventsJson {
    #[serde(serialize_with = "crate::clock::as_wall")]
    from: SteadyMillis,
    #[serde(serialize_with = "crate::clock::as_wall")]
    to: SteadyMillis,
    events: Vec<PastEvent>,
    /// The cursor of the next page; null on the last.
    next: Option<String>,
    /// The cursor of the previous page; null on the first.
    prev: Option<String>,
    /// The instant that the search had reached when its time was over; `next` continues from there. Null if the page is
    /// complete.
    #[serde(serialize_with = "crate::clock::as_wall")]
    reached: Option<SteadyMillis>,
    /// The times within the span that no dashboard observed.
    gaps: Vec<Gap>,
}

/// Reads a filter.
fn filter(
    text: Option<&str>,
    parse: fn(&str) -> Result<EventFilter, FilterError>,
) -> Result<Arc<EventFilter>, ApiError> {
    let filter = parse(text.unwrap_or_default());
    filter.map(Arc::new).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Events between two instants, from the history that --history-dir keeps, a page at a time.
#[utoipa::path(
    get,
    path = "/api/v1/events",
    params(EventsParams),
    responses(
        (status = 200, description = "At most 1,000 events.", content(
            (EventsJson = "application/json"), (String = "text/csv"),
        )),
        (status = 400, description = "A parameter is missing or wrong."),
        (status = 404, description = "No history is kept."),
        (status = 503, description = "The history cannot be read."),
    ),
)]
pub(super) async fn events(
    State(app): State<App>,
    params: Params<EventsParams>,
) -> Result<Response, ApiError> {
    let params = understood(params)?;
    let format = Format::parse(params.format.as_deref())?;
    let now = SteadyMillis::now();
    required_instant("from", params.from.as_deref(), now)?;
    let span = app.span(&params, now)?;
    let newest_first = !order(params.order.as_deref(), Order::Ascending)?.is_ascending();
    let filter = filter(params.filter.as_deref(), EventFilter::parse)?;
    let limit = limit_up_to(MAX_EVENTS, params.limit.as_deref())?;
    let search = span.search(&params, newest_first, limit)?;
    let (from, to) = (search.from, search.to);
    let found = app.search_events(search, &filter).await?;
    if format == Format::Csv {
        let count = found.events.len();
        let total = match found.next {
            // A search that took too long may have found everything.
            Some(_) if found.reached.is_some() => Total::AtLeast(count),
            Some(_) => Total::AtLeast(count + 1),
            None => Total::Exactly(count),
        };
        return Ok(csv::response("events", found.events, total));
    }
    let gaps = app.history(|archive| async move { archive.gaps(from, to).await }).await?;
    let [next, prev] = [found.next, found.prev].map(|cursor| cursor.map(|c| c.to_string()));
    let (events, reached) = (found.events, found.reached);
    Ok(Json(EventsJson { from, to, events, next, prev, reached, gaps }).into_response())
}

/// The holds of all locks at an instant.
#[derive(Serialize, ToSchema)]
#[schema(as = Held)]
pub(super) struct HeldJson {
    #[serde(serialize_with = "crate::clock::as_wall")]
    at: SteadyMillis,
    /// The oldest holds first, at most 1,000.
    held: Vec<HeldLock>,
    /// The number of all matching holds at that instant.
    total: usize,
    /// False if finding all of them would have taken too long.
    complete: bool,
    /// The gap around the instant, if nobody observed it.
    gap: Option<Gap>,
}

/// The holds of all locks at an instant, from the history that --history-dir keeps, the oldest first.
#[utoipa::path(
    get,
    path = "/api/v1/held",
    params(HeldParams),
    responses(
        (status = 200, description = "At most 1,000 holds.", content(
            (HeldJson = "application/json"), (String = "text/csv"),
        )),
        (status = 400, description = "A parameter is missing or wrong."),
        (status = 404, description = "No history is kept."),
        (status = 503, description = "The history cannot be read."),
    ),
)]
pub(super) async fn held(
    State(app): State<App>,
    params: Params<HeldParams>,
) -> Result<Response, ApiError> {
    let params = understood(params)?;
    let format = Format::parse(params.format.as_deref())?;
    let at = required_instant("at", params.at.as_deref(), SteadyMillis::now())?;
    let filter = filter(params.filter.as_deref(), EventFilter::parse_for_holds)?;
    let then = app.held_at(at, MAX_HELD, &filter).await?;
    if format == Format::Csv {
        let total = match then.complete {
            true => Total::Exactly(then.total),
            false => Total::AtLeast(then.total),
        };
        return Ok(csv::response("held", then.holds, total));
    }
    let (total, complete, gap) = (then.total, then.complete, then.gap);
    Ok(Json(HeldJson { at, held: then.holds, total, complete, gap }).into_response())
}
