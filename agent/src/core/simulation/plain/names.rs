//! The locks of a run.

use redisson::LockName;

pub(super) const NAMES: [&str; 3] = ["x", "y", "z"];

pub(super) fn name_of(name: &LockName) -> &'static str {
    NAMES.into_iter().find(|lock| lock.as_bytes() == name.as_bytes()).expect("a lock of ours")
}
