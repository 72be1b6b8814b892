//! Types of values shared by the programs' settings: durations and secrets.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The text shown in place of a secret.
const MASK: &str = "***";

/// A duration with units, as people write it: `500ms`, `3s`, `5m`, `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

impl From<HumanDuration> for Duration {
    fn from(duration: HumanDuration) -> Self {
        duration.0
    }
}

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|_| "expected a duration with its unit, such as 500ms, 3s or 5m".to_owned())
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses an address to listen on.
///
/// # Errors
///
/// A text that is not an IP address with a port.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected an IP address and a port, such as 127.0.0.1:9000, [::1]:9000 or 0.0.0.0:9000"
            .to_owned()
    })
}

/// A text that no log, page or error may show. Only [`expose`](Self::expose) returns it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret from `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Reads a secret from a file, without a final line break.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is not UTF-8, or is empty. The text names the file.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            return Err(format!("{} is empty; it must hold the secret", path.display()));
        }
        Ok(Self::new(line))
    }

    /// Returns the text itself, for its one user.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::new(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

/// Masks the password of each `scheme://user:password@host` in `text`. A password may contain any unescaped character
/// except white space, so everything up to the word's last `@` is masked, and everything after `sentinel_password=`.
#[must_use]
pub(crate) fn mask_url_passwords(text: &str) -> String {
    text.split_inclusive(char::is_whitespace).map(mask_word).collect()
}

/// Masks what may be a password in a value that was rejected, and may be a mistyped URL: the user and password before the last `@`, and
/// the value of each option after a `?`.
#[must_use]
pub(crate) fn mask_credentials(value: &str) -> String {
    let mut text = value.to_owned();
    if let Some((login, host)) = value.rsplit_once('@') {
        let (scheme, login) = login.split_once("://").unwrap_or(("", login));
        let separator = if scheme.is_empty() { "" } else { "://" };
        let user = login.split_once(':').map_or_else(String::new, |(user, _)| format!("{user}:"));
        text = format!("{scheme}{separator}{user}{MASK}@{host}");
    }
    let Some((address, options)) = text.split_once('?') else { return text };
    let masked = options.split('&').map(|option| {
        option
            .split_once('=')
            .map_or_else(|| option.to_owned(), |(name, _)| format!("{name}={MASK}"))
    });
    format!("{address}?{}", masked.collect::<Vec<_>>().join("&"))
}

/// The key of the sentinels' password in a URL. The URL's own password is that of the server.
const OF_SENTINELS: &str = "sentinel_password=";

fn mask_word(word: &str) -> String {
    if let Some((before, password)) = word.split_once(OF_SENTINELS) {
        let rest = password.trim_end().len();
        let space = password.get(rest..).unwrap_or_default();
        return format!("{}{OF_SENTINELS}{MASK}{space}", mask_word(before));
    }
    let masked = || {
        let (scheme, rest) = word.split_once("://")?;
        let (user_info, host) = rest.rsplit_once('@')?;
        let (user, _password) = user_info.split_once(':')?;
        Some(format!("{scheme}://{user}:{MASK}@{host}"))
    };
    masked().unwrap_or_else(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        let parse = |text: &str| text.parse::<HumanDuration>().map(Duration::from);
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("5m"), Ok(Duration::from_secs(300)));
        for bad in ["", "30", "3 parsecs", "-1s"] {
            assert!(parse(bad).unwrap_err().contains("500ms"), "{bad}");
        }
    }

    #[test]
    fn addresses_to_listen_on_have_an_ip_address_and_a_port() {
        assert_eq!(socket_address("[::1]:80").unwrap().to_string(), "[::1]:80");
        for bad in ["localhost:80", "::1:80", ":80", "80", "*:80", "[::1]", "127.0.0.1"] {
            assert!(socket_address(bad).unwrap_err().contains("[::1]:9000"), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_never_displayed() {
        let secret = Secret::new("hunter2");
        let shown = format!("{secret} {secret:?} {}", toml::Value::try_from(&secret).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn a_secret_file_may_end_with_a_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        for (content, expected) in [("a b\n", "a b"), ("a b\r\n", "a b"), ("a b", "a b")] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(Secret::from_file(&path).unwrap().expose(), expected);
        }
        std::fs::write(&path, "\n").unwrap();
        assert!(Secret::from_file(&path).unwrap_err().contains("is empty"));
        let missing = folder.path().join("none");
        assert!(Secret::from_file(&missing).unwrap_err().contains("none"));
    }

    #[test]
    fn url_passwords_are_masked_anywhere_in_a_text() {
        for (text, masked) in [
            ("redis://u:p@h:1/2", "redis://u:***@h:1/2"),
            ("a=redis://:p@h b=rediss://x:y/z@q@h", "a=redis://:***@h b=rediss://x:***@h"),
            ("redis://h:6379", "redis://h:6379"),
            (
                "redis+sentinel://u:p@h/m?sentinel_password=q@&a and",
                "redis+sentinel://u:***@h/m?sentinel_password=*** and",
            ),
            ("redis://u@h", "redis://u@h"),
            ("no url at all: x@y", "no url at all: x@y"),
        ] {
            assert_eq!(mask_url_passwords(text), masked);
        }
    }

    #[test]
    fn rejected_values_show_no_password() {
        for (value, masked) in [
            ("redis://u:p@h:1/2", "redis://u:***@h:1/2"),
            (":p@redis:6379", ":***@redis:6379"),
            ("user:p@redis:6379", "user:***@redis:6379"),
            ("redis:/:p@h", "redis:***@h"),
            ("redis:\\\\:p@h", "redis:***@h"),
            ("redis//:p@h", "redis//:***@h"),
            ("redis://:my p@h:99999", "redis://:***@h:99999"),
            ("redis://p@h", "redis://***@h"),
            ("redis://h:6379/0?password=p&db=1", "redis://h:6379/0?password=***&db=***"),
            ("redis+sentinel://h/m?SENTINEL_PASSWORD=p@q", "redis+sentinel://***@q"),
            ("redis://h:port/0", "redis://h:port/0"),
        ] {
            assert_eq!(mask_credentials(value), masked);
        }
    }
}
