//! A server's share of a deployment's locks: all of them, or in a cluster those in its slots.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redisson::LockName;
use redisson::slot;
use service_kit::redis::{Address, Cluster, Link, LinkStatus, Redirect, Slots};
use service_kit::shutdown::Shutdown;
use tokio::time::Instant;

/// The validity of a node's list of clients.
const CONNECTED_FOR: Duration = Duration::from_secs(45);
/// The time for which a connection to a node without slots is kept after the last redirect to it.
const PROVISIONAL_FOR: Duration = Duration::from_secs(30);
/// The most connections to such nodes.
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
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    slots: Arc<Slots>,
    /// Connections for reading, by node.
    links: HashMap<Address, Link>,
    /// The node that receives the messages that reach all nodes.
    listener: Option<Address>,
    /// The clients connected to each node, and the time of that list.
    connected: HashMap<Address, (Instant, HashSet<IpAddr>)>,
    /// Connections to nodes that are about to take over their first slots, and the last redirect to each.
    provisional: HashMap<Address, (Instant, Link)>,
}

impl Nodes {
    pub(super) fn new(cluster: Cluster, shutdown: &Shutdown) -> Self {
        Self { cluster, shutdown: shutdown.clone(), known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the slots, and the connections by which nodes are read.
    pub(super) fn set(&self, slots: Arc<Slots>, links: HashMap<Address, Link>) {
        let known = &mut *self.known();
        known.connected.retain(|address, _| links.contains_key(address));
        known.provisional.retain(|address, _| !links.contains_key(address));
        (known.slots, known.links) = (slots, links);
    }

    /// Returns a working connection to that node. A node without slots is connected to on the first call, for the next
    /// ones.
    fn link_at(&self, address: &Address) -> Option<Link> {
        let known = &mut *self.known();
        let link = match known.links.get(address) {
            Some(link) => link.clone(),
            None => {
                if known.provisional.len() >= MAX_PROVISIONAL
                    && !known.provisional.contains_key(address)
                {
                    return None;
                }
                let target = self.cluster.target().node(address.clone());
                let made =
                    || (Instant::now(), super::connection::link(target.into(), &self.shutdown));
                let (used, link) = known.provisional.entry(address.clone()).or_insert_with(made);
                *used = Instant::now();
                link.clone()
            }
        };
        let is_up = matches!(link.state().borrow().status, LinkStatus::Up(_));
        is_up.then_some(link)
    }

    /// Closes connections that nobody has needed for a while.
    pub(super) fn tidy(&self) {
        self.known().provisional.retain(|_, (used, _)| used.elapsed() < PROVISIONAL_FOR);
    }

    /// Sets the node that receives the messages that reach all nodes.
    pub(super) fn set_listener(&self, listener: Option<Address>) {
        self.known().listener = listener;
    }

    pub(super) fn listener(&self) -> Option<Address> {
        self.known().listener.clone()
    }
}

impl SlotShare {
    /// Returns whether the server has that lock.
    pub(super) fn has(&self, name: &LockName) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(nodes, address) => {
                nodes.known().slots.owner(slot(name.as_bytes())) == Some(address)
            }
        }
    }

    /// Returns whether the server receives the messages that reach all nodes.
    pub(super) fn receives_all(&self) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(nodes, address) => nodes.known().listener.as_ref() == Some(address),
        }
    }

    /// Refreshes the slots after a redirect, or after the loss of the server.
    pub(super) fn suspect(&self) {
        if let Self::Node(nodes, _) = self {
            nodes.cluster.refresh();
        }
    }

    /// Returns the connection by which a key is read, if any; `link` is the server's own.
    pub(super) fn link_of(&self, key: &[u8], link: &Link) -> Option<(Option<Address>, Link)> {
        match self {
            Self::Whole => Some((None, link.clone())),
            Self::Node(nodes, _) => {
                let known = nodes.known();
                let owner = known.slots.owner(slot(key))?;
                Some((Some(owner.clone()), known.links.get(owner)?.clone()))
            }
        }
    }

    /// Returns a connection to the node that a redirect names, if there is one.
    pub(super) fn link_at(&self, redirect: &Redirect) -> Option<Link> {
        let Self::Node(nodes, own) = self else { return None };
        let address = nodes.cluster.address(&redirect.host, redirect.port, own);
        nodes.link_at(&address)
    }

    /// Stores the clients connected to the server. Returns those of the whole deployment once all are known: a client need not
    /// be connected to each node all the time.
    pub(super) fn connected(&self, addresses: HashSet<IpAddr>) -> Option<HashSet<IpAddr>> {
        let Self::Node(nodes, address) = self else { return Some(addresses) };
        let known = &mut *nodes.known();
        known.connected.insert(address.clone(), (Instant::now(), addresses));
        let mut all = HashSet::new();
        for master in known.slots.masters() {
            let (at, addresses) = known.connected.get(master)?;
            if at.elapsed() > CONNECTED_FOR {
                return None;
            }
            all.extend(addresses);
        }
        Some(all)
    }
}
