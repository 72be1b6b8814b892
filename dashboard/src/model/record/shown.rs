//! What is wrong with a lock, and how it is shown.

use std::sync::Arc;
use std::time::Duration;

use redisson::{HolderId, Kind, Moment};

use super::{Effect, Rare, Record, Surroundings, millis};
use crate::clock::{SteadyMillis, WallMillis};
use crate::model::clients::Clients;
use crate::model::history::Happening;
use crate::model::observation::{Marker, Source, Stamp};
use crate::model::past::Note;
use crate::model::problem::{Case, ORPHAN_GAP, Verdict, advice, explain, judge};
use crate::model::view::{
    ClientView, HolderView, LockView, PlaceView, ProblemKind, ProblemView, State, WaiterView,
};
use crate::model::waiting::Waiter;

/// A view that says nothing new is made again no sooner than this, so that idle readings cost no traffic.
const REFRESH_MS: u64 = 2_000;
/// How much longer than its limit it may take until a problem of an earlier run is found again: a renewal has to be seen
/// twice, or a holder's absence.
const FOUND_AGAIN: Duration = Duration::from_secs(300);
/// How far a time to live may be from what its view foretells without being news.
const FORETOLD_MS: u64 = 250;

impl Record {
    pub(super) fn judge(
        &mut self,
        now: Stamp,
        source: Source,
        around: Surroundings,
        effects: &mut Vec<Effect>,
    ) {
        let holders: Vec<_> = self.holds.iter().map(|hold| (hold.id, hold.count)).collect();
        let rare = self.rare.as_deref();
        let waiters: Vec<Waiter> =
            rare.map(|rare| rare.waiting.waiters().copied().collect()).unwrap_or_default();
        let (gone, expired, cycle, odd) = (
            rare.and_then(|rare| rare.gone.clone()),
            rare.and_then(|rare| rare.expired.clone()),
            rare.and_then(|rare| rare.cycle.clone()),
            rare.and_then(|rare| rare.odd.clone()),
        );
        let case = Case {
            now,
            holders: &holders,
            confirmed: self.confirmed,
            ttl: self.ttl,
            bare_since: self.bare_since,
            renewed: self.lease.lease().filter(|_| self.lease.renewed()),
            still_since: self.still_since,
            listening_since: around.listening_since,
            silent: self.is_silent() || around.cluster,
            habit: self.before.as_ref().and_then(|before| before.habit.p99()),
            rule: self.rule,
            waiters: &waiters,
            subscribers: rare.and_then(|rare| rare.waiting.subscribers),
            gone: gone.as_ref(),
            expired: expired.as_ref(),
            cycle: cycle.as_deref(),
            told: rare.map_or(&[], |rare| &rare.told),
            orphan_since: rare.and_then(|rare| rare.orphan_since),
            left: rare.map_or(0, |rare| rare.left.len()),
            odd: odd.as_deref(),
        };
        let verdicts = judge(&case);
        let before = rare.map_or(&[][..], |rare| &rare.before);
        let mut begun = Vec::new();
        let mut problems = Vec::with_capacity(verdicts.len());
        for verdict in &verdicts {
            match self.problems.iter().find(|old| old.problem == verdict.problem) {
                Some(old) if old.certainty == verdict.certainty => {
                    // Who its holder is may have been learnt since.
                    let advice = advice(&case, *verdict);
                    problems.push(ProblemView { advice, ..old.clone() });
                }
                Some(old) => {
                    effects.push(self.detected(verdict));
                    let verdict = Verdict { since: old.since, ..*verdict };
                    problems.push(explain(&case, verdict));
                    self.news = true;
                }
                None => {
                    effects.push(self.detected(verdict));
                    let known = before.iter().find(|(known, _)| *known == verdict.problem);
                    let since = known.map_or(verdict.since, |(_, since)| verdict.since.min(*since));
                    problems.push(explain(&case, Verdict { since, ..*verdict }));
                    begun.push(verdict.problem);
                }
            }
        }
        let over: Vec<ProblemKind> = self
            .problems
            .iter()
            .map(|old| old.problem)
            .filter(|old| !verdicts.iter().any(|new| new.problem == *old))
            .collect();
        self.problems = problems;
        self.no_longer_in_hand(&over, now.steady, effects);
        self.mark_acknowledged();
        for verdict in &verdicts {
            if begun.contains(&verdict.problem) {
                let id = self.id.clone();
                let note = Note::Problem(id, verdict.problem, verdict.certainty, verdict.since);
                effects.push(Effect::Note(Box::new(note)));
            }
        }
        for problem in &over {
            self.cleared(*problem, now.steady, effects);
        }
        self.judge_again(now, effects);
        for problem in begun {
            self.event(now.steady, source, Happening::Problem(problem), effects);
        }
        for problem in over {
            self.event(now.steady, source, Happening::Cleared(problem), effects);
        }
    }

