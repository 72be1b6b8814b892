//! One page of locks, selected from all of them in a pass that also makes the list's counts.

use std::cmp::Ordering;
use std::sync::Arc;

use super::facets::{Counting, Facets, Tally};
use super::list::{Listed as _, Position, Query, Rank, Rows};
use super::locks::{LockRow, rank, severity};
use super::pass::Pass;
use super::{Filter, Threads};
use crate::clock::SteadyMillis;
use crate::model::types::{Entry, LockView, Part, Section, Snapshot};

impl Query<LockRow> {
    /// Returns the rows of this page.
    #[must_use]
    pub fn pick(&self, snapshot: &Snapshot, now: SteadyMillis, threads: Threads) -> Rows<LockRow> {
        self.look(snapshot, now, threads, false).0
    }

    /// Returns the rows of this page and the counts for its filter, made in the same pass.
    #[must_use]
    pub fn pick_and_count(
        &self,
        snapshot: &Snapshot,
        now: SteadyMillis,
        threads: Threads,
    ) -> (Rows<LockRow>, Facets) {
        let (rows, tallies) = self.look(snapshot, now, threads, true);
        (rows, Tally::facets(&tallies))
    }

    /// Returns the rows of this page, and the counts of each thread if they are requested.
    fn look(
        &self,
        snapshot: &Snapshot,
        now: SteadyMillis,
        threads: Threads,
        counts: bool,
    ) -> (Rows<LockRow>, Vec<Tally>) {
        let base = counts.then(|| self.filter.base());
        let found = threads.share(snapshot, |section| self.look_at(section, base.as_ref(), now));
        let (mut page, mut tallies) = (Page::new(self), Vec::new());
        for (its_page, tally) in found {
            page.join(its_page);
            tallies.push(tally);
        }
        if page.goes_back && page.before < self.limit {
            // The first page is full even if rows before its cursor are gone.
            let (total, mut first) = (page.total, self.clone());
            first.edge = None;
            let (first, _) = first.look(snapshot, now, threads, false);
            return (self.page(first.rows, 0, total), tallies);
        }
        let (before, total) = (page.before, page.total);
        (self.page(page.into_rows(), self.first_row(before), total), tallies)
    }

    /// Reads the locks of a section, and counts them if there is a base, which is the filter without the terms that
    /// select a view.
    fn look_at<'s>(
        &self,
        section: Section<'s>,
        base: Option<&Filter>,
        now: SteadyMillis,
    ) -> (Page<'_, 's>, Tally) {
        let mut counting = base.map(|base| Counting::new(&self.filter, base));
        // The counts of views include locks that the filter leaves out.
        let pass = base.map(|base| Pass::of_terms(base, now));
        let mut pass = pass.unwrap_or_else(|| Pass::new(&self.filter, now));
        let mut page = Page::new(self);
        for part in section.parts() {
            let new = |lock: &'s Arc<LockView>| Class {
                lock,
                matches: self.filter.chooses(lock, now),
                severity: severity(lock),
                locks: 0,
            };
            pass.part(part, new, |class, i, entry| {
                class.locks += 1;
                if class.matches {
                    page.add(class, i, entry);
                    if let Some(counting) = &mut counting {
                        counting.add(&entry);
                    }
                }
            });
            page.end_part(part);
        }
        let Some(mut counting) = counting else { return (page, Tally::default()) };
        for Class { lock, matches, locks, .. } in pass.into_values() {
            counting.add_class(lock, matches, locks);
        }
        (page, counting.finish())
    }
}

/// A class of locks that a pass has found, by the filter or, for counts, by its base.
#[derive(Debug)]
struct Class<'s> {
    /// Any lock of the class; it stands for all in what the class has in common.
    lock: &'s LockView,
    /// True if the whole filter matches them.
    matches: bool,
    severity: u64,
    /// The number of these locks.
    locks: usize,
}

/// A lock that may get a row, with the data known before its view is read.
#[derive(Debug, Clone, Copy)]
struct Candidate<'s> {
    rank: Rank,
    name: &'s [u8],
    lock: &'s LockRow,
}

