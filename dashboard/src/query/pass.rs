//! A pass over all locks. It reads the view of one lock of each class, or of each class and owner. All other data comes
//! from the columns of a part of the snapshot. It reads further locks if the filter asks for an id that no column
//! contains: that of one of several holders, or one with an unusual end.

use std::sync::Arc;

use memchr::memmem::Finder;

use super::Filter;
use super::answer::Answer;
use super::filter::Term;
use super::words::Text;
use crate::clock::SteadyMillis;
use crate::model::types::{ByNumber, Entry, LockView, Part, client_of};

/// The knowledge about a class of locks.
#[derive(Debug)]
struct Class<T> {
    answer: Answer,
    threads: Option<ThreadTerms>,
    /// The data collected for the class, once one of its locks has matched.
    value: Option<T>,
}

/// A pass over the locks that a filter matches. `T` is the data that it collects for each class.
#[derive(Debug)]
pub(super) struct Pass<'f, T> {
    filter: &'f Filter,
    now: SteadyMillis,
    /// True if only the terms decide, regardless of the locks that lists otherwise leave out.
    only_terms: bool,
    /// True if locks of different owners are in different classes.
    by_owner: bool,
    rows: RowTerms<'f>,
    classes: ByNumber<Class<T>>,
    /// A buffer for the id of a holder.
    id: Vec<u8>,
}

impl<'f, T> Pass<'f, T> {
    /// Returns a pass over the locks that [`Filter::matches`].
    pub(super) fn new(filter: &'f Filter, now: SteadyMillis) -> Self {
        let (rows, classes) = (RowTerms::new(filter, now), ByNumber::default());
        let by_owner = filter.asks_owner();
        Self { filter, now, only_terms: false, by_owner, rows, classes, id: Vec::new() }
    }

    /// Returns a pass over the locks that [`Filter::terms_match`].
    pub(super) fn of_terms(filter: &'f Filter, now: SteadyMillis) -> Self {
        Self { only_terms: true, ..Self::new(filter, now) }
    }

    /// Puts locks of different owners into different classes.
    pub(super) fn by_owner(self) -> Self {
        Self { by_owner: true, ..self }
    }

    /// Calls `each` with every matching lock of a part, by its index, in order. `new` returns the initial data of a
    /// class, given the first lock that matches.
    pub(super) fn part<'s>(
        &mut self,
        part: &'s Part,
        mut new: impl FnMut(&'s Arc<LockView>) -> T,
        mut each: impl FnMut(&mut T, usize, Entry<'s>),
    ) {
        let Self { filter, now, only_terms, by_owner, rows, classes, id } = self;
        rows.search(part);
        for i in 0..part.locks().len() {
            if !rows.found(i) {
                continue;
            }
            let entry = part.entry(i);
            if !rows.match_instants(&entry) || !rows.match_group(&entry) {
                continue;
            }
            let class = if *by_owner { entry.class_with_owners() } else { entry.class() };
            let class = classes.get_or_insert_with(class, || {
                let is_listed = *only_terms || filter.lists(entry.lock);
                let answer = if is_listed { filter.of_class(entry.lock) } else { Answer::No };
                let asks_thread = answer == Answer::ByThread && entry.lock.holders.len() == 1;
                let threads = asks_thread.then(|| ThreadTerms::new(filter, entry.lock));
                Class { answer, threads, value: None }
            });
            let matches = match class.answer {
                Answer::No => false,
                Answer::ByRow => true,
                Answer::ByThread => {
                    let by_thread = class.threads.as_ref();
                    let by_thread = by_thread.and_then(|it| it.match_in(filter, id, &entry));
                    by_thread.unwrap_or_else(|| filter.terms_match(entry.lock, *now))
                }
            };
            if matches {
                each(class.value.get_or_insert_with(|| new(entry.lock)), i, entry);
            }
        }
    }

    /// Returns the data collected for each class.
    pub(super) fn into_values(self) -> impl Iterator<Item = T> {
        self.classes.into_values().filter_map(|class| class.value)
    }
}

/// The terms of a filter whose match for a class of locks with one holder depends on the holder's thread.
#[derive(Debug)]
struct ThreadTerms {
    /// The end of the client's id in lower case. A match that reaches into the thread begins here. It is empty if no
    /// match can begin before the thread.
    client: Vec<u8>,
    /// A bit for each of these terms, by its index in the filter.
    terms: u64,
}

impl ThreadTerms {
    fn new(filter: &Filter, lock: &LockView) -> Self {
        let asks_thread = |term: &Term| term.of_class(lock) == Answer::ByThread;
        let (mut terms, mut longest) = (0, 0);
        let client = lock.holders.first().map_or("", |holder| client_of(&holder.id));
        for (i, text) in owner_texts(filter).filter(|(i, _)| asks_thread(&filter.0[*i])) {
            terms |= 1 << i;
            longest = longest.max(match text {
                // The client alone does not contain the text, so a match must reach past the client's end.
                Text::Part(part) if part.contains(&b':') => part.len().min(client.len()),
                Text::Part(_) => 0,
                Text::Whole(_) | Text::Glob(_) => client.len(),
            });
        }
        let start = client.len() - longest;
        Self { client: client.as_bytes()[start..].to_ascii_lowercase(), terms }
    }

