//! The views as JSON.

use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::view::{LockId, LockView, WallMillis};
use crate::clock;

impl Serialize for WallMillis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&rfc3339(clock::told(*self)))
    }
}

/// The instant as RFC 3339 in UTC with milliseconds. Beyond the year 9999 it is that year's end.
#[must_use]
pub fn rfc3339(at: WallMillis) -> String {
    const LAST: u64 = 253_402_300_799_999;
    let at = UNIX_EPOCH + Duration::from_millis(at.0.min(LAST));
    humantime::format_rfc3339_millis(at).to_string()
}

fn name_entries<M: SerializeMap>(map: &mut M, id: &LockId) -> Result<(), M::Error> {
    map.serialize_entry("deployment", &*id.deployment)?;
    map.serialize_entry("db", &id.db)?;
    match id.name.as_str() {
        Some(name) => map.serialize_entry("name", name),
        None => {
            map.serialize_entry("name", &id.name.to_string())?;
            map.serialize_entry("name_base64", &STANDARD.encode(id.name.as_bytes()))
        }
    }
}

impl Serialize for LockId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        name_entries(&mut map, self)?;
        map.end()
    }
}

impl Serialize for LockView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        name_entries(&mut map, &self.id)?;
        map.serialize_entry("state", &self.state)?;
        map.serialize_entry("confirmed", &self.confirmed)?;
        map.serialize_entry("kind", self.kind)?;
        map.serialize_entry("lock_group", &*self.group)?;
        map.serialize_entry("holders", &self.holders)?;
        map.serialize_entry("ttl_ms", &self.ttl_ms)?;
        map.serialize_entry("observed_at", &self.observed_at)?;
        map.serialize_entry("lease_ms", &self.lease_ms)?;
        map.serialize_entry("renewed", &self.renewed)?;
        map.serialize_entry("token", &self.token)?;
        map.serialize_entry("queued", &self.queued)?;
        map.serialize_entry("queue", &self.queue)?;
        map.serialize_entry("waiters", &self.waiters)?;
        map.serialize_entry("waiting", &self.waiting)?;
        map.serialize_entry("waiters_exact", &self.waiters_exact)?;
        map.serialize_entry("problems", &self.problems)?;
        map.serialize_entry("events", &self.events)?;
        map.serialize_entry("past", &*self.past)?;
        map.serialize_entry("longest_hold", &self.longest_hold)?;
        map.serialize_entry("longest_wait", &self.longest_wait)?;
        map.serialize_entry("red", &self.red)?;
        map.serialize_entry("sources", &self.sources)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use redisson::LockName;

    use super::*;

    #[test]
    fn instants_are_rfc3339() {
        assert_eq!(rfc3339(WallMillis(1_795_219_200_123)), "2026-11-21T00:00:00.123Z");
        assert_eq!(rfc3339(WallMillis(u64::MAX)), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn a_name_that_is_no_text_comes_in_base64_too() {
        let id = |bytes: &[u8]| LockId {
            deployment: "main".into(),
            db: 3,
            name: LockName::new(bytes).unwrap(),
        };
        let json = |id| serde_json::to_value(id).unwrap();
        assert_eq!(
            json(id(b"a\n<b>")),
            serde_json::json!({"deployment": "main", "db": 3, "name": "a\n<b>"})
        );
        assert_eq!(
            json(id(b"a\xff")),
            serde_json::json!({"deployment": "main", "db": 3, "name": "a\\xff", "name_base64": "Yf8="})
        );
    }
}
