//! The view that one node has of its cluster.

use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::cmd;

use crate::redis::deployment::ClusterTarget;
use crate::redis::target::Address;
use crate::redis::wire::{Frame, Wire};

/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// The masters of all slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slots {
    /// In ascending order, without overlaps.
    ranges: Vec<Range>,
    masters: Vec<Address>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    /// The index of its master.
    master: usize,
}

impl Slots {
    /// The master of a slot.
    #[must_use]
    pub fn owner(&self, slot: u16) -> Option<&Address> {
        let after = self.ranges.partition_point(|range| range.first <= slot);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= range.last).then(|| &self.masters[range.master])
    }

    /// All masters that serve slots, sorted.
    #[must_use]
    pub fn masters(&self) -> &[Address] {
        &self.masters
    }

    /// The ranges of served slots, each with its master.
    pub fn ranges(&self) -> impl Iterator<Item = (RangeInclusive<u16>, &Address)> {
        self.ranges.iter().map(|range| (range.first..=range.last, &self.masters[range.master]))
    }

    /// The number of slots without a master.
    #[must_use]
    pub fn unserved(&self) -> u32 {
        let served = self.ranges.iter().map(|range| u32::from(range.last - range.first) + 1);
        u32::from(SLOTS).saturating_sub(served.sum())
    }

    /// Builds the map from ranges with their masters. Of two overlapping ranges the later one loses the shared slots.
    fn new(mut claims: Vec<(u16, u16, Address)>) -> Self {
        claims.retain(|(first, last, _)| first <= last);
        claims.sort();
        let mut masters: Vec<Address> = claims.iter().map(|claim| claim.2.clone()).collect();
        masters.sort();
        masters.dedup();
        let mut ranges: Vec<Range> = Vec::new();
        for (first, last, address) in claims {
            let first = ranges.last().map_or(first, |before| first.max(before.last + 1));
            if let Ok(master) = masters.binary_search(&address)
                && first <= last
            {
                ranges.push(Range { first, last, master });
            }
        }
        Self { ranges, masters }
    }
}

/// One node's view.
#[derive(Debug)]
pub(super) struct View {
    pub(super) slots: Arc<Slots>,
    /// The replicas, which can be queried too.
    pub(super) replicas: Vec<Address>,
    /// Set if this node considers the cluster healthy.
    pub(super) well: bool,
    /// The ids of the nodes that have slots, sorted.
    ids: Vec<Vec<u8>>,
    /// Grows with each change that the nodes have agreed on.
    pub(super) epoch: u64,
}

impl View {
    /// Returns whether both are views of one cluster: some node is in both, or the nodes of one have no ids.
    pub(super) fn shares_nodes(&self, other: &Self) -> bool {
        self.ids.is_empty()
            || other.ids.is_empty()
            || self.ids.iter().any(|id| other.ids.binary_search(id).is_ok())
    }

    /// Returns whether a node of that address is in it.
    pub(super) fn names(&self, address: &Address) -> bool {
        self.slots.masters().contains(address) || self.replicas.contains(address)
    }
}

/// Queries a node over a connection to it.
pub(super) async fn query(
    wire: &mut Wire,
    target: &ClusterTarget,
    node: &Address,
) -> Result<View, String> {
    let mut bytes = cmd("CLUSTER").arg("INFO").get_packed_command();
    cmd("CLUSTER").arg("SLOTS").write_packed_command(&mut bytes);
    wire.send(&bytes).await.map_err(|error| format!("the connection broke: {error}"))?;
    let (info, slots) = (wire.receive().await?, wire.receive().await?);
    // An account without the right to CLUSTER INFO still gets the slots, but not the epoch.
    let info = match info {
        Frame::Bulk(text) => String::from_utf8_lossy(&text).into_owned(),
        _ => String::new(),
    };
    match slots {
        Frame::Array(rows) => Ok(read(&info, &rows, target, node)),
        Frame::Error(error) => Err(format!("{node} does not report its slots: {error}")),
        _ => Err(format!("unexpected reply of {node} to CLUSTER SLOTS")),
    }
}

fn read(info: &str, rows: &[Frame], target: &ClusterTarget, node: &Address) -> View {
    let field = |name: &str| {
        info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
    };
    let (mut claims, mut replicas, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let Frame::Array(parts) = row else { continue };
        let [Frame::Int(first), Frame::Int(last), nodes @ ..] = parts.as_slice() else { continue };
        let slot = |n: &i64| u16::try_from(*n).ok().filter(|slot| *slot < SLOTS);
        let (Some(first), Some(last)) = (slot(first), slot(last)) else { continue };
        ids.extend(nodes.iter().filter_map(id));
        let mut nodes = nodes.iter().filter_map(|of| named(of, target, node));
        if let Some(master) = nodes.next() {
            claims.push((first, last, master));
        }
        replicas.extend(nodes);
    }
    replicas.sort();
    replicas.dedup();
    ids.sort();
    ids.dedup();
    View {
        slots: Arc::new(Slots::new(claims)),
        replicas,
        ids,
        well: field("cluster_state") == Some("ok"),
        epoch: field("cluster_current_epoch").and_then(|n| n.parse().ok()).unwrap_or(0),
    }
}

