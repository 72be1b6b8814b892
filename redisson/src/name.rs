//! Lock names: any bytes, within bounds, and Redisson's brace rule.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::keys::channel;
use crate::slot::slot;

/// The name of a lock: the Redis key of its hash. 1 to [`LockName::MAX`] bytes of anything; cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<[u8]>);

/// A name that cannot be a lock's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// No bytes at all.
    #[error("a lock name cannot be empty")]
    Empty,
    /// More than [`LockName::MAX`] bytes.
    #[error("a lock name of {0} bytes is too long: at most {max} are allowed", max = LockName::MAX)]
    TooLong(usize),
}

impl LockName {
    /// The longest name we take, in bytes. Redis itself would take 512 MiB.
    pub const MAX: usize = 512;

    /// Takes any bytes as a name.
    ///
    /// # Errors
    /// When there are none, or more than [`Self::MAX`].
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(NameError::Empty),
            n if n > Self::MAX => Err(NameError::TooLong(n)),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes, which are the Redis key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name as UTF-8, where it is that.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The name as derived keys carry it: wrapped in braces unless it holds a `{` anywhere.
    ///
    /// Redisson tests for the character, not for a valid hash tag, so `a{b` stays as it is, and its companions
    /// fall into another slot of a cluster. The rule is copied, since others look for these very keys.
    #[must_use]
    pub fn tagged(&self) -> Vec<u8> {
        if self.0.contains(&b'{') {
            self.0.to_vec()
        } else {
            let mut tagged = Vec::with_capacity(self.0.len() + 2);
            tagged.push(b'{');
            tagged.extend_from_slice(&self.0);
            tagged.push(b'}');
            tagged
        }
    }

    /// The lock's slot in a cluster.
    #[must_use]
    pub fn slot(&self) -> u16 {
        slot(&self.0)
    }

    /// Whether channel and companions share the lock's slot in a cluster: false for names with odd braces.
    #[must_use]
    pub fn companions_share_slot(&self) -> bool {
        // What stands before the name in them has no braces: the same for all.
        slot(&channel(self)) == self.slot()
    }
}

/// Maps by name can be asked by bytes.
impl Borrow<[u8]> for LockName {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Printable form for logs and error sentences: UTF-8 as it is, but control characters, bidirectional marks,
/// backslashes and stray bytes are escaped, so that a name can neither break a line nor reorder it.
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

/// Characters that show nothing, or change the order of what is shown around them.
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
    fn bounds() {
        assert_eq!(LockName::new(&b""[..]).unwrap_err(), NameError::Empty);
        assert!(LockName::new(vec![0_u8; 512]).is_ok());
        assert_eq!(LockName::new(vec![0_u8; 513]).unwrap_err(), NameError::TooLong(513));
    }

    #[test]
    fn any_brace_at_all_keeps_a_name_bare() {
        assert_eq!(name(b"orders:42").tagged(), b"{orders:42}");
        assert_eq!(name(b"a{b").tagged(), b"a{b");
        assert_eq!(name(b"a}b").tagged(), b"{a}b}");
        assert_eq!(name(b"{tag}x").tagged(), b"{tag}x");
    }

    #[test]
    fn odd_braces_leave_the_slot() {
        assert!(name(b"plain").companions_share_slot());
        assert!(name(b"{tag}x").companions_share_slot());
        for odd in [&b"a{b"[..], b"{}x", b"x{"] {
            assert!(!name(odd).companions_share_slot(), "{}", name(odd));
        }
        assert!(!name(b"a}b").companions_share_slot());
    }

    #[test]
    fn shown_names_are_one_harmless_line() {
        assert_eq!(name(b"a\nb").to_string(), "a\\nb");
        assert_eq!(name(b"\xff\x00ok").to_string(), "\\xff\\u{0}ok");
        assert_eq!(name("x\u{202e}y".as_bytes()).to_string(), "x\\u{202e}y");
        assert_eq!(name("żółw<script>".as_bytes()).to_string(), "żółw<script>");
    }
}