    /// Returns whether the terms match the holder of a lock, or `None` if its thread is not known. `id` is a buffer for
    /// its id.
    fn match_in(&self, filter: &Filter, id: &mut Vec<u8>, entry: &Entry<'_>) -> Option<bool> {
        id.clear();
        id.extend_from_slice(&self.client);
        let is_known = entry.thread.append_to(id);
        let mut texts = owner_texts(filter).filter(|(i, _)| self.terms >> i & 1 == 1);
        is_known.then(|| texts.all(|(_, text)| text.matches_lower(id)))
    }
}

/// Returns the texts that a filter searches for in owners, each with the index of its term.
fn owner_texts(filter: &Filter) -> impl Iterator<Item = (usize, &Text)> {
    filter.0.iter().enumerate().filter_map(|(i, term)| match term {
        Term::Owner(text) => Some((i, text)),
        _ => None,
    })
}

/// The terms of a filter that ask for names, groups and instants.
#[derive(Debug)]
struct RowTerms<'f> {
    names: Vec<NameTerm<'f>>,
    groups: Vec<&'f Term>,
    /// The classes of locks of one group, each with true if all of these terms match the group.
    in_groups: ByNumber<bool>,
    instants: Vec<&'f Term>,
    now: SteadyMillis,
    /// The names of a part in lower case.
    lower: Vec<u8>,
    /// True for the locks of a part whose names all terms match.
    found: Vec<bool>,
}

#[derive(Debug)]
enum NameTerm<'f> {
    Part(Box<Finder<'f>>),
    Other(&'f Text),
    Prefix(&'f [u8]),
}

impl<'f> RowTerms<'f> {
    fn new(filter: &'f Filter, now: SteadyMillis) -> Self {
        let names = filter.0.iter().filter_map(|term| match term {
            Term::Name(Text::Part(part)) => Some(NameTerm::Part(Box::new(Finder::new(part)))),
            Term::Name(text) => Some(NameTerm::Other(text)),
            Term::Prefix(prefix) => Some(NameTerm::Prefix(prefix)),
            _ => None,
        });
        let instants = filter.0.iter().filter(|term| matches!(term, Term::Age(_) | Term::Ttl(_)));
        let groups = filter.0.iter().filter(|term| matches!(term, Term::Group(_)));
        Self {
            names: names.collect(),
            groups: groups.collect(),
            in_groups: ByNumber::default(),
            instants: instants.collect(),
            now,
            lower: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Searches the names of a part.
    fn search(&mut self, part: &Part) {
        let Self { names, lower, found, .. } = self;
        if names.is_empty() {
            return;
        }
        lower.clear();
        lower.extend_from_slice(part.names());
        lower.make_ascii_lowercase();
        found.clear();
        found.resize(part.locks().len(), true);
        let name = |i: usize| &lower[part.name(i)];
        for term in names {
            match term {
                NameTerm::Part(finder) => find_all(finder, lower, part, found),
                NameTerm::Other(text) => keep(found, |i| text.matches_lower(name(i))),
                NameTerm::Prefix(prefix) => keep(found, |i| name(i).starts_with(prefix)),
            }
        }
    }

    /// Returns whether the search has found that lock of the part.
    fn found(&self, i: usize) -> bool {
        self.names.is_empty() || self.found[i]
    }

    fn match_group(&mut self, entry: &Entry<'_>) -> bool {
        let Self { groups, in_groups, now, .. } = self;
        groups.is_empty()
            || *in_groups.get_or_insert_with(entry.class_with_group(), || {
                groups.iter().all(|term| term.matches(entry.lock, *now))
            })
    }

    fn match_instants(&self, entry: &Entry<'_>) -> bool {
        self.instants
            .iter()
            .all(|term| term.matches_instants(entry.since(), entry.expires_at(), self.now))
    }
}

fn keep(found: &mut [bool], mut matches: impl FnMut(usize) -> bool) {
    found.iter_mut().enumerate().for_each(|(i, found)| *found = *found && matches(i));
}

/// Keeps the locks whose names contain a text. All names are searched at once.
fn find_all(finder: &Finder<'_>, names: &[u8], part: &Part, found: &mut [bool]) {
    let search = |from: usize| finder.find(&names[from..]).map_or(usize::MAX, |at| from + at);
    let mut place = search(0);
    for (i, found) in found.iter_mut().enumerate() {
        let name = part.name(i);
        if place < name.start {
            place = search(name.start);
        }
        // A match must not reach into the next name.
        *found = *found && place.saturating_add(finder.needle().len()) <= name.end;
    }
}
