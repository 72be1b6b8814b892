//! Actions for all locks of an incident: one acknowledgement, or one forced release of each lock as it was shown.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use futures_util::StreamExt as _;

use super::acknowledge::{AcknowledgeRequest, acknowledge_all};
use super::release::{NOTHING_TO_RELEASE, error_status, read_offer, releases_off};
use crate::access::rights::Right;
use crate::clock::SteadyMillis;
use crate::http::app::App;
use crate::http::error::{ApiError, rendered};
use crate::http::guard::{CurrentVisitor, VerifiedForm};
use crate::http::page_request::PageRequest;
use crate::http::params::{IncidentParams, Params, understood};
use crate::model::types::ProblemKind;
use crate::query::Published;
use crate::query::incidents::{IncidentRow, holders};
use crate::release::batch::{Batch, BatchRequest, MAX_LOCKS, choices};
use crate::release::{Offer, Operator, ReleaseError, Releases, Running};
use crate::views::{self, IncidentPage, IncidentStep};

/// The number of locks that are read at once.
const READS_AT_ONCE: usize = 16;

/// What distinguishes an incident from others.
#[derive(Clone)]
pub(super) struct IncidentName {
    deployment: Arc<str>,
    /// The problem, or `None` if there is no such problem.
    problem: Option<ProblemKind>,
    key: String,
}

/// Reads the name of the incident that a request is about.
pub(super) fn named(app: &App, params: Params<IncidentParams>) -> Result<IncidentName, ApiError> {
    let params = understood(params)?;
    Ok(IncidentName {
        deployment: app.deployment(params.deployment.as_deref())?,
        problem: params.problem.as_deref().and_then(ProblemKind::parse),
        key: params.key.unwrap_or_default(),
    })
}

impl IncidentName {
    fn is_of(&self, incident: &IncidentRow) -> bool {
        self.problem.is_some_and(|problem| incident.is_named(&self.deployment, problem, &self.key))
    }

    /// Returns the incident, if it exists now.
    fn find(&self, app: &App) -> Result<IncidentRow, ApiError> {
        let published = Published::latest(&app.hub);
        let found = self.problem.and_then(|problem| {
            let (deployment, now) = (&self.deployment, SteadyMillis::now());
            IncidentRow::find(&published, deployment, problem, &self.key, now)
        });
        found.ok_or_else(|| {
            let why = "this incident is over, or there never was one";
            ApiError::new(StatusCode::NOT_FOUND, why)
        })
    }
}

/// Returns whether the visitor has this right for some of the incident's locks.
fn has_for_some(visitor: &CurrentVisitor, right: Right, incident: &IncidentRow) -> bool {
    incident.locks.iter().any(|lock| visitor.needs_for(right, &lock.id).is_ok())
}

/// Returns the incident that a request names, if the visitor has this right for some of its locks. A missing right is
/// reported before any other error.
fn find_for(
    app: &App,
    visitor: &CurrentVisitor,
    right: Right,
    name: Result<IncidentName, ApiError>,
) -> Result<IncidentRow, ApiError> {
    let incident = match name.and_then(|name| name.find(app)) {
        Ok(incident) => incident,
        Err(error) => return visitor.needs(right).and(Err(error)),
    };
    if !has_for_some(visitor, right, &incident) {
        visitor.needs_for(right, &incident.first().0.id)?;
    }
    Ok(incident)
}

/// Returns the releases, and an incident whose locks can be released together.
pub(super) fn releasable<'a>(
    app: &'a App,
    visitor: &CurrentVisitor,
    name: Result<IncidentName, ApiError>,
) -> Result<(&'a Arc<Releases>, IncidentRow), ApiError> {
    let incident = match find_for(app, visitor, Right::Release, name) {
        // A missing right is reported before anything about this dashboard.
        Err(error) if error.status == StatusCode::FORBIDDEN => return Err(error),
        found => found,
    };
    let releases = app.releases.as_ref().ok_or_else(releases_off)?;
    let incident = incident?;
    match incident.problem {
        ProblemKind::Deadlock => Err(ApiError::new(
            StatusCode::CONFLICT,
            "the locks of a deadlock are not released together: end one of its holds on the page of that lock",
        )),
        ProblemKind::Expired => Err(ApiError::new(
            StatusCode::CONFLICT,
            "these holds have ended by themselves: there is nothing to release",
        )),
        _ => Ok((releases, incident)),
    }
}

