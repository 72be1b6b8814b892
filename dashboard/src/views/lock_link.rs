//! A lock's name with its link and place.

use askama::Template;
use askama::filters::HtmlSafe;

use super::row::place;
use super::{Chrome, links};
use crate::clock::SteadyMillis;
use crate::model::types::LockId;
use crate::text;

#[derive(Template)]
#[template(path = "parts/lock_name.html")]
pub(super) struct LockLink {
    link: String,
    name: String,
    place: Option<String>,
}

impl HtmlSafe for LockLink {}

impl LockLink {
    pub(super) fn new(id: &LockId, chrome: &Chrome) -> Self {
        Self::at(id, chrome, None)
    }

    /// Returns the link with the servers of a red lock as its place.
    pub(super) fn on(self, servers: String) -> Self {
        Self { place: Some(servers), ..self }
    }

    /// Returns a link to the lock as of an instant, if one is given.
    pub(super) fn at(id: &LockId, chrome: &Chrome, at: Option<SteadyMillis>) -> Self {
        Self {
            link: at.map_or_else(|| links::lock(id), |at| links::lock_at(id, at)),
            name: text::visible(id.name.as_bytes()),
            place: place(id, chrome.several_deployments, chrome.several_dbs),
        }
    }
}
