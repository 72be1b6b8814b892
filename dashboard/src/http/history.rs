//! Fills the page of the history, from the stored history or from remembered events.

use std::sync::Arc;

use super::app::{App, Span, span_of};
use super::error::ApiError;
use super::params::{EventsParams, instant, non_blank, recognizable};
use crate::archive::{BUCKETS, BadCursor, Density, EventSearch, FoundEvents, Gap, HeldThen};
use crate::clock::SteadyMillis;
use crate::model::owner_names::OwnerNames;
use crate::model::types::{Ending, EventFields, HolderField, LockEvent, LockId};
use crate::query::EventFilter;
use crate::text::revealed;
use crate::views::{EventRow, HistoryPage};

/// The maximum number of events on a page.
const EVENTS: usize = 100;
/// The maximum number of holds shown at an instant.
const HOLDS: usize = 100;
/// The longest time between two writes of the history, with some to spare, in milliseconds.
const MAX_WRITE_INTERVAL_MS: u64 = 10_000;

/// Returns true if a gap is only the time since this dashboard last wrote the history.
pub(super) fn is_just_now(gap: &Gap, now: SteadyMillis) -> bool {
    let since = gap.from.filter(|_| gap.to.is_none());
    since.is_some_and(|since| now.millis_since(since) < MAX_WRITE_INTERVAL_MS)
}

/// Returns the span that the strip shows. If it ends now, its parts begin at round instants, so that the strip of an
/// open page stays the same from one version to the next.
fn strip(from: SteadyMillis, to: SteadyMillis, goes_on: bool) -> (SteadyMillis, SteadyMillis) {
    let millis = to.millis_since(from);
    let part = (millis / BUCKETS as u64).max(1);
    if !goes_on {
        return (from, to);
    }
    let end = to.0 - to.0 % part + part;
    (SteadyMillis(end.saturating_sub(part * BUCKETS as u64)), SteadyMillis(end))
}

/// Returns the field of the form with an invalid instant, and the error. The field shows its time zone.
fn mistake(params: &EventsParams, now: SteadyMillis) -> Option<(&'static str, String)> {
    let fields = [("from", &params.from), ("to", &params.to), ("at", &params.at)];
    let wrong = fields.into_iter().find_map(|(field, text)| {
        let text = non_blank(text.as_deref())?;
        instant(field, text, now).err()?;
        let typed = recognizable(text);
        Some((
            field,
            format!(
                "invalid time `{typed}`: expected a time of day such as `03:12`, an instant such as `2026-11-21T03:12:00Z`, or an age such as `-15m`."
            ),
        ))
    });
    let out_of_order = || {
        span_of(params, now).err()?;
        let (field, why) = match non_blank(params.to.as_deref()) {
            Some(_) => (
                "to",
                "This is before the beginning: expected an instant after it, or nothing for now.",
            ),
            None => ("from", "This is in the future: expected an instant before now."),
        };
        Some((field, why.to_owned()))
    };
    wrong.or_else(out_of_order)
}

impl Span {
    /// Returns the search of a request for events.
    ///
    /// # Errors
    /// If the cursor is malformed.
    pub(super) fn search(
        &self,
        params: &EventsParams,
        newest_first: bool,
        limit: usize,
    ) -> Result<EventSearch, ApiError> {
        let cursor = params.cursor.as_deref().filter(|cursor| !cursor.is_empty());
        let cursor = cursor.map(str::parse).transpose();
        let cursor = cursor.map_err(|error: BadCursor| ApiError::bad_request(error.to_string()))?;
        let Self { from, to, lock } = self.clone();
        Ok(EventSearch { from, to, lock, newest_first, cursor, limit })
    }
}

