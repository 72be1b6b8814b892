//! Where clients are connected from and whether they still are, and which agents tell of themselves.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use redisson::{ClientId, Moment};

use super::problem::Gone;
use super::view::ClientView;
use super::who::{GONE_AFTER, Told};
use crate::clock::SteadyMillis;

/// The most clients whose addresses are known in one deployment's database.
const MAX_CLIENTS: usize = 10_000;
/// The most addresses of one client.
const MAX_ADDRESSES: usize = 4;

/// The addresses that clients were seen to come from, and the agents among them.
#[derive(Debug, Default)]
pub struct Clients {
    seen: HashMap<ClientId, Client>,
    agents: HashMap<ClientId, Agent>,
}

/// One that has told of itself.
#[derive(Debug)]
struct Agent {
    asked: Moment,
    /// Whether it was seen to tell of a holder: it may be forbidden to.
    tells: bool,
    missing_since: Option<(Moment, SteadyMillis)>,
    gone: bool,
}

#[derive(Debug)]
struct Client {
    /// A pool's connections have many ports; the host is what stays.
    addresses: Vec<IpAddr>,
    seen: Moment,
    /// Whether a check has found it connected.
    connected: Option<bool>,
    missing_since: Option<(Moment, SteadyMillis)>,
    gone: bool,
}

impl Clients {
    /// A client did something, from that address.
    pub fn seen(&mut self, id: ClientId, address: IpAddr, at: Moment) {
        if !self.seen.contains_key(&id) && self.seen.len() >= MAX_CLIENTS {
            let oldest = self.seen.iter().min_by_key(|(_, client)| client.seen).map(|(id, _)| *id);
            oldest.map(|oldest| self.seen.remove(&oldest));
        }
        let client = self.seen.entry(id).or_insert_with(|| Client {
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

    /// These are all addresses that anybody is connected from. True when a client is found gone, or back.
    pub fn connected(
        &mut self,
        addresses: &HashSet<IpAddr>,
        at: Moment,
        steady: SteadyMillis,
    ) -> bool {
        let mut news = false;
        for client in self.seen.values_mut().filter(|client| client.seen < at) {
            let here = client.addresses.iter().any(|address| addresses.contains(address));
            client.connected = Some(here);
            if here {
                client.missing_since = None;
            } else {
                client.missing_since.get_or_insert((at, steady));
            }
            let gone = client.missing_since.is_some_and(|(since, _)| at.since(since) >= GONE_AFTER);
            news |= client.gone != gone;
            client.gone = gone;
        }
        news
    }

    /// Which agents tell of themselves, and of which holders. True when one is found gone, or back. One that was never
    /// seen to tell of itself may be forbidden to: it is not missed.
    pub fn told(&mut self, told: &Told) -> bool {
        let mut news = false;
        for (id, there) in &told.agents {
            if *there && !self.agents.contains_key(id) {
                if self.agents.len() >= MAX_CLIENTS {
                    let oldest = self.agents.iter().min_by_key(|(_, agent)| agent.asked);
                    oldest.map(|(id, _)| *id).map(|oldest| self.agents.remove(&oldest));
                }
                let agent =
                    Agent { asked: told.at, tells: false, missing_since: None, gone: false };
                self.agents.insert(*id, agent);
            }
            let Some(agent) = self.agents.get_mut(id) else { continue };
            agent.asked = told.at;
            if *there {
                agent.missing_since = None;
            } else {
                agent.missing_since.get_or_insert((told.at, told.steady));
            }
            let missing = agent.missing_since;
            let gone = missing.is_some_and(|(since, _)| told.at.since(since) >= GONE_AFTER);
            news |= agent.gone != gone;
            agent.gone = gone;
        }
        for (_, id, who) in &told.holders {
            if let Some(agent) = self.agents.get_mut(&id.client) {
                agent.tells |= who.is_some();
            }
        }
        news
    }

    /// Whether a holder of that client's would be told of: its agent lives, and tells of others.
    #[must_use]
    pub fn would_tell(&self, id: &ClientId) -> bool {
        self.agents.get(id).is_some_and(|agent| agent.tells && agent.missing_since.is_none())
    }

    /// Whether a client is gone, and since when.
    #[must_use]
    pub fn gone(&self, id: &ClientId) -> Option<Gone> {
        if let Some(agent) = self.agents.get(id).filter(|agent| agent.gone) {
            let (_, since) = agent.missing_since?;
            let seen = "its agent has not told of itself for more than a minute".to_owned();
            return Some(Gone { since, seen });
        }
        let client = self.seen.get(id).filter(|client| client.gone)?;
        let (_, since) = client.missing_since?;
        let from: Vec<String> = client.addresses.iter().map(ToString::to_string).collect();
        let seen = format!(
            "nobody is connected from {} any longer, where its client was seen",
            from.join(" or ")
        );
        Some(Gone { since, seen })
    }

    /// A client as it is shown.
    #[must_use]
    pub fn view(&self, id: &ClientId) -> Option<ClientView> {
        let client = self.seen.get(id)?;
        let addr = client.addresses.first()?.to_string();
        let alive = if client.gone { Some(false) } else { client.connected.filter(|here| *here) };
        Some(ClientView { addr: Some(addr), alive, ..ClientView::default() })
    }

    /// Whether a client is an agent that lives; none where it never told of itself.
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
    fn a_client_is_gone_when_two_checks_apart_do_not_find_it() {
        let mut clients = Clients::default();
        clients.seen(id(1), ip("10.0.0.7"), at(0));
        clients.seen(id(1), ip("10.0.0.8"), at(1));
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
        assert!(gone.seen.contains("10.0.0.7") && gone.seen.contains("10.0.0.8"));
        assert_eq!(clients.view(&id(1)).unwrap().alive, Some(false));
        assert!(check(&mut clients, 80, &["10.0.0.8"]), "it is back");
        assert_eq!(clients.gone(&id(1)), None);
        check(&mut clients, 90, &[]);
        clients.seen(id(1), ip("10.0.0.9"), at(100));
        check(&mut clients, 125, &["10.0.0.9"]);
        assert_eq!(clients.gone(&id(1)), None, "it moved");
    }

    #[test]
    fn clients_are_bounded_and_the_latest_are_kept() {
        let mut clients = Clients::default();
        for n in 0..MAX_CLIENTS as u64 + 3 {
            clients.seen(id(n), ip("10.0.0.1"), at(n));
        }
        assert_eq!(clients.seen.len(), MAX_CLIENTS);
        assert!(clients.view(&id(2)).is_none() && clients.view(&id(3)).is_some());
        for n in 0..10_u8 {
            clients.seen(id(3), IpAddr::from([10, 0, 1, n]), at(99_999));
        }
        assert_eq!(clients.seen[&id(3)].addresses.len(), MAX_ADDRESSES);
        assert_eq!(clients.view(&id(3)).unwrap().addr.as_deref(), Some("10.0.1.9"));
    }
}
