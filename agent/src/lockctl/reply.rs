//! Accessors for the agent's replies.

use std::time::Duration;

use redis::Value;
use redisson::name::is_invisible;
use service_kit::clock::boot_micros;

use crate::duration::as_micros;

/// The agent counts the time left in whole milliseconds.
const PRECISION: u64 = 1_000;

/// A lock's validity as the agent reports it. Both instants are in microseconds since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) until: u64,
    /// The instant at which the agent reported it.
    reported: u64,
}

impl Validity {
    /// Creates a validity from the time left and the agent's own instant of the end, in nanoseconds since boot. Without
    /// that instant, the time left counts from now.
    pub(crate) fn new(left: Duration, nanos: Option<i64>) -> Self {
        let stated = nanos.and_then(|nanos| u64::try_from(nanos / 1_000).ok());
        let until = stated.unwrap_or_else(|| boot_micros() + as_micros(left));
        Self { until, reported: until.saturating_sub(as_micros(left)) }
    }

    /// Returns whether it was reported before the other.
    pub(crate) fn is_older_than(self, other: Self) -> bool {
        self.reported + PRECISION <= other.reported
    }
}

/// Typed access to the fields of a map; `None` if a field is missing or has another type.
pub(crate) trait Fields {
    fn field(&self, key: &str) -> Option<&Value>;

    fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.field(key).and_then(bytes)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.field(key).and_then(text)
    }

    fn number(&self, key: &str) -> Option<i64> {
        self.field(key).and_then(number)
    }

    /// Returns a duration given in milliseconds.
    fn millis(&self, key: &str) -> Option<Duration> {
        self.number(key)?.try_into().ok().map(Duration::from_millis)
    }

    /// Returns the items of an array; empty if it is missing.
    fn list(&self, key: &str) -> &[Value] {
        match self.field(key) {
            Some(Value::Array(items)) => items,
            _ => &[],
        }
    }
}

impl Fields for Value {
    fn field(&self, key: &str) -> Option<&Value> {
        let Self::Map(pairs) = self else { return None };
        pairs.iter().find(|(name, _)| bytes(name) == Some(key.as_bytes())).map(|(_, value)| value)
    }
}

pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

/// Returns a string as text, with invalid UTF-8 replaced.
pub(crate) fn text(value: &Value) -> Option<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// Returns a name as a terminal may print it: control characters, characters that reorder the line, and invalid UTF-8 are
/// escaped.
pub(crate) fn printable(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_invisible(c) {
                shown.extend(c.escape_default());
            } else {
                shown.push(c);
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_name_cannot_move_the_cursor() {
        assert_eq!(printable("größe".as_bytes()), "größe");
        assert_eq!(printable(b"a\x1b[2J"), r"a\u{1b}[2J");
        assert_eq!(printable("größe\u{202e}\n".as_bytes()), r"größe\u{202e}\n");
        assert_eq!(printable(b"\xff"), r"\xff");
    }
}
