//! Maps whose keys are small numbers.

/// A map from small numbers to values.
#[derive(Debug)]
pub struct ByNumber<T>(Vec<Option<T>>);

impl<T> Default for ByNumber<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByNumber<T> {
    /// Returns the value of a number, after inserting it if there is none.
    #[inline]
    pub fn get_or_insert_with(&mut self, number: usize, new: impl FnOnce() -> T) -> &mut T {
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        self.0[number].get_or_insert_with(new)
    }

    /// Returns the values in the order of their numbers.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.0.into_iter().flatten()
    }
}
