//! The shape that a hash must have to be a lock.
//!
//! The shape alone makes only a possible lock: an application's hash may also map `<uuid>:<number>` fields to small
//! integers. Its TTL, traffic or companions provide the confirmation.

use sha1::{Digest as _, Sha1};

use crate::{ClientId, HolderId, Kind};

/// The field that marks the hash of a read-write lock; its value is `read` or `write`.
pub const MODE_FIELD: &[u8] = b"mode";
/// The maximum number of fields of a hash that is read; larger ones are skipped.
pub const MAX_FIELDS: u64 = 1024;
/// The maximum number of fields of a lock held by unknown clients; with more, it is an application's counters.
const MAX_FOREIGN: usize = 8;
/// The longest field name that can be a holder id: uuid, number, `:write`, transaction.
pub(crate) const MAX_FIELD_LEN: usize = 36 + 1 + 20 + 6 + 33;
/// The longest value worth reading: a count in decimal, or a mode.
pub const MAX_VALUE_LEN: usize = 20;

/// A holder of a lock with its hold count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The holder's id.
    pub id: HolderId,
    /// The hold count as stored; below 1 is malformed.
    pub count: i64,
}

/// A holder of a lock whose id does not have Redisson's form: that of an unknown client library.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignHolder {
    /// The field as stored.
    pub field: Vec<u8>,
    /// The hold count; at least 1.
    pub count: i64,
}

impl ForeignHolder {
    /// Returns a stand-in id, the same for the same field: a leading uuid is the client, otherwise the client is
    /// derived from the field.
    #[must_use]
    pub fn stand_in(&self) -> HolderId {
        let digest = Sha1::digest(&self.field);
        let uuid = self.field.get(..36).and_then(ClientId::parse);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        let client = uuid.unwrap_or_else(|| ClientId::from_random(bytes));
        let [a, b, c, d, ..] = bytes;
        HolderId::new(client, i64::from(u32::from_be_bytes([a, b, c, d])))
    }

    /// Returns the field as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.field).into_owned()
    }
}

/// The parsed hash of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LockHash {
    /// The holders, in ascending order of their ids.
    pub holders: Vec<Holder>,
    /// The holders of unknown client libraries, in ascending order of their ids.
    pub foreign: Vec<ForeignHolder>,
    /// The value of the `mode` field, if present.
    pub mode: Option<Vec<u8>>,
    /// Fields that are neither, or whose value is not a count; a well-formed lock has none.
    pub unexpected: Vec<Vec<u8>>,
}

/// Returns whether a field's name is allowed in the hash of a lock.
#[must_use]
pub fn is_lock_field(field: &[u8]) -> bool {
    field == MODE_FIELD || (field.len() <= MAX_FIELD_LEN && HolderId::parse(field).is_some())
}

/// Returns whether a field's name can be the id of a holder of any client library: a short one.
#[must_use]
pub fn is_foreign_field(field: &[u8]) -> bool {
    !field.is_empty() && field.len() <= MAX_FIELD_LEN
}

/// Returns whether a field's name begins with a uuid and a colon, as the holder ids of all known client libraries do.
#[must_use]
pub fn has_client(field: &[u8]) -> bool {
    is_foreign_field(field)
        && field.get(36) == Some(&b':')
        && field.get(..36).and_then(ClientId::parse).is_some()
}

/// Returns the name of another Redisson synchronizer with these fields, if there is one.
#[must_use]
pub fn other_synchronizer(fields: &[Vec<u8>]) -> Option<&'static str> {
    let all = |is: fn(&[u8]) -> bool| !fields.is_empty() && fields.iter().all(|field| is(field));
    if all(|field| matches!(field, b"rate" | b"interval" | b"type" | b"keepAliveTime")) {
        Some("a rate limiter")
    } else if all(is_fast_multi_field) {
        Some("the hash of a fast multi-lock")
    } else {
        None
    }
}

/// Matches 22 characters of base64, alone or followed by `:<holder>:expire_time` or `:<holder>:lock_count`.
fn is_fast_multi_field(field: &[u8]) -> bool {
    let Some((hash, rest)) = field.split_at_checked(22) else { return false };
    let base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let holder = rest
        .strip_suffix(b":expire_time")
        .or_else(|| rest.strip_suffix(b":lock_count"))
        .and_then(|rest| rest.strip_prefix(b":"));
    hash.iter().all(base64)
        && (rest.is_empty() || holder.is_some_and(|holder| HolderId::parse(holder).is_some()))
}

/// Quotes bytes in backticks. Bytes that are not printable ASCII are escaped, and so are backticks, which would end the
/// quotation.
fn quoted(bytes: &[u8]) -> String {
    format!("`{}`", bytes.escape_ascii().to_string().replace('`', "\\x60"))
}

