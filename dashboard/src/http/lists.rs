//! Lists as pages, JSON and CSV.
#![expect(unused_qualifications, reason = "in code that utoipa generates")]

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::ser::SerializeMap as _;
use utoipa::openapi::schema::Type;
use utoipa::openapi::{Array, ObjectBuilder, OneOf, Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::app::App;
use super::csv::{self, Record, Total};
use super::error::ApiError;
use super::params::{Format, ListParams, Params, limit, understood};
use crate::model::contention::GroupTally;
use crate::query::blockers::BlockerRow;
use crate::query::contention::ContentionRow;
use crate::query::facets::Facets;
use crate::query::incidents::IncidentRow;
use crate::query::owners::OwnerRow;
use crate::query::problems::ProblemRow;
use crate::query::shared_pages::Counted;
use crate::query::{self, Filter, Listed, LockRow, Order, Paged, Published, Rows, Threads};
use crate::text::revealed;
use crate::views::{ListPage, ListView};

/// The request for a list.
#[derive(Debug)]
pub struct ListRequest<T> {
    params: ListParams,
    pub by: &'static str,
    pub sort: &'static str,
    pub order: Order,
    /// The query, or a sentence about the error in its filter.
    pub query: Result<query::Query<T>, String>,
}

impl<T: Listed> ListRequest<T> {
    /// Reads the parameters of a list.
    ///
    /// # Errors
    /// If a parameter other than the filter is wrong.
    pub fn new(params: ListParams, limit: usize) -> Result<Self, ApiError> {
        let (by, sort) = (params.by::<T>()?, params.sort::<T>()?);
        let order = params.order::<T>(sort)?;
        let query = match Filter::parse(&params.filter) {
            Ok(filter) => {
                let filter = (params.filter.trim(), filter);
                let query =
                    query::Query::grouped(filter, by, (sort, order), params.cursor(), limit);
                Ok(query.map_err(|error| ApiError::bad_request(error.to_string()))?)
            }
            Err(error) => Err(revealed(&error.to_string())),
        };
        Ok(Self { params, by, sort, order, query })
    }

    /// Reads the parameters of a list that a page shows.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_page(params: ListParams) -> Result<Self, ApiError> {
        let limit = limit(params.limit.as_deref())?;
        Self::new(params, limit)
    }

    /// Returns the requested list as text, which is equal for all addresses of one page.
    #[must_use]
    pub fn key(&self) -> String {
        let (filter, cursor) = (&self.params.filter, self.params.cursor());
        let limit = limit(self.params.limit.as_deref()).ok();
        format!("{:?}", (filter, self.by, self.sort, self.order, cursor, limit))
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
    /// Returns the current rows of a list and its counts, or none if its filter is wrong.
    #[must_use]
    pub fn counted<T: Paged>(&self, request: &ListRequest<T>, threads: Threads) -> Counted<T> {
        match &request.query {
            Ok(query) => T::counted(query, &self.hub, &self.pages, threads),
            Err(_) => Counted { rows: Arc::default(), facets: None },
        }
    }

    /// Returns a list as a page.
    #[must_use]
    pub fn list_page<T: ListView>(
        &self,
        address: &str,
        request: &ListRequest<T>,
        Counted { rows, facets }: &Counted<T>,
    ) -> ListPage<T> {
        ListPage {
            chrome: self.chrome(address),
            filter: request.params.filter.clone(),
            filter_error: request.query.as_ref().err().cloned(),
            by: request.by,
            sort: request.sort,
            order: request.order,
            rows: rows.rows.clone(),
            total: rows.total,
            skipped: rows.skipped,
            cursor: request.params.cursor().map(str::to_owned),
            next: rows.next.clone(),
            prev: rows.prev.clone(),
            facets: facets.clone(),
            cleared: match T::CLEARED {
                true => Arc::clone(&self.hub.snapshot().cleared),
                false => Arc::default(),
            },
            contention: T::GROUPS.then(|| self.hub.contention()),
        }
    }
}

/// One page of a list: `{"owners": […], "total": 3, "next": null}` with the list's own name, and with `groups` or `facets` if
/// the list has some.
struct ListJson<T> {
    rows: Arc<Rows<T>>,
    facets: Option<Arc<Facets>>,
    published: Published,
}

impl<T: Listed> Serialize for ListJson<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(T::NAME, &self.rows.rows)?;
        map.serialize_entry("total", &self.rows.total)?;
        map.serialize_entry("next", &self.rows.next)?;
        map.serialize_entry("prev", &self.rows.prev)?;
        if T::GROUPS {
            map.serialize_entry("groups", &self.published.contention.groups)?;
        }
        if T::FACETS {
            map.serialize_entry("facets", &self.facets)?;
        }
        map.end()
    }
}

