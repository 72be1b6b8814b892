//! Lists as pages, JSON and CSV.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::ser::SerializeMap as _;

use super::app::App;
use super::csv::{self, Record};
use super::error::{ApiError, visible};
use super::params::{Format, ListParams, limit, understood};
use crate::query::{self, Filter, Listed, Order, Paged, Published, Rows};
use crate::views::{ListPage, ListView};

/// A list as requested.
#[derive(Debug)]
pub struct ListRequest<T> {
    params: ListParams,
    pub sort: &'static str,
    pub order: Order,
    /// The query; if its filter is wrong, a sentence that says why.
    pub query: Result<query::Query<T>, String>,
}

impl<T: Listed> ListRequest<T> {
    /// Reads the parameters of a list.
    ///
    /// # Errors
    /// If a parameter other than the filter is wrong.
    pub fn new(params: ListParams, limit: usize) -> Result<Self, ApiError> {
        let sort = params.sort::<T>()?;
        let order = params.order::<T>(sort)?;
        let query = match Filter::parse(&params.filter) {
            Ok(filter) => {
                let filter = (params.filter.trim(), filter);
                let query = query::Query::new(filter, (sort, order), params.cursor(), limit);
                Ok(query.map_err(|error| ApiError::bad_request(error.to_string()))?)
            }
            Err(error) => Err(visible(&error.to_string())),
        };
        Ok(Self { params, sort, order, query })
    }

    /// Reads the parameters of a list that a page shows.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_page(params: ListParams) -> Result<Self, ApiError> {
        let limit = limit(params.limit.as_deref())?;
        Self::new(params, limit)
    }

    /// Returns the query.
    ///
    /// # Errors
    /// If its filter is wrong.
    pub fn query(&self) -> Result<&query::Query<T>, ApiError> {
        self.query.as_ref().map_err(ApiError::bad_request)
    }
}

impl App {
    /// Returns the rows of a list as of now; none if its filter is wrong.
    #[must_use]
    pub fn rows<T: Paged>(&self, request: &ListRequest<T>) -> Arc<Rows<T>> {
        match &request.query {
            Ok(query) => T::page(query, &self.hub, &self.pages),
            Err(_) => Arc::default(),
        }
    }

    /// Returns a list as a page.
    #[must_use]
    pub fn list_page<T: ListView>(
        &self,
        address: &str,
        request: &ListRequest<T>,
        rows: &Rows<T>,
    ) -> ListPage<T> {
        ListPage {
            chrome: self.chrome(address),
            filter: request.params.filter.clone(),
            filter_error: request.query.as_ref().err().cloned(),
            sort: request.sort,
            order: request.order,
            rows: rows.rows.clone(),
            total: rows.total,
            skipped: rows.skipped,
            cursor: request.params.cursor().map(str::to_owned),
            next: rows.next.clone(),
            contention: T::groups(&Published::latest(&self.hub)).map(|_| self.hub.contention()),
        }
    }
}

/// `{"owners": […], "total": 3, "next": null}`, with the list's own name, and `groups` if it reports some.
struct ListJson<T> {
    rows: Arc<Rows<T>>,
    published: Published,
}

impl<T: Listed> Serialize for ListJson<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(T::NAME, &self.rows.rows)?;
        map.serialize_entry("total", &self.rows.total)?;
        map.serialize_entry("next", &self.rows.next)?;
        if let Some(groups) = T::groups(&self.published) {
            map.serialize_entry("groups", groups)?;
        }
        map.end()
    }
}

/// `/api/v1/{locks,owners,problems,contention}`: one page as JSON, or all rows as CSV.
///
/// # Errors
/// If a parameter is wrong.
pub async fn api<T: Paged + Record>(
    State(app): State<App>,
    params: Result<Query<ListParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    let params = understood(params)?;
    let format = Format::parse(params.format.as_deref())?;
    let limit = match format {
        Format::Json => limit(params.limit.as_deref())?,
        Format::Csv => csv::MAX_ROWS,
    };
    let request = ListRequest::<T>::new(params, limit)?;
    request.query()?;
    let rows = app.rows(&request);
    Ok(match format {
        Format::Json => {
            Json(ListJson { rows, published: Published::latest(&app.hub) }).into_response()
        }
        Format::Csv => {
            let Rows { rows, total, .. } = Arc::unwrap_or_clone(rows);
            csv::response(T::NAME, rows, total)
        }
    })
}