/// Returns the id of a node.
fn id(of: &Frame) -> Option<Vec<u8>> {
    let Frame::Array(parts) = of else { return None };
    let [_, _, Frame::Bulk(id), ..] = parts.as_slice() else { return None };
    Some(id.clone())
}

fn named(of: &Frame, target: &ClusterTarget, asked: &Address) -> Option<Address> {
    let Frame::Array(parts) = of else { return None };
    let [host, Frame::Int(port), ..] = parts.as_slice() else { return None };
    let host = match host {
        Frame::Bulk(host) => String::from_utf8_lossy(host).into_owned(),
        _ => String::new(),
    };
    let port = u16::try_from(*port).ok().filter(|port| *port != 0)?;
    Some(address(target, &host, port, asked))
}

/// Returns the address of a node that a reply from `sender` names. A node that does not know its own address reports an
/// empty host or `?`, which stands for that of the sender.
pub(super) fn address(target: &ClusterTarget, host: &str, port: u16, sender: &Address) -> Address {
    let host = match (host, sender) {
        ("" | "?", Address::Tcp { host, .. }) => host,
        (host, _) => host,
    };
    target.address(host.to_owned(), port)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::redis::Deployment;

    /// Returns a view of nodes with these ids and ports.
    pub(in super::super) fn of_nodes(well: bool, epoch: u64, nodes: &[(&str, u16)]) -> View {
        let claims = nodes.iter().map(|(_, port)| {
            let address = Address::Tcp { host: "a".into(), port: *port, tls: false };
            (*port, *port, address)
        });
        let ids = nodes.iter().filter(|(id, _)| !id.is_empty());
        View {
            slots: Arc::new(Slots::new(claims.collect())),
            replicas: Vec::new(),
            well,
            ids: ids.map(|(id, _)| id.as_bytes().to_vec()).collect(),
            epoch,
        }
    }

    fn target() -> ClusterTarget {
        match "redis+cluster://seed:1".parse() {
            Ok(Deployment::Cluster(target)) => target,
            other => panic!("{other:?}"),
        }
    }

    fn node(host: Option<&str>, port: i64) -> Frame {
        let host = host.map_or(Frame::Null, |host| Frame::Bulk(host.as_bytes().to_vec()));
        Frame::Array(vec![
            host,
            Frame::Int(port),
            Frame::Bulk(b"id".to_vec()),
            Frame::Array(vec![]),
        ])
    }

    fn row(first: i64, last: i64, nodes: Vec<Frame>) -> Frame {
        Frame::Array([vec![Frame::Int(first), Frame::Int(last)], nodes].concat())
    }

    fn view(info: &str, rows: &[Frame]) -> View {
        let target = target();
        read(info, rows, &target, &target.seeds()[0])
    }

    #[test]
    fn every_slot_has_its_master() {
        let rows = [
            row(5_461, 16_383, vec![node(Some("b"), 2), node(Some("r"), 3)]),
            row(0, 5_459, vec![node(Some(""), 7), node(None, 8), node(Some("r"), 3)]),
        ];
        let view = view("cluster_state:ok\r\ncluster_current_epoch:6\r\n", &rows);
        let owner = |slot| view.slots.owner(slot).map(ToString::to_string);
        assert_eq!(owner(0).as_deref(), Some("seed:7"));
        assert_eq!(owner(5_459).as_deref(), Some("seed:7"));
        assert_eq!(owner(5_460), None);
        assert_eq!(owner(5_461).as_deref(), Some("b:2"));
        assert_eq!(owner(16_383).as_deref(), Some("b:2"));
        assert_eq!(view.slots.unserved(), 1);
        let ranges = view.slots.ranges().map(|(range, node)| (range, node.to_string()));
        let expected = [(0..=5_459, "seed:7".to_owned()), (5_461..=16_383, "b:2".to_owned())];
        assert_eq!(ranges.collect::<Vec<_>>(), expected);
        assert_eq!(view.slots.masters().len(), 2);
        assert_eq!(
            view.replicas.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["r:3", "seed:8"]
        );
        assert!(view.well);
        assert_eq!(view.epoch, 6);
    }

    #[test]
    fn malformed_rows_are_ignored() {
        let rows = [
            row(-1, 5, vec![node(Some("a"), 1)]),
            row(0, 16_384, vec![node(Some("a"), 1)]),
            row(0, 10, vec![node(Some("a"), 0)]),
            row(9, 3, vec![node(Some("a"), 1)]),
            row(20, 30, vec![]),
            Frame::Null,
        ];
        let seen = view("cluster_state:fail\r\n", &rows);
        assert_eq!(seen.slots.unserved(), 16_384);
        assert!(!seen.well);
        let twice = [row(0, 10, vec![node(Some("a"), 1)]), row(5, 20, vec![node(Some("b"), 1)])];
        let seen = view("", &twice);
        assert_eq!(seen.slots.owner(7).map(ToString::to_string).as_deref(), Some("a:1"));
        assert_eq!(seen.slots.owner(11).map(ToString::to_string).as_deref(), Some("b:1"));
        assert_eq!(Slots::default().owner(0), None);
    }
}
