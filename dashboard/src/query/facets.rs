//! The number of locks by view and by property, counted on as locks change.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::sorted::MOVING_MS;
use super::{Filter, quoted, with_term};
use crate::clock::SteadyMillis;
use crate::model::types::{ClientView, Delta, HolderView, LockView, Snapshot, State};
use crate::schema::schema_of;

/// The views of the list of locks, each with the terms that choose it.
pub const VIEWS: [&str; 7] = [
    "",
    "problem:any acknowledged:no",
    "waiting:yes",
    "confirmed:no",
    "acknowledged:yes",
    "state:unknown",
    "state:free",
];
/// The properties by which locks are counted, as keys of the filter.
pub const PROPERTIES: [&str; 5] = ["prefix", "service", "host", "problem", "kind"];
/// The most values of a property that are counted.
const MAX_VALUES: usize = 5_000;
/// The values with the most locks that are shown.
const TOP: usize = 8;
/// The longest value that is counted, bytes.
const MAX_VALUE: usize = 80;

/// The counts for a filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facets {
    /// The locks of each of [`VIEWS`] that match the rest of the filter.
    pub views: [usize; VIEWS.len()],
    /// For each of [`PROPERTIES`] its commonest values among the locks that match, with their numbers.
    pub top: [Vec<(Arc<str>, usize)>; PROPERTIES.len()],
    /// The number of further values of each property.
    pub more: [usize; PROPERTIES.len()],
}

#[derive(Serialize, ToSchema)]
#[schema(as = Facets)]
struct FacetsJson<'a> {
    views: Vec<ViewCount>,
    properties: Vec<PropertyCounts<'a>>,
}

/// The number of locks of a view of the list.
#[derive(Serialize, ToSchema)]
struct ViewCount {
    /// The terms that choose it; empty for active locks.
    filter: &'static str,
    /// The locks that match them and the filter without its own such terms.
    count: usize,
}

/// The commonest values of a property among the matching locks.
#[derive(Serialize, ToSchema)]
struct PropertyCounts<'a> {
    /// The key of a term of the filter.
    property: &'static str,
    values: Vec<ValueCount<'a>>,
    /// The number of further values.
    more: usize,
}

#[derive(Serialize, ToSchema)]
struct ValueCount<'a> {
    value: &'a str,
    count: usize,
}

schema_of!(Facets => FacetsJson<'_>);

impl Serialize for Facets {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let views = VIEWS.into_iter().zip(self.views);
        let properties = PROPERTIES.into_iter().zip(&self.top).zip(self.more);
        FacetsJson {
            views: views.map(|(filter, count)| ViewCount { filter, count }).collect(),
            properties: properties
                .map(|((property, values), more)| PropertyCounts {
                    property,
                    values: values
                        .iter()
                        .map(|(value, count)| ValueCount { value, count: *count })
                        .collect(),
                    more,
                })
                .collect(),
        }
        .serialize(serializer)
    }
}

/// Returns a filter that asks for a value of a property as well.
#[must_use]
pub fn narrowed(filter: &str, property: &str, value: &str) -> String {
    match property {
        // Without quotes it would find a part of a host too.
        "host" => format!("{} host:{}", filter.trim(), quoted(value)).trim_start().to_owned(),
        property => with_term(filter, property, value),
    }
}

/// The filters that counts are for.
#[derive(Debug)]
struct Filters {
    whole: Filter,
    /// The same without the terms that choose a view.
    base: Filter,
    /// True if these are the same.
    is_base: bool,
}

/// Counts that are updated by the changes of locks.
#[derive(Debug)]
pub(super) struct FacetIndex {
    filters: Filters,
    /// The snapshot that is counted; none before the first.
    seq: Option<u64>,
    /// The instant at which all locks were last counted.
    at: SteadyMillis,
    views: [usize; VIEWS.len()],
    values: [HashMap<Arc<str>, usize>; PROPERTIES.len()],
    /// The counts as last shown; none once one has changed.
    sum: Option<Arc<Facets>>,
}

