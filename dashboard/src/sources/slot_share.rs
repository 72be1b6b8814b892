//! A server's share of a deployment's locks: all of them, or in a cluster those in its slots.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redisson::LockName;
use redisson::slot;
use service_kit::redis::{Address, Cluster, Link, LinkStatus, Redirect, Slots};
use service_kit::shutdown::Shutdown;
use tokio::time::Instant;

use crate::model::types::Connections;

/// The validity of a node's list of clients.
const CLIENTS_VALIDITY: Duration = Duration::from_secs(45);
/// The time for which a connection to a node without slots stays open after the last redirect to it.
const PROVISIONAL_VALIDITY: Duration = Duration::from_secs(30);
/// The maximum number of connections to such nodes.
const MAX_PROVISIONAL: usize = 16;

/// One server's share of a deployment. Cheap to clone.
#[derive(Debug, Clone)]
pub enum SlotShare {
    Whole,
    /// The share of a cluster's node.
    Node(Arc<Nodes>, Address),
}

/// State shared by the nodes of one cluster.
#[derive(Debug)]
pub struct Nodes {
    cluster: Cluster,
    shutdown: Shutdown,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: Arc<Slots>,
    /// Connections for reading, by node.
    links: HashMap<Address, Link>,
    /// The node that receives the messages sent to all nodes.
    listener: Option<Address>,
    /// The clients connected to each node, and the time of that list.
    connected: HashMap<Address, (Instant, Connections)>,
    /// Connections to nodes that are about to take over their first slots, and the last redirect to each.
    provisional: HashMap<Address, (Instant, Link)>,
}

impl Nodes {
    #[must_use]
    pub fn new(cluster: Cluster, shutdown: &Shutdown) -> Self {
        Self { cluster, shutdown: shutdown.clone(), state: Mutex::default() }
    }

    /// Sets the slots, and the connections through which nodes are read.
    pub fn set(&self, slots: Arc<Slots>, links: HashMap<Address, Link>) {
        let state = &mut *self.state.lock();
        state.connected.retain(|address, _| links.contains_key(address));
        state.provisional.retain(|address, _| !links.contains_key(address));
        (state.slots, state.links) = (slots, links);
    }

    /// Returns a working connection to that node. The first call for a node without slots starts a connection for later
    /// calls.
    fn link_at(&self, address: &Address) -> Option<Link> {
        let state = &mut *self.state.lock();
        let link = match state.links.get(address) {
            Some(link) => link.clone(),
            None => {
                if state.provisional.len() >= MAX_PROVISIONAL
                    && !state.provisional.contains_key(address)
                {
                    return None;
                }
                let target = self.cluster.target().node(address.clone());
                let made =
                    || (Instant::now(), super::connection::link(target.into(), &self.shutdown));
                let (used, link) = state.provisional.entry(address.clone()).or_insert_with(made);
                *used = Instant::now();
                link.clone()
            }
        };
        let is_up = matches!(link.state().borrow().status, LinkStatus::Up(_));
        is_up.then_some(link)
    }

    /// Closes connections that have not been used for a while.
    pub(super) fn tidy(&self) {
        self.state.lock().provisional.retain(|_, (used, _)| used.elapsed() < PROVISIONAL_VALIDITY);
    }

    /// Sets the node that receives the messages sent to all nodes.
    pub(super) fn set_listener(&self, listener: Option<Address>) {
        self.state.lock().listener = listener;
    }

    pub(super) fn listener(&self) -> Option<Address> {
        self.state.lock().listener.clone()
    }
}

impl SlotShare {
    /// Returns whether the server has that lock.
    pub(super) fn has(&self, name: &LockName) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(nodes, address) => {
                nodes.state.lock().slots.owner(slot(name.as_bytes())) == Some(address)
            }
        }
    }

    /// Returns whether the server receives the messages sent to all nodes.
    pub(super) fn receives_all(&self) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(nodes, address) => nodes.state.lock().listener.as_ref() == Some(address),
        }
    }

    /// Refreshes the slots after a redirect, or after the loss of the server.
    pub(super) fn suspect(&self) {
        if let Self::Node(nodes, _) = self {
            nodes.cluster.refresh();
        }
    }

    /// Returns the connection through which a key is read, if any. `link` is the server's own connection.
    pub(super) fn link_of(&self, key: &[u8], link: &Link) -> Option<(Option<Address>, Link)> {
        match self {
            Self::Whole => Some((None, link.clone())),
            Self::Node(nodes, _) => {
                let state = nodes.state.lock();
                let owner = state.slots.owner(slot(key))?;
                Some((Some(owner.clone()), state.links.get(owner)?.clone()))
            }
        }
    }

    /// Returns a connection to the node that a redirect names, if there is one.
    pub(super) fn link_at(&self, redirect: &Redirect) -> Option<Link> {
        let Self::Node(nodes, own) = self else { return None };
        let address = nodes.cluster.address(&redirect.host, redirect.port, own);
        nodes.link_at(&address)
    }

    /// Stores the clients connected to the server. Returns those of the whole deployment once all nodes are known, since a
    /// client need not be connected to each node all the time.
    pub(super) fn connected(&self, connections: Connections) -> Option<Connections> {
        let Self::Node(nodes, address) = self else { return Some(connections) };
        let state = &mut *nodes.state.lock();
        state.connected.insert(address.clone(), (Instant::now(), connections));
        let mut all = Connections::default();
        for master in state.slots.masters() {
            let (at, connections) = state.connected.get(master)?;
            if at.elapsed() > CLIENTS_VALIDITY {
                return None;
            }
            all.extend(connections);
        }
        Some(all)
    }
}
