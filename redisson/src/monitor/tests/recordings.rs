//! Recorded traffic of real Redisson clients of several versions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::*;

/// The outcomes of the calls in a recording, taken from its comments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Calls {
    taken: usize,
    not_taken: usize,
    unlocked: usize,
    forced: usize,
}

impl Calls {
    /// `call` is an object's name and arguments, a dot, and the method with its arguments.
    fn count(&mut self, call: &str, result: &str) {
        let method = call.rsplit(" . ").next().unwrap_or("").split(' ').next().unwrap_or("");
        match method {
            "lock" | "lockAsync" | "tryLock" | "lockAndGetToken" | "tryLockAndGetToken" => {
                let refused = result == "false"
                    || result.contains("Exception")
                    || (method == "tryLockAndGetToken" && result == "null");
                *(if refused { &mut self.not_taken } else { &mut self.taken }) += 1;
            }
            "unlock" | "unlockAsync" => self.unlocked += 1,
            "forceUnlock" if result == "true" => self.forced += 1,
            _ => {}
        }
    }
}

struct Recording {
    calls: Calls,
    events: Vec<Event>,
    counts: LineCounts,
}

fn play(path: &Path) -> Recording {
    let mut stream = Stream::new(ServerRole::Master);
    let mut calls = Calls::default();
    let mut under_way = HashMap::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            // Recordings contain digests in place of script sources.
            let line = line.replace("\"EVAL\" \"sha1:", "\"EVALSHA\" \"");
            stream.decoder.feed_line(line.as_bytes(), &mut stream.events);
            continue;
        };
        let (actor, rest) = comment.split_once(' ').unwrap_or((comment, ""));
        if let Some(call) = rest.strip_suffix(" …") {
            under_way.insert(actor.to_owned(), call.to_owned());
        } else if let Some(result) = rest.strip_prefix("= ") {
            calls.count(&under_way.remove(actor).unwrap_or_default(), result);
        } else if let Some((call, result)) = rest.split_once(" = ") {
            calls.count(call, result);
        }
    }
    let mut events = stream.events();
    // Any key can be removed.
    events.retain(|event| event.action != Action::Removed);
    Recording { calls, events, counts: stream.decoder.counts() }
}

fn recordings() -> Vec<(String, Recording)> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/monitor"));
    let files = |folder: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let versions = files(root).into_iter().filter(|path| path.is_dir());
    let all: Vec<_> = versions
        .flat_map(|version| files(&version))
        .map(|path| {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            (name, play(&path))
        })
        .collect();
    assert!(all.len() > 100, "only {} recordings", all.len());
    all
}

/// Returns whether the recording is one of these operations, in any version.
fn is(name: &str, operations: &[&str]) -> bool {
    let operation = name.rsplit('/').next().unwrap_or("").trim_end_matches(".txt");
    operations.contains(&operation)
}

#[test]
fn every_call_yields_exactly_one_matching_event() {
    for (name, Recording { calls, events, .. }) in recordings() {
        // A multi-lock consists of several locks.
        if is(&name, &["multi", "red", "group-multi"]) {
            continue;
        }
        let count =
            |of: &[&str]| events.iter().filter(|event| of.contains(&event.action.as_str())).count();
        assert_eq!(count(&["acquired", "reentered"]), calls.taken, "{name}: {calls:?}");
        let ends = ["released", "partly_released", "release_found_nothing"];
        assert_eq!(count(&ends), calls.unlocked, "{name}: {calls:?}");
        assert!(count(&["refused", "failed"]) >= calls.not_taken, "{name}: {calls:?}");
        assert_eq!(count(&["force_released"]), calls.forced, "{name}: {calls:?}");
    }
}

#[test]
fn every_lock_script_is_known() {
    for (name, Recording { events, counts, .. }) in recordings() {
        assert_eq!((counts.garbage, counts.cut), (0, 0), "{name}");
        for event in events.iter().filter(|event| event.certainty != Certainty::Certain) {
            // The previous state, and the sender of an expiry, are unknown.
            let unclear = ["force_released", "renewed"].contains(&event.action.as_str());
            assert!(unclear, "{name}: {}", shown(event));
        }
        for event in &events {
            assert!(event.client.is_some() && event.db == 0, "{name}: {event:?}");
        }
    }
}

#[test]
fn renewals_and_failed_renewals_are_detected() {
    for (name, Recording { events, .. }) in recordings() {
        let saw = |what: &str| events.iter().any(|event| event.action.as_str() == what);
        let renewing =
            ["renew", "renew-many", "fair-renew", "fenced-renew", "read-renew", "write-renew"];
        if is(&name, &renewing) {
            assert!(saw("renewed"), "{name}");
        }
        assert_eq!(saw("renewal_found_nothing"), is(&name, &["renew-lost"]), "{name}");
        if is(&name, &["fair-queue", "fair-leave"]) {
            assert!(saw("queued"), "{name}");
        }
        assert_eq!(saw("left_queue"), is(&name, &["fair-leave"]), "{name}");
    }
}

#[test]
fn other_synchronizers_yield_no_events() {
    let others = ["semaphore", "permit-semaphore", "latch", "rate-limiter", "map-and-friends"];
    for (name, Recording { events, counts, .. }) in recordings() {
        if is(&name, &others) {
            assert!(events.is_empty() && counts.lock == 0, "{name}: {counts:?}");
        }
        if is(&name, &["group-multi"]) {
            assert!(events.is_empty(), "{name}");
        }
    }
}