impl App {
    /// Returns a page of the stored events that match a filter.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub(super) async fn search_events(
        &self,
        search: EventSearch,
        filter: &Arc<EventFilter>,
    ) -> Result<FoundEvents, ApiError> {
        let (filter, names) = (Arc::clone(filter), self.hub.names().clone());
        self.history(|archive| async move {
            archive.events(search, move |event| filter.matches(event, &names)).await
        })
        .await
    }

    /// Returns the holds at an instant that match a filter.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub(super) async fn held_at(
        &self,
        at: SteadyMillis,
        limit: usize,
        filter: &Arc<EventFilter>,
    ) -> Result<HeldThen, ApiError> {
        let (filter, names) = (Arc::clone(filter), self.hub.names().clone());
        self.history(|archive| async move {
            archive.held_at(at, limit, move |hold| filter.matches_hold(hold, &names)).await
        })
        .await
    }

    /// Returns the page of past events, newest first.
    ///
    /// # Errors
    /// If a parameter is malformed, or the history cannot be read.
    pub async fn history_page(
        &self,
        address: &str,
        params: &EventsParams,
    ) -> Result<HistoryPage, ApiError> {
        let now = SteadyMillis::now();
        // The form keeps the text as typed, with the mistake next to it.
        let mistake = mistake(params, now);
        let span = match mistake {
            Some(_) => self.span(&EventsParams { from: None, to: None, ..params.clone() }, now)?,
            None => self.span(params, now)?,
        };
        let mut page = self.empty_history_page(address, params, &span, mistake);
        let filter = match EventFilter::parse(&page.filter) {
            Ok(filter) => Arc::new(filter),
            Err(error) => {
                page.filter_error = Some(revealed(&error.to_string()));
                return Ok(page);
            }
        };
        if page.mistake.is_some() {
            return Ok(page);
        }
        page.types = filter.types().collect();
        let goes_on = page.to_text.trim().is_empty();
        let (from, to) = strip(span.from, span.to, goes_on);
        page.density = Density::new(from, to);
        if page.kept {
            let search = span.search(params, true, EVENTS)?;
            self.add_stored(&mut page, search, &filter, now).await?;
            if let Some(at) = non_blank(params.at.as_deref()) {
                // The last part of the strip may end in the future.
                let at = instant("at", at, now)?.min(now);
                let then = self.held_at(at, HOLDS, &filter).await?;
                let gap = then.gap.filter(|gap| !is_just_now(gap, now));
                page.then = Some(HeldThen { gap, ..then });
            }
        } else {
            self.add_remembered(&mut page, &filter);
        }
        Ok(page)
    }

    /// Returns the page with its form, and without events.
    fn empty_history_page(
        &self,
        address: &str,
        params: &EventsParams,
        span: &Span,
        mistake: Option<(&'static str, String)>,
    ) -> HistoryPage {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        HistoryPage {
            chrome: self.chrome(address),
            from_text: text(&params.from),
            to_text: text(&params.to),
            at_text: text(&params.at),
            filter: text(&params.filter),
            filter_error: None,
            mistake,
            types: Vec::new(),
            from: span.from,
            to: span.to,
            lock: span.lock.clone(),
            rows: Vec::new(),
            cursor: params.cursor.clone(),
            older: None,
            newer: None,
            reached: None,
            density: Density::new(span.from, span.to),
            gaps: Vec::new(),
            kept: self.archive.is_some(),
            trouble: self.sources.history_trouble(),
            then: None,
        }
    }

    /// Adds a page of the stored events, and the strip with its gaps.
    ///
    /// # Errors
    /// If the history cannot be read.
    async fn add_stored(
        &self,
        page: &mut HistoryPage,
        search: EventSearch,
        filter: &Arc<EventFilter>,
        now: SteadyMillis,
    ) -> Result<(), ApiError> {
        let (from, to) = (page.density.from, page.density.to);
        let of_strip = EventSearch { from, to, cursor: None, ..search.clone() };
        let found = self.search_events(search, filter).await?;
        page.rows = found.events.iter().map(EventRow::past).collect();
        page.older = found.next.map(|cursor| cursor.to_string());
        page.newer = found.prev.map(|cursor| cursor.to_string());
        page.reached = found.reached;
        let names = self.hub.names().clone();
        let matches = (!filter.is_only_types()).then(|| {
            let filter = Arc::clone(filter);
            move |event: &EventFields<'_>| filter.matches_apart_from_type(event, &names)
        });
        let density =
            self.history(|archive| async move { archive.density(of_strip, matches).await });
        page.density = density.await?;
        let gaps = self.history(|archive| async move { archive.gaps(from, to).await }).await?;
        page.gaps = gaps.into_iter().filter(|gap| !is_just_now(gap, now)).collect();
        Ok(())
    }

    /// Adds the latest events that are remembered for each lock, newest first.
    fn add_remembered(&self, page: &mut HistoryPage, filter: &EventFilter) {
        let (snapshot, names) = (self.hub.snapshot(), self.hub.names());
        let mut rows: Vec<EventRow> = snapshot
            .locks()
            .filter(|lock| page.lock.as_ref().is_none_or(|id| lock.id == *id))
            .flat_map(|lock| {
                lock.events.newest_first().map(move |(what, event)| (lock, what, event))
            })
            .filter(|(.., event)| (page.from..=page.to).contains(&event.at))
            .filter(|(lock, what, _)| remembered_matches(&lock.id, what, filter, names))
            .map(|(lock, _, event)| EventRow::seen(&lock.id, event))
            .collect();
        for row in &rows {
            page.density.add(row.at, stored_word(&row.event));
        }
        rows.retain(|row| filter.selects(stored_word(&row.event)));
        rows.sort_by(|a, b| (b.at, &b.lock.name).cmp(&(a.at, &a.lock.name)));
        rows.truncate(EVENTS);
        page.rows = rows;
    }
}

