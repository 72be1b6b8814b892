//! Lists that are not of locks: the same rows for page, stream, JSON and CSV.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::ser::SerializeMap as _;

use super::app::App;
use super::csv::{self, Record};
use super::params::{Format, TableParams, limit, understood};
use super::problem::{Problem, visible};
use crate::clock::SteadyMillis;
use crate::query::Filter;
use crate::query::list::{Known, ListQuery, ListRows, Listed};
use crate::views::{ListPage, ListView, Order};

/// A list as asked for: what is wrong with its filter stands in it, and it has no rows then.
struct Answer<T> {
    rows: ListRows<T>,
    sort: &'static str,
    order: Order,
    filter_error: Option<String>,
}

/// How a list is sorted, by its parameter.
fn sort_of<T: Listed>(params: &TableParams) -> Result<&'static str, Problem> {
    let usual = T::SORTS.first().copied().unwrap_or_default();
    match params.sort.as_deref().filter(|sort| !sort.is_empty()) {
        None => Ok(usual),
        Some(word) => T::SORTS.iter().find(|sort| **sort == word).copied().ok_or_else(|| {
            let known = T::SORTS.join(", ");
            Problem::bad_request(format!("`sort` is not understood: expected one of {known}"))
        }),
    }
}

fn asked<T: Listed>(app: &App, params: &TableParams, limit: usize) -> Result<Answer<T>, Problem> {
    let sort = sort_of::<T>(params)?;
    let order = match params.order.as_deref().filter(|order| !order.is_empty()) {
        None => T::usual_order(sort),
        Some(word) => Order::parse(word).ok_or_else(|| {
            Problem::bad_request("`order` is not understood: expected asc or desc")
        })?,
    };
    let filter = match Filter::parse(&params.filter) {
        Ok(filter) => filter,
        Err(error) => {
            let rows = ListRows { rows: Vec::new(), total: 0, skipped: 0, next: None };
            return Ok(Answer {
                rows,
                sort,
                order,
                filter_error: Some(visible(&error.to_string())),
            });
        }
    };
    let text = params.filter.trim().to_owned();
    let cursor = params.cursor.clone().filter(|cursor| !cursor.is_empty());
    let rows = ListQuery { text, filter, sort, order, cursor, limit }
        .rows(&app.known(), SteadyMillis::now())
        .map_err(|error| Problem::bad_request(error.to_string()))?;
    Ok(Answer { rows, sort, order, filter_error: None })
}

/// A list as a page shows it.
///
/// # Errors
/// Where a parameter is not understood. A bad filter is told in the page.
pub fn list_page<T: ListView>(
    app: &App,
    address: &str,
    params: &TableParams,
) -> Result<ListPage<T>, Problem> {
    let answer = asked(app, params, limit(None)?)?;
    Ok(ListPage {
        chrome: app.chrome(address),
        filter: params.filter.clone(),
        filter_error: answer.filter_error,
        sort: answer.sort,
        order: answer.order,
        rows: answer.rows,
        cursor: params.cursor.clone().filter(|cursor| !cursor.is_empty()),
        contention: T::groups(&app.known()).map(|_| app.hub.contention()),
    })
}

/// `{"owners": […], "total": 3, "next": null}`, with the list's own name, and `groups` where it tells of some.
struct ListJson<T> {
    rows: ListRows<T>,
    known: Known,
}

impl<T: Listed> Serialize for ListJson<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(T::NAME, &self.rows.rows)?;
        map.serialize_entry("total", &self.rows.total)?;
        map.serialize_entry("next", &self.rows.next)?;
        if let Some(groups) = T::groups(&self.known) {
            map.serialize_entry("groups", groups)?;
        }
        map.end()
    }
}

/// `/api/v1/{owners,problems,contention}`: the rows of a filter's locks, a page at a time; as CSV, all of them.
///
/// # Errors
/// Where a parameter is not understood.
pub async fn api<T: Listed + Record>(
    State(app): State<App>,
    params: Result<Query<TableParams>, QueryRejection>,
) -> Result<Response, Problem> {
    let params = understood(params)?;
    let format = Format::parse(params.format.as_deref())?;
    let limit = match format {
        Format::Json => limit(params.limit.as_deref())?,
        Format::Csv => csv::MAX_ROWS,
    };
    let answer = asked::<T>(&app, &params, limit)?;
    if let Some(error) = answer.filter_error {
        return Err(Problem::bad_request(error));
    }
    Ok(match format {
        Format::Json => Json(ListJson { rows: answer.rows, known: app.known() }).into_response(),
        Format::Csv => csv::response(T::NAME, answer.rows.rows, answer.rows.total),
    })
}
