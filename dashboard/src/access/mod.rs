//! Authentication and authorization.
//!
//! A visitor is authenticated by a bearer token, by the cookie that `/login` sets for one, or by a trusted proxy.
//! Without a token file and a proxy, everyone has all rights. Such a dashboard listens on loopback only, unless the
//! settings allow more.

pub mod agent_keys;
pub mod attempts;
pub mod csrf;
pub mod eviction;
pub mod logins;
pub mod proxy;
pub mod rejections;
pub mod rights;
mod text_file;
pub mod token_file;
pub mod tokens;

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use redisson::LockName;
use tokio_util::sync::CancellationToken;

use attempts::Attempts;
use csrf::{CsrfKey, CsrfToken, LoginNonce};
use logins::Logins;
use proxy::Proxy;
use rejections::Rejections;
use rights::{Right, Rights};
use token_file::TokenFile;
use tokens::Token;

/// The login cookie's name over TLS. Browsers refuse to set cookies with this prefix for other hosts or paths.
const SECURE_COOKIE: &str = "__Host-lockscope";
const PLAIN_COOKIE: &str = "lockscope";
/// The name of the cookie with the [`LoginNonce`].
const SECURE_NONCE: &str = "__Host-lockscope-login";
const PLAIN_NONCE: &str = "lockscope-login";

/// The sender of a request.
#[derive(Debug, Clone)]
pub struct Visitor {
    /// The name for logs and pages, or `None` if no authentication is required.
    pub name: Option<Arc<str>>,
    pub rights: Rights,
    pub auth: AuthMethod,
    /// The end of a stream that this visitor opens.
    pub stay: Stay,
}

/// The time for which a visitor may stay. Unlimited by default.
#[derive(Debug, Clone, Default)]
pub struct Stay {
    /// Cancelled at a logout, and when the visitor's token is removed.
    pub ended: CancellationToken,
    /// The end of the login, seconds since the epoch.
    pub until_secs: Option<u64>,
}

/// The method by which a visitor was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMethod {
    NotRequired,
    /// A token in the request. Browsers never send one on their own.
    Bearer,
    /// A login cookie.
    Cookie,
    /// A header of a trusted proxy.
    Proxy,
}

/// The reason for which a visitor is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Authentication is required.
    Unknown,
    /// Too many unknown tokens came from the address; this one was not compared.
    Limited,
    /// The visitor has no access. The text is a sentence.
    Denied(String),
}

#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The token file, if there is one.
    pub tokens: Option<TokenFile>,
    pub logins: Logins,
    pub attempts: Attempts,
    pub rejections: Rejections,
    /// Rejections because of unknown tokens.
    pub unknown_tokens: Rejections,
    /// Trusted proxies.
    pub proxy: Option<Proxy>,
    /// True if browsers may send cookies over TLS only.
    pub secure_cookies: bool,
    /// The origin of the address that users open, such as `https://locks.example.com`, if it is known.
    pub public_origin: Option<String>,
    /// The key of CSRF tokens for visitors without a login.
    pub csrf_key: CsrfKey,
    /// True if only this host and the proxies may connect, since the address is public and uses plain HTTP.
    pub proxies_only: bool,
}

