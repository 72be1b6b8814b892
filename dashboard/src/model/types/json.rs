//! JSON of locks and their identities.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::id::LockId;
use super::lock_view::LockView;

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
        map.serialize_entry("observed_at", &self.observed_at.to_wall())?;
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
    fn a_name_that_is_not_text_is_also_given_in_base64() {
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
