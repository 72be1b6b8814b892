//! A fixed address, at which another server may take the place of the one that connections go to.
//!
//! A name gets another address, or a proxy passes new connections on to another server. The connections to the old server
//! stay open, although that server has become a replica or is cut off from the others. Each of them leaves it as soon as
//! another master is found at the address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::server_info::{Role, ServerInfo};

/// The live connections to one address.
#[derive(Debug)]
pub(super) struct FixedAddress {
    state: Mutex<State>,
    /// Requests another check of the address soon.
    suspect: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// The run id of the latest master that was found.
    master: Option<String>,
    /// The run id of the latest master that has become a replica.
    demoted: Option<String>,
    connections: HashMap<u64, Reached>,
    /// The number of the next connection.
    next: u64,
}

/// The server that a connection has reached.
#[derive(Debug)]
struct Reached {
    run_id: Option<String>,
    /// Set once the server was a master.
    master: bool,
    /// The IP address at the other end.
    peer: Option<IpAddr>,
    leave: CancellationToken,
}

/// A live connection, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    at: Arc<FixedAddress>,
    number: u64,
    leave: CancellationToken,
}

impl ConnectionGuard {
    /// Waits until the connection has to leave its server.
    pub(super) async fn left(&self) {
        self.leave.cancelled().await;
    }

    /// Records what the connection has found about its server.
    pub(super) fn found(&self, info: &ServerInfo) {
        self.at.found(self.number, info);
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.at.state.lock().connections.remove(&self.number);
    }
}

impl FixedAddress {
    pub(super) fn new(suspect: Arc<Notify>) -> Self {
        Self { state: Mutex::default(), suspect }
    }

    /// Adds a connection, which has found this server.
    pub(super) fn enter(self: &Arc<Self>, info: &ServerInfo) -> ConnectionGuard {
        let leave = CancellationToken::new();
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let reached =
            Reached { run_id: None, master: false, peer: info.peer, leave: leave.clone() };
        state.connections.insert(number, reached);
        drop(state);
        let place = ConnectionGuard { at: Arc::clone(self), number, leave };
        place.found(info);
        place
    }

    fn found(&self, number: u64, info: &ServerInfo) {
        let mut state = self.state.lock();
        let Some(connection) = state.connections.get_mut(&number) else { return };
        if connection.run_id != info.run_id {
            connection.run_id.clone_from(&info.run_id);
            connection.master = false;
        }
        connection.master |= info.role == Some(Role::Master);
        let was_master = connection.master || state.master == info.run_id;
        match info.role {
            Some(Role::Master) => state.found_master(info),
            Some(Role::Replica)
                if info.run_id.is_some() && was_master && state.demoted != info.run_id =>
            {
                state.demoted.clone_from(&info.run_id);
                state.leave_demoted();
                self.suspect.notify_one();
            }
            _ => {}
        }
    }

    /// Returns `true` if a connection may have to leave its server: the server has become a replica, or is not at any of
    /// the addresses that the name has now. Without addresses nothing is known of the name.
    pub(super) fn is_in_doubt(&self, now: &[IpAddr]) -> bool {
        let state = self.state.lock();
        let mut staying = state.staying();
        staying.any(|connection| state.is_demoted(connection) || connection.is_elsewhere(now))
    }

    /// Records the server that a new connection reaches while the name has the addresses `now`. The connections that are
    /// elsewhere leave, except those to the same server. Returns the addresses that they leave.
    pub(super) fn probed(&self, info: &ServerInfo, now: &[IpAddr]) -> Vec<IpAddr> {
        let mut state = self.state.lock();
        if info.role == Some(Role::Master) {
            state.found_master(info);
        }
        let other = |connection: &&Reached| {
            connection.is_elsewhere(now)
                && (info.run_id.is_none() || connection.run_id != info.run_id)
        };
        let leaving = state.staying().filter(other).inspect(|connection| connection.leave.cancel());
        let mut left: Vec<IpAddr> = leaving.filter_map(|connection| connection.peer).collect();
        left.sort_unstable();
        left.dedup();
        left
    }
}

impl State {
    fn found_master(&mut self, info: &ServerInfo) {
        if self.demoted == info.run_id {
            self.demoted = None;
        }
        self.master.clone_from(&info.run_id);
        self.leave_demoted();
    }

    /// Returns the connections that have not been told to leave.
    fn staying(&self) -> impl Iterator<Item = &Reached> {
        self.connections.values().filter(|connection| !connection.leave.is_cancelled())
    }

    fn is_demoted(&self, connection: &Reached) -> bool {
        connection.run_id.is_some() && connection.run_id == self.demoted
    }

    /// Tells the connections to a demoted master to leave, once another master was found.
    fn leave_demoted(&self) {
        if self.master.is_some() && self.master != self.demoted {
            let demoted = self.staying().filter(|connection| self.is_demoted(connection));
            demoted.for_each(|connection| connection.leave.cancel());
        }
    }
}

