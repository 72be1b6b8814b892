//! Deadlines: ends holds whose deadline has passed, and reads the deadlines that renewals moved.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use crate::clock::boot;
use crate::error::Failure;
use crate::resp::{Command, Value};
use crate::session::{Session, valid_until};
use crate::timer::Timer;

/// Renewed deadlines are read again after this part of the remaining validity.
const REFRESH_DIVISOR: u32 = 3;
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// A reading of the deadlines. It ends when this is dropped, as when its runtime ends.
struct Reading<'a>(&'a AtomicBool);

impl<'a> Reading<'a> {
    /// Returns `None` while another one is in progress.
    fn begin(in_progress: &'a AtomicBool) -> Option<Self> {
        (!in_progress.swap(true, Ordering::Relaxed)).then_some(Self(in_progress))
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Session {
    /// Sets the timer for the next deadline, or for the next refresh unless one is in progress. A timer that wakes up
    /// earlier stays. A refresh also proves that the agent has the session, from which its grace would count, or requests
    /// a grace that the agent could not give before.
    pub(crate) fn arm(self: &Arc<Self>) {
        let now = boot();
        let refreshes = !self.reading.load(Ordering::Relaxed);
        let mut state = self.state();
        let pauses = state.grants.values().filter_map(|grant| {
            let grant = grant.state();
            let left = grant.ends().saturating_sub(now);
            let pause =
                if grant.is_followed() && refreshes { left / REFRESH_DIVISOR } else { left };
            (!grant.is_lost()).then_some(pause)
        });
        let Some(pause) = pauses.min() else { return };
        let grace =
            Some(self.grace / REFRESH_DIVISOR).filter(|grace| refreshes && !grace.is_zero());
        let pause = grace.map_or(pause, |grace| pause.min(grace)).max(SHORTEST_PAUSE);
        let at = now + pause;
        if state.closing || state.timer.as_ref().is_some_and(|timer| timer.wakes_up_by(at)) {
            return;
        }
        let session = Arc::downgrade(self);
        let timer = Timer::start(at, async move {
            sleep(pause).await;
            if let Some(session) = session.upgrade() {
                session.state().timer.take_if(|timer| timer.at() == at);
                session.tend().await;
            }
        });
        if let Some(later) = state.timer.replace(timer) {
            later.stop();
        }
    }

    /// Ends holds whose deadline has passed, and reads the deadlines of the others.
    pub(crate) async fn tend(self: &Arc<Self>) {
        let grants = self.grants();
        let live = grants.iter().filter(|grant| grant.is_held()).count();
        if live > 0
            && self.connected().is_some()
            && let Some(_reading) = Reading::begin(&self.reading)
        {
            self.arm(); // A deadline may pass before the agent answers.
            // The call that finds the connection lost reconnects.
            let _ = match self.turn.try_lock() {
                Ok(_turn) => self.refresh_with_grace().await,
                // The owner waits for another lock, and replies keep their order.
                Err(_) => self.refresh_from_outside().await,
            };
        }
        self.arm();
    }

    async fn refresh_with_grace(self: &Arc<Self>) -> Result<(), Failure> {
        self.refresh().await?;
        match self.connected() {
            Some(connection) if !self.is_graced() => {
                let sent = boot();
                connection.call(&self.graced()).await?;
                let mut state = self.state();
                state.prove(sent);
                state.given = self.grace;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reads the deadlines of the owner whose turn it is. Only what has the turn records grants, so a grant that is not
    /// listed was recorded before.
    pub(crate) async fn refresh(self: &Arc<Self>) -> Result<(), Failure> {
        let _using = self.enter();
        let Some(connection) = self.connected() else { return Ok(()) };
        let sent = boot();
        match connection.call(&Command::new("HOLDS")).await {
            Ok(rows) => {
                self.state().prove(sent);
                self.renew(rows.list(), sent);
                let listed: HashSet<_> =
                    rows.list().iter().map(|row| row.get("holder").bytes()).collect();
                for grant in self.grants() {
                    if !listed.contains(grant.holder.as_bytes()) {
                        grant.end_unlisted();
                    }
                }
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    async fn refresh_from_outside(&self) -> Result<(), Failure> {
        let sent = boot();
        let command = self.state().outside("HOLDS");
        let rows = self.call_once(&command).await?;
        self.state().prove(sent);
        self.renew(rows.list(), sent);
        Ok(())
    }

    /// Records the deadlines in the reply to a HOLDS that was sent at this instant.
    fn renew(&self, rows: &[Value], sent: Duration) {
        for row in rows {
            let key = (row.get("lock").bytes().to_vec(), row.get("kind").bytes().to_vec());
            let Some(grant) = self.find(&key) else { continue };
            let same = grant.holder.as_bytes() == row.get("holder").bytes();
            let certain = row.get("valid_until_ns").integer().is_some();
            if same && certain && self.connected().is_some() {
                grant.renew(valid_until(row), sent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Weak;

    use tokio::runtime::Builder;
    use tokio::time::timeout;

    use super::*;
    use crate::grant::Grant;
    use crate::owner::Pool;

    #[test]
    fn deadlines_are_noticed_although_an_earlier_runtime_has_ended() {
        let session = Session::new(PathBuf::new(), Duration::ZERO, Weak::<Pool>::new());
        let key = (b"orders:42".to_vec(), b"lock".to_vec());
        let grant = Arc::new(Grant::new(key.clone(), "holder".to_owned(), None, false));
        grant.state().granted(1, true, boot() + Duration::from_millis(500));
        session.state().grants.insert(key, grant.clone());
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        runtime().block_on(async { session.arm() });
        runtime().block_on(async {
            session.arm();
            // A separate task, since the end of the limit would have the loss found by the same one.
            let lost = tokio::spawn(async move { grant.lost(&AtomicBool::new(false)).await });
            assert!(timeout(Duration::from_secs(10), lost).await.is_ok());
        });
    }
}