impl FacetIndex {
    /// `text`: a filter that is right.
    pub(super) fn new(text: &str) -> Self {
        let base = Filter::without_view(text);
        let parse = |text: &str| Filter::parse(text).unwrap_or_default();
        let (whole, base) = (parse(text), parse(&base));
        let filters = Filters { is_base: whole == base, whole, base };
        Self {
            filters,
            seq: None,
            at: SteadyMillis(0),
            views: Default::default(),
            values: Default::default(),
            sum: None,
        }
    }

    pub(super) fn seq(&self) -> Option<u64> {
        self.seq
    }

    /// Returns the counts as of a snapshot. `deltas`: every change since [`Self::seq`], if they are still known.
    pub(super) fn facets(
        &mut self,
        snapshot: &Snapshot,
        deltas: Option<&[Arc<Delta>]>,
        now: SteadyMillis,
    ) -> Arc<Facets> {
        let depends_on_clock = self.filters.whole.depends_on_clock();
        let recent = self.seq.is_some() && now.0 < self.at.0.saturating_add(MOVING_MS);
        match deltas {
            Some(deltas) if !depends_on_clock => {
                deltas.iter().for_each(|delta| self.apply(delta, now));
            }
            // All locks are counted once a second at most.
            _ if recent => {}
            _ => {
                self.views = Default::default();
                self.values.iter_mut().for_each(HashMap::clear);
                for lock in snapshot.locks() {
                    self.count::<true>(lock, now);
                }
                self.seq = Some(snapshot.seq);
                self.at = now;
                self.sum = None;
            }
        }
        Arc::clone(self.sum.get_or_insert_with(|| Arc::new(sum(self.views, &self.values))))
    }

    /// Applies a change, if it is the next and the filter does not depend on the clock.
    pub(super) fn apply(&mut self, delta: &Delta, now: SteadyMillis) {
        if self.seq != Some(delta.seq.wrapping_sub(1)) || self.filters.whole.depends_on_clock() {
            return;
        }
        self.seq = Some(delta.seq);
        let (changed, removed) = delta.before.split_at(delta.changed.len().min(delta.before.len()));
        for (lock, before) in delta.changed.iter().zip(changed) {
            if before.as_ref().is_some_and(|before| counts_alike(before, lock)) {
                continue;
            }
            if let Some(before) = before {
                self.count::<false>(before, now);
            }
            self.count::<true>(lock, now);
        }
        for before in removed.iter().flatten() {
            self.count::<false>(before, now);
        }
    }

    /// Returns the views that have a lock, and whether the whole filter matches it.
    fn matches(&self, lock: &LockView, now: SteadyMillis) -> Option<([bool; VIEWS.len()], bool)> {
        let Filters { whole, base, is_base } = &self.filters;
        if !base.terms_match(lock, now) {
            return None;
        }
        let has_problem = !lock.problems.is_empty();
        let is_active = lock.is_held() || lock.is_awaited() || has_problem;
        let is_found = is_active || base.searches_names();
        let is_sure = lock.confirmed || has_problem;
        let views = [
            is_found && is_sure,
            lock.has_open_problem(),
            lock.is_awaited() && is_sure,
            is_found && !lock.confirmed,
            lock.problems.iter().any(|problem| problem.acknowledged.is_some()),
            lock.is_unknown() && is_sure,
            lock.state == State::Free && is_sure,
        ];
        Some((views, if *is_base { views[0] } else { whole.matches(lock, now) }))
    }

    /// Adds a lock to the counts, or takes it out.
    fn count<const ADDS: bool>(&mut self, lock: &LockView, now: SteadyMillis) {
        let Some((views, matches)) = self.matches(lock, now) else { return };
        self.sum = None;
        let change = |count: &mut usize| match ADDS {
            true => *count += 1,
            false => *count = count.saturating_sub(1),
        };
        self.views
            .iter_mut()
            .zip(views)
            .filter(|(_, is_in)| *is_in)
            .for_each(|(count, _)| change(count));
        if matches {
            let values = &mut self.values;
            for_each_value(lock, &self.filters.whole, |property, value| {
                let counts = &mut values[property];
                if let Some(count) = counts.get_mut(value) {
                    change(count);
                    if *count == 0 {
                        counts.remove(value);
                    }
                } else if ADDS && counts.len() < MAX_VALUES {
                    counts.insert(value.into(), 1);
                }
            });
        }
    }
}

