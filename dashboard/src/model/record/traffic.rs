//! Applies MONITOR's events to a lock's record.

use std::time::Duration;

use redisson::monitor::{Action, Certainty as EventCertainty, Event};
use redisson::{ClientId, HolderId, Kind, Moment};

use super::{Effect, Hold, Mode, Record, ScopeContext};
use crate::clock::{SteadyMillis, Time};
use crate::model::contention::Count;
use crate::model::problem::Expired;
use crate::model::types::{ArchiveEntry, Certainty, EndCause, Ending, LockEvent, Since, Source};

/// The time within which a waiter retries after the time to live in its last reply.
const RETRY_GRACE: Duration = Duration::from_secs(5);
/// The longest sleep of a waiter that was refused by a lock without a known time to live.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// The minimum delay of a holder that returns too late. Below it, the clocks of holder, server and dashboard and the
/// duration of a command cannot show that anyone worked without the lock.
const LATE: Duration = Duration::from_millis(250);

impl Record {
    /// Applies one event, read at that time.
    pub fn traffic(
        &mut self,
        event: &Event,
        at: Time,
        context: ScopeContext,
        effects: &mut Vec<Effect>,
    ) {
        self.add_source(Source::Monitor);
        let certain = event.certainty == EventCertainty::Certain;
        // Any key can be removed by hand.
        if event.action == Action::Removed {
            return self.removed(event.holder, at);
        }
        self.confirm();
        if event.action == Action::ForceReleased {
            return match certain {
                true => self.released(at, Source::Monitor, Ending::Forced, effects),
                false => self.removed(None, at),
            };
        }
        let Some(holder) = event.holder else { return };
        match event.action {
            Action::Acquired { .. } => {
                self.acquired(holder, at, event.kind, effects);
            }
            Action::Reentered { .. } => self.end_wait(holder, Some(at.steady()), effects),
            Action::Refused => self.refused(holder, at, context),
            Action::Queued { .. } => self.attempted(holder, at, true, None),
            Action::LeftQueue => self.end_wait(holder, None, effects),
            // A command that only looks like a renewal may set the lease once, as a multi-lock does with its members.
            // Readings show whether others follow.
            Action::Renewed { lease } if certain => self.renewed(holder, lease, at.steady()),
            Action::Released if certain && self.keeps_reading(holder) => {
                self.downgraded(holder, at, effects);
            }
            // Readers come and go one by one; the next reading shows who is left.
            Action::Released if certain && event.kind != Some(Kind::Read) && !self.is_shared() => {
                self.released_by(holder, at, effects);
            }
            Action::HandedOver { to, lease } => {
                self.handed_over(holder, to, lease, at, effects);
            }
            // MONITOR alone cannot show whether the holder had lost the lock, or whether the server had no memory for
            // the change. Readings can.
            Action::RenewalFoundNothing | Action::ReleaseFoundNothing => {
                self.on_late_return(holder, event.action, at);
                if let Some(stamp) = self.stamp {
                    self.judge(stamp, Source::Monitor, context, effects);
                }
            }
            Action::Recounted { .. }
            | Action::Renewed { .. }
            | Action::PartlyReleased
            | Action::Released
            | Action::ForceReleased
            | Action::Removed
            | Action::Vanished
            | Action::DroppedFromQueue
            | Action::Subscribed
            | Action::Unsubscribed
            | Action::Failed => {}
        }
    }

    /// Applies a command that removes the key, or the field of that holder, if it exists. The next reading shows whether
    /// that ended a hold.
    fn removed(&mut self, holder: Option<HolderId>, at: Time) {
        let end = self.end_of_ttl(self.stamp);
        let ran_out = end.is_some_and(|end| end <= at.moment());
        if !self.is_held() || self.is_released() || self.reading_since(at).is_some() || ran_out {
            return;
        }
        let ids = self.holds.iter().map(|hold| hold.id);
        let ended: Vec<_> = ids.filter(|id| holder.is_none_or(|holder| holder == *id)).collect();
        if !ended.is_empty() {
            self.forcing(ended, at.moment());
        }
    }

