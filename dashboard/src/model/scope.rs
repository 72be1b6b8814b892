//! The model's state of one database of one deployment, or of one node of a cluster.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use redisson::{ClientId, LockName, Moment};

use super::clients::Clients;
use super::deadlines::{Due, Locks};
use super::owner_names::OwnerNames;
use super::record::{Record, ScopeContext};
use super::schedule::Schedule;
use crate::clock::SteadyMillis;
use crate::model::types::{LockId, LockView, ScopeId};

/// A lock's record and its published view.
#[derive(Debug)]
pub(super) struct LockEntry {
    pub(super) record: Record,
    pub(super) published: Option<Arc<LockView>>,
    /// The version of the clients that the published view shows.
    pub(super) clients: u64,
    /// Its key in the index of free locks.
    pub(super) free: Option<Moment>,
    pub(super) due: Option<Due>,
}

impl Locks for HashMap<LockName, Box<LockEntry>> {
    fn due(&mut self, name: &LockName) -> Option<&mut Option<Due>> {
        self.get_mut(name).map(|entry| &mut entry.due)
    }

    fn last_sent(&self, name: &LockName) -> Option<Moment> {
        self.get(name)?.record.last_sent()
    }
}

#[derive(Debug)]
pub(super) struct Scope {
    pub(super) deployment: Arc<str>,
    pub(super) db: u32,
    /// The front of the cluster that this is a node of.
    pub(super) front: Option<ScopeId>,
    /// Boxed, since the map has room for nearly twice as many entries after it has grown.
    pub(super) locks: HashMap<LockName, Box<LockEntry>>,
    pub(super) free: BTreeSet<(Moment, LockName)>,
    pub(super) schedule: Schedule,
    pub(super) readable_since: Option<Moment>,
    pub(super) listening_since: Option<Moment>,
    pub(super) run_id: Option<String>,
    /// The address of its server; true for a replica.
    pub(super) address: Option<(String, bool)>,
    /// The change of server that the next `ServerUp` concludes.
    pub(super) server_change: Option<RestartCause>,
    pub(super) cluster: bool,
    /// Milliseconds by which its server's clock is ahead of ours.
    pub(super) ahead_ms: i64,
    /// The server has keys in databases that are not watched.
    pub(super) has_unwatched: bool,
    pub(super) clients: Clients,
    /// MONITOR shows all traffic.
    pub(super) monitored: bool,
    /// Locks with waiters.
    pub(super) awaited: HashSet<LockName>,
    /// Locks whose waiters are known by name. Sorted, like `dirty`, so that the same input gives the same output.
    pub(super) contended: BTreeSet<LockName>,
    /// The locks that workers of each agent wait for.
    pub(super) agent_waits: HashMap<ClientId, Vec<LockName>>,
    /// Locks with acknowledged problems.
    pub(super) acknowledged: HashSet<LockName>,
    pub(super) restart: Option<Restart>,
    /// The beginning of the newest complete pass over all keys.
    pub(super) pass_began: Option<Moment>,
    pub(super) refused: u64,
    pub(super) not_kept: u64,
    /// Possible locks that are retained.
    pub(super) possible: BTreeSet<LockName>,
    /// Possible locks for which there was no room in the current pass, and in the latest one.
    pub(super) possible_refused: u64,
    pub(super) possible_not_kept: u64,
    pub(super) dirty: BTreeSet<LockName>,
    pub(super) removed: Vec<LockId>,
}

/// A server that has restarted, or has taken over locks from another: reading them again shows which were lost.
#[derive(Debug, Clone)]
pub(super) struct Restart {
    pub(super) at: Moment,
    pub(super) steady: SteadyMillis,
    pub(super) lost: usize,
    pub(super) cause: RestartCause,
}

/// The reason to read a server's locks again.
#[derive(Debug, Clone)]
pub(super) enum RestartCause {
    /// It restarted: all of its locks may be gone.
    Started,
    /// The server at this address was promoted to master: locks that had not been replicated to it are gone.
    Promoted(String),
    /// The server at this address is read instead: locks that have not been replicated to it yet appear to be gone for a
    /// moment.
    Chosen(String),
    /// These locks have moved here from another node of the cluster.
    Moved {
        names: HashSet<LockName>,
        count: usize,
        /// True if the other node no longer serves any slot.
        drained: bool,
    },
}

impl Restart {
    /// Returns a restart for a lock that has moved here from another node.
    pub(super) fn of_move(
        name: &LockName,
        at: Moment,
        steady: SteadyMillis,
        drained: bool,
    ) -> Self {
        let names = HashSet::from([name.clone()]);
        Self { at, steady, lost: 0, cause: RestartCause::Moved { names, count: 1, drained } }
    }

