//! Who may do what.
//!
//! A visitor is known by a token (as Bearer, or by the cookie that `/login` gave for it) or by what a trusted proxy
//! says of them. Where neither is set up everybody may do everything: such a dashboard listens on loopback only,
//! unless it was told otherwise.

pub mod proofs;
pub mod proxy;
pub mod rights;
pub mod tokens;

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};

use proofs::{Proof, Proofs, Stranger};
use proxy::Proxy;
use rights::{Right, Rights};
use tokens::Tokens;

/// The cookie's name where it may only come by TLS: browsers then also refuse to set it for other hosts or paths.
const SECURE_COOKIE: &str = "__Host-lockscope";
const PLAIN_COOKIE: &str = "lockscope";
/// The same for a browser with which nobody has logged in yet.
const SECURE_STRANGER: &str = "__Host-lockscope-login";
const PLAIN_STRANGER: &str = "lockscope-login";

/// Somebody who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visitor {
    /// How they are called in logs and on pages; none where nobody has to say who they are.
    pub name: Option<Arc<str>>,
    /// What they may do.
    pub rights: Rights,
    /// By what they are known.
    pub by: By,
}

/// By what a visitor is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Everybody may come.
    Nothing,
    /// A token sent with the request: no browser sends one by itself.
    Bearer,
    /// The cookie for a token.
    Cookie,
    /// A trusted proxy's word.
    Proxy,
}

/// Why somebody is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// They have to say who they are.
    Unknown,
    /// They said, and may not; a sentence.
    Denied(String),
}

#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Tokens, where there is a file of them.
    pub tokens: Option<Tokens>,
    /// Proxies that say who a visitor is.
    pub proxy: Option<Proxy>,
    /// Whether cookies may only come by TLS.
    pub secure_cookies: bool,
    /// Makes what forms of visitors without a login carry.
    pub proofs: Proofs,
    /// Whether others than this host and the proxies are refused: plain HTTP on an address that they can reach.
    pub proxies_only: bool,
}

impl Access {
    /// Whether visitors have to say who they are.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.tokens.is_some() || self.proxy.as_ref().is_some_and(Proxy::knows_users)
    }

    /// Who sends these headers from this address, at this moment (seconds since the epoch).
    ///
    /// # Errors
    /// When they have to say who they are, or may not come in.
    pub fn visitor(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
        now_secs: u64,
    ) -> Result<Visitor, Refusal> {
        if self.proxies_only && !peer.to_canonical().is_loopback() && !self.trusts(peer) {
            return Err(Refusal::Denied(
                "this address speaks plain HTTP: come through the proxy".to_owned(),
            ));
        }
        if !self.is_needed() {
            return Ok(Visitor { name: None, rights: Rights::ALL, by: By::Nothing });
        }
        if let Some(tokens) = &self.tokens {
            if let Some(sent) = bearer(headers) {
                let token = tokens.find(sent).ok_or(Refusal::Unknown)?;
                return Ok(token.visitor(By::Bearer));
            }
            let cookie = cookie(headers, self.cookie_name());
            if let Some(token) = cookie.and_then(|cookie| tokens.of_cookie(cookie, now_secs)) {
                return Ok(token.visitor(By::Cookie));
            }
        }
        match &self.proxy {
            Some(proxy) if proxy.trusts(peer) => proxy.visitor(headers),
            _ => Err(Refusal::Unknown),
        }
    }

    /// What forms of pages made for this visitor, who sends these headers, have to send back; none where no form is
    /// taken, and where the visitor is known by what no browser sends by itself.
    #[must_use]
    pub fn proof(&self, visitor: &Visitor, headers: &HeaderMap) -> Option<Proof> {
        match visitor.by {
            By::Bearer => None,
            By::Cookie => {
                let cookie = cookie(headers, self.cookie_name())?;
                self.tokens.as_ref().and_then(|tokens| tokens.proof(cookie))
            }
            By::Nothing | By::Proxy => self.proofs.of(visitor.name.as_deref()),
        }
    }

    /// The browser that sends these headers, where it was given the form of the login before.
    #[must_use]
    pub fn stranger(&self, headers: &HeaderMap) -> Option<Stranger> {
        cookie(headers, self.strangers_cookie()).and_then(Stranger::parse)
    }

    /// The header that has a browser keep what it is known by until it is closed.
    #[must_use]
    pub fn set_stranger(&self, stranger: &Stranger) -> String {
        let (name, value) = (self.strangers_cookie(), stranger.as_str());
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{}", self.secure())
    }

    fn strangers_cookie(&self) -> &'static str {
        if self.secure_cookies { SECURE_STRANGER } else { PLAIN_STRANGER }
    }

    fn secure(&self) -> &'static str {
        if self.secure_cookies { "; Secure" } else { "" }
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.trusts(peer))
    }

    /// How the cookie is called.
    #[must_use]
    pub fn cookie_name(&self) -> &'static str {
        if self.secure_cookies { SECURE_COOKIE } else { PLAIN_COOKIE }
    }

    /// The header that sets the cookie to this value for so many seconds; empty and 0 end it.
    #[must_use]
    pub fn set_cookie(&self, value: &str, max_age_secs: u64) -> String {
        let secure = self.secure();
        let name = self.cookie_name();
        format!("{name}={value}; Path=/; Max-Age={max_age_secs}; HttpOnly; SameSite=Strict{secure}")
    }
}

impl Visitor {
    /// Whether they may.
    #[must_use]
    pub fn may(&self, right: Right) -> bool {
        self.rights.has(right)
    }
}

/// What stands behind `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// A cookie's value. One that comes twice is none: the second may have been set from elsewhere.
fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut found = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| value);
    let first = found.next();
    if found.next().is_some() { None } else { first }
}

#[cfg(test)]
mod tests;
