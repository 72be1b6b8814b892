//! Listens to one of the sentinels, so that a failover is known at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::cmd;
use tokio::time::{Instant, sleep, timeout};

use super::{SentinelTarget, Signs, connect};
use crate::redis_link::backoff::Backoff;
use crate::redis_link::greeting::Greeting;
use crate::redis_link::resp::{Frame, Wire};
use crate::redis_link::supervisor::PROVEN;
use crate::redis_link::target::Target;

/// Where sentinels tell that another server is the master.
const CHANNEL: &str = "+switch-master";
/// How long one may be silent before it is asked for a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(2);

pub(super) struct Ear {
    pub(super) target: Arc<SentinelTarget>,
    pub(super) greeting: Greeting,
    pub(super) signs: Arc<Signs>,
}

impl Ear {
    /// Listens to one, and to the next when that one is gone.
    pub(super) async fn run(self) -> Infallible {
        let mut backoff = Backoff::default();
        let mut told = None;
        loop {
            for sentinel in &self.target.sentinels {
                let since = Instant::now();
                let Err(reason) = self.listen(sentinel).await;
                if self.signs.hears.swap(false, Ordering::Relaxed) {
                    self.signs.doubt.notify_one();
                }
                if told.as_ref() != Some(&reason) {
                    tracing::info!(redis.sentinels = %self.target, reason, "a sentinel is not listened to");
                    told = Some(reason);
                }
                if since.elapsed() >= PROVEN {
                    backoff.reset();
                }
                sleep(backoff.after_failure(false)).await;
            }
        }
    }

    async fn listen(&self, sentinel: &Target) -> Result<Infallible, String> {
        let wire = connect(sentinel, &self.greeting).await?;
        self.hear(wire).await.map_err(|reason| format!("sentinel {}: {reason}", sentinel.address()))
    }

    async fn hear(&self, mut wire: Wire) -> Result<Infallible, String> {
        let limit = self.greeting.response_timeout;
        let late = || format!("no answer within {limit:?}");
        say(&mut wire, &["SUBSCRIBE", CHANNEL]).await?;
        match timeout(limit, wire.receive()).await.map_err(|_| late())?? {
            Frame::Error(error) => return Err(error.to_string()),
            _subscribed => self.signs.hears.store(true, Ordering::Relaxed),
        }
        // Whatever was told before was missed.
        self.signs.switched.notify_one();
        let mut asked = false;
        loop {
            let patience = if asked { limit } else { HEARTBEAT };
            match timeout(patience, wire.receive()).await {
                Ok(frame) => {
                    asked = false;
                    if is_about(&frame?, &self.target.name) {
                        self.signs.switched.notify_one();
                    }
                }
                Err(_) if asked => return Err(late()),
                Err(_) => {
                    say(&mut wire, &["PING"]).await?;
                    asked = true;
                }
            }
        }
    }
}

async fn say(wire: &mut Wire, words: &[&str]) -> Result<(), String> {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    let sent = wire.send(&command.get_packed_command()).await;
    sent.map_err(|error| format!("the connection broke: {error}"))
}

/// Whether it tells of another master under this name: it says `name old-host old-port new-host new-port`.
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
    fn only_messages_of_the_master_are_heard() {
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