    /// Adds another lock that has moved here.
    pub(super) fn moved(&mut self, name: &LockName, at: Moment, other_drained: bool) {
        self.at = self.at.max(at);
        if let RestartCause::Moved { names, count, drained } = &mut self.cause {
            *drained |= other_drained;
            *count += usize::from(names.insert(name.clone()));
        }
    }

    fn concerns(&self, name: &LockName) -> bool {
        match &self.cause {
            RestartCause::Started | RestartCause::Promoted(_) | RestartCause::Chosen(_) => true,
            RestartCause::Moved { names, .. } => names.contains(name),
        }
    }

    /// Returns the text of its notice; none for an intended move of slots that lost nothing.
    pub(super) fn notice(&self, db: u32) -> Option<String> {
        let lost = self.lost;
        match &self.cause {
            RestartCause::Started => {
                Some(format!("the server restarted; {lost} held locks of database {db} were gone"))
            }
            RestartCause::Promoted(address) => Some(format!(
                "{address} is the master now; {lost} held locks of database {db} were gone there"
            )),
            RestartCause::Chosen(address) => Some(match lost {
                0 => format!("{address} is read from now on"),
                _ => format!(
                    "{address} is read from now on; {lost} held locks of database {db} were not there"
                ),
            }),
            RestartCause::Moved { drained: false, .. } if lost == 0 => None,
            RestartCause::Moved { count, .. } => Some(format!(
                "{count} known locks have moved to another node of the cluster; {lost} of those held were gone there"
            )),
        }
    }
}

impl Scope {
    /// Returns an empty scope, of which at most `rate` locks are read a second.
    pub(super) fn new(
        deployment: Arc<str>,
        db: u32,
        rate: u32,
        now: Moment,
        names: OwnerNames,
    ) -> Self {
        Self {
            deployment,
            db,
            front: None,
            agent_waits: HashMap::new(),
            locks: HashMap::new(),
            free: BTreeSet::new(),
            schedule: Schedule::new(rate, now),
            readable_since: None,
            listening_since: None,
            run_id: None,
            address: None,
            server_change: None,
            cluster: false,
            ahead_ms: 0,
            has_unwatched: false,
            clients: Clients::new(names),
            monitored: false,
            awaited: HashSet::new(),
            contended: BTreeSet::new(),
            acknowledged: HashSet::new(),
            restart: None,
            pass_began: None,
            refused: 0,
            not_kept: 0,
            possible: BTreeSet::new(),
            possible_refused: 0,
            possible_not_kept: 0,
            dirty: BTreeSet::new(),
            removed: Vec::new(),
        }
    }

    /// Sets the address and role of the server that is about to be reported as up.
    pub(super) fn set_address(&mut self, address: String, replica: bool) {
        let before = self.address.replace((address.clone(), replica));
        if let Some((before, was_replica)) = before
            && before != address
        {
            let by_choice = replica || was_replica;
            let cause = if by_choice { RestartCause::Chosen } else { RestartCause::Promoted };
            self.server_change = Some(cause(address));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.locks.is_empty() && self.removed.is_empty()
    }

    /// Returns whether all locks that a restart concerns have been read since.
    pub(super) fn is_restart_over(&self) -> bool {
        let Some(restart) = self.restart.as_ref().filter(|_| self.readable_since.is_some()) else {
            return false;
        };
        let read_again =
            |entry: &LockEntry| entry.record.last_sent().is_none_or(|at| at >= restart.at);
        match &restart.cause {
            RestartCause::Started | RestartCause::Promoted(_) | RestartCause::Chosen(_) => {
                self.locks.values().all(|entry| read_again(entry))
            }
            RestartCause::Moved { names, .. } => {
                names.iter().filter_map(|name| self.locks.get(name)).all(|entry| read_again(entry))
            }
        }
    }

    /// Returns whether the latest pass, and the current one so far, had room for every lock.
    pub(super) fn has_kept_all(&self) -> bool {
        self.not_kept == 0
            && self.refused == 0
            && self.possible_not_kept == 0
            && self.possible_refused == 0
    }

    /// Returns the context for an observation of one of its locks.
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

    /// Returns the identity of one of its locks.
    pub(super) fn id(&self, name: &LockName) -> LockId {
        LockId { deployment: Arc::clone(&self.deployment), db: self.db, name: name.clone() }
    }
}
