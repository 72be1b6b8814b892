//! The address of a server, with credentials and a database.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::password::Password;
use crate::settings::Secret;

const DEFAULT_PORT: u16 = 6379;

/// A server's address, and the credentials and the database of connections to it. Neither `Display` nor `Debug` shows the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    address: Address,
    db: u32,
    user: Option<String>,
    password: Option<Password>,
    ca_file: Option<PathBuf>,
    /// The name that the certificate may have in place of an IP address.
    known_as: Option<String>,
}

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A TCP port of a host.
    Tcp {
        /// A name or an IP address; IPv6 without brackets.
        host: String,
        /// The port number.
        port: u16,
        /// Connects with TLS.
        tls: bool,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A text that is not a valid Redis URL. The text itself is not repeated, since it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Not a URL.
    #[error(
        "expected a Redis URL such as redis://user:password@host:6379/0 or redis://[::1]:6379: {0}"
    )]
    NoUrl(#[from] url::ParseError),
    /// An unsupported scheme.
    #[error(
        "scheme `{0}` is not known; expected redis://, rediss:// (TLS) or unix://; for a cluster redis+cluster:// or rediss+cluster://; for Sentinel redis+sentinel:// or rediss+sentinel://"
    )]
    Scheme(String),
    /// A cluster or sentinels where a single server is required.
    #[error(
        "`{0}://` is not supported here: give the address of one server, with redis://, rediss:// or unix://"
    )]
    Several(String),
    /// A missing or invalid host.
    #[error("the URL names no host; expected, for example, redis://host:6379")]
    Host,
    /// A Unix URL without a path.
    #[error("the URL names no socket; expected, for example, unix:///run/redis/redis.sock")]
    NoSocketPath,
    /// A database that is not a number.
    #[error("database `{0}` is not a number; expected, for example, redis://host:6379/0")]
    Db(String),
    /// An unknown option after the `?`.
    #[error("option `{0}` is not known; `db` is the only one")]
    Option(String),
    /// A fragment: a `#` and what follows it.
    #[error("there is a `#` in the URL; in a password write it as %23")]
    Fragment,
    /// A user or password that is not UTF-8 when percent-decoded.
    #[error("the user or password is not valid UTF-8 after percent-decoding")]
    Encoding,
    /// A user without a password, who could not log in.
    #[error(
        "a user is given without a password; add the password to the URL, or use a password file"
    )]
    NoPassword,
    /// A database other than 0 in a cluster.
    #[error("a cluster has database 0 only")]
    ClusterDb,
    /// Sentinels without the name of a master.
    #[error("the URL names no master; expected, for example, redis+sentinel://host:26379/mymaster")]
    MasterName,
    /// An unknown option after the `?` of a URL of sentinels.
    #[error("option `{0}` is not known; expected sentinel_username or sentinel_password")]
    SentinelOption(String),
    /// A CA file without TLS, which would protect nothing.
    #[error("a CA file requires a rediss:// URL")]
    CaWithoutTls,
}

impl Target {
    /// Returns the same server with another database.
    #[must_use]
    pub fn with_db(&self, db: u32) -> Self {
        Self { db, ..self.clone() }
    }

    /// Sets the password, in place of the URL's.
    #[must_use]
    pub fn with_password(self, password: impl Into<Password>) -> Self {
        Self { password: Some(password.into()), ..self }
    }

    /// Trusts the certificates in this PEM file instead of those of the system. For `rediss://` only.
    #[must_use]
    pub fn with_ca_file(self, ca_file: PathBuf) -> Self {
        Self { ca_file: Some(ca_file), ..self }
    }

    /// Checks the parts against one another, once all are set.
    ///
    /// # Errors
    ///
    /// [`TargetError::NoPassword`], [`TargetError::CaWithoutTls`].
    pub fn validate(self) -> Result<Self, TargetError> {
        if self.user.is_some() && self.password.is_none() {
            return Err(TargetError::NoPassword);
        }
        if self.ca_file.is_some() && !self.uses_tls() {
            return Err(TargetError::CaWithoutTls);
        }
        Ok(self)
    }