    /// Applies a hand-over. The next reading shows the new holder, but only this event shows that the old one released
    /// the lock.
    fn handed_over(
        &mut self,
        from: HolderId,
        to: HolderId,
        lease: Option<Duration>,
        at: Time,
        effects: &mut Vec<Effect>,
    ) {
        self.end_wait(to, Some(at.steady()), effects);
        self.count(Source::Monitor, Count::Acquired, effects);
        let newer = self.reading_since(at).is_some() || self.is_released();
        let Some(i) = self.holds.iter().position(|hold| hold.id == from).filter(|_| !newer) else {
            return;
        };
        let before = self.holds[i];
        self.end_with(before, at, Source::Monitor, LockEvent::HandedOver(from.into()), effects);
        self.event(at.steady(), Source::Monitor, LockEvent::Taken(to.into(), 0), effects);
        let since = Since { at: at.steady(), exact: true };
        effects.push(Effect::Archive(Box::new(ArchiveEntry::Began(
            self.id.clone(),
            to.into(),
            since,
        ))));
        let began = at.moment();
        self.holds[i] = Hold {
            id: to,
            count: 1,
            since,
            first: began,
            from: began,
            marker: None,
            archived: true,
        };
        self.changed_by_event(at);
        self.renewals = None;
        self.lease.restart(began, Duration::ZERO, lease.or(self.ttl), Some(Duration::ZERO));
    }

    /// Applies the release by a holder. If others hold the lock, the holder released it before they acquired it.
    fn released_by(&mut self, holder: HolderId, at: Time, effects: &mut Vec<Effect>) {
        let is_known = self.holds.iter().any(|hold| hold.id == holder)
            || self.cold.as_ref().and_then(|cold| cold.taken).is_some_and(|(by, _)| by == holder);
        if is_known || self.is_released() || !self.is_held() {
            self.released(at, Source::Monitor, Ending::Released, effects);
        } else if let Some(releases) = &mut self.releases {
            releases.take_earlier_report(at, Source::Monitor);
        }
    }

    /// Returns whether a writer also has the read side, which it keeps when it stops writing.
    fn keeps_reading(&self, writer: HolderId) -> bool {
        let reader = HolderId { write: false, ..writer };
        writer.write && self.holds.iter().any(|hold| hold.id == reader)
    }

    /// Applies the release of the write side by a holder that keeps the read side. No message reports it.
    fn downgraded(&mut self, writer: HolderId, at: Time, effects: &mut Vec<Effect>) {
        let newer = self.reading_since(at).is_some() || self.is_released();
        let Some(i) = self.holds.iter().position(|hold| hold.id == writer).filter(|_| !newer)
        else {
            return;
        };
        let hold = self.holds.remove(i);
        let what = LockEvent::Released(Some(writer.into()));
        self.end_with(hold, at, Source::Monitor, what, effects);
        self.changed_by_event(at);
    }

    fn is_shared(&self) -> bool {
        self.mode == Some(Mode::Read)
    }

    /// Applies an acquisition.
    fn acquired(
        &mut self,
        holder: HolderId,
        at: Time,
        kind: Option<Kind>,
        effects: &mut Vec<Effect>,
    ) {
        self.end_wait(holder, Some(at.steady()), effects);
        self.count(Source::Monitor, Count::Acquired, effects);
        // A release does not identify one of several readers.
        let alone = kind != Some(Kind::Read) && !self.is_shared();
        let known = !self.is_released() && self.holds.iter().any(|hold| hold.id == holder);
        if alone && !known {
            self.cold().taken = Some((holder, at));
        }
    }

    /// Ends a wait, with a grant at that instant or without one.
    fn end_wait(
        &mut self,
        holder: HolderId,
        granted: Option<SteadyMillis>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(cold) = &mut self.cold else { return };
        for waiter in cold.waiting.remove(&[holder]) {
            self.waited(waiter, granted, Source::Monitor, effects);
        }
    }

    /// Returns the clients whose threads wait for the lock, as far as MONITOR has shown.
    pub fn attempting_clients(&self) -> impl Iterator<Item = ClientId> {
        self.cold.iter().flat_map(|cold| cold.waiting.attempting_clients())
    }

    /// Ends the waits of a client that no longer listens for the release.
    pub fn unsubscribed(&mut self, client: ClientId, at: Time, effects: &mut Vec<Effect>) {
        let Some(cold) = &mut self.cold else { return };
        for waiter in cold.waiting.stop(|id| id.client == client, at) {
            self.waited(waiter, None, Source::Monitor, effects);
        }
    }

