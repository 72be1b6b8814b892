//! The language of the filter box of lists and of the API's `filter`.

use std::time::Duration;

use redisson::Kind;

use super::answer::Answer;
use super::words::{self, FilterError, Text, Value, one_of};
use crate::clock::SteadyMillis;
use crate::model::types::{
    ClientView, HolderView, LockView, ProblemKind, State, client_of, is_plain,
};

/// A filter, ready to be applied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter(pub(super) Vec<Term>);

/// A condition of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Term {
    Name(Text),
    Group(Text),
    Prefix(Vec<u8>),
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
    Waiting(bool),
}

/// A bound of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Above(Duration),
    Below(Duration),
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

    pub(super) fn holds(self, millis: u64) -> bool {
        match self {
            Self::Above(bound) => u128::from(millis) >= bound.as_millis(),
            Self::Below(bound) => u128::from(millis) <= bound.as_millis(),
        }
    }
}

impl words::Term for Term {
    const KEYS: &'static [&'static str] = &[
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
        "waiting",
        "name",
        "group",
        "prefix",
    ];
    const MEANT: &'static [(&'static str, &'static str)] = &[
        ("client", "owner"),
        ("holder", "owner"),
        ("process", "owner"),
        ("pod", "host"),
        ("ip", "host"),
        ("app", "service"),
        ("type", "kind"),
        ("held", "age"),
        ("lease", "ttl"),
        ("waiters", "waiting"),
    ];

    fn of_name(text: Text) -> Self {
        Self::Name(text)
    }

    fn qualified(key: &str, value: Value<'_>) -> Result<Option<Self>, FilterError> {
        let text = value.text;
        let yes = || match text.to_ascii_lowercase().as_str() {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(one_of(key, text, "yes, no")),
        };
        Ok(Some(match key {
            "owner" => Self::Owner(Text::new(text)),
            "host" => Self::Host(Text::of_value(value)),
            "service" => Self::Service(Text::of_value(value)),
            "name" => Self::Name(Text::of_value(value)),
            "group" => Self::Group(Text::of_value(value)),
            "prefix" => Self::Prefix(text.to_ascii_lowercase().into_bytes()),
            "waiting" => Self::Waiting(yes()?),
            "deployment" => Self::Deployment(Text::new(text)),
            "kind" => Self::Kind(
                Kind::parse(text.as_bytes())
                    .ok_or_else(|| one_of(key, text, "lock, fair, read, write, fenced, red"))?,
            ),
            "problem" => match text.to_ascii_lowercase().as_str() {
                "any" | "*" => Self::Problem(None),
                "none" => Self::NoProblem,
                word => Self::Problem(Some(
                    ProblemKind::parse(word).ok_or_else(|| one_of(key, text, &problem_words()))?,
                )),
            },
            "db" => Self::Db(words::db(text)?),
            "age" => Self::Age(Bound::parse(key, text)?),
            "ttl" if text.eq_ignore_ascii_case("none") => Self::NoTtl,
            "ttl" => Self::Ttl(Bound::parse(key, text)?),
            "confirmed" => Self::Confirmed(yes()?),
            "acknowledged" => Self::Acknowledged(yes()?),
            "state" => match text.to_ascii_lowercase().as_str() {
                "held" => Self::State(State::Held),
                "free" => Self::State(State::Free),
                "unknown" => Self::State(State::Unknown),
                _ => return Err(one_of(key, text, "held, free, unknown")),
            },
            _ => return Ok(None),
        }))
    }
}

impl Term {
    fn chooses_view(&self) -> bool {
        matches!(
            self,
            Self::Problem(None)
                | Self::Acknowledged(_)
                | Self::Confirmed(_)
                | Self::State(_)
                | Self::Waiting(_)
        )
    }