    /// What was wrong in an earlier run and was not found again in the time that it takes is over.
    fn judge_again(&mut self, now: Stamp, effects: &mut Vec<Effect>) {
        let limits = [self.rule.stuck_after, self.rule.starving_after];
        let slowest = limits.into_iter().flatten().fold(ORPHAN_GAP, Duration::max);
        let time_is_up = now.received.since(self.known_since) > slowest + FOUND_AGAIN;
        let Some(rare) = self.rare.as_mut().filter(|rare| !rare.before.is_empty()) else { return };
        let problems = &self.problems;
        rare.before.retain(|(before, _)| problems.iter().all(|found| found.problem != *before));
        if time_is_up {
            for (problem, _) in std::mem::take(&mut rare.before) {
                self.cleared(problem, now.steady, effects);
            }
        }
    }

    /// Nothing more will be known of it: whatever was wrong is told to be over as of the newest reading.
    pub fn clear_all(&mut self, effects: &mut Vec<Effect>) {
        let last = self.stamp.map_or(SteadyMillis(0), |stamp| stamp.steady);
        let before = self.rare.as_mut().map(|rare| std::mem::take(&mut rare.before));
        let before = before.into_iter().flatten().map(|(problem, _)| problem);
        let found = std::mem::take(&mut self.problems).into_iter().map(|found| found.problem);
        for problem in before.chain(found) {
            self.cleared(problem, last, effects);
        }
    }

    fn cleared(&self, problem: ProblemKind, at: SteadyMillis, effects: &mut Vec<Effect>) {
        let note = Note::Cleared(self.id.clone(), problem, at);
        effects.push(Effect::Note(Box::new(note)));
    }

    /// Who a holder or waiter is, where anything is known of that.
    fn client(&self, id: &HolderId, clients: &Clients) -> Option<ClientView> {
        let seen = clients.view(&id.client);
        let Some(known) = self.told(id) else {
            return match clients.agent_lives(&id.client) {
                Some(false) => Some(ClientView { alive: Some(false), ..seen.unwrap_or_default() }),
                Some(true) | None => seen,
            };
        };
        let alive = match (known.denied_since(), clients.agent_lives(&id.client)) {
            (Some(_), _) => Some(false),
            // It may only be too young to be told of.
            (None, Some(true)) if known.is_doubted() => None,
            (None, lives) => lives,
        };
        let who = known.who.clone();
        let view = ClientView {
            addr: seen.and_then(|seen| seen.addr),
            name: who.name,
            host: who.host,
            pid: who.pid,
            uid: who.uid,
            comm: who.comm,
            session: who.session,
            since: who.since,
            alive,
        };
        (view != ClientView::default()).then_some(view)
    }

    /// Whether it may be released without a message that is heard: a fair lock is where nobody queues, and one reader
    /// of several is. In a cluster all may be, on channels of shards that nobody here listens to.
    fn is_silent(&self) -> bool {
        self.fair || (self.mode.is_some() && self.holds.len() > 1)
    }

    fn detected(&self, verdict: &Verdict) -> Effect {
        Effect::Detected(verdict.problem, verdict.certainty, Arc::clone(&self.group))
    }

    /// Whether the newest reading tells how the lock is now: its server can be read since `readable_since`.
    fn is_current(&self, readable_since: Option<Moment>) -> bool {
        let read = self.stamp.map(|stamp| stamp.received);
        readable_since.is_some_and(|since| read.is_some_and(|read| read >= since))
    }

    /// Whether `shown` is still true enough, given that ages and times to live run on by themselves.
    #[must_use]
    pub fn is_shown_well(&self, shown: &LockView, readable_since: Option<Moment>) -> bool {
        if self.is_current(readable_since) == shown.is_unknown() {
            return false;
        }
        let Some(stamp) = self.stamp else { return !self.news };
        let passed = stamp.steady.0.saturating_sub(shown.observed_at.0);
        let foretold = match (shown.ttl_ms, self.ttl.map(millis)) {
            (Some(then), Some(now)) => (now + passed).abs_diff(then) <= FORETOLD_MS,
            (then, now) => then == now,
        };
        !self.news && foretold && passed < REFRESH_MS
    }