impl<'s> Candidate<'s> {
    fn new(rank: Rank, entry: Entry<'s>) -> Self {
        Self { rank, name: entry.name, lock: entry.lock }
    }

    fn compare(&self, other: &Self, sort: &str) -> Ordering {
        self.compare_to(other.rank, other.name, sort, || other.lock.position(sort))
    }

    /// Compares the lock with a position, by rank and name alone if these suffice.
    fn compare_to<'p>(
        &self,
        rank: Rank,
        name: &[u8],
        sort: &str,
        position: impl FnOnce() -> Position<'p>,
    ) -> Ordering {
        let by_name = || if sort == "holder" { Ordering::Equal } else { self.name.cmp(name) };
        let order = self.rank.cmp(&rank).then_with(by_name);
        order.then_with(|| self.lock.position(sort).cmp(&position()))
    }
}

/// The page of a query, while parts are added.
#[derive(Debug)]
struct Page<'q, 's> {
    query: &'q Query<LockRow>,
    /// The position that the page comes after or before.
    edge: Option<Position<'q>>,
    /// True if the page comes before it.
    goes_back: bool,
    descends: bool,
    /// The rows nearest to the edge, or the first ones, up to twice the size of the page.
    nearest: Vec<Candidate<'s>>,
    /// The last of these rows, once there are enough.
    bound: Option<Candidate<'s>>,
    /// The number of matching locks, and of those before the edge.
    total: usize,
    before: usize,
    /// The matching locks of a part, unless sorted by holder.
    matching: Vec<Candidate<'s>>,
    /// For lists sorted by holder: whether each lock of a part matches, up to the last one that does.
    matches: Vec<bool>,
}

impl<'q, 's> Page<'q, 's> {
    fn new(query: &'q Query<LockRow>) -> Self {
        let (edge, goes_back) = query.edge().unzip();
        Self {
            query,
            edge,
            goes_back: goes_back == Some(true),
            descends: query.order != LockRow::default_order(query.sort),
            nearest: Vec::new(),
            bound: None,
            total: 0,
            before: 0,
            matching: Vec::new(),
            matches: Vec::new(),
        }
    }

    /// Adds a matching lock of a part, by its index.
    fn add(&mut self, class: &Class<'_>, i: usize, entry: Entry<'s>) {
        self.total += 1;
        if self.query.sort == "holder" {
            self.matches.resize(i, false);
            self.matches.push(true);
        } else {
            let (since, expires_at) = (|| entry.since(), entry.expires_at());
            let rank = rank(self.query.sort, || class.severity, since, expires_at);
            self.matching.push(Candidate::new(rank, entry));
        }
    }

    /// Offers the locks that were added from a part.
    fn end_part(&mut self, part: &'s Part) {
        if self.query.sort == "holder" {
            self.offer_by_holder(part);
        } else {
            self.offer_by_rank();
        }
    }

    fn offer_by_rank(&mut self) {
        let mut matching = std::mem::take(&mut self.matching);
        if self.edge.is_some() {
            matching.retain(|row| {
                let is_before = self.is_before(row);
                self.before += usize::from(is_before);
                is_before == self.goes_back
            });
        }
        // The locks of a part are sorted by name, so the nearest of each rank come first.
        if self.descends != self.goes_back {
            matching.reverse();
        }
        let mut rejected = None;
        for row in matching.drain(..) {
            if rejected != Some(row.rank) && !self.offer(row) {
                rejected = Some(row.rank);
            }
        }
        self.matching = matching;
    }

    fn offer_by_holder(&mut self, part: &'s Part) {
        let matches = std::mem::take(&mut self.matches);
        let does_match = |i: &usize| matches.get(*i) == Some(&true);
        let rows = part.by_holder().filter(does_match);
        let row = |i: usize| Candidate::new((0, 0), part.entry(i));
        if self.edge.is_some() {
            let mut sorted: Vec<usize> = rows.collect();
            if self.descends {
                sorted.reverse();
            }
            let at_edge = sorted.partition_point(|i| self.is_before(&row(*i)));
            self.before += at_edge;
            if self.goes_back {
                sorted.truncate(at_edge);
                sorted.reverse();
            } else {
                sorted.drain(..at_edge);
            }
            self.offer_nearest(sorted.into_iter().map(row));
        } else if self.descends {
            self.offer_nearest(rows.rev().map(row));
        } else {
            self.offer_nearest(rows.map(row));
        }
        self.matches = matches;
        self.matches.clear();
    }

