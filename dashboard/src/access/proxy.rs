//! Visitors that a trusted proxy has authenticated.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use redisson::name::is_invisible;

use super::rights::Rights;
use super::{AuthMethod, Refusal, Stay, Visitor};

/// The greatest length of a user's name, in bytes.
const MAX_NAME: usize = 256;
/// The time after which the stream of a proxy's user ends, in seconds. The proxy checks the login when it is opened again.
const STREAM_SECS: u64 = 600;

/// Trusted proxies and their headers.
#[derive(Debug, Clone)]
pub struct Proxy {
    pub networks: Vec<IpNet>,
    /// The header with the user's name.
    pub user: Option<HeaderName>,
    /// The header with the user's groups, separated by commas.
    pub groups: Option<HeaderName>,
    /// The header with the client's address, as the last one in a list separated by commas.
    pub address: Option<HeaderName>,
    /// The rights of users and groups. Without rules, every user has all rights.
    pub rules: Vec<Rule>,
    /// The address at which the proxy logs its users out.
    pub logout: Option<Arc<str>>,
}

/// A row of `[[access]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub principal: Principal,
    pub rights: Rights,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    User(String),
    Group(String),
}

impl Proxy {
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.networks.iter().any(|network| network.contains(&peer))
    }

    /// Returns the address of the client that the proxy `peer` serves, or of the last trusted proxy that is known. Each
    /// proxy appends the address of its own client, so what stands before an untrusted address may be forged.
    #[must_use]
    pub fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let Some(header) = &self.address else { return peer };
        let lines: Vec<&str> =
            headers.get_all(header).iter().map(|line| line.to_str().unwrap_or_default()).collect();
        let mut hops = lines.iter().rev().flat_map(|line| line.rsplit(','));
        let mut client = peer;
        while self.trusts(client) {
            let Some(hop) = hops.next().and_then(ip) else { break };
            client = hop;
        }
        client
    }

    /// Returns true if the proxies name users.
    #[must_use]
    pub fn knows_users(&self) -> bool {
        self.user.is_some()
    }

    /// Returns the visitor that the proxy names now.
    ///
    /// # Errors
    /// If it names no user, or a user without access.
    pub(super) fn visitor(&self, headers: &HeaderMap, now_secs: u64) -> Result<Visitor, Refusal> {
        let header = self.user.as_ref().ok_or(Refusal::Unknown)?;
        let mut users = headers.get_all(header).iter();
        let user = match (users.next(), users.next()) {
            (Some(user), None) => text(header, user)?.trim(),
            (None, _) => "",
            // One of them may be forged.
            (Some(_), Some(_)) => {
                return Err(Refusal::Denied(format!("duplicate header {header}")));
            }
        };
        if user.is_empty() {
            return Err(Refusal::Unknown);
        }
        if user.len() > MAX_NAME {
            let why = format!("the header {header} is longer than {MAX_NAME} bytes");
            return Err(Refusal::Denied(why));
        }
        let rights =
            if self.rules.is_empty() { Some(Rights::all()) } else { self.rights(user, headers)? };
        let Some(rights) = rights else {
            return Err(Refusal::Denied(format!("no [[access]] row matches {user}")));
        };
        Ok(Visitor {
            name: Some(user.into()),
            rights,
            auth: AuthMethod::Proxy,
            stay: Stay { until_secs: Some(now_secs + STREAM_SECS), ..Stay::default() },
        })
    }

    /// Returns the rights that all matching rules grant together.
    ///
    /// # Errors
    /// If the header with the groups is no text.
    fn rights(&self, user: &str, headers: &HeaderMap) -> Result<Option<Rights>, Refusal> {
        let mut groups = Vec::new();
        if let Some(header) = &self.groups {
            for value in headers.get_all(header) {
                groups.extend(text(header, value)?.split(',').map(str::trim));
            }
        }
        let fits = |rule: &&Rule| match &rule.principal {
            Principal::User(name) => name == user,
            Principal::Group(name) => groups.contains(&name.as_str()),
        };
        let fitting = self.rules.iter().filter(fits).map(|rule| rule.rights.clone());
        Ok(fitting.reduce(|all, more| all.union(&more)))
    }
}

/// Returns an address that a proxy names, with or without the port of the connection.
fn ip(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    text.parse().ok().or_else(with_port).map(|ip: IpAddr| ip.to_canonical())
}

/// Returns the text of a header. Names in it are shown, logged and recorded, so it must be a single line without
/// invisible characters.
fn text<'a>(header: &HeaderName, value: &'a HeaderValue) -> Result<&'a str, Refusal> {
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Refusal::Denied(format!("the header {header} is not UTF-8")))?;
    let hides = |c: char| c.is_control() || is_invisible(c) || (c.is_whitespace() && c != ' ');
    if text.trim_matches(['\t', ' ']).contains(hides) {
        let why = format!("the header {header} contains control characters or invisible ones");
        return Err(Refusal::Denied(why));
    }
    Ok(text)
}
