//! Entries of the holder registry: the process behind a hold or wait, as its agent publishes it.
//!
//! Anyone who can write to Redis may have written this text. It is truncated, invisible characters are escaped, and it
//! is only displayed. With keys of agents, the result of the signature's check is displayed with it.

use std::sync::Arc;

use redisson::signed_entry::{self, Place};
use serde::Deserialize;

use crate::access::agent_keys::Keys;
use crate::clock::WallMillis;
use crate::model::types::{HolderIdentity, Verification};
use crate::text::revealed;

/// The maximum number of characters of any text that are retained.
const MAX_TEXT: usize = 100;

/// A holder's entry. Missing or malformed fields are unknown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RegistryEntry {
    pid: Option<u32>,
    uid: Option<u32>,
    comm: Option<String>,
    client: Option<String>,
    session: Option<String>,
    since: Option<u64>,
    owner: Option<i64>,
    several: bool,
    until: Option<u64>,
    expires: Option<u64>,
    key: Option<String>,
}

/// Returns the identity in an entry at that place. `keys` are the agents' keys, if the dashboard has any, and `now` is
/// the instant by which signatures may have expired.
pub(super) fn identity(
    bytes: &[u8],
    place: &Place<'_>,
    keys: Option<&Keys>,
    now: WallMillis,
) -> HolderIdentity {
    let entry: RegistryEntry = serde_json::from_slice(bytes).unwrap_or_default();
    let verification = match keys {
        Some(keys) => match verify(&entry, bytes, place, keys, now) {
            Ok(name) => Verification::Verified(name),
            Err(why) => Verification::Claimed(why),
        },
        None => Verification::Unchecked,
    };
    let text = |text: Option<String>| text.map(|text| plain(&text)).filter(|t| !t.is_empty());
    let host = Some(place.host).filter(|host| !host.is_empty());
    HolderIdentity {
        host: host.map(|host| plain(&String::from_utf8_lossy(host)).into()),
        pid: entry.pid,
        uid: entry.uid,
        comm: text(entry.comm),
        name: text(entry.client),
        session: text(entry.session),
        // The time is from the wall clock of the agent's host.
        since: entry.since.map(|at| WallMillis(at).to_steady()),
        // A task that acquires several locks at once releases them rather than waiting forever.
        owner: entry.owner.filter(|_| !entry.several),
        until: entry.until.map(|at| WallMillis(at).to_steady()),
        verification,
    }
}

/// Returns whether an agent signed an entry for that place, and its signature is still valid.
pub(super) fn is_believed(bytes: &[u8], place: &Place<'_>, keys: &Keys, now: WallMillis) -> bool {
    let entry: RegistryEntry = serde_json::from_slice(bytes).unwrap_or_default();
    verify(&entry, bytes, place, keys, now).is_ok()
}

/// Returns the name of the key that signed an entry for that place, or the reason why it is not verified.
fn verify(
    entry: &RegistryEntry,
    bytes: &[u8],
    place: &Place<'_>,
    keys: &Keys,
    now: WallMillis,
) -> Result<Arc<str>, &'static str> {
    const UNSIGNED: &str = "it is not signed";
    let (covered, signature) = signed_entry::split(bytes).ok_or(UNSIGNED)?;
    let (id, expires) = entry.key.as_deref().zip(entry.expires).ok_or(UNSIGNED)?;
    let (key, name) = keys.find(id).ok_or("it is signed with an unknown key")?;
    if !key.verifies(&place.message(covered), signature) {
        return Err("its signature does not match");
    }
    if expires < now.0 {
        return Err("its signature has expired");
    }
    Ok(name)
}

