//! Signed entries of the holder registry.
//!
//! An entry is a JSON object. A signed one ends with the members `expires`, `key` and `signature`, in this order, so
//! readers that know no signatures read it as any other. The signature covers all bytes before its own member, and the
//! place of the entry: its agent, number, lock and host.

use crate::{ClientId, LockName};

const CONTEXT: &[u8] = b"lockscope holder registry 1\0";
const MEMBER: &[u8] = b",\"signature\":\"";
const END: &[u8] = b"\"}";
/// The length of an Ed25519 signature in base64.
const SIGNATURE: usize = 88;

/// The place of an entry. A signature for one place does not verify in another.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The agent that published the entry.
    pub agent: &'a ClientId,
    /// The number of the hold or wait.
    pub number: i64,
    /// The lock that is held or awaited.
    pub lock: &'a LockName,
    /// The agent's host, as in its own entry.
    pub host: &'a [u8],
}

impl Place<'_> {
    /// Returns the message that is signed for an entry without its signature.
    #[must_use]
    pub fn message(&self, unsigned: &[u8]) -> Vec<u8> {
        let mut message = CONTEXT.to_vec();
        message.extend(self.agent.text());
        message.extend(self.number.to_be_bytes());
        for text in [self.lock.as_bytes(), self.host] {
            // Lengths, so that no text continues in the next one.
            message.extend((text.len() as u64).to_be_bytes());
            message.extend(text);
        }
        message.extend(unsigned);
        message
    }
}

/// Returns the part of an entry that its signature covers: the JSON object without its closing brace.
#[must_use]
pub fn covered(entry: &str) -> &str {
    entry.strip_suffix('}').unwrap_or(entry)
}

/// Returns the signed entry with this covered part.
#[must_use]
pub fn join(covered: &str, signature: &str) -> String {
    format!("{covered},\"signature\":\"{signature}\"}}")
}

/// Splits an entry into the part that its signature covers and the signature. Returns `None` if it is not signed.
#[must_use]
pub fn split(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = entry.strip_suffix(END)?;
    let (rest, signature) = rest.split_at_checked(rest.len().checked_sub(SIGNATURE)?)?;
    Some((rest.strip_suffix(MEMBER)?, signature))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_entry_splits_into_the_same_parts() {
        let signature = "x".repeat(SIGNATURE);
        let entry = join(covered(r#"{"pid":1}"#), &signature);
        assert!(entry.starts_with(r#"{"pid":1,"signature":"xx"#) && entry.ends_with(r#"x"}"#));
        assert_eq!(
            split(entry.as_bytes()),
            Some((br#"{"pid":1"#.as_slice(), signature.as_bytes()))
        );
        for unsigned in
            ["", "{}", r#"{"pid":1}"#, entry.split_at(entry.len() - 1).0, entry.split_at(100).1]
        {
            assert_eq!(split(unsigned.as_bytes()), None, "{unsigned}");
        }
    }

    #[test]
    fn each_part_of_the_place_changes_the_message() {
        let agents = [[1; 16], [2; 16]].map(ClientId::from_random);
        let locks = ["a", "ab"].map(|name| LockName::new(name.as_bytes()).unwrap());
        let mut messages = Vec::new();
        for agent in &agents {
            for number in [1, 2] {
                for lock in &locks {
                    for host in [b"".as_slice(), b"b", b"ab"] {
                        let place = Place { agent, number, lock, host };
                        messages.extend([place.message(b"{"), place.message(b"b{")]);
                    }
                }
            }
        }
        let all = messages.len();
        messages.sort_unstable();
        messages.dedup();
        assert_eq!(messages.len(), all);
    }
}
