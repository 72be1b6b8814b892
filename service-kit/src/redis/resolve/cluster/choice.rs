//! The choice among the views of several nodes.

use super::view::View;
use crate::redis::target::Address;

/// The views that nodes have reported, by cluster: an address may now belong to another cluster.
pub(super) struct Views<'a> {
    /// The published view.
    known: Option<&'a View>,
    clusters: Vec<Found>,
}

/// A cluster that some nodes belong to.
struct Found {
    newest: View,
    nodes: Vec<Address>,
}

impl<'a> Views<'a> {
    pub(super) fn new(known: Option<&'a View>) -> Self {
        Self { known, clusters: Vec::new() }
    }

    /// Adds the view of a node.
    pub(super) fn add(&mut self, node: &Address, view: View) {
        let same = self.clusters.iter_mut().find(|found| found.newest.shares_nodes(&view));
        let Some(found) = same else {
            return self.clusters.push(Found { newest: view, nodes: vec![node.clone()] });
        };
        found.nodes.push(node.clone());
        if prefers(self.known, &view, &found.newest) {
            found.newest = view;
        }
    }

    /// Returns the newest view of the cluster.
    pub(super) fn best(&self) -> Option<&View> {
        self.chosen().map(|index| &self.clusters[index].newest)
    }

    /// Returns the newest view of the cluster, and the nodes that belong to others.
    pub(super) fn into_best(mut self) -> (Option<View>, Vec<Address>) {
        let best = self.chosen().map(|index| self.clusters.remove(index).newest);
        let mut strays: Vec<_> = self.clusters.into_iter().flat_map(|found| found.nodes).collect();
        strays.sort();
        (best, strays)
    }

    /// Chooses the known cluster; or, if none of its nodes answers as such, one that has taken over its addresses. Before a
    /// cluster is known, it is the one that most nodes belong to, and of equal ones that of the first node.
    fn chosen(&self) -> Option<usize> {
        let Some(known) = self.known else {
            let most = self.clusters.iter().map(|found| found.nodes.len()).max()?;
            return self.clusters.iter().position(|found| found.nodes.len() == most);
        };
        let same = self.clusters.iter().position(|found| found.newest.shares_nodes(known));
        let replaced = |found: &Found| found.nodes.iter().any(|node| known.names(node));
        same.or_else(|| self.clusters.iter().position(replaced))
    }
}

/// Compares two views. Of equally new ones it prefers the published one: a node with another view may not know the
/// latest change yet, and in the end all nodes agree.
fn prefers(known: Option<&View>, view: &View, to: &View) -> bool {
    let published = |view: &View| known.is_some_and(|known| known.slots == view.slots);
    let rank =
        |view: &View| (view.well, view.epoch, published(view), u32::MAX - view.slots.unserved());
    rank(view) > rank(to)
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::of_nodes;
    use super::*;

    fn address(port: u16) -> Address {
        Address::Tcp { host: "a".into(), port, tls: false }
    }

    /// Returns the epoch of the chosen view, and the ports of the nodes that were left out.
    fn choose(known: Option<&View>, answers: Vec<(u16, View)>) -> (Option<u64>, Vec<Address>) {
        let mut views = Views::new(known);
        answers.into_iter().for_each(|(port, view)| views.add(&address(port), view));
        let (best, strays) = views.into_best();
        (best.map(|best| best.epoch), strays)
    }

    #[test]
    fn the_newest_view_of_the_known_cluster_is_chosen_and_no_other_cluster() {
        let known = of_nodes(true, 6, &[("a", 1), ("b", 2)]);
        let failing = || of_nodes(false, 7, &[("b", 2)]);
        let other = || of_nodes(true, 9, &[("x", 8), ("y", 9)]);
        // One node is down, the others know it, and a healthy cluster with a later epoch has taken over an address.
        let chosen = choose(Some(&known), vec![(2, failing()), (9, other())]);
        assert_eq!(chosen, (Some(7), vec![address(9)]));
        assert_eq!(choose(Some(&known), vec![(9, other())]), (None, vec![address(9)]));
        // The cluster was replaced at its own addresses.
        assert_eq!(choose(Some(&known), vec![(2, other())]), (Some(9), vec![]));
    }

    #[test]
    fn at_first_the_cluster_of_most_nodes_is_chosen() {
        let one = || of_nodes(true, 6, &[("a", 1), ("b", 2)]);
        let other = || of_nodes(true, 9, &[("x", 8)]);
        let answers = vec![(8, other()), (1, one()), (2, one())];
        assert_eq!(choose(None, answers), (Some(6), vec![address(8)]));
        assert_eq!(choose(None, vec![(1, one()), (8, other())]), (Some(6), vec![address(8)]));
        // Without ids they count as one.
        let mute = || of_nodes(true, 7, &[("", 1)]);
        assert_eq!(choose(None, vec![(1, one()), (2, mute())]), (Some(7), vec![]));
    }
}
