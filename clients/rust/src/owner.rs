//! Owners of locks, and the sessions that serve them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::session::{OnIdle, Session, Use};

/// The number of connections without a hold that are kept for the next owner.
const SPARE_SESSIONS: usize = 8;

/// The sessions of an agent.
pub(crate) struct Pool {
    path: PathBuf,
    grace: Duration,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    spare: Vec<Arc<Session>>,
    all: Vec<Weak<Session>>,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(path: PathBuf, grace: Duration) -> Self {
        Self { path, grace, sessions: Mutex::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Releases everything and closes the connections. There are no sessions from now on.
    pub(crate) async fn close(&self) {
        let sessions = {
            let mut sessions = self.sessions();
            sessions.closed = true;
            sessions.spare.clear();
            std::mem::take(&mut sessions.all)
        };
        let sessions: Vec<_> = sessions.iter().filter_map(Weak::upgrade).collect();
        let closing: Vec<_> = sessions.iter().filter_map(Session::begin_close).collect();
        for goodbye in closing {
            goodbye.await;
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnIdle for Pool {
    /// Keeps the session for the next owner.
    fn on_idle(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        if !session.leave_owner() || sessions.closed {
            return;
        }
        if !session.is_graced() {
            // The agent answers by closing the connection.
            drop(session.begin_close());
            return;
        }
        sessions.spare.push(session.clone());
        if sessions.spare.len() > SPARE_SESSIONS {
            // The oldest one, since it may be of a runtime that is not used any more.
            drop(sessions.spare.remove(0).begin_close());
        }
    }
}

/// An owner of locks. Owners exclude each other; an owner can reenter its locks. Clones are the same owner.
///
/// Calls of one owner run one after another. Its wait therefore delays its other calls, also a release.
#[derive(Clone)]
pub struct Owner {
    pool: Arc<Pool>,
    /// The session used last. It may serve another owner by now.
    session: Arc<Mutex<Option<Arc<Session>>>>,
}

impl Owner {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, session: Arc::default() }
    }

    /// Returns this owner's session for a call.
    pub(crate) fn enter(&self) -> Result<Use> {
        let mut own = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sessions = self.pool.sessions();
        if sessions.closed {
            return Err(Error::Closed);
        }
        let id = Arc::as_ptr(&self.session).addr();
        if let Some(session) = &*own
            && session.is_owned_by(id)
        {
            return Ok(session.enter());
        }
        let spare = sessions.spare.iter().rposition(|session| session.runs_here());
        let session = if let Some(at) = spare {
            sessions.spare.remove(at)
        } else {
            let session = Session::new(
                self.pool.path.clone(),
                self.pool.grace,
                Arc::downgrade(&self.pool) as Weak<dyn OnIdle>,
            );
            if sessions.all.len() == sessions.all.capacity() {
                sessions.all.retain(|session| session.strong_count() > 0);
            }
            sessions.all.push(Arc::downgrade(&session));
            session
        };
        session.serve(id);
        *own = Some(session.clone());
        Ok(session.enter())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").finish_non_exhaustive()
    }
}
