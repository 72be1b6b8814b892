//! The judgement of locks and their leftovers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use redisson::{ClientId, HolderId, LockName};
use serde::Serialize;

use super::finding::{Finding, FindingId, Severity, Subject};
use super::shown::{amount, bytes, count, counted, duration};
use super::survey::{GAP, LONG, Leftover, Lock, Survey};
use crate::clock::millis;
use crate::model::types::{Certainty, Marker, Queue, Token};
use crate::text::{shown_name, visible};

/// The number of holders that a sentence names.
const NAMED: usize = 3;

/// The state of a holder in the holder registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// The agent publishes the holder, with a description of its process.
    Published(Option<String>),
    /// The agent publishes itself, but not this holder.
    Unpublished,
    /// The agent published itself within the last day, and does not now.
    AgentGone,
}

/// Knowledge about holders from outside one database.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub standing: HashMap<HolderId, Standing>,
    /// The number of locks with a time to live that each client holds. The client was alive when it acquired or renewed
    /// them.
    pub active: HashMap<ClientId, u64>,
}

impl Holders {
    pub(super) fn count_active(&mut self, survey: &Survey) {
        for lock in survey.locks.values().filter(|lock| lock.ttl.is_some()) {
            let clients: BTreeSet<ClientId> =
                lock.hash.holders.iter().map(|holder| holder.id.client).collect();
            for client in clients {
                *self.active.entry(client).or_default() += 1;
            }
        }
    }

    /// Returns the facts other than a time to live that prove that this hash is a lock.
    fn proofs(&self, lock: &Lock) -> Vec<String> {
        let mut proofs = Vec::new();
        if let Some(queue) = &lock.companions.queue {
            proofs.push(format!("its queue has {}", amount(queue.len, "entry", "entries")));
        }
        if let Token::Value(token) = lock.companions.token {
            proofs.push(format!("its fencing token is {token}"));
        }
        if lock.companions.markers.iter().any(|(_, marker)| *marker != Marker::Missing) {
            proofs.push("its readers have markers".to_owned());
        }
        if lock.subscribers > 0 {
            let listen = amount(lock.subscribers, "connection waits", "connections wait");
            proofs.push(format!("{listen} for its release"));
        }
        for holder in &lock.hash.holders {
            if let Some(Standing::Published(_) | Standing::Unpublished) =
                self.standing.get(&holder.id)
            {
                proofs.push("its holder's agent is in the holder registry".to_owned());
                break;
            }
        }
        let client = lock
            .hash
            .holders
            .iter()
            .find_map(|holder| Some((holder.id.client, self.active.get(&holder.id.client)?)));
        if let Some((client, others)) = client {
            let others = counted(*others, "lock");
            proofs.push(format!("its client {client} also holds {others} with a TTL"));
        }
        proofs
    }

    /// Describes the process behind the holders, as far as known.
    fn process(&self, lock: &Lock) -> Option<String> {
        lock.hash.holders.iter().find_map(|holder| match self.standing.get(&holder.id)? {
            Standing::Published(Some(process)) => Some(format!("its agent reports {process}")),
            Standing::Published(None) => Some("its agent reports its holder".to_owned()),
            Standing::Unpublished => {
                Some("its agent is alive and reports no such holder".to_owned())
            }
            Standing::AgentGone if holder.id.looks_like_agent() => {
                Some("its agent is not in the holder registry".to_owned())
            }
            Standing::AgentGone => None,
        })
    }

    fn is_gone(&self, lock: &Lock) -> bool {
        let gone = |id: &HolderId| {
            id.looks_like_agent()
                && matches!(
                    self.standing.get(id),
                    Some(Standing::AgentGone | Standing::Unpublished)
                )
        };
        !lock.hash.holders.is_empty() && lock.hash.holders.iter().all(|holder| gone(&holder.id))
    }
}

/// Returns the locks that a second reading may find to be sound.
pub(super) fn suspects(survey: &Survey, clock: u64) -> Vec<LockName> {
    let locks = survey.locks.iter().filter(|(_, lock)| {
        let long_held_by_agent = lock.ttl.is_some_and(|ttl| ttl > LONG)
            && lock.hash.holders.iter().any(|holder| holder.id.looks_like_agent());
        lock.ttl.is_none()
            || lock.hash.malformed().is_some()
            || long_held_by_agent
            || lock.companions.queue.as_ref().is_some_and(|queue| is_dead(queue, clock))
    });
    let queues = survey.queues.iter().filter(|(_, queue)| is_dead(queue, clock));
    locks.map(|(name, _)| name).chain(queues.map(|(name, _)| name)).cloned().collect()
}

