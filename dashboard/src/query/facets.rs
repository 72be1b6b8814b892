//! The number of locks by view and by property.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::{Filter, quoted, with_term};
use crate::model::types::{ByNumber, ClientView, Entry, LockView, State};
use crate::schema::schema_of;

/// The views of the list of locks, each with the terms that select it.
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
/// The maximum number of values of a property that are counted.
const MAX_VALUES: usize = 5_000;
/// The number of values that are shown, those with the most locks.
const TOP: usize = 8;
/// The longest value that is counted, bytes.
const MAX_VALUE: usize = 80;

/// The counts for a filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facets {
    /// The number of locks in each of [`VIEWS`] that match the rest of the filter.
    pub views: [usize; VIEWS.len()],
    /// The most common values of each of [`PROPERTIES`] among the matching locks, with their numbers of locks.
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

/// Returns a filter that additionally asks for a value of a property.
#[must_use]
pub fn narrowed(filter: &str, property: &str, value: &str) -> String {
    match property {
        // Without quotes, the term would also match parts of hosts.
        "host" => format!("{} host:{}", filter.trim(), quoted(value)).trim_start().to_owned(),
        property => with_term(filter, property, value),
    }
}

/// The numbers of locks by value, for each of [`PROPERTIES`].
type Values = [HashMap<Arc<str>, usize>; PROPERTIES.len()];

/// The counts of some locks.
#[derive(Debug, Default)]
pub(super) struct Tally {
    views: [usize; VIEWS.len()],
    values: Values,
}

/// The counts of some locks while a pass over the locks adds to them.
#[derive(Debug)]
pub(super) struct Counting<'q, 's> {
    /// The filter without the terms that select a view.
    base: &'q Filter,
    /// The prefix that the filter asks for.
    prefix: &'q [u8],
    tally: Tally,
    /// One lock of each class and its owners, with the number of locks of the class that the whole filter matches.
    owners: ByNumber<(&'s LockView, usize)>,
    /// The latest prefix, with the number of successive locks that have it, since neighbours often have the same
    /// prefix.
    run: (&'s str, usize),
}

impl<'q, 's> Counting<'q, 's> {
    pub(super) fn new(filter: &'q Filter, base: &'q Filter) -> Self {
        let (prefix, tally) = (filter.prefix().unwrap_or_default(), Tally::default());
        Self { base, prefix, tally, owners: ByNumber::default(), run: ("", 0) }
    }

    /// Adds a lock that the whole filter matches.
    pub(super) fn add(&mut self, entry: &Entry<'s>) {
        let of_owners = || (&**entry.lock, 0);
        self.owners.get_or_insert_with(entry.class_with_owners(), of_owners).1 += 1;
        if self.run.0.is_empty() || !entry.name.starts_with(self.run.0.as_bytes()) {
            let Some(prefix) = prefix(entry.name, self.prefix) else { return };
            self.end_run();
            self.run = (prefix, 0);
        }
        self.run.1 += 1;
    }

    fn end_run(&mut self) {
        let (prefix, locks) = std::mem::take(&mut self.run);
        add(&mut self.tally.values[0], prefix, locks);
    }

    /// Adds a number of locks of a class that the base filter matches. `matches` is true if the whole filter matches
    /// too, and `lock` is one of the locks.
    pub(super) fn add_class(&mut self, lock: &LockView, matches: bool, locks: usize) {
        let Tally { views, values } = &mut self.tally;
        let in_views = views.iter_mut().zip(in_views(self.base, lock));
        in_views.filter(|(_, is_in)| *is_in).for_each(|(count, _)| *count += locks);
        if matches {
            for_each_trait(lock, |property, value| add(&mut values[property], value, locks));
        }
    }

    /// Returns the counts.
    pub(super) fn finish(mut self) -> Tally {
        self.end_run();
        let Self { mut tally, owners, .. } = self;
        let mut owners: Vec<(_, usize)> = owners.into_values().collect();
        // If there are too many values, the common ones are counted.
        owners.sort_unstable_by_key(|(_, locks)| Reverse(*locks));
        for (lock, locks) in owners {
            for_each_owner(lock, |property, value| add(&mut tally.values[property], value, locks));
        }
        tally
    }
}

impl Tally {
    /// Returns the counts of all these locks, with the commonest values of each property.
    pub(super) fn facets(tallies: &[Self]) -> Facets {
        let mut facets = Facets::default();
        for tally in tallies {
            let views = facets.views.iter_mut().zip(tally.views);
            views.for_each(|(sum, locks)| *sum += locks);
        }
        for i in 0..PROPERTIES.len() {
            let all = || tallies.iter().map(|tally| &tally.values[i]);
            let mut sums: HashMap<&Arc<str>, usize> = HashMap::new();
            for (value, locks) in all().flatten() {
                *sums.entry(value).or_default() += locks;
            }
            let values = sums.len().min(MAX_VALUES);
            // A full tally may have left out locks with values that it does not contain.
            let is_whole = |value| all().all(|it| it.len() < MAX_VALUES || it.contains_key(value));
            if sums.keys().any(|value| is_whole(*value)) {
                sums.retain(|value, _| is_whole(*value));
            }
            let mut top: Vec<(Arc<str>, usize)> =
                sums.into_iter().map(|(value, locks)| (Arc::clone(value), locks)).collect();
            let most = |(value, locks): &(Arc<str>, usize)| (Reverse(*locks), Arc::clone(value));
            if top.len() > TOP {
                top.select_nth_unstable_by_key(TOP, most);
                top.truncate(TOP);
            }
            facets.more[i] = values - top.len();
            top.sort_unstable_by_key(most);
            facets.top[i] = top;
        }
        facets
    }
}

/// Adds to the count of a value, unless there are too many values.
fn add(counts: &mut HashMap<Arc<str>, usize>, value: &str, more: usize) {
    if let Some(count) = counts.get_mut(value) {
        *count += more;
    } else if more > 0 && counts.len() < MAX_VALUES {
        counts.insert(value.into(), more);
    }
}

/// Returns for each view whether it contains this lock, which `base` matches.
fn in_views(base: &Filter, lock: &LockView) -> [bool; VIEWS.len()] {
    let has_problem = !lock.problems.is_empty();
    let is_active = lock.is_held() || lock.is_awaited() || has_problem;
    let is_found = is_active || base.searches_names();
    let is_sure = lock.confirmed || has_problem;
    [
        is_found && is_sure,
        lock.has_open_problem(),
        lock.is_awaited() && is_sure,
        is_found && !lock.confirmed,
        lock.problems.iter().any(|problem| problem.acknowledged.is_some()),
        lock.is_unknown() && is_sure,
        lock.state == State::Free && is_sure,
    ]
}

/// Calls `each` with every service and every host of a lock's owners, once for each.
fn for_each_owner(lock: &LockView, mut each: impl FnMut(usize, &str)) {
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
}

/// Calls `each` with every problem of a lock and with its kind.
fn for_each_trait(lock: &LockView, mut each: impl FnMut(usize, &str)) {
    for problem in &lock.problems {
        each(3, problem.problem.as_str());
    }
    each(4, lock.kind.as_str());
}

/// Returns the part of a name up to the first colon after a given prefix.
fn prefix<'a>(name: &'a [u8], chosen: &[u8]) -> Option<&'a str> {
    let end = chosen.len() + memchr::memchr(b':', name.get(chosen.len()..)?)? + 1;
    std::str::from_utf8(&name[..end]).ok().filter(|prefix| prefix.len() <= MAX_VALUE)
}

