//! The words of a filter: the common parts of all filter languages.
//!
//! Terms are separated by spaces, and all of them must match. A plain word is searched in the name. A word with a `*`
//! is a glob for the whole name. `key:value` asks for something else. A quoted term is searched in the name literally.
//! A lock's name often has a colon, so `orders:42` is searched in the name, and a key is rejected only if it resembles
//! a known one.

use redisson::group::glob_matches;
use thiserror::Error;

/// The longest filter, in bytes.
const MAX_LEN: usize = 512;
/// The maximum number of terms.
const MAX_TERMS: usize = 16;

/// The error of an invalid filter: a sentence that says what was expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct FilterError(pub(super) String);

/// A term of a filter's language.
pub(super) trait Term: Sized {
    /// The keys of terms.
    const KEYS: &'static [&'static str];
    /// Words that users try, and the keys that they mean.
    const MEANT: &'static [(&'static str, &'static str)];

    /// Returns the term that searches in names.
    fn of_name(text: Text) -> Self;

    /// Parses `key:value`. Returns `None` if the key is unknown.
    ///
    /// # Errors
    /// If the value is wrong.
    fn qualified(key: &str, value: Value<'_>) -> Result<Option<Self>, FilterError>;
}

/// The value of a term.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value<'a> {
    pub(super) text: &'a str,
    /// True if it was in quotes.
    pub(super) quoted: bool,
}

/// Text that is searched for, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Text {
    Part(Vec<u8>),
    Whole(Vec<u8>),
    Glob(Vec<u8>),
}

impl Text {
    /// Returns a part, or a glob for the whole.
    pub(super) fn new(text: &str) -> Self {
        let text = text.to_ascii_lowercase().into_bytes();
        if text.contains(&b'*') { Self::Glob(text) } else { Self::Part(text) }
    }

    /// Returns a part or a glob, or the literal whole if the value is in quotes.
    pub(super) fn of_value(value: Value<'_>) -> Self {
        match value.quoted {
            true => Self::Whole(value.text.to_ascii_lowercase().into_bytes()),
            false => Self::new(value.text),
        }
    }

    pub(super) fn matches(&self, subject: &[u8]) -> bool {
        match self {
            Self::Glob(glob) => glob_matches(glob, &subject.to_ascii_lowercase()),
            Self::Whole(whole) => subject.eq_ignore_ascii_case(whole),
            Self::Part(part) => part.first().is_none_or(|first| {
                // Most windows differ in their first byte, so comparing it first is fast.
                let is_part = |window: &[u8]| {
                    window[0].eq_ignore_ascii_case(first) && window.eq_ignore_ascii_case(part)
                };
                subject.windows(part.len()).any(is_part)
            }),
        }
    }

    /// Like [`Self::matches`], for a subject in lower case.
    pub(super) fn matches_lower(&self, subject: &[u8]) -> bool {
        match self {
            Self::Glob(glob) => glob_matches(glob, subject),
            other => other.matches(subject),
        }
    }

    /// Returns whether the text matches every subject that begins with `start`.
    pub(super) fn matches_all_from(&self, start: &[u8]) -> bool {
        let goes_on = match self {
            Self::Part(_) => true,
            Self::Whole(_) => false,
            Self::Glob(glob) => glob.ends_with(b"*"),
        };
        goes_on && self.matches(start)
    }

    pub(super) fn matches_any(&self, subjects: &[Option<&str>]) -> bool {
        subjects.iter().flatten().any(|subject| self.matches(subject.as_bytes()))
    }

    /// Returns whether the text is the whole subject.
    pub(super) fn is(&self, subject: &[u8]) -> bool {
        match self {
            Self::Glob(_) => self.matches(subject),
            Self::Part(part) | Self::Whole(part) => subject.eq_ignore_ascii_case(part),
        }
    }
}

/// Returns the error for a value that is not among the expected ones.
pub(super) fn one_of(key: &str, value: &str, expected: &str) -> FilterError {
    FilterError(format!("`{key}:{value}` is not understood: expected one of {expected}"))
}

/// Parses the number of a database.
pub(super) fn db(text: &str) -> Result<u32, FilterError> {
    let why =
        || FilterError(format!("`db:{text}` is not understood: expected a database's number"));
    text.parse().map_err(|_| why())
}

