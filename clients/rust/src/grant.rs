//! Grants of locks.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::clock::boot;
use crate::connection::REPLY_LIMIT;
use crate::error::Lost;
use crate::resp::Value;

/// The name of a lock and its kind's word.
pub(crate) type Key = (Vec<u8>, Vec<u8>);

/// One grant of a lock, shared by the holds of an owner that reentered it.
pub(crate) struct Grant {
    pub(crate) key: Key,
    pub(crate) holder: String,
    pub(crate) token: Option<i64>,
    pub(crate) at_risk: watch::Sender<bool>,
    state: Mutex<GrantState>,
    ended: Notify,
}

pub(crate) struct GrantState {
    renewed: bool,
    /// The instant on the boot clock at which the hold ends unless it is renewed.
    deadline: Duration,
    /// The instant at which another command than HOLDS last set it: the reply to an earlier HOLDS may be older.
    dated: Duration,
    /// An earlier deadline, while a new lease is being set: the agent may end the hold then.
    ceiling: Duration,
    /// The validity that the watchdog gives, as far as known.
    watched: Duration,
    /// The number of holds at the agent.
    pub(crate) count: i64,
    /// The number of open holds here.
    pub(crate) handles: i64,
    /// The last hold was certain when its release was sent.
    releasing: bool,
    lost: Option<Lost>,
}

impl GrantState {
    /// Returns the instant until which the hold is certain.
    pub(crate) fn ends(&self) -> Duration {
        self.deadline.min(self.ceiling)
    }

    /// Ends the hold no later than at this instant.
    pub(crate) fn limit_to(&mut self, limit: Duration) {
        self.deadline = self.deadline.min(limit);
    }

    /// Opens a hold. The agent may have granted it to a call whose reply was lost.
    pub(crate) fn open(&mut self, fixed: bool) {
        self.renewed = !fixed || (self.renewed && self.handles > 0);
        self.handles += 1;
    }

    /// Returns whether its deadline moves, so that it must be read again.
    pub(crate) fn is_followed(&self) -> bool {
        self.renewed && self.ceiling == Duration::MAX
    }

    /// Records the agent's report of a grant or a reentry.
    pub(crate) fn granted(&mut self, count: i64, fixed: bool, until: Duration) {
        self.count = count;
        self.renewed |= !fixed;
        (self.deadline, self.dated) = (self.deadline.max(until), boot());
    }

    /// Records that the watchdog gives the time that is left now, unless this is a reentry, which may find a fixed
    /// lease.
    pub(crate) fn note_watched(&mut self) {
        if self.count == 1 {
            self.watched = self.deadline.saturating_sub(boot());
        }
    }

    /// Returns whether the agent has more holds than are open here.
    pub(crate) fn has_surplus(&self) -> bool {
        self.count > self.handles
    }

    /// Returns the loss that was noticed.
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.lost.clone()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }
}

