//! Which of a deployment's locks stand on one server: all of them, or in a cluster those whose slots it has.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redisson::LockName;
use redisson::slot;
use service_kit::redis::{Address, Cluster, Link, LinkStatus, Redirect, Slots};
use service_kit::shutdown::Shutdown;
use tokio::time::Instant;

/// For how long it counts who was connected to a node.
const CONNECTED_FOR: Duration = Duration::from_secs(45);
/// For how long a connection is kept to a node that serves nothing yet, after somebody was sent there.
const GUEST_FOR: Duration = Duration::from_secs(30);
/// The most such nodes at a time.
const MAX_GUESTS: usize = 16;

/// The part of a deployment that one server has. Cheap to clone.
#[derive(Debug, Clone)]
pub enum SlotShare {
    /// All of it.
    Whole,
    /// That node's part of a cluster.
    Node(Arc<Nodes>, Address),
}

/// What the nodes of one cluster know of one another.
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
    /// The node where messages are heard that go to all nodes.
    ear: Option<Address>,
    /// Who was connected to which node, and when.
    connected: HashMap<Address, (Instant, HashSet<IpAddr>)>,
    /// Nodes that are about to take over their first slots, and when somebody was sent there last.
    guests: HashMap<Address, (Instant, Link)>,
}

impl Nodes {
    /// None of them yet.
    pub(super) fn new(cluster: Cluster, shutdown: &Shutdown) -> Self {
        Self { cluster, shutdown: shutdown.clone(), known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These serve from now on, as those that they are read by.
    pub(super) fn set(&self, slots: Arc<Slots>, links: HashMap<Address, Link>) {
        let known = &mut *self.known();
        known.connected.retain(|address, _| links.contains_key(address));
        known.guests.retain(|address, _| !links.contains_key(address));
        (known.slots, known.links) = (slots, links);
    }

    /// A connection by which that node can be asked just now. One that serves nothing yet is connected to, so that it can
    /// soon.
    fn link_at(&self, address: &Address) -> Option<Link> {
        let known = &mut *self.known();
        let link = match known.links.get(address) {
            Some(link) => link.clone(),
            None => {
                if known.guests.len() >= MAX_GUESTS && !known.guests.contains_key(address) {
                    return None;
                }
                let target = self.cluster.target().node(address.clone());
                let made =
                    || (Instant::now(), super::connection::link(target.into(), &self.shutdown));
                let (used, link) = known.guests.entry(address.clone()).or_insert_with(made);
                *used = Instant::now();
                link.clone()
            }
        };
        let is_up = matches!(link.state().borrow().status, LinkStatus::Up(_));
        is_up.then_some(link)
    }

    /// Lets connections go that nobody has needed for a while.
    pub(super) fn tidy(&self) {
        self.known().guests.retain(|_, (used, _)| used.elapsed() < GUEST_FOR);
    }

    /// Messages that go to all nodes are to be heard there.
    pub(super) fn set_ear(&self, ear: Option<Address>) {
        self.known().ear = ear;
    }

    /// Where they are heard.
    pub(super) fn ear(&self) -> Option<Address> {
        self.known().ear.clone()
    }
}

impl SlotShare {
    /// Whether a lock stands there.
    pub(super) fn has(&self, name: &LockName) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(nodes, address) => {
                nodes.known().slots.owner(slot(name.as_bytes())) == Some(address)
            }
        }
    }

    /// Whether messages that go to all nodes are to be heard there.
    pub(super) fn hears_all(&self) -> bool {
        match self {
            Self::Whole => true,
            Self::Node(nodes, address) => nodes.known().ear.as_ref() == Some(address),
        }
    }

    /// The server has met with a sign that slots have moved, or is gone.
    pub(super) fn doubt(&self) {
        if let Self::Node(nodes, _) = self {
            nodes.cluster.refresh();
        }
    }

    /// The connection by which a key is read, where there is one; `link` is the server's own.
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

    /// A connection by which the node can be asked that the server has named; none where there is none just now.
    pub(super) fn link_at(&self, redirect: &Redirect) -> Option<Link> {
        let Self::Node(nodes, own) = self else { return None };
        let address = nodes.cluster.address(&redirect.host, redirect.port, own);
        nodes.link_at(&address)
    }

    /// These are connected to the server. All that are connected to the deployment, where that is known: a client need
    /// not be connected to each node all the time.
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
