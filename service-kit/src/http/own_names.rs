//! The names of this host as its files give them, so that another host can address it by name. No name server is
//! asked: one could be slow, and another's answer is no proof that a name belongs to this host.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// Reads the names of this host, for a server at `address`, from the kernel, `/etc/hosts` and `/etc/resolv.conf`. Files that
/// cannot be read add none.
pub(super) fn own_names(address: IpAddr) -> BTreeSet<String> {
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    names_of(address, &node, &file("/etc/hosts"), &file("/etc/resolv.conf"))
}

/// Returns the names of the host `node`: that name, the names next to it in `hosts`, and its names in the domains that
/// `resolver` searches. Other hosts cannot reach a loopback address, and the network that this host is in may choose those
/// domains, so there they add no names.
fn names_of(address: IpAddr, node: &str, hosts: &str, resolver: &str) -> BTreeSet<String> {
    let node = node.to_ascii_lowercase();
    if node.is_empty() || node == "localhost" || node == "(none)" {
        return BTreeSet::new();
    }
    let mut names = BTreeSet::from([node.clone()]);
    for line in hosts.lines() {
        let entry = line.split('#').next().unwrap_or_default().to_ascii_lowercase();
        let aliases: Vec<&str> = entry.split_whitespace().skip(1).collect();
        if aliases.contains(&node.as_str()) {
            names.extend(aliases.into_iter().map(str::to_owned));
        }
    }
    if !node.contains('.') && !address.is_loopback() {
        for line in resolver.lines() {
            let mut words = line.split_whitespace();
            if matches!(words.next(), Some("search" | "domain")) {
                let domains = words.map(|domain| domain.trim_matches('.').to_ascii_lowercase());
                names.extend(
                    domains.filter(|domain| !domain.is_empty()).map(|d| format!("{node}.{d}")),
                );
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

    fn names(node: &str, hosts: &str, resolver: &str) -> Vec<String> {
        names_of(ANY, node, hosts, resolver).into_iter().collect()
    }

    #[test]
    fn a_host_has_its_name_alone_and_in_its_domains() {
        let resolver = "nameserver 10.0.0.1\nsearch prod.example.org. .\ndomain Example.org\n";
        let expected = ["web1", "web1.example.org", "web1.prod.example.org"];
        assert_eq!(names("Web1", "", resolver), expected);
        assert_eq!(names("web1.example.org", "", resolver), ["web1.example.org"]);
    }

    #[test]
    fn the_domains_of_the_network_add_no_names_on_loopback() {
        let names = |address: &str| {
            names_of(
                address.parse().unwrap(),
                "web1",
                "127.0.1.1 web1.example.org web1",
                "search evil.test",
            )
        };
        for loopback in ["127.0.0.1", "::1"] {
            assert!(names(loopback).into_iter().eq(["web1", "web1.example.org"]), "{loopback}");
        }
        assert!(names("192.0.2.1").contains("web1.evil.test"));
    }

    #[test]
    fn names_in_one_line_of_the_hosts_file_belong_together() {
        let hosts =
            "127.0.0.1 localhost\n127.0.1.1\tweb1.dc.example.org web1 # self\n10.0.0.9 web10 db\n";
        assert_eq!(names("web1", hosts, ""), ["web1", "web1.dc.example.org"]);
    }

    #[test]
    fn a_host_without_a_name_has_none() {
        for node in ["", "localhost", "(none)"] {
            assert!(names(node, "127.0.0.1 localhost evil.test", "search test").is_empty());
        }
    }
}
