//! The bound of the memory that unread output of MONITOR may use in the server.

use redis::cmd;
use service_kit::redis::{CallError, Link, OutputClass};

use super::server::{field, info, texts};
use crate::config::ByteSize;

/// The advice if no limit applies.
const SET_LIMIT: &str = "Run `redis-cli CONFIG SET client-output-buffer-limit 'normal 64mb 0 0'`, or use \
                         --monitor-unbounded.";

/// The effect of the server's settings on a reader that stalls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// The server disconnects such a reader.
    Bounded(Limit),
    /// The server would buffer more output than is acceptable. Contains the reason, as a sentence without its end, and
    /// the advice.
    Unbounded(String, &'static str),
    /// The Redis user may not read the limits.
    Unreadable,
    /// The server does not offer CONFIG GET, like most managed services.
    Unoffered,
}

/// The limit at which the server disconnects a reader that stalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub(super) class: OutputClass,
    /// The limit, or `None` for one of all clients together.
    pub(super) memory: Option<ByteSize>,
}

impl Limit {
    /// The limit if none is required.
    pub(super) const NONE: Self = Self { class: OutputClass::Normal, memory: None };
    /// The limit if none is required and none is known. Pub/sub clients have one by default.
    pub(super) const UNKNOWN: Self = Self { class: OutputClass::PubSub, memory: None };

    /// Checks that the server has the memory that a reader in a class of the default settings may use. A limit that the
    /// server has for normal clients counts as consent.
    ///
    /// # Errors
    /// Without a reply.
    pub(super) async fn objection(
        self,
        link: &Link,
    ) -> Result<Option<(String, &'static str)>, CallError> {
        match (self.class, self.memory) {
            (OutputClass::PubSub, Some(memory)) => {
                info(link, "memory").await.map(|info| objection(&info, memory))
            }
            _ => Ok(None),
        }
    }
}

/// Determines how the server bounds the memory of a stalled reader, and the class of clients that it has to be in.
///
/// # Errors
/// Without a reply.
pub async fn bound(link: &Link, budget: ByteSize) -> Result<Bound, CallError> {
    let limits = match setting(link, "client-output-buffer-limit").await {
        Err(CallError::Refused(error)) if error.is_unknown_command() => {
            return Ok(Bound::Unoffered);
        }
        Err(CallError::Refused(_)) => None,
        limits => limits?,
    };
    let clients = match setting(link, "maxmemory-clients").await {
        Err(CallError::Refused(_)) => None,
        clients => clients?,
    };
    let bound = judge(limits.as_deref(), clients.as_deref(), budget);
    if let Bound::Bounded(limit) = bound
        && let Some((reason, advice)) = limit.objection(link).await?
    {
        return Ok(Bound::Unbounded(reason, advice));
    }
    Ok(bound)
}

/// Returns the value of a setting, or `None` if it is unknown.
async fn setting(link: &Link, name: &str) -> Result<Option<String>, CallError> {
    let reply = link.call(cmd("CONFIG").arg("GET").arg(name).clone()).await?;
    Ok(texts(&reply).into_iter().nth(1))
}

fn judge(limits: Option<&str>, clients: Option<&str>, budget: ByteSize) -> Bound {
    let limit = |class| hard_limit(limits?, class);
    let (normal, subscribers) = (limit("normal"), limit("pubsub"));
    let fits = |memory: &ByteSize| *memory <= budget;
    if let Some(memory) = normal.filter(fits) {
        return Bound::Bounded(Limit { class: OutputClass::Normal, memory: Some(memory) });
    }
    if clients.is_some_and(|setting| !matches!(setting, "" | "0" | "0%")) {
        return Bound::Bounded(Limit { class: OutputClass::Normal, memory: None });
    }
    if let Some(memory) = subscribers.filter(fits) {
        return Bound::Bounded(Limit { class: OutputClass::PubSub, memory: Some(memory) });
    }
    if limits.or(clients).is_none() {
        return Bound::Unreadable;
    }
    match [normal, subscribers].into_iter().flatten().min() {
        Some(memory) => Bound::Unbounded(
            format!("Redis ends a stalled reader at {memory}, and --monitor-budget is {budget}"),
            SET_LIMIT,
        ),
        None => Bound::Unbounded(
            "Redis has no output-buffer limit for normal and pub/sub clients, so a stalled reader would fill its \
             memory"
                .to_owned(),
            SET_LIMIT,
        ),
    }
}

