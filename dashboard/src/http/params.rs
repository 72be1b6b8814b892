//! What addresses say.

use std::str::FromStr;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::Uri;
use serde::Deserialize;

use super::problem::Problem;
use crate::model::view::WallMillis;
use crate::query::page::MAX_ROWS;

/// What a table's address says.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct TableParams {
    /// The filter.
    #[serde(default)]
    pub filter: String,
    /// What it is sorted by.
    pub sort: Option<String>,
    /// Which end comes first.
    pub order: Option<String>,
    /// Where the page begins.
    pub cursor: Option<String>,
    /// How many rows; the API's only.
    pub limit: Option<String>,
}

/// What the address of another list says.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ListParams {
    /// Which locks it is about.
    #[serde(default)]
    pub filter: String,
    /// Where the page begins.
    pub cursor: Option<String>,
    /// How many rows.
    pub limit: Option<String>,
}

/// How many rows are asked for.
///
/// # Errors
/// Where that is no number, or out of bounds.
pub fn limit(text: Option<&str>) -> Result<usize, Problem> {
    let Some(text) = text else { return Ok(MAX_ROWS) };
    let limit = text.parse().ok().filter(|n| (1..=MAX_ROWS).contains(n));
    limit.ok_or_else(|| Problem::bad_request(format!("`limit` must be from 1 to {MAX_ROWS}")))
}

/// What a lock's address says.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct LockParams {
    /// Deployment; needed where there are several.
    pub deployment: Option<String>,
    /// Database; needed where there are several.
    pub db: Option<String>,
    /// The name.
    pub name: Option<String>,
    /// The name in base64, where it is not UTF-8.
    pub name64: Option<String>,
    /// The instant it is asked about, where that is not now.
    pub at: Option<String>,
}

/// What the address of past events says.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct EventsParams {
    /// From when.
    pub from: Option<String>,
    /// Until when; none: now.
    pub to: Option<String>,
    /// Deployment, where one lock is asked about.
    pub deployment: Option<String>,
    /// Database, likewise.
    pub db: Option<String>,
    /// The name; none: all locks.
    pub name: Option<String>,
    /// The name in base64.
    pub name64: Option<String>,
}

/// Reads an instant, such as `2026-11-21T03:12:00Z`.
///
/// # Errors
/// Where it is none.
pub fn instant(key: &str, text: &str) -> Result<WallMillis, Problem> {
    let at = humantime::parse_rfc3339_weak(text).ok().and_then(|at| {
        let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    });
    at.map(WallMillis).ok_or_else(|| {
        Problem::bad_request(format!(
            "`{key}` is not an instant: expected one in UTC, such as 2026-11-21T03:12:00Z"
        ))
    })
}

/// A page by its address, as a stream keeps it true.
#[derive(Debug, Clone)]
pub enum Address {
    /// The table.
    Locks(TableParams),
    /// One lock.
    Lock(LockParams),
    /// The sources.
    Sources,
}

impl Address {
    /// Reads a page's path and query.
    ///
    /// # Errors
    /// Where there is no such page, or its query cannot be read.
    pub fn parse(path: &str) -> Result<Self, Problem> {
        let uri = Uri::from_str(path)
            .map_err(|_| Problem::bad_request("`path` is not a page's path and query"))?;
        match uri.path() {
            "/" => Ok(Self::Locks(query(&uri)?)),
            "/lock" => Ok(Self::Lock(query(&uri)?)),
            "/sources" => Ok(Self::Sources),
            other => Err(Problem::bad_request(format!("there is no live page `{other}`"))),
        }
    }
}

fn query<T: for<'de> Deserialize<'de>>(uri: &Uri) -> Result<T, Problem> {
    understood(Query::try_from_uri(uri))
}

/// A query's parameters.
///
/// # Errors
/// Where they cannot be read.
pub fn understood<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    query.map(|query| query.0).map_err(|error| Problem::bad_request(error.body_text()))
}
