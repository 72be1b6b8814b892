//! Recorded output of old and new servers: clients on every transport, several databases, MULTI, and a replica.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::*;

/// Returns the events of each recording, by file name.
fn recorded() -> BTreeMap<String, Vec<Event>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/servers"));
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let replica = name.ends_with("-replica");
            let mut stream =
                Stream::new(if replica { ServerRole::Replica } else { ServerRole::Master });
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                if !line.starts_with('#') {
                    stream.decoder.feed_line(line.as_bytes(), &mut stream.events);
                }
            }
            let events = stream.events();
            let counts = stream.decoder.counts();
            assert_eq!((counts.garbage, counts.cut), (0, 0), "{name}");
            (name, events)
        })
        .collect()
}

#[test]
fn all_server_versions_decode_alike() {
    let all = recorded();
    let masters: Vec<_> = all.iter().filter(|(name, _)| name.ends_with("-master")).collect();
    for server in ["6.2", "7.0", "7.4", "8.0", "valkey-8.0", "valkey-9.1"] {
        assert!(masters.iter().any(|(name, _)| name.starts_with(server)), "{server}: {masters:?}");
    }
    for (name, events) in masters {
        let count =
            |what: &str| events.iter().filter(|event| event.action.as_str() == what).count();
        for (what, times) in [
            ("acquired", 6),
            ("refused", 2),
            ("renewed", 4),
            ("released", 5),
            ("release_found_nothing", 1),
        ] {
            assert_eq!(count(what), times, "{name}: {what}");
        }
        // The same hostile name in three databases: through a Unix socket, IPv4 and IPv6.
        for db in 1..=3 {
            let there: Vec<&Event> = events.iter().filter(|event| event.db == db).collect();
            assert_eq!(there.len(), 3, "{name}: {there:?}");
            for event in there {
                assert!(event.lock.as_bytes().ends_with(b"\\x00\xff"), "{name}: {event:?}");
                match (db, event.client) {
                    (1, Some(Address::Unix)) => {}
                    (2, Some(Address::Tcp(by))) => assert_eq!(by.ip(), Ipv4Addr::LOCALHOST),
                    (3, Some(Address::Tcp(by))) => assert_eq!(by.ip(), Ipv6Addr::LOCALHOST),
                    (_, other) => panic!("{name}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn a_replica_shows_the_same_holds_without_clients() {
    let all = recorded();
    for (name, events) in all.iter().filter(|(name, _)| name.ends_with("-replica")) {
        assert!(events.iter().all(|event| event.client.is_none()), "{name}");
        let count =
            |what: &str| events.iter().filter(|event| event.action.as_str() == what).count();
        assert_eq!((count("acquired"), count("released"), count("refused")), (6, 5, 0), "{name}");
    }
    assert!(all.len() >= 4);
}
