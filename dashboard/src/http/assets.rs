//! The files that pages refer to.

use std::collections::HashMap;

use axum::extract::{Path, Query};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::views::assets::{Asset, find};

/// `/static/{name}`: cached forever if the address has the content's version, otherwise revalidated.
pub async fn file(
    Path(name): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    match find(&name) {
        Some(asset) => answer(asset, query.get("v").map(String::as_str), &headers),
        None => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
    }
}

/// `/favicon.ico`, which browsers request by themselves.
pub async fn icon(headers: HeaderMap) -> Response {
    match find("favicon.svg") {
        Some(asset) => answer(asset, None, &headers),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn answer(asset: &Asset, asked: Option<&str>, headers: &HeaderMap) -> Response {
    let version = asset.version();
    let tag = format!("\"{version}\"");
    let cache = if asked == Some(version.as_str()) {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| matches!(value.trim().trim_start_matches("W/"), t if t == tag || t == "*"));
    let common = [(header::ETAG, tag), (header::CACHE_CONTROL, cache.to_owned())];
    if known {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    ([(header::CONTENT_TYPE, asset.content_type)], common, asset.body).into_response()
}