/// Parses the terms of a filter.
///
/// # Errors
/// If the filter is too long, has too many terms, or is not understood. The error is a sentence for people.
pub(super) fn terms<T: Term>(text: &str) -> Result<Vec<T>, FilterError> {
    Ok(raw_terms(text)?.into_iter().map(|(term, _)| term).collect())
}

/// Parses the terms of a filter, each with its original text.
pub(super) fn raw_terms<T: Term>(text: &str) -> Result<Vec<(T, &str)>, FilterError> {
    if text.len() > MAX_LEN {
        return Err(FilterError(format!(
            "the filter has {} bytes, {MAX_LEN} are allowed",
            text.len()
        )));
    }
    let mut terms = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (term, after) = first_term(rest)?;
        if terms.len() >= MAX_TERMS {
            return Err(FilterError(format!("the filter has more than {MAX_TERMS} terms")));
        }
        let raw = rest.get(..rest.len() - after.len()).unwrap_or(rest);
        terms.push((term, raw.trim_end()));
        rest = after.trim_start();
    }
    Ok(terms)
}

/// Returns a filter without some of its terms. An invalid filter is returned unchanged.
pub(super) fn without<T: Term>(text: &str, drops: impl Fn(&T) -> bool) -> String {
    let Ok(terms) = raw_terms::<T>(text) else { return text.trim().to_owned() };
    let kept = terms.into_iter().filter(|(term, _)| !drops(term)).map(|(_, raw)| raw);
    kept.collect::<Vec<_>>().join(" ")
}

/// Returns a filter with one more term, `key:value`.
pub fn with_term(filter: &str, key: &str, value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:/@{}".contains(c);
    let term = match !value.is_empty() && value.chars().all(plain) {
        true => format!("{key}:{value}"),
        false => format!("{key}:{}", quoted(value)),
    };
    match filter.trim() {
        "" => term,
        filter => format!("{filter} {term}"),
    }
}

/// Returns a text in quotes, for use in a filter.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Parses the first term, and returns it with the remaining text.
fn first_term<T: Term>(text: &str) -> Result<(T, &str), FilterError> {
    if let Some(quoted) = text.strip_prefix('"') {
        let (part, after) = unquote(quoted)?;
        let part = Text::Part(part.to_ascii_lowercase().into_bytes());
        return Ok((T::of_name(part), after));
    }
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    let (word, after) = text.split_at(end);
    let Some((key, value)) = word.split_once(':') else {
        return Ok((T::of_name(Text::new(word)), after));
    };
    let qualified = |text: &str, quoted: bool| match T::qualified(key, Value { text, quoted })? {
        None => unknown_key::<T>(key, text).map_or(Ok(None), Err),
        known => Ok(known),
    };
    if let (Some(_), Some(quoted)) =
        (value.strip_prefix('"'), text.get(key.len() + 1..).and_then(|rest| rest.strip_prefix('"')))
    {
        match unquote(quoted) {
            Ok((value, after)) => {
                if let Some(term) = qualified(&value, true)? {
                    return Ok((term, after));
                }
            }
            Err(error) if T::KEYS.contains(&key) => return Err(error),
            // The quote is part of a name.
            Err(_) => {}
        }
    }
    if value.is_empty() && qualified("1", false).is_ok_and(|term| term.is_none()) {
        return Ok((T::of_name(Text::new(word)), after));
    }
    if value.is_empty() {
        return Err(FilterError(format!("`{key}:` needs a value")));
    }
    let term = qualified(value, false)?;
    Ok((term.unwrap_or_else(|| T::of_name(Text::new(word))), after))
}

/// Returns the error for an unknown key that resembles a known one, or `None` for a key that is more likely part of a
/// name.
fn unknown_key<T: Term>(key: &str, value: &str) -> Option<FilterError> {
    let lower = key.to_ascii_lowercase();
    // Keys are in lower case. A key that differs only in case counts as similar too.
    let near = |known: &&&str| strsim::damerau_levenshtein(&lower, known) <= 1 && known.len() > 2;
    let meant = T::MEANT.iter().find(|(word, _)| *word == lower).map(|(_, meant)| *meant);
    let meant = meant.or_else(|| T::KEYS.iter().find(near).copied())?;
    Some(FilterError(format!(
        "`{key}:` is not a term of the filter: did you mean {meant}:{value}? To search for it in names, write \"{key}:{value}\" in quotes"
    )))
}

/// Parses up to the closing quote. `\"` and `\\` mean the second character.
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
