//! The view that one sentinel has of the master, and the choice between several views.

use redis::cmd;

use crate::redis::target::Address;
use crate::redis::wire::{Frame, Wire};

/// One sentinel's view of the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    /// Grows with each failover that the sentinels agree on; 0 if the account may not read it.
    pub(super) epoch: u64,
    pub(super) master: Address,
}

/// Queries a sentinel for the master of that name.
pub(super) async fn query(wire: &mut Wire, name: &str, tls: bool) -> Result<View, String> {
    let mut queries = Vec::new();
    for verb in ["GET-MASTER-ADDR-BY-NAME", "MASTER"] {
        queries.extend(cmd("SENTINEL").arg(verb).arg(name).get_packed_command());
    }
    wire.send(&queries).await.map_err(|error| format!("the connection broke: {error}"))?;
    let address = wire.receive().await?;
    let about = wire.receive().await?;
    Ok(View { epoch: epoch(&about), master: address_in(&address, name, tls)? })
}

/// The address in the answer to GET-MASTER-ADDR-BY-NAME; only the epoch comes from MASTER. A sentinel reports the new
/// address as soon as the new master is promoted, but describes the old master until the replicas follow.
fn address_in(reply: &Frame, name: &str, tls: bool) -> Result<Address, String> {
    match reply {
        Frame::Array(parts) => match parts.as_slice() {
            [Frame::Bulk(host), Frame::Bulk(port)] if !host.is_empty() => {
                let host = String::from_utf8_lossy(host).into_owned();
                let port = String::from_utf8_lossy(port);
                let port = port.parse().map_err(|_| format!("the master's port is `{port}`"))?;
                Ok(Address::Tcp { host, port, tls })
            }
            _ => Err("unexpected reply".to_owned()),
        },
        Frame::Null => Err(format!("unknown master `{name}`")),
        Frame::Error(error) if error.message.starts_with("unknown command") => {
            Err(format!("not a sentinel ({error})"))
        }
        Frame::Error(error) => Err(error.to_string()),
        _ => Err("unexpected reply".to_owned()),
    }
}

fn epoch(reply: &Frame) -> u64 {
    let Frame::Array(fields) = reply else { return 0 };
    let epoch = fields.chunks_exact(2).find_map(|pair| match pair {
        [Frame::Bulk(name), Frame::Bulk(value)] if name == b"config-epoch" => {
            String::from_utf8_lossy(value).parse().ok()
        }
        _ => None,
    });
    epoch.unwrap_or(0)
}

/// Chooses between the views of some of `configured` sentinels. Returns `None` when all of them are outdated.
///
/// The latest epoch is right even in a minority: the other sentinels do not know about the failover yet. Sentinels that
/// were set up again start from epoch 0, so an older epoch than the known one is accepted from a majority.
pub(super) fn choose(answers: &[View], configured: usize, known: Option<&View>) -> Option<View> {
    let agree = |view: &View| answers.iter().filter(|other| other.master == view.master).count();
    let best = answers.iter().max_by_key(|view| (view.epoch, agree(view), Some(*view) == known))?;
    let outdated = known.is_some_and(|known| best.epoch < known.epoch);
    (!outdated || agree(best) * 2 > configured).then(|| best.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::error::ServerError;

    fn bulks(words: &[&str]) -> Frame {
        Frame::Array(words.iter().map(|word| Frame::Bulk(word.as_bytes().to_vec())).collect())
    }

    fn view(epoch: u64, port: u16) -> View {
        View { epoch, master: Address::Tcp { host: "h".to_owned(), port, tls: false } }
    }

    #[test]
    fn the_master_is_read_from_the_answers() {
        let master = Address::Tcp { host: "::1".to_owned(), port: 7000, tls: true };
        assert_eq!(address_in(&bulks(&["::1", "7000"]), "m", true), Ok(master));
        assert_eq!(epoch(&bulks(&["name", "m", "config-epoch", "3"])), 3);
        assert_eq!(epoch(&Frame::Error(ServerError::parse("NOPERM no"))), 0);
    }

    #[test]
    fn an_answer_without_a_master_is_an_error_that_says_why() {
        let error = |reply: &Frame| address_in(reply, "m", false).unwrap_err();
        assert!(error(&Frame::Null).contains("`m`"));
        assert!(error(&bulks(&["h", "70000"])).contains("`70000`"));
        assert!(error(&bulks(&["", "1"])).contains("unexpected"));
        assert!(error(&bulks(&["h"])).contains("unexpected"));
        assert!(error(&Frame::Int(1)).contains("unexpected"));
        let plain = Frame::Error(ServerError::parse("ERR unknown command 'SENTINEL'"));
        assert!(error(&plain).contains("not a sentinel"));
        let refused = Frame::Error(ServerError::parse("NOPERM this user"));
        assert_eq!(error(&refused), "NOPERM this user");
    }

    #[test]
    fn the_latest_epoch_wins_even_in_a_minority() {
        let (old, new) = (view(1, 1), view(2, 2));
        assert_eq!(choose(&[], 3, Some(&old)), None);
        assert_eq!(choose(std::slice::from_ref(&old), 3, None), Some(old.clone()));
        let answers = [old.clone(), new.clone(), old.clone()];
        assert_eq!(choose(&answers, 3, Some(&old)), Some(new.clone()));
        // Neither a single sentinel that was cut off nor half of them is believed.
        assert_eq!(choose(std::slice::from_ref(&old), 3, Some(&new)), None);
        assert_eq!(choose(&[old.clone(), old.clone()], 4, Some(&new)), None);
        // A majority, or the only sentinel, started over.
        assert_eq!(choose(&[old.clone(), old.clone()], 3, Some(&new)), Some(old.clone()));
        assert_eq!(choose(std::slice::from_ref(&old), 1, Some(&new)), Some(old));
    }

    #[test]
    fn without_epochs_the_majority_wins() {
        let (old, new) = (view(0, 1), view(0, 2));
        let answers = [old.clone(), new.clone(), new.clone()];
        assert_eq!(choose(&answers, 3, Some(&old)), Some(new.clone()));
        assert_eq!(choose(&[new, old.clone()], 3, Some(&old)), Some(old));
    }
}