    pub(super) fn matches(&self, lock: &LockView, now: SteadyMillis) -> bool {
        match self {
            Self::Name(text) => text.matches(lock.id.name.as_bytes()),
            Self::Group(text) => text.is(lock.group.as_bytes()),
            Self::Prefix(prefix) => {
                let start = lock.id.name.as_bytes().get(..prefix.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
            }
            Self::Waiting(yes) => lock.is_awaited() == *yes,
            Self::Owner(text) => lock
                .holders
                .iter()
                .any(|holder| text.matches(holder.id.as_bytes()) || names_owner(text, holder)),
            Self::Host(text) => clients(lock)
                .any(|client| text.matches_any(&[client.host(), client.addr.as_deref()])),
            Self::Service(text) => clients(lock)
                .any(|client| client.service().is_some_and(|service| text.is(service.as_bytes()))),
            Self::Deployment(text) => text.is(lock.id.deployment.as_bytes()),
            // Each server has its part of a red lock as a plain lock.
            Self::Kind(Kind::Red) => lock.red.is_some(),
            Self::Kind(kind) => lock.kind == *kind,
            Self::Problem(None) => !lock.problems.is_empty(),
            Self::Problem(Some(kind)) => lock.problems.iter().any(|p| p.problem == *kind),
            Self::NoProblem => lock.problems.is_empty(),
            Self::Acknowledged(false) => lock.has_open_problem(),
            Self::Acknowledged(true) => lock.problems.iter().any(|p| p.acknowledged.is_some()),
            Self::Db(db) => lock.id.db == *db,
            Self::Age(_) | Self::Ttl(_) => {
                let since = lock.held_since().map(|since| since.at);
                self.matches_instants(since, lock.expires_at, now)
            }
            Self::NoTtl => lock.is_held() && lock.expires_at.is_none(),
            Self::Confirmed(yes) => lock.confirmed == *yes,
            Self::State(state) => lock.state == *state,
        }
    }

    /// Returns whether the term matches the beginning of a lock's longest hold and the end of its time to live. True
    /// for terms that ask for neither.
    pub(super) fn matches_instants(
        &self,
        since: Option<SteadyMillis>,
        expires_at: Option<SteadyMillis>,
        now: SteadyMillis,
    ) -> bool {
        match self {
            Self::Age(bound) => since.is_some_and(|since| bound.holds(now.millis_since(since))),
            Self::Ttl(bound) => expires_at.is_some_and(|end| bound.holds(end.millis_since(now))),
            _ => true,
        }
    }

    /// Returns the answer for all locks in the class of this one.
    pub(super) fn of_class(&self, lock: &LockView) -> Answer {
        match self {
            Self::Name(_) | Self::Group(_) | Self::Prefix(_) | Self::Age(_) | Self::Ttl(_) => {
                Answer::ByRow
            }
            Self::Owner(text) => {
                let has_owner = |holder: &HolderView| {
                    text.matches_all_from(client_of(&holder.id).as_bytes())
                        || names_owner(text, holder)
                };
                match lock.holders.iter().any(has_owner) {
                    true => Answer::ByRow,
                    false if lock.holders.iter().any(|it| may_match_id(text, &it.id)) => {
                        Answer::ByThread
                    }
                    false => Answer::No,
                }
            }
            // These terms do not depend on the clock.
            term => term.matches(lock, SteadyMillis(0)).into(),
        }
    }
}

/// Returns whether a text is in the name of a holder's process.
fn names_owner(text: &Text, holder: &HolderView) -> bool {
    holder.client.as_deref().is_some_and(|client| {
        let label = client.label();
        text.matches_any(&[label.as_deref(), client.comm.as_deref(), client.host()])
    })
}

/// Returns whether a text may match an id of a holder of this client if it does not match the client alone.
fn may_match_id(text: &Text, id: &str) -> bool {
    let (client, rest) = id.split_at(client_of(id).len());
    let is_plain_text = |text: &[u8]| std::str::from_utf8(text).is_ok_and(is_plain);
    if !is_plain(rest) {
        return true;
    }
    match text {
        Text::Part(part) => match part.iter().position(|byte| *byte == b':') {
            // The part before the colon is the end of the client, or comes as a whole after the client.
            Some(colon) => {
                let before = &part[..colon];
                let end = client.len().checked_sub(before.len());
                is_plain_text(before)
                    || end.is_some_and(|end| client.as_bytes()[end..].eq_ignore_ascii_case(before))
            }
            None => is_plain_text(part),
        },
        Text::Glob(glob) => {
            let start = glob.split(|byte| *byte == b'*').next().unwrap_or_default();
            let length = start.len().min(client.len());
            client.as_bytes()[..length].eq_ignore_ascii_case(&start[..length])
        }
        Text::Whole(_) => true,
    }
}

/// Returns the processes behind the lock's holders, as far as they are known.
fn clients(lock: &LockView) -> impl Iterator<Item = &ClientView> {
    lock.holders.iter().filter_map(|holder| holder.client.as_deref())
}

/// Returns the values of `problem:`.
fn problem_words() -> String {
    let words = ProblemKind::ALL.map(ProblemKind::as_str).join(", ");
    format!("any, none, {words}")
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// If the filter is too long, has too many terms, or is not understood. The error is a sentence for people.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        words::terms(text).map(Self)
    }