impl Access {
    /// Returns true if visitors must be authenticated.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.tokens.is_some() || self.proxy.as_ref().is_some_and(Proxy::knows_users)
    }

    /// Returns the address of a request's client: `peer`, or the one that a trusted proxy names.
    #[must_use]
    pub fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        self.proxy.as_ref().map_or(peer, |proxy| proxy.client(headers, peer))
    }

    /// Authenticates the sender of a request. `now_secs` is the time in seconds since the epoch.
    ///
    /// # Errors
    /// If authentication is missing or the visitor has no access.
    pub fn visitor(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
        now_secs: u64,
    ) -> Result<Visitor, Refusal> {
        if self.proxies_only && !peer.to_canonical().is_loopback() && !self.trusts(peer) {
            return Err(Refusal::Denied(
                "this address uses plain HTTP: connect through the proxy".to_owned(),
            ));
        }
        if !self.is_needed() {
            return Ok(Visitor {
                name: None,
                rights: Rights::all(),
                auth: AuthMethod::NotRequired,
                stay: Stay::default(),
            });
        }
        if let Some(tokens) = &self.tokens {
            if let Some(sent) = bearer(headers) {
                let client = self.client(headers, peer);
                return self.token(tokens, sent, client, now_secs).map(|token| token.visitor());
            }
            let cookie = cookie(headers, self.cookie_name());
            if let Some(login) = cookie.and_then(|cookie| self.logins.find(cookie, now_secs)) {
                return Ok(login.visitor());
            }
        }
        match &self.proxy {
            Some(proxy) if proxy.trusts(peer) => proxy.visitor(headers, now_secs),
            _ => Err(Refusal::Unknown),
        }
    }

    /// Returns the token of a login form.
    ///
    /// # Errors
    /// If it is unknown, or too many unknown ones came from the address of the client.
    pub fn token_of_form(
        &self,
        sent: &str,
        client: IpAddr,
        now_secs: u64,
    ) -> Result<Arc<Token>, Refusal> {
        let tokens = self.tokens.as_ref().ok_or(Refusal::Unknown)?;
        self.token(tokens, sent, client, now_secs)
    }

    fn token(
        &self,
        tokens: &TokenFile,
        sent: &str,
        client: IpAddr,
        now_secs: u64,
    ) -> Result<Arc<Token>, Refusal> {
        let digest = tokens::digest(sent);
        let exhausted = self.attempts.are_exhausted(client, digest, now_secs);
        let found = if exhausted { None } else { tokens.now().find(sent).cloned() };
        if found.is_some() {
            self.attempts.accepted(client, digest, now_secs);
        }
        found.ok_or_else(|| {
            self.attempts.count(client, now_secs);
            if let Some(withheld) = self.unknown_tokens.count(now_secs) {
                tracing::warn!(from = %client, withheld, "login rejected: unknown token");
            }
            if exhausted { Refusal::Limited } else { Refusal::Unknown }
        })
    }

    /// Ends the login of a request.
    pub fn log_out(&self, headers: &HeaderMap) {
        if let Some(cookie) = cookie(headers, self.cookie_name()) {
            self.logins.end(cookie);
        }
    }

    /// Returns the CSRF token for the forms of a visitor. Returns `None` for bearer tokens, which no browser sends on
    /// its own, and if forms are rejected.
    #[must_use]
    pub fn csrf_token(&self, visitor: &Visitor, headers: &HeaderMap) -> Option<CsrfToken> {
        match visitor.auth {
            AuthMethod::Bearer => None,
            AuthMethod::Cookie => cookie(headers, self.cookie_name()).map(logins::csrf_token),
            AuthMethod::NotRequired | AuthMethod::Proxy => {
                self.csrf_key.token(visitor.name.as_deref())
            }
        }
    }

    /// Returns the nonce that the browser received with the login form.
    #[must_use]
    pub fn login_nonce(&self, headers: &HeaderMap) -> Option<LoginNonce> {
        cookie(headers, self.nonce_cookie()).and_then(LoginNonce::parse)
    }

    /// Returns the header that sets the nonce's cookie until the browser is closed.
    #[must_use]
    pub fn set_login_nonce(&self, nonce: &LoginNonce) -> String {
        let (name, value) = (self.nonce_cookie(), nonce.as_str());
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{}", self.secure())
    }

    fn nonce_cookie(&self) -> &'static str {
        if self.secure_cookies { SECURE_NONCE } else { PLAIN_NONCE }
    }

    fn secure(&self) -> &'static str {
        if self.secure_cookies { "; Secure" } else { "" }
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.trusts(peer))
    }

    /// Returns the login cookie's name.
    #[must_use]
    pub fn cookie_name(&self) -> &'static str {
        if self.secure_cookies { SECURE_COOKIE } else { PLAIN_COOKIE }
    }

    /// Returns the header that sets the login cookie for some seconds. An empty value and 0 delete it.
    #[must_use]
    pub fn set_cookie(&self, value: &str, max_age_secs: u64) -> String {
        let secure = self.secure();
        let name = self.cookie_name();
        // Not `Strict`: a visitor who follows a link of an alert would have to log in again. No GET changes anything.
        format!("{name}={value}; Path=/; Max-Age={max_age_secs}; HttpOnly; SameSite=Lax{secure}")
    }
}

impl Visitor {
    #[must_use]
    pub fn may(&self, right: Right) -> bool {
        self.rights.has(right)
    }

    /// Returns true if the visitor has a right for this lock.
    #[must_use]
    pub fn may_for(&self, right: Right, name: &LockName) -> bool {
        self.rights.has_for(right, name)
    }
}

/// Returns the token of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns a cookie's value. A cookie that is sent twice is ignored: another site may have set one of them.
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
