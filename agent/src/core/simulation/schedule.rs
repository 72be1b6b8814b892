//! Simulated time: a queue of events and a trace of them. Instants are microseconds.

use std::collections::BTreeMap;
use std::time::Duration;

/// Converts a duration to simulated time.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("no simulation lasts that long")
}

/// Events to come, in order of time, and of insertion at the same instant.
#[derive(Debug)]
pub(super) struct Schedule<E> {
    sequence: u64,
    queue: BTreeMap<(u64, u64), E>,
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Self { sequence: 0, queue: BTreeMap::new() }
    }
}

impl<E> Schedule<E> {
    pub(super) fn insert(&mut self, at: u64, event: E) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    /// Removes the next event, if it happens at `end` or before.
    pub(super) fn next_until(&mut self, end: u64) -> Option<(u64, E)> {
        let next = self.queue.first_entry().filter(|next| next.key().0 <= end)?;
        let (at, _) = *next.key();
        Some((at, next.remove()))
    }
}

/// The events of a run as text, if they are wanted.
#[derive(Debug, Default)]
pub(super) struct Trace(Option<Vec<String>>);

impl Trace {
    pub(super) fn new(wanted: bool) -> Self {
        Self(wanted.then(Vec::new))
    }

    pub(super) fn log(&mut self, now: u64, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.0 {
            let now = Duration::from_micros(now).as_secs_f64();
            lines.push(format!("{now:>11.6}  {}", line()));
        }
    }

    pub(super) fn lines(&self) -> &[String] {
        self.0.as_deref().unwrap_or(&[])
    }
}