impl Reached {
    /// Returns `true` if the server is at none of these addresses, if there are any.
    fn is_elsewhere(&self, now: &[IpAddr]) -> bool {
        !now.is_empty() && self.peer.is_some_and(|peer| !now.contains(&peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses of a name.
    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn server(run_id: &str, role: Role) -> ServerInfo {
        ServerInfo { run_id: Some(run_id.to_owned()), role: Some(role), ..ServerInfo::default() }
    }

    fn master_at(run_id: &str, peer: IpAddr) -> ServerInfo {
        ServerInfo { peer: Some(peer), ..server(run_id, Role::Master) }
    }

    fn address() -> Arc<FixedAddress> {
        Arc::new(FixedAddress::new(Arc::default()))
    }

    /// Returns which of the connections have to leave.
    fn leave<const N: usize>(places: [&ConnectionGuard; N]) -> [bool; N] {
        places.map(|place| place.leave.is_cancelled())
    }

    #[test]
    fn connections_leave_a_demoted_master_once_another_one_is_found() {
        let address = address();
        let old = ["a", "a"].map(|id| address.enter(&server(id, Role::Master)));
        old[0].found(&server("a", Role::Replica));
        assert!(address.is_in_doubt(&[]));
        assert_eq!(leave([&old[0], &old[1]]), [false; 2], "there is nowhere to go");
        let new = address.enter(&server("b", Role::Master));
        assert_eq!(leave([&old[0], &old[1], &new]), [true, true, false]);
        assert!(!address.is_in_doubt(&[]));
        // One that reaches the old master anyway leaves it after the next probe.
        let late = address.enter(&server("a", Role::Replica));
        assert!(address.is_in_doubt(&[]) && leave([&late]) == [false]);
        address.probed(&server("b", Role::Master), &[]);
        assert_eq!(leave([&late, &new]), [true, false]);
    }

    #[test]
    fn a_master_is_left_although_another_one_was_found_before_its_demotion() {
        let address = address();
        let old = ["a", "a"].map(|id| address.enter(&server(id, Role::Master)));
        let new = address.enter(&server("b", Role::Master));
        old[0].found(&server("a", Role::Replica));
        assert_eq!(leave([&old[0], &old[1], &new]), [true, true, false]);
    }

    #[test]
    fn another_process_is_no_reason_to_leave_a_master() {
        let address = address();
        // Proxies may each report another process.
        let [a, b] = ["a", "b"].map(|id| address.enter(&server(id, Role::Master)));
        a.found(&server("c", Role::Master));
        // A replica behind the same name is not the master that was found.
        let replica = address.enter(&server("r", Role::Replica));
        assert!(!address.is_in_doubt(&[]));
        assert_eq!(leave([&a, &b, &replica]), [false; 3]);
    }

    #[test]
    fn a_demoted_master_that_is_promoted_again_is_kept() {
        let address = address();
        let place = address.enter(&server("a", Role::Master));
        place.found(&server("a", Role::Replica));
        place.found(&server("a", Role::Master));
        assert!(!address.is_in_doubt(&[]) && leave([&place]) == [false]);
    }

    #[test]
    fn other_addresses_of_the_same_server_are_no_move() {
        let address = address();
        let place = address.enter(&master_at("a", A));
        assert!(!address.is_in_doubt(&[]), "a lookup that fails is no news");
        assert!(!address.is_in_doubt(&[A, B]) && address.is_in_doubt(&[B]));
        assert!(address.probed(&master_at("a", B), &[B]).is_empty() && leave([&place]) == [false]);
        assert_eq!(address.probed(&master_at("b", B), &[B]), [A]);
        assert!(leave([&place]) == [true] && !address.is_in_doubt(&[B]));
    }

    #[test]
    fn a_connection_that_is_quicker_than_the_watcher_does_not_keep_the_others_at_the_old_server() {
        let address = address();
        let old = ["a", "a"].map(|id| address.enter(&master_at(id, A)));
        let quick = address.enter(&master_at("b", B));
        assert!(address.is_in_doubt(&[B]));
        assert_eq!(address.probed(&master_at("b", B), &[B]), [A]);
        assert_eq!(leave([&old[0], &old[1], &quick]), [true, true, false]);
    }

    #[test]
    fn a_name_that_has_both_addresses_for_a_while_still_moves() {
        let address = address();
        let old = address.enter(&master_at("a", A));
        assert!(!address.is_in_doubt(&[A]) && !address.is_in_doubt(&[A, B]));
        let new = address.enter(&master_at("b", B));
        assert!(address.is_in_doubt(&[B]));
        assert_eq!(address.probed(&master_at("b", B), &[B]), [A]);
        assert_eq!(leave([&old, &new]), [true, false]);
        drop((old, new));
        assert!(!address.is_in_doubt(&[]) && address.state.lock().connections.is_empty());
    }
}
