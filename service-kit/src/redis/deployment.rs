//! One server, the servers of a cluster, or the master that sentinels name.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::Url;

use super::password::Password;
use super::target::{Address, Target, TargetError};

/// The default port of sentinels.
const SENTINEL_PORT: u16 = 26_379;

/// The servers of a deployment, with credentials and a database. Neither `Display` nor `Debug` shows the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deployment {
    /// One server.
    Server(Target),
    /// A cluster.
    Cluster(ClusterTarget),
    /// The master that sentinels name.
    Sentinel(SentinelTarget),
}

/// Some nodes of a cluster, from which the others are discovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterTarget {
    /// One of the nodes, with the credentials that all share.
    node: Target,
    seeds: Vec<Address>,
}

impl ClusterTarget {
    /// Returns the configured nodes.
    #[must_use]
    pub fn seeds(&self) -> &[Address] {
        &self.seeds
    }

    /// Returns the node at an address, with the credentials of all. A node that is reported by its IP address may have the
    /// certificate of the first configured name.
    #[must_use]
    pub fn node(&self, address: Address) -> Target {
        let name = self.seeds.iter().find_map(|seed| match seed {
            Address::Tcp { host, .. } if host.parse::<IpAddr>().is_err() => Some(host.clone()),
            _ => None,
        });
        self.node.at(address).known_as(name)
    }

    /// Returns the address of a node that the cluster reports. All nodes use TLS, or none.
    pub(crate) fn address(&self, host: String, port: u16) -> Address {
        Address::Tcp { host, port, tls: self.node.uses_tls() }
    }
}

/// The name of a master, and some of the sentinels that watch it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelTarget {
    /// The master's credentials and database, at the first sentinel's address.
    pub(super) master: Target,
    /// The sentinels, at least one, each with its credentials.
    pub(super) sentinels: Vec<Target>,
    pub(super) name: String,
}

impl SentinelTarget {
    /// Returns the name of the master.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn place(&self) -> String {
        format!("{}/{}", joined(self.sentinels.iter().map(Target::address)), self.name)
    }
}

fn joined<'a>(addresses: impl IntoIterator<Item = &'a Address>) -> String {
    addresses.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl Deployment {
    fn map(self, change: impl FnOnce(Target) -> Target) -> Self {
        match self {
            Self::Server(target) => Self::Server(change(target)),
            Self::Cluster(ClusterTarget { node, seeds }) => {
                Self::Cluster(ClusterTarget { node: change(node), seeds })
            }
            Self::Sentinel(SentinelTarget { master, sentinels, name }) => {
                Self::Sentinel(SentinelTarget { master: change(master), sentinels, name })
            }
        }
    }

    /// Returns a text that identifies the deployment without credentials: the server's address, the configured nodes of
    /// a cluster, or the sentinels with the master's name.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Server(target) => target.address().to_string(),
            Self::Cluster(cluster) => joined(&cluster.seeds),
            Self::Sentinel(sentinel) => sentinel.place(),
        }
    }

    /// Returns the name of the account on the servers; Redis calls the one without a name `default`.
    #[must_use]
    pub fn user(&self) -> &str {
        self.any().user().unwrap_or("default")
    }

    /// Returns the number of the database; 0 in a cluster.
    #[must_use]
    pub fn db(&self) -> u32 {
        self.any().db()
    }

    fn any(&self) -> &Target {
        match self {
            Self::Server(target) => target,
            Self::Cluster(cluster) => &cluster.node,
            Self::Sentinel(sentinel) => &sentinel.master,
        }
    }

    /// Sets the password, as [`Target::with_password`] does.
    #[must_use]
    pub fn with_password(self, password: impl Into<Password>) -> Self {
        self.map(|target| target.with_password(password))
    }

    /// Sets the password for the sentinels, in place of the URL's. Without sentinels nothing changes.
    #[must_use]
    pub fn with_sentinel_password(self, password: &Password) -> Self {
        match self {
            Self::Sentinel(SentinelTarget { master, sentinels, name }) => {
                let sentinels = sentinels
                    .into_iter()
                    .map(|sentinel| sentinel.with_password(password.clone()))
                    .collect();
                Self::Sentinel(SentinelTarget { master, sentinels, name })
            }
            other => other,
        }
    }

    /// Sets the CA file, as [`Target::with_ca_file`] does, for sentinels too.
    #[must_use]
    pub fn with_ca_file(mut self, ca_file: PathBuf) -> Self {
        if let Self::Sentinel(SentinelTarget { sentinels, .. }) = &mut self {
            for sentinel in sentinels {
                *sentinel = sentinel.clone().with_ca_file(ca_file.clone());
            }
        }
        self.map(|target| target.with_ca_file(ca_file))
    }

    /// Returns `true` if connections are encrypted.
    #[must_use]
    pub fn uses_tls(&self) -> bool {
        self.any().uses_tls()
    }

    /// Returns `true` if sentinels report the master.
    #[must_use]
    pub fn has_sentinels(&self) -> bool {
        matches!(self, Self::Sentinel(_))
    }

    /// Returns `true` for a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Checks all targets, as [`Target::validate`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Target::validate`].
    pub fn validate(self) -> Result<Self, TargetError> {
        self.any().clone().validate()?;
        if let Self::Sentinel(SentinelTarget { sentinels, .. }) = &self {
            for sentinel in sentinels {
                sentinel.clone().validate()?;
            }
        }
        Ok(self)
    }
}

