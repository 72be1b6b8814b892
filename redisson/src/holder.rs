//! Holder ids: the fields of a lock's hash.
//!
//! Redisson writes `<client uuid>:<thread number>`, followed by `:write` for a write hold and by the transaction's 32 hex
//! digits for a hold inside a transaction. The number is a Java `long`; callers of the asynchronous API choose it
//! freely, so it may be negative.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The uuid of a Redisson client object or of an agent. Its text has 36 characters, lower-case hex and hyphens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId([u8; 16]);

/// An error for text that is not a holder id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not a holder id: expected `<uuid>:<number>`, perhaps with `:write` behind it")]
pub struct InvalidHolderId;

impl ClientId {
    /// Creates a version 4 uuid from 16 random bytes.
    #[must_use]
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// Parses a uuid as Redisson writes it: lower case only, since upper case would be a different field.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; 36] = text.try_into().ok()?;
        let hyphens = [8, 13, 18, 23];
        if hyphens.iter().any(|at| text[*at] != b'-') {
            return None;
        }
        let digits = text.iter().enumerate().filter(|(at, _)| !hyphens.contains(at));
        parse_hex(digits.map(|(_, digit)| *digit)).map(Self)
    }

    /// Returns the text of the uuid.
    #[must_use]
    pub fn text(&self) -> [u8; 36] {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b'-'; 36];
        let mut at = 0;
        for (i, byte) in self.0.into_iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                at += 1;
            }
            text[at] = HEX[usize::from(byte >> 4)];
            text[at + 1] = HEX[usize::from(byte & 15)];
            at += 2;
        }
        text
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Hex digits and hyphens are always text.
        f.write_str(std::str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({self})")
    }
}

impl FromStr for ClientId {
    type Err = InvalidHolderId;
    fn from_str(s: &str) -> Result<Self, InvalidHolderId> {
        Self::parse(s.as_bytes()).ok_or(InvalidHolderId)
    }
}

/// The id of a lock's holder: a parsed field of its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId {
    /// The client object; most applications have one per process.
    pub client: ClientId,
    /// The thread in that client, or an agent's grant number.
    pub thread: i64,
    /// True for the exclusive side of a read-write lock.
    pub write: bool,
    /// The transaction that acquired it, if any: 16 bytes, written as 32 hex digits.
    pub transaction: Option<[u8; 16]>,
}

impl HolderId {
    /// Creates the id of a plain hold.
    #[must_use]
    pub fn new(client: ClientId, thread: i64) -> Self {
        Self { client, thread, write: false, transaction: None }
    }

    /// Returns whether the number looks like an agent's grant number rather than a thread. Agents start at the seconds
    /// since the epoch times 2^30, beyond any Java thread id. Callers of Redisson's asynchronous API may choose such a
    /// number too, so this is only a hint. `fair_queue.lua`, which knows the time, has an earlier upper bound.
    #[must_use]
    pub fn looks_like_agent(&self) -> bool {
        (1_600_000_000..1 << 32).contains(&(self.thread >> 30))
    }

    /// Returns whether this is the read hold of a writer's owner: of the same thread, or another grant of the same agent,
    /// which lets only the owner of the write side read.
    #[must_use]
    pub fn is_read_side_of(&self, writer: &Self) -> bool {
        let same_agent = self.looks_like_agent() && writer.looks_like_agent();
        let same_owner =
            self.client == writer.client && (self.thread == writer.thread || same_agent);
        same_owner && writer.write && !self.write
    }

    /// Parses a field of a lock's hash. Accepts only the exact text that Redisson writes: no sign other than a minus, no
    /// leading zeros, lower case.
    #[must_use]
    pub fn parse(field: &[u8]) -> Option<Self> {
        let (uuid, rest) = field.split_at_checked(36)?;
        let client = ClientId::parse(uuid)?;
        let mut parts = rest.strip_prefix(b":")?.split(|b| *b == b':');
        let thread = parse_thread(parts.next()?)?;
        let mut write = false;
        let mut transaction = None;
        let mut next = parts.next();
        if next == Some(b"write") {
            write = true;
            next = parts.next();
        }
        if let Some(id) = next {
            transaction = Some(parse_hex(id.iter().copied())?);
        }
        parts.next().is_none().then_some(Self { client, thread, write, transaction })
    }
}

