//! The keys and arguments of a script call.

use std::fmt;
use std::io::Write as _;
use std::ops::Index;

use smallvec::SmallVec;

use crate::LockName;

/// A list of byte strings in a single buffer. A batch of renewals has hundreds of them, and allocating each would cost
/// more than the rest of the call.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Args {
    bytes: Vec<u8>,
    /// The end offset of each string. Most calls for one lock have at most four.
    ends: SmallVec<[usize; 4]>,
}

impl Args {
    /// Creates an empty list with room for `count` strings of `bytes` bytes in total.
    #[must_use]
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: SmallVec::with_capacity(count) }
    }

    /// Appends a string.
    pub fn push(&mut self, arg: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(arg.as_ref());
        self.ends.push(self.bytes.len());
    }

    /// Appends a lock's companion or channel: `prefix` and the name in its form of [`LockName::tagged`].
    pub(crate) fn push_tagged(&mut self, prefix: &[u8], name: &LockName) {
        self.bytes.extend_from_slice(prefix);
        name.push_tagged(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Appends the displayed form of `arg`.
    pub fn push_text(&mut self, arg: impl fmt::Display) {
        write!(self.bytes, "{arg}").expect("writing to a vector cannot fail");
        self.ends.push(self.bytes.len());
    }

    /// Returns the number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Iterates over the strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|index| &self[index])
    }
}

impl Index<usize> for Args {
    type Output = [u8];

    fn index(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[index]]
    }
}

impl<A: AsRef<[u8]>> Extend<A> for Args {
    fn extend<I: IntoIterator<Item = A>>(&mut self, args: I) {
        args.into_iter().for_each(|arg| self.push(arg));
    }
}

impl<A: AsRef<[u8]>, const N: usize> From<[A; N]> for Args {
    fn from(args: [A; N]) -> Self {
        let bytes = args.iter().map(|arg| arg.as_ref().len()).sum();
        let mut all = Self::with_capacity(N, bytes);
        all.extend(args);
        all
    }
}

impl fmt::Debug for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|arg| arg.escape_ascii().to_string())).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn displayed_text_becomes_one_argument() {
        let mut args = Args::from(["lock", ""]);
        args.push_text(format_args!("{}:{}", "a", -5));
        assert_eq!(args.iter().collect::<Vec<_>>(), [&b"lock"[..], b"", b"a:-5"]);
    }

    proptest! {
        #[test]
        fn pushed_strings_are_returned_unchanged(given: Vec<Vec<u8>>) {
            let mut args = Args::default();
            args.extend(&given);
            prop_assert_eq!(args.len(), given.len());
            prop_assert_eq!(args.is_empty(), given.is_empty());
            prop_assert_eq!(args.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(), given);
        }
    }
}
