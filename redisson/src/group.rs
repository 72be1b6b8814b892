//! Lock groups: the metric labels of locks, which never contain raw names.
//!
//! Ordered patterns from the settings map names to groups. Names that match none have their variable parts collapsed: runs
//! of digits, uuids and long hex become `*`, so `order:8812` counts as `order:*`. The number of labels is limited: the
//! first groups keep their label for the life of the process, later ones share [`OVERFLOW`]. The true number of groups is
//! counted separately.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::Arc;

use thiserror::Error;

use crate::LockName;

/// The label of every group beyond the limit.
pub(crate) const OVERFLOW: &str = "overflow";
/// The longest label, in bytes; longer ones are truncated.
const MAX_LABEL: usize = 80;
/// The upper limit of the true group count, which is a lower bound beyond it.
const MAX_COUNTED: usize = 100_000;
/// The shortest run of hex digits that counts as an id.
const LONG_HEX: usize = 8;
const UUID_LEN: usize = 36;

/// An error for a malformed pattern.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "bad group `{0}`: expected `glob` or `glob=label`, where `*` matches anything and `$1` to `$9` in the label stand for what the stars matched"
)]
pub struct BadPattern(String);

/// A rule that maps names matching a glob to a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    glob: Vec<u8>,
    label: String,
}

impl Pattern {
    /// Parses `glob` or `glob=label`. A bare glob is its own label.
    ///
    /// # Errors
    /// Returns an error if the glob or label is empty, or if the label refers to a star that the glob lacks.
    pub fn parse(text: &str) -> Result<Self, BadPattern> {
        let bad = || BadPattern(text.to_owned());
        let (glob, label) = text.rsplit_once('=').unwrap_or((text, text));
        let stars = glob.bytes().filter(|b| *b == b'*').count();
        let captures_exist = label.split('$').skip(1).all(|rest| {
            rest.chars()
                .next()
                .and_then(|c| c.to_digit(10))
                .is_some_and(|n| n >= 1 && n as usize <= stars)
        });
        if glob.is_empty() || label.is_empty() || !captures_exist {
            return Err(bad());
        }
        Ok(Self { glob: glob.as_bytes().to_vec(), label: label.to_owned() })
    }

    /// Returns the label for a name, or `None` if it does not match.
    fn apply(&self, name: &[u8]) -> Option<String> {
        let captures = glob_captures(&self.glob, name)?;
        let mut parts = self.label.split('$');
        let mut label = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let mut chars = part.chars();
            let index = chars.next().and_then(|c| c.to_digit(10)).unwrap_or(1) as usize;
            let captured = captures.get(index - 1).copied().unwrap_or_default();
            label.push_str(&collapse(captured));
            label.push_str(chars.as_str());
        }
        Some(label)
    }
}

/// Returns whether `name` matches `glob`, where `*` matches any bytes, including none, and everything else itself.
#[must_use]
pub fn glob_matches(glob: &[u8], name: &[u8]) -> bool {
    glob_captures(glob, name).is_some()
}

/// Returns the bytes matched by each star, in one pass: the shortest match for all but the last.
fn glob_captures<'n>(glob: &[u8], name: &'n [u8]) -> Option<Vec<&'n [u8]>> {
    let mut pieces = glob.split(|b| *b == b'*');
    let first = pieces.next().unwrap_or_default();
    let mut rest = name.strip_prefix(first)?;
    let mut captures = Vec::new();
    let mut pieces = pieces.peekable();
    if pieces.peek().is_none() {
        return rest.is_empty().then_some(captures);
    }
    while let Some(piece) = pieces.next() {
        let at = if pieces.peek().is_none() {
            rest.ends_with(piece).then(|| rest.len() - piece.len())?
        } else if piece.is_empty() {
            0
        } else {
            rest.windows(piece.len()).position(|window| window == piece)?
        };
        captures.push(&rest[..at]);
        rest = &rest[at + piece.len()..];
    }
    Some(captures)
}

