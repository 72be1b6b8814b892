//! The sentences of problems: evidence and next steps.

use std::sync::Arc;

use super::{APART, Case, Verdict, longest, stuck_limit};
use crate::clock::SteadyMillis;
use crate::model::types::{
    Certainty, Evidence, HolderField, ProblemKind, ProblemView, Source, Verification, WaitView,
};
use crate::model::waiting::Waiter;
use crate::text::{code, shown_name};

/// Returns the problem for display, with its current evidence.
#[must_use]
pub fn explain(case: &Case<'_>, verdict: Verdict) -> ProblemView {
    ProblemView {
        problem: verdict.problem,
        certainty: verdict.certainty,
        since: verdict.since,
        evidence: evidence(case, verdict),
        advice: advice(case, verdict),
        cycle: cycle(case, verdict),
        times: times(case, verdict.problem),
        acknowledged: None,
    }
}

/// Returns a known problem in its current state: the identity of a holder may have become known, a queue moves on, and a
/// hash or a deadlock changes. Its evidence is retained as long as it is true.
#[must_use]
pub fn update(case: &Case<'_>, known: &ProblemView, verdict: Verdict) -> ProblemView {
    use ProblemKind::{Deadlock, Malformed, Orphan, Starving};
    let mut problem = ProblemView { advice: advice(case, verdict), ..known.clone() };
    if matches!(verdict.problem, Deadlock | Malformed | Orphan | Starving) {
        let now = evidence(case, Verdict { since: known.since, ..verdict });
        if !now.iter().map(|one| &one.text).eq(known.evidence.iter().map(|one| &one.text)) {
            (problem.evidence, problem.cycle) = (now, cycle(case, verdict));
        }
    }
    problem
}

/// Returns the number of occurrences that are combined into one problem.
#[must_use]
pub fn times(case: &Case<'_>, problem: ProblemKind) -> u32 {
    let times = match problem {
        ProblemKind::RenewalOverdue => case.overdue.map(|overdue| overdue.times),
        ProblemKind::Expired => case.expired.map(|expired| expired.times),
        _ => None,
    };
    times.unwrap_or(1)
}

/// Returns the waits of a deadlock, or none for another problem.
fn cycle(case: &Case<'_>, verdict: Verdict) -> Arc<[WaitView]> {
    match (verdict.problem, case.cycle) {
        (ProblemKind::Deadlock, Some(cycle)) => Arc::clone(&cycle.views),
        _ => Arc::default(),
    }
}

fn evidence_of(at: SteadyMillis, source: Source, text: impl Into<String>) -> Evidence {
    Evidence { at, source: source.as_str(), text: text.into() }
}

fn read(at: SteadyMillis, text: impl Into<String>) -> Evidence {
    evidence_of(at, Source::Poll, text)
}

fn evidence(case: &Case<'_>, verdict: Verdict) -> Vec<Evidence> {
    let now = case.now.steady();
    match verdict.problem {
        ProblemKind::Leaked => leaked(case, verdict),
        ProblemKind::Stuck => stuck(case, verdict),
        ProblemKind::RenewalOverdue => {
            let lease = case.renewed.unwrap_or_default();
            let (ttl, times) = case.overdue.map_or((lease, 1), |late| (late.ttl, late.times));
            let left = format!(
                "{:.1} s left of a lease of about {:.1} s",
                ttl.as_secs_f64(),
                lease.as_secs_f64()
            );
            let text = match times {
                1 => format!("{left}: its watchdog has missed a renewal"),
                _ => format!(
                    "its watchdog has missed a renewal {times} times, the latest with {left}"
                ),
            };
            vec![read(now, text)]
        }
        ProblemKind::Expired => {
            let Some(expired) = case.expired else { return Vec::new() };
            let (at, source) = (expired.at.steady(), expired.source);
            let latest = evidence_of(at, source, &*expired.evidence);
            let times = expired.times;
            let first = (times > 1).then(|| {
                let first = format!("the first of {times} holds whose lease expired");
                evidence_of(verdict.since, source, first)
            });
            first.into_iter().chain([latest]).collect()
        }
        ProblemKind::Starving => starving(case, verdict),
        ProblemKind::Deadlock => deadlock(case),
        ProblemKind::Orphan if !case.holders.is_empty() => {
            let what = match case.holders.len() {
                1 => "its only reader is gone: the reader's marker has expired".to_owned(),
                readers => {
                    format!("all of its {readers} readers are gone: their markers have expired")
                }
            };
            let still = "unchanged: the lock exists, and no reader has a marker";
            vec![read(verdict.since, what), read(now, still)]
        }
        ProblemKind::Orphan => {
            let (what, leftovers) = if case.orphaned_readers > 0 {
                (
                    format!(
                        "the lock does not exist, but markers of {} of its readers do",
                        case.orphaned_readers
                    ),
                    "markers",
                )
            } else {
                let head = case.dead_head.map_or_else(
                    || "the first entry of its queue is past its deadline".to_owned(),
                    |head| dead_head(&head),
                );
                (format!("the lock does not exist, and {head}"), "queue")
            };
            let still = format!("unchanged: no client has removed the {leftovers}");
            vec![read(verdict.since, what), read(now, still)]
        }
        ProblemKind::Malformed => vec![read(now, case.malformed.unwrap_or_default())],
    }
}