    fn refused(&mut self, holder: HolderId, at: Time, context: ScopeContext) {
        let left = self.end_of_ttl(self.stamp).map(|end| end.since(at.moment()));
        let lease = self.lease.lease();
        // The holder may renew the lock just after the waiter received its reply.
        let sleep = match (left, lease.filter(|_| self.lease.renewed())) {
            (_, Some(lease)) => lease,
            (Some(left), None) => left,
            (None, None) => MAX_SLEEP,
        };
        let sleep = sleep + RETRY_GRACE;
        // A waiter that slept when MONITOR began has waited for longer than it shows.
        let first = context.monitored_since.is_some_and(|since| at.moment() >= since + sleep);
        self.attempted(holder, at, first, Some(at.moment() + sleep));
    }

    /// Returns whether an attempt of that holder to acquire the lock was refused within `time` before `at`.
    fn has_tried_within(&self, holder: HolderId, time: Duration, at: Time) -> bool {
        let tried = self.cold.as_ref().and_then(|cold| cold.waiting.last_attempt(&holder));
        tried.is_some_and(|tried| at.moment().since(tried) < time)
    }

    /// Applies an attempt. `first` is true if an earlier one of the same wait would have been seen.
    fn attempted(&mut self, holder: HolderId, at: Time, first: bool, until: Option<Moment>) {
        self.dirty |= self.cold().waiting.attempt(holder, at, first, until);
    }

    fn renewed(&mut self, holder: HolderId, lease: Option<Duration>, at: SteadyMillis) {
        if self.holds.iter().any(|hold| hold.id == holder) && !self.is_released() {
            self.dirty |= !self.lease.renewed();
            self.lease.renewal(lease);
            self.add_renewal(at);
            if let Some(cold) = &mut self.cold {
                cold.gone = None;
            }
        }
    }

    /// Applies an attempt to renew or release a hold that is gone. If the holder did not release the lock, it has lost
    /// it.
    fn on_late_return(&mut self, holder: HolderId, what: Action, at: Time) {
        let still = self.holds.iter().find(|hold| hold.id == holder && !self.is_released());
        let mut cause = None;
        let (began, gone_for) = if let Some(hold) = still {
            // The hold had expired by then, and the reading that shows this is yet to come.
            let Some(end) = self.end_of_ttl(self.stamp).filter(|end| *end <= at.moment()) else {
                return;
            };
            (hold.since.at, at.since(end))
        } else {
            let history = self.hold_history.as_ref();
            let Some(past) = history.and_then(|history| history.newest_of(&holder)) else {
                return;
            };
            if past.ended.is_wanted() || past.ended == Ending::Forced {
                return;
            }
            let gone_for = Duration::from_millis(at.steady().millis_since(past.to));
            // A thread whose attempt was refused since then knows that it does not hold the lock.
            if self.has_tried_within(holder, gone_for, at) {
                return;
            }
            cause = self.events.end_cause(&past.id, past.to);
            (past.since.at, gone_for)
        };
        if gone_for < LATE {
            return;
        }
        let expired = Expired {
            at,
            began,
            holder: Some(holder.into()),
            certainty: Certainty::Certain,
            source: Source::Monitor,
            evidence: late_return(holder, what, gone_for, cause),
            times: 1,
        };
        self.expire(expired);
        self.dirty = true;
    }

    /// Drops the waiters that only MONITOR has shown, since MONITOR shows no more events.
    pub fn monitor_stopped(&mut self) {
        if let Some(cold) = &mut self.cold {
            self.dirty |= cold.waiting.remove_source(Source::Monitor);
        }
        self.drop_empty_cold_state();
    }
}

/// Describes a holder's attempt to renew or release a hold that had been gone for that time.
fn late_return(
    holder: HolderId,
    what: Action,
    gone_for: Duration,
    cause: Option<&EndCause>,
) -> String {
    let wanted = if what == Action::RenewalFoundNothing { "renew" } else { "release" };
    let after = gone_for.as_secs_f64();
    let evidence = format!("{holder} tried to {wanted} it {after:.1} s after it was gone");
    match cause {
        Some(EndCause::Early(left @ 1..)) => format!(
            "{evidence}, which was {}.{} s before its lease expired: it was deleted, or Redis lost it",
            left / 1000,
            left % 1000 / 100
        ),
        Some(EndCause::Replaced(what)) => {
            format!("{evidence}: its key was overwritten, and is now {what}")
        }
        _ => evidence,
    }
}
