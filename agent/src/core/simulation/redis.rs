//! The model of Redis: keys with a time to live, on which our scripts run.
//!
//! `against_redis.rs` holds it against a real server. It leaves out what no lock script can see.

use std::collections::{BTreeMap, VecDeque};

use redisson::script::{Args, Call, Value};

use super::commands::{Run, Stop};
use super::scripts;

/// What stands under a key.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::core) enum Content {
    /// A lock, mostly. In Redis a small hash keeps the order in which its fields came.
    Hash(Vec<(String, String)>),
    /// A fair lock's queue.
    List(VecDeque<String>),
    /// A fair lock's deadlines.
    Scores(BTreeMap<String, f64>),
    /// A fenced lock's counter, or something that is no lock.
    Text(String),
}

impl Content {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Scores(_) => "zset",
            Self::Text(_) => "string",
        }
    }

    /// Whether that is the number of a fenced lock's counter that can go on.
    pub(super) fn is_counter(&self) -> bool {
        let number = |text: &str| {
            (1..19).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        matches!(self, Self::Text(text) if number(text))
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Hash(fields) => fields.is_empty(),
            Self::List(items) => items.is_empty(),
            Self::Scores(scores) => scores.is_empty(),
            Self::Text(_) => false,
        }
    }
}

/// A key's content, and the millisecond of the server's clock after which it is gone.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::core) struct Entry {
    pub(in crate::core) content: Content,
    pub(in crate::core) expires_ms: Option<u64>,
}

/// What a script brought.
#[derive(Debug)]
pub(in crate::core) struct Served {
    /// Its reply, or the error that Redis ended it with.
    pub(in crate::core) reply: Result<Value, String>,
    /// Channels it published to.
    pub(in crate::core) published: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub(in crate::core) struct Redis {
    keys: BTreeMap<String, Entry>,
    /// Its wall clock.
    now_ms: u64,
    /// Memory is full, and the policy is noeviction.
    pub(in crate::core) full: bool,
    /// Clients subscribed to each channel: what PUBSUB NUMSUB tells.
    pub(in crate::core) subscribers: BTreeMap<String, usize>,
}

impl Redis {
    /// Sets its clock, which may step in either direction.
    pub(in crate::core) fn set_clock(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.keys.retain(|_, entry| entry.expires_ms.is_none_or(|at| now_ms <= at));
    }

    pub(in crate::core) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Everything that is there now.
    pub(in crate::core) fn keys(&self) -> &BTreeMap<String, Entry> {
        &self.keys
    }

    /// For what happens to keys without a script: eviction, DEL, other clients.
    pub(in crate::core) fn keys_mut(&mut self) -> &mut BTreeMap<String, Entry> {
        &mut self.keys
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.keys.get(key)
    }

    /// The entry for a change; what is empty afterwards is gone.
    pub(super) fn change<T>(
        &mut self,
        key: &str,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let entry = self.keys.get_mut(key)?;
        let result = change(entry);
        if entry.content.is_empty() {
            self.keys.remove(key);
        }
        Some(result)
    }

    pub(super) fn entry(&mut self, key: &str, empty: Content) -> &mut Entry {
        self.keys
            .entry(key.to_owned())
            .or_insert_with(|| Entry { content: empty, expires_ms: None })
    }

    /// A hash's fields; none where there is no hash.
    pub(in crate::core) fn fields(&self, key: &str) -> &[(String, String)] {
        match self.keys.get(key).map(|entry| &entry.content) {
            Some(Content::Hash(fields)) => fields,
            _ => &[],
        }
    }

    /// Whether a hash has that field.
    pub(in crate::core) fn has(&self, key: &str, field: &str) -> bool {
        self.fields(key).iter().any(|(name, _)| name == field)
    }

    /// Runs a script, as EVALSHA does.
    pub(in crate::core) fn serve(&mut self, call: &Call) -> Served {
        let text = |parts: &Args| -> Vec<String> {
            parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
        };
        let (keys, args) = (text(&call.keys), text(&call.args));
        let mut run = Run::new(self);
        let reply = scripts::serve(&mut run, call.script.name, &keys, &args);
        let published = run.published;
        let reply = reply.map_err(|stop| match stop {
            Stop::Full => "OOM command not allowed when used memory > 'maxmemory'.".to_owned(),
            Stop::WrongType => {
                "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned()
            }
            Stop::NoNumber => "ERR value is not an integer or out of range".to_owned(),
        });
        Served { reply, published }
    }
}
