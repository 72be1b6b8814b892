//! Parsers of the values of single settings.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use service_kit::redis::Deployment;
use service_kit::settings::HumanDuration;

/// A server by its URL, with an optional name.
#[derive(Debug, Clone)]
pub(super) struct NamedUrl {
    /// The deployment's name, if one was given.
    pub(super) name: Option<String>,
    /// The server, the sentinels or the cluster.
    pub(super) target: Deployment,
}

impl FromStr for NamedUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.contains("://") => (Some(deployment_name(name)?), url),
            _ => (None, text),
        };
        Ok(Self { name, target: url.parse::<Deployment>().map_err(|error| error.to_string())? })
    }
}

/// Parses the name of a deployment.
pub(super) fn deployment_name(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        return Err(format!(
            "`{name}` cannot name a deployment: expected up to 64 letters, digits, `-`, `_` or `.`"
        ));
    }
    Ok(name.to_owned())
}

/// A number of bytes, in the units of `redis.conf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// The units, and the number of bits by which they shift.
const UNITS: [(&str, u32); 3] = [("gb", 30), ("mb", 20), ("kb", 10)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let with_unit =
            UNITS.into_iter().find_map(|(unit, bits)| Some((lower.strip_suffix(unit)?, bits)));
        let (number, bits) = with_unit.unwrap_or((&lower, 0));
        let number: Option<u64> = number.parse().ok();
        let bytes = number
            .and_then(|number| number.checked_mul(1 << bits))
            .filter(|bytes| *bytes >= 1 << 20);
        bytes.map(Self).ok_or_else(|| "expected a size of at least 1mb, such as 64mb".to_owned())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let unit = UNITS.iter().find(|(_, bits)| bytes > 0 && bytes.trailing_zeros() >= *bits);
        match unit {
            Some((unit, bits)) => write!(f, "{}{unit}", bytes >> bits),
            None => write!(f, "{bytes}"),
        }
    }
}

/// Parses a duration of at least a second.
pub(super) fn at_least_a_second(text: &str) -> Result<HumanDuration, String> {
    let duration: HumanDuration = text.parse()?;
    if duration.0 < Duration::from_secs(1) {
        return Err("expected at least 1s".to_owned());
    }
    Ok(duration)
}

/// Parses a name in which `*` matches anything.
pub(super) fn glob(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("expected a name, perhaps with `*`".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// Parses the badge of every page that distinguishes environments.
pub(super) fn badge(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().count() > 40 || text.chars().any(char::is_control) {
        return Err("expected 1 to 40 printable characters".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses the note at the head of every page.
pub(super) fn note(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > 500 || text.chars().any(char::is_control) {
        return Err("expected 1 to 500 printable characters".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses an address that visitors use in a browser.
pub(super) fn public_url(text: &str) -> Result<String, String> {
    let uri: Result<axum::http::Uri, _> = text.parse();
    let known = |uri: &axum::http::Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    match uri {
        Ok(uri) if known(&uri) && uri.host().is_some() => match uri.path_and_query() {
            Some(rest) if rest.as_str() != "/" => Err(format!(
                "expected no path: the dashboard is served at the root of a host, not under `{rest}`"
            )),
            _ => Ok(text.to_owned()),
        },
        _ => Err("expected, for example, https://locks.example.com".to_owned()),
    }
}

/// Parses an address for a link: a path of the host that visitors use, or a whole address.
pub(super) fn link(text: &str) -> Result<String, String> {
    let uri: Result<axum::http::Uri, _> = text.parse();
    let is_whole = |uri: &axum::http::Uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
    };
    // A browser reads `//host` and `/\\host` as another host.
    let is_path = text.strip_prefix('/').is_some_and(|rest| !rest.starts_with(['/', '\\']));
    match uri {
        Ok(uri) if is_path || is_whole(&uri) => Ok(text.to_owned()),
        _ => Err("expected a path or an address, such as /oauth2/sign_out?rd=/".to_owned()),
    }
}

/// Returns the origin of a visitor's address, as browsers send it: in lower case, without the usual port.
pub(super) fn origin_of(url: &str) -> Option<String> {
    let uri = url.parse::<axum::http::Uri>().ok()?;
    let (scheme, host) = (uri.scheme_str()?, uri.host()?.to_ascii_lowercase());
    let usual = if scheme == "https" { 443 } else { 80 };
    let port = uri.port_u16().filter(|port| *port != usual);
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    Some(format!("{scheme}://{host}{port}"))
}

/// Returns the host of a visitor's address.
pub(super) fn host_of(url: &str) -> Option<String> {
    url.parse::<axum::http::Uri>().ok()?.host().map(str::to_owned)
}
