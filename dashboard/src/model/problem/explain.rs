//! Evidence and next steps of problems, in words.

use std::sync::Arc;

use redisson::HolderId;

use super::{Case, Verdict, longest, stuck_limit};
use crate::clock::SteadyMillis;
use crate::model::types::{Certainty, Evidence, ProblemKind, ProblemView, Source};

/// Returns the problem for display, with its current evidence.
#[must_use]
pub fn explain(case: &Case<'_>, verdict: Verdict) -> ProblemView {
    ProblemView {
        problem: verdict.problem,
        certainty: verdict.certainty,
        since: verdict.since,
        evidence: evidence(case, verdict),
        advice: advice(case, verdict),
        cycle: match (verdict.problem, case.cycle) {
            (ProblemKind::Deadlock, Some(cycle)) => Arc::clone(&cycle.views),
            _ => Arc::default(),
        },
        acknowledged: None,
    }
}

fn evidence_of(at: SteadyMillis, source: Source, text: impl Into<String>) -> Evidence {
    Evidence { at, source: source.as_str(), text: text.into() }
}

fn read(at: SteadyMillis, text: impl Into<String>) -> Evidence {
    evidence_of(at, Source::Poll, text)
}

fn evidence(case: &Case<'_>, verdict: Verdict) -> Vec<Evidence> {
    let now = case.now.steady;
    match verdict.problem {
        ProblemKind::Leaked => leaked(case, verdict),
        ProblemKind::Stuck => stuck(case, verdict),
        ProblemKind::RenewalOverdue => {
            let (lease, ttl) = (case.renewed.unwrap_or_default(), case.ttl.unwrap_or_default());
            let text = format!(
                "{:.1} s left, although it is renewed to about {:.1} s each third of that time",
                ttl.as_secs_f64(),
                lease.as_secs_f64()
            );
            vec![read(now, text)]
        }
        ProblemKind::Expired => {
            let told = case
                .expired
                .map(|expired| evidence_of(expired.at.1, expired.source, &*expired.seen));
            told.into_iter().collect()
        }
        ProblemKind::Starving => starving(case, verdict),
        ProblemKind::Deadlock => deadlock(case),
        ProblemKind::Orphan => {
            let (what, who) = if case.left > 0 {
                (
                    format!(
                        "the lock is not there, and markers that {} of its readers left are",
                        case.left
                    ),
                    "them",
                )
            } else {
                let what = "the lock is not there, and the first in its queue is past its deadline";
                (what.to_owned(), "the queue")
            };
            let still = format!("still so; nobody has cleared {who} meanwhile");
            vec![read(verdict.since, what), read(now, still)]
        }
        ProblemKind::Malformed => vec![read(now, case.odd.unwrap_or_default())],
    }
}

fn leaked(case: &Case<'_>, verdict: Verdict) -> Vec<Evidence> {
    if let (Certainty::Suspected, Some(gone)) = (verdict.certainty, case.gone) {
        let left = match case.ttl {
            Some(ttl) => format!("it stays for another {} s", ttl.as_secs()),
            None => "it has no time to live".to_owned(),
        };
        return vec![
            evidence_of(gone.since, Source::Identity, &*gone.seen),
            read(case.now.steady, left),
        ];
    }
    vec![
        read(verdict.since, "read without a time to live"),
        read(case.now.steady, "read again, still without one"),
    ]
}