    /// Offers rows, nearest first. If one is not near enough, neither are the following ones.
    fn offer_nearest(&mut self, mut rows: impl Iterator<Item = Candidate<'s>>) {
        while rows.next().is_some_and(|row| self.offer(row)) {}
    }

    /// Adds the rows of other parts.
    fn join(&mut self, other: Self) {
        self.total += other.total;
        self.before += other.before;
        self.nearest.extend(other.nearest);
    }

    /// Returns whether a row comes before the edge. The edge of a backward page is not before itself.
    fn is_before(&self, row: &Candidate<'_>) -> bool {
        self.edge.is_some_and(|edge| {
            let order = row.compare_to(edge.rank, edge.id.name, self.query.sort, || edge);
            let order = if self.descends { order.reverse() } else { order };
            order.is_lt() || (order.is_eq() && !self.goes_back)
        })
    }

    /// Compares the distances of two rows from the edge.
    fn compare(&self, a: &Candidate<'s>, b: &Candidate<'s>) -> Ordering {
        let order = a.compare(b, self.query.sort);
        if self.descends == self.goes_back { order } else { order.reverse() }
    }

    /// Adds a row. Returns false if it is not near enough.
    fn offer(&mut self, row: Candidate<'s>) -> bool {
        if self.bound.is_some_and(|bound| self.compare(&row, &bound).is_ge()) {
            return false;
        }
        self.nearest.push(row);
        if self.nearest.len() == 2 * self.query.limit {
            let mut nearest = std::mem::take(&mut self.nearest);
            let last = self.query.limit - 1;
            nearest.select_nth_unstable_by(last, |a, b| self.compare(a, b));
            nearest.truncate(self.query.limit);
            self.bound = nearest.last().copied();
            self.nearest = nearest;
        }
        true
    }

