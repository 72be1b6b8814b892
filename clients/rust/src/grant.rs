//! Possessions of locks.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::clock::boot;
use crate::error::Lost;

/// The name of a lock and its kind's word.
pub(crate) type Key = (Vec<u8>, Vec<u8>);

/// One possession of a lock, shared by the holds of an owner that reentered it.
pub(crate) struct Grant {
    pub(crate) key: Key,
    pub(crate) holder: String,
    pub(crate) token: Option<i64>,
    pub(crate) at_risk: watch::Sender<bool>,
    state: Mutex<GrantState>,
    ended: Notify,
}

pub(crate) struct GrantState {
    pub(crate) renewed: bool,
    /// The instant on the boot clock at which the hold ends unless it is renewed.
    pub(crate) deadline: Duration,
    /// The number of holds at the agent.
    pub(crate) count: i64,
    /// The number of open holds here.
    pub(crate) handles: i64,
    lost: Option<Lost>,
}

impl GrantState {
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
        let state =
            GrantState { renewed, deadline: Duration::ZERO, count: 0, handles: 0, lost: None };
        let at_risk = watch::Sender::new(false);
        Self { key, holder, token, at_risk, state: Mutex::new(state), ended: Notify::new() }
    }

    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.key.0).into_owned()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, GrantState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails unless the hold is certain. Once it is not, it never is again.
    pub(crate) fn check(&self) -> Result<(), Lost> {
        let mut state = self.state();
        if state.lost.is_none() && boot() >= state.deadline {
            self.end(&mut state, "its deadline has passed");
        }
        state.lost.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    /// Ends the hold, unless it has ended before. The agent has nothing of it any more.
    pub(crate) fn lose(&self, reason: &str) {
        let mut state = self.state();
        state.count = 0;
        self.end(&mut state, reason);
    }

    fn end(&self, state: &mut GrantState, reason: &str) {
        if state.lost.is_none() {
            state.lost = Some(Lost { name: self.name(), reason: reason.to_owned() });
            self.ended.notify_waiters();
        }
    }

    /// Waits for the loss. Compares clocks whenever it is polled, even if no timer could run.
    pub(crate) async fn lost(&self) -> Lost {
        let mut ended = pin!(self.ended.notified());
        poll_fn(|context| {
            // Registers before it looks, so that no loss falls between.
            let _ = ended.as_mut().poll(context);
            self.check().map_or_else(Poll::Ready, |()| Poll::Pending)
        })
        .await
    }

    pub(crate) fn warn(&self, at_risk: bool) {
        let at_risk = at_risk && !self.state().is_lost();
        self.at_risk.send_if_modified(|now| std::mem::replace(now, at_risk) != at_risk);
    }

    /// Sets a deadline that the agent reported, unless the last one has passed.
    pub(crate) fn renew(&self, deadline: Duration) {
        if self.is_held() {
            self.state().deadline = deadline;
        }
    }
}