/// Returns a name with its variable parts replaced by `*`: uuids, long hex words, runs of digits. Stars separated only by
/// a hyphen, as in dates, become one.
#[must_use]
pub(crate) fn collapse(name: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(name);
    if text.contains(char::REPLACEMENT_CHARACTER) {
        // PromQL cannot name a label value that has it.
        text = text.replace(char::REPLACEMENT_CHARACTER, "?").into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(c) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let taken = if word == 0 {
            if !c.is_control() && !crate::name::is_invisible(c) {
                out.push(c);
            }
            c.len_utf8()
        } else if let Some(uuid) = rest.get(..UUID_LEN).filter(|text| is_uuid(text)) {
            out.push('*');
            uuid.len()
        } else {
            let (word, _) = rest.split_at(word);
            push_word(&mut out, word);
            word.len()
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    while out.contains("*-*") {
        out = out.replace("*-*", "*");
    }
    let end = (0..=MAX_LABEL.min(out.len())).rev().find(|&i| out.is_char_boundary(i));
    out.truncate(end.unwrap_or(0));
    if out.is_empty() { "*".to_owned() } else { out }
}

fn is_uuid(text: &str) -> bool {
    crate::ClientId::parse(text.to_ascii_lowercase().as_bytes()).is_some()
}

/// Appends a word of letters and digits: as one star if it is long hex, else with a star for each run of digits.
fn push_word(out: &mut String, word: &str) {
    let hex = word.len() >= LONG_HEX
        && word.bytes().all(|b| b.is_ascii_hexdigit())
        && word.bytes().any(|b| b.is_ascii_digit());
    if hex {
        out.push('*');
        return;
    }
    let mut in_digits = false;
    for c in word.chars() {
        match (c.is_ascii_digit(), in_digits) {
            (true, false) => out.push('*'),
            (true, true) => {}
            (false, _) => out.push(c),
        }
        in_digits = c.is_ascii_digit();
    }
}

/// The mapping of lock names to a bounded number of labels.
#[derive(Debug)]
pub struct Grouping {
    patterns: Vec<Pattern>,
    max: usize,
    labels: HashMap<String, Arc<str>>,
    /// The hashes of the groups, which are smaller than their names.
    counted: HashSet<u64>,
    overflow: Arc<str>,
}

impl Grouping {
    /// Creates a mapping that applies `patterns` in order, then collapses names, with at most `max` labels. Fixed labels
    /// are reserved in advance, so that other names cannot exhaust the limit first.
    #[must_use]
    pub fn new(patterns: Vec<Pattern>, max: usize) -> Self {
        let mut grouping = Self {
            patterns,
            max,
            labels: HashMap::new(),
            counted: HashSet::new(),
            overflow: Arc::from(OVERFLOW),
        };
        let fixed: Vec<String> = grouping
            .patterns
            .iter()
            .filter(|pattern| !pattern.label.contains('$'))
            .map(|pattern| pattern.label.clone())
            .collect();
        for label in fixed {
            if grouping.labels.len() < grouping.max {
                grouping.labels.insert(label.clone(), Arc::from(label));
            }
        }
        grouping
    }

    /// Returns the label for a lock.
    pub fn label(&mut self, name: &LockName) -> Arc<str> {
        let bytes = name.as_bytes();
        let group = self
            .patterns
            .iter()
            .find_map(|pattern| pattern.apply(bytes))
            .unwrap_or_else(|| collapse(bytes));
        if self.counted.len() < MAX_COUNTED {
            self.counted.insert(self.labels.hasher().hash_one(&group));
        }
        if let Some(label) = self.labels.get(&group) {
            return Arc::clone(label);
        }
        if self.labels.len() >= self.max {
            return Arc::clone(&self.overflow);
        }
        let label: Arc<str> = Arc::from(group.as_str());
        self.labels.insert(group, Arc::clone(&label));
        label
    }

    /// Returns the true number of groups, including those in overflow.
    #[must_use]
    pub fn true_count(&self) -> usize {
        self.counted.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> LockName {
        LockName::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn variable_parts_are_collapsed() {
        for (raw, group) in [
            ("order:8812", "order:*"),
            ("order:8812:line:3", "order:*:line:*"),
            ("user:285475da-9152-4c83-822a-67ee2f116a79:cart", "user:*:cart"),
            ("job-17-x", "job-*-x"),
            ("job-17-18", "job-*"),
            ("blob:deadbeef01", "blob:*"),
            ("decade", "decade"),
            ("shard12a", "shard*a"),
            ("2026-11-21", "*"),
            ("12", "*"),
            ("{tag}:9", "{tag}:*"),
            ("nightly-report", "nightly-report"),
        ] {
            assert_eq!(collapse(raw.as_bytes()), group, "{raw}");
        }
    }

    #[test]
    fn labels_are_free_of_the_replacement_character() {
        assert_eq!(collapse(b"bin\xff\xfez"), "bin??z");
        assert_eq!(collapse("a\u{fffd}b".as_bytes()), "a?b");
    }

    #[test]
    fn patterns_take_precedence_and_build_labels_from_captures() {
        let patterns =
            ["tenant:*:*=tenant/$2", "jobs.*"].map(|p| Pattern::parse(p).unwrap()).to_vec();
        let mut groups = Grouping::new(patterns, 10);
        assert_eq!(&*groups.label(&name("tenant:acme:invoice")), "tenant/invoice");
        assert_eq!(&*groups.label(&name("tenant:zeta:invoice")), "tenant/invoice");
        assert_eq!(&*groups.label(&name("jobs.nightly")), "jobs.*");
        assert_eq!(&*groups.label(&name("other:5")), "other:*");
    }

    #[test]
    fn malformed_patterns_are_rejected_by_name() {
        for bad in ["", "=x", "a*=", "a=$1", "a*=$2", "a*=$x"] {
            assert_eq!(Pattern::parse(bad).unwrap_err(), BadPattern(bad.to_owned()), "{bad}");
        }
    }

    #[test]
    fn later_groups_overflow_but_are_counted() {
        let mut groups = Grouping::new(vec![Pattern::parse("vip").unwrap()], 3);
        for group in ["a", "b", "c", "d"] {
            groups.label(&name(group));
        }
        assert_eq!(&*groups.label(&name("a")), "a");
        assert_eq!(&*groups.label(&name("c")), OVERFLOW);
        assert_eq!(
            &*groups.label(&name("vip")),
            "vip",
            "configured groups are reserved from the start"
        );
        assert_eq!(groups.true_count(), 5);
    }

    proptest! {
        #[test]
        fn any_name_has_a_short_printable_label(bytes in prop::collection::vec(any::<u8>(), 1..512)) {
            let label = collapse(&bytes);
            prop_assert!(!label.is_empty() && label.len() <= MAX_LABEL);
            prop_assert!(!label.chars().any(char::is_control));
        }

        #[test]
        fn a_star_matches_anything(head in "[a-z]{0,4}", middle in "[a-z]{0,4}", tail in "[a-z]{0,4}") {
            let glob = format!("{head}*{tail}");
            let text = format!("{head}{middle}{tail}");
            prop_assert!(glob_matches(glob.as_bytes(), text.as_bytes()));
        }
    }
}