fn leaked(case: &Case<'_>, verdict: Verdict) -> Vec<Evidence> {
    if let (Certainty::Suspected, Some((id, gone))) = (verdict.certainty, case.gone) {
        let left = match case.ttl {
            Some(ttl) => format!("its lease lasts another {} s", ttl.as_secs()),
            None => "it has no TTL".to_owned(),
        };
        return vec![
            evidence_of(
                gone.since,
                Source::Identity,
                format!("{id} appears to be gone: {}", gone.evidence),
            ),
            read(case.now.steady(), left),
        ];
    }
    let mut evidence = vec![
        read(verdict.since, "read without a TTL"),
        read(case.now.steady(), "read again, still without a TTL"),
    ];
    if !case.confirmed {
        let form = "it looks exactly like a Redisson lock, but so far nothing else shows that it is one: no waiter, no \
                    message and no script for it was seen";
        evidence.push(read(case.now.steady(), form));
    }
    evidence
}

fn stuck(case: &Case<'_>, verdict: Verdict) -> Vec<Evidence> {
    let now = case.now.steady();
    let mut evidence = Vec::new();
    if let Some((id, count)) = case.holders.first() {
        let count = if *count == 1 { String::new() } else { format!(" (count {count})") };
        let text = format!("held by {id}{count}, unchanged since then");
        evidence.push(read(case.unchanged_since.steady(), text));
    }
    if let Some(lease) = case.renewed {
        evidence
            .push(read(now, format!("renewed to a lease of about {:.1} s", lease.as_secs_f64())));
    }
    let (source, releases) = match verdict.certainty {
        Certainty::Certain => (Source::Channels, "no release message since then"),
        Certainty::Suspected if case.may_release_silently => (
            Source::Channels,
            "a lock of this kind can be released without a message: it may have been released and acquired again",
        ),
        Certainty::Suspected if case.may_be_another_hold() => (
            Source::Poll,
            "its lease was set again sooner or later than a watchdog does: it may have been released without a message, as a spin lock is, and acquired again",
        ),
        Certainty::Suspected => (
            Source::Channels,
            "release messages were not received all that time: it may have been released and acquired again",
        ),
    };
    evidence.push(evidence_of(now, source, releases));
    if let (Some((limit, true)), Some(p99)) = (stuck_limit(&case.rule, case.typical), case.typical)
    {
        let text = format!(
            "99 of 100 earlier holds lasted at most {:.1} s; this one has lasted more than {} s",
            p99.as_secs_f64(),
            limit.as_secs()
        );
        evidence.push(read(now, text));
    }
    evidence
}

fn starving(case: &Case<'_>, verdict: Verdict) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    match (verdict.certainty, longest(case), case.subscribers) {
        (Certainty::Certain, Some(waiter), _) => {
            evidence.push(evidence_of(
                waiter.since.at,
                waiter.source,
                format!("{} has been waiting since then", waiter.id),
            ));
        }
        (_, _, Some(subscribers)) => {
            let text = match subscribers.count.sum() {
                1 => "one connection has been waiting for its release since then".to_owned(),
                n => format!("{n} connections wait for its release, at least one since then"),
            };
            evidence.push(evidence_of(subscribers.since.steady(), Source::Subscribers, text));
        }
        _ => {}
    }
    evidence.push(match case.holders.first() {
        Some((id, _)) => {
            read(case.unchanged_since.steady(), format!("held by {id}, unchanged since then"))
        }
        None => {
            let head = case.dead_head.map_or_else(
                || "the first in its queue has not acquired it".to_owned(),
                |head| dead_head(&head),
            );
            read(case.now.steady(), format!("nobody holds it, but {head}"))
        }
    });
    evidence
}

