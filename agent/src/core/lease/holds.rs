//! The holds in memory: stored side by side, and found without a search by their index.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::RangeBounds;

use super::hold::Hold;
use crate::core::ids::HoldIndex;
use crate::types::Number;

/// The number of holds whose memory is allocated and freed together.
const CHUNK: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Holds {
    indices: BTreeMap<Number, HoldIndex>,
    chunks: Vec<Chunk>,
    /// The unused indices. The lowest is used first, so that few chunks have memory.
    free: BinaryHeap<Reverse<HoldIndex>>,
}

/// Neighbouring holds; without memory while there are none.
#[derive(Debug, Default)]
struct Chunk {
    holds: Vec<Option<Hold>>,
    taken: usize,
}

impl Holds {
    pub(super) fn get(&self, number: Number) -> Option<&Hold> {
        self.at(self.index(number)?)
    }

    pub(super) fn get_mut(&mut self, number: Number) -> Option<&mut Hold> {
        self.at_mut(self.index(number)?)
    }

    pub(super) fn index(&self, number: Number) -> Option<HoldIndex> {
        self.indices.get(&number).copied()
    }

    pub(super) fn at(&self, index: HoldIndex) -> Option<&Hold> {
        self.chunks.get(index.0 / CHUNK)?.holds.get(index.0 % CHUNK)?.as_ref()
    }

    pub(super) fn at_mut(&mut self, index: HoldIndex) -> Option<&mut Hold> {
        self.chunks.get_mut(index.0 / CHUNK)?.holds.get_mut(index.0 % CHUNK)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Returns the holds in the order of their numbers.
    pub(super) fn range(&self, numbers: impl RangeBounds<Number>) -> impl Iterator<Item = &Hold> {
        self.indices.range(numbers).filter_map(|(_, index)| self.at(*index))
    }

    /// Returns the holds in no particular order.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Hold> {
        self.chunks.iter_mut().flat_map(|chunk| &mut chunk.holds).flatten()
    }

    /// Adds a hold whose number no other has.
    pub(super) fn insert(&mut self, mut hold: Hold) -> &mut Hold {
        let free = self.free.pop().map(|Reverse(index)| index);
        let index = free.unwrap_or_else(|| self.next_index());
        hold.index = index;
        self.indices.insert(hold.number, index);
        let chunk = &mut self.chunks[index.0 / CHUNK];
        chunk.taken += 1;
        let at = index.0 % CHUNK;
        if chunk.holds.len() <= at {
            chunk.holds.resize_with(at + 1, || None);
        }
        chunk.holds[at].insert(hold)
    }

    /// Returns the first index that was never used.
    fn next_index(&mut self) -> HoldIndex {
        let index = HoldIndex(self.indices.len());
        if index.0.is_multiple_of(CHUNK) {
            self.chunks.push(Chunk::default());
        }
        index
    }

    pub(super) fn remove(&mut self, number: Number) -> Option<Hold> {
        let index = self.indices.remove(&number)?;
        let many = self.chunks.len() > 1;
        let chunk = self.chunks.get_mut(index.0 / CHUNK)?;
        let hold = chunk.holds.get_mut(index.0 % CHUNK)?.take();
        chunk.taken -= 1;
        if chunk.taken == 0 && many {
            chunk.holds = Vec::new();
        }
        self.free.push(Reverse(index));
        if self.indices.is_empty() && many {
            *self = Self::default();
        }
        hold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::lease::hold::tests::hold;

    fn numbers(holds: &Holds) -> Vec<Number> {
        holds.range(..).map(|hold| hold.number).collect()
    }

    #[test]
    fn the_lowest_free_index_is_used_first() {
        let mut holds = Holds::default();
        let indices: Vec<_> = (1..=4).map(|number| holds.insert(hold(number)).index).collect();
        for number in [1, 3, 2] {
            holds.remove(number);
        }
        let reused: Vec<_> = (5..=7).map(|number| holds.insert(hold(number)).index).collect();
        assert_eq!(reused, indices[..3]);
    }

    #[test]
    fn a_free_index_is_reused_by_the_next_hold() {
        let mut holds = Holds::default();
        let first = holds.insert(hold(1)).index;
        let second = holds.insert(hold(2)).index;
        assert_eq!(holds.remove(1).map(|hold| hold.number), Some(1));
        assert!(holds.at(first).is_none() && holds.get(1).is_none() && holds.remove(1).is_none());
        assert_eq!(holds.insert(hold(3)).index, first);
        assert_eq!(holds.at(first).map(|hold| hold.number), Some(3));
        assert_eq!((holds.index(2), numbers(&holds)), (Some(second), vec![2, 3]));
    }

    #[test]
    fn the_memory_of_removed_holds_is_freed_although_a_few_remain() {
        let mut holds = Holds::default();
        let many = i64::try_from(4 * CHUNK).unwrap();
        let stays = many - 1;
        for number in 0..many {
            holds.insert(hold(number));
        }
        for number in 0..stays {
            assert!(holds.remove(number).is_some());
        }
        let allocated: usize = holds.chunks.iter().map(|chunk| chunk.holds.capacity()).sum();
        assert_eq!((holds.len(), allocated), (1, CHUNK));
        for number in many..2 * many - 1 {
            holds.insert(hold(number));
        }
        assert_eq!((holds.chunks.len(), holds.free.len()), (4, 0), "free indices are reused");
        assert_eq!(numbers(&holds), (stays..2 * many - 1).collect::<Vec<_>>());
        assert_eq!(holds.values_mut().count(), 4 * CHUNK);
        for number in stays..2 * many - 1 {
            assert!(holds.remove(number).is_some());
        }
        assert_eq!((holds.len(), holds.chunks.capacity(), holds.free.capacity()), (0, 0, 0));
        assert_eq!(holds.insert(hold(7)).number, 7);
    }
}