impl FromStr for Deployment {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once("://") {
            Some(("redis+cluster", rest)) => cluster("redis", rest).map(Self::Cluster),
            Some(("rediss+cluster", rest)) => cluster("rediss", rest).map(Self::Cluster),
            Some(("redis+sentinel", rest)) => sentinel("redis", rest).map(Self::Sentinel),
            Some(("rediss+sentinel", rest)) => sentinel("rediss", rest).map(Self::Sentinel),
            _ => text.parse().map(Self::Server),
        }
    }
}

/// The parts of a URL with several hosts, from which a separate URL is made for each host.
struct Parts<'a> {
    /// User and password with the `@`, or an empty text.
    login: &'a str,
    hosts: Vec<&'a str>,
    /// The path and everything after it.
    behind: &'a str,
}

fn parts(rest: &str) -> Result<Parts<'_>, TargetError> {
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let hosts: Vec<_> = hosts.split(',').collect();
    if hosts.contains(&"") {
        return Err(TargetError::Host);
    }
    Ok(Parts { login, hosts, behind })
}

fn cluster(scheme: &str, rest: &str) -> Result<ClusterTarget, TargetError> {
    let Parts { login, hosts, behind } = parts(rest)?;
    let nodes = hosts.iter().map(|host| format!("{scheme}://{login}{host}{behind}").parse());
    let nodes = nodes.collect::<Result<Vec<Target>, _>>()?;
    let seeds = nodes.iter().map(|node| node.address().clone()).collect();
    let node = nodes.into_iter().next().ok_or(TargetError::Host)?;
    if node.db() != 0 {
        return Err(TargetError::ClusterDb);
    }
    Ok(ClusterTarget { node, seeds })
}

fn sentinel(scheme: &str, rest: &str) -> Result<SentinelTarget, TargetError> {
    let Parts { login, hosts, behind } = parts(rest)?;
    let first = hosts.first().ok_or(TargetError::Host)?;
    // Only the path and the query count; the host makes the text a URL.
    let url = Url::parse(&format!("redis://host{behind}"))?;
    if url.fragment().is_some() {
        return Err(TargetError::Fragment);
    }
    let path = url.path().trim_start_matches('/');
    let (name, db) = path.split_once('/').unwrap_or((path, ""));
    let name = percent_decode_str(name).decode_utf8().map_err(|_| TargetError::MasterName)?;
    if name.is_empty() {
        return Err(TargetError::MasterName);
    }
    let (mut user, mut password) = (String::new(), String::new());
    for (key, value) in url.query_pairs() {
        let value = utf8_percent_encode(&value, NON_ALPHANUMERIC).to_string();
        match &*key {
            "sentinel_username" => user = value,
            "sentinel_password" => password = value,
            _ => return Err(TargetError::SentinelOption(key.into_owned())),
        }
    }
    let sentinel_login = match (user.as_str(), password.as_str()) {
        ("", "") => String::new(),
        (user, password) => format!("{user}:{password}@"),
    };
    let sentinels = hosts.iter().map(|host| {
        // A port follows the brackets of an IPv6 address, if there are any.
        let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
        let port = if has_port { String::new() } else { format!(":{SENTINEL_PORT}") };
        format!("{scheme}://{sentinel_login}{host}{port}").parse()
    });
    let sentinels = sentinels.collect::<Result<Vec<Target>, _>>()?;
    let master = format!("{scheme}://{login}{first}/{db}").parse()?;
    Ok(SentinelTarget { master, sentinels, name: name.into_owned() })
}

/// As a URL, the password masked.
impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(target) => target.fmt(f),
            Self::Cluster(cluster) => cluster.fmt(f),
            Self::Sentinel(sentinel) => sentinel.fmt(f),
        }
    }
}

impl fmt::Display for ClusterTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.node.uses_tls() { "rediss" } else { "redis" };
        write!(f, "{scheme}+cluster://")?;
        self.node.fmt_login(f)?;
        f.write_str(&joined(&self.seeds))
    }
}

