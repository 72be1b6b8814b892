//! Clients and agents: their addresses, and whether they are alive.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use redisson::{ClientId, Moment};

use super::owner_names::OwnerNames;
use super::problem::Gone;
use super::silence::Silence;
use crate::clock::Time;
use crate::model::types::{AgentReport, ClientView, Connections, GONE_AFTER, Presence};

/// The maximum number of clients whose addresses are retained for one database.
const MAX_CLIENTS: usize = 10_000;
/// The maximum number of addresses of one client.
const MAX_ADDRESSES: usize = 4;
/// The maximum number of connections of one client that are compared with a list of clients.
const MAX_CONNECTIONS: usize = 4;
/// The time for which a client counts as active at its addresses.
const ACTIVE: Duration = Duration::from_secs(600);
/// The beginning of the names of an agent's connections.
const AGENT: &str = "lockscope-agent";
/// The resolution of a connection's age in a list of clients.
const AGE_STEP: Duration = Duration::from_secs(1);

/// The addresses of clients, and the agents among them.
#[derive(Debug, Default)]
pub struct Clients {
    clients: HashMap<ClientId, Client>,
    agents: HashMap<ClientId, Agent>,
    names: OwnerNames,
    /// The silence since the latest list of clients.
    unlisted: Silence,
    /// The silence since the latest report of agents.
    unreported: Silence,
    /// Incremented with each change of the results of [`Clients::view`] and [`Clients::agent_lives`].
    version: u64,
}

/// An agent that has published itself.
#[derive(Debug, Clone)]
struct Agent {
    checked: Moment,
    /// True if the agent has published a holder; its Redis user may lack the permission.
    publishes: bool,
    missing_since: Option<Time>,
    gone: bool,
}

#[derive(Debug, Clone)]
struct Client {
    /// The connections of a pool have many ports, so only the hosts are compared.
    addresses: Vec<IpAddr>,
    /// The latest connections, each with the first command that was seen on it.
    connections: Vec<(SocketAddr, Moment)>,
    /// The name that the client sets on its connections.
    name: Option<Arc<str>>,
    seen: Moment,
    /// The result of the last check, or `None` before the first.
    connected: Option<bool>,
    missing_since: Option<Time>,
    gone: bool,
}

impl Clients {
    /// Returns an empty table that shares these names.
    #[must_use]
    pub fn new(names: OwnerNames) -> Self {
        Self { names, ..Self::default() }
    }

    /// Records activity of a client on a connection from that address.
    pub fn record_activity(&mut self, id: ClientId, connection: SocketAddr, at: Moment) {
        let address = connection.ip();
        if !self.clients.contains_key(&id) && self.clients.len() >= MAX_CLIENTS {
            let oldest =
                self.clients.iter().min_by_key(|(_, client)| client.seen).map(|(id, _)| *id);
            oldest.map(|oldest| self.clients.remove(&oldest));
            self.version += 1;
        }
        let client = self.clients.entry(id).or_insert_with(|| Client {
            addresses: Vec::new(),
            connections: Vec::new(),
            name: None,
            seen: at,
            connected: None,
            missing_since: None,
            gone: false,
        });
        let before = (client.connected, client.gone, client.addresses.first().copied());
        (client.seen, client.connected) = (client.seen.max(at), Some(true));
        (client.missing_since, client.gone) = (None, false);
        if !client.addresses.contains(&address) {
            client.addresses.truncate(MAX_ADDRESSES - 1);
            client.addresses.insert(0, address);
        }
        if !client.connections.iter().any(|(known, _)| *known == connection) {
            client.connections.truncate(MAX_CONNECTIONS - 1);
            client.connections.insert(0, (connection, at));
        }
        let after = (client.connected, client.gone, client.addresses.first().copied());
        self.version += u64::from(before != after);
    }

    /// Returns whether a client, and no other, has recently been active from that address.
    #[must_use]
    pub fn is_alone_at(&self, id: &ClientId, address: IpAddr, now: Moment) -> bool {
        let is_there = |client: &Client| client.addresses.contains(&address);
        let here = |(_, client): &(&ClientId, &Client)| {
            now.since(client.seen) <= ACTIVE && is_there(client)
        };
        self.clients.get(id).is_some_and(is_there)
            && self.clients.iter().filter(here).all(|(other, _)| other == id)
    }

