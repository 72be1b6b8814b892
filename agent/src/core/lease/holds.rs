//! The holds in memory: side by side, and found without a search by who knows the place.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use super::hold::Hold;
use crate::core::ids::Place;
use crate::types::Number;

/// The holds for which there is memory while there are none.
const FEW: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Holds {
    places: BTreeMap<Number, Place>,
    holds: Vec<Option<Hold>>,
    free: Vec<Place>,
}

impl Holds {
    pub(super) fn get(&self, number: Number) -> Option<&Hold> {
        self.at(self.place(number)?)
    }

    pub(super) fn get_mut(&mut self, number: Number) -> Option<&mut Hold> {
        self.at_mut(self.place(number)?)
    }

    pub(super) fn place(&self, number: Number) -> Option<Place> {
        self.places.get(&number).copied()
    }

    pub(super) fn at(&self, place: Place) -> Option<&Hold> {
        self.holds.get(place.0)?.as_ref()
    }

    pub(super) fn at_mut(&mut self, place: Place) -> Option<&mut Hold> {
        self.holds.get_mut(place.0)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the holds in the order of their numbers.
    pub(super) fn range(&self, numbers: impl RangeBounds<Number>) -> impl Iterator<Item = &Hold> {
        self.places.range(numbers).filter_map(|(_, place)| self.at(*place))
    }

    /// Returns the holds in no particular order.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Hold> {
        self.holds.iter_mut().flatten()
    }

    /// Adds a hold whose number no other has.
    pub(super) fn insert(&mut self, mut hold: Hold) -> &mut Hold {
        let place = self.free.pop().unwrap_or(Place(self.holds.len()));
        hold.place = place;
        self.places.insert(hold.number, place);
        if place.0 == self.holds.len() {
            self.holds.push(None);
        }
        self.holds[place.0].insert(hold)
    }

    pub(super) fn remove(&mut self, number: Number) -> Option<Hold> {
        let place = self.places.remove(&number)?;
        let hold = self.holds.get_mut(place.0)?.take();
        self.free.push(place);
        if self.places.is_empty() && self.holds.len() > FEW {
            // Frees the memory of many.
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
    fn a_place_that_is_free_again_is_given_to_the_next_hold() {
        let mut holds = Holds::default();
        let first = holds.insert(hold(1)).place;
        let second = holds.insert(hold(2)).place;
        assert_eq!(holds.remove(1).map(|hold| hold.number), Some(1));
        assert!(holds.at(first).is_none() && holds.get(1).is_none() && holds.remove(1).is_none());
        assert_eq!(holds.insert(hold(3)).place, first);
        assert_eq!(holds.at(first).map(|hold| hold.number), Some(3));
        assert_eq!((holds.place(2), numbers(&holds)), (Some(second), vec![2, 3]));
    }

    #[test]
    fn the_memory_of_many_holds_is_freed_with_the_last() {
        let mut holds = Holds::default();
        let many = i64::try_from(2 * FEW).unwrap();
        for number in 0..many {
            holds.insert(hold(number));
        }
        for number in 0..many {
            assert!(holds.remove(number).is_some());
        }
        assert_eq!((holds.len(), holds.holds.capacity(), holds.free.capacity()), (0, 0, 0));
        assert_eq!(holds.insert(hold(7)).number, 7);
    }
}