#[cfg(test)]
pub(super) mod tests {
    use thin_vec::thin_vec;

    use super::*;
    use crate::clock::SteadyMillis;
    use crate::model::types::Snapshot;
    use crate::query::fixtures::{acknowledged, leaked, lock};
    use crate::query::{LockRow, Order, Query, Threads};

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    /// Returns the counts for a filter by looking at each lock.
    pub(in crate::query) fn by_looking(
        filter: &str,
        snapshot: &Snapshot,
        now: SteadyMillis,
    ) -> Facets {
        let whole = Filter::parse(filter).unwrap();
        let base = Filter::parse(&Filter::without_view(filter)).unwrap();
        let Tally { mut views, mut values } = Tally::default();
        for lock in snapshot.locks().filter(|lock| base.terms_match(lock, now)) {
            let in_views = views.iter_mut().zip(in_views(&base, lock));
            in_views.for_each(|(sum, is_in)| *sum += usize::from(is_in));
            if whole.matches(lock, now) {
                let chosen = whole.prefix().unwrap_or_default();
                let prefix = prefix(lock.id.name.as_bytes(), chosen);
                prefix.into_iter().for_each(|prefix| add(&mut values[0], prefix, 1));
                for_each_owner(lock, |property, value| add(&mut values[property], value, 1));
                for_each_trait(lock, |property, value| add(&mut values[property], value, 1));
            }
        }
        Tally::facets(&[Tally { views, values }])
    }

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
        let filter = (filter, Filter::parse(filter).unwrap());
        let query = Query::<LockRow>::new(filter, ("name", Order::Ascending), None, 1).unwrap();
        query.pick_and_count(snapshot, NOW, Threads::One).1
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
        // The terms of a view do not affect the counts of other views.
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
    fn of_too_many_values_those_with_whole_counts_are_shown_if_there_are_any() {
        let full = |values: &[(&str, usize)]| {
            let mut tally = Tally::default();
            values.iter().for_each(|(value, locks)| add(&mut tally.values[0], value, *locks));
            for i in 0..MAX_VALUES {
                add(&mut tally.values[0], &format!("p{i}:"), 1);
            }
            tally
        };
        let mut other = Tally::default();
        add(&mut other.values[0], "few:", 5);
        let facets =
            Tally::facets(&[full(&[("common:", 9), ("few:", 8)]), full(&[("common:", 7)])]);
        assert_eq!(facets.top[0][0], ("common:".into(), 16));
        assert_eq!(facets.top[0][1].1, 2, "the second tally may have left out some of few:");
        assert_eq!(facets.more[0], MAX_VALUES - TOP);
        let facets = Tally::facets(&[full(&[("few:", 8)]), other]);
        assert_eq!(facets.top[0][0], ("few:".into(), 13), "the second has left out none");
        let mut others = Tally::default();
        (0..MAX_VALUES).for_each(|i| add(&mut others.values[0], &format!("q{i}:"), 1));
        let facets = Tally::facets(&[full(&[]), others]);
        assert_eq!((facets.top[0].len(), facets.more[0]), (TOP, MAX_VALUES - TOP));
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