    /// Applies a list of all connected clients. Returns true if a client is now found gone or back.
    pub fn connected(&mut self, connections: &Connections, at: Time) -> bool {
        let mut changed = false;
        self.unlisted.end();
        let addresses = &connections.addresses;
        for client in self.clients.values_mut().filter(|client| client.seen < at.moment()) {
            let here = client.addresses.iter().any(|address| addresses.contains(address));
            self.version += u64::from(client.connected != Some(here));
            client.connected = Some(here);
            if here {
                client.missing_since = None;
            } else {
                client.missing_since.get_or_insert(at);
            }
            let gone = client.missing_since.is_some_and(|since| at.since(since) >= GONE_AFTER);
            changed |= client.gone != gone;
            client.gone = gone;
        }
        self.version += u64::from(changed);
        changed
    }

    /// Records that time has passed. Once the latest list of clients is too old, only a client that has just been active is
    /// known to be connected. Returns true if a client no longer counts as gone.
    pub fn forget_unlisted(&mut self, passed: Duration, now: Moment) -> bool {
        if !self.unlisted.add(passed) {
            return false;
        }
        let mut changed = false;
        for client in self.clients.values_mut() {
            let active = now.since(client.seen) < ACTIVE;
            let connected = client.connected.filter(|here| *here && active);
            self.version += u64::from(client.connected != connected);
            changed |= client.gone;
            (client.connected, client.missing_since, client.gone) = (connected, None, false);
        }
        self.version += u64::from(changed);
        changed
    }

    /// Finds the names of clients in a list of all connections. Returns the clients with a new name.
    pub fn name_clients(
        &mut self,
        connections: &Connections,
        at: Moment,
    ) -> Vec<(ClientId, String)> {
        let mut named = Vec::new();
        for (id, client) in &mut self.clients {
            // Only a connection that is older than the command seen on it is still the same.
            let name = client.connections.iter().find_map(|(address, seen)| {
                let (name, age) = connections.names.get(address)?;
                (*age + AGE_STEP >= at.since(*seen)).then_some(name)
            });
            let Some(name) = name.filter(|name| client.name.as_ref() != Some(*name)) else {
                continue;
            };
            client.name = Some(Arc::clone(name));
            self.version += 1;
            let addr = client.addresses.first().map(ToString::to_string);
            // Each of an agent's connections has a different name.
            let own = if name.starts_with(AGENT) { AGENT } else { name };
            let view = ClientView { name: Some(own.to_owned()), addr, ..ClientView::default() };
            named.extend(view.label().map(|label| (*id, label)));
        }
        named.retain(|(id, label)| self.names.record(&id.to_string(), label));
        named.sort_unstable();
        named
    }

    /// Returns the names of holders and clients.
    #[must_use]
    pub fn names(&self) -> &OwnerNames {
        &self.names
    }

    /// Applies a report. Returns true if an agent is now found gone or back. An agent that has never published itself
    /// may lack the permission, so it does not count as gone.
    pub fn report(&mut self, report: &AgentReport) -> bool {
        self.unreported.end();
        let mut changed = false;
        for (id, presence) in &report.agents {
            let is_new = *presence != Presence::Unknown && !self.agents.contains_key(id);
            if is_new {
                if self.agents.len() >= MAX_CLIENTS {
                    let oldest = self.agents.iter().min_by_key(|(_, agent)| agent.checked);
                    oldest.map(|(id, _)| *id).map(|oldest| self.agents.remove(&oldest));
                }
                let agent = Agent {
                    checked: report.at.moment(),
                    publishes: false,
                    missing_since: None,
                    gone: false,
                };
                self.agents.insert(*id, agent);
            }
            let Some(agent) = self.agents.get_mut(id) else { continue };
            agent.checked = report.at.moment();
            let before = agent.lives();
            if *presence == Presence::Present {
                agent.missing_since = None;
            } else {
                agent.missing_since.get_or_insert(report.at);
            }
            let missing = agent.missing_since;
            let gone = missing.is_some_and(|since| report.at.since(since) >= GONE_AFTER);
            changed |= agent.gone != gone;
            agent.gone = gone;
            self.version += u64::from(is_new || agent.lives() != before);
        }
        for (_, id, identity) in &report.holders {
            if let Some(agent) = self.agents.get_mut(&id.client) {
                agent.publishes |= identity.is_some();
            }
        }
        changed
    }

    /// Records that time has passed. Once the latest report of agents is too old, all agents are forgotten. Returns true if
    /// one was known.
    pub fn forget_unreported(&mut self, passed: Duration) -> bool {
        if !self.unreported.add(passed) || self.agents.is_empty() {
            return false;
        }
        self.agents.clear();
        self.version += 1;
        true
    }

