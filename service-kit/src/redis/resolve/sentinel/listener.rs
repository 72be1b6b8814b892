//! A subscription to one of the sentinels, so that a failover is noticed at once.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::cmd;
use tokio::time::{Instant, sleep, timeout};

use super::{Signs, connect};
use crate::redis::backoff::{Backoff, PROVEN};
use crate::redis::deployment::SentinelTarget;
use crate::redis::handshake::Handshake;
use crate::redis::target::Target;
use crate::redis::wire::{Frame, Wire};

/// The channel on which sentinels announce a new master.
const CHANNEL: &str = "+switch-master";
/// The silence after which a sentinel is sent a PING.
const HEARTBEAT: Duration = Duration::from_secs(2);

pub(super) struct Listener {
    pub(super) target: Arc<SentinelTarget>,
    pub(super) handshake: Handshake,
    pub(super) signs: Arc<Signs>,
}

impl Listener {
    /// Listens to one sentinel, and to the next when that one is lost.
    pub(super) async fn run(self) -> Infallible {
        let mut backoff = Backoff::default();
        let mut logged = HashMap::new();
        loop {
            for (place, sentinel) in self.target.sentinels.iter().enumerate() {
                let since = Instant::now();
                let Err(reason) = self.listen(sentinel).await;
                if self.signs.subscribed.swap(false, Ordering::Relaxed) {
                    self.signs.suspect.notify_one();
                }
                if since.elapsed() >= PROVEN {
                    backoff.reset();
                    logged.remove(&place);
                }
                if logged.get(&place) != Some(&reason) {
                    tracing::info!(redis.sentinels = %self.target, reason, "lost the subscription to a sentinel");
                    logged.insert(place, reason);
                }
                sleep(backoff.after_failure(false)).await;
            }
        }
    }

    async fn listen(&self, sentinel: &Target) -> Result<Infallible, String> {
        let wire = connect(sentinel, &self.handshake).await?;
        self.receive(wire)
            .await
            .map_err(|reason| format!("sentinel {}: {reason}", sentinel.address()))
    }

    async fn receive(&self, mut wire: Wire) -> Result<Infallible, String> {
        let limit = self.handshake.response_timeout;
        let late = || format!("no reply within {limit:?}");
        send(&mut wire, &["SUBSCRIBE", CHANNEL]).await?;
        match timeout(limit, wire.receive()).await.map_err(|_| late())?? {
            Frame::Error(error) => return Err(error.to_string()),
            _subscribed => self.signs.subscribed.store(true, Ordering::Relaxed),
        }
        // Earlier announcements were missed.
        self.signs.switched.notify_one();
        let mut pinged = false;
        loop {
            let patience = if pinged { limit } else { HEARTBEAT };
            match timeout(patience, wire.receive()).await {
                Ok(frame) => {
                    pinged = false;
                    if is_about(&frame?, self.target.name()) {
                        self.signs.switched.notify_one();
                    }
                }
                Err(_) if pinged => return Err(late()),
                Err(_) => {
                    send(&mut wire, &["PING"]).await?;
                    pinged = true;
                }
            }
        }
    }
}

async fn send(wire: &mut Wire, words: &[&str]) -> Result<(), String> {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    let sent = wire.send(&command.get_packed_command()).await;
    sent.map_err(|error| format!("the connection broke: {error}"))
}

/// Reports whether a message announces a new master under this name. Its text is
/// `name old-host old-port new-host new-port`.
fn is_about(frame: &Frame, name: &str) -> bool {
    let Frame::Array(parts) = frame else { return false };
    let [Frame::Bulk(kind), Frame::Bulk(_), Frame::Bulk(text)] = parts.as_slice() else {
        return false;
    };
    let named = text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b" "));
    kind == b"message" && named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_other_masters_are_ignored() {
        let message = |kind: &str, text: &str| {
            let words = [kind, CHANNEL, text].map(|word| Frame::Bulk(word.as_bytes().to_vec()));
            is_about(&Frame::Array(words.to_vec()), "m")
        };
        assert!(message("message", "m 10.0.0.1 6379 10.0.0.2 6379"));
        assert!(!message("message", "m2 10.0.0.1 6379 10.0.0.2 6379"));
        assert!(!message("pong", "m "));
        assert!(!is_about(&Frame::Int(1), "m"));
    }
}
