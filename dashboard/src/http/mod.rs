//! Pages, API, streams and files over HTTP.

pub mod actions;
pub mod api;
pub mod app;
pub mod assets;
pub mod bundle;
pub mod csv;
pub mod error;
pub mod guard;
pub mod history;
pub mod history_api;
pub mod lists;
pub mod live;
pub mod openapi;
pub mod page_data;
pub mod page_request;
pub mod pages;
pub mod params;
pub mod router;
pub mod streams;
pub mod trace;
pub mod viewers;

pub use app::{App, PageSettings};
pub use router::{metrics_router, router};
pub use streams::MAX_STREAMS;
