//! The language of the event filter: words for names as in the lists of locks, and separate keys.

use super::words::{self, FilterError, Text, Value, one_of, without};
use crate::model::owner_names::OwnerNames;
use crate::model::types::{ClientView, EVENT_WORDS, EventFields, PastEnding, ProblemKind};

/// A filter of events, ready to be applied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventFilter(Vec<Term>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    Name(Text),
    Prefix(Vec<u8>),
    Owner(Text),
    Host(Text),
    Service(Text),
    Event(&'static str),
    Problem(Option<ProblemKind>),
    Ended(&'static str),
    Deployment(Text),
    Db(u32),
}

impl words::Term for Term {
    const KEYS: &'static [&'static str] = &[
        "name",
        "prefix",
        "owner",
        "host",
        "service",
        "event",
        "problem",
        "ended",
        "deployment",
        "db",
    ];
    const MEANT: &'static [(&'static str, &'static str)] = &[
        ("lock", "name"),
        ("client", "owner"),
        ("holder", "owner"),
        ("process", "owner"),
        ("pod", "host"),
        ("app", "service"),
        ("type", "event"),
        ("how", "ended"),
        ("ending", "ended"),
    ];

    fn of_name(text: Text) -> Self {
        Self::Name(text)
    }

    fn qualified(key: &str, value: Value<'_>) -> Result<Option<Self>, FilterError> {
        let text = value.text;
        let word = text.to_ascii_lowercase();
        let find = |words: &mut dyn Iterator<Item = &'static str>| {
            let words: Vec<&'static str> = words.collect();
            let found = words.iter().find(|known| **known == word).copied();
            found.ok_or_else(|| one_of(key, text, &words.join(", ")))
        };
        Ok(Some(match key {
            "name" => Self::Name(Text::of_value(value)),
            "prefix" => Self::Prefix(word.into_bytes()),
            "owner" => Self::Owner(Text::new(text)),
            "host" => Self::Host(Text::of_value(value)),
            "service" => Self::Service(Text::of_value(value)),
            "event" => Self::Event(find(&mut EVENT_WORDS.into_iter())?),
            "problem" if matches!(&*word, "any" | "*") => Self::Problem(None),
            "problem" => {
                let kind = ProblemKind::parse(&word);
                let words = ProblemKind::ALL.map(ProblemKind::as_str).join(", ");
                let kind = kind.ok_or_else(|| one_of(key, text, &format!("any, {words}")))?;
                Self::Problem(Some(kind))
            }
            "ended" => Self::Ended(find(&mut PastEnding::words())?),
            "deployment" => Self::Deployment(Text::new(text)),
            "db" => Self::Db(words::db(text)?),
            _ => return Ok(None),
        }))
    }
}

impl Term {
    fn is_about_events(&self) -> bool {
        matches!(self, Self::Event(_) | Self::Problem(_) | Self::Ended(_))
    }

    fn matches(&self, event: &EventFields<'_>, names: &OwnerNames) -> bool {
        let is_problem = || matches!(event.event, "problem" | "cleared");
        match self {
            Self::Name(text) => text.matches(event.name),
            Self::Prefix(prefix) => event
                .name
                .get(..prefix.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(prefix)),
            Self::Owner(text) => {
                text.matches(event.subject.as_bytes())
                    || names.name(event.subject).is_some_and(|name| text.matches(name.as_bytes()))
            }
            Self::Host(text) => names.name(event.subject).is_some_and(|name| {
                let (_, host) = ClientView::parts(&name);
                host.is_some_and(|host| text.matches(host.as_bytes()))
            }),
            Self::Service(text) => names.name(event.subject).is_some_and(|name| {
                let (service, _) = ClientView::parts(&name);
                text.is(service.as_bytes())
            }),
            Self::Event(word) => *word == event.event,
            Self::Problem(None) => is_problem(),
            Self::Problem(Some(kind)) => is_problem() && event.subject == kind.as_str(),
            Self::Ended(how) => event.event == "ended" && event.detail == Some(how),
            Self::Deployment(text) => text.is(event.deployment.as_bytes()),
            Self::Db(db) => *db == event.db,
        }
    }
}

