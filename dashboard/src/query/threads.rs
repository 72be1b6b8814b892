//! Threads that share a pass over many locks.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::thread::{Builder, available_parallelism, scope};

use crate::model::types::{Section, Snapshot};

/// The minimum number of locks for each thread.
const WORTH_A_THREAD: usize = 25_000;
/// The maximum number of threads.
const MOST: usize = 4;

/// The number of cores.
static CORES: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));

/// The threads that may share a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The caller's thread alone. The updates of open pages use no other, so that they do not occupy all cores.
    One,
    /// Several threads, if there are many locks and cores. This is for requests with a waiting client.
    Several,
    /// Exactly this number.
    #[cfg(test)]
    Exactly(usize),
}

impl Threads {
    /// Returns the result of `make` for each section of a snapshot, in order. Each thread has one section.
    pub(super) fn share<'s, T: Send>(
        self,
        snapshot: &'s Snapshot,
        make: impl Fn(Section<'s>) -> T + Sync,
    ) -> Vec<T> {
        let make = &make;
        let mut sections = snapshot.sections(self.number(snapshot.len()));
        scope(|scope| {
            let Some(first) = sections.next() else { return Vec::new() };
            let start = |section| {
                let thread = Builder::new().spawn_scoped(scope, move || make(section));
                (section, thread)
            };
            let others: Vec<_> = sections.map(start).collect();
            let others = others.into_iter().map(|(section, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // The system has no more threads.
                Err(_) => make(section),
            });
            [make(first)].into_iter().chain(others).collect()
        })
    }

    fn number(self, locks: usize) -> usize {
        match self {
            Self::One => 1,
            Self::Several => (locks / WORTH_A_THREAD).min(*CORES).clamp(1, MOST),
            #[cfg(test)]
            Self::Exactly(number) => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_enough_to_do() {
        let each = WORTH_A_THREAD;
        assert_eq!([0, 1, each, 2 * each - 1].map(|locks| Threads::Several.number(locks)), [1; 4]);
        assert_eq!(Threads::Several.number(2 * each), (*CORES).min(2));
        assert_eq!(Threads::Several.number(100 * each), (*CORES).min(MOST));
        assert_eq!(Threads::One.number(100 * each), 1);
    }
}