/// Returns whether the first waiter is past its deadline, or all waiters if the queue itself is gone or was only
/// counted.
fn is_dead(queue: &Queue, clock: u64) -> bool {
    match queue.front.first() {
        // Redisson never removes an entry without a deadline: its clean-up stops there.
        Some(entry) => match entry.deadline {
            None => queue.deadlines == 0,
            Some(deadline) => deadline < clock,
        },
        None => queue.passed > 0 && queue.passed == queue.deadlines,
    }
}

/// Returns the findings about one database. Only `suspects` were read twice. A lock that is not among them is new.
pub(super) fn judge(
    survey: &Survey,
    suspects: &BTreeSet<LockName>,
    holders: &Holders,
    subject: &Subject,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in suspects {
        if let Some(lock) = survey.locks.get(name) {
            findings.extend(leaked(name, lock, holders, subject));
            findings.extend(malformed(name, lock, holders, subject));
            findings.extend(dead_waiter(name, lock, survey.clock, subject));
        } else if let Some(queue) = survey.queues.get(name) {
            findings.extend(orphaned_queue(name, queue, survey.clock, subject));
        }
    }
    findings.extend(survey.leftovers.iter().filter_map(|left| leftover(left, subject)));
    let idle = survey.tokens.iter().filter(|name| !survey.locks.contains_key(*name)).count();
    if idle > 0 {
        let idle = counted(to_u64(idle), "fencing token");
        findings.push(Finding::new(
            FindingId::Tokens,
            Severity::Note,
            subject,
            format!("{idle} of locks that are not held now: tokens outlive their locks so that they only grow."),
            "Keep them. Delete the token of a lock only if its name is never used again.",
        ));
    }
    if survey.moving > 0 {
        findings.push(Finding::new(
            FindingId::Incomplete,
            Severity::Warning,
            subject,
            format!(
                "{} not read: their slot is moving to another node.",
                amount(survey.moving, "key was", "keys were")
            ),
            "Run this again once the slots have moved.",
        ));
    }
    if let Some(reason) = &survey.incomplete {
        findings.push(Finding::new(
            FindingId::Incomplete,
            Severity::Warning,
            subject,
            format!("The pass ended early: {reason}. There may be more locks."),
            "Raise that limit, or look at fewer keys with `--scan-match PATTERN`.",
        ));
    }
    findings
}

fn leaked(name: &LockName, lock: &Lock, holders: &Holders, subject: &Subject) -> Option<Finding> {
    let (certainty, lasts, proof) = match lock.ttl {
        None => {
            let proofs = holders.proofs(lock);
            if proofs.is_empty() && lock.hash.malformed().is_some() {
                return Some(look_alike(name, lock, subject));
            }
            let lasts = format!("no TTL in two readings {} s apart", GAP.as_secs());
            match proofs.is_empty() {
                true => (
                    Certainty::Suspected,
                    lasts,
                    "nothing but its shape proves that it is a lock".to_owned(),
                ),
                false => {
                    (Certainty::Certain, lasts, format!("it is a lock: {}", proofs.join(", ")))
                }
            }
        }
        Some(ttl) if ttl > LONG && holders.is_gone(lock) => {
            let lasts = format!("its lease lasts another {}", duration(ttl));
            (Certainty::Suspected, lasts, "nobody is left to release it".to_owned())
        }
        Some(_) => return None,
    };
    let mut facts = vec![format!("held by {}", holders_of(lock)), lasts, proof];
    facts.extend(holders.process(lock));
    facts.extend(lock.idle.map(|idle| format!("last used {} ago", duration(idle))));
    facts.extend(lock.bytes.map(bytes));
    let look = look_at(name, subject);
    let (severity, next) = match (certainty, lock.ttl) {
        (Certainty::Certain, _) => (
            Severity::Problem,
            format!(
                "If its holder is dead, release it: docs/runbooks/leaked.md. Look first: `{look}`."
            ),
        ),
        (Certainty::Suspected, None) => (
            Severity::Warning,
            format!(
                "Find out what writes this key: `{look}`. If it is a lock whose holder is dead: docs/runbooks/leaked.md."
            ),
        ),
        (Certainty::Suspected, Some(_)) => (
            Severity::Warning,
            format!(
                "Look at its agent's host. If the worker is dead, release it: docs/runbooks/leaked.md. Look first: `{look}`."
            ),
        ),
    };
    let mut finding = about(FindingId::Leaked, severity, name, subject, sentence(&facts), next);
    finding.certainty = Some(certainty);
    Some(with_holders(finding, lock))
}