/// Returns the hard limit of a class of clients, if it has one.
fn hard_limit(limits: &str, class: &str) -> Option<ByteSize> {
    let mut words = limits.split_ascii_whitespace();
    words.by_ref().find(|word| *word == class)?;
    let hard = words.next()?.parse().ok()?;
    (hard > 0).then_some(ByteSize(hard))
}

/// Returns the reason why the server has no room for this memory, and the advice.
fn objection(info: &str, memory: ByteSize) -> Option<(String, &'static str)> {
    let number = |name| field(info, name).and_then(|text| text.trim().parse::<u64>().ok());
    let most = number("maxmemory").filter(|most| *most > 0)?;
    let policy = field(info, "maxmemory_policy").map_or("", str::trim);
    if policy != "noeviction" {
        let reason = format!(
            "Redis evicts keys ({policy}), and a stalled reader could displace {memory} of them"
        );
        return Some((reason, "Set `maxmemory-policy noeviction`, which locks need anyway."));
    }
    let left = most.saturating_sub(number("used_memory").unwrap_or(most));
    (left < memory.0).then(|| {
        let left = ByteSize(left >> 20 << 20);
        let reason = format!(
            "Redis has {left} left below maxmemory, and a stalled reader may take {memory}"
        );
        (reason, "Raise `maxmemory`.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: ByteSize = ByteSize(64 << 20);

    fn limits(normal: &str, subscribers: &str) -> String {
        format!("normal {normal} slave 268435456 67108864 60 pubsub {subscribers}")
    }

    #[test]
    fn the_first_limit_within_the_budget_bounds_a_reader() {
        let judged = |limits: &str, clients| judge(Some(limits), clients, BUDGET);
        let bounded = |class, memory: Option<u64>| {
            Bound::Bounded(Limit { class, memory: memory.map(ByteSize) })
        };
        let (stock, own) = ("33554432 8388608 60", "67108864 0 0");
        let normal = bounded(OutputClass::Normal, Some(64 << 20));
        assert_eq!(judged(&limits(own, stock), None), normal);
        let subscribed = bounded(OutputClass::PubSub, Some(32 << 20));
        assert_eq!(judged(&limits("0 0 0", stock), Some("0")), subscribed);
        // A soft limit disconnects no reader before its seconds are over.
        assert_eq!(judged(&limits("0 8388608 10", stock), None), subscribed);
        assert_eq!(judged(&limits("67108865 0 0", stock), None), subscribed);
        for setting in ["5%", "1048576"] {
            let clients = bounded(OutputClass::Normal, None);
            assert_eq!(judged(&limits("0 0 0", stock), Some(setting)), clients);
        }
        for (normal, subscribers, word) in [
            ("0 0 0", "0 0 0", "no output-buffer limit"),
            ("0 0 0", "134217728 0 0", "at 128mb, and --monitor-budget is 64mb"),
            ("268435456 0 0", "134217728 0 0", "at 128mb"),
            ("much 0 0", "", "no output-buffer limit"),
        ] {
            let Bound::Unbounded(reason, _) = judged(&limits(normal, subscribers), Some("0%"))
            else {
                panic!("{normal} {subscribers}")
            };
            assert!(reason.contains(word), "{reason}");
        }
        assert_eq!(judge(None, None, BUDGET), Bound::Unreadable);
    }

    #[test]
    fn a_server_without_room_is_spared() {
        let info = |used: u64, most: u64, policy: &str| {
            format!("used_memory:{used}\r\nmaxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n")
        };
        let objection = |info: String| {
            objection(&info, ByteSize(32 << 20)).map_or(String::new(), |(reason, _)| reason)
        };
        assert_eq!(objection(info(1 << 30, 0, "allkeys-lru")), "", "nothing is ever evicted");
        assert_eq!(objection(info(68 << 20, 100 << 20, "noeviction")), "");
        assert!(objection(info(1, 1 << 30, "volatile-ttl")).contains("evicts keys (volatile-ttl)"));
        let full = objection(info(69 << 20, 100 << 20, "noeviction"));
        assert_eq!(full, "Redis has 31mb left below maxmemory, and a stalled reader may take 32mb");
    }
}
