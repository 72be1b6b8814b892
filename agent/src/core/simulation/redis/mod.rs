//! A model of one Redis server: its keys with their TTLs, and the commands that lock scripts call.
//!
//! Scripts are not modelled: [`Redis::serve`] runs the shipped `.lua` files (`scripting.rs`) on the commands in
//! `commands.rs`. `against_server.rs` compares both with a real server.

mod against_server;
mod commands;
mod scripting;

use std::collections::{BTreeMap, VecDeque};

use redisson::script::{Call, Value};

/// The fields of a hash, in the order in which they were added, as in a small hash of Redis.
pub(in crate::core) type Fields = Vec<(String, String)>;
type List = VecDeque<String>;
type Scores = BTreeMap<String, f64>;

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::core) enum Content {
    /// Usually a lock.
    Hash(Fields),
    /// The queue of a fair lock.
    List(List),
    /// The deadlines of a fair lock.
    Scores(Scores),
    /// The token counter of a fenced lock, a reader's marker, or a value that is not a lock.
    Text(String),
}

impl Content {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Scores(_) => "zset",
            Self::Text(_) => "string",
        }
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

/// A type of value.
trait Stored: Default + Into<Content> {
    fn of(content: &Content) -> Option<&Self>;
    fn of_mut(content: &mut Content) -> Option<&mut Self>;
}

macro_rules! stored {
    ($($variant:ident($type:ty))+) => {$(
        impl From<$type> for Content {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }

        impl Stored for $type {
            fn of(content: &Content) -> Option<&Self> {
                if let Content::$variant(value) = content { Some(value) } else { None }
            }

            fn of_mut(content: &mut Content) -> Option<&mut Self> {
                if let Content::$variant(value) = content { Some(value) } else { None }
            }
        }
    )+};
}

stored!(Hash(Fields) List(List) Scores(Scores) Text(String));

/// A key's value, and the last millisecond of the server's clock at which the key exists.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::core) struct Entry {
    pub(in crate::core) content: Content,
    pub(in crate::core) expires_ms: Option<u64>,
}

/// The outcome of one script call.
#[derive(Debug)]
pub(in crate::core) struct Served {
    /// The reply, or the error with which Redis ended the script.
    pub(in crate::core) reply: Result<Value, String>,
    /// The channel of each message, in order.
    pub(in crate::core) published: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub(in crate::core) struct Redis {
    keys: BTreeMap<String, Entry>,
    now_ms: u64,
    /// Memory is full, and the policy is `noeviction`.
    pub(in crate::core) full: bool,
    /// It takes no writes, as without enough replicas.
    pub(in crate::core) read_only: bool,
    /// The number of clients subscribed to each channel.
    pub(in crate::core) subscribers: BTreeMap<String, usize>,
}

impl Redis {
    /// Sets the server's wall clock, forwards or backwards, and expires keys.
    pub(in crate::core) fn set_clock(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.keys.retain(|_, entry| entry.expires_ms.is_none_or(|at| now_ms <= at));
    }

    pub(in crate::core) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(in crate::core) fn keys(&self) -> &BTreeMap<String, Entry> {
        &self.keys
    }

    /// Gives access to the keys for changes that no script makes: eviction, DEL, other clients.
    pub(in crate::core) fn keys_mut(&mut self) -> &mut BTreeMap<String, Entry> {
        &mut self.keys
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.keys.get(key)
    }

    /// Returns a hash's fields; empty if the key is not a hash.
    pub(in crate::core) fn fields(&self, key: &str) -> &[(String, String)] {
        match self.keys.get(key).map(|entry| &entry.content) {
            Some(Content::Hash(fields)) => fields,
            _ => &[],
        }
    }

    /// Reports whether a key is a hash with that field.
    pub(in crate::core) fn has(&self, key: &str, field: &str) -> bool {
        self.fields(key).iter().any(|(name, _)| name == field)
    }

    /// Runs a script, as EVALSHA does.
    pub(in crate::core) fn serve(&mut self, call: &Call) -> Served {
        scripting::run(self, call)
    }
}
