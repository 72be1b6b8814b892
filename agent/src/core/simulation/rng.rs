//! Chance that a seed determines.

use std::ops::Range;

/// A stream of random numbers (xorshift).
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds are to differ from the first number on.
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// One of `range`.
    pub(super) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// An index below `len`.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0..len as u64)).expect("below a usize")
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// True once in so many times.
    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.within(0..times) == 0
    }
}
