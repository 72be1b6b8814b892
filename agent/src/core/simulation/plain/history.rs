//! Past events of a run on which its invariants depend.

use std::collections::{BTreeMap, BTreeSet};

use redisson::script::Call;
use redisson::{HolderId, Moment};

use super::super::redis::Redis;
use super::super::seeds::CheckResult;
use super::event::{Packet, Script};
use super::host::Host;
use super::names::NAMES;
use super::tokens::Tokens;
use crate::core::OpId;
use crate::types::Number;

#[derive(Debug, Default)]
pub(super) struct History {
    /// Locks and fields affected by an eviction, deletion, restart, failover, or a step of Redis' clock. Nothing is promised
    /// for them.
    excused: BTreeSet<(String, String)>,
    /// Locks and fields set or extended by a late or repeated script. No hold relies on them.
    strays: BTreeSet<(String, String)>,
    /// Free locks, with the host and operation that released them.
    pub(super) freed: BTreeMap<String, (usize, OpId)>,
    /// The instant at which a host was notified of the release of a lock that is still free.
    pub(super) notified: BTreeMap<(String, usize), u64>,
    /// Fields of each lock of the current scripts before these ran.
    before: BTreeMap<String, Vec<String>>,
    /// The instant since which a hold has been missing in Redis.
    pub(super) missing: BTreeMap<(usize, Number), u64>,
    /// The latest validity of a hold that is not renewed because its worker is stopped.
    pub(super) renewable: BTreeMap<(usize, Number), Moment>,
    /// The instant since which strays have blocked a host's waiters.
    pub(super) blocked: BTreeMap<(usize, &'static str), u64>,
    pub(super) tokens: Tokens,
    /// Grants since all faults were repaired, including reentries.
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

    /// Notes a restart with old data, which may contain holds that ended.
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

    pub(super) fn notified(&mut self, host: usize, lock: &str, now: u64) {
        self.notified.insert((lock.to_owned(), host), now);
    }

    /// Notes that a lock is no longer free, or that no release of it was published.
    pub(super) fn taken(&mut self, lock: &str) {
        self.freed.remove(lock);
        self.notified.retain(|(name, _), _| name != lock);
    }

    pub(super) fn before_script(&mut self, packet: &Packet, redis: &Redis) {
        let keys = packet.scripts.iter().map(|script| key(&script.call));
        self.before = keys.map(|key| (key.clone(), field_names(redis, &key))).collect();
    }

    pub(super) fn after_script(&mut self, packet: &Packet, hosts: &[Host], redis: &Redis) {
        for script in &*packet.scripts {
            self.after_one(packet, script, hosts, redis);
        }
    }

    fn after_one(&mut self, packet: &Packet, script: &Script, hosts: &[Host], redis: &Redis) {
        let host = &hosts[packet.host];
        let Script { op, call } = script;
        let lock = key(call);
        let before = &self.before[&lock];
        let alive = host.run == packet.run && host.core.ops.contains(*op);
        // The sender does not know about repeated copies. The first copy may have been refused.
        let wanted = alive && !packet.is_repeated();
        for field in field_names(redis, &lock) {
            // The script set the field or its lease after its operation had ended.
            let extends = ["keep", "hand_over"].contains(&call.script.name);
            let late = !before.contains(&field) || extends;
            if !wanted && late {
                self.strays.insert((lock.clone(), field));
            }
        }
        if redis.get(&lock).is_some() {
            self.taken(&lock);
        } else if alive && call.script.name == "release" && !before.is_empty() {
            self.freed.insert(lock, (packet.host, *op));
        }
    }

    /// Checks that a core sends no script for a holder that it already sent a script to remove.
    pub(super) fn sending(&mut self, host: &mut Host, call: &Call) -> CheckResult {
        let script = call.script.name;
        let violation = |number: Number, host: &Host| {
            if host.removed.contains(&number) {
                return Err(format!("{script} for {number}, which an earlier script removes"));
            }
            Ok(())
        };
        match script {
            "acquire" => violation(number(&call.args[0]), host)?,
            "keep" => {
                for holder in call.args.iter().skip(2) {
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

    /// Checks that a new hold has a number that was never granted.
    pub(super) fn granted(&mut self, host: &mut Host, lock: &str, holder: &str) -> CheckResult {
        if !host.granted.insert(number(holder.as_bytes())) {
            return Err(format!("{lock}: {holder} was granted before"));
        }
        Ok(())
    }
}
