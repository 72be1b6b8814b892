//! The number of events by time and type.

use rusqlite::Connection;

use super::columns::{instant, stored};
use super::reader::Reader;
use super::search::{EventSearch, SOURCES, fields, scan};
use super::search_deadline::SearchDeadline;
use crate::clock::SteadyMillis;
use crate::model::types::{EVENT_WORDS, EventFields};

/// The parts into which a span of time is divided.
pub const BUCKETS: usize = 90;

/// The number of events by time and type. The time is divided into parts of equal length, and the types are in the
/// order of [`EVENT_WORDS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Density {
    pub from: SteadyMillis,
    pub to: SteadyMillis,
    pub buckets: Vec<[u64; EVENT_WORDS.len()]>,
    /// The earliest instant that is counted, if counting all would have taken too long.
    pub counted_from: Option<SteadyMillis>,
}

impl Density {
    /// Returns a density without events.
    #[must_use]
    pub fn new(from: SteadyMillis, to: SteadyMillis) -> Self {
        let buckets = vec![Default::default(); BUCKETS];
        Self { from, to, buckets, counted_from: None }
    }

    /// Counts an event.
    pub fn add(&mut self, at: SteadyMillis, word: &str) {
        self.add_to(self.bucket(at), word, 1);
    }

    fn add_to(&mut self, bucket: usize, word: &str, count: u64) {
        let kind = EVENT_WORDS.iter().position(|known| *known == word);
        if let (Some(bucket), Some(kind)) = (self.buckets.get_mut(bucket), kind) {
            bucket[kind] += count;
        }
    }

    /// Returns the part in which an instant lies.
    fn bucket(&self, at: SteadyMillis) -> usize {
        let span = u128::from(self.to.millis_since(self.from)).max(1);
        let passed = u128::from(at.millis_since(self.from));
        let bucket = passed * BUCKETS as u128 / span;
        usize::try_from(bucket).unwrap_or(BUCKETS).min(BUCKETS - 1)
    }

    /// Returns the instant at which a part begins.
    #[must_use]
    pub fn start(&self, bucket: usize) -> SteadyMillis {
        let span = u128::from(self.to.millis_since(self.from));
        let passed = span * bucket as u128 / BUCKETS as u128;
        self.from.plus(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// Returns the number of events of each type.
    #[must_use]
    pub fn by_type(&self) -> [u64; EVENT_WORDS.len()] {
        let mut sums = [0; EVENT_WORDS.len()];
        for bucket in &self.buckets {
            sums.iter_mut().zip(bucket).for_each(|(sum, count)| *sum += count);
        }
        sums
    }
}

impl Reader {
    /// Counts the events of a span for which `matches` returns true, or all of them without a filter.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn density(
        &self,
        search: EventSearch,
        matches: Option<impl Fn(&EventFields<'_>) -> bool + Send + 'static>,
    ) -> rusqlite::Result<Density> {
        self.search(move |connection| match &matches {
            None if search.lock.is_none() => count(connection, &search),
            None => count_matching(connection, &search, &|_: &EventFields<'_>| true),
            Some(matches) => count_matching(connection, &search, matches),
        })
        .await
    }
}

/// Counts all events of a span, using only the indexes.
fn count(connection: &Connection, search: &EventSearch) -> rusqlite::Result<Density> {
    let mut density = Density::new(search.from, search.to);
    let deadline = SearchDeadline::new();
    let (by_index, acts) = SOURCES.split_at(SOURCES.len() - 1);
    for bucket in (0..BUCKETS).rev() {
        if deadline.is_over() {
            density.counted_from = Some(density.start(bucket + 1));
            break;
        }
        let from = stored(density.start(bucket));
        // The last part includes the end of the span.
        let to = stored(density.start(bucket + 1)).saturating_sub(i64::from(bucket + 1 < BUCKETS));
        for ((_, table, time, ..), word) in by_index.iter().zip(EVENT_WORDS) {
            let mut number = connection.prepare_cached(&format!(
                "SELECT count(*) FROM {table} WHERE {time} BETWEEN ?1 AND ?2"
            ))?;
            let number = number.query_row([from, to], |row| row.get(0))?;
            density.add_to(bucket, word, number);
        }
    }
    for (word, table, time, ..) in acts {
        let mut rows = connection.prepare_cached(&format!(
            "SELECT {time}, {word} FROM {table} WHERE {time} BETWEEN ?1 AND ?2"
        ))?;
        let mut rows = rows.query([stored(search.from), stored(search.to)])?;
        while let Some(row) = rows.next()? {
            density.add(instant(row.get(0)?), row.get_ref(1)?.as_str().unwrap_or_default());
        }
    }
    Ok(density)
}

/// Counts matching events from the end of a span on.
fn count_matching(
    connection: &Connection,
    search: &EventSearch,
    matches: &impl Fn(&EventFields<'_>) -> bool,
) -> rusqlite::Result<Density> {
    let mut density = Density::new(search.from, search.to);
    let mut deadline = SearchDeadline::new();
    let whole = EventSearch { cursor: None, ..search.clone() };
    scan(connection, &whole, true, |position, row| {
        let at = instant(position.at);
        if deadline.spend_row() {
            density.counted_from = Some(at);
            return Ok(false);
        }
        if let Some(event) = fields(row, position.kind)?.filter(|event| matches(event)) {
            density.add(at, event.event);
        }
        Ok(true)
    })?;
    Ok(density)
}
