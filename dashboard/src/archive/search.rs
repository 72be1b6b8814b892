//! Searches for events, one page at a time, in either direction.

use std::str::FromStr;

use redisson::LockName;
use rusqlite::fallible_streaming_iterator::FallibleStreamingIterator as _;
use rusqlite::{CachedStatement, Connection, Row, Rows, ToSql};
use serde::Serialize;
use utoipa::ToSchema;

use super::columns::{instant, stored};
use super::reader::Reader;
use super::search_deadline::SearchDeadline;
use crate::clock::SteadyMillis;
use crate::model::types::{EVENT_WORDS, EventFields, LockId};
use crate::schema::words;

/// The maximum number of events in one answer.
pub const MAX_EVENTS: usize = 1_000;
/// The detail of an operator's action.
const ACT: &str = "outcome || ': ' || who || ' from ' || from_ip || CASE WHEN was = '' THEN '' ELSE ', ' || was END || '; why: ' || reason";

/// The kinds of rows that are events: the word, the table, and the columns of instant, subject and detail.
pub(super) const SOURCES: [(&str, &str, &str, &str, &str); 5] = [
    ("'taken'", "hold", "began", "holder", "NULL"),
    ("'ended'", "hold", "ended", "holder", "how"),
    ("'problem'", "problem", "began", "problem", "certainty"),
    ("'cleared'", "problem", "cleared", "problem", "certainty"),
    ("what", "act", "at", "subject", ACT),
];

/// An event of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PastEvent {
    #[serde(serialize_with = "crate::clock::as_wall")]
    pub at: SteadyMillis,
    #[schema(schema_with = event_words)]
    pub event: String,
    pub lock: LockId,
    /// The holder or the problem; `lock` for the whole lock.
    pub subject: String,
    /// The ending of a hold, or the certainty of a problem; or an action's operator, address, reason, state before, and
    /// outcome.
    pub detail: Option<String>,
}

/// The last five are an operator's actions.
fn event_words() -> utoipa::openapi::Object {
    words(EVENT_WORDS)
}

/// The position of an event among all events: by its instant, then by the kind of its row, then by its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Position {
    pub(super) at: i64,
    /// An index in [`SOURCES`].
    pub(super) kind: usize,
    row: i64,
}

/// The end of one page and the beginning of another, as written in addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventCursor {
    position: Position,
    /// True for the events after the position, false for those before it.
    later: bool,
}

impl std::fmt::Display for EventCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Position { at, kind, row } = self.position;
        let side = if self.later { "after" } else { "before" };
        write!(f, "{side}-{at}-{kind}-{row}")
    }
}

/// A malformed cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`cursor` is not one of this list; begin without one")]
pub struct BadCursor;

impl FromStr for EventCursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let mut parts = text.split('-');
        let later = match parts.next() {
            Some("after") => true,
            Some("before") => false,
            _ => return Err(BadCursor),
        };
        let mut number = || parts.next().and_then(|part| part.parse::<i64>().ok()).ok_or(BadCursor);
        let (at, kind, row) = (number()?, number()?, number()?);
        let kind = usize::try_from(kind).map_err(|_| BadCursor)?;
        match parts.next() {
            None => Ok(Self { position: Position { at, kind, row }, later }),
            Some(_) => Err(BadCursor),
        }
    }
}

/// A page of events between two instants.
#[derive(Debug, Clone)]
pub struct EventSearch {
    pub from: SteadyMillis,
    pub to: SteadyMillis,
    /// The lock, or `None` for all locks.
    pub lock: Option<LockId>,
    pub newest_first: bool,
    /// The edge of the page, or `None` for the first page.
    pub cursor: Option<EventCursor>,
    /// The maximum number of events.
    pub limit: usize,
}

/// The events of a page, in the requested order.
#[derive(Debug, Clone, Default)]
pub struct FoundEvents {
    pub events: Vec<PastEvent>,
    /// The cursor of the next page, if there may be one.
    pub next: Option<EventCursor>,
    /// The cursor of the previous page.
    pub prev: Option<EventCursor>,
    /// The instant that the search had reached when its time was over, or `None` if the page is complete.
    pub reached: Option<SteadyMillis>,
}

impl Reader {
    /// Returns a page of the events for which `matches` returns true. A search that takes too long returns the events
    /// found so far, and the cursor to continue from.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub async fn events(
        &self,
        search: EventSearch,
        matches: impl Fn(&EventFields<'_>) -> bool + Send + 'static,
    ) -> rusqlite::Result<FoundEvents> {
        self.search(move |connection| {
            let found = page(connection, &search, &matches)?;
            // Near the beginning of the list, a full page is better than a short one.
            let goes_back = search.cursor.is_some_and(|cursor| cursor.later == search.newest_first);
            let short = found.events.len() < search.limit && found.reached.is_none();
            if goes_back && short {
                return page(connection, &EventSearch { cursor: None, ..search }, &matches);
            }
            Ok(found)
        })
        .await
    }
}