/// Returns the counts, with the commonest values of each property.
fn sum(
    views: [usize; VIEWS.len()],
    values: &[HashMap<Arc<str>, usize>; PROPERTIES.len()],
) -> Facets {
    let mut facets = Facets { views, ..Facets::default() };
    for (i, counts) in values.iter().enumerate() {
        let mut top: Vec<(Arc<str>, usize)> =
            counts.iter().map(|(value, count)| (Arc::clone(value), *count)).collect();
        let most =
            |(value, count): &(Arc<str>, usize)| (std::cmp::Reverse(*count), Arc::clone(value));
        if top.len() > TOP {
            top.select_nth_unstable_by_key(TOP, most);
            facets.more[i] = top.len() - TOP;
            top.truncate(TOP);
        }
        top.sort_unstable_by_key(most);
        facets.top[i] = top;
    }
    facets
}

/// Returns whether two views of a lock surely count alike, as after most readings: only its time to live is another one.
fn counts_alike(before: &LockView, after: &LockView) -> bool {
    let same_holder = |(before, after): (&HolderView, &HolderView)| {
        before.id == after.id && before.client == after.client
    };
    before.problems.is_empty()
        && after.problems.is_empty()
        && before.state == after.state
        && before.confirmed == after.confirmed
        && before.kind == after.kind
        && before.is_awaited() == after.is_awaited()
        && before.expires_at.is_none() == after.expires_at.is_none()
        && before.holders.len() == after.holders.len()
        && before.holders.iter().zip(&after.holders).all(same_holder)
}

/// Calls `each` with every value of every property of a lock, each once.
fn for_each_value(lock: &LockView, filter: &Filter, mut each: impl FnMut(usize, &str)) {
    if let Some(prefix) = prefix(lock, filter.prefix().unwrap_or_default()) {
        each(0, prefix);
    }
    let mut seen: Vec<&str> = Vec::new();
    for (property, of) in
        [(1, ClientView::service as fn(&ClientView) -> Option<&str>), (2, ClientView::host)]
    {
        seen.clear();
        for value in lock.holders.iter().filter_map(|holder| of(holder.client.as_deref()?)) {
            if value.len() <= MAX_VALUE && !seen.contains(&value) {
                seen.push(value);
                each(property, value);
            }
        }
    }
    for problem in &lock.problems {
        each(3, problem.problem.as_str());
    }
    each(4, lock.kind.as_str());
}

