//! The check of the Host header, against DNS rebinding.
//!
//! A malicious page can let one of its own names resolve to this server's address. The browser then
//! treats the server's responses as same-origin with that page. Such a request carries the page's
//! name in its Host header. An IP address cannot be rebound, so all addresses are allowed. Of the
//! names, `localhost`, those of this host and the configured ones are.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::own_names::own_names;

/// The names that are accepted in the Host header.
#[derive(Debug, Clone)]
pub struct AllowedHosts {
    names: Arc<[String]>,
    flag: &'static str,
}

impl AllowedHosts {
    /// Allows `names`, `localhost` and all IP addresses. `flag` is the setting that adds names, for the
    /// text of a rejection.
    pub fn new(names: impl IntoIterator<Item = String>, flag: &'static str) -> Self {
        let normalized = |name: String| name.trim_end_matches('.').to_ascii_lowercase();
        Self { names: names.into_iter().map(normalized).collect(), flag }
    }

    /// Allows the names of this host too, so that Prometheus can address a server at `address` by name.
    #[must_use]
    pub fn with_own_names(self, address: IpAddr) -> Self {
        let names = self.names.iter().cloned().chain(own_names(address)).collect();
        Self { names, ..self }
    }

    fn allow(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        is_address || host == "localhost" || self.names.contains(&host)
    }
}

/// Middleware for `axum::middleware::from_fn_with_state` that accepts requests for allowed hosts.
/// Responds with 400 to a request without a valid host, and with 421 to any other host.
pub async fn check_host(
    State(allowed): State<AllowedHosts>,
    request: Request,
    next: Next,
) -> Response {
    match host_of(&request) {
        Some(host) if allowed.allow(host) => next.run(request).await,
        Some(host) => {
            let shown: String = host.chars().take(253).filter(char::is_ascii_graphic).collect();
            let text =
                format!("this server is not called `{shown}`: add the name by {}\n", allowed.flag);
            (StatusCode::MISDIRECTED_REQUEST, text).into_response()
        }
        None => (StatusCode::BAD_REQUEST, "the request must have one valid Host header\n")
            .into_response(),
    }
}

/// Returns the requested host without its port.
fn host_of(request: &Request) -> Option<&str> {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let from_header = match (headers.next(), headers.next()) {
        (Some(host), None) => Some(host.to_str().ok()?),
        (None, _) => None,
        (Some(_), Some(_)) => return None,
    };
    let authority =
        request.uri().authority().map(axum::http::uri::Authority::as_str).or(from_header)?;
    without_port(authority)
}

fn without_port(authority: &str) -> Option<&str> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, ""),
    };
    let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
    let ok = port.bytes().all(|byte| byte.is_ascii_digit())
        && !host.is_empty()
        && !host.contains('@')
        && !is_bare_ipv6;
    ok.then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_configured_names_are_allowed() {
        let allowed = AllowedHosts::new(["Locks.Example.org".to_owned()], "--allowed-host");
        let names =
            ["localhost", "LOCALHOST.", "127.0.0.1", "[::1]", "10.2.3.4", "locks.example.org"];
        for host in names {
            assert!(allowed.allow(host), "{host}");
        }
        let others = ["evil.example.org", "localhost.evil.org", "127.0.0.1.evil.org", "", "0x7f.1"];
        for host in others {
            assert!(!allowed.allow(host), "{host}");
        }
    }

    #[test]
    fn ports_are_removed() {
        for (authority, host) in [
            ("localhost:9761", Some("localhost")),
            ("localhost", Some("localhost")),
            ("[::1]:9761", Some("[::1]")),
            ("[::1]", Some("[::1]")),
            ("localhost:", Some("localhost")),
            ("::1", None),
            ("user@localhost", None),
            ("localhost:port", None),
            (":80", None),
            ("", None),
        ] {
            assert_eq!(without_port(authority), host, "{authority}");
        }
    }
}
