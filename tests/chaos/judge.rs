//! The judge, which finds broken rules in a history. It knows the agent only by its replies to the workers.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::history::{Event, What};

const SECOND: u64 = 1_000_000_000;
/// Two requests further apart than this reach the queue of a fair lock in the order in which they were sent.
const QUEUED: u64 = 2 * SECOND;
/// The time after a fault during which the queue may still lose places of dead waiters.
const SETTLED: u64 = 20 * SECOND;

/// The time after the end of a validity within which a loss must be read: agents and workers of a busy machine may not run
/// for more than a second.
const REPORTED: u64 = 3 * SECOND;

/// The time that a grant may take from Redis to its worker: the worker may read it after Redis has lost the data.
const DELIVERED: u64 = 2 * SECOND;

/// A grant and its end.
#[derive(Debug, Clone)]
struct Hold {
    worker: u32,
    lock: String,
    kind: String,
    holder: String,
    token: Option<i64>,
    asked: u64,
    from: u64,
    /// The end of the validity that the worker received last.
    until: u64,
    /// The instant at which the worker stopped relying on the hold, if it did.
    ended: Option<u64>,
    lost: bool,
}

impl Hold {
    fn end(&self) -> u64 {
        self.ended.map_or(self.until, |ended| ended.min(self.until))
    }
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) rule: &'static str,
    pub(crate) at: u64,
    pub(crate) text: String,
}

/// A row of the table: a kind of fault.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) times: u64,
    pub(crate) grants: u64,
    pub(crate) overlaps: u64,
    /// The longest time from the end of a validity to the report of the loss.
    pub(crate) worst_loss_ms: u64,
    /// The longest time from the end of the fault to the next grant of any lock.
    pub(crate) worst_serve_ms: u64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Verdict {
    pub(crate) grants: usize,
    pub(crate) findings: Vec<Finding>,
    /// Overlaps with a hold that was lost together with Redis's data.
    pub(crate) after_data_loss: Vec<Finding>,
    /// The holds that resumed sessions took over.
    pub(crate) resumed: usize,
    /// The number of times that each rule was applied; a rule that was never applied proves nothing.
    pub(crate) applied: BTreeMap<&'static str, usize>,
    pub(crate) faults: BTreeMap<String, Row>,
}

impl Verdict {
    /// Adds the number of times that a rule was applied, and its findings.
    fn rule(&mut self, rule: &'static str, applied: usize, found: Vec<Finding>) {
        *self.applied.entry(rule).or_default() += applied;
        self.findings.extend(found);
    }
}

pub(crate) fn judge(events: &[Event]) -> Verdict {
    let (holds, late) = holds(events);
    let mut verdict = Verdict { grants: holds.len(), ..Verdict::default() };
    let lost_between = |lock: &str, a: u64, b: u64| {
        losses(events, lock).any(|(from, to)| a <= to + DELIVERED && from <= b)
    };
    let mut by_lock: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in &holds {
        by_lock.entry(&hold.lock).or_default().push(hold);
    }
    for (lock, holds) in by_lock {
        let holds = &holds;
        verdict.rule("exclusion", holds.len().saturating_sub(1), Vec::new());
        for overlap in overlaps(holds) {
            let (first, second) = overlap;
            let rule = if first.lost { "loss reported late" } else { "exclusion" };
            let found = finding(rule, second.from, first, second);
            if lost_between(lock, first.from, second.from) {
                verdict.after_data_loss.push(found);
            } else {
                verdict.findings.push(found);
            }
        }
        let (applied, found) = tokens(holds);
        verdict.rule("token order", applied, found);
        let (applied, found) = fair_order(holds, events);
        verdict.rule("fair order", applied, found);
    }
    verdict.resumed = events.iter().map(resumed).sum();
    let mut used = HashMap::new();
    let mut found = Vec::new();
    for hold in &holds {
        if let Some(before) = used.insert((&hold.lock, &hold.holder), hold) {
            found.push(finding("number used twice", hold.from, before, hold));
        }
    }
    verdict.rule("number used twice", holds.len(), found);
    let (applied, found) = losses_after_the_end(events, &late);
    verdict.rule("loss reported after the end", applied, found);
    after_heal(events, &holds, &mut verdict);
    verdict.faults = table(events, &holds, &late, &verdict.findings);
    verdict
}

fn resumed(event: &Event) -> usize {
    if let What::Resumed { holds } = event.what { holds } else { 0 }
}