    /// Returns true if a lock is listed. Unless the filter says otherwise, these are confirmed locks that are held or
    /// waited for, and locks with a problem. A search by name also finds free locks.
    #[must_use]
    pub fn matches(&self, lock: &LockView, now: SteadyMillis) -> bool {
        self.lists(lock) && self.terms_match(lock, now)
    }

    /// Returns whether a list with this filter can contain this lock, if all other terms match.
    pub(super) fn lists(&self, lock: &LockView) -> bool {
        let asks_state = || self.0.iter().any(|term| matches!(term, Term::State(_)));
        let is_active = lock.is_held() || lock.is_awaited() || !lock.problems.is_empty();
        (is_active || self.searches_names() || asks_state()) && self.is_sure_enough(lock)
    }

    /// Returns true if the filter searches for names of locks or groups.
    #[must_use]
    pub fn searches_names(&self) -> bool {
        self.0.iter().any(|term| matches!(term, Term::Name(_) | Term::Group(_)))
    }

    /// Like [`Self::matches`], for lists that show locks for other reasons than that they are held or waited for.
    #[must_use]
    pub fn fits(&self, lock: &LockView, now: SteadyMillis) -> bool {
        self.is_sure_enough(lock) && self.terms_match(lock, now)
    }

    fn is_sure_enough(&self, lock: &LockView) -> bool {
        let asks_confirmed = self.0.iter().any(|term| matches!(term, Term::Confirmed(_)));
        asks_confirmed || lock.confirmed || !lock.problems.is_empty()
    }

    /// Returns whether all terms match, regardless of the locks that lists otherwise leave out.
    pub(super) fn terms_match(&self, lock: &LockView, now: SteadyMillis) -> bool {
        self.0.iter().all(|term| term.matches(lock, now))
    }

    /// Returns the filter without the terms that select a view of the list.
    pub(super) fn base(&self) -> Self {
        Self(self.0.iter().filter(|term| !term.chooses_view()).cloned().collect())
    }

    /// Returns whether the terms that select a view match a lock that the other terms match.
    pub(super) fn chooses(&self, lock: &LockView, now: SteadyMillis) -> bool {
        let mut views = self.0.iter().filter(|term| term.chooses_view());
        self.lists(lock) && views.all(|term| term.matches(lock, now))
    }

    /// Returns the answer of all terms for the class of a lock.
    pub(super) fn of_class(&self, lock: &LockView) -> Answer {
        let mut answers = self.0.iter().map(|term| term.of_class(lock));
        let by_thread = answers.try_fold(false, |by_thread, answer| match answer {
            Answer::No => None,
            answer => Some(by_thread || answer == Answer::ByThread),
        });
        match by_thread {
            None => Answer::No,
            Some(true) => Answer::ByThread,
            Some(false) => Answer::ByRow,
        }
    }

    /// Returns a filter as written, without the terms that select a view of the list: `problem:any`, acknowledgement,
    /// confirmation, state and waiters.
    #[must_use]
    pub fn without_view(text: &str) -> String {
        words::without(text, Term::chooses_view)
    }

    /// Returns the terms of a filter as written that select a view of the list.
    #[must_use]
    pub fn view(text: &str) -> String {
        words::without(text, |term: &Term| !term.chooses_view())
    }

    /// Returns a filter as written, without its prefixes.
    #[must_use]
    pub fn without_prefix(text: &str) -> String {
        words::without(text, |term: &Term| matches!(term, Term::Prefix(_)))
    }

    /// Returns a filter as written, without the terms that are equal to this one.
    #[must_use]
    pub fn without_term(text: &str, term: &str) -> String {
        let dropped = words::terms::<Term>(term).unwrap_or_default();
        words::without(text, |term: &Term| dropped.contains(term))
    }

    /// Returns the longest prefix that the filter asks for, in lower case.
    #[must_use]
    pub fn prefix(&self) -> Option<&[u8]> {
        let prefixes = self.0.iter().filter_map(|term| match term {
            Term::Prefix(prefix) => Some(prefix.as_slice()),
            _ => None,
        });
        prefixes.max_by_key(|prefix| prefix.len())
    }

