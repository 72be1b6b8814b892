//! The part of a run's past that its invariants depend on.

use std::collections::{BTreeMap, BTreeSet};

use redisson::script::Call;
use redisson::{HolderId, Moment};

use super::super::redis::Redis;
use super::super::seeds::Verdict;
use super::event::Packet;
use super::host::Host;
use super::names::NAMES;
use super::tokens::Tokens;
use crate::core::OpId;
use crate::types::Number;

/// What the checks remember.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Fields that an exception has struck, by lock: eviction, deletion, restart, failover, a step of Redis' clock.
    excused: BTreeSet<(String, String)>,
    /// Fields that a copy of a script set or prolonged after its op was over.
    strays: BTreeSet<(String, String)>,
    /// Locks that a host's own release or undoing has made free, and by which op.
    pub(super) freed: BTreeMap<String, (usize, OpId)>,
    /// When a host heard of a lock that has been free since.
    pub(super) heard: BTreeMap<(String, usize), u64>,
    /// Fields of the lock at hand before a script ran.
    before: Vec<String>,
    /// Since when a hold has been missing in Redis, or a stray been in a waiter's way.
    pub(super) missing: BTreeMap<(usize, Number), u64>,
    /// How long a hold may be valid at most that is not renewed since its worker was stopped.
    pub(super) renewable: BTreeMap<(usize, Number), Moment>,
    pub(super) blocked: BTreeMap<(usize, &'static str), u64>,
    pub(super) tokens: Tokens,
    /// Locks granted since everything was repaired, to whoever holds them already too.
    pub(super) granted_since: u64,
}

fn field_names(redis: &Redis, lock: &str) -> Vec<String> {
    redis.fields(lock).iter().map(|(field, _)| field.clone()).collect()
}

fn key(call: &Call) -> String {
    String::from_utf8_lossy(&call.keys[0]).into_owned()
}

pub(super) fn number(arg: &[u8]) -> Number {
    HolderId::parse(arg).expect("a holder of ours").thread
}

impl History {
    pub(super) fn excuse_key(&mut self, lock: &str, redis: &Redis) {
        for field in field_names(redis, lock) {
            self.excused.insert((lock.to_owned(), field));
        }
    }

    pub(super) fn excuse(&mut self, lock: &str, field: String) {
        self.excused.insert((lock.to_owned(), field));
    }

    pub(super) fn excuse_all(&mut self, redis: &Redis) {
        for lock in NAMES {
            self.excuse_key(lock, redis);
        }
    }

    /// A copy that lags is in force now: what it has may be long over.
    pub(super) fn resurrected(&mut self, redis: &Redis) {
        for lock in NAMES {
            for field in field_names(redis, lock) {
                self.strays.insert((lock.to_owned(), field.clone()));
                self.excused.insert((lock.to_owned(), field));
            }
        }
    }

    pub(super) fn is_excused(&self, lock: &str, field: &str) -> bool {
        self.excused.contains(&(lock.to_owned(), field.to_owned()))
    }

    pub(super) fn is_stray(&self, lock: &str, field: &str) -> bool {
        self.strays.contains(&(lock.to_owned(), field.to_owned()))
    }

    pub(super) fn heard(&mut self, host: usize, lock: &str, now: u64) {
        self.heard.insert((lock.to_owned(), host), now);
    }

    /// A lock is no longer free, or nobody said that it is.
    pub(super) fn taken(&mut self, lock: &str) {
        self.freed.remove(lock);
        self.heard.retain(|(name, _), _| name != lock);
    }

    pub(super) fn before_script(&mut self, packet: &Packet, redis: &Redis) {
        self.before = field_names(redis, &key(&packet.call));
    }

    pub(super) fn after_script(&mut self, packet: &Packet, hosts: &[Host], redis: &Redis) {
        let host = &hosts[packet.host];
        let lock = key(&packet.call);
        let alive = host.run == packet.run && host.core.ops.contains_key(&packet.op);
        // What somebody on the way repeats is unknown to who sent it, and who is yet to hear of the first copy may
        // have been refused by it.
        let wanted = alive && !packet.is_repeated();
        for field in field_names(redis, &lock) {
            // It set the field, or gave it another lease when nobody counted on that any more.
            let late = !self.before.contains(&field) || packet.call.script.name == "keep";
            if !wanted && late {
                self.strays.insert((lock.clone(), field));
            }
        }
        if redis.get(&lock).is_some() {
            self.taken(&lock);
        } else if alive && packet.call.script.name == "release" && !self.before.is_empty() {
            self.freed.insert(lock, (packet.host, packet.op));
        }
    }

    /// A core sends a script: never one about a number that an earlier one was sent to remove, unless to remove it.
    pub(super) fn sending(&mut self, host: &mut Host, call: &Call) -> Verdict {
        let script = call.script.name;
        let violation = |number: Number, host: &Host| {
            if host.removed.contains(&number) {
                return Err(format!("{script} for {number}, which a script was sent to remove"));
            }
            Ok(())
        };
        match script {
            "acquire" => violation(number(&call.args[0]), host)?,
            "keep" => {
                for holder in call.args.iter().skip(1).step_by(2) {
                    violation(number(holder), host)?;
                }
            }
            "hand_over" => {
                violation(number(&call.args[1]), host)?;
                host.removed.insert(number(&call.args[0]));
            }
            "release" => {
                host.removed.insert(number(&call.args[0]));
            }
            _ => {}
        }
        Ok(())
    }

    /// A worker was told of a new hold.
    pub(super) fn granted(&mut self, host: &mut Host, lock: &str, holder: &str) -> Verdict {
        if !host.granted.insert(number(holder.as_bytes())) {
            return Err(format!("{lock}: {holder} was granted before"));
        }
        Ok(())
    }
}
