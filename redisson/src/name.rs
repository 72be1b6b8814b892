//! Lock names: arbitrary bytes up to a limit, and Redisson's brace rule.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::slot::slot;

/// The name of a lock: the Redis key of its hash. 1 to [`LockName::MAX`] bytes of anything; cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<[u8]>);

/// An error for an invalid lock name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// The name is empty.
    #[error("a lock name cannot be empty")]
    Empty,
    /// The name has more than [`LockName::MAX`] bytes.
    #[error("a lock name of {0} bytes is too long: at most {max} are allowed", max = LockName::MAX)]
    TooLong(usize),
}

impl LockName {
    /// The longest accepted name, in bytes. Redis itself accepts 512 MiB.
    pub const MAX: usize = 512;

    /// Creates a name from arbitrary bytes.
    ///
    /// # Errors
    /// Returns an error if there are none, or more than [`Self::MAX`].
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(NameError::Empty),
            n if n > Self::MAX => Err(NameError::TooLong(n)),
            _ => Ok(Self(bytes)),
        }
    }

    /// Returns the bytes, which are also the Redis key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the name as text if it is valid UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Returns the name as it appears in derived keys: wrapped in braces unless it contains a `{`.
    ///
    /// Redisson tests for the character, not for a valid hash tag. So `a{b` is not wrapped, and its companions hash to
    /// another slot of a cluster. The rule is copied because other clients use the same keys.
    #[must_use]
    pub fn tagged(&self) -> Vec<u8> {
        self.tagged_after(b"")
    }

    /// Returns the name in its form of [`Self::tagged`] after a prefix.
    pub(crate) fn tagged_after(&self, prefix: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(prefix.len() + self.0.len() + 2);
        key.extend_from_slice(prefix);
        self.push_tagged(&mut key);
        key
    }

    /// Appends the name in its form of [`Self::tagged`].
    pub(crate) fn push_tagged(&self, out: &mut Vec<u8>) {
        if self.0.contains(&b'{') {
            out.extend_from_slice(&self.0);
        } else {
            out.push(b'{');
            out.extend_from_slice(&self.0);
            out.push(b'}');
        }
    }

    /// Returns the lock's slot in a cluster.
    #[must_use]
    pub fn slot(&self) -> u16 {
        slot(&self.0)
    }
}

/// Allows lookup by bytes in maps keyed by name.
impl Borrow<[u8]> for LockName {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Formats the name for logs and messages. Control characters, bidirectional marks, backslashes and invalid bytes are
/// escaped, so that a name can neither break a line nor reorder it.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() || is_invisible(c) || c == '\\' {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Returns whether a character is invisible or reorders the text around it.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockName({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> LockName {
        LockName::new(bytes).unwrap()
    }

    #[test]
    fn names_have_1_to_512_bytes() {
        assert_eq!(LockName::new(&b""[..]).unwrap_err(), NameError::Empty);
        assert!(LockName::new(vec![0_u8; 512]).is_ok());
        assert_eq!(LockName::new(vec![0_u8; 513]).unwrap_err(), NameError::TooLong(513));
    }

    #[test]
    fn a_name_with_an_opening_brace_is_not_wrapped() {
        assert_eq!(name(b"orders:42").tagged(), b"{orders:42}");
        assert_eq!(name(b"a{b").tagged(), b"a{b");
        assert_eq!(name(b"a}b").tagged(), b"{a}b}");
        assert_eq!(name(b"{tag}x").tagged(), b"{tag}x");
    }

    #[test]
    fn a_displayed_name_is_one_escaped_line() {
        assert_eq!(name(b"a\nb").to_string(), "a\\nb");
        assert_eq!(name(b"\xff\x00ok").to_string(), "\\xff\\u{0}ok");
        assert_eq!(name("x\u{202e}y".as_bytes()).to_string(), "x\\u{202e}y");
        assert_eq!(name("żółw<script>".as_bytes()).to_string(), "żółw<script>");
    }
}
