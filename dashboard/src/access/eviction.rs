//! The choice of the user who loses a place when a common limit is reached.

use std::collections::HashMap;
use std::hash::Hash;

/// Returns the user who loses a place when the newcomer needs one: the user with the most places, or the newcomer among
/// equals.
pub fn gives_way<U: Copy + Eq + Hash>(places: impl Iterator<Item = U>, newcomer: U) -> U {
    let mut counts = HashMap::from([(newcomer, 1_usize)]);
    places.for_each(|user| *counts.entry(user).or_default() += 1);
    let most = counts.iter().max_by_key(|(user, count)| (**count, **user == newcomer));
    most.map_or(newcomer, |(user, _)| *user)
}