    /// The view of it, made anew. What was read before `readable_since` is shown as of then, its state unknown.
    pub fn view(&mut self, readable_since: Option<Moment>, clients: &Clients) -> LockView {
        self.news = false;
        let kind = match self.mode.as_deref() {
            None if self.fair => Kind::Fair,
            None if self.token.is_some() => Kind::Fenced,
            None => Kind::Lock,
            Some(b"write") => Kind::Write,
            Some(_) => Kind::Read,
        };
        let holders: Vec<HolderView> = self
            .holds
            .iter()
            .map(|hold| HolderView {
                id: hold.id.to_string().into(),
                mode: match (&self.mode, hold.id.write) {
                    (_, true) => "write",
                    (Some(_), false) => "read",
                    (None, false) => "lock",
                },
                count: hold.count,
                marker_ttl_ms: match hold.marker {
                    Some(Marker::Left(left)) => Some(millis(left)),
                    Some(Marker::Missing | Marker::Endless) | None => None,
                },
                zombie: hold.marker == Some(Marker::Missing),
                since: hold.since,
                client: self.client(&hold.id, clients).map(Box::new),
            })
            .collect();
        let waiting = Awaited::new(self.rare.as_deref(), |id| self.client(id, clients));
        let state = match (self.is_current(readable_since), self.is_held()) {
            (false, _) => State::Unknown,
            (true, true) => State::Held,
            (true, false) => State::Free,
        };
        let past = self.before.as_mut().map(|before| before.past.shown()).unwrap_or_default();
        let before = self.before.as_deref();
        LockView {
            id: self.id.clone(),
            state,
            confirmed: self.confirmed,
            kind: kind.as_str(),
            holders,
            ttl_ms: self.ttl.map(millis),
            observed_at: self.stamp.map_or(SteadyMillis(0), |stamp| stamp.steady),
            lease_ms: self.lease.lease().map(millis),
            renewed: self.lease.renewed(),
            renewals: self.renewals.clone().filter(|_| self.lease.renewed() && self.is_held()),
            problems: self.problems.clone(),
            events: self.history.clone(),
            longest_hold: before.and_then(|before| before.past.longest()),
            longest_wait: before.and_then(|before| before.past.longest_wait()),
            past,
            red: None,
            sources: self.sources,
            queued: waiting.queued,
            waiters: waiting.waiters,
            waiting: waiting.count,
            waiters_exact: waiting.exact,
            queue: waiting.queue,
            token: self.token,
            group: Arc::clone(&self.group),
            expected_long: self.rule.stuck_after.is_none(),
        }
    }
}

/// Who waits, as it is shown.
struct Awaited {
    queued: bool,
    waiters: Vec<WaiterView>,
    count: u64,
    exact: bool,
    queue: Vec<PlaceView>,
}

impl Awaited {
    /// `client` tells the process behind a waiter.
    fn new(rare: Option<&Rare>, client: impl Fn(&HolderId) -> Option<ClientView>) -> Self {
        let mut shown =
            Self { queued: false, waiters: Vec::new(), count: 0, exact: false, queue: Vec::new() };
        let Some(waiting) = rare.map(|rare| &rare.waiting) else { return shown };
        let live = waiting.waiters().filter(|waiter| waiter.is_live());
        shown.waiters = live
            .map(|waiter| WaiterView {
                id: waiter.id.to_string().into(),
                since: waiter.since,
                attempts: waiter.attempts,
                client: client(&waiter.id).map(Box::new),
            })
            .collect();
        shown.count = waiting.at_least();
        if let Some(queue) = &waiting.queue {
            shown.queued = queue.len > 0;
            // Each waiter of a fair lock has a place of its own.
            shown.exact = queue.is_whole();
            let overdue = |id| waiting.waiters().any(|waiter| waiter.id == id && waiter.overdue);
            shown.queue = queue
                .front
                .iter()
                .map(|place| PlaceView {
                    id: place.id.to_string(),
                    deadline: place.deadline.map(|at| WallMillis(at).to_steady()),
                    alive: !overdue(place.id),
                })
                .collect();
        }
        shown
    }
}
