//! The language of the filter box and of the API's `filter`.
//!
//! Terms are separated by spaces and all must match. A plain word is searched in the name, one with a `*` is a glob
//! for the whole of it; `key:value` asks for something else. A quoted term is searched in the name as it is. A lock's
//! name often has a colon, so `orders:42` is searched in the name, and a key is rejected only if it resembles a known one.

use std::time::Duration;

use redisson::Kind;
use redisson::group::glob_matches;
use thiserror::Error;

use crate::clock::SteadyMillis;
use crate::model::types::{ClientView, LockView, ProblemKind, State};

/// The longest filter, in bytes.
pub const MAX_LEN: usize = 512;
/// The most terms.
pub const MAX_TERMS: usize = 16;

/// A filter that is none: a sentence that says what was expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct FilterError(String);

/// A filter, ready to be applied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter(Vec<Term>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    Name(Text),
    Owner(Text),
    Host(Text),
    Service(Text),
    Deployment(Text),
    Kind(Kind),
    Problem(Option<ProblemKind>),
    NoProblem,
    /// True for a problem that is acknowledged, false for one that is not.
    Acknowledged(bool),
    Db(u32),
    Age(Bound),
    Ttl(Bound),
    NoTtl,
    Confirmed(bool),
    State(State),
}

/// A word or a glob, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Text {
    Part(Vec<u8>),
    Glob(Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Above(Duration),
    Below(Duration),
}

impl Text {
    fn new(text: &str) -> Self {
        let text = text.to_ascii_lowercase().into_bytes();
        if text.contains(&b'*') { Self::Glob(text) } else { Self::Part(text) }
    }

    fn matches(&self, subject: &[u8]) -> bool {
        match self {
            Self::Glob(glob) => glob_matches(glob, &subject.to_ascii_lowercase()),
            Self::Part(part) => {
                part.is_empty()
                    || subject.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
            }
        }
    }

    fn matches_any(&self, subjects: &[Option<&str>]) -> bool {
        subjects.iter().flatten().any(|subject| self.matches(subject.as_bytes()))
    }

    fn is(&self, subject: &[u8]) -> bool {
        match self {
            Self::Glob(_) => self.matches(subject),
            Self::Part(part) => subject.eq_ignore_ascii_case(part),
        }
    }
}

impl Bound {
    fn parse(key: &str, value: &str) -> Result<Self, FilterError> {
        let expected = || {
            FilterError(format!(
                "`{key}:{value}` is not understood: expected {key}:>5m or {key}:<10s, with a unit of ms, s, m, h or d"
            ))
        };
        let (above, rest) = match value.as_bytes().first() {
            Some(b'<') => (false, value.get(1..)),
            Some(b'>') => (true, value.get(1..)),
            _ => (true, Some(value)),
        };
        let rest = rest.map(|rest| rest.strip_prefix('=').unwrap_or(rest)).unwrap_or_default();
        let duration = humantime::parse_duration(rest).map_err(|_| expected())?;
        Ok(if above { Self::Above(duration) } else { Self::Below(duration) })
    }

    fn holds(self, millis: u64) -> bool {
        match self {
            Self::Above(bound) => u128::from(millis) >= bound.as_millis(),
            Self::Below(bound) => u128::from(millis) <= bound.as_millis(),
        }
    }
}

impl Term {
    fn qualified(key: &str, value: &str) -> Result<Option<Self>, FilterError> {
        let one_of = |expected: &str| {
            FilterError(format!("`{key}:{value}` is not understood: expected one of {expected}"))
        };
        Ok(Some(match key {
            "owner" => Self::Owner(Text::new(value)),
            "host" => Self::Host(Text::new(value)),
            "service" => Self::Service(Text::new(value)),
            "name" => Self::Name(Text::new(value)),
            "deployment" => Self::Deployment(Text::new(value)),
            "kind" => Self::Kind(
                Kind::parse(value.as_bytes())
                    .ok_or_else(|| one_of("lock, fair, read, write, fenced, red"))?,
            ),
            "problem" => match value.to_ascii_lowercase().as_str() {
                "any" | "*" => Self::Problem(None),
                "none" => Self::NoProblem,
                word => Self::Problem(Some(
                    ProblemKind::ALL
                        .into_iter()
                        .find(|problem| problem.as_str() == word)
                        .ok_or_else(|| one_of(&problem_words()))?,
                )),
            },
            "db" => Self::Db(value.parse().map_err(|_| {
                FilterError(format!("`db:{value}` is not understood: expected a database's number"))
            })?),
            "age" => Self::Age(Bound::parse(key, value)?),
            "ttl" if value.eq_ignore_ascii_case("none") => Self::NoTtl,
            "ttl" => Self::Ttl(Bound::parse(key, value)?),
            "confirmed" => match value.to_ascii_lowercase().as_str() {
                "yes" => Self::Confirmed(true),
                "no" => Self::Confirmed(false),
                _ => return Err(one_of("yes, no")),
            },
            "acknowledged" => match value.to_ascii_lowercase().as_str() {
                "yes" => Self::Acknowledged(true),
                "no" => Self::Acknowledged(false),
                _ => return Err(one_of("yes, no")),
            },
            "state" => match value.to_ascii_lowercase().as_str() {
                "held" => Self::State(State::Held),
                "free" => Self::State(State::Free),
                "unknown" => Self::State(State::Unknown),
                _ => return Err(one_of("held, free, unknown")),
            },
            _ => return unknown_key(key, value).map_or(Ok(None), Err),
        }))
    }

