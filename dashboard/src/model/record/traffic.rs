//! What MONITOR shows of a lock's traffic.

use std::time::Duration;

use redisson::monitor::{Action, Certainty as Seen, Event};
use redisson::{HolderId, Kind, Moment};

use super::{Effect, Hold, Record, Surroundings};
use crate::clock::SteadyMillis;
use crate::model::contention::Count;
use crate::model::history::Happening;
use crate::model::observation::Source;
use crate::model::past::{Ending, Note};
use crate::model::problem::Expired;
use crate::model::view::{Certainty, Since};

/// How long after the time to live that it was answered a waiter may take to try again.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a waiter may sleep that was refused by a lock whose time to live is not known, or has none.
const ASLEEP: Duration = Duration::from_secs(60);

impl Record {
    /// Takes in one event, read at that time.
    pub fn traffic(
        &mut self,
        event: &Event,
        at: Moment,
        steady: SteadyMillis,
        around: Surroundings,
        effects: &mut Vec<Effect>,
    ) {
        self.confirm();
        self.seen_by(Source::Monitor);
        let sure = event.certainty == Seen::Certain;
        let Some(holder) = event.holder else {
            if event.action == Action::ForceReleased && sure {
                self.released(at, steady, Source::Monitor, Ending::Forced, effects);
            }
            return;
        };
        match event.action {
            Action::Acquired { .. } => {
                self.took(holder, at, steady, event.kind, effects);
            }
            Action::Reentered { .. } => self.waits_no_more(holder, Some(steady), effects),
            Action::Refused => self.refused(holder, at, steady),
            Action::Queued { .. } => self.tries(holder, at, steady, None),
            Action::LeftQueue => self.waits_no_more(holder, None, effects),
            Action::Renewed { lease } => self.renewed(holder, lease, steady),
            // Readers come and go singly; which of them are left tells the next reading.
            Action::Released if sure && event.kind != Some(Kind::Read) && !self.is_shared() => {
                self.released(at, steady, Source::Monitor, Ending::Released, effects);
            }
            Action::ForceReleased if sure => {
                self.released(at, steady, Source::Monitor, Ending::Forced, effects);
            }
            Action::HandedOver { to, lease } => {
                self.handed_over(holder, to, lease, at, steady, effects);
            }
            // Of one that was seen to take it MONITOR alone cannot tell whether it had lost it, or whether the server had
            // no room for the change. What was read can.
            Action::RenewalFoundNothing | Action::ReleaseFoundNothing => {
                self.came_late(holder, event.action, at, steady);
                if let Some(stamp) = self.stamp {
                    self.judge(stamp, Source::Monitor, around, effects);
                }
            }
            Action::Recounted { .. }
            | Action::PartlyReleased
            | Action::Released
            | Action::ForceReleased
            | Action::Vanished
            | Action::DroppedFromQueue
            | Action::Subscribed
            | Action::Unsubscribed
            | Action::Failed => {}
        }
    }

    /// The next reading shows the new holder; that the old one gave it up shows here only.
    fn handed_over(
        &mut self,
        from: HolderId,
        to: HolderId,
        lease: Option<Duration>,
        at: Moment,
        steady: SteadyMillis,
        effects: &mut Vec<Effect>,
    ) {
        self.waits_no_more(to, Some(steady), effects);
        self.count(Source::Monitor, Count::Acquired, effects);
        let newer = self.stamp.is_some_and(|stamp| stamp.sent >= at) || self.released.is_some();
        let Some(i) = self.holds.iter().position(|hold| hold.id == from).filter(|_| !newer) else {
            return;
        };
        let before = self.holds[i];
        self.end(before, at, steady, Ending::HandedOver, effects);
        self.event(steady, Source::Monitor, Happening::Released(Some(from)), effects);
        self.event(steady, Source::Monitor, Happening::Taken(to, 0), effects);
        let since = Since { at: steady, exact: true };
        effects.push(Effect::Note(Box::new(Note::Began(self.id.clone(), to, since))));
        self.holds[i] = Hold { id: to, count: 1, since, first: at, from: at, marker: None };
        self.still_since = (at, steady);
        self.renewals = None;
        self.lease.restart(at, lease.or(self.ttl), Some(Duration::ZERO));
    }

