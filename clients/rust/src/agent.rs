//! The agent of this host, and the owners of locks.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::hold::{Hold, Holds};
use crate::lock::LockRequest;
use crate::session::{Session, Use};

const SYSTEM_SOCKET: &str = "/run/lockscope/agent.sock";
const GRACE: Duration = Duration::from_secs(60);
/// The number of connections without a hold that are kept for the next owner.
const SPARE_SESSIONS: usize = 8;

/// The agent of this host. Clones share its connections.
#[derive(Clone)]
pub struct Agent(Arc<Pool>);

impl Agent {
    /// Returns the agent behind `LOCKSCOPE_SOCKET`, else `/run/lockscope/agent.sock`. It connects with the first lock.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns the settings of an agent.
    #[must_use]
    pub fn builder() -> AgentBuilder {
        AgentBuilder { socket: None, grace: GRACE }
    }

    /// Returns a new owner. Owners exclude each other, and each can reenter its own locks.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner { pool: self.0.clone(), session: Arc::default() }
    }

    /// Acquires a lock for a new owner.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> LockRequest<Hold> {
        self.owner().lock(name)
    }

    /// Acquires a lock for a new owner if it is free, and otherwise fails with [`Error::Timeout`].
    pub fn try_lock(&self, name: impl AsRef<[u8]>) -> LockRequest<Hold> {
        self.lock(name).wait(Duration::ZERO)
    }

    /// Acquires several locks for a new owner, all or none: up to 64, each named once. Requests of this kind never
    /// deadlock with each other, whatever the order of the names.
    pub fn lock_all<N: AsRef<[u8]>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> LockRequest<Holds> {
        self.owner().lock_all(names)
    }

    /// Releases everything and closes the connections. Requests fail with [`Error::Closed`] from now on.
    pub async fn close(&self) {
        let sessions = {
            let mut sessions = self.0.sessions();
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
}

impl Default for Agent {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("socket", &self.0.path).finish_non_exhaustive()
    }
}

/// The settings of an [`Agent`].
#[derive(Debug, Clone)]
pub struct AgentBuilder {
    socket: Option<PathBuf>,
    grace: Duration,
}

impl AgentBuilder {
    /// Sets the path of the agent's socket.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// Sets how long holds outlive a lost connection or a restart of the agent, a minute by default. Zero disables that.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Returns the agent. It connects with the first lock.
    #[must_use]
    pub fn build(self) -> Agent {
        let path = self.socket.unwrap_or_else(usual_socket);
        Agent(Arc::new(Pool { path, grace: self.grace, sessions: Mutex::default() }))
    }
}

fn usual_socket() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = set("LOCKSCOPE_SOCKET") {
        return path.into();
    }
    if let Some(runtime) = set("XDG_RUNTIME_DIR") {
        let own = Path::new(&runtime).join("lockscope/agent.sock");
        if !Path::new(SYSTEM_SOCKET).exists() && own.exists() {
            return own;
        }
    }
    SYSTEM_SOCKET.into()
}

/// The sessions of an agent.
pub(crate) struct Pool {
    pub(crate) path: PathBuf,
    pub(crate) grace: Duration,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    spare: Vec<Arc<Session>>,
    all: Vec<Weak<Session>>,
    closed: bool,
}

impl Pool {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a session that has nothing to do for the next owner.
    pub(crate) fn on_idle(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        if !session.leave_owner() || sessions.closed {
            return;
        }
        if sessions.spare.len() < SPARE_SESSIONS {
            sessions.spare.push(session.clone());
        } else {
            // The agent answers by closing the connection.
            drop(session.begin_close());
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
    /// Acquires a lock, or reenters it.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> LockRequest<Hold> {
        LockRequest::new(self.clone(), vec![name.as_ref().to_vec()], false)
    }

    /// Acquires a lock if it is free or this owner's, and otherwise fails with [`Error::Timeout`].
    pub fn try_lock(&self, name: impl AsRef<[u8]>) -> LockRequest<Hold> {
        self.lock(name).wait(Duration::ZERO)
    }

    /// Acquires several locks, all or none: up to 64, each named once.
    pub fn lock_all<N: AsRef<[u8]>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> LockRequest<Holds> {
        let names = names.into_iter().map(|name| name.as_ref().to_vec()).collect();
        LockRequest::new(self.clone(), names, true)
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
        let session = sessions.spare.pop().unwrap_or_else(|| {
            let session = Session::new(&self.pool);
            if sessions.all.len() == sessions.all.capacity() {
                sessions.all.retain(|session| session.strong_count() > 0);
            }
            sessions.all.push(Arc::downgrade(&session));
            session
        });
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
