//! Lists of the API that are not of locks: problems, and those who hold.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::app::App;
use super::params::{ListParams, limit, understood};
use super::problem::Problem;
use crate::model::actor::wall;
use crate::model::view::{Certainty, ClientView, LockId, ProblemView, WallMillis};
use crate::query::Filter;
use crate::query::page::BadCursor;

/// A place in a list; it stays valid when its row is gone.
#[derive(Serialize, Deserialize)]
struct Cursor<K> {
    /// Of which list.
    list: u64,
    key: K,
}

fn list_of(route: &str, filter: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (route, filter.trim()).hash(&mut hasher);
    hasher.finish()
}

/// The rows of a page, how many there are in all, and where the next page begins.
fn page<K: Ord + Serialize + DeserializeOwned, T>(
    rows: BTreeMap<K, T>,
    list: u64,
    params: &ListParams,
) -> Result<(Vec<T>, usize, Option<String>), Problem> {
    let after = match params.cursor.as_deref().filter(|cursor| !cursor.is_empty()) {
        None => None,
        Some(cursor) => {
            let json = URL_SAFE_NO_PAD.decode(cursor).ok();
            let cursor = json.and_then(|json| serde_json::from_slice::<Cursor<K>>(&json).ok());
            let ours = cursor.filter(|cursor| cursor.list == list);
            Some(ours.ok_or_else(|| Problem::bad_request(BadCursor.to_string()))?.key)
        }
    };
    let limit = limit(params.limit.as_deref())?;
    let total = rows.len();
    let mut behind = rows.into_iter().filter(|(key, _)| after.as_ref().is_none_or(|at| key > at));
    let mut shown = Vec::new();
    let mut last = None;
    for (key, row) in behind.by_ref().take(limit) {
        shown.push(row);
        last = Some(key);
    }
    let more = behind.next().is_some();
    let next = last.filter(|_| more).map(|key| {
        // Numbers and strings: this cannot fail.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&Cursor { list, key }).unwrap_or_default())
    });
    Ok((shown, total, next))
}

fn filter(params: &ListParams) -> Result<Filter, Problem> {
    Filter::parse(&params.filter).map_err(|error| Problem::bad_request(error.to_string()))
}

#[derive(Serialize)]
struct ProblemRow<'a> {
    lock: &'a LockId,
    #[serde(flatten)]
    problem: &'a ProblemView,
}

#[derive(Serialize)]
struct ProblemsJson<'a> {
    problems: Vec<ProblemRow<'a>>,
    total: usize,
    next: Option<String>,
}

/// `/api/v1/problems`: what is sure before what is suspected, the worst first, then by age.
///
/// # Errors
/// Where a parameter is not understood.
pub async fn problems(
    State(app): State<App>,
    params: Result<Query<ListParams>, QueryRejection>,
) -> Result<Response, Problem> {
    let params = understood(params)?;
    let filter = filter(&params)?;
    let (snapshot, now) = (app.hub.snapshot(), wall());
    let mut rows = BTreeMap::new();
    for lock in snapshot.locks().filter(|lock| !lock.problems.is_empty()) {
        if !filter.matches(lock, now) {
            continue;
        }
        for problem in &lock.problems {
            let suspected = problem.certainty == Certainty::Suspected;
            let LockId { deployment, db, name } = &lock.id;
            let place = (deployment.to_string(), *db, name.as_bytes().to_vec());
            let key = (suspected, problem.problem as u8, problem.since.0, place);
            rows.insert(key, ProblemRow { lock: &lock.id, problem });
        }
    }
    let list = list_of("problems", &params.filter);
    let (problems, total, next) = page(rows, list, &params)?;
    Ok(Json(ProblemsJson { problems, total, next }).into_response())
}

/// A client with all that it holds.
#[derive(Serialize)]
struct OwnerRow<'a> {
    deployment: &'a str,
    /// Its uuid; the whole field where that is none.
    id: &'a str,
    /// How many holds it has, each reader of a lock being one.
    holds: usize,
    /// How many of them are of locks with problems.
    with_problems: usize,
    /// Since when it has had the oldest of them.
    oldest: WallMillis,
    /// Its process, as of one of its holds for which it is known.
    client: Option<&'a ClientView>,
}

#[derive(Serialize)]
struct OwnersJson<'a> {
    owners: Vec<OwnerRow<'a>>,
    total: usize,
    next: Option<String>,
}

/// `/api/v1/owners`: the clients that hold the locks of a filter, by deployment and uuid.
///
/// # Errors
/// Where a parameter is not understood.
pub async fn owners(
    State(app): State<App>,
    params: Result<Query<ListParams>, QueryRejection>,
) -> Result<Response, Problem> {
    let params = understood(params)?;
    let filter = filter(&params)?;
    let (snapshot, now) = (app.hub.snapshot(), wall());
    let mut rows: BTreeMap<(String, String), OwnerRow<'_>> = BTreeMap::new();
    for lock in snapshot.locks().filter(|lock| lock.is_held() && filter.matches(lock, now)) {
        for holder in &lock.holders {
            let id = if holder.uuid.is_empty() { &holder.id } else { &holder.uuid };
            let key = (lock.id.deployment.to_string(), id.clone());
            let row = rows.entry(key).or_insert_with(|| OwnerRow {
                deployment: &lock.id.deployment,
                id,
                holds: 0,
                with_problems: 0,
                oldest: holder.since.at,
                client: None,
            });
            row.holds += 1;
            row.with_problems += usize::from(!lock.problems.is_empty());
            row.oldest = row.oldest.min(holder.since.at);
            row.client = row.client.or(holder.client.as_ref());
        }
    }
    let list = list_of("owners", &params.filter);
    let (owners, total, next) = page(rows, list, &params)?;
    Ok(Json(OwnersJson { owners, total, next }).into_response())
}
