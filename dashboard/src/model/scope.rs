//! One database of one deployment, as the model keeps it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use redisson::{LockName, Moment};

use super::clients::Clients;
use super::record::{Record, Surroundings};
use super::schedule::Schedule;
use super::view::{LockId, LockView, WallMillis};

/// A lock with what is shown of it.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) record: Record,
    pub(super) shown: Option<Arc<LockView>>,
    /// Its place among the free ones.
    pub(super) free: Option<Moment>,
}

/// One database of one deployment.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) deployment: Arc<str>,
    pub(super) db: u32,
    pub(super) locks: HashMap<LockName, Kept>,
    pub(super) free: BTreeSet<(Moment, LockName)>,
    pub(super) schedule: Schedule,
    pub(super) readable_since: Option<Moment>,
    pub(super) listening_since: Option<Moment>,
    pub(super) run_id: Option<String>,
    pub(super) cluster: bool,
    /// How many milliseconds its server's clock is ahead of ours.
    pub(super) ahead_ms: i64,
    pub(super) clients: Clients,
    /// Whether MONITOR shows all traffic.
    pub(super) tapped: bool,
    /// Locks that somebody waits for.
    pub(super) awaited: HashSet<LockName>,
    /// Locks whose waiters are known by name. In order, as is what is new: what went in decides what comes out.
    pub(super) contended: BTreeSet<LockName>,
    /// Locks of which somebody has a problem in hand.
    pub(super) acknowledged: HashSet<LockName>,
    pub(super) restart: Option<Restart>,
    /// When the newest complete pass over all keys began.
    pub(super) pass_began: Option<Moment>,
    pub(super) refused: u64,
    pub(super) not_kept: u64,
    pub(super) news: BTreeSet<LockName>,
    pub(super) removed: Vec<LockId>,
}

/// A server that was started anew: what it lost is found out by reading everything again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restart {
    pub(super) at: Moment,
    pub(super) wall: WallMillis,
    pub(super) lost: usize,
}

impl Scope {
    /// Nothing is known of it; at most `rate` locks are read a second.
    pub(super) fn new(deployment: Arc<str>, db: u32, rate: u32, now: Moment) -> Self {
        Self {
            deployment,
            db,
            locks: HashMap::new(),
            free: BTreeSet::new(),
            schedule: Schedule::new(rate, now),
            readable_since: None,
            listening_since: None,
            run_id: None,
            cluster: false,
            ahead_ms: 0,
            clients: Clients::default(),
            tapped: false,
            awaited: HashSet::new(),
            contended: BTreeSet::new(),
            acknowledged: HashSet::new(),
            restart: None,
            pass_began: None,
            refused: 0,
            not_kept: 0,
            news: BTreeSet::new(),
            removed: Vec::new(),
        }
    }

    /// What is known around each of its locks, whatever was seen.
    pub(super) fn around(&self) -> Surroundings {
        Surroundings {
            listening_since: self.listening_since,
            pass_began: None,
            restarted: self.restart.is_some(),
            readable_since: self.readable_since,
            ahead_ms: self.ahead_ms,
            cluster: self.cluster,
        }
    }

    /// The whole name of one of its locks.
    pub(super) fn id(&self, name: &LockName) -> LockId {
        LockId { deployment: Arc::clone(&self.deployment), db: self.db, name: name.clone() }
    }
}