    /// Returns the number of the database.
    #[must_use]
    pub fn db(&self) -> u32 {
        self.db
    }

    /// Returns the server's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns another server, with the same credentials.
    #[must_use]
    pub fn at(&self, address: Address) -> Self {
        Self { address, ..self.clone() }
    }

    /// Accepts a certificate with this name, too, if the server's host is an IP address.
    #[must_use]
    pub(super) fn known_as(self, name: Option<String>) -> Self {
        Self { known_as: name, ..self }
    }

    /// Returns `true` if connections are encrypted.
    #[must_use]
    pub fn uses_tls(&self) -> bool {
        matches!(self.address, Address::Tcp { tls: true, .. })
    }

    /// Writes user and password as in a URL, the password masked.
    pub(super) fn fmt_login(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.user, &self.password) {
            (user, Some(password)) => write!(f, "{}:{password}@", user.as_deref().unwrap_or("")),
            (Some(user), None) => write!(f, "{user}@"),
            (None, None) => Ok(()),
        }
    }

    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    pub(crate) fn password(&self) -> Option<&Password> {
        self.password.as_ref()
    }

    /// Returns the name that the certificate may have in place of an IP address.
    pub(crate) fn certificate_name(&self) -> Option<&str> {
        self.known_as.as_deref()
    }

    pub(crate) fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref()
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((scheme, _)) = text.split_once("://")
            && let Some(("redis" | "rediss", "cluster" | "sentinel")) = scheme.split_once('+')
        {
            return Err(TargetError::Several(scheme.to_owned()));
        }
        // The URL standard has no user without a host; a socket has only the former.
        let url = match text.split_once("://") {
            Some(("unix" | "redis+unix", rest)) if rest.contains("@/") => {
                Url::parse(&text.replacen("@/", "@localhost/", 1))?
            }
            _ => Url::parse(text)?,
        };
        let address = match url.scheme() {
            "redis" => tcp_address(&url, false)?,
            "rediss" => tcp_address(&url, true)?,
            "unix" | "redis+unix" => unix_address(&url)?,
            other => return Err(TargetError::Scheme(other.to_owned())),
        };
        if url.fragment().is_some() {
            return Err(TargetError::Fragment);
        }
        let db = db_of(&url, &address)?;
        let user = decoded(url.username())?;
        let password =
            decoded(url.password().unwrap_or(""))?.map(|text| Password::from(Secret::new(text)));
        Ok(Self { address, db, user, password, ca_file: None, known_as: None })
    }
}

fn tcp_address(url: &Url, tls: bool) -> Result<Address, TargetError> {
    let host = match url.host().ok_or(TargetError::Host)? {
        Host::Domain(name) => {
            percent_decode_str(name).decode_utf8().map_err(|_| TargetError::Host)?.into_owned()
        }
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    };
    if host.is_empty() {
        return Err(TargetError::Host);
    }
    Ok(Address::Tcp { host, port: url.port().unwrap_or(DEFAULT_PORT), tls })
}

fn unix_address(url: &Url) -> Result<Address, TargetError> {
    let path =
        percent_decode_str(url.path()).decode_utf8().map_err(|_| TargetError::NoSocketPath)?;
    let host = url.host_str().unwrap_or("");
    if !["", "localhost"].contains(&host) || path.len() < 2 {
        return Err(TargetError::NoSocketPath);
    }
    Ok(Address::Unix(PathBuf::from(path.into_owned())))
}