fn look_alike(name: &LockName, lock: &Lock, subject: &Subject) -> Finding {
    let why = lock.hash.malformed().unwrap_or_default();
    let evidence = format!(
        "Its fields look like a lock's ({}), it has no TTL, and no client writes such a lock: {}. It is probably an application's own hash.",
        holders_of(lock),
        visible(why.as_bytes())
    );
    let next = format!("Look at it: `{}`.", look_at(name, subject));
    with_holders(about(FindingId::LookAlike, Severity::Note, name, subject, evidence, next), lock)
}

fn malformed(
    name: &LockName,
    lock: &Lock,
    holders: &Holders,
    subject: &Subject,
) -> Option<Finding> {
    let why = lock.hash.malformed()?;
    if lock.ttl.is_none() && holders.proofs(lock).is_empty() {
        return None;
    }
    let evidence = format!(
        "No Redisson client writes such a lock: {}; held by {}.",
        visible(why.as_bytes()),
        holders_of(lock)
    );
    let next = format!(
        "Find out what else writes this key: `{}`, then docs/runbooks/malformed.md.",
        look_at(name, subject)
    );
    let mut finding = about(FindingId::Malformed, Severity::Problem, name, subject, evidence, next);
    finding.certainty = Some(Certainty::Certain);
    Some(with_holders(finding, lock))
}

fn dead_waiter(name: &LockName, lock: &Lock, clock: u64, subject: &Subject) -> Option<Finding> {
    let queue = lock.companions.queue.as_ref().filter(|queue| is_dead(queue, clock))?;
    let evidence = format!("{}; the lock is held by {}.", head(queue, clock), holders_of(lock));
    let next = "The next attempt on the lock removes it. If live waiters behind it stall: docs/runbooks/orphan.md.";
    let finding = about(FindingId::DeadWaiter, Severity::Warning, name, subject, evidence, next);
    Some(with_holders(finding, lock))
}

fn orphaned_queue(
    name: &LockName,
    queue: &Queue,
    clock: u64,
    subject: &Subject,
) -> Option<Finding> {
    if !is_dead(queue, clock) {
        return None;
    }
    let evidence = format!(
        "{}; the lock itself did not exist in two readings {} s apart.",
        head(queue, clock),
        GAP.as_secs()
    );
    let look = subject.command("LRANGE", &redisson::keys::queue(name), " 0 9");
    let next = format!("Look at its waiters: `{look}`. If none is alive: docs/runbooks/orphan.md.");
    Some(about(FindingId::Orphan, Severity::Warning, name, subject, evidence, next))
}

/// Describes the dead head of a queue.
fn head(queue: &Queue, clock: u64) -> String {
    let size = format!(
        "{}, {} of {} past",
        amount(queue.len, "entry", "entries"),
        count(queue.passed),
        counted(queue.deadlines, "deadline")
    );
    match queue.front.first() {
        Some(entry) => {
            let since = match entry.deadline {
                Some(deadline) => format!(
                    "has been past its deadline for {}",
                    duration(Duration::from_millis(clock.saturating_sub(deadline)))
                ),
                None => "has no deadline".to_owned(),
            };
            format!("The first waiter of its queue, {}, {since} ({size})", entry.id)
        }
        None => format!("Every waiter of its queue is past its deadline ({size})"),
    }
}