/// Returns the part of a name up to the first colon after a prefix of it.
fn prefix<'a>(lock: &'a LockView, chosen: &[u8]) -> Option<&'a str> {
    let name = lock.id.name.as_str()?;
    let end = name.get(chosen.len()..)?.find(':')? + chosen.len() + 1;
    name.get(..end).filter(|prefix| prefix.len() <= MAX_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::fixtures::{acknowledged, leaked, lock};
    use thin_vec::thin_vec;

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    fn by(name: &str, client: &str) -> LockView {
        let mut view = lock(name);
        let client = ClientView { name: Some(client.into()), ..ClientView::default() };
        view.holders[0].client = Some(Box::new(client));
        view
    }

    fn crowd() -> Snapshot {
        let mut snapshot = Snapshot::empty();
        let free = LockView { state: State::Free, holders: Vec::new(), ..lock("orders:eu:9") };
        for view in [
            by("orders:eu:1", "web@a"),
            by("orders:eu:2", "web@b"),
            LockView { problems: thin_vec![leaked()], ..by("orders:us:1", "etl@a") },
            LockView { problems: thin_vec![acknowledged()], ..by("single", "etl@a") },
            LockView { waiting: 3, ..by("cart:1", "web@a") },
            LockView { confirmed: false, ..by("cart:2", "web@a") },
            free,
        ] {
            snapshot.put(Arc::new(view));
        }
        snapshot
    }

    fn of(filter: &str, snapshot: &Snapshot) -> Facets {
        (*FacetIndex::new(filter).facets(snapshot, None, NOW)).clone()
    }

    fn words(facets: &Facets, property: usize) -> String {
        let words = facets.top[property].iter().map(|(value, n)| format!("{value}={n}"));
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn counts_obey_the_filter_and_lead_to_as_many_locks() {
        let snapshot = crowd();
        let all = of("", &snapshot);
        assert_eq!(all.views, [5, 1, 1, 1, 1, 0, 1]);
        assert_eq!(words(&all, 0), "orders:=3 cart:=1");
        assert_eq!(words(&all, 1), "web=3 etl=2");
        assert_eq!(words(&all, 2), "a=4 b=1");
        assert_eq!(words(&all, 3), "leaked=2");
        assert_eq!(words(&all, 4), "lock=5");
        let orders = of("prefix:orders:", &snapshot);
        assert_eq!((words(&orders, 0).as_str(), orders.views[0]), ("orders:eu:=2 orders:us:=1", 3));
        // A view's terms do not count against the other views.
        let problems = of("service:etl problem:any acknowledged:no", &snapshot);
        assert_eq!(problems.views, [2, 1, 0, 0, 1, 0, 0]);
        assert_eq!(words(&problems, 0), "orders:=1");
        for filter in ["", "service:web", "prefix:orders:", "orders", "problem:any", "r state:free"]
        {
            let facets = of(filter, &snapshot);
            for (view, count) in VIEWS.iter().zip(facets.views) {
                let text = format!("{} {view}", Filter::without_view(filter));
                let more = Filter::parse(&text).unwrap();
                let found = snapshot.locks().filter(|lock| more.matches(lock, NOW)).count();
                assert_eq!(found, count, "{text}");
            }
            for (property, key) in PROPERTIES.iter().enumerate() {
                for (value, count) in &facets.top[property] {
                    let text = narrowed(filter, key, value);
                    let more = Filter::parse(&text).unwrap();
                    let found = snapshot.locks().filter(|lock| more.matches(lock, NOW)).count();
                    assert_eq!(found, *count, "{text}");
                }
            }
        }
    }

    #[test]
    fn counting_on_equals_counting_anew() {
        let mut snapshot = crowd();
        let mut index = FacetIndex::new("service:web");
        index.facets(&snapshot, None, NOW);
        let read_again =
            LockView { expires_at: Some(SteadyMillis(7)), ..by("orders:eu:2", "web@b") };
        let changed: Vec<Arc<LockView>> =
            [by("orders:eu:1", "etl@a"), by("new:1", "web@c"), read_again].map(Arc::new).into();
        let mut before: Vec<_> =
            changed.iter().map(|lock| snapshot.put(Arc::clone(lock))).collect();
        let removed = vec![lock("cart:1").id];
        before.extend(removed.iter().map(|id| snapshot.remove(id)));
        snapshot.seq += 1;
        let delta = Arc::new(Delta::new(snapshot.seq, NOW, changed, removed, before));
        let counted_on = index.facets(&snapshot, Some(&[delta]), NOW);
        assert_eq!(*counted_on, of("service:web", &snapshot));
        assert_eq!(index.seq(), Some(snapshot.seq));
        assert_eq!(words(&counted_on, 2), "b=1 c=1");
    }

    #[test]
    fn all_locks_are_counted_once_a_second_at_most() {
        let mut snapshot = crowd();
        let mut index = FacetIndex::new("");
        let first = index.facets(&snapshot, None, NOW);
        snapshot.put(Arc::new(lock("another")));
        snapshot.seq += 1;
        let later = |ms: u64| SteadyMillis(NOW.0 + ms);
        assert_eq!(index.facets(&snapshot, None, later(MOVING_MS - 1)), first);
        assert_eq!(index.facets(&snapshot, None, later(MOVING_MS)).views[0], first.views[0] + 1);
    }

    #[test]
    fn only_the_commonest_values_are_shown() {
        let mut snapshot = Snapshot::empty();
        for i in 0..30 {
            for n in 0..=i {
                snapshot.put(Arc::new(lock(&format!("p{i:02}:{n}"))));
            }
        }
        let facets = of("", &snapshot);
        assert_eq!((facets.top[0].len(), facets.more[0]), (TOP, 22));
        assert_eq!(&*facets.top[0][0].0, "p29:");
        assert_eq!(facets.top[0][TOP - 1].1, 23);
    }
}
