//! What a trusted proxy says of its visitors.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use super::rights::Rights;
use super::{By, Refusal, Visitor};

/// Proxies in front of the dashboard, and the headers by which they say who somebody is.
#[derive(Debug, Clone)]
pub struct Proxy {
    pub networks: Vec<IpNet>,
    /// The header with the user's name.
    pub user: Option<HeaderName>,
    /// The header with the user's groups, parted by commas.
    pub groups: Option<HeaderName>,
    /// Who may do what; without any, every user may do everything.
    pub rules: Vec<Rule>,
}

/// A row of `[[access]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Whom it is for.
    pub who: Who,
    /// What they may do.
    pub rights: Rights,
}

/// Whom a rule is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    User(String),
    /// All of a group.
    Group(String),
}

impl Proxy {
    /// Whether a proxy stands at this address.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.networks.iter().any(|network| network.contains(&peer))
    }

    /// Whether it says who somebody is.
    #[must_use]
    pub fn knows_users(&self) -> bool {
        self.user.is_some()
    }

    /// Whom the proxy speaks of.
    ///
    /// # Errors
    /// When it names nobody, or somebody who may not come in.
    pub(super) fn visitor(&self, headers: &HeaderMap) -> Result<Visitor, Refusal> {
        let header = self.user.as_ref().ok_or(Refusal::Unknown)?;
        let mut users = headers.get_all(header).iter();
        let user = match (users.next(), users.next()) {
            (Some(user), None) => user.to_str().unwrap_or_default().trim(),
            (None, _) => "",
            // Which of them came from the proxy cannot be told.
            (Some(_), Some(_)) => {
                return Err(Refusal::Denied(format!("the header {header} came twice")));
            }
        };
        if user.is_empty() || user.len() > 256 {
            return Err(Refusal::Unknown);
        }
        let rights =
            if self.rules.is_empty() { Some(Rights::ALL) } else { self.rights(user, headers) };
        let Some(rights) = rights else {
            return Err(Refusal::Denied(format!("no [[access]] row is for {user}")));
        };
        Ok(Visitor { name: Some(user.into()), rights, by: By::Proxy })
    }

    /// What all rows together grant.
    fn rights(&self, user: &str, headers: &HeaderMap) -> Option<Rights> {
        let groups: Vec<&str> = match &self.groups {
            Some(header) => headers
                .get_all(header)
                .iter()
                .filter_map(|value| value.to_str().ok())
                .flat_map(|value| value.split(','))
                .map(str::trim)
                .collect(),
            None => Vec::new(),
        };
        let fits = |rule: &&Rule| match &rule.who {
            Who::User(name) => name == user,
            Who::Group(name) => groups.contains(&name.as_str()),
        };
        self.rules.iter().filter(fits).map(|rule| rule.rights).reduce(Rights::and)
    }
}
