//! One database of one deployment, as the model keeps it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use redisson::{LockName, Moment};

use super::clients::Clients;
use super::record::{Record, ScopeContext};
use super::schedule::Schedule;
use crate::clock::SteadyMillis;
use crate::model::types::{LockId, LockView, ScopeId};

/// A lock with what is shown of it.
#[derive(Debug)]
pub(super) struct LockEntry {
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
    /// The scope of the whole cluster, where this is one of its nodes.
    pub(super) front: Option<ScopeId>,
    /// Boxed: the map has room for nearly twice as many as there are when it has grown.
    pub(super) locks: HashMap<LockName, Box<LockEntry>>,
    pub(super) free: BTreeSet<(Moment, LockName)>,
    pub(super) schedule: Schedule,
    pub(super) readable_since: Option<Moment>,
    pub(super) listening_since: Option<Moment>,
    pub(super) run_id: Option<String>,
    /// Where its server is, and whether that is a replica.
    pub(super) address: Option<(String, bool)>,
    /// That another server is read from now on.
    pub(super) elsewhere: Option<Why>,
    pub(super) cluster: bool,
    /// How many milliseconds its server's clock is ahead of ours.
    pub(super) ahead_ms: i64,
    pub(super) clients: Clients,
    /// Whether MONITOR shows all traffic.
    pub(super) monitored: bool,
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
    pub(super) dirty: BTreeSet<LockName>,
    pub(super) removed: Vec<LockId>,
}

/// A server that was started anew, or that has taken locks over from another: what got lost is found out by reading them
/// again.
#[derive(Debug, Clone)]
pub(super) struct Restart {
    pub(super) at: Moment,
    pub(super) steady: SteadyMillis,
    pub(super) lost: usize,
    pub(super) why: Why,
}

/// What happened to the server.
#[derive(Debug, Clone)]
pub(super) enum Why {
    /// It was started anew: all of its locks may be gone.
    Started,
    /// Another one, at this address, is the master in its place: what it had not been sent is gone.
    Promoted(String),
    /// Another one, at this address, is read in its place: what has not come to a replica yet is gone for a moment.
    Chosen(String),
    /// These have come from another node of the cluster.
    Moved {
        names: HashSet<LockName>,
        /// How many came.
        count: usize,
        /// Whether the other node has nothing any more.
        over: bool,
    },
}

impl Restart {
    /// A lock has come from another node.
    pub(super) fn of_move(name: &LockName, at: Moment, steady: SteadyMillis, over: bool) -> Self {
        let names = HashSet::from([name.clone()]);
        Self { at, steady, lost: 0, why: Why::Moved { names, count: 1, over } }
    }

    /// One more has come meanwhile.
    pub(super) fn moved(&mut self, name: &LockName, at: Moment, of_one_over: bool) {
        self.at = self.at.max(at);
        if let Why::Moved { names, count, over } = &mut self.why {
            *over |= of_one_over;
            *count += usize::from(names.insert(name.clone()));
        }
    }

    fn concerns(&self, name: &LockName) -> bool {
        match &self.why {
            Why::Started | Why::Promoted(_) | Why::Chosen(_) => true,
            Why::Moved { names, .. } => names.contains(name),
        }
    }

    /// What to tell of it, where it is worth telling: not that slots were moved by somebody who meant it.
    pub(super) fn told(&self, db: u32) -> Option<String> {
        let lost = self.lost;
        match &self.why {
            Why::Started => Some(format!(
                "the server was started anew; {lost} held locks of database {db} were gone"
            )),
            Why::Promoted(address) => Some(format!(
                "{address} is the master now; {lost} held locks of database {db} were gone there"
            )),
            Why::Chosen(address) => Some(match lost {
                0 => format!("{address} is read from now on"),
                _ => format!(
                    "{address} is read from now on; {lost} held locks of database {db} were not there"
                ),
            }),
            Why::Moved { over: false, .. } if lost == 0 => None,
            Why::Moved { count, .. } => Some(format!(
                "{count} known locks have gone to another node of the cluster; {lost} of those held were gone there"
            )),
        }
    }
}

impl Scope {
    /// Nothing is known of it; at most `rate` locks are read a second.
    pub(super) fn new(deployment: Arc<str>, db: u32, rate: u32, now: Moment) -> Self {
        Self {
            deployment,
            db,
            front: None,
            locks: HashMap::new(),
            free: BTreeSet::new(),
            schedule: Schedule::new(rate, now),
            readable_since: None,
            listening_since: None,
            run_id: None,
            address: None,
            elsewhere: None,
            cluster: false,
            ahead_ms: 0,
            clients: Clients::default(),
            monitored: false,
            awaited: HashSet::new(),
            contended: BTreeSet::new(),
            acknowledged: HashSet::new(),
            restart: None,
            pass_began: None,
            refused: 0,
            not_kept: 0,
            dirty: BTreeSet::new(),
            removed: Vec::new(),
        }
    }

    /// Where its server is that is about to be told as up, and whether that is a replica.
    pub(super) fn is_at(&mut self, address: String, replica: bool) {
        let before = self.address.replace((address.clone(), replica));
        if let Some((before, was_replica)) = before
            && before != address
        {
            let by_choice = replica || was_replica;
            let why = if by_choice { Why::Chosen } else { Why::Promoted };
            self.elsewhere = Some(why(address));
        }
    }

    /// Whether there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.removed.is_empty()
    }

    /// Whether a restart is over: all that it concerns has been read since.
    pub(super) fn has_restarted(&self) -> bool {
        let Some(restart) = self.restart.as_ref().filter(|_| self.readable_since.is_some()) else {
            return false;
        };
        let read_again =
            |entry: &LockEntry| entry.record.last_sent().is_none_or(|at| at >= restart.at);
        match &restart.why {
            Why::Started | Why::Promoted(_) | Why::Chosen(_) => {
                self.locks.values().all(|entry| read_again(entry))
            }
            Why::Moved { names, .. } => {
                names.iter().filter_map(|name| self.locks.get(name)).all(|entry| read_again(entry))
            }
        }
    }

    /// What is known around one of its locks, whatever was seen.
    pub(super) fn context(&self, name: &LockName) -> ScopeContext {
        ScopeContext {
            listening_since: self.listening_since,
            pass_began: None,
            restarted: self.restart.as_ref().is_some_and(|restart| restart.concerns(name)),
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