fn page(
    connection: &Connection,
    search: &EventSearch,
    matches: &impl Fn(&EventFields<'_>) -> bool,
) -> rusqlite::Result<FoundEvents> {
    let descending = search.cursor.map_or(search.newest_first, |cursor| !cursor.later);
    let (mut found, mut last, mut more, mut reached) = (Vec::new(), None, false, None);
    let mut deadline = SearchDeadline::new();
    scan(connection, search, descending, |position, row| {
        if deadline.spend_row() {
            reached = Some(position.at);
            return Ok(false);
        }
        if fields(row, position.kind)?.is_some_and(|event| matches(&event)) {
            if found.len() >= search.limit {
                more = true;
                return Ok(false);
            }
            found.extend(past_event(row)?.map(|event| (position, event)));
        }
        last = Some(position);
        Ok(true)
    })?;
    let edge = found.last().map(|(position, _)| *position);
    let onwards = match (more, reached) {
        (true, _) => edge,
        (false, Some(_)) => last,
        (false, None) => None,
    };
    let onwards = onwards.map(|position| EventCursor { position, later: !descending });
    let backwards = search.cursor.map(|cursor| match found.first() {
        Some((position, _)) => EventCursor { position: *position, later: descending },
        None => EventCursor { position: cursor.position, later: descending },
    });
    let goes_back = descending != search.newest_first;
    if goes_back {
        found.reverse();
    }
    let (next, prev) = if goes_back { (backwards, onwards) } else { (onwards, backwards) };
    let events = found.into_iter().map(|(_, event)| event).collect();
    Ok(FoundEvents { events, next, prev, reached: reached.map(instant) })
}

/// Calls `each` with the events of a span from its beginning or from its end, until it returns false. The columns are
/// instant, row, deployment, database, name, subject, detail and word.
pub(super) fn scan(
    connection: &Connection,
    search: &EventSearch,
    descending: bool,
    mut each: impl FnMut(Position, &Row<'_>) -> rusqlite::Result<bool>,
) -> rusqlite::Result<()> {
    let edge = search.cursor.map(|cursor| cursor.position);
    let (mut from, mut to) = (stored(search.from), stored(search.to));
    match edge {
        Some(edge) if descending => to = to.min(edge.at),
        Some(edge) => from = from.max(edge.at),
        None => {}
    }
    let mut statements = statements(connection, search.lock.is_some(), descending)?;
    let name = search.lock.as_ref().map(|lock| (&*lock.deployment, lock.db, lock.name.as_bytes()));
    let mut arguments: Vec<&dyn ToSql> = vec![&from, &to];
    if let Some((deployment, db, name)) = &name {
        arguments.extend([deployment as &dyn ToSql, db, name]);
    }
    let mut sources: Vec<Rows<'_>> = Vec::new();
    for statement in &mut statements {
        let mut rows = statement.query(&*arguments)?;
        rows.advance()?;
        sources.push(rows);
    }
    let precedes = |a: Position, b: Position| if descending { a > b } else { a < b };
    loop {
        let mut next: Option<Position> = None;
        for (kind, rows) in sources.iter().enumerate() {
            let Some(row) = rows.get() else { continue };
            let position = Position { at: row.get(0)?, kind, row: row.get(1)? };
            if next.is_none_or(|next| precedes(position, next)) {
                next = Some(position);
            }
        }
        let Some(position) = next else { return Ok(()) };
        let is_beyond_edge = edge.is_none_or(|edge| precedes(edge, position));
        let rows = &mut sources[position.kind];
        if let Some(row) = rows.get().filter(|_| is_beyond_edge)
            && !each(position, row)?
        {
            return Ok(());
        }
        rows.advance()?;
    }
}

/// Returns a query for each of [`SOURCES`]. Its parameters are the first and the last instant, and the deployment, database
/// and name if it is for one lock.
fn statements(
    connection: &Connection,
    for_one_lock: bool,
    descending: bool,
) -> rusqlite::Result<Vec<CachedStatement<'_>>> {
    let of_lock = match for_one_lock {
        true => "AND deployment = ?3 AND db = ?4 AND name = ?5",
        false => "",
    };
    let order = if descending { "DESC" } else { "ASC" };
    let statements = SOURCES.iter().map(|(event, table, time, subject, detail)| {
        connection.prepare_cached(&format!(
            "SELECT {time}, rowid, deployment, db, name, {subject}, {detail}, {event} FROM {table}
             WHERE {time} BETWEEN ?1 AND ?2 {of_lock} ORDER BY {time} {order}, rowid {order}"
        ))
    });
    statements.collect()
}

/// Returns the fields to which a filter is applied, or `None` if a row is not as it was written.
pub(super) fn fields<'r>(
    row: &'r Row<'_>,
    kind: usize,
) -> rusqlite::Result<Option<EventFields<'r>>> {
    let detail = row.get_ref(6)?;
    let (deployment, name) = (row.get_ref(2)?.as_str(), row.get_ref(4)?.as_bytes());
    let (subject, word) = (row.get_ref(5)?.as_str(), row.get_ref(7)?.as_str());
    let (Ok(deployment), Ok(name), Ok(subject), Ok(word)) = (deployment, name, subject, word)
    else {
        return Ok(None);
    };
    let event = EVENT_WORDS.get(kind).filter(|_| kind + 1 < SOURCES.len()).copied().unwrap_or(word);
    let detail = detail.as_str().ok();
    Ok(Some(EventFields { event, deployment, db: row.get(3)?, name, subject, detail }))
}

/// Parses one event, or returns `None` if the row's name cannot be a lock's.
fn past_event(row: &Row<'_>) -> rusqlite::Result<Option<PastEvent>> {
    let (deployment, name): (String, Vec<u8>) = (row.get(2)?, row.get(4)?);
    let Ok(name) = LockName::new(name) else { return Ok(None) };
    let lock = LockId { deployment: deployment.into(), db: row.get(3)?, name };
    let (at, subject, detail) = (instant(row.get(0)?), row.get(5)?, row.get(6)?);
    let event = row.get(7)?;
    Ok(Some(PastEvent { at, event, lock, subject, detail }))
}
