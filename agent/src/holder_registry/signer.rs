//! Signatures of entries, by which dashboards that know the public key verify the publisher.

use std::sync::Arc;

use redisson::signed_entry::{Place, covered, join};
use redisson::{ClientId, LockName};
use service_kit::signing::SigningKey;

use crate::types::Number;

/// The time for which a signature is valid, in milliseconds. It bounds the replay of an entry, and the difference of
/// clocks that dashboards tolerate.
pub(super) const VALIDITY_MS: u64 = 10 * 60 * 1_000;

/// An entry to be signed.
pub(super) struct Unsigned {
    pub(super) number: Number,
    pub(super) lock: LockName,
    /// The JSON object, with its `expires` and `key`.
    pub(super) entry: String,
}

#[derive(Debug, Clone)]
pub(super) struct Signer {
    key: Arc<SigningKey>,
    /// The id of the key, as in the entries.
    pub(super) key_id: Arc<str>,
    agent: ClientId,
    host: Arc<str>,
}

impl Signer {
    pub(super) fn new(key: Arc<SigningKey>, agent: ClientId, host: &str) -> Self {
        let key_id = key.public().id().into();
        Self { key, key_id, agent, host: host.into() }
    }

    /// Signs entries on another thread: each takes tens of microseconds, and this thread serves the locks. Returns
    /// `None` if the runtime is shutting down.
    pub(super) async fn sign(&self, entries: Vec<Unsigned>) -> Option<Vec<(Number, String)>> {
        let signer = self.clone();
        let sign = move || entries.iter().map(|entry| signer.signed(entry)).collect();
        tokio::task::spawn_blocking(sign).await.ok()
    }

    fn signed(&self, unsigned: &Unsigned) -> (Number, String) {
        let Unsigned { number, lock, entry } = unsigned;
        let host = self.host.as_bytes();
        let place = Place { agent: &self.agent, number: *number, lock, host };
        let covered = covered(entry);
        let signature = self.key.sign(&place.message(covered.as_bytes()));
        (*number, join(covered, &signature))
    }
}