    fn matches(&self, lock: &LockView, now: SteadyMillis) -> bool {
        match self {
            Self::Name(text) => text.matches(lock.id.name.as_bytes()),
            Self::Owner(text) => lock.holders.iter().any(|holder| {
                let name = |client: &ClientView| {
                    let label = client.label();
                    text.matches_any(&[label.as_deref(), client.comm.as_deref(), client.host()])
                };
                text.matches(holder.id.as_bytes()) || holder.client.as_deref().is_some_and(name)
            }),
            Self::Host(text) => clients(lock)
                .any(|client| text.matches_any(&[client.host(), client.addr.as_deref()])),
            Self::Service(text) => clients(lock)
                .any(|client| client.service().is_some_and(|service| text.is(service.as_bytes()))),
            Self::Deployment(text) => text.is(lock.id.deployment.as_bytes()),
            Self::Kind(kind) => lock.kind == kind.as_str(),
            Self::Problem(None) => !lock.problems.is_empty(),
            Self::Problem(Some(kind)) => lock.problems.iter().any(|p| p.problem == *kind),
            Self::NoProblem => lock.problems.is_empty(),
            Self::Acknowledged(false) => lock.has_open_problem(),
            Self::Acknowledged(true) => lock.problems.iter().any(|p| p.acknowledged.is_some()),
            Self::Db(db) => lock.id.db == *db,
            Self::Age(bound) => {
                lock.held_since().is_some_and(|since| bound.holds(now.0.saturating_sub(since.at.0)))
            }
            Self::Ttl(bound) => lock.ttl_ms.is_some_and(|ttl| {
                bound.holds((lock.observed_at.0.saturating_add(ttl)).saturating_sub(now.0))
            }),
            Self::NoTtl => lock.is_held() && lock.ttl_ms.is_none(),
            Self::Confirmed(yes) => lock.confirmed == *yes,
            Self::State(state) => lock.state == *state,
        }
    }
}

/// The processes behind the lock's holders, as far as they are known.
fn clients(lock: &LockView) -> impl Iterator<Item = &ClientView> {
    lock.holders.iter().filter_map(|holder| holder.client.as_deref())
}

/// The keys of terms.
const KEYS: [&str; 13] = [
    "owner",
    "host",
    "service",
    "deployment",
    "kind",
    "problem",
    "acknowledged",
    "db",
    "age",
    "ttl",
    "confirmed",
    "state",
    "name",
];
/// Words that people try, and the keys that they mean.
const MEANT: [(&str, &str); 9] = [
    ("client", "owner"),
    ("holder", "owner"),
    ("process", "owner"),
    ("pod", "host"),
    ("ip", "host"),
    ("app", "service"),
    ("type", "kind"),
    ("held", "age"),
    ("lease", "ttl"),
];

/// Returns the error for a key that is none but resembles one; none for a key that is more likely part of a name.
fn unknown_key(key: &str, value: &str) -> Option<FilterError> {
    let key = key.to_ascii_lowercase();
    let near = |known: &&&str| strsim::damerau_levenshtein(&key, known) == 1 && known.len() > 2;
    let meant = MEANT.iter().find(|(word, _)| *word == key).map(|(_, meant)| *meant);
    let meant = meant.or_else(|| KEYS.iter().find(near).copied())?;
    Some(FilterError(format!(
        "`{key}:` is no term of the filter: did you mean {meant}:{value}? To search for it in names, write \"{key}:{value}\" in quotes"
    )))
}

/// The values of `problem:`.
fn problem_words() -> String {
    let words = ProblemKind::ALL.map(ProblemKind::as_str).join(", ");
    format!("any, none, {words}")
}