impl LockHash {
    /// Sorts fields and values into holders, mode and unexpected fields. Fields of another form are holders too if all
    /// values are counts, unless the hash is another synchronizer or a holder of Redisson's form excludes others.
    #[must_use]
    pub fn parse<F: AsRef<[u8]>, V: AsRef<[u8]>>(fields: impl IntoIterator<Item = (F, V)>) -> Self {
        let mut hash = Self::default();
        for (field, value) in fields {
            let (field, value) = (field.as_ref(), value.as_ref());
            if field == MODE_FIELD {
                hash.mode = Some(value.to_vec());
                continue;
            }
            let count = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
            match (HolderId::parse(field), count) {
                (Some(id), Some(count)) => hash.holders.push(Holder { id, count }),
                (None, Some(count)) if count > 0 && is_foreign_field(field) => {
                    hash.foreign.push(ForeignHolder { field: field.to_vec(), count });
                }
                _ => hash.unexpected.push(field.to_vec()),
            }
        }
        let fields = || hash.foreign.iter().map(|foreign| foreign.field.clone());
        let alone = hash.holders.is_empty() && hash.foreign.len() <= MAX_FOREIGN;
        let a_lock = hash.unexpected.is_empty() && (alone || hash.mode.is_some());
        if !a_lock || other_synchronizer(&fields().collect::<Vec<_>>()).is_some() {
            hash.unexpected.extend(fields());
            hash.foreign.clear();
        }
        hash.foreign.sort_unstable();
        hash.holders.sort_unstable_by_key(|holder| holder.id);
        hash
    }

    /// Returns whether this can be a lock: it has at least one holder.
    #[must_use]
    pub fn is_possible_lock(&self) -> bool {
        !self.holders.is_empty() || !self.foreign.is_empty()
    }

    /// Returns all holders with their counts: the id as stored, also of unknown clients.
    #[must_use]
    pub fn holders_as_text(&self) -> Vec<(String, i64)> {
        let known = self.holders.iter().map(|holder| (holder.id.to_string(), holder.count));
        known.chain(self.foreign.iter().map(|holder| (holder.text(), holder.count))).collect()
    }

    /// Describes the first inconsistency, or returns `None` for a well-formed lock.
    #[must_use]
    pub fn malformed(&self) -> Option<String> {
        if let Some(field) = self.unexpected.first() {
            return Some(format!("unexpected field {}", quoted(field)));
        }
        if let Some(holder) = self.holders.iter().find(|holder| holder.count < 1) {
            return Some(format!("count {} of holder {}", holder.count, holder.id));
        }
        match self.mode.as_deref() {
            None if self.holders.len() + self.foreign.len() > 1 => {
                Some("several holders but no `mode`".to_owned())
            }
            None if self.holders.iter().any(|h| h.id.write) => {
                Some("a write holder but no `mode`".to_owned())
            }
            None => None,
            Some(b"read") => {
                let writer = self.holders.iter().find(|holder| holder.id.write)?;
                Some(format!("write holder {} in mode `read`", writer.id))
            }
            Some(b"write") => {
                let Some(writer) = self.holders.iter().find(|holder| holder.id.write) else {
                    // The form of a foreign writer's id is unknown.
                    if !self.foreign.is_empty() {
                        return None;
                    }
                    return Some("mode `write` without a write holder".to_owned());
                };
                // Only the same owner's read hold may accompany a write hold.
                let mut others = self.holders.iter().filter(|holder| holder.id != writer.id);
                let other = others.find(|holder| !holder.id.is_read_side_of(&writer.id))?;
                Some(format!("holder {} next to write holder {}", other.id, writer.id))
            }
            Some(other) => Some(format!("mode {}", quoted(other))),
        }
    }

    /// Returns the kind that the hash indicates: read or write by its mode, else plain. Fair, fenced and red locks look
    /// like plain ones; only their queue or token key distinguishes them.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.mode.as_deref() {
            Some(b"write") => Kind::Write,
            Some(_) => Kind::Read,
            None => Kind::Lock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: &str = "285475da-9152-4c83-822a-67ee2f116a79:52";

    #[test]
    fn a_plain_lock_is_well_formed() {
        let hash = LockHash::parse([(H, "2")]);
        assert!(hash.is_possible_lock());
        assert_eq!(hash.malformed(), None);
        assert_eq!((hash.kind(), hash.holders[0].count), (Kind::Lock, 2));
    }

    #[test]
    fn a_write_hold_with_its_own_read_hold_is_well_formed() {
        let write = format!("{H}:write");
        let hash = LockHash::parse([("mode", "write"), (&write, "1"), (H, "1")]);
        assert_eq!((hash.kind(), hash.malformed()), (Kind::Write, None));
    }