fn parse_thread(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [first, ..] => *first != b'0' && digits.iter().all(u8::is_ascii_digit),
        [] => false,
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses 32 digits, lower case only.
fn parse_hex(mut digits: impl Iterator<Item = u8>) -> Option<[u8; 16]> {
    let mut nibble = || match digits.next()? {
        digit @ b'0'..=b'9' => Some(digit - b'0'),
        digit @ b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        *byte = nibble()? << 4 | nibble()?;
    }
    digits.next().is_none().then_some(bytes)
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.client, f)?;
        f.write_str(":")?;
        fmt::Display::fmt(&self.thread, f)?;
        if self.write {
            f.write_str(":write")?;
        }
        if let Some(id) = self.transaction {
            f.write_str(":")?;
            for byte in id {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_random_id_is_a_version_4_uuid() {
        let id = ClientId::from_random([0xff; 16]);
        assert_eq!(id.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(ClientId::parse(&id.text()), Some(id));
    }

    #[test]
    fn only_text_that_redisson_writes_is_a_holder() {
        let uuid = "285475da-9152-4c83-822a-67ee2f116a79";
        let good = [":52", ":-7", ":0", ":52:write", ":1:0123456789abcdef0123456789abcdef"];
        for tail in good {
            let text = format!("{uuid}{tail}");
            assert_eq!(HolderId::parse(text.as_bytes()).unwrap().to_string(), text);
        }
        let bad = [
            "",
            ":",
            ":x",
            ":+5",
            ":05",
            ":-0",
            ":5 ",
            ":5:read",
            ":5:write:write",
            ":5:write:",
            ":99999999999999999999",
            ":1:0123456789ABCDEF0123456789abcdef",
        ];
        for tail in bad {
            assert_eq!(HolderId::parse(format!("{uuid}{tail}").as_bytes()), None, "{tail}");
        }
        assert_eq!(HolderId::parse(format!("{}:1", uuid.to_uppercase()).as_bytes()), None);
        assert_eq!(HolderId::parse(b"mode"), None);
    }

    #[test]
    fn agent_numbers_exceed_any_thread_id() {
        let client = ClientId::from_random([1; 16]);
        assert!(HolderId::new(client, 1_700_000_000 << 30).looks_like_agent());
        assert!(!HolderId::new(client, 1_000_000_000).looks_like_agent());
        assert!(!HolderId::new(client, -5).looks_like_agent());
    }

    #[test]
    fn agent_numbers_are_of_a_second_from_2020_to_2106() {
        let of = |number| HolderId::new(ClientId::from_random([1; 16]), number).looks_like_agent();
        let (first, end) = (1_600_000_000 << 30, 1 << 62);
        assert_eq!([first - 1, first, end - 1, end].map(of), [false, true, true, false]);
        assert_eq!([i64::MIN, i64::MAX].map(of), [false, false]);
    }

    proptest! {
        #[test]
        fn a_displayed_id_parses_back(bytes: [u8; 16], thread: i64, write: bool, transaction: Option<[u8; 16]>) {
            let id = HolderId { client: ClientId::from_random(bytes), thread, write, transaction };
            prop_assert_eq!(HolderId::parse(id.to_string().as_bytes()), Some(id));
        }

        #[test]
        fn any_bytes_parse_without_panic_and_display_unchanged(field: Vec<u8>) {
            if let Some(id) = HolderId::parse(&field) {
                prop_assert_eq!(id.to_string().into_bytes(), field);
            }
        }
    }
}
