//! Clients and agents: their addresses, and whether they are alive.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use redisson::{ClientId, Moment};

use super::problem::Gone;
use crate::clock::SteadyMillis;
use crate::model::types::{AgentReport, ClientView, GONE_AFTER, Presence};

/// The most clients whose addresses are retained for one database.
const MAX_CLIENTS: usize = 10_000;
/// The most addresses of one client.
const MAX_ADDRESSES: usize = 4;

/// The addresses of clients, and the agents among them.
#[derive(Debug, Default)]
pub struct Clients {
    clients: HashMap<ClientId, Client>,
    agents: HashMap<ClientId, Agent>,
}

/// An agent that has published itself.
#[derive(Debug)]
struct Agent {
    checked: Moment,
    /// It has published a holder; its account may lack the permission.
    publishes: bool,
    missing_since: Option<(Moment, SteadyMillis)>,
    gone: bool,
}

#[derive(Debug)]
struct Client {
    /// A pool's connections have many ports; the host is what stays.
    addresses: Vec<IpAddr>,
    seen: Moment,
    /// The result of the last check; none before the first.
    connected: Option<bool>,
    missing_since: Option<(Moment, SteadyMillis)>,
    gone: bool,
}

impl Clients {
    /// Records activity of a client from that address.
    pub fn record_activity(&mut self, id: ClientId, address: IpAddr, at: Moment) {
        if !self.clients.contains_key(&id) && self.clients.len() >= MAX_CLIENTS {
            let oldest =
                self.clients.iter().min_by_key(|(_, client)| client.seen).map(|(id, _)| *id);
            oldest.map(|oldest| self.clients.remove(&oldest));
        }
        let client = self.clients.entry(id).or_insert_with(|| Client {
            addresses: Vec::new(),
            seen: at,
            connected: None,
            missing_since: None,
            gone: false,
        });
        (client.seen, client.connected) = (client.seen.max(at), Some(true));
        (client.missing_since, client.gone) = (None, false);
        if !client.addresses.contains(&address) {
            client.addresses.truncate(MAX_ADDRESSES - 1);
            client.addresses.insert(0, address);
        }
    }

    /// Applies the addresses of all connected clients. Returns true if a client is found gone, or back.
    pub fn connected(
        &mut self,
        addresses: &HashSet<IpAddr>,
        at: Moment,
        steady: SteadyMillis,
    ) -> bool {
        let mut changed = false;
        for client in self.clients.values_mut().filter(|client| client.seen < at) {
            let here = client.addresses.iter().any(|address| addresses.contains(address));
            client.connected = Some(here);
            if here {
                client.missing_since = None;
            } else {
                client.missing_since.get_or_insert((at, steady));
            }
            let gone = client.missing_since.is_some_and(|(since, _)| at.since(since) >= GONE_AFTER);
            changed |= client.gone != gone;
            client.gone = gone;
        }
        changed
    }

    /// Applies a report. Returns true if an agent is found gone, or back. One that has never published itself may lack
    /// the permission, so it does not count as gone.
    pub fn report(&mut self, report: &AgentReport) -> bool {
        let mut changed = false;
        for (id, presence) in &report.agents {
            if *presence != Presence::Unknown && !self.agents.contains_key(id) {
                if self.agents.len() >= MAX_CLIENTS {
                    let oldest = self.agents.iter().min_by_key(|(_, agent)| agent.checked);
                    oldest.map(|(id, _)| *id).map(|oldest| self.agents.remove(&oldest));
                }
                let agent = Agent {
                    checked: report.at,
                    publishes: false,
                    missing_since: None,
                    gone: false,
                };
                self.agents.insert(*id, agent);
            }
            let Some(agent) = self.agents.get_mut(id) else { continue };
            agent.checked = report.at;
            if *presence == Presence::Present {
                agent.missing_since = None;
            } else {
                agent.missing_since.get_or_insert((report.at, report.steady));
            }
            let missing = agent.missing_since;
            let gone = missing.is_some_and(|(since, _)| report.at.since(since) >= GONE_AFTER);
            changed |= agent.gone != gone;
            agent.gone = gone;
        }
        for (_, id, identity) in &report.holders {
            if let Some(agent) = self.agents.get_mut(&id.client) {
                agent.publishes |= identity.is_some();
            }
        }
        changed
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
            let (_, since) = agent.missing_since?;
            let evidence = "its agent has not reported for more than a minute".to_owned();
            return Some(Gone { since, evidence });
        }
        let client = self.clients.get(id).filter(|client| client.gone)?;
        let (_, since) = client.missing_since?;
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
        let client = self.clients.get(id)?;
        let addr = client.addresses.first()?.to_string();
        let alive = if client.gone { Some(false) } else { client.connected.filter(|here| *here) };
        Some(ClientView { addr: Some(addr), alive, ..ClientView::default() })
    }

    /// Returns whether an agent is alive; none if it has never published itself, or has just gone missing.
    #[must_use]
    pub fn agent_lives(&self, id: &ClientId) -> Option<bool> {
        let agent = self.agents.get(id)?;
        match (agent.gone, agent.missing_since) {
            (true, _) => Some(false),
            (false, None) => Some(true),
            (false, Some(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Moment {
        Moment::from_micros(secs * 1_000_000)
    }

    fn id(n: u64) -> ClientId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        ClientId::from_random(bytes)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_client_is_gone_once_two_checks_far_enough_apart_miss_it() {
        let mut clients = Clients::default();
        clients.record_activity(id(1), ip("10.0.0.7"), at(0));
        clients.record_activity(id(1), ip("10.0.0.8"), at(1));
        let check = |clients: &mut Clients, secs: u64, addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| ip(address)).collect();
            clients.connected(&addresses, at(secs), SteadyMillis(secs * 1_000))
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
            clients.record_activity(id(3), IpAddr::from([10, 0, 1, n]), at(99_999));
        }
        assert_eq!(clients.clients[&id(3)].addresses.len(), MAX_ADDRESSES);
        assert_eq!(clients.view(&id(3)).unwrap().addr.as_deref(), Some("10.0.1.9"));
    }
}