fn leftover(left: &Leftover, subject: &Subject) -> Option<Finding> {
    let evidence = match &left.reader {
        Some((_, reader)) => {
            let lasts = match left.ttl {
                None => "has no TTL".to_owned(),
                Some(ttl) => format!("lasts another {}", duration(ttl)),
            };
            format!(
                "The marker of the reader {reader} {lasts}, and that reader does not hold the lock."
            )
        }
        None if left.ttl.is_none() => {
            "The latch of an unlock has no TTL: the client that made it died between two commands."
                .to_owned()
        }
        None => return None,
    };
    let subject = subject.named(visible(&left.key));
    let remove = subject.command("DEL", &left.key, "");
    let next =
        format!("If its client is dead, remove the key: `{remove}`; docs/runbooks/orphan.md.");
    Some(Finding::new(FindingId::Orphan, Severity::Warning, &subject, evidence, next))
}

fn about(
    id: FindingId,
    severity: Severity,
    name: &LockName,
    subject: &Subject,
    evidence: String,
    next: impl Into<String>,
) -> Finding {
    Finding::new(id, severity, &subject.named(shown_name(name)), evidence, next)
}

fn with_holders(mut finding: Finding, lock: &Lock) -> Finding {
    finding.holders = holders(lock).map(|(id, _)| id).collect();
    finding
}

/// Returns the holders with their hold counts. Control characters in the ids of unknown clients are escaped.
fn holders(lock: &Lock) -> impl ExactSizeIterator<Item = (String, i64)> {
    lock.hash.holders_as_text().into_iter().map(|(id, count)| (visible(id.as_bytes()), count))
}

/// Names the first holders, with their hold counts if these are not 1.
fn holders_of(lock: &Lock) -> String {
    let more = holders(lock).len().saturating_sub(NAMED);
    let named = holders(lock).take(NAMED).map(|(id, count)| match count {
        1 => id,
        times => format!("{id} (count {times})"),
    });
    let mut named: Vec<String> = named.collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join(", ")
}

fn look_at(name: &LockName, subject: &Subject) -> String {
    subject.command("HGETALL", name.as_bytes(), "")
}

/// Joins facts into one sentence.
fn sentence(facts: &[String]) -> String {
    let mut sentence = facts.join("; ");
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    sentence.push('.');
    sentence
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// The locks of one database in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LockSummary {
    pub deployment: Arc<str>,
    pub server: Arc<str>,
    pub db: u32,
    pub keys: u64,
    pub locks: u64,
    pub by_kind: BTreeMap<&'static str, u64>,
    pub without_ttl: u64,
    pub longest_ttl: Option<LongestTtl>,
    /// The locks with the most waiters.
    pub contended: Vec<Contended>,
    /// False if the scan ended early.
    pub complete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LongestTtl {
    pub name: String,
    pub milliseconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Contended {
    pub name: String,
    pub kind: &'static str,
    /// The number of entries in its queue, or of connections that listen for its release.
    pub waiters: u64,
}

impl LockSummary {
    /// Summarizes a survey. `limit` is the number of most contended locks that are named.
    pub(super) fn of(survey: &Survey, subject: &Subject, limit: usize) -> Self {
        let mut by_kind: BTreeMap<&'static str, u64> = BTreeMap::new();
        for lock in survey.locks.values() {
            *by_kind.entry(lock.kind().as_str()).or_default() += 1;
        }
        let longest = survey.locks.iter().max_by_key(|(_, lock)| lock.ttl);
        let longest = longest.and_then(|(name, lock)| {
            let milliseconds = millis(lock.ttl?);
            Some(LongestTtl { name: shown_name(name), milliseconds })
        });
        let mut contended: Vec<Contended> = survey
            .locks
            .iter()
            .filter(|(_, lock)| lock.waiters() > 0)
            .map(|(name, lock)| Contended {
                name: shown_name(name),
                kind: lock.kind().as_str(),
                waiters: lock.waiters(),
            })
            .collect();
        contended.sort_by(|a, b| (b.waiters, &a.name).cmp(&(a.waiters, &b.name)));
        contended.truncate(limit);
        Self {
            deployment: Arc::clone(&subject.deployment),
            server: Arc::clone(&subject.server),
            db: subject.db.unwrap_or(0),
            keys: survey.keys,
            locks: to_u64(survey.locks.len()),
            by_kind,
            without_ttl: to_u64(survey.locks.values().filter(|lock| lock.ttl.is_none()).count()),
            longest_ttl: longest,
            contended,
            complete: survey.incomplete.is_none(),
        }
    }
}

#[cfg(test)]
mod tests;
