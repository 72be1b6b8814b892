//! A list of unescaped arguments in a reusable buffer.

use std::ops::Range;

use super::line::Arg;

/// A list of byte strings.
#[derive(Debug, Default)]
pub(super) struct ByteStrings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ByteStrings {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Appends an argument. Returns false and appends nothing if it is malformed.
    pub(super) fn push(&mut self, arg: Arg<'_>) -> bool {
        let before = self.bytes.len();
        let whole = arg.append_to(&mut self.bytes);
        if whole {
            self.ends.push(self.bytes.len());
        } else {
            self.bytes.truncate(before);
        }
        whole
    }

    /// Returns the string at `index`, or an empty one if out of range.
    pub(super) fn get(&self, index: usize) -> &[u8] {
        let Some(end) = self.ends.get(index) else { return b"" };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..*end]
    }

    pub(super) fn range(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> + Clone {
        range.map(|index| self.get(index))
    }
}
