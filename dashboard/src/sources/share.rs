//! Which of a deployment's locks stand on one server: all of them, or in a cluster those whose slots it has.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redisson::LockName;
use redisson::slot;
use service_kit::redis_link::{Address, Cluster, Link, Slots};
use tokio::time::Instant;

/// For how long it counts who was connected to a node.
const CONNECTED_FOR: Duration = Duration::from_secs(45);

/// The part of a deployment that one server has. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Share {
    /// All of it.
    Whole,
    /// That node's part of a cluster.
    Node(Arc<Nodes>, Address),
}

/// What the nodes of one cluster know of one another.
#[derive(Debug)]
pub struct Nodes {
    cluster: Cluster,
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
}

impl Nodes {
    /// None of them yet.
    pub(super) fn new(cluster: Cluster) -> Self {
        Self { cluster, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These serve from now on, as those that they are read by.
    pub(super) fn set(&self, slots: Arc<Slots>, links: HashMap<Address, Link>) {
        let known = &mut *self.known();
        known.connected.retain(|address, _| links.contains_key(address));
        (known.slots, known.links) = (slots, links);
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

impl Share {
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