impl Grant {
    pub(crate) fn new(key: Key, holder: String, token: Option<i64>, renewed: bool) -> Self {
        let state = GrantState {
            renewed,
            deadline: Duration::ZERO,
            dated: Duration::ZERO,
            ceiling: Duration::MAX,
            watched: REPLY_LIMIT,
            count: 0,
            handles: 0,
            releasing: false,
            lost: None,
        };
        let at_risk = watch::Sender::new(false);
        Self { key, holder, token, at_risk, state: Mutex::new(state), ended: Notify::new() }
    }

    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.key.0).into_owned()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, GrantState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails unless the hold is certain. Once it is uncertain, it never becomes certain again.
    pub(crate) fn check(&self) -> Result<(), Lost> {
        let mut state = self.state();
        if state.lost.is_none() && boot() >= state.ends() {
            self.end(&mut state, "its deadline has passed");
        }
        state.lost.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    /// Ends the hold, unless it has ended before. The agent no longer has any part of it.
    pub(crate) fn lose(&self, reason: &str) {
        let mut state = self.state();
        state.count = 0;
        self.end(&mut state, reason);
    }

    /// Notes that a release is being sent.
    pub(crate) fn note_release(&self) {
        let held = self.is_held();
        let mut state = self.state();
        state.releasing = held && state.handles == 0;
    }

    /// Ends a hold that the agent does not list, without a loss if only the reply to its release was lost.
    pub(crate) fn end_unlisted(&self) {
        let mut state = self.state();
        state.count = 0;
        if !state.releasing {
            self.end(&mut state, "the agent does not hold it any more");
        }
    }

    fn end(&self, state: &mut GrantState, reason: &str) {
        if state.lost.is_none() {
            state.lost = Some(Lost { name: self.name(), reason: reason.to_owned() });
            self.ended.notify_waiters();
        }
    }

    /// Waits for the loss, forever once the hold is released. Compares clocks whenever it is polled, even if no timer
    /// could run.
    pub(crate) async fn lost(&self, released: &AtomicBool) -> Lost {
        let mut ended = pin!(self.ended.notified());
        poll_fn(|context| {
            // Registers before the check, so that no loss in between is missed.
            let _ = ended.as_mut().poll(context);
            if released.load(Ordering::Relaxed) {
                return Poll::Pending; // The deadline of a released hold means nothing.
            }
            self.check().map_or_else(Poll::Ready, |()| Poll::Pending)
        })
        .await
    }

    pub(crate) fn warn(&self, at_risk: bool) {
        let at_risk = at_risk && !self.state().is_lost();
        self.at_risk.send_if_modified(|now| std::mem::replace(now, at_risk) != at_risk);
    }

    /// Records an event that the agent reports.
    pub(crate) fn apply(&self, event: &[Value]) {
        let [word, _, _, rest @ ..] = event else { return };
        match word.bytes() {
            b"lock-lost" => self.lose(&rest.first().map(Value::text).unwrap_or_default()),
            b"lock-jeopardy" => self.warn(true),
            b"lock-safe" => self.warn(false),
            _ => {}
        }
    }

    /// Sets a deadline in the reply to a HOLDS that was sent at this instant, unless the last one has passed. Redis may
    /// have set a shorter fixed lease than the agent knows.
    pub(crate) fn renew(&self, deadline: Duration, sent: Duration) {
        let held = self.is_held();
        let mut state = self.state();
        if held && sent >= state.dated && (state.renewed || deadline < state.deadline) {
            state.deadline = deadline;
        }
    }

    /// Sets the deadline in the list of a resumed session, unless the last one has passed.
    pub(crate) fn resume(&self, deadline: Duration) {
        if self.is_held() {
            let mut state = self.state();
            (state.deadline, state.dated) = (deadline, boot());
        }
    }

    /// Limits the hold to the new lease from the instant `sent` on; `None` means the watchdog's.
    pub(crate) fn extending(&self, lease: Option<Duration>, sent: Duration) {
        let mut state = self.state();
        state.ceiling = sent.saturating_add(lease.unwrap_or(state.watched));
    }

    /// Records that the new lease has begun, unless the hold has ended meanwhile.
    pub(crate) fn extended(&self, renewed: bool, deadline: Duration) {
        let held = self.is_held();
        let mut state = self.state();
        if held {
            (state.renewed, state.deadline) = (renewed, deadline);
        }
        (state.ceiling, state.dated) = (Duration::MAX, boot());
    }

    /// Records that the new lease has not begun, certainly or possibly.
    pub(crate) fn not_extended(&self, surely: bool) {
        let _ = self.check(); // Notes a deadline that has passed.
        let mut state = self.state();
        if !surely {
            state.deadline = state.ends();
        }
        (state.ceiling, state.dated) = (Duration::MAX, boot());
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn the_deadline_of_a_released_hold_is_no_loss() {
        let key = (b"orders:42".to_vec(), b"lock".to_vec());
        let grant = Grant::new(key, "holder".to_owned(), None, true); // Its deadline has passed.
        let lost = async |released| {
            timeout(Duration::from_millis(10), grant.lost(&AtomicBool::new(released))).await.is_ok()
        };
        assert!(!lost(true).await);
        assert!(lost(false).await);
    }

    #[test]
    fn an_earlier_list_does_not_shorten_a_new_lease() {
        let key = (b"orders:42".to_vec(), b"lock".to_vec());
        let grant = Grant::new(key, "holder".to_owned(), None, false);
        let (old, new) = (boot() + Duration::from_secs(30), boot() + Duration::from_secs(600));
        grant.state().granted(1, true, old);
        let sent = boot();
        grant.extended(false, new);
        grant.renew(old, sent);
        assert_eq!(grant.state().ends(), new);
        grant.renew(old, boot());
        assert_eq!(grant.state().ends(), old);
    }
}
