//! Who a holder is, as its agent tells it in Redis.

use std::sync::Arc;
use std::time::Duration;

use redisson::{ClientId, HolderId, LockName, Moment};

use crate::clock::SteadyMillis;

/// How far apart the first and the last of the checks must be that find a holder, or its agent, gone.
pub const GONE_AFTER: Duration = Duration::from_secs(30);

/// The process behind a holder. All of it is what somebody wrote into Redis: told on, never trusted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Who {
    pub host: Option<Arc<str>>,
    /// The worker's process there.
    pub pid: Option<u32>,
    pub uid: Option<u32>,
    /// Its name there.
    pub comm: Option<String>,
    /// What it calls itself.
    pub name: Option<String>,
    /// Its session with the agent.
    pub session: Option<String>,
    /// Since when it has held the lock, by the agent's clock.
    pub since: Option<SteadyMillis>,
    /// The owner within its session, where it cannot but keep what it holds while it waits.
    pub owner: Option<i64>,
    /// When its wait ends by itself, by the agent's clock.
    pub until: Option<SteadyMillis>,
}

impl Who {
    /// Which task of that agent it is: an agent's grants and waits have a number each, and only this ties them together.
    #[must_use]
    pub fn task(&self) -> Option<(&str, i64)> {
        Some((self.session.as_deref()?, self.owner?))
    }

    /// Where to find it, in words; none where too little is told.
    #[must_use]
    pub fn words(&self) -> Option<String> {
        let host = self.host.as_deref()?;
        let process = match (self.pid, self.comm.as_deref()) {
            (Some(pid), Some(comm)) => format!("process {pid} ({comm}) on the host {host}"),
            (Some(pid), None) => format!("process {pid} on the host {host}"),
            (None, _) => format!("a worker on the host {host}"),
        };
        Some(match &self.name {
            Some(name) => format!("{process}, which calls itself {name}"),
            None => process,
        })
    }
}

/// What was found of agents and their holders in one round.
#[derive(Debug, Clone)]
pub struct Told {
    /// The agents that were asked about, and whether they tell of themselves.
    pub agents: Vec<(ClientId, bool)>,
    /// The holders that were asked about; none: their agents tell nothing of them.
    pub holders: Vec<(LockName, HolderId, Option<Who>)>,
    pub at: Moment,
    pub steady: SteadyMillis,
}

/// What is known of one holder of a lock.
#[derive(Debug)]
pub struct Known {
    pub id: HolderId,
    /// Who it was when it was last told.
    pub who: Who,
    /// Since when its agent, which lives, tells nothing of it.
    denied_since: Option<(Moment, SteadyMillis)>,
    denied: bool,
}

impl Known {
    /// A holder of which nothing is known yet.
    #[must_use]
    pub fn new(id: HolderId) -> Self {
        Self { id, who: Who::default(), denied_since: None, denied: false }
    }

    /// Its agent has told who it is. True when that is news.
    pub fn told(&mut self, who: Who) -> bool {
        let news = self.who != who || self.denied;
        (self.who, self.denied_since, self.denied) = (who, None, false);
        news
    }

    /// Its agent lives and tells nothing of it. True once that makes a difference.
    pub fn denied(&mut self, at: Moment, steady: SteadyMillis) -> bool {
        let (since, _) = *self.denied_since.get_or_insert((at, steady));
        let denied = at.since(since) >= GONE_AFTER;
        std::mem::replace(&mut self.denied, denied) != denied
    }

    /// Whether its agent tells nothing of it, for however short a time.
    #[must_use]
    pub fn is_doubted(&self) -> bool {
        self.denied_since.is_some()
    }

    /// Since when it is denied, where that is found.
    #[must_use]
    pub fn denied_since(&self) -> Option<SteadyMillis> {
        self.denied_since.filter(|_| self.denied).map(|(_, since)| since)
    }
}
