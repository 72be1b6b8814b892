//! What one sentinel says of the master, and what is to be believed of what several say.

use redis::cmd;

use crate::redis_link::resp::{Frame, Wire};
use crate::redis_link::target::Address;

/// What a sentinel says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    /// Grows with each failover that the sentinels agree upon; 0 where the account may not know.
    pub(super) epoch: u64,
    pub(super) master: Address,
}

/// Asks who the master of that name is.
pub(super) async fn ask(wire: &mut Wire, name: &str, tls: bool) -> Result<View, String> {
    let mut questions = Vec::new();
    for verb in ["GET-MASTER-ADDR-BY-NAME", "MASTER"] {
        questions.extend(cmd("SENTINEL").arg(verb).arg(name).get_packed_command());
    }
    wire.send(&questions).await.map_err(|error| format!("the connection broke: {error}"))?;
    let address = wire.receive().await?;
    let about = wire.receive().await?;
    Ok(View { epoch: epoch(&about), master: address_in(&address, name, tls)? })
}

/// The address comes of the one question and the epoch of the other: a sentinel names the new master as soon as that is
/// promoted, but goes on to describe the old one until the replicas follow.
fn address_in(reply: &Frame, name: &str, tls: bool) -> Result<Address, String> {
    match reply {
        Frame::Array(parts) => match parts.as_slice() {
            [Frame::Bulk(host), Frame::Bulk(port)] if !host.is_empty() => {
                let host = String::from_utf8_lossy(host).into_owned();
                let port = String::from_utf8_lossy(port);
                let port = port.parse().map_err(|_| format!("the master's port is `{port}`"))?;
                Ok(Address::Tcp { host, port, tls })
            }
            _ => Err("an answer of no known form".to_owned()),
        },
        Frame::Null => Err(format!("it knows no master `{name}`")),
        Frame::Error(error) if error.message.starts_with("unknown command") => {
            Err(format!("it is no sentinel ({error})"))
        }
        Frame::Error(error) => Err(error.to_string()),
        _ => Err("an answer of no known form".to_owned()),
    }
}

fn epoch(reply: &Frame) -> u64 {
    let Frame::Array(fields) = reply else { return 0 };
    let told = fields.chunks_exact(2).find_map(|pair| match pair {
        [Frame::Bulk(name), Frame::Bulk(value)] if name == b"config-epoch" => {
            String::from_utf8_lossy(value).parse().ok()
        }
        _ => None,
    });
    told.unwrap_or(0)
}

/// What to believe of these answers, of so many sentinels that are named; none where it is what is known.
///
/// Who has heard of the latest failover is right, however few say so: the others have not heard yet. Sentinels that were
/// set up anew count from the beginning, though: what is older than what is known is believed when most of them say so.
pub(super) fn choose(answers: &[View], named: usize, known: Option<&View>) -> Option<View> {
    let agree = |view: &View| answers.iter().filter(|other| other.master == view.master).count();
    let best = answers.iter().max_by_key(|view| (view.epoch, agree(view), Some(*view) == known))?;
    let outdated = known.is_some_and(|known| best.epoch < known.epoch);
    (!outdated || agree(best) * 2 > named).then(|| best.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_link::error::ServerError;

    fn bulks(words: &[&str]) -> Frame {
        Frame::Array(words.iter().map(|word| Frame::Bulk(word.as_bytes().to_vec())).collect())
    }

    fn view(epoch: u64, port: u16) -> View {
        View { epoch, master: Address::Tcp { host: "h".to_owned(), port, tls: false } }
    }

    #[test]
    fn an_answer_names_the_master() {
        let master = Address::Tcp { host: "::1".to_owned(), port: 7000, tls: true };
        assert_eq!(address_in(&bulks(&["::1", "7000"]), "m", true), Ok(master));
        assert_eq!(epoch(&bulks(&["name", "m", "config-epoch", "3"])), 3);
        assert_eq!(epoch(&Frame::Error(ServerError::parse("NOPERM no"))), 0);
    }

    #[test]
    fn an_answer_without_a_master_says_what_is_wrong() {
        let error = |reply: &Frame| address_in(reply, "m", false).unwrap_err();
        assert!(error(&Frame::Null).contains("`m`"));
        assert!(error(&bulks(&["h", "70000"])).contains("`70000`"));
        assert!(error(&bulks(&["", "1"])).contains("form"));
        assert!(error(&bulks(&["h"])).contains("form"));
        assert!(error(&Frame::Int(1)).contains("form"));
        let plain = Frame::Error(ServerError::parse("ERR unknown command 'SENTINEL'"));
        assert!(error(&plain).contains("no sentinel"));
        let refused = Frame::Error(ServerError::parse("NOPERM this user"));
        assert_eq!(error(&refused), "NOPERM this user");
    }

    #[test]
    fn who_has_heard_of_the_latest_failover_is_right() {
        let (old, new) = (view(1, 1), view(2, 2));
        assert_eq!(choose(&[], 3, Some(&old)), None);
        assert_eq!(choose(std::slice::from_ref(&old), 3, None), Some(old.clone()));
        let answers = [old.clone(), new.clone(), old.clone()];
        assert_eq!(choose(&answers, 3, Some(&old)), Some(new.clone()));
        // A single one that was cut off is not believed, nor are as many as the others.
        assert_eq!(choose(std::slice::from_ref(&old), 3, Some(&new)), None);
        assert_eq!(choose(&[old.clone(), old.clone()], 4, Some(&new)), None);
        // Most of them, or the only one, began anew.
        assert_eq!(choose(&[old.clone(), old.clone()], 3, Some(&new)), Some(old.clone()));
        assert_eq!(choose(std::slice::from_ref(&old), 1, Some(&new)), Some(old));
    }

    #[test]
    fn where_the_epoch_is_not_told_the_majority_is_right() {
        let (old, new) = (view(0, 1), view(0, 2));
        let answers = [old.clone(), new.clone(), new.clone()];
        assert_eq!(choose(&answers, 3, Some(&old)), Some(new.clone()));
        assert_eq!(choose(&[new, old.clone()], 3, Some(&old)), Some(old));
    }
}