/// Returns the beginning of a text, with invisible characters escaped.
fn plain(text: &str) -> String {
    revealed(&text.chars().take(MAX_TEXT).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use redisson::{ClientId, LockName};
    use service_kit::signing::SigningKey;

    use super::*;
    use crate::clock::SteadyMillis;

    fn agent(n: u8) -> ClientId {
        ClientId::from_random([n; 16])
    }

    fn lock(name: &str) -> LockName {
        LockName::new(name.as_bytes()).unwrap()
    }

    /// Returns a key that was made for this test.
    fn key() -> SigningKey {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let secret = "MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";
        writeln!(file, "-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----").unwrap();
        SigningKey::from_file(file.path()).unwrap()
    }

    fn signed(key: &SigningKey, place: &Place<'_>, entry: &str) -> String {
        let covered = signed_entry::covered(entry);
        signed_entry::join(covered, &key.sign(&place.message(covered.as_bytes())))
    }

    #[test]
    fn an_entry_is_treated_as_hostile_text() {
        let (agent, lock) = (agent(1), lock("a"));
        let place = Place { agent: &agent, number: 1, lock: &lock, host: b"" };
        let identity = |entry: &str| identity(entry.as_bytes(), &place, None, WallMillis(0));
        let whole = identity(
            r#"{"pid":4711,"uid":1000,"comm":"java","client":"a\u001b[31m\u202ex","session":"1-2","since":5,"more":[]}"#,
        );
        assert_eq!(
            (whole.pid, whole.uid, whole.since),
            (Some(4711), Some(1000), Some(SteadyMillis(5)))
        );
        assert_eq!(whole.name.as_deref(), Some("a\\u{1b}[31m\\u{202e}x"));
        let long = format!(r#"{{"comm":"{}"}}"#, "x".repeat(4_000));
        assert_eq!(identity(&long).comm.unwrap().len(), MAX_TEXT);
        assert_eq!(identity(r#"{"pid":null,"comm":null,"client":""}"#), HolderIdentity::default());
        for invalid in ["", "null", "[]", r#"{"pid":-1}"#, r#"{"pid":"x"}"#, "{\"comm\":\"\u{7}"] {
            assert_eq!(identity(invalid), HolderIdentity::default(), "{invalid}");
        }
    }

    #[test]
    fn a_list_of_waiters_is_believed_only_from_its_agent() {
        let (key, mine, other) = (key(), agent(1), agent(2));
        let list = |agent: &ClientId| LockName::new(redisson::keys::agent_waiters(agent)).unwrap();
        let (own, others) = (list(&mine), list(&other));
        let place = Place { agent: &mine, number: 0, lock: &own, host: b"web-7" };
        let id = key.public().id();
        let unsigned =
            format!(r#"{{"locks":[{{"lock":"a","count":3}}],"expires":5000,"key":"{id}"}}"#);
        let signed = signed(&key, &place, &unsigned);
        let keys = Keys::parse(&format!("web {}", key.public())).unwrap();
        let believed = |text: &str, place: &Place<'_>, now| {
            is_believed(text.as_bytes(), place, &keys, WallMillis(now))
        };
        assert!(believed(&signed, &place, 5_000) && !believed(&signed, &place, 5_001));
        assert!(!believed(&unsigned, &place, 0), "not signed");
        assert!(!believed(&signed.replace(":3}", ":9}"), &place, 0), "another count");
        let elsewhere = Place { agent: &other, lock: &others, ..place };
        assert!(!believed(&signed, &elsewhere, 0), "copied to another agent's key");
    }

    #[test]
    fn a_signature_verifies_only_in_its_place_until_it_expires() {
        let (key, mine, other) = (key(), agent(1), agent(2));
        let (a, b) = (lock("a"), lock("b"));
        let place = Place { agent: &mine, number: 7, lock: &a, host: b"web-7" };
        let id = key.public().id();
        let unsigned = format!(r#"{{"pid":1,"comm":"systemd","expires":5000,"key":"{id}"}}"#);
        let signed = signed(&key, &place, &unsigned);
        let keys = Keys::parse(&format!("web {}", key.public())).unwrap();
        let others = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
        let unrelated = Keys::parse(&format!("other {others}")).unwrap();
        let check = |entry: &str, place: &Place<'_>, keys: Option<&Keys>, now: u64| {
            let identity = identity(entry.as_bytes(), place, keys, WallMillis(now));
            let host = String::from_utf8(place.host.to_vec()).unwrap();
            assert_eq!((identity.pid.is_some(), identity.host.as_deref()), (true, Some(&*host)));
            identity.verification
        };
        let mismatch = Verification::Claimed("its signature does not match");
        let verified = Verification::Verified("web".into());
        assert_eq!(check(&signed, &place, Some(&keys), 5_000), verified);
        assert_eq!(check(&signed, &place, None, 0), Verification::Unchecked);
        assert_eq!(
            check(&signed, &place, Some(&keys), 5_001),
            Verification::Claimed("its signature has expired")
        );
        for elsewhere in [
            Place { agent: &other, ..place },
            Place { number: 8, ..place },
            Place { lock: &b, ..place },
            Place { host: b"web-8", ..place },
        ] {
            assert_eq!(check(&signed, &elsewhere, Some(&keys), 0), mismatch, "{elsewhere:?}");
        }
        for (part, forged) in [(r#""pid":1,"#, r#""pid":2,"#), ("5000", "9000"), ("systemd", "x")] {
            assert_eq!(check(&signed.replace(part, forged), &place, Some(&keys), 0), mismatch);
        }
        let unknown = Verification::Claimed("it is signed with an unknown key");
        assert_eq!(check(&signed, &place, Some(&unrelated), 0), unknown);
        let none = Verification::Claimed("it is not signed");
        for entry in [unsigned.as_str(), r#"{"pid":1}"#] {
            assert_eq!(check(entry, &place, Some(&keys), 0), none);
        }
        let appended = signed.strip_suffix('}').unwrap().to_owned() + r#","pid":2}"#;
        let appended = identity(appended.as_bytes(), &place, Some(&keys), WallMillis(0));
        assert_eq!(appended.verification, none);
    }
}