impl Filter {
    /// Reads a filter.
    ///
    /// # Errors
    /// A sentence for people where it is too long, has too many terms or says what is not understood.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        if text.len() > MAX_LEN {
            return Err(FilterError(format!(
                "the filter has {} bytes, {MAX_LEN} are allowed",
                text.len()
            )));
        }
        let mut terms = Vec::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (term, after) = Self::term(rest)?;
            if terms.len() >= MAX_TERMS {
                return Err(FilterError(format!("the filter has more than {MAX_TERMS} terms")));
            }
            terms.push(term);
            rest = after.trim_start();
        }
        Ok(Self(terms))
    }

    /// Takes the first term off.
    fn term(text: &str) -> Result<(Term, &str), FilterError> {
        if let Some(quoted) = text.strip_prefix('"') {
            let (part, after) = unquote(quoted)?;
            return Ok((Term::Name(Text::Part(part.to_ascii_lowercase().into_bytes())), after));
        }
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let (word, after) = text.split_at(end);
        let Some((key, value)) = word.split_once(':') else {
            return Ok((Term::Name(Text::new(word)), after));
        };
        if let (Some(_), Some(quoted)) = (
            value.strip_prefix('"'),
            text.get(key.len() + 1..).and_then(|rest| rest.strip_prefix('"')),
        ) {
            let (value, after) = unquote(quoted)?;
            if let Some(term) = Term::qualified(key, &value)? {
                return Ok((term, after));
            }
        }
        if value.is_empty() && Term::qualified(key, "1").is_ok_and(|term| term.is_none()) {
            return Ok((Term::Name(Text::new(word)), after));
        }
        if value.is_empty() {
            return Err(FilterError(format!("`{key}:` needs a value")));
        }
        let term = Term::qualified(key, value)?;
        Ok((term.unwrap_or_else(|| Term::Name(Text::new(word))), after))
    }

    /// Returns true if a lock is listed. Unless the filter says otherwise, only confirmed ones are that are held or waited
    /// for, and those with a problem.
    #[must_use]
    pub fn matches(&self, lock: &LockView, now: SteadyMillis) -> bool {
        let asks_state = self.0.iter().any(|term| matches!(term, Term::State(_)));
        (asks_state || lock.is_held() || lock.is_awaited() || !lock.problems.is_empty())
            && self.fits(lock, now)
    }

    /// The same for lists that have other reasons to tell of a lock than that it is held or waited for.
    #[must_use]
    pub fn fits(&self, lock: &LockView, now: SteadyMillis) -> bool {
        let asks_confirmed = self.0.iter().any(|term| matches!(term, Term::Confirmed(_)));
        (asks_confirmed || lock.confirmed || !lock.problems.is_empty())
            && self.0.iter().all(|term| term.matches(lock, now))
    }

    /// Returns true if it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if its matches depend on the clock.
    #[must_use]
    pub fn depends_on_clock(&self) -> bool {
        self.0.iter().any(|term| matches!(term, Term::Age(_) | Term::Ttl(_)))
    }
}