/// Describes the dead first waiter of a queue.
fn dead_head(head: &Waiter) -> String {
    let why = if head.gone {
        "is dead: its client is gone, and nobody will claim its turn"
    } else {
        "is dead: its deadline has passed"
    };
    format!("the first in its queue, {}, {why}", head.id)
}

fn deadlock(case: &Case<'_>) -> Vec<Evidence> {
    let waits = case.cycle.iter().flat_map(|cycle| &cycle.waits);
    let text = |wait: &crate::model::deadlock::Wait| {
        // Each hold and wait of an agent has a different id, so only the process shows which of them belong together.
        let process = wait.process.as_ref().map_or_else(String::new, |text| format!(" ({text})"));
        let name = code(&shown_name(&wait.lock.1));
        format!("{}{process} waits for {name}, held by {}", wait.waiter, wait.holder)
    };
    waits.map(|wait| read(case.now.steady(), text(wait))).collect()
}

/// Describes how to find the process and the thread behind a holder.
fn locate(case: &Case<'_>, holder: &HolderField) -> String {
    let HolderField::Id(holder) = holder else {
        let field = code(&holder.to_string());
        return format!(
            "Its holder {field} belongs to an unknown client: find the program that writes such ids."
        );
    };
    let identity = case.identity(holder);
    if let Some((identity, process)) =
        identity.and_then(|identity| Some((identity, identity.process()?)))
    {
        let source = match identity.verification {
            Verification::Unchecked => "According to its agent it is",
            Verification::Verified(_) => "According to its agent (verified) it is",
            Verification::Claimed(_) => "An entry in Redis claims, unverified, that it is",
        };
        let java = identity.pid.filter(|_| identity.comm.as_deref() == Some("java"));
        return match java {
            Some(pid) => format!(
                "{source} {process}; run `jcmd {pid} Thread.print` there to see its threads."
            ),
            None => format!("{source} {process}."),
        };
    }
    if holder.looks_like_agent() {
        format!(
            "It is a worker of an agent: on the host whose lockscope-agent logs the id {} at startup, LOCKS on the agent's socket shows the worker's process.",
            holder.client
        )
    } else {
        format!(
            "Find the process whose Redisson client has the id {} and inspect its thread {}: `jcmd <pid> Thread.print` lists it as #{}.",
            holder.client, holder.thread, holder.thread
        )
    }
}