    /// Takes over what another table knows of these clients, except where this one knows something later.
    pub fn adopt(&mut self, other: &Self, ids: impl Iterator<Item = ClientId>) {
        self.unlisted = self.unlisted.min(other.unlisted);
        for id in ids {
            adopt(&mut self.clients, &other.clients, id, |client| client.seen);
            adopt(&mut self.agents, &other.agents, id, |agent| agent.checked);
            self.version += 1;
        }
    }

    /// Returns whether that agent would publish a holder: it is alive, and publishes others.
    #[must_use]
    pub fn would_publish(&self, id: &ClientId) -> bool {
        self.agents.get(id).is_some_and(|agent| agent.publishes && agent.missing_since.is_none())
    }

    /// Returns the evidence that a client is gone, if it is.
    #[must_use]
    pub fn gone(&self, id: &ClientId) -> Option<Gone> {
        if let Some(agent) = self.agents.get(id).filter(|agent| agent.gone) {
            let since = agent.missing_since?.steady();
            let evidence = "its agent has not reported for more than a minute".to_owned();
            return Some(Gone { since, evidence });
        }
        let client = self.clients.get(id).filter(|client| client.gone)?;
        let since = client.missing_since?.steady();
        let from: Vec<String> = client.addresses.iter().map(ToString::to_string).collect();
        let evidence = format!(
            "no client is connected any more from {}, the last known address of its client",
            from.join(" or ")
        );
        Some(Gone { since, evidence })
    }

    /// Returns a client for display.
    #[must_use]
    pub fn view(&self, id: &ClientId) -> Option<ClientView> {
        let remembered = || self.names.name(&id.to_string()).map(|name| name.to_string());
        let Some(client) = self.clients.get(id) else {
            return Some(ClientView { name: Some(remembered()?), ..ClientView::default() });
        };
        let addr = Some(client.addresses.first()?.to_string());
        let alive = if client.gone { Some(false) } else { client.connected.filter(|here| *here) };
        let own = client.name.as_ref().filter(|name| !name.starts_with(AGENT));
        let name = own.map(ToString::to_string).or_else(remembered);
        Some(ClientView { addr, name, alive, ..ClientView::default() })
    }

    /// Returns whether an agent is alive, or `None` if it has never published itself, or has just disappeared.
    #[must_use]
    pub fn agent_lives(&self, id: &ClientId) -> Option<bool> {
        self.agents.get(id)?.lives()
    }

    /// Returns a number that grows with each change in the display of clients and agents.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version + self.names.version()
    }
}

/// Takes over the later one of two entries, if there is room.
fn adopt<T: Clone>(
    into: &mut HashMap<ClientId, T>,
    from: &HashMap<ClientId, T>,
    id: ClientId,
    time: impl Fn(&T) -> Moment,
) {
    let Some(other) = from.get(&id) else { return };
    let is_new = match into.get(&id) {
        Some(own) => time(own) < time(other),
        None => into.len() < MAX_CLIENTS,
    };
    if is_new {
        into.insert(id, other.clone());
    }
}

impl Agent {
    /// Returns whether the agent is alive, or `None` if it has just disappeared.
    fn lives(&self) -> Option<bool> {
        match (self.gone, self.missing_since) {
            (true, _) => Some(false),
            (false, None) => Some(true),
            (false, Some(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SteadyMillis;

    fn at(secs: u64) -> Moment {
        Moment::from_micros(secs * 1_000_000)
    }

    fn id(n: u64) -> ClientId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        ClientId::from_random(bytes)
    }

    fn ip(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 5_123)
    }

    #[test]
    fn a_client_is_gone_once_two_checks_far_enough_apart_miss_it() {
        let mut clients = Clients::default();
        clients.record_activity(id(1), ip("10.0.0.7"), at(0));
        clients.record_activity(id(1), ip("10.0.0.8"), at(1));
        let check = |clients: &mut Clients, secs: u64, addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| ip(address).ip()).collect();
            let connections = Connections { addresses, ..Connections::default() };
            clients.connected(&connections, Time::of_test(secs * 1_000, 0))
        };
        assert!(!check(&mut clients, 10, &["10.0.0.7"]), "one of its addresses is enough");
        assert_eq!(clients.view(&id(1)).unwrap().alive, Some(true));
        assert!(!check(&mut clients, 40, &["10.0.0.9"]));
        assert_eq!((clients.gone(&id(1)), clients.view(&id(1)).unwrap().alive), (None, None));
        assert!(!check(&mut clients, 69, &["10.0.0.9"]));
        assert!(check(&mut clients, 70, &["10.0.0.9"]));
        let gone = clients.gone(&id(1)).unwrap();
        assert_eq!(gone.since, SteadyMillis(40_000));
        assert!(gone.evidence.contains("10.0.0.7") && gone.evidence.contains("10.0.0.8"));
        assert_eq!(clients.view(&id(1)).unwrap().alive, Some(false));
        assert!(check(&mut clients, 80, &["10.0.0.8"]), "it is back");
        assert_eq!(clients.gone(&id(1)), None);
        check(&mut clients, 90, &[]);
        clients.record_activity(id(1), ip("10.0.0.9"), at(100));
        check(&mut clients, 125, &["10.0.0.9"]);
        assert_eq!(clients.gone(&id(1)), None, "it moved");
    }

