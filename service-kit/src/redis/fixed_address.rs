//! A fixed address, at which another server may take the place of the one that connections go to.
//!
//! A name gets another address, or a proxy passes new connections on to another server. The connections to the old server
//! stay open, although that server has become a replica or is cut off from the others. They leave it as soon as another
//! master is found at the address.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::server_info::{Role, ServerInfo};

/// The state that all connections to one address share.
pub(super) struct FixedAddress {
    master: Mutex<Option<Master>>,
    /// Grows whenever another master is found.
    moves: watch::Sender<u64>,
    /// Requests another check of the address soon.
    suspect: Arc<Notify>,
}

/// The latest master that was found.
struct Master {
    /// The id of its process.
    run_id: Option<String>,
    /// Set while that process is a replica.
    demoted: bool,
}

/// The moves to another master since a connection began.
#[derive(Debug)]
pub(super) struct Moves(Option<watch::Receiver<u64>>);

impl Moves {
    /// For addresses that are not fixed.
    pub(super) const NONE: Self = Self(None);

    /// Waits until another master is found.
    pub(super) async fn next(&mut self) {
        if let Some(moves) = &mut self.0
            && moves.changed().await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }

    fn ignore_earlier(&mut self) {
        if let Some(moves) = &mut self.0 {
            moves.mark_unchanged();
        }
    }
}

impl FixedAddress {
    pub(super) fn new(suspect: Arc<Notify>) -> Self {
        Self { master: Mutex::default(), moves: watch::Sender::new(0), suspect }
    }

    /// Returns the moves from now on.
    pub(super) fn moves(&self) -> Moves {
        Moves(Some(self.moves.subscribe()))
    }

    /// Returns `true` while the latest master is a replica, and no other master was found.
    pub(super) fn is_demoted(&self) -> bool {
        self.lock().as_ref().is_some_and(|master| master.demoted)
    }

    /// Records what a connection has found. `moves` are those of a connection that began just before.
    pub(super) fn found(&self, info: &ServerInfo, moves: Option<&mut Moves>) {
        let mut known = self.lock();
        match (info.role, &mut *known) {
            (Some(Role::Master), known) => {
                let other = known.as_ref().is_some_and(|known| known.run_id != info.run_id);
                let left = other && known.as_ref().is_some_and(|known| known.demoted);
                *known = Some(Master { run_id: info.run_id.clone(), demoted: false });
                if left {
                    self.moves.send_modify(|moves| *moves += 1);
                }
                if let Some(moves) = moves {
                    moves.ignore_earlier();
                }
            }
            (Some(Role::Replica), Some(known))
                if info.run_id.is_some() && known.run_id == info.run_id && !known.demoted =>
            {
                known.demoted = true;
                self.suspect.notify_one();
            }
            _ => {}
        }
    }

    /// Records the master that was found at other addresses of the name. Returns `true` if it is another server, so that
    /// all connections leave the old one.
    pub(super) fn found_elsewhere(&self, info: &ServerInfo) -> bool {
        let mut known = self.lock();
        if info.run_id.is_some() && known.as_ref().is_some_and(|known| known.run_id == info.run_id)
        {
            return false;
        }
        *known = Some(Master { run_id: info.run_id.clone(), demoted: false });
        self.moves.send_modify(|moves| *moves += 1);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<Master>> {
        self.master.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn server(run_id: &str, role: Role) -> ServerInfo {
        ServerInfo { run_id: Some(run_id.to_owned()), role: Some(role), ..ServerInfo::default() }
    }

    /// Returns whether the connection has to leave.
    fn has_moved(moves: &mut Moves) -> bool {
        moves.next().now_or_never().is_some()
    }

    #[test]
    fn connections_leave_a_demoted_master_once_another_one_is_found() {
        let address = FixedAddress::new(Arc::default());
        let mut old = address.moves();
        address.found(&server("a", Role::Master), Some(&mut old));
        address.found(&server("a", Role::Replica), None);
        assert!(address.is_demoted() && !has_moved(&mut old), "there is nowhere to go");
        let mut new = address.moves();
        address.found(&server("b", Role::Master), Some(&mut new));
        assert!(has_moved(&mut old) && !has_moved(&mut new) && !address.is_demoted());
    }

    #[test]
    fn another_process_is_no_reason_to_leave_a_master() {
        let address = FixedAddress::new(Arc::default());
        let mut moves = address.moves();
        // Proxies may each report another process.
        for run_id in ["a", "b", "a"] {
            address.found(&server(run_id, Role::Master), None);
        }
        // A replica behind the same name is not the master that was found.
        address.found(&server("r", Role::Replica), None);
        assert!(!address.is_demoted() && !has_moved(&mut moves));
    }

    #[test]
    fn a_demoted_master_that_is_promoted_again_is_kept() {
        let address = FixedAddress::new(Arc::default());
        let mut moves = address.moves();
        for role in [Role::Master, Role::Replica, Role::Master] {
            address.found(&server("a", role), None);
        }
        assert!(!address.is_demoted() && !has_moved(&mut moves));
    }

    #[test]
    fn other_addresses_of_the_same_server_are_no_move() {
        let address = FixedAddress::new(Arc::default());
        let mut moves = address.moves();
        address.found(&server("a", Role::Master), Some(&mut moves));
        assert!(!address.found_elsewhere(&server("a", Role::Master)) && !has_moved(&mut moves));
        assert!(address.found_elsewhere(&server("b", Role::Master)) && has_moved(&mut moves));
    }
}
