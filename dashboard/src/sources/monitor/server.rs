//! The server's load, limits and clients.

use redis::{Cmd, Value, cmd};
use service_kit::redis::{CallError, Link};
use tokio::time::Instant;

use super::governor::Load;

/// The number of PINGs of which the median counts.
const PINGS: usize = 5;
/// The most clients that are listed, which takes the server 2 ms a thousand.
const MAX_LISTED: u64 = 1_000;

/// The server's output-buffer limit for a stalled reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The server disconnects such a reader.
    Bounded,
    /// The server buffers output until its memory is full.
    Unbounded,
    /// The account may not read the limit.
    Unreadable,
}

/// Reads the server's output-buffer limit for clients that do not read.
///
/// # Errors
/// Without a reply.
pub async fn bound(link: &Link) -> Result<Bound, CallError> {
    let mut readable = false;
    for (setting, bounds) in [
        ("client-output-buffer-limit", bounds_normal as fn(&str) -> bool),
        ("maxmemory-clients", bounds_all),
    ] {
        let command = cmd("CONFIG").arg("GET").arg(setting).clone();
        match link.call(command).await {
            Ok(reply) => {
                let value = texts(&reply).into_iter().nth(1);
                readable |= value.is_some();
                if value.is_some_and(|value| bounds(&value)) {
                    return Ok(Bound::Bounded);
                }
            }
            Err(CallError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(if readable { Bound::Unbounded } else { Bound::Unreadable })
}

/// Returns whether the class `normal`, which a reader of MONITOR is in, has a hard limit.
fn bounds_normal(setting: &str) -> bool {
    let mut words = setting.split_ascii_whitespace();
    words.by_ref().any(|word| word == "normal")
        && words.next().is_some_and(|hard| hard.parse().is_ok_and(|hard: u64| hard > 0))
}

fn bounds_all(setting: &str) -> bool {
    !matches!(setting, "" | "0" | "0%")
}

/// Measures the server's load, in several round trips.
///
/// # Errors
/// Without a reply, or when a command is refused.
pub(super) async fn load(link: &Link) -> Result<Load, CallError> {
    let stats = info(link, "stats").await?;
    let mut pings = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent = Instant::now();
        link.call(cmd("PING")).await?;
        pings.push(sent.elapsed());
    }
    pings.sort_unstable();
    // The whole part: some values have a fraction.
    let number = |name: &str| -> u64 {
        let whole = field(&stats, name).and_then(|text| text.split('.').next());
        whole.and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    Ok(Load {
        ops: number("instantaneous_ops_per_sec"),
        input: number("instantaneous_input_kbps").saturating_mul(1024),
        ping: pings[PINGS / 2],
    })
}

/// Returns whether another client has MONITOR on. `own`: the number of our connection, if it is open; then only older ones
/// count, so that two dashboards do not yield to each other.
///
/// # Errors
/// Without a reply.
pub(super) async fn others(link: &Link, own: Option<i64>) -> Result<bool, CallError> {
    let clients = match info(link, "clients").await {
        Ok(clients) => clients,
        Err(CallError::Refused(_)) => return Ok(false),
        Err(error) => return Err(error),
    };
    let count = field(&clients, "connected_clients").and_then(|text| text.parse().ok());
    if count.is_none_or(|count: u64| count > MAX_LISTED) {
        return Ok(false);
    }
    match link.call(cmd("CLIENT").arg("LIST").clone()).await {
        Ok(list) => Ok(text(&list).lines().any(|client| is_other(client, own))),
        Err(CallError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_other(client: &str, own: Option<i64>) -> bool {
    let field = |name: &str| {
        client.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    let id: Option<i64> = field("id").and_then(|id| id.parse().ok());
    field("flags").is_some_and(|flags| flags.contains('O'))
        && own.is_none_or(|own| id.is_some_and(|id| id < own))
}

async fn info(link: &Link, section: &str) -> Result<String, CallError> {
    let command: Cmd = cmd("INFO").arg(section).clone();
    link.call(command).await.map(|reply| text(&reply))
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        _ => String::new(),
    }
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().map(text).collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(k, v)| [text(k), text(v)]).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_hard_limit_for_normal_clients_bounds() {
        let limit = |normal: &str| {
            format!("{normal} slave 268435456 67108864 60 pubsub 33554432 8388608 60")
        };
        assert!(bounds_normal(&limit("normal 33554432 0 0")));
        assert!(!bounds_normal(&limit("normal 0 8388608 10")));
        assert!(!bounds_normal(&limit("normal 0 0 0")));
        for unknown in ["", "normal", "normal much 0 0"] {
            assert!(!bounds_normal(unknown), "{unknown}");
        }
        assert!(bounds_all("5%") && bounds_all("1048576"));
        assert!(["", "0", "0%"].iter().all(|none| !bounds_all(none)));
    }

    #[test]
    fn fields_are_found_by_their_whole_names() {
        let info = "# Stats\r\ninstantaneous_ops_per_sec_x:7\r\ninstantaneous_ops_per_sec:12\r\n";
        assert_eq!(field(info, "instantaneous_ops_per_sec"), Some("12"));
        assert_eq!(field(info, "ops_per_sec"), None);
    }

    #[test]
    fn of_two_clients_with_monitor_the_newer_one_yields() {
        let client =
            "id=7 addr=127.0.0.1:5 laddr=x fd=8 name=flags=O age=1 flags=O db=0 cmd=monitor";
        assert!(is_other(client, None) && is_other(client, Some(8)));
        assert!(!is_other(client, Some(7)) && !is_other(client, Some(3)));
        assert!(!is_other(&client.replace(" flags=O", " flags=N"), None));
    }
}