fn finding(rule: &'static str, at: u64, first: &Hold, second: &Hold) -> Finding {
    let of = |hold: &Hold| {
        let Hold { worker, kind, holder, token, from, .. } = hold;
        format!("worker {worker} ({kind}, {holder}, token {token:?}, {from} to {})", hold.end())
    };
    Finding { rule, at, text: format!("{}: {}, {}", second.lock, of(first), of(second)) }
}

/// Returns the holds in the order of their grants, and the instant and delay of each loss report.
fn holds(events: &[Event]) -> (Vec<Hold>, Vec<(u64, u64)>) {
    let mut holds: Vec<Hold> = Vec::new();
    let mut open: HashMap<(u32, String), usize> = HashMap::new();
    let mut late = Vec::new();
    for Event { at, worker, what } in events {
        let key = |lock: &String| (*worker, lock.clone());
        match what {
            What::Grant { lock, kind, holder, token, until, asked } => {
                open.insert(key(lock), holds.len());
                holds.push(Hold {
                    worker: *worker,
                    lock: lock.clone(),
                    kind: kind.clone(),
                    holder: holder.clone(),
                    token: *token,
                    asked: *asked,
                    from: *at,
                    until: *until,
                    ended: None,
                    lost: false,
                });
            }
            What::Valid { lock, until } => {
                if let Some(&i) = open.get(&key(lock)) {
                    holds[i].until = holds[i].until.max(*until);
                }
            }
            What::Lost { lock, .. } => {
                if let Some(i) = open.remove(&key(lock)) {
                    holds[i].ended = Some(*at);
                    holds[i].lost = true;
                    late.push((*at, at.saturating_sub(holds[i].until)));
                }
            }
            What::Releasing { lock } => {
                if let Some(i) = open.remove(&key(lock)) {
                    holds[i].ended = Some(*at);
                }
            }
            What::Disconnected => end_all(&mut open, &mut holds, *worker, *at),
            What::Killed { victim } | What::Ended { victim, .. } => {
                end_all(&mut open, &mut holds, *victim, *at);
            }
            What::Resumed { .. }
            | What::Fault { .. }
            | What::Healed { .. }
            | What::LeftOver { .. } => {}
        }
    }
    (holds, late)
}

fn end_all(open: &mut HashMap<(u32, String), usize>, holds: &mut [Hold], worker: u32, at: u64) {
    open.retain(|(of, _), i| {
        if *of == worker {
            holds[*i].ended = Some(at);
        }
        *of != worker
    });
}

/// Returns pairs of holds of one lock that exclude each other and were relied on at the same time.
fn overlaps<'a>(holds: &[&'a Hold]) -> Vec<(&'a Hold, &'a Hold)> {
    let mut found = Vec::new();
    let mut current: Vec<&Hold> = Vec::new();
    for &hold in holds.iter().filter(|hold| hold.end() > hold.from) {
        current.retain(|before| before.end() > hold.from);
        let readers = |before: &&&Hold| before.kind == "read" && hold.kind == "read";
        found
            .extend(current.iter().filter(|before| !readers(before)).map(|before| (*before, hold)));
        current.push(hold);
    }
    found
}

/// Checks that a request sent after another's grant was read gets a greater token, even after a loss of data.
fn tokens(holds: &[&Hold]) -> (usize, Vec<Finding>) {
    let (mut applied, mut found) = (0, Vec::new());
    for (i, hold) in holds.iter().enumerate().filter(|(_, hold)| hold.token.is_some()) {
        let earlier = holds[..i].iter().filter(|b| b.from < hold.asked && b.token.is_some());
        let Some(before) = earlier.max_by_key(|before| before.token) else { continue };
        applied += 1;
        if before.token >= hold.token {
            found.push(finding("token order", hold.from, before, hold));
        }
    }
    (applied, found)
}

/// Checks fair locks without a fault nearby: no request may be granted before one that was sent much earlier.
fn fair_order(holds: &[&Hold], events: &[Event]) -> (usize, Vec<Finding>) {
    let (mut applied, mut found) = (0, Vec::new());
    for (i, first) in holds.iter().enumerate().filter(|(_, hold)| hold.kind == "fair") {
        if faults(events).any(|f| f.1 < first.from && f.2 + SETTLED > first.asked) {
            continue;
        }
        let later = |other: &&&Hold| other.asked > first.asked + QUEUED;
        applied += usize::from(holds.iter().any(|other| later(&other) && other.asked < first.from));
        if let Some(other) = holds[..i].iter().find(later) {
            found.push(finding("fair order", first.from, other, first));
        }
    }
    (applied, found)
}

