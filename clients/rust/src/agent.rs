//! The agent of this host, and its settings.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use crate::error::Error;
use crate::hold::{Hold, Holds};
use crate::lock::LockRequest;
use crate::owner::{Owner, Pool};

const SYSTEM_SOCKET: &str = "/run/lockscope/agent.sock";
const GRACE: Duration = Duration::from_secs(60);

/// The agent of this host. Clones share its connections.
#[derive(Clone)]
pub struct Agent(Arc<Pool>);

impl Agent {
    /// Returns the agent behind `LOCKSCOPE_SOCKET`, else `/run/lockscope/agent.sock`, else
    /// `$XDG_RUNTIME_DIR/lockscope/agent.sock`. It connects with the first lock.
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
        Owner::new(self.0.clone())
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
        self.0.close().await;
    }
}

impl Default for Agent {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("socket", &self.0.path()).finish_non_exhaustive()
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
        Agent(Arc::new(Pool::new(path, self.grace)))
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
