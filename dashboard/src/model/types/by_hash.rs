//! Maps whose keys are already hashes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Values by a hash of 64 bits.
pub(super) type ByHash<T> = HashMap<u64, T, BuildHasherDefault<IdentityHasher>>;

/// A hasher for keys that are already hashes.
#[derive(Debug, Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        // Keys are numbers of 64 bits.
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }
}