/// Returns an incident and a form about it. A missing right is reported before any other error, and a missing form
/// token before any error about the incident.
fn with_form<T, F>(
    found: Result<T, ApiError>,
    form: Result<VerifiedForm<F>, ApiError>,
) -> Result<(T, F), ApiError> {
    match (found, form) {
        (Err(error), _) if error.status == StatusCode::FORBIDDEN => Err(error),
        (_, Err(error)) | (Err(error), _) => Err(error),
        (Ok(found), Ok(VerifiedForm(form))) => Ok((found, form)),
    }
}

fn shown(
    status: StatusCode,
    page: &PageRequest,
    incident: IncidentRow,
    step: IncidentStep,
) -> Response {
    let may_acknowledge = has_for_some(&page.visitor, Right::Ack, &incident);
    let may_release = page.app.releases.is_some()
        && incident.may_be_released()
        && has_for_some(&page.visitor, Right::Release, &incident);
    let chrome = page.chrome();
    let page = IncidentPage { chrome, may_acknowledge, may_release, incident, step };
    rendered(status, views::incident_page(&page))
}

pub async fn page(page: PageRequest, params: Params<IncidentParams>) -> Response {
    let incident = named(&page.app, params).and_then(|name| name.find(&page.app));
    page.answered(incident.map(|found| shown(StatusCode::OK, &page, found, IncidentStep::Show)))
}

pub async fn acknowledge_from_page(
    page: PageRequest,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    params: Params<IncidentParams>,
    form: Result<VerifiedForm<AcknowledgeRequest>, ApiError>,
) -> Response {
    let response = async {
        let name = named(&page.app, params);
        let incident = find_for(&page.app, &page.visitor, Right::Ack, name);
        let (incident, request) = with_form(incident, form)?;
        let ids = incident.locks.iter().map(|lock| lock.id.clone()).collect();
        acknowledge_all(&page.app, &page.visitor, peer, ids, &request).await?;
        Ok(Redirect::to("/problems").into_response())
    };
    page.answered(response.await)
}

/// Reads the locks of an incident, and offers those that can be released. Returns the id of the offer, and the number of locks
/// beyond the limit of a batch.
pub(super) async fn offer(
    app: &App,
    releases: &Releases,
    visitor: &CurrentVisitor,
    incident: &IncidentRow,
) -> (String, Arc<Batch>, usize) {
    let locks = incident.locks.iter().take(MAX_LOCKS).cloned().collect::<Vec<_>>();
    let read = locks.into_iter().map(|lock| async move {
        let id = lock.id.clone();
        if let Err(error) = visitor.needs_for(Right::Release, &id) {
            return Err((id, error.detail));
        }
        let holder = holders(&lock, incident.problem).first().or_else(|| lock.holders.first());
        let holder = holder.map(|holder| &*holder.id);
        let offer = read_offer(app, &id).await.map_err(|error| error.detail);
        let offer = offer.map(|offer| Offer { problem: Some(incident.problem), ..offer });
        match offer.and_then(|offer| Ok((choices(&offer, holder)?, offer))) {
            Ok((choices, _)) if choices.is_empty() => Err((id, NOTHING_TO_RELEASE.to_owned())),
            Ok((choices, offer)) => Ok((offer.into(), choices)),
            Err(why) => Err((id, why)),
        }
    });
    let read: Vec<_> = futures_util::stream::iter(read).buffered(READS_AT_ONCE).collect().await;
    let (mut offers, mut left_out) = (Vec::new(), Vec::new());
    for lock in read {
        match lock {
            Ok(offer) => offers.push(offer),
            Err(why) => left_out.push(why),
        }
    }
    let batch = Batch { incident: incident.clone(), offers, left_out };
    let (seen, batch) = releases.offer_batch(batch, visitor.shared_name());
    (seen, batch, incident.locks.len().saturating_sub(MAX_LOCKS))
}