    #[test]
    fn an_agents_write_hold_with_its_own_read_hold_is_well_formed() {
        let number = |n: u8| H.replace(":52", &format!(":192761261557651867{n}"));
        let write = format!("{}:write", number(1));
        let malformed = |reader: &str| {
            LockHash::parse([("mode", "write"), (&write, "1"), (reader, "1")]).malformed()
        };
        assert_eq!(malformed(&number(2)), None, "each grant has another number");
        let other_agent = number(2).replace("285475da", "385475da");
        for reader in [H, &other_agent, &format!("{}:write", number(2))] {
            assert!(malformed(reader).unwrap().contains(reader), "{reader}");
        }
    }

    #[test]
    fn holders_of_unknown_clients_are_holders() {
        for field in [&H.replace(":52", ":8b2d9f10-0c1d-4e2f-9a3b-4c5d6e7f8091"), "a", "worker-1"] {
            let hash = LockHash::parse([(field, "2")]);
            assert!(hash.is_possible_lock(), "{field}");
            assert_eq!(hash.malformed(), None);
            assert_eq!((hash.foreign[0].text().as_str(), hash.foreign[0].count), (field, 2));
        }
        let shared = LockHash::parse([("mode", "read"), (H, "1"), ("worker-1", "1")]);
        assert_eq!((shared.malformed(), shared.foreign.len()), (None, 1));
        let two = LockHash::parse([("a", "1"), ("b", "1")]);
        assert!(two.malformed().unwrap().contains("several holders"));
    }

    #[test]
    fn hashes_with_other_values_have_no_foreign_holders() {
        let foreign = |fields: &[(&str, &str)]| LockHash::parse(fields.iter().copied()).foreign;
        assert!(foreign(&[("a", "0")]).is_empty());
        assert!(foreign(&[("a", "1"), ("colour", "red")]).is_empty());
        assert!(foreign(&[("rate", "5"), ("interval", "1000"), ("type", "1")]).is_empty());
        assert!(foreign(&[(H, "1"), ("visits", "7")]).is_empty(), "a plain lock has one holder");
        let many: Vec<(String, &str)> = (0..9).map(|n| (format!("field{n}"), "1")).collect();
        assert!(LockHash::parse(many).foreign.is_empty(), "an application's counters");
    }

    #[test]
    fn a_foreign_holder_has_a_stable_stand_in() {
        let id = |field: &str| ForeignHolder { field: field.into(), count: 1 }.stand_in();
        let (uuid, _) = H.split_once(':').unwrap();
        assert_eq!(id(&format!("{uuid}:x")).client.to_string(), uuid);
        assert_eq!(id("a"), id("a"));
        assert_ne!(id("a"), id("b"));
        assert!(!id("a").looks_like_agent());
    }

    #[test]
    fn inconsistencies_are_described() {
        let malformed =
            |fields: &[(&str, &str)]| LockHash::parse(fields.iter().copied()).malformed();
        assert!(malformed(&[(H, "1"), ("colour", "red")]).unwrap().contains("colour"));
        let field = malformed(&[(H, "1"), ("a`b\\<i>", "red")]);
        assert_eq!(field.unwrap(), "unexpected field `a\\x60b\\\\<i>`");
        assert!(malformed(&[(H, "x")]).unwrap().contains(H));
        assert!(malformed(&[(H, "0")]).unwrap().contains("count 0"));
        assert!(malformed(&[(H, "1"), ("mode", "null")]).unwrap().contains("null"));
        assert!(!LockHash::parse([("rate", "5")]).is_possible_lock());
        let (write, other) = (format!("{H}:write"), H.replace(":52", ":7"));
        let with_other = malformed(&[("mode", "write"), (&write, "1"), (&other, "1")]);
        assert!(with_other.unwrap().contains(&other));
        assert!(malformed(&[("mode", "write"), (H, "1")]).unwrap().contains("without"));
        assert!(malformed(&[("mode", "read"), (&write, "1")]).unwrap().contains(&write));
        assert_eq!(malformed(&[("mode", "read"), (H, "1"), (&other, "2")]), None);
    }

    #[test]
    fn other_synchronizers_are_recognized() {
        let named = |fields: &[&str]| {
            let fields: Vec<Vec<u8>> = fields.iter().map(|f| f.as_bytes().to_vec()).collect();
            other_synchronizer(&fields)
        };
        assert!(named(&["rate", "interval", "type"]).unwrap().contains("rate limiter"));
        let value = "r0hX3ZbGk1q9+/sD2mLwEA";
        let fields = [value.to_owned(), format!("{value}:{H}:expire_time")];
        assert!(named(&[&fields[0], &fields[1]]).unwrap().contains("multi-lock"));
        assert_eq!(named(&["rate", "colour"]), None);
        assert_eq!(named(&[&format!("{value}:x:expire_time")]), None);
        assert_eq!(named(&[]), None);
    }
}
