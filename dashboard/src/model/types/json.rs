//! JSON of locks and their identities.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use redisson::Kind;
use serde::ser::{Serialize, Serializer};
use utoipa::ToSchema;

use super::events::{EventLog, EventView};
use super::id::LockId;
use super::lock_view::{HolderView, LockView, QueueEntryView, RedView, State, WaiterView};
use super::past::{PastHoldView, PastWaitView};
use super::problem::ProblemView;
use super::source::{Source, SourceSet};
use crate::clock::{SteadyMillis, WallMillis};
use crate::schema::{schema_of, words};

#[derive(serde::Serialize, ToSchema)]
#[schema(as = LockId)]
struct LockIdJson<'a> {
    deployment: &'a str,
    db: u32,
    /// The name, escaped if it is not UTF-8.
    name: Cow<'a, str>,
    /// The name's bytes, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    name_base64: Option<String>,
}

impl<'a> LockIdJson<'a> {
    fn new(id: &'a LockId) -> Self {
        let (name, name_base64) = match id.name.as_str() {
            Some(name) => (name.into(), None),
            None => (id.name.to_string().into(), Some(STANDARD.encode(id.name.as_bytes()))),
        };
        Self { deployment: &id.deployment, db: id.db, name, name_base64 }
    }
}

impl Serialize for LockId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        LockIdJson::new(self).serialize(serializer)
    }
}

schema_of!(LockId => LockIdJson<'_>);

#[derive(serde::Serialize, ToSchema)]
#[schema(as = Lock)]
struct LockJson<'a> {
    #[serde(flatten)]
    id: LockIdJson<'a>,
    /// `unknown` if its server cannot be read; everything else is then as of `observed_at`.
    state: State,
    /// False if only its shape is that of a lock.
    confirmed: bool,
    /// `lock` is also used for a lock whose kind cannot be distinguished from plain, fenced and red.
    #[schema(schema_with = kinds)]
    kind: &'static str,
    /// The lock group, as in metrics.
    lock_group: &'a str,
    holders: &'a [HolderView],
    /// The TTL at `observed_at`, in milliseconds; null if the lock does not expire.
    ttl_ms: Option<u64>,
    #[serde(serialize_with = "crate::clock::as_wall")]
    observed_at: SteadyMillis,
    /// The highest TTL seen since the lease was set, milliseconds.
    lease_ms: Option<u64>,
    /// True if its holder renews it.
    renewed: bool,
    /// The fencing token granted last.
    token: Option<i64>,
    /// True for a fair lock with waiters.
    queued: bool,
    /// The first entries of a fair lock's queue, in order.
    queue: &'a [QueueEntryView],
    /// The waiters known by name, the longest wait first.
    waiters: &'a [WaiterView],
    /// The minimum number of waiters.
    waiting: u64,
    /// True if `waiting` counts all of them.
    waiters_exact: bool,
    /// Worst first.
    problems: &'a [ProblemView],
    /// Newest first.
    #[schema(value_type = Vec<EventView>)]
    events: &'a EventLog,
    /// The latest holds that have ended, newest first.
    past: &'a [PastHoldView],
    /// The latest instants at which its lease ran out, oldest first, at most 64.
    #[schema(value_type = Vec<SteadyMillis>)]
    ran_out: Vec<WallMillis>,
    /// The longest hold that was seen to end.
    longest_hold: Option<&'a PastHoldView>,
    /// The longest wait that was seen to end, of waiters known by name.
    longest_wait: Option<&'a PastWaitView>,
    /// Its holders on the servers of its group, if several of them have the lock.
    red: Option<&'a RedView>,
    #[schema(value_type = Vec<Source>)]
    sources: SourceSet,
}

fn kinds() -> utoipa::openapi::Object {
    words(Kind::ALL.map(Kind::as_str))
}

impl Serialize for LockView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (observed_at, ttl_ms) = self.last_reading();
        let json = LockJson {
            id: LockIdJson::new(&self.id),
            state: self.state,
            confirmed: self.confirmed,
            kind: self.kind.as_str(),
            lock_group: &self.group,
            holders: &self.holders,
            ttl_ms,
            observed_at,
            lease_ms: self.lease_ms,
            renewed: self.renewed,
            token: self.token,
            queued: self.queued,
            queue: &self.queue,
            waiters: &self.waiters,
            waiting: self.waiting,
            waiters_exact: self.waiters_exact,
            problems: &self.problems,
            events: &self.events,
            past: &self.history.past,
            ran_out: self.history.ran_out.iter().map(|at| at.to_wall()).collect(),
            longest_hold: self.history.longest_hold.as_ref(),
            longest_wait: self.history.longest_wait.as_ref(),
            red: self.red.as_deref(),
            sources: self.sources,
        };
        json.serialize(serializer)
    }
}

schema_of!(LockView => LockJson<'_>);

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