async fn ask(
    page: &PageRequest,
    releases: &Releases,
    incident: &IncidentRow,
    mistake: Option<String>,
    reason: String,
) -> IncidentStep {
    let (seen, batch, more) = offer(&page.app, releases, &page.visitor, incident).await;
    IncidentStep::Ask { batch, seen, more, mistake, reason }
}

pub async fn release_page(page: PageRequest, params: Params<IncidentParams>) -> Response {
    let response = async {
        let name = named(&page.app, params);
        let (releases, incident) = releasable(&page.app, &page.visitor, name)?;
        let step = ask(&page, releases, &incident, None, String::new()).await;
        Ok(shown(StatusCode::OK, &page, incident, step))
    };
    page.answered(response.await)
}

/// A request for a release of an incident's locks.
pub(super) struct Requested<'a> {
    pub(super) releases: &'a Arc<Releases>,
    pub(super) incident: IncidentRow,
    /// The release, or the reason why it was not begun.
    pub(super) release: Result<Running, ReleaseError>,
    /// The operator's reason.
    pub(super) reason: String,
}

/// Begins the requested release, or records the request if it is rejected. A repeated request finds the first one's release
/// also when the incident is over because of it.
pub(super) fn requested<'a>(
    app: &'a App,
    visitor: &CurrentVisitor,
    peer: SocketAddr,
    params: Params<IncidentParams>,
    form: Result<VerifiedForm<BatchRequest>, ApiError>,
) -> Result<Requested<'a>, ApiError> {
    let operator = Operator { name: visitor.shared_name(), from: peer.ip() };
    let name = named(app, params);
    if let (Some(releases), Ok(name), Ok(VerifiedForm(request))) = (&app.releases, &name, &form)
        && visitor.needs(Right::Release).is_ok()
        && let Some((incident, running)) = releases.begun_batch(&request.seen, &operator)
        && name.is_of(&incident)
    {
        let reason = request.reason.clone();
        return Ok(Requested { releases, incident, release: Ok(running), reason });
    }
    let asked = name.as_ref().ok().cloned();
    let found = with_form(releasable(app, visitor, name), form).and_then(|found| {
        let ((releases, _), request) = &found;
        let offered = releases.offered_in_batch(&request.seen, &operator);
        offered.iter().try_for_each(|id| visitor.needs_for(Right::Release, id)).map(|()| found)
    });
    match found {
        Ok(((releases, incident), request)) => {
            let release = releases.release_batch(&incident, &request, &operator);
            Ok(Requested { releases, incident, release, reason: request.reason })
        }
        Err(error) => {
            let incident = asked.and_then(|name| name.find(app).ok());
            if let (Some(releases), Some(incident)) = (&app.releases, incident) {
                let id = &incident.first().0.id;
                releases.record_rejection(id, &operator, &error.detail);
            }
            Err(error)
        }
    }
}

pub async fn release_from_page(
    page: PageRequest,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    params: Params<IncidentParams>,
    form: Result<VerifiedForm<BatchRequest>, ApiError>,
) -> Response {
    let response = async {
        let Requested { releases, incident, release, reason } =
            requested(&page.app, &page.visitor, peer, params, form)?;
        let (status, step) = match release {
            Ok(running) => {
                let outcomes = running.outcomes().await;
                (StatusCode::OK, IncidentStep::Done { outcomes, of: running.size() })
            }
            Err(error) => {
                let why = Some(error.to_string());
                let step = ask(&page, releases, &incident, why, reason).await;
                (error_status(&error), step)
            }
        };
        Ok(shown(status, &page, incident, step))
    };
    page.answered(response.await)
}
