//! Memory of hash tables, which they keep when entries are removed.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash};

/// The capacity that a table keeps in any case.
const KEPT: usize = 1_024;

/// Hash tables that give memory back.
pub trait Trim {
    /// Frees the memory that twice the entries do not need, if the number of entries is 0 or a large power of two. Called after
    /// each removal, it takes constant time on average.
    fn trim(&mut self);
}

/// Returns the capacity that is enough for a table of this size, if memory is freed at that size. The table's own capacity does
/// not tell whether it has too much: it falls with removals, though the memory stays.
fn enough(len: usize) -> Option<usize> {
    (len == 0 || (len >= KEPT && len.is_power_of_two())).then_some(KEPT.max(2 * len))
}

impl<K: Eq + Hash, V, S: BuildHasher> Trim for HashMap<K, V, S> {
    fn trim(&mut self) {
        if let Some(capacity) = enough(self.len()) {
            self.shrink_to(capacity);
        }
    }
}

impl<T: Eq + Hash, S: BuildHasher> Trim for HashSet<T, S> {
    fn trim(&mut self) {
        if let Some(capacity) = enough(self.len()) {
            self.shrink_to(capacity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_was_full_has_little_memory_once_few_entries_are_left() {
        let mut map: HashMap<u32, u32> = HashMap::with_capacity(100_000);
        for number in 0..u32::try_from(map.capacity()).unwrap() {
            map.insert(number, number);
        }
        let full = map.capacity();
        for number in 100..u32::try_from(full).unwrap() {
            assert_eq!(map.remove(&number), Some(number));
            map.trim();
        }
        assert_eq!(map.len(), 100);
        // Clearing it makes its whole memory available, as far as it was not freed.
        map.clear();
        assert!(map.capacity() < 4 * KEPT, "{} of {full}", map.capacity());
    }

    #[test]
    fn a_map_whose_size_varies_a_little_keeps_its_memory() {
        let mut map: HashMap<u32, u32> = HashMap::with_capacity(8_192);
        map.extend((0..4_097).map(|number| (number, number)));
        let mut memory = map.clone();
        memory.clear();
        for _ in 0..100 {
            map.remove(&4_096);
            map.trim();
            map.insert(4_096, 0);
        }
        map.clear();
        assert_eq!(map.capacity(), memory.capacity());
    }
}