/// The database is the path of a TCP URL; for both kinds it may be `?db=`.
fn db_of(url: &Url, address: &Address) -> Result<u32, TargetError> {
    let in_path = match address {
        Address::Tcp { .. } => url.path().trim_start_matches('/'),
        Address::Unix(_) => "",
    };
    let mut db = in_path.to_owned();
    for (key, value) in url.query_pairs() {
        if key != "db" || !db.is_empty() {
            return Err(TargetError::Option(key.into_owned()));
        }
        db = value.into_owned();
    }
    if db.is_empty() {
        return Ok(0);
    }
    db.parse().map_err(|_| TargetError::Db(db))
}

fn decoded(text: &str) -> Result<Option<String>, TargetError> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| TargetError::Encoding)?;
    Ok((!text.is_empty()).then(|| text.into_owned()))
}

/// As a URL, the password masked.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.address;
        let scheme = match address {
            Address::Tcp { tls: true, .. } => "rediss",
            Address::Tcp { tls: false, .. } => "redis",
            Address::Unix(_) => "unix",
        };
        write!(f, "{scheme}://")?;
        self.fmt_login(f)?;
        match address {
            Address::Tcp { .. } => write!(f, "{address}/{}", self.db),
            Address::Unix(path) if self.db == 0 => write!(f, "{}", path.display()),
            Address::Unix(path) => write!(f, "{}?db={}", path.display(), self.db),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Target, TargetError> {
        text.parse::<Target>().and_then(Target::validate)
    }

    #[test]
    fn urls_are_read_and_shown_without_the_password() {
        for (url, shown) in [
            ("redis://localhost", "redis://localhost:6379/0"),
            ("redis://localhost/", "redis://localhost:6379/0"),
            ("redis://10.0.0.1:6380/3", "redis://10.0.0.1:6380/3"),
            ("redis://host?db=3", "redis://host:6379/3"),
            ("rediss://u:p%40%2F@host", "rediss://u:***@host:6379/0"),
            ("redis://:pw@[::1]:7/1", "redis://:***@[::1]:7/1"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
            ("redis+unix://:pw@/run/redis%20x.sock?db=2", "unix://:***@/run/redis x.sock?db=2"),
        ] {
            let target = parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(target.to_string(), shown, "{url}");
        }
    }

    #[test]
    fn user_and_password_are_percent_decoded() {
        let target = parse("redis://us%3Aer:p%40%2F%23@host").unwrap();
        assert_eq!(target.user(), Some("us:er"));
        assert_eq!(target.password().unwrap().last().expose(), "p@/#");
        assert!(!format!("{target:?}").contains("p@/#"));
    }

    #[test]
    fn mistakes_are_named_and_never_quote_the_password() {
        for (url, word) in [
            ("localhost:6379", "localhost"),
            ("6379", "such as redis://"),
            ("http://u:hunter2@host", "`http`"),
            ("redis+cluster://:hunter2@a:1,b:2", "`redis+cluster://` is not supported here"),
            ("rediss+sentinel://:hunter2@a/m", "`rediss+sentinel://` is not supported here"),
            ("redis://:hunter2@", "host"),
            ("redis://host/one", "`one`"),
            ("redis://host/1/2", "`1/2`"),
            ("redis://host/-1", "`-1`"),
            ("redis://host?protocol=resp3", "`protocol`"),
            ("redis://u:hunter2@host/0#x", "%23"),
            ("redis://u@host", "password"),
            ("redis://u:%ff@host", "UTF-8"),
            ("unix://", "socket"),
            ("unix://host/run/x.sock", "socket"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(word), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_ca_file_needs_tls() {
        let with_ca = |url: &str| parse(url).unwrap().with_ca_file("ca.pem".into()).validate();
        assert!(with_ca("rediss://host").is_ok());
        assert_eq!(with_ca("redis://host"), Err(TargetError::CaWithoutTls));
    }

    #[test]
    fn another_database_changes_nothing_else() {
        let target = parse("redis://u:p@host/1").unwrap();
        let other = target.with_db(5);
        assert_eq!(other.db(), 5);
        assert_eq!(other.with_db(1), target);
    }
}
