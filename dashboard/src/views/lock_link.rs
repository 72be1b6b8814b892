//! The names of locks and groups, each with its link and place.

use askama::Template;
use askama::filters::HtmlSafe;

use super::{Chrome, links};
use crate::clock::SteadyMillis;
use crate::model::contention::GroupTally;
use crate::model::types::LockId;
use crate::text;

#[derive(Template)]
#[template(path = "parts/name.html")]
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

    /// Returns a link to the lock, with its deployment and database as far as there are several.
    pub(super) fn placed(id: &LockId, several_deployments: bool, several_dbs: bool) -> Self {
        Self {
            link: links::lock(id),
            name: text::visible(id.name.as_bytes()),
            place: place(id, several_deployments, several_dbs),
        }
    }

    /// Returns the link with the servers of a red lock as its place.
    pub(super) fn on(self, servers: String) -> Self {
        Self { place: Some(servers), ..self }
    }

    /// Returns a link to the lock as of an instant, if one is given.
    pub(super) fn at(id: &LockId, chrome: &Chrome, at: Option<SteadyMillis>) -> Self {
        let now = Self::placed(id, chrome.several_deployments, chrome.several_dbs);
        match at {
            Some(at) => Self { link: links::lock_at(id, at), ..now },
            None => now,
        }
    }
}

/// Returns a lock's deployment and database, as far as there are several.
fn place(id: &LockId, several_deployments: bool, several_dbs: bool) -> Option<String> {
    match (several_deployments, several_dbs) {
        (true, true) => Some(format!("{}/{}", id.deployment, id.db)),
        (true, false) => Some(id.deployment.to_string()),
        (false, true) => Some(format!("db {}", id.db)),
        (false, false) => None,
    }
}

/// A group's name with the link to the list of its locks.
#[derive(Debug, Template)]
#[template(path = "parts/name.html")]
pub(super) struct GroupLink {
    link: String,
    pub(super) name: String,
    /// The deployment, if there are several.
    pub(super) place: Option<String>,
}

impl HtmlSafe for GroupLink {}

impl GroupLink {
    /// `several` is true if there are several deployments.
    pub(super) fn new(group: &GroupTally, several: bool) -> Self {
        let place = several.then_some(&*group.deployment);
        Self {
            link: links::group(&group.lock_group, place),
            name: text::visible(group.lock_group.as_bytes()),
            place: place.map(str::to_owned),
        }
    }
}