impl EventFilter {
    /// Parses a filter.
    ///
    /// # Errors
    /// If the filter is too long, has too many terms, or is not understood. The error is a sentence for people.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        words::terms(text).map(Self)
    }

    /// Parses a filter of holds.
    ///
    /// # Errors
    /// As [`Self::parse`], and if a term is about events.
    pub fn parse_for_holds(text: &str) -> Result<Self, FilterError> {
        let terms = words::raw_terms::<Term>(text)?;
        match terms.iter().find(|(term, _)| term.is_about_events()) {
            Some((_, raw)) => Err(FilterError(format!(
                "`{raw}` is about events, and these are holds: leave it out, or search /api/v1/events"
            ))),
            None => Ok(Self(terms.into_iter().map(|(term, _)| term).collect())),
        }
    }

    /// Returns whether an event matches all terms.
    #[must_use]
    pub fn matches(&self, event: &EventFields<'_>, names: &OwnerNames) -> bool {
        self.selects(event.event) && self.matches_apart_from_type(event, names)
    }

    /// Returns whether an event matches all terms but those that ask for its type.
    #[must_use]
    pub fn matches_apart_from_type(&self, event: &EventFields<'_>, names: &OwnerNames) -> bool {
        self.0.iter().all(|term| matches!(term, Term::Event(_)) || term.matches(event, names))
    }

    /// Returns whether a hold matches the terms that are about holds.
    #[must_use]
    pub fn matches_hold(&self, hold: &EventFields<'_>, names: &OwnerNames) -> bool {
        self.0.iter().all(|term| term.is_about_events() || term.matches(hold, names))
    }

    /// Returns whether the filter accepts events of a type. Several types are alternatives.
    #[must_use]
    pub fn selects(&self, event: &str) -> bool {
        let mut types = self.types().peekable();
        types.peek().is_none() || types.any(|word| word == event)
    }

    /// Returns the types of events that the filter asks for, or none if it accepts all.
    pub fn types(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().filter_map(|term| match term {
            Term::Event(word) => Some(*word),
            _ => None,
        })
    }

    /// Returns whether the filter only asks for types of events.
    #[must_use]
    pub fn is_only_types(&self) -> bool {
        self.0.iter().all(|term| matches!(term, Term::Event(_)))
    }

    /// Returns a filter as written, without the terms that ask for types of events.
    #[must_use]
    pub fn without_types(text: &str) -> String {
        without(text, |term: &Term| matches!(term, Term::Event(_)))
    }

    /// Returns a filter as written, without the terms that are not about holds.
    #[must_use]
    pub fn without_events(text: &str) -> String {
        without(text, Term::is_about_events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::with_term;

    const CLIENT: &str = "285475da-9152-4c83-822a-67ee2f116a79";

    fn matches(filter: &str, event: &EventFields<'_>) -> bool {
        let names = OwnerNames::default();
        names.record(CLIENT, "invoices@web-7");
        EventFilter::parse(filter).unwrap().matches(event, &names)
    }

    #[test]
    fn events_are_found_by_type_owner_lock_and_prefix() {
        let holder = format!("{CLIENT}:52");
        let ended = EventFields {
            event: "ended",
            deployment: "main",
            db: 3,
            name: b"Orders:42",
            subject: &holder,
            detail: Some("ran_out"),
        };
        for yes in [
            "",
            "orders",
            "orders:*",
            "prefix:ord",
            "name:orders:42",
            "name:\"orders:42\"",
            "event:ended",
            "event:taken event:ended",
            "owner:invoices",
            "owner:web-7",
            "owner:285475da",
            "host:web-7",
            "host:\"web-7\"",
            "host:web",
            "service:invoices",
            "service:inv*",
            "ended:ran_out",
            "deployment:main db:3",
        ] {
            assert!(matches(yes, &ended), "{yes}");
        }
        for no in [
            "prefix:rders",
            "name:\"orders:4\"",
            "event:taken",
            "owner:billing",
            "host:\"web\"",
            "host:invoices",
            "service:invoice",
            "service:web-7",
            "ended:released",
            "problem:any",
            "db:0",
        ] {
            assert!(!matches(no, &ended), "{no}");
        }
        let leaked = EventFields { event: "problem", subject: "leaked", detail: None, ..ended };
        assert!(matches("problem:leaked", &leaked) && matches("problem:any", &leaked));
        assert!(!matches("service:leaked", &leaked) && !matches("host:*", &leaked));
        assert!(!matches("problem:stuck", &leaked) && !matches("ended:ran_out", &leaked));
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        for (filter, word) in [
            ("event:lost", "force_released"),
            ("ended:badly", "unseen"),
            ("problem:bad", "leaked"),
            ("lock:a", "name:a"),
            ("evnt:taken", "event:taken"),
            ("pod:a", "host:a"),
            ("app:a", "service:a"),
        ] {
            let error = EventFilter::parse(filter).unwrap_err().to_string();
            assert!(error.contains(word), "{filter}: {error}");
        }
    }

    #[test]
    fn a_filter_of_holds_has_no_terms_about_events() {
        for filter in ["", "orders:* owner:invoices", "\"problem:any\"", "name:event:42"] {
            assert_eq!(
                EventFilter::parse_for_holds(filter),
                EventFilter::parse(filter),
                "{filter}"
            );
        }
        for term in ["event:taken", "problem:any", "problem:\"leaked\"", "ended:released"] {
            let error = EventFilter::parse_for_holds(&format!("orders:* {term} db:3"));
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{term}` is about events")), "{error}");
        }
        assert!(EventFilter::parse_for_holds("db:x").unwrap_err().to_string().contains("`db:x`"));
    }

    #[test]
    fn types_are_replaced_and_the_rest_stays_as_written() {
        let text = " orders:*  event:taken owner:\"a b\" event:\"ended\"";
        assert_eq!(EventFilter::without_types(text), "orders:* owner:\"a b\"");
        assert_eq!(EventFilter::without_types("event:x"), "event:x", "a wrong one stays");
        let more = with_term("orders:*", "owner", "a \"b\"");
        assert_eq!(more, "orders:* owner:\"a \\\"b\\\"\"");
        assert!(EventFilter::parse(&more).is_ok());
        let filter = EventFilter::parse("event:taken").unwrap();
        assert!(filter.is_only_types() && filter.selects("taken") && !filter.selects("ended"));
    }
}