    #[test]
    fn clients_are_bounded_and_the_latest_are_retained() {
        let mut clients = Clients::default();
        for n in 0..MAX_CLIENTS as u64 + 3 {
            clients.record_activity(id(n), ip("10.0.0.1"), at(n));
        }
        assert_eq!(clients.clients.len(), MAX_CLIENTS);
        assert!(clients.view(&id(2)).is_none() && clients.view(&id(3)).is_some());
        for n in 0..10_u8 {
            clients.record_activity(id(3), ip(&format!("10.0.1.{n}")), at(99_999));
        }
        assert_eq!(clients.clients[&id(3)].addresses.len(), MAX_ADDRESSES);
        assert_eq!(clients.view(&id(3)).unwrap().addr.as_deref(), Some("10.0.1.9"));
    }

    #[test]
    fn the_later_knowledge_of_a_client_is_adopted_with_the_time_of_its_list() {
        let time = |secs: u64| Time::of_test(secs * 1_000, 0);
        let mut source = Clients::default();
        let mut target = Clients::default();
        // The target has seen client 1 and agent 2 first, the source has found both gone since then.
        let report = |clients: &mut Clients, secs: u64, presence: Presence| {
            let agents = vec![(id(2), presence)];
            clients.report(&AgentReport { agents, holders: Vec::new(), at: time(secs) });
        };
        target.record_activity(id(1), ip("10.0.0.7"), at(1));
        report(&mut target, 1, Presence::Present);
        source.record_activity(id(1), ip("10.0.0.7"), at(2));
        for secs in [10, 50] {
            source.connected(&Connections::default(), time(secs));
            report(&mut source, secs, Presence::Missing);
        }
        target.forget_unlisted(Duration::from_secs(599), at(50));
        target.adopt(&source, [id(1), id(2)].into_iter());
        assert!(target.gone(&id(1)).is_some() && target.gone(&id(2)).is_some());
        assert!(!target.forget_unlisted(Duration::from_secs(599), at(649)), "it is still valid");
        assert!(target.gone(&id(1)).is_some());
        // What the source knew before does not replace later knowledge.
        target.record_activity(id(1), ip("10.0.0.7"), at(70));
        report(&mut target, 70, Presence::Present);
        target.adopt(&source, [id(1), id(2)].into_iter());
        assert!(target.gone(&id(1)).is_none() && target.gone(&id(2)).is_none());
    }

    #[test]
    fn a_client_has_the_name_of_a_connection_that_it_was_seen_on() {
        let mut clients = Clients::default();
        let list = |address: &str, name: &str, age: u64| Connections {
            names: [(address.parse().unwrap(), (name.into(), Duration::from_secs(age)))].into(),
            ..Connections::default()
        };
        clients.record_activity(id(1), "10.0.0.7:5000".parse().unwrap(), at(10));
        clients.record_activity(id(1), "10.0.0.7:5001".parse().unwrap(), at(20));
        let none: Vec<(ClientId, String)> = Vec::new();
        assert_eq!(clients.name_clients(&list("10.0.0.7:5002", "other", 99), at(30)), none);
        assert_eq!(
            clients.name_clients(&list("10.0.0.7:5000", "later", 18), at(30)),
            none,
            "a new one"
        );
        let named = vec![(id(1), "invoices@web-7".to_owned())];
        assert_eq!(
            clients.name_clients(&list("10.0.0.7:5000", "invoices@web-7", 19), at(30)),
            named
        );
        assert_eq!(
            clients.name_clients(&list("10.0.0.7:5000", "invoices@web-7", 29), at(40)),
            none
        );
        assert_eq!(clients.view(&id(1)).unwrap().label().as_deref(), Some("invoices@web-7"));
        let remembered = Clients::new(clients.names().clone());
        assert_eq!(remembered.view(&id(1)).unwrap().label().as_deref(), Some("invoices@web-7"));
    }
}