/// Returns the next step, with the current knowledge about the holder.
fn advice(case: &Case<'_>, verdict: Verdict) -> String {
    if let (ProblemKind::Leaked, Some((gone, _))) = (verdict.problem, case.gone)
        && case.holders.len() > 1
    {
        return format!(
            "One of its {} holders, {gone}, appears to be gone. {} If that process is dead, release only that hold by force, not the whole lock: the others may be working.",
            case.holders.len(),
            locate(case, &(*gone).into())
        );
    }
    let found = case.holders.first().map(|(holder, _)| locate(case, holder)).unwrap_or_default();
    match verdict.problem {
        ProblemKind::Leaked if case.ttl.is_some() => format!(
            "Its holder appears to be gone, so the lock stays taken until its lease expires. {found} If that process is dead, release the lock by force."
        ),
        ProblemKind::Leaked if !case.confirmed => format!(
            "If this key is a lock, it will never expire, and clients that request it wait forever. {found} If that process is dead or has never existed, release the lock by force. If the key belongs to another program, acknowledge the problem."
        ),
        ProblemKind::Leaked => format!(
            "It has no TTL and will never expire. {found} If that process is dead, release the lock by force."
        ),
        ProblemKind::Stuck if case.holders.iter().any(|(holder, _)| holder.looks_like_agent()) => format!(
            "The holder's agent renews the lock, but the worker has not released it. {found} `lockctl ls` on that host shows whether the worker's process is stopped. Take a stack trace before you stop it. Stopping it frees the lock at once, or after the grace of its session, which `lockctl kick` ends."
        ),
        ProblemKind::Stuck => format!(
            "The holder is alive and still renewing, but has not released the lock. {found} Take a thread dump before you stop it; stopping it frees the lock within its lease."
        ),
        ProblemKind::RenewalOverdue if times(case, verdict.problem) > 1 => format!(
            "Each of its late renewals may be one too late: then the lock expires, and others can acquire it while its holder may still be working. {found} Check that process for long pauses (garbage collection, a frozen host) and for a slow connection to Redis."
        ),
        ProblemKind::RenewalOverdue => format!(
            "Unless it is renewed soon, the lock expires and others can acquire it while its holder may still be working. {found} Check that process for a long pause (garbage collection, a frozen host) and for a broken connection to Redis."
        ),
        ProblemKind::Expired => {
            let holder = case.expired.and_then(|expired| expired.holder.as_ref());
            let holder = holder.map(|holder| locate(case, holder)).unwrap_or_default();
            let certain = case.expired.is_some_and(|expired| expired.certainty == Certainty::Certain);
            let freed = match certain {
                true => "",
                false => " If that process died, the expiry is how its lock was freed.",
            };
            format!(
                "The holder meant to keep the lock and may have continued without it: check its work for damage by concurrent access. {holder}{freed}"
            )
        }
        ProblemKind::Starving => {
            let waiter = longest(case).map(|waiter| locate(case, &waiter.id.into())).unwrap_or_default();
            let held_for = case.now.received.since(case.unchanged_since);
            match case.holders.is_empty() {
                true if case.dead_head.is_some() => format!(
                    "The lock is free, but the others wait until the deadline of the first in its queue, which is dead. `lockctl unlock --force --holder none` on the host of an agent removes it. {waiter}"
                ),
                true => format!(
                    "The lock is free, but the first in its queue has not acquired it; the others wait until its deadline has passed. {waiter}"
                ),
                false if case.rule.starving_after.is_some_and(|limit| held_for <= limit) => "The lock seems to change hands: its present holder acquired it a short while ago. A release would not help then. Hold the lock for less time, or lock something smaller; a fair lock serves its waiters in order.".to_owned(),
                false => format!("Others wait for a holder that does not release the lock. {found} Take a stack trace of the holder's process, then stop it; or release the lock by force."),
            }
        }
        ProblemKind::Deadlock => format!(
            "These threads wait for one another, and none can continue: stop one of them, or release its lock by force. {found}"
        ),
        ProblemKind::Orphan if !case.holders.is_empty() => "Nobody holds it, but writers are refused until its TTL ends or a new reader releases it. If that is too late, release it by force.".to_owned(),
        ProblemKind::Orphan if case.orphaned_readers > 0 => "The lock was deleted or ran out while readers held it. Their markers, keys named after the lock in braces with `rwlock_timeout` in them, take up memory; delete those without a TTL, which never expire.".to_owned(),
        ProblemKind::Orphan if longest(case).is_none() => "Its waiters are gone, and no client has requested the lock since. The leftovers only take up memory: the next client that requests the lock removes them after their deadlines; `lockctl unlock --force --holder none` on the host of an agent removes them at once.".to_owned(),
        ProblemKind::Orphan if case.dead_head.is_some_and(|head| head.gone) => "The first in its queue is dead and delays the others until its deadline, which may be far away. `lockctl unlock --force --holder none` on the host of an agent removes it and wakes the next one.".to_owned(),
        ProblemKind::Orphan => "The first in its queue is dead: its deadline has passed. The next client that requests the lock removes it; until then those behind it wait. `lockctl unlock --force --holder none` on the host of an agent removes it and wakes the next one.".to_owned(),
        ProblemKind::Malformed if case.malformed == Some(APART) => format!(
            "In a cluster clients fail on such a name, or are not woken by a release: balance the braces of the name, or remove them. {found}"
        ),
        ProblemKind::Malformed => format!(
            "No client library writes a hash like this: two kinds of lock share the name, or another program uses the key. A forced release deletes the whole hash, fields of other programs included: ask their owner first. {found}"
        ),
    }
}