/// As a URL, the passwords masked or left out.
impl fmt::Display for SentinelTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.master.uses_tls() { "rediss" } else { "redis" };
        write!(f, "{scheme}+sentinel://")?;
        self.master.fmt_login(f)?;
        f.write_str(&self.place())?;
        if self.master.db() != 0 {
            write!(f, "/{}", self.master.db())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Secret;

    fn parse(text: &str) -> Result<Deployment, TargetError> {
        text.parse::<Deployment>().and_then(Deployment::validate)
    }

    #[test]
    fn a_cluster_is_named_by_some_of_its_nodes() {
        for (url, shown) in [
            ("redis+cluster://a", "redis+cluster://a:6379"),
            ("redis+cluster://a:1,b,[::1]:3/", "redis+cluster://a:1,b:6379,[::1]:3"),
            ("rediss+cluster://u:p%40@a:1,b:2", "rediss+cluster://u:***@a:1,b:2"),
            ("redis+cluster://:pw@a:1?db=0", "redis+cluster://:***@a:1"),
        ] {
            let deployment = parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert!(deployment.is_cluster());
            assert_eq!(deployment.to_string(), shown, "{url}");
            assert_eq!(deployment.uses_tls(), url.starts_with("rediss"));
        }
        let Deployment::Cluster(cluster) = parse("rediss+cluster://u:p@a:1,b:2").unwrap() else {
            panic!("it is a cluster")
        };
        let node = cluster.node(cluster.address("c".to_owned(), 3));
        assert_eq!(node.to_string(), "rediss://u:***@c:3/0");
        assert_eq!(cluster.seeds().len(), 2);
    }

    #[test]
    fn a_master_is_named_by_its_sentinels() {
        for (url, shown) in [
            ("redis+sentinel://a/m", "redis+sentinel://a:26379/m"),
            (
                "redis+sentinel://a:1,b,[::1]/m%2F1/2",
                "redis+sentinel://a:1,b:26379,[::1]:26379/m/1/2",
            ),
            ("rediss+sentinel://u:p%40@a:1/m", "rediss+sentinel://u:***@a:1/m"),
            (
                "redis+sentinel://a/m?sentinel_username=s&sentinel_password=q%40",
                "redis+sentinel://a:26379/m",
            ),
        ] {
            let deployment = parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(deployment.to_string(), shown, "{url}");
            assert_eq!(deployment.uses_tls(), url.starts_with("rediss"));
            assert!(!deployment.is_cluster());
        }
        let url = "redis+sentinel://u:p@a/m/3?sentinel_username=s&sentinel_password=q%40";
        let Deployment::Sentinel(target) = parse(url).unwrap() else { panic!("it has sentinels") };
        assert_eq!((target.name.as_str(), target.master.db()), ("m", 3));
        assert_eq!(target.master.password().unwrap().last().expose(), "p");
        assert_eq!(target.sentinels[0].to_string(), "redis://s:***@a:26379/0");
        assert_eq!(target.sentinels[0].password().unwrap().last().expose(), "q@");
        let other = parse(url).unwrap().with_password(Secret::new("x".to_owned()));
        let Deployment::Sentinel(other) = other else { panic!("it has sentinels") };
        assert_eq!(other.master.password().unwrap().last().expose(), "x");
        assert_eq!(other.sentinels, target.sentinels, "theirs is another one");
        let theirs = parse("redis+sentinel://u:p@a,b:2/m").unwrap();
        assert_eq!(theirs.place(), "a:26379,b:2/m");
        let theirs = theirs.with_sentinel_password(&Secret::new("x").into());
        let Deployment::Sentinel(theirs) = theirs else { panic!("it has sentinels") };
        assert_eq!(theirs.sentinels[1].password().unwrap().last().expose(), "x");
        assert_eq!(theirs.master.password().unwrap().last().expose(), "p");
    }

    #[test]
    fn one_server_is_named_as_before() {
        let deployment = parse("redis://a:1/3").unwrap();
        assert!(!deployment.is_cluster());
        assert_eq!(deployment.to_string(), "redis://a:1/3");
    }

    #[test]
    fn mistakes_are_named_and_never_quote_the_password() {
        for (url, word) in [
            ("redis+cluster://:hunter2@a/1", "database 0"),
            ("redis+cluster://:hunter2@", "host"),
            ("redis+cluster://:hunter2@a,", "host"),
            ("redis+cluster://:hunter2@a:x", "port"),
            ("redis+cluster://u@a", "password"),
            ("unix+cluster://:hunter2@a", "`unix+cluster`"),
            ("redis+sentinel://:hunter2@a", "mymaster"),
            ("redis+sentinel://:hunter2@/m", "host"),
            ("redis+sentinel://:hunter2@a/m/x", "`x`"),
            ("redis+sentinel://:hunter2@a/m?password=hunter2", "`password`"),
            ("redis+sentinel://a/m?sentinel_username=hunter2", "password"),
            ("redis+sentinel://u@a/m", "password"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(word), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }
}