/// Finds losses that were read well after the end of the validity, although neither agents nor workers were disturbed.
fn losses_after_the_end(events: &[Event], late: &[(u64, u64)]) -> (usize, Vec<Finding>) {
    let (mut applied, mut found) = (0, Vec::new());
    for &(at, delay) in late {
        let disturbing = |name: &str| name.starts_with("agent") || name.starts_with("worker");
        let from = at - delay;
        if faults(events).any(|f| disturbing(f.0) && f.1 < at && f.2 + SECOND > from) {
            continue;
        }
        applied += 1;
        if delay > REPORTED {
            let text = format!("a loss was read {} ms after the validity ended", delay / 1_000_000);
            found.push(Finding { rule: "loss reported after the end", at, text });
        }
    }
    (applied, found)
}

/// Adds findings that do not depend on pairs of holds, and locks that nobody was granted after the faults.
fn after_heal(events: &[Event], holds: &[Hold], verdict: &mut Verdict) {
    for Event { at, what, .. } in events {
        match what {
            What::Healed { locks } => {
                let later = holds.iter().filter(|hold| hold.from > *at);
                let served: HashSet<&str> = later.map(|hold| hold.lock.as_str()).collect();
                let missed = locks.iter().filter(|lock| !served.contains(lock.as_str()));
                let found = missed.map(|lock| {
                    let text = format!("{lock} was not granted after all faults were over");
                    Finding { rule: "liveness", at: *at, text }
                });
                verdict.rule("liveness", locks.len(), found.collect());
                verdict.rule("left over", locks.len(), Vec::new());
            }
            What::Ended { victim, log } => {
                let text = format!("worker {victim} ended by itself: {log}");
                verdict.findings.push(Finding { rule: "worker ended", at: *at, text });
            }
            What::LeftOver { key } => {
                let text = format!("{key} is still in Redis after all workers have ended");
                verdict.findings.push(Finding { rule: "left over", at: *at, text });
            }
            _ => {}
        }
    }
}

/// Returns the faults: name, start and end.
fn faults(events: &[Event]) -> impl Iterator<Item = (&str, u64, u64)> {
    events.iter().filter_map(|event| match &event.what {
        What::Fault { name, from, .. } => Some((name.as_str(), *from, event.at)),
        _ => None,
    })
}

/// Returns the start and end of each fault in which Redis lost the lock, or may have lost it.
fn losses<'a>(events: &'a [Event], of: &'a str) -> impl Iterator<Item = (u64, u64)> + 'a {
    events.iter().filter_map(move |event| match &event.what {
        What::Fault { from, data_lost: true, lock, .. }
            if lock.as_ref().is_none_or(|lock| lock == of) =>
        {
            Some((*from, event.at))
        }
        _ => None,
    })
}

/// Makes the table by kind of fault. Each fault accounts for the events from its start to the start of the next one.
fn table(
    events: &[Event],
    holds: &[Hold],
    late: &[(u64, u64)],
    findings: &[Finding],
) -> BTreeMap<String, Row> {
    let all: Vec<_> = faults(events).collect();
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for (i, &(name, from, to)) in all.iter().enumerate() {
        let next = all.get(i + 1).map_or(u64::MAX, |next| next.1);
        let span = from..next;
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let row = rows.entry(name.to_owned()).or_default();
        row.times += 1;
        row.grants += count(holds.iter().filter(|hold| span.contains(&hold.from)).count());
        let overlaps = ["exclusion", "loss reported late"];
        let doubled = findings.iter().filter(|f| overlaps.contains(&f.rule));
        row.overlaps += count(doubled.filter(|f| span.contains(&f.at)).count());
        let worst = late.iter().filter(|(at, _)| span.contains(at)).map(|(_, delay)| *delay);
        row.worst_loss_ms = row.worst_loss_ms.max(worst.max().unwrap_or(0) / 1_000_000);
        let served = holds.iter().filter(|hold| hold.from >= to).map(|hold| hold.from - to).min();
        row.worst_serve_ms = row.worst_serve_ms.max(served.unwrap_or(0) / 1_000_000);
    }
    rows
}

#[cfg(test)]
mod tests;
