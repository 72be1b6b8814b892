//! The processes behind holders and waiters, as agents publish them in the holder registry.

use std::sync::Arc;
use std::time::Duration;

use redisson::{ClientId, HolderId, LockName};

use crate::clock::{SteadyMillis, Time};

/// The time between the first and the last check that do not find a holder or its agent, from which it counts as gone.
pub const GONE_AFTER: Duration = Duration::from_secs(30);

/// The result of checking who has published an identity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Verification {
    /// The dashboard has no keys of agents.
    #[default]
    Unchecked,
    /// An agent signed it with the key of this name.
    Verified(Arc<str>),
    /// Nothing proves that an agent published it. The text is the reason, as a clause.
    Claimed(&'static str),
}

impl Verification {
    /// Returns whether the check failed. Without keys, it returns false.
    #[must_use]
    pub fn is_only_claimed(&self) -> bool {
        matches!(self, Self::Claimed(_))
    }
}

/// The process behind a holder. Unless it is verified, anyone who can write to Redis may have written it, so it is
/// displayed, but never trusted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HolderIdentity {
    pub host: Option<Arc<str>>,
    /// The worker's process id on that host.
    pub pid: Option<u32>,
    pub uid: Option<u32>,
    /// The process' name on that host.
    pub comm: Option<String>,
    /// The name that the client has set.
    pub name: Option<String>,
    /// The worker's session with the agent.
    pub session: Option<String>,
    /// The beginning of its hold, by the agent's clock.
    pub since: Option<SteadyMillis>,
    /// The owner within the session, if it keeps its holds while it waits.
    pub owner: Option<i64>,
    /// The end of a limited wait, by the agent's clock.
    pub until: Option<SteadyMillis>,
    pub verification: Verification,
}

impl HolderIdentity {
    /// Returns the session and the owner. Each grant and wait of an agent has a different number, and only this ties
    /// them together.
    #[must_use]
    pub fn task(&self) -> Option<(&str, i64)> {
        Some((self.session.as_deref()?, self.owner?))
    }

    /// Returns a description of the process and its host, or `None` if the host is unknown. It has no backticks, which
    /// would mark code in a sentence.
    #[must_use]
    pub fn process(&self) -> Option<String> {
        let host = self.host.as_deref()?;
        let process = match (self.pid, self.comm.as_deref()) {
            (Some(pid), Some(comm)) => format!("process {pid} ({comm}) on the host {host}"),
            (Some(pid), None) => format!("process {pid} on the host {host}"),
            (None, _) => format!("a worker on the host {host}"),
        };
        let described = match &self.name {
            Some(name) => format!("{process}, named {name}"),
            None => process,
        };
        Some(described.replace('`', "'"))
    }

    /// Returns the description with the result of the check of its signature.
    #[must_use]
    pub fn description(&self) -> Option<String> {
        let process = self.process()?;
        Some(match &self.verification {
            Verification::Unchecked => process,
            Verification::Verified(_) => format!("{process}, verified"),
            Verification::Claimed(_) => format!("{process}, only claimed"),
        })
    }
}

/// The presence of an agent in the holder registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Present,
    /// The agent has published itself within the last day, but does not now.
    Missing,
    /// The agent has not published itself. It may lack the permission.
    Unknown,
}

impl Presence {
    #[must_use]
    pub fn new(present: bool, traced: bool) -> Self {
        match (present, traced) {
            (true, _) => Self::Present,
            (false, true) => Self::Missing,
            (false, false) => Self::Unknown,
        }
    }
}

/// The findings of one round of reading the holder registry.
#[derive(Debug, Clone)]
pub struct AgentReport {
    /// The agents that were looked up.
    pub agents: Vec<(ClientId, Presence)>,
    /// The holders that were looked up, with `None` if their agents publish nothing about them.
    pub holders: Vec<(LockName, HolderId, Option<HolderIdentity>)>,
    pub at: Time,
}

/// The locks that workers of an agent wait for, as the agent publishes them.
#[derive(Debug, Clone)]
pub struct AgentWaiters {
    pub agent: ClientId,
    /// The locks, each of them once. Those without waiters at this agent are left out.
    pub locks: Vec<AwaitedLock>,
    pub at: Time,
}

/// A lock that workers of an agent wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwaitedLock {
    pub lock: LockName,
    /// The number of all waiters at the agent.
    pub count: u64,
    /// The first waiters, each with the beginning of its wait.
    pub first: Vec<(HolderId, SteadyMillis)>,
}

/// A holder or waiter of a lock with its latest identity.
#[derive(Debug)]
pub struct TrackedHolder {
    pub id: HolderId,
    pub identity: HolderIdentity,
    /// The first report in which the holder's live agent published nothing about it.
    denied_since: Option<Time>,
    denied: bool,
}

impl TrackedHolder {
    #[must_use]
    pub fn new(id: HolderId) -> Self {
        Self { id, identity: HolderIdentity::default(), denied_since: None, denied: false }
    }

    /// Stores the identity that the agent published. Returns true if anything changed.
    pub fn identify(&mut self, identity: HolderIdentity) -> bool {
        let changed = self.identity != identity || self.is_unconfirmed();
        (self.identity, self.denied_since, self.denied) = (identity, None, false);
        changed
    }

    /// Records that the holder's live agent publishes nothing about it. Returns true if this is the first such report,
    /// or the one from which on the holder counts as gone.
    pub fn deny(&mut self, at: Time) -> bool {
        let is_first = !self.is_unconfirmed();
        let denied = at.since(*self.denied_since.get_or_insert(at)) >= GONE_AFTER;
        std::mem::replace(&mut self.denied, denied) != denied || is_first
    }

    /// Forgets that the holder's agent published nothing about it.
    pub fn forget_denial(&mut self) {
        (self.denied_since, self.denied) = (None, false);
    }

    /// Returns whether its agent currently publishes nothing about it.
    #[must_use]
    pub fn is_unconfirmed(&self) -> bool {
        self.denied_since.is_some()
    }

    /// Returns the instant since which it counts as gone because its agent does not publish it.
    #[must_use]
    pub fn denied_since(&self) -> Option<SteadyMillis> {
        self.denied_since.filter(|_| self.denied).map(Time::steady)
    }
}