impl<T: Listed> PartialSchema for ListJson<T> {
    fn schema() -> RefOr<Schema> {
        let total = "The number of matching rows on all pages.";
        let next = "The cursor of the next page; null on the last.";
        let prev = "The cursor of the page before; null on the first.";
        let mut page = ObjectBuilder::new()
            .property(T::NAME, Array::new(Ref::from_schema_name(T::Schema::name())))
            .required(T::NAME)
            .property("total", described(usize::schema(), total))
            .required("total")
            .property("next", described(Option::<String>::schema(), next))
            .property("prev", described(Option::<String>::schema(), prev));
        if T::GROUPS {
            let groups = Array::new(Ref::from_schema_name(GroupTally::name()));
            page = page.property("groups", groups).required("groups");
        }
        if T::FACETS {
            let facets = OneOf::builder()
                .item(ObjectBuilder::new().schema_type(Type::Null))
                .item(Ref::from_schema_name(Facets::name()))
                .description(Some("The numbers of matching locks; null unless requested."));
            page = page.property("facets", facets);
        }
        page.into()
    }
}

impl<T: Listed> ToSchema for ListJson<T> {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((T::Schema::name().into_owned(), T::Schema::schema()));
        T::Schema::schemas(schemas);
        if T::GROUPS {
            schemas.push((GroupTally::name().into_owned(), GroupTally::schema()));
            GroupTally::schemas(schemas);
        }
        if T::FACETS {
            schemas.push((Facets::name().into_owned(), Facets::schema()));
            Facets::schemas(schemas);
        }
    }
}

type LocksJson = ListJson<LockRow>;
type OwnersJson = ListJson<OwnerRow>;
type ProblemsJson = ListJson<ProblemRow>;
type BlockersJson = ListJson<BlockerRow>;
type IncidentsJson = ListJson<IncidentRow>;
type ContentionJson = ListJson<ContentionRow>;

fn described(schema: RefOr<Schema>, description: &str) -> RefOr<Schema> {
    match schema {
        RefOr::T(Schema::Object(mut object)) => {
            object.description = Some(description.to_owned());
            object.into()
        }
        other => other,
    }
}

/// Describes and defines the handler of a list.
macro_rules! handler {
    ($(#[doc = $about:literal])+ $name:ident, $path:literal, $page:ty, $row:ty) => {
        $(#[doc = $about])+
        #[utoipa::path(
            get,
            path = $path,
            params(ListParams),
            responses(
                (status = 200, description = "A page.", content(
                    (inline($page) = "application/json"), (String = "text/csv"),
                )),
                (status = 400, description = "A parameter is wrong, or the cursor belongs to another filter, sort or order."),
            ),
        )]
        pub(super) async fn $name(app: State<App>, params: Params<ListParams>) -> Result<Response, ApiError> {
            list::<$row>(&app, params)
        }
    };
}

handler! {
    /// Locks, a page at a time.
    locks, "/api/v1/locks", LocksJson, LockRow
}
handler! {
    /// Clients that hold locks or wait for them, those with the most holds first, a page at a time; one by one, by service or by
    /// host.
    owners, "/api/v1/owners", OwnersJson, OwnerRow
}
handler! {
    /// Problems of locks, the certain ones first, then the worst, then the oldest, a page at a time.
    problems, "/api/v1/problems", ProblemsJson, ProblemRow
}
handler! {
    /// Incidents, the certain ones first, then the worst, then the oldest, a page at a time. The same problem of the same owner
    /// is one incident, and so is a deadlock.
    incidents, "/api/v1/incidents", IncidentsJson, IncidentRow
}
handler! {
    /// Locks whose holders wait for nothing, each with the tree of all who wait behind it, a page at a time. Waiters are known by
    /// name from MONITOR, from queues and from agents.
    blockers, "/api/v1/blockers", BlockersJson, BlockerRow
}
handler! {
    /// Locks with waiters now or within the last hour, a page at a time, with the counts of all groups of locks.
    contention, "/api/v1/contention", ContentionJson, ContentionRow
}

fn list<T: Paged + Record>(app: &App, params: Params<ListParams>) -> Result<Response, ApiError> {
    let params = understood(params)?;
    let format = Format::parse(params.format.as_deref())?;
    let limit = match format {
        Format::Json => limit(params.limit.as_deref())?,
        Format::Csv => csv::MAX_ROWS,
    };
    let has_facets = params.facets::<T>()?;
    let request = ListRequest::<T>::new(params, limit)?;
    let query = request.query()?;
    let Counted { rows, facets } = match format {
        Format::Json if has_facets => app.counted(&request, Threads::Several),
        _ => {
            let rows = T::page(query, &app.hub, &app.pages, Threads::Several);
            Counted { rows, facets: None }
        }
    };
    Ok(match format {
        Format::Json => {
            let published = Published::latest(&app.hub);
            Json(ListJson { rows, facets, published }).into_response()
        }
        Format::Csv => {
            let Rows { rows, total, .. } = Arc::unwrap_or_clone(rows);
            csv::response(T::NAME, rows, Total::Exactly(total))
        }
    })
}
