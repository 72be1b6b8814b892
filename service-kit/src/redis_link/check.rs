//! Looks again and again at the server behind a living connection.
//!
//! A connection can outlive what it led to: the server is told to follow another one and takes over its data, or
//! somebody sets its clock and every key's end moves with it. Neither closes a connection.

use redis::{Cmd, Value, cmd};

use super::server_info::ServerInfo;

/// The sections of INFO that a [`ServerInfo`] is read from.
pub(super) const SECTIONS: [&str; 4] = ["server", "replication", "memory", "cluster"];

/// By how much two clocks may part between two looks before it counts as a step, in microseconds. Slewing is far
/// below, and a step below it harms no lease.
const STEP: i64 = 1_000_000;

/// What is asked at each look, in one go.
pub(super) fn questions() -> Vec<Cmd> {
    let info = SECTIONS.map(|section| cmd("INFO").arg(section).to_owned());
    info.into_iter().chain([cmd("TIME")]).collect()
}

/// What has been learnt of the server so far.
pub(super) struct Known {
    info: ServerInfo,
    clock: Option<Offset>,
}

impl Known {
    pub(super) fn new(info: ServerInfo) -> Self {
        Self { info, clock: None }
    }

    pub(super) fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// Takes in the answers to [`questions`], sent and heard at these instants of [`crate::clock::boot_micros`].
    /// Returns what has changed; what the server does not tell has not.
    pub(super) fn learn(&mut self, answers: &[Value], sent: u64, heard: u64) -> Vec<&'static str> {
        let texts = answers.iter().filter_map(|answer| match answer {
            Value::BulkString(text) => Some(String::from_utf8_lossy(text)),
            _ => None,
        });
        let told = ServerInfo::from_info(&texts.collect::<Vec<_>>().join("\r\n"));
        let info = &mut self.info;
        let mut changed = Vec::new();
        update(&mut info.run_id, told.run_id, "run id", &mut changed);
        update(&mut info.role, told.role, "role", &mut changed);
        update(&mut info.replid, told.replid, "replication id", &mut changed);
        update(&mut info.maxmemory_policy, told.maxmemory_policy, "maxmemory-policy", &mut changed);
        update(&mut info.maxmemory, told.maxmemory, "maxmemory", &mut changed);
        let Some(now) = answers.last().and_then(time_of) else { return changed };
        let clock = Offset::between(now, sent, heard);
        // The newest reading is kept: what drifts apart slowly is no step.
        let before = self.clock.replace(clock);
        if before.is_none_or(|before| before.differs_from(clock)) {
            info.clock_offset_micros = Some(clock.least.midpoint(clock.most));
            if before.is_some() {
                changed.push("clock");
            }
        }
        changed
    }
}

fn update<T: PartialEq>(
    known: &mut Option<T>,
    told: Option<T>,
    what: &'static str,
    changed: &mut Vec<&'static str>,
) {
    if told.is_some() && *known != told {
        *known = told;
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

/// The server's clock less ours, in microseconds: it lies between these two, since the server read its clock
/// sometime between the question and the answer.
#[derive(Debug, Clone, Copy)]
struct Offset {
    least: i64,
    most: i64,
}

impl Offset {
    fn between(server: i64, sent: u64, heard: u64) -> Self {
        let less = |ours: u64| server.saturating_sub_unsigned(ours);
        Self { least: less(heard), most: less(sent) }
    }

    fn differs_from(self, other: Self) -> bool {
        let apart = |low: Self, high: Self| high.least.saturating_sub(low.most) > STEP;
        apart(self, other) || apart(other, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_link::Role;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn time(micros: u64) -> Value {
        let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
        Value::Array(vec![text(&seconds.to_string()), text(&rest.to_string())])
    }

    const EPOCH: u64 = 1_700_000_000_000_000;

    #[test]
    fn what_the_server_does_not_tell_has_not_changed() {
        let mut known = Known::new(ServerInfo::from_info("run_id:a\r\nrole:master\r\n"));
        assert!(known.learn(&[], 0, 1).is_empty());
        assert!(known.learn(&[text("run_id:a\r\n"), time(EPOCH)], 0, 1).is_empty());
        let changed = known.learn(&[text("role:slave\r\nmaster_replid:b\r\n")], 2, 3);
        assert_eq!(changed, ["role", "replication id"]);
        assert_eq!(known.info().role, Some(Role::Replica));
        assert_eq!(known.info().run_id.as_deref(), Some("a"));
    }

    #[test]
    fn only_a_step_of_more_than_a_second_is_a_change_of_clock() {
        let mut known = Known::new(ServerInfo::default());
        // When we hear the answer and how long that took; how far the server's clock is off.
        let mut look = |heard: u64, took: u64, off: i64| {
            let server = (EPOCH + heard - took).saturating_add_signed(off);
            !known.learn(&[time(server)], heard - took, heard).is_empty()
        };
        assert!(!look(10_000_000, 100, 0), "the first look knows nothing to compare with");
        assert!(!look(12_000_000, 100, 500_000));
        assert!(!look(14_000_000, 100, -400_000));
        assert!(look(16_000_000, 100, 700_000));
        assert!(!look(18_000_000, 100, 700_000), "told once");
        assert!(look(20_000_000, 100, -3_600_000_000));
        // A slow answer leaves open when the server read its clock.
        assert!(!look(90_000_000, 60_000_000, -3_590_000_000));
        assert!(look(200_000_000, 60_000_000, 0));
    }
}
