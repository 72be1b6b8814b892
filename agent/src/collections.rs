//! Maps and sets with a quicker hash than the standard library's, since every command looks up several.
//!
//! The hash has a random seed, so that no worker can choose names that collide.

use foldhash::fast::RandomState;

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
pub(crate) type HashSet<T> = std::collections::HashSet<T, RandomState>;