    /// Returns its rows in order.
    fn into_rows(mut self) -> Vec<LockRow> {
        let mut nearest = std::mem::take(&mut self.nearest);
        nearest.sort_unstable_by(|a, b| self.compare(a, b));
        nearest.truncate(self.query.limit);
        if self.goes_back {
            nearest.reverse();
        }
        nearest.into_iter().map(|row| Arc::clone(row.lock)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redisson::Kind;
    use thin_vec::{ThinVec, thin_vec};

    use super::*;
    use crate::model::types::sums_by_looking;
    use crate::model::types::{
        Certainty, ClientView, HolderView, LockView, PastHoldView, PastOfLock, ProblemView, Since,
        State, WaiterView,
    };
    use crate::query::facets::tests::by_looking;
    use crate::query::fixtures::{acknowledged, leaked, lock};
    use crate::query::owners::tests::{all_by_looking, owner_by_looking};
    use crate::query::owners::{OwnerLocks, OwnerRow};
    use crate::query::{Filter, Listed, Order, Published};

    const NOW: SteadyMillis = SteadyMillis(2_000_000);

    fn client() -> impl Strategy<Value = Option<ClientView>> {
        let text = |values: &'static [&'static str]| {
            prop::option::of(prop::sample::select(values).prop_map(str::to_owned))
        };
        let client = (
            text(&["payments-6f7d9c5b44-x2k9p@web-7", "etl", "@b"]),
            text(&["10.0.0.7", "10.0.0.8"]),
            text(&["web-7", "52"]),
            prop::option::of(any::<bool>()),
            prop::option::of(any::<bool>()),
            prop::option::of(1_u32..3),
            text(&["java", "52"]),
        );
        let client = client.prop_map(|(name, addr, host, alive, verified, pid, comm)| ClientView {
            pid,
            comm,
            name,
            addr,
            host: host.map(Into::into),
            alive,
            verified,
            ..ClientView::default()
        });
        prop::option::of(client)
    }

    fn holder_id() -> impl Strategy<Value = String> {
        let client = prop::sample::select(vec![
            "285475da-9152-4c83-822a-67ee2f116a79",
            "aaaaaaaa-9152-4c83-822a-67ee2f116a52",
            "odd",
            "",
        ]);
        let rest = [":52", ":5", ":52:write", ":-7:write", ":07", ":main-thread", "", ":"].to_vec();
        let rest = prop::sample::select(rest);
        (client, rest).prop_map(|(client, rest)| format!("{client}{rest}"))
    }

    prop_compose! {
        fn view()(
            name in "(lock|Lock|é|:|[a-c]){1,4}",
            deployment in prop::sample::select(vec!["main", "other"]),
            (kind, group) in prop::sample::select(vec![(Kind::Lock, "x"), (Kind::Fair, "x"), (Kind::Lock, "y")]),
            expected_long: bool,
            (state, confirmed, queued, db) in (0_u8..3, any::<bool>(), any::<bool>(), 0_u32..2),
            holders in prop::collection::vec((holder_id(), client(), 0_u64..4, any::<bool>()), 0..3),
            waiters in prop::collection::vec((holder_id(), client()), 0..2),
            past in prop::collection::vec((holder_id(), 0_u64..4), 0..2),
            expires in prop::option::of(1_999_998_u64..2_000_003),
            trouble in 0_u8..5,
        ) -> LockView {
            let mut view = lock(&name);
            let holder = view.holders.remove(0);
            view.id.deployment = deployment.into();
            (view.id.db, view.queued) = (db, queued);
            view.kind = kind;
            view.group = group.into();
            view.expected_long = expected_long;
            view.waiters_exact = expected_long;
            view.state = [State::Held, State::Free, State::Unknown][usize::from(state)];
            view.confirmed = confirmed;
            for (id, client, at, exact) in holders {
                let since = Since { at: SteadyMillis(NOW.0 - at), exact };
                let (id, client) = (id.into(), client.map(Box::new));
                view.holders.push(HolderView { id, client, since, ..holder.clone() });
            }
            for (id, client) in waiters {
                let since = Since { at: SteadyMillis(1), exact: true };
                let (id, client) = (id.into(), client.map(Box::new));
                view.waiters.push(WaiterView { id, client, since, attempts: None });
                view.waiting += 1;
            }
            let hold = |(id, at)| PastHoldView {
                id,
                since: Since { at: SteadyMillis(at), exact: true },
                to: Some(SteadyMillis(at)),
                ended: None,
            };
            let past = past.into_iter().map(hold).collect();
            view.history = PastOfLock { past, ..PastOfLock::default() }.into();
            view.expires_at = expires.map(SteadyMillis);
            view.problems = match trouble {
                0 => thin_vec![leaked()],
                1 => thin_vec![acknowledged(), leaked()],
                2 => thin_vec![ProblemView { certainty: Certainty::Suspected, ..leaked() }],
                _ => ThinVec::new(),
            };
            view
        }
    }

    /// Returns a lock of the same class and owners under another name, held for this long.
    fn twin(of: &LockView, name: &str, ages: &[u64]) -> LockView {
        let mut twin = of.clone();
        twin.id.name = lock(name).id.name;
        for (holder, age) in twin.holders.iter_mut().zip(ages) {
            holder.since.at = SteadyMillis(NOW.0 - age);
        }
        twin
    }

    /// Returns the names of twins, and the durations of their holds.
    fn twins() -> impl Strategy<Value = Vec<(&'static str, [u64; 2])>> {
        let name = prop::sample::select(vec!["lock", "a:lock", "b:", "twin"]);
        prop::collection::vec((name, [0_u64..4, 0_u64..4]), 0..3)
    }

    fn filters() -> impl Strategy<Value = String> {
        let terms = prop::sample::select(vec![
            "lock",
            "LOCK",
            "a",
            "l*",
            "*a*",
            "\"é\"",
            "name:\"lock\"",
            "group:x",
            "group:\"y\"",
            "group:z",
            "prefix:lock:",
            "prefix::",
            "owner:52",
            "owner:285475da",
            "owner:7ee2f116a79:52",
            "owner:*:52",
            "owner:285*",
            "owner:*79",
            "owner:285*79*",
            "owner:web*",
            "owner:main",
            "owner::5",
            "owner:write",
            "owner:odd",
            "owner:web-7",
            "host:web-7",
            "host:10.0.0.7",
            "service:payments",
            "service:etl",
            "deployment:main",
            "kind:fair",
            "problem:any",
            "problem:none",
            "problem:leaked",
            "acknowledged:no",
            "acknowledged:yes",
            "db:0",
            "db:1",
            "age:>1ms",
            "age:<2ms",
            "ttl:>1ms",
            "ttl:<1ms",
            "ttl:none",
            "confirmed:no",
            "confirmed:yes",
            "state:free",
            "state:unknown",
            "waiting:yes",
            "waiting:no",
        ]);
        let id = "285475da-9152-4c83-822a-67ee2f116a79:52:write";
        let part_of_id = (0..id.len(), 1..id.len()).prop_map(move |(from, length)| {
            format!("owner:{}", id.chars().skip(from).take(length).collect::<String>())
        });
        let term = prop_oneof![3 => terms.prop_map(str::to_owned), 1 => part_of_id];
        prop::collection::vec(term, 0..3).prop_map(|terms| terms.join(" "))
    }

    proptest! {
        // There are enough cases to cover combinations of two of the many traits.
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn a_pass_finds_what_looking_at_every_lock_does(
            rounds in prop::collection::vec(prop::collection::vec((view(), 0_u8..5, twins()), 0..15), 1..4),
            filter in filters(), sort in prop::sample::select(LockRow::SORTS), ascending: bool,
            limit in 1_usize..5,
            threads in prop::sample::select(&[Threads::One, Threads::Exactly(3)]),
        ) {
            let order = if ascending { Order::Ascending } else { Order::Descending };
            let query = |cursor: Option<&str>| {
                let of = (&*filter, Filter::parse(&filter).unwrap());
                Query::<LockRow>::new(of, (sort, order), cursor, limit).unwrap()
            };
            let mut snapshot = Snapshot::empty();
            for views in rounds {
                for (view, what, twins) in views {
                    for (name, ages) in twins {
                        snapshot.put(Arc::new(twin(&view, name, &ages)));
                    }
                    match what {
                        0 => snapshot.remove(&view.id),
                        _ => snapshot.put(Arc::new(view)),
                    }
                }
                let snapshot = Arc::new(snapshot.clone());
                let published = Published { snapshot: Arc::clone(&snapshot), contention: Arc::default() };
                prop_assert_eq!(snapshot.sums(), sums_by_looking(&snapshot));
                let (_, facets) = query(None).pick_and_count(&snapshot, NOW, threads);
                prop_assert_eq!(facets, by_looking(&filter, &snapshot, NOW));
                let parsed = Filter::parse(&filter).unwrap();
                let owners = OwnerRow::processes(&snapshot, &parsed, NOW, threads);
                prop_assert_eq!(owners, all_by_looking(&snapshot, &parsed, NOW));
                for id in ["285475da-9152-4c83-822a-67ee2f116a79", "odd", "odd:5", "",
                    "285475da-9152-4c83-822a-67ee2f116a79:52"]
                {
                    let (of, main) = (&*snapshot, Arc::from("main"));
                    prop_assert_eq!(
                        OwnerLocks::new(of, &main, id, limit), owner_by_looking(of, &main, id, limit)
                    );
                }
                let mut page = query(None);
                loop {
                    let (picked, expected) = (page.pick(&snapshot, NOW, threads), page.rows(&published, NOW));
                    prop_assert_eq!(&picked, &expected);
                    if let Some(prev) = &expected.prev {
                        let back = query(Some(prev));
                        prop_assert_eq!(back.pick(&snapshot, NOW, threads), back.rows(&published, NOW));
                    }
                    let Some(next) = expected.next else { break };
                    page = query(Some(&next));
                }
            }
        }
    }
}
