//! Periodic checks of the server behind a live connection.
//!
//! A server can change without closing its connections: it is made a replica of another server and takes over its data,
//! or its clock is set and the expiry of every key moves with it.

use redis::{Cmd, Value, cmd};

use super::server_info::ServerInfo;

/// The sections of INFO that [`ServerInfo`] needs.
pub(super) const SECTIONS: [&str; 4] = ["server", "replication", "memory", "cluster"];

/// The change of the clocks' offset between two checks that counts as a step, in microseconds. Slewing is far below, and
/// a smaller step harms no lease.
const STEP: i64 = 1_000_000;

/// The commands of one check.
pub(super) fn commands() -> Vec<Cmd> {
    let info = SECTIONS.map(|section| cmd("INFO").arg(section).to_owned());
    info.into_iter().chain([cmd("TIME")]).collect()
}

/// The known state of a server.
pub(super) struct ServerWatch {
    info: ServerInfo,
    clock: Option<Offset>,
}

impl ServerWatch {
    pub(super) fn new(info: ServerInfo) -> Self {
        Self { info, clock: None }
    }

    pub(super) fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// Applies the answers to [`commands`], with the instants of sending and receiving by [`crate::clock::boot_micros`].
    /// Returns the names of the changed facts. Facts that the server does not report have not changed.
    pub(super) fn update(
        &mut self,
        answers: &[Value],
        sent: u64,
        received: u64,
    ) -> Vec<&'static str> {
        let texts = answers.iter().filter_map(|answer| match answer {
            Value::BulkString(text) => Some(String::from_utf8_lossy(text)),
            _ => None,
        });
        let new = ServerInfo::from_info(&texts.collect::<Vec<_>>().join("\r\n"));
        let info = &mut self.info;
        let mut changed = Vec::new();
        apply(&mut info.run_id, new.run_id, "run id", &mut changed);
        apply(&mut info.role, new.role, "role", &mut changed);
        apply(&mut info.replid, new.replid, "replication id", &mut changed);
        apply(&mut info.maxmemory_policy, new.maxmemory_policy, "maxmemory-policy", &mut changed);
        apply(&mut info.maxmemory, new.maxmemory, "maxmemory", &mut changed);
        if new.replicas.is_some() {
            info.requires_replicas = new.requires_replicas;
            let before = std::mem::replace(&mut info.replicas, new.replicas);
            // One more or less is not news; the first and the last are.
            if (before > Some(0)) != (new.replicas > Some(0)) {
                changed.push("replicas");
            }
        }
        let Some(now) = answers.last().and_then(time_of) else { return changed };
        let clock = Offset::between(now, sent, received);
        // The latest offset is kept, so that a slow drift is not a step.
        let before = self.clock.replace(clock);
        if before.is_some_and(|before| before.differs_from(clock)) {
            info.clock_steps = info.clock_steps.wrapping_add(1);
            changed.push("clock");
        }
        changed
    }
}

fn apply<T: PartialEq>(
    known: &mut Option<T>,
    reported: Option<T>,
    what: &'static str,
    changed: &mut Vec<&'static str>,
) {
    if reported.is_some() && *known != reported {
        *known = reported;
        changed.push(what);
    }
}

/// Microseconds since the epoch, from the answer to TIME.
fn time_of(answer: &Value) -> Option<i64> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(seconds), Value::BulkString(micros)] = parts.as_slice() else {
        return None;
    };
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}

/// The bounds of the server's clock minus this host's, in microseconds. The server read its clock between the sending of
/// the command and the receipt of the answer.
#[derive(Debug, Clone, Copy)]
struct Offset {
    least: i64,
    most: i64,
}

impl Offset {
    fn between(server: i64, sent: u64, received: u64) -> Self {
        let less = |ours: u64| server.saturating_sub_unsigned(ours);
        Self { least: less(received), most: less(sent) }
    }

    fn differs_from(self, other: Self) -> bool {
        let apart = |low: Self, high: Self| high.least.saturating_sub(low.most) > STEP;
        apart(self, other) || apart(other, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::Role;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn time(micros: u64) -> Value {
        let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
        Value::Array(vec![text(&seconds.to_string()), text(&rest.to_string())])
    }

    const EPOCH: u64 = 1_700_000_000_000_000;

    #[test]
    fn unreported_facts_have_not_changed() {
        let mut server = ServerWatch::new(ServerInfo::from_info("run_id:a\r\nrole:master\r\n"));
        assert!(server.update(&[], 0, 1).is_empty());
        assert!(server.update(&[text("run_id:a\r\n"), time(EPOCH)], 0, 1).is_empty());
        let changed = server.update(&[text("role:slave\r\nmaster_replid:b\r\n")], 2, 3);
        assert_eq!(changed, ["role", "replication id"]);
        assert_eq!(server.info().role, Some(Role::Replica));
        assert_eq!(server.info().run_id.as_deref(), Some("a"));
    }

    #[test]
    fn the_first_replica_and_the_end_of_the_last_are_changes() {
        let info = |replicas| format!("role:master\r\nconnected_slaves:{replicas}\r\n");
        let mut server = ServerWatch::new(ServerInfo::from_info(&info(0)));
        let news = [1, 2, 1, 0, 0].map(|replicas| {
            let changed = server.update(&[text(&info(replicas))], 0, 1);
            (changed, server.info().replicas)
        });
        let [one, two, one_left, none, still_none] = news;
        assert_eq!(one, (vec!["replicas"], Some(1)));
        assert_eq!([two, one_left], [(vec![], Some(2)), (vec![], Some(1))]);
        assert_eq!([none, still_none], [(vec!["replicas"], Some(0)), (vec![], Some(0))]);
        let guarded = "redis_version:7.0.15\r\nconnected_slaves:0\r\nmin_slaves_good_slaves:1\r\n";
        assert!(server.update(&[text(guarded)], 0, 1).is_empty());
        assert!(server.info().requires_replicas);
    }

    #[test]
    fn the_first_check_with_a_clock_changes_only_what_it_reports() {
        let first = ServerInfo::from_info("run_id:a\r\nmaxmemory:0\r\n");
        let mut server = ServerWatch::new(first.clone());
        assert!(server.update(&[text("run_id:a\r\n"), time(EPOCH)], 0, 1).is_empty());
        assert_eq!(server.update(&[text("maxmemory:1\r\n")], 2, 3), ["maxmemory"]);
        assert_eq!(*server.info(), ServerInfo { maxmemory: Some(1), ..first });
    }

    #[test]
    fn only_a_step_of_more_than_a_second_is_a_change_of_clock() {
        let mut server = ServerWatch::new(ServerInfo::default());
        // The receipt of the answer, the time it took, and the offset of the server's clock.
        let mut check = |received: u64, took: u64, off: i64| {
            let clock = (EPOCH + received - took).saturating_add_signed(off);
            !server.update(&[time(clock)], received - took, received).is_empty()
        };
        assert!(!check(10_000_000, 100, 0), "the first check has nothing to compare with");
        assert!(!check(12_000_000, 100, 500_000));
        assert!(!check(14_000_000, 100, -400_000));
        assert!(check(16_000_000, 100, 700_000));
        assert!(!check(18_000_000, 100, 700_000), "reported once");
        assert!(check(20_000_000, 100, -3_600_000_000));
        // After a slow answer the offset is uncertain.
        assert!(!check(90_000_000, 60_000_000, -3_590_000_000));
        assert!(check(200_000_000, 60_000_000, 0));
        assert_eq!(server.info().clock_steps, 3);
    }
}
