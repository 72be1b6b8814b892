//! One server, or the servers of a cluster.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::target::{Address, Target, TargetError};
use crate::settings::Secret;

/// Where a deployment is and how to log in to it. Neither `Display` nor `Debug` shows the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deployment {
    /// One server.
    Server(Target),
    /// A cluster.
    Cluster(ClusterTarget),
}

/// A cluster, of which some nodes are known: each of them tells of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterTarget {
    /// One of them, with the login that all have in common.
    node: Target,
    seeds: Vec<Address>,
}

impl ClusterTarget {
    /// The nodes that are named.
    #[must_use]
    pub fn seeds(&self) -> &[Address] {
        &self.seeds
    }

    /// One of its nodes.
    #[must_use]
    pub fn node(&self, address: Address) -> Target {
        self.node.at(address)
    }

    /// A node as the cluster names it; TLS is spoken with all or with none.
    pub(crate) fn address(&self, host: String, port: u16) -> Address {
        Address::Tcp { host, port, tls: self.node.uses_tls() }
    }
}

impl Deployment {
    fn map(self, change: impl FnOnce(Target) -> Target) -> Self {
        match self {
            Self::Server(target) => Self::Server(change(target)),
            Self::Cluster(ClusterTarget { node, seeds }) => {
                Self::Cluster(ClusterTarget { node: change(node), seeds })
            }
        }
    }

    fn any(&self) -> &Target {
        match self {
            Self::Server(target) => target,
            Self::Cluster(cluster) => &cluster.node,
        }
    }

    /// [`Target::with_password`].
    #[must_use]
    pub fn with_password(self, password: Secret) -> Self {
        self.map(|target| target.with_password(password))
    }

    /// [`Target::with_ca_file`].
    #[must_use]
    pub fn with_ca_file(self, ca_file: PathBuf) -> Self {
        self.map(|target| target.with_ca_file(ca_file))
    }

    /// [`Target::uses_tls`].
    #[must_use]
    pub fn uses_tls(&self) -> bool {
        self.any().uses_tls()
    }

    /// Whether it is a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// [`Target::validate`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn validate(self) -> Result<Self, TargetError> {
        self.any().clone().validate()?;
        Ok(self)
    }
}

impl FromStr for Deployment {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = match text.split_once("+cluster://") {
            Some((scheme @ ("redis" | "rediss"), rest)) => (scheme, rest),
            _ => return text.parse().map(Self::Server),
        };
        // A URL has one host: each node is a URL of its own with what they have in common.
        let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let nodes = hosts.split(',').map(|host| {
            if host.is_empty() {
                return Err(TargetError::Host);
            }
            format!("{scheme}://{login}{host}{behind}").parse::<Target>()
        });
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let seeds = nodes.iter().map(|node| node.address().clone()).collect();
        let node = nodes.into_iter().next().ok_or(TargetError::Host)?;
        if node.db() != 0 {
            return Err(TargetError::ClusterDb);
        }
        Ok(Self::Cluster(ClusterTarget { node, seeds }))
    }
}

/// As a URL, the password masked.
impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(target) => target.fmt(f),
            Self::Cluster(cluster) => cluster.fmt(f),
        }
    }
}

impl fmt::Display for ClusterTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.node.uses_tls() { "rediss" } else { "redis" };
        write!(f, "{scheme}+cluster://")?;
        match (self.node.user(), self.node.password()) {
            (user, Some(password)) => write!(f, "{}:{password}@", user.unwrap_or(""))?,
            (Some(user), None) => write!(f, "{user}@")?,
            (None, None) => {}
        }
        for (place, seed) in self.seeds.iter().enumerate() {
            write!(f, "{}{seed}", if place == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(word), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }
}