    /// Returns whether the filter asks for owners, or for their hosts or services.
    pub(super) fn asks_owner(&self) -> bool {
        let asks = |term: &Term| matches!(term, Term::Owner(_) | Term::Host(_) | Term::Service(_));
        self.0.iter().any(asks)
    }

    /// Returns true if the filter is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the filter's matches depend on the clock.
    #[must_use]
    pub fn depends_on_clock(&self) -> bool {
        self.0.iter().any(|term| matches!(term, Term::Age(_) | Term::Ttl(_)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thin_vec::thin_vec;

    use super::*;
    use crate::model::types::RedView;
    use crate::query::fixtures::{acknowledged, leaked, lock};

    #[test]
    fn acknowledged_problems_are_distinguished() {
        let open = LockView { problems: thin_vec![leaked()], ..lock("a") };
        let known = LockView { problems: thin_vec![acknowledged()], ..lock("a") };
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
        let lock = LockView { problems: thin_vec![leaked()], ..lock("Order:42") };
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
            "prefix:order:",
            "waiting:no",
            "name:\"order:42\"",
            "group:x",
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
            "prefix:rder",
            "waiting:yes",
            "name:\"order:4\"",
            "group:\"*\"",
        ] {
            assert!(!matches(no, &lock), "{no}");
        }
    }

    #[test]
    fn a_group_is_found_as_it_is_written_in_metrics() {
        let free = |group: &str| LockView {
            holders: Default::default(),
            state: State::Free,
            group: group.into(),
            ..lock("a")
        };
        for group in ["orders:*", "overflow", "a \"b\"", "state:held", "\\"] {
            let filter = words::with_term("", "group", group);
            assert!(matches(&filter, &free(group)), "{filter}");
            assert!(!matches(&filter, &free("orders:42:*")), "{filter}");
        }
    }

    #[test]
    fn a_key_in_capitals_is_not_searched_in_names() {
        let error = Filter::parse("Problem:any").unwrap_err().to_string();
        assert!(error.contains("`Problem:`") && error.contains("problem:any"), "{error}");
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
            "host:\"web-7\"",
            "host:10.0.0.7",
            "service:payments",
            "service:pay*",
            "name:a",
        ] {
            assert!(matches(yes, &held), "{yes}");
            let only_name = yes.starts_with("name") || yes.contains("285475da");
            assert_eq!(matches(yes, &lock("a")), only_name, "{yes}");
        }
        for no in ["owner:billing", "host:web-8", "host:\"web\"", "service:pay", "service:web-7"] {
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
    fn a_quote_within_a_name_stays_there_when_other_terms_are_left_out() {
        for filter in ["x:\"a waiting:\"yes\"", "x:\"a waiting:yes", "waiting:yes x:\"a"] {
            let base = Filter::without_view(filter);
            assert_eq!(Filter::parse(&base), Ok(Filter::parse(filter).unwrap().base()), "{filter}");
            assert!(matches(&base, &lock("x:\"abc")) && !matches(&base, &lock("x:abc")), "{base}");
        }
        assert!(Filter::parse("owner:\"a").is_err());
    }

    #[test]
    fn only_held_and_confirmed_locks_are_listed_unless_asked() {
        let free = LockView { state: State::Free, holders: Vec::new(), ..lock("a") };
        assert!(!matches("", &free) && matches("state:free", &free));
        assert!(matches("a", &free) && matches("name:a*", &free), "by name");
        assert!(!matches("prefix:a", &free) && !matches("kind:lock", &free));
        let queued = LockView { queued: true, ..free };
        assert!(matches("", &queued));
        let candidate = LockView { confirmed: false, ..lock("a") };
        assert!(!matches("", &candidate) && matches("confirmed:no", &candidate));
        let blind = LockView { state: State::Unknown, ..lock("a") };
        assert!(matches("", &blind) && !matches("state:held", &blind));
    }

    #[test]
    fn a_part_of_a_red_lock_is_of_both_kinds() {
        let (held, unread) = (Vec::new(), Vec::new());
        let red = RedView { group: "g".into(), held, unread, of: 3 };
        let part = LockView { red: Some(Box::new(red)), ..lock("a") };
        assert!(matches("kind:red", &part) && matches("kind:lock", &part));
        assert!(!matches("kind:red", &lock("a")));
    }

    #[test]
    fn mistakes_are_reported_with_the_expected_form() {
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