fn stuck(case: &Case<'_>, verdict: Verdict) -> Vec<Evidence> {
    let now = case.now.steady;
    let mut evidence = Vec::new();
    if let Some((id, count)) = case.holders.first() {
        let times = if *count == 1 { String::new() } else { format!(", {count} times over") };
        let text = format!("held by {id}{times}, not a change since");
        evidence.push(read(case.still_since.1, text));
    }
    if let Some(lease) = case.renewed {
        evidence
            .push(read(now, format!("renewed, to a lease of about {:.1} s", lease.as_secs_f64())));
    }
    let heard = match verdict.certainty {
        Certainty::Sure => "no release message in all that time",
        Certainty::Suspected if case.silent => {
            "a lock of this kind may be released without a message: it may have been freed and taken again"
        }
        Certainty::Suspected => {
            "release messages were not heard all that time: it may have been freed and taken again"
        }
    };
    evidence.push(evidence_of(now, Source::Channels, heard));
    if let (Some((limit, true)), Some(p99)) = (stuck_limit(case), case.typical) {
        let text = format!(
            "99 of 100 earlier holds lasted at most {:.1} s; beyond {} s is far from that",
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
        (Certainty::Sure, Some(waiter), _) => {
            evidence.push(evidence_of(
                waiter.since.at,
                waiter.source,
                format!("{} waits since", waiter.id),
            ));
        }
        (_, _, Some(subscribers)) => {
            let (count, verb) = match subscribers.count {
                1 => ("a connection".to_owned(), "listens"),
                n => (format!("{n} connections"), "listen"),
            };
            let text = format!("{count} {verb} for its release; some have been since");
            evidence.push(evidence_of(subscribers.since.1, Source::Subscribers, text));
        }
        _ => {}
    }
    evidence.push(match case.holders.first() {
        Some((id, _)) => read(case.still_since.1, format!("held by {id}, not a change since")),
        None => {
            read(case.now.steady, "nobody holds it: whoever is first in its queue does not take it")
        }
    });
    evidence
}

fn deadlock(case: &Case<'_>) -> Vec<Evidence> {
    let waits = case.cycle.iter().flat_map(|cycle| &cycle.waits);
    let text = |wait: &crate::model::deadlock::Wait| {
        // An agent's holds and waits have ids of their own: the process shows who is the same.
        let place = wait.place.as_ref().map_or_else(String::new, |place| format!(" ({place})"));
        format!("{}{place} waits for {}, which {} holds", wait.waiter, wait.lock.1, wait.holder)
    };
    waits.map(|wait| read(case.now.steady, text(wait))).collect()
}

/// Describes how to find the process and the thread behind a holder.
fn find(case: &Case<'_>, holder: &HolderId) -> String {
    let identity = case.identity(holder);
    if let Some((identity, words)) = identity.and_then(|known| Some((known, known.words()?))) {
        let java = identity.pid.filter(|_| identity.comm.as_deref() == Some("java"));
        return match java {
            Some(pid) => format!(
                "Its agent says that it is {words}: `jcmd {pid} Thread.print` there shows its threads."
            ),
            None => format!("Its agent says that it is {words}."),
        };
    }
    if holder.looks_like_agent() {
        format!(
            "Its number is one that agents draw: on the host whose lockscope-agent logs the id {} at its start, LOCKS on the agent's socket shows the worker's process.",
            holder.client
        )
    } else {
        format!(
            "Find the process whose Redisson client has the id {}, and look at its thread {}: `jcmd <pid> Thread.print` shows it as #{}.",
            holder.client, holder.thread, holder.thread
        )
    }
}

/// Returns the next step, with the current knowledge about the holder.
#[must_use]
pub fn advice(case: &Case<'_>, verdict: Verdict) -> String {
    let found = case.holders.first().map(|(holder, _)| find(case, holder)).unwrap_or_default();
    match verdict.problem {
        ProblemKind::Leaked if case.ttl.is_some() => format!(
            "Its holder seems to be gone, so that nobody will release it before its lease ends. {found} If that process is gone, the lock can be released by force."
        ),
        ProblemKind::Leaked => format!(
            "It has no time to live, so it stays for ever unless its holder releases it. {found} If that process is gone, nobody will."
        ),
        ProblemKind::Stuck => format!(
            "Its process lives, since it renews the lock; the work under it does not end. {found}"
        ),
        ProblemKind::RenewalOverdue => format!(
            "Unless it is renewed at once the lock will be lost to others while its holder may still work. {found} A long pause of that process (garbage collection, a frozen host) or a broken way to Redis keeps renewals away."
        ),
        ProblemKind::Expired => {
            let holder = case.expired.map(|expired| find(case, &expired.holder)).unwrap_or_default();
            format!(
                "The holder meant to keep the lock, and may have worked on without it: what it does must be checked for damage by two at once. {holder} If that process has died, this is how its lock was freed."
            )
        }
        ProblemKind::Starving => {
            let who = longest(case).map(|waiter| find(case, &waiter.id)).unwrap_or_default();
            match case.holders.is_empty() {
                true => format!(
                    "The lock is free, but the first in its queue has not taken it; the others must wait until its deadline has passed. {who}"
                ),
                false => format!("Others wait for a holder that does not let go. {found}"),
            }
        }
        ProblemKind::Deadlock => format!(
            "These threads wait for one another and none of them can go on: one must be ended, or its lock released by force. {found}"
        ),
        ProblemKind::Orphan if case.left > 0 => "The lock was deleted under its readers: by force, or by hand. What is left of them, keys named after the lock in braces with `rwlock_timeout` in them, costs memory; those without a time to live stay until somebody deletes them.".to_owned(),
        ProblemKind::Orphan => "Whoever queued is gone, and nobody has asked for the lock since. The leftovers cost memory, and the next one to come removes them; a key of the queue without a time to live stays until then.".to_owned(),
        ProblemKind::Malformed => format!(
            "Something wrote to the lock's hash that is no lock of this kind: two kinds of lock under one name, or another program's key. {found}"
        ),
    }
}
