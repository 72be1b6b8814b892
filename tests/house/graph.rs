//! Circles in a graph of imports.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the sets of nodes that reach each other, each with two or more nodes.
pub(crate) fn circles<T: Ord + Clone>(edges: &BTreeSet<(T, T)>) -> Vec<BTreeSet<T>> {
    let mut next: BTreeMap<&T, Vec<&T>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().push(to);
    }
    let reach: BTreeMap<&T, BTreeSet<&T>> =
        next.keys().map(|node| (*node, reachable(*node, &next))).collect();
    let mut found: Vec<BTreeSet<T>> = Vec::new();
    for (node, reached) in &reach {
        if !reached.contains(node) || found.iter().any(|circle| circle.contains(*node)) {
            continue;
        }
        let back = |other: &&&T| reach.get(**other).is_some_and(|reached| reached.contains(node));
        found.push(reached.iter().filter(back).map(|node| (*node).clone()).collect());
    }
    found
}

/// Returns the nodes that can be reached from `start`, which is included only if it is in a circle.
fn reachable<'a, T: Ord>(start: &'a T, next: &BTreeMap<&'a T, Vec<&'a T>>) -> BTreeSet<&'a T> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        for to in next.get(node).into_iter().flatten() {
            if reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}

#[test]
fn a_circle_is_found_and_a_chain_is_none() {
    let edges = |pairs: &[(&'static str, &'static str)]| pairs.iter().copied().collect();
    assert!(circles(&edges(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    let found = circles(&edges(&[("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("e", "a")]));
    assert_eq!(found, [BTreeSet::from(["b", "c"])]);
}