/// Returns the type that an event would have in the history.
fn stored_word(event: &str) -> &str {
    match event {
        "released" | "vanished" => "ended",
        other => other,
    }
}

fn remembered_matches(
    lock: &LockId,
    what: &LockEvent,
    filter: &EventFilter,
    names: &OwnerNames,
) -> bool {
    let holder = what.holder().map(HolderField::text);
    let subject = match what {
        LockEvent::Problem(problem) | LockEvent::Cleared(problem) => problem.as_str(),
        LockEvent::Acted(_, sentence) => sentence,
        _ => holder.as_deref().unwrap_or_default(),
    };
    let fields = EventFields {
        event: stored_word(what.word()),
        deployment: &lock.deployment,
        db: lock.db,
        name: lock.name.as_bytes(),
        subject,
        detail: what.ending().map(Ending::as_str),
    };
    filter.matches_apart_from_type(&fields, names)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use redisson::{HolderId, LockName};

    use super::*;
    use crate::model::types::{EndCause, ProblemKind};

    #[test]
    fn remembered_events_are_found_by_owner_and_problem() {
        let client = "285475da-9152-4c83-822a-67ee2f116a79";
        let names = OwnerNames::default();
        names.record(client, "payments-6f7d9c5b44-x2k9p@web-7");
        let name = LockName::new(&b"orders:1"[..]).unwrap();
        let lock = LockId { deployment: Arc::from("main"), db: 0, name };
        let matches = |what: &LockEvent, filter: &str| {
            remembered_matches(&lock, what, &EventFilter::parse(filter).unwrap(), &names)
        };
        let holder = HolderId::parse(format!("{client}:52").as_bytes()).unwrap();
        let holder = || HolderField::Id(holder);
        for what in [
            LockEvent::FoundHeld(holder()),
            LockEvent::Taken(holder(), 5_000),
            LockEvent::Released(Some(holder())),
            LockEvent::Reentered(holder(), 1, 2),
            LockEvent::Vanished(holder(), EndCause::ServerRestarted),
            LockEvent::Vanished(holder(), EndCause::Replaced("a string".to_owned())),
        ] {
            for filter in ["service:payments", "host:web-7", "owner:payments", "owner:285475da"] {
                assert!(matches(&what, filter), "{what:?} {filter}");
            }
            for filter in ["service:web-7", "host:web-8", "problem:any"] {
                assert!(!matches(&what, filter), "{what:?} {filter}");
            }
        }
        for (what, ended) in [
            (LockEvent::Released(Some(holder())), "released"),
            (LockEvent::Released(None), "released"),
            (LockEvent::ReleasedUnseen(3), "released"),
            (LockEvent::HandedOver(holder()), "handed_over"),
            (LockEvent::Forced(holder()), "forced"),
            (LockEvent::Vanished(holder(), EndCause::Expired), "ran_out"),
            (LockEvent::Vanished(holder(), EndCause::Early(700)), "vanished"),
            (LockEvent::Vanished(holder(), EndCause::ServerRestarted), "restarted"),
            (LockEvent::Vanished(holder(), EndCause::Replaced("a list".to_owned())), "replaced"),
        ] {
            assert_eq!(stored_word(what.word()), "ended", "{what:?}");
            for word in Ending::ALL.map(Ending::as_str) {
                assert_eq!(matches(&what, &format!("ended:{word}")), word == ended, "{what:?}");
            }
        }
        assert!(!matches(&LockEvent::Taken(holder(), 0), "ended:released"));
        let late = LockEvent::Problem(ProblemKind::RenewalOverdue);
        assert!(matches(&late, "problem:renewal_overdue"));
        assert!(!matches(&late, "problem:leaked"));
    }

    #[test]
    fn the_strip_of_an_open_page_moves_in_whole_parts() {
        let hour = 3_600_000;
        let at = |to: u64| strip(SteadyMillis(to - hour), SteadyMillis(to), true);
        let (from, to) = at(100_000_001);
        assert_eq!(to.0 - from.0, hour);
        assert!(to.0 > 100_000_001 && to.0 - 100_000_001 <= hour / BUCKETS as u64);
        assert_eq!(at(to.0 - 1), (from, to), "the same until the part is over");
        assert_ne!(at(to.0), (from, to));
        let past = (SteadyMillis(5), SteadyMillis(77));
        assert_eq!(strip(past.0, past.1, false), past);
    }
}
