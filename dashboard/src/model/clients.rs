//! Where clients are connected from, and whether they still are.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use redisson::{ClientId, Moment};

use super::problem::Gone;
use super::view::{ClientView, WallMillis};

/// The most clients whose addresses are known in one deployment's database.
const MAX_CLIENTS: usize = 10_000;
/// The most addresses of one client.
const MAX_ADDRESSES: usize = 4;
/// How far apart the first and the last of the checks must be that find a client gone: pools close connections and open
/// others all the time.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// The addresses that clients were seen to come from.
#[derive(Debug, Default)]
pub struct Clients(HashMap<ClientId, Client>);

#[derive(Debug)]
struct Client {
    /// A pool's connections have many ports; the host is what stays.
    addresses: Vec<IpAddr>,
    seen: Moment,
    /// Whether a check has found it connected.
    connected: Option<bool>,
    missing_since: Option<(Moment, WallMillis)>,
    gone: bool,
}

impl Clients {
    /// A client did something, from that address.
    pub fn seen(&mut self, id: ClientId, address: IpAddr, at: Moment) {
        if !self.0.contains_key(&id) && self.0.len() >= MAX_CLIENTS {
            let oldest = self.0.iter().min_by_key(|(_, client)| client.seen).map(|(id, _)| *id);
            oldest.map(|oldest| self.0.remove(&oldest));
        }
        let client = self.0.entry(id).or_insert_with(|| Client {
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
    pub fn connected(&mut self, addresses: &HashSet<IpAddr>, at: Moment, wall: WallMillis) -> bool {
        let mut news = false;
        for client in self.0.values_mut().filter(|client| client.seen < at) {
            let here = client.addresses.iter().any(|address| addresses.contains(address));
            client.connected = Some(here);
            if here {
                client.missing_since = None;
            } else {
                client.missing_since.get_or_insert((at, wall));
            }
            let gone = client.missing_since.is_some_and(|(since, _)| at.since(since) >= GONE_AFTER);
            news |= client.gone != gone;
            client.gone = gone;
        }
        news
    }

    /// Whether a client is gone, and since when.
    #[must_use]
    pub fn gone(&self, id: &ClientId) -> Option<Gone> {
        let client = self.0.get(id).filter(|client| client.gone)?;
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
        let client = self.0.get(id)?;
        let address = client.addresses.first()?.to_string();
        let alive = if client.gone { Some(false) } else { client.connected.filter(|here| *here) };
        Some(ClientView { address, alive })
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
            clients.connected(&addresses, at(secs), WallMillis(secs * 1_000))
        };
        assert!(!check(&mut clients, 10, &["10.0.0.7"]), "one of its addresses is enough");
        assert_eq!(clients.view(&id(1)).unwrap().alive, Some(true));
        assert!(!check(&mut clients, 40, &["10.0.0.9"]));
        assert_eq!((clients.gone(&id(1)), clients.view(&id(1)).unwrap().alive), (None, None));
        assert!(!check(&mut clients, 69, &["10.0.0.9"]));
        assert!(check(&mut clients, 70, &["10.0.0.9"]));
        let gone = clients.gone(&id(1)).unwrap();
        assert_eq!(gone.since, WallMillis(40_000));
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
        assert_eq!(clients.0.len(), MAX_CLIENTS);
        assert!(clients.view(&id(2)).is_none() && clients.view(&id(3)).is_some());
        for n in 0..10_u8 {
            clients.seen(id(3), IpAddr::from([10, 0, 1, n]), at(99_999));
        }
        assert_eq!(clients.0[&id(3)].addresses.len(), MAX_ADDRESSES);
        assert_eq!(clients.view(&id(3)).unwrap().address, "10.0.1.9");
    }
}