/// Reads up to the closing quote; `\"` and `\\` stand for themselves.
fn unquote(text: &str) -> Result<(String, &str), FilterError> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Ok((out, text.get(i + 1..).unwrap_or_default())),
            '\\' => out.extend(chars.next().map(|(_, c)| c)),
            c => out.push(c),
        }
    }
    Err(FilterError("a quote in the filter is not closed".to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::query::fixtures::{acknowledged, leaked, lock};

    #[test]
    fn what_is_in_hand_is_told_apart() {
        let open = LockView { problems: vec![leaked()], ..lock("a") };
        let known = LockView { problems: vec![acknowledged()], ..lock("a") };
        for (filter, lock, expected) in [
            ("acknowledged:no", &open, true),
            ("acknowledged:yes", &open, false),
            ("acknowledged:no", &known, false),
            ("acknowledged:yes", &known, true),
            ("acknowledged:no", &lock("a"), false),
            ("problem:any", &known, true),
        ] {
            assert_eq!(matches(filter, lock), expected, "{filter}");
        }
        assert!(Filter::parse("acknowledged:maybe").is_err());
    }

    const NOW: SteadyMillis = SteadyMillis(1_060_000);

    fn matches(filter: &str, lock: &LockView) -> bool {
        Filter::parse(filter).unwrap().matches(lock, NOW)
    }

    #[test]
    fn every_term_does_what_it_says() {
        let lock = LockView { problems: vec![leaked()], ..lock("Order:42") };
        for yes in [
            "",
            "order",
            "ORDER:4",
            "order:*",
            "*42",
            "owner:285475da",
            "owner:*:52",
            "kind:lock",
            "problem:any",
            "problem:leaked",
            "db:0",
            "deployment:main",
            "deployment:m*",
            "age:>1m",
            "age:1m",
            "age:<1h",
            "ttl:<30s",
            "ttl:>10s",
            "confirmed:yes",
            "state:held",
            "order db:0 age:>=30s",
            "\"order:42\"",
            "\"\"",
            "owner:\"285475da\"",
            "42 order",
        ] {
            assert!(matches(yes, &lock), "{yes}");
        }
        for no in [
            "other",
            "order:?2",
            "owner:99",
            "kind:fair",
            "problem:stuck",
            "problem:none",
            "db:1",
            "deployment:mai",
            "age:>2m",
            "age:<59s",
            "ttl:<29s",
            "ttl:none",
            "confirmed:no",
            "state:free",
            "order db:1",
            "\"order:*\"",
        ] {
            assert!(!matches(no, &lock), "{no}");
        }
    }

    #[test]
    fn locks_are_found_by_the_names_of_their_owners() {
        let mut held = lock("a");
        held.holders[0].client = Some(Box::new(ClientView {
            name: Some("payments-6f7d9c5b44-x2k9p@web-7".to_owned()),
            addr: Some("10.0.0.7".to_owned()),
            ..ClientView::default()
        }));
        for yes in [
            "owner:payments",
            "owner:web-7",
            "owner:PAYMENTS*",
            "owner:285475da",
            "host:web-7",
            "host:web",
            "host:10.0.0.7",
            "service:payments",
            "service:pay*",
            "name:a",
        ] {
            assert!(matches(yes, &held), "{yes}");
            let only_name = yes.starts_with("name") || yes.contains("285475da");
            assert_eq!(matches(yes, &lock("a")), only_name, "{yes}");
        }
        for no in ["owner:billing", "host:web-8", "service:pay", "service:web-7"] {
            assert!(!matches(no, &held), "{no}");
        }
    }

    #[test]
    fn a_key_that_resembles_a_known_one_is_an_error() {
        for (filter, meant) in [
            ("hots:web-7", "host:web-7"),
            ("onwer:vm", "owner:vm"),
            ("Pod:x", "host:x"),
            ("client:x", "owner:x"),
            ("servce:x", "service:x"),
        ] {
            let error = Filter::parse(filter).unwrap_err().to_string();
            assert!(error.contains(meant) && error.contains("quotes"), "{error}");
        }
        for name in ["orders:42", "db2:x", "invoice:7:lock", "\"hots:web-7\""] {
            assert!(Filter::parse(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_name_with_a_colon_is_no_qualifier() {
        assert!(matches("order:42", &lock("order:42")));
        assert!(matches("order:", &lock("order:42")));
        assert!(matches("\"state:x\"", &lock("state:x")));
    }

    #[test]
    fn only_held_and_confirmed_locks_are_listed_unless_asked() {
        let free = LockView { state: State::Free, holders: Vec::new(), ..lock("a") };
        assert!(!matches("", &free) && matches("state:free", &free));
        let queued = LockView { queued: true, ..free };
        assert!(matches("", &queued));
        let candidate = LockView { confirmed: false, ..lock("a") };
        assert!(!matches("", &candidate) && matches("confirmed:no", &candidate));
        let blind = LockView { state: State::Unknown, ..lock("a") };
        assert!(matches("", &blind) && !matches("state:held", &blind));
    }

    #[test]
    fn mistakes_are_told_with_what_was_expected() {
        for (filter, word) in [
            ("age:old", "age:>5m"),
            ("ttl:>5", "unit"),
            ("kind:mutex", "fair"),
            ("problem:bad", "leaked"),
            ("db:x", "number"),
            ("confirmed:maybe", "yes"),
            ("state:", "value"),
            ("\"open", "quote"),
            (&"x".repeat(513), "512"),
            (&"x ".repeat(17), "16"),
        ] {
            let error = Filter::parse(filter).unwrap_err().to_string();
            assert!(error.contains(word), "{filter}: {error}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(filter in "(\\PC|[a-z]{2,10}:|[<>\"\\\\* 0-9]){0,60}", name in "\\PC{1,40}") {
            let lock = lock(&name);
            let first = Filter::parse(&filter).map(|filter| filter.matches(&lock, NOW));
            prop_assert_eq!(first, Filter::parse(&filter).map(|filter| filter.matches(&lock, NOW)));
        }

        #[test]
        fn a_quoted_name_finds_it(name in "\\PC{1,60}") {
            let quoted = format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
            prop_assert!(matches(&quoted, &lock(&name)));
        }
    }
}