    fn is_shared(&self) -> bool {
        self.mode.as_deref() == Some(b"read")
    }

    /// Somebody has it from now on.
    fn took(
        &mut self,
        holder: HolderId,
        at: Moment,
        steady: SteadyMillis,
        kind: Option<Kind>,
        effects: &mut Vec<Effect>,
    ) {
        self.waits_no_more(holder, Some(steady), effects);
        self.count(Source::Monitor, Count::Acquired, effects);
        // Of several readers none is the one that a release is about.
        let alone = kind != Some(Kind::Read) && !self.is_shared();
        let known = self.released.is_none() && self.holds.iter().any(|hold| hold.id == holder);
        if alone && !known {
            self.rare().taken = Some((holder, at, steady));
        }
    }

    /// Somebody was granted it at that instant, or has left.
    fn waits_no_more(
        &mut self,
        holder: HolderId,
        granted: Option<SteadyMillis>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(rare) = &mut self.rare else { return };
        for waiter in rare.waiting.remove(&[holder]) {
            self.waited(waiter, granted, Source::Monitor, effects);
        }
    }

    fn refused(&mut self, holder: HolderId, at: Moment, steady: SteadyMillis) {
        let left = self.stamp.zip(self.ttl).map(|(stamp, ttl)| (stamp.received + ttl).since(at));
        let lease = self.lease.lease();
        // Whoever renews it may do so just after the waiter was answered.
        let sleep = match (left, lease.filter(|_| self.lease.renewed())) {
            (_, Some(lease)) => lease,
            (Some(left), None) => left,
            (None, None) => ASLEEP,
        };
        self.tries(holder, at, steady, Some(at + sleep + SILENCE));
    }

    fn tries(&mut self, holder: HolderId, at: Moment, steady: SteadyMillis, until: Option<Moment>) {
        self.news |= self.rare().waiting.attempt(holder, at, steady, until);
    }

    fn renewed(&mut self, holder: HolderId, lease: Option<Duration>, steady: SteadyMillis) {
        if self.holds.iter().any(|hold| hold.id == holder) && self.released.is_none() {
            self.news |= !self.lease.renewed();
            self.lease.renewal(lease);
            self.set_again(steady);
            if let Some(rare) = &mut self.rare {
                rare.gone = None;
            }
        }
    }

    /// A holder wanted to renew or release what it no longer had. Where it had not given it up itself it has lost it.
    fn came_late(&mut self, holder: HolderId, what: Action, at: Moment, steady: SteadyMillis) {
        let still = self.holds.iter().any(|hold| hold.id == holder) && self.released.is_none();
        let gone_for = if still {
            // It had run out by then, and the reading that shows it is yet to come.
            let end = self.stamp.zip(self.ttl).map(|(stamp, ttl)| stamp.received + ttl);
            let Some(end) = end.filter(|end| *end <= at) else { return };
            at.since(end)
        } else {
            let before = self.before.as_ref();
            let Some(past) = before.and_then(|before| before.past.newest_of(&holder)) else {
                return;
            };
            if past.ended.is_wanted() || past.ended == Ending::Forced {
                return;
            }
            Duration::from_millis(steady.0.saturating_sub(past.to.0))
        };
        let wanted = if what == Action::RenewalFoundNothing { "renew" } else { "release" };
        let seen = format!(
            "{holder} came back to {wanted} it {:.1} s after it was gone",
            gone_for.as_secs_f64()
        );
        let expired = Expired {
            at: (at, steady),
            holder,
            certainty: Certainty::Sure,
            source: Source::Monitor,
            seen,
        };
        self.rare().expired = Some(expired);
        self.news = true;
    }

    /// MONITOR shows nothing more: waiters that only it knew of are not known to wait any longer.
    pub fn untapped(&mut self) {
        if let Some(rare) = &mut self.rare {
            self.news |= rare.waiting.forget(Source::Monitor);
        }
        self.thin_out();
    }

    /// Whether MONITOR told of somebody who waits.
    #[must_use]
    pub fn has_tapped_waiters(&self) -> bool {
        let waiters = self.rare.iter().flat_map(|rare| rare.waiting.waiters());
        waiters.into_iter().any(|waiter| waiter.source == Source::Monitor)
    }
}
