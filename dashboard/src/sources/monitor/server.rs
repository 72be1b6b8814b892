//! The server's load and clients.

use redis::{Value, cmd};
use service_kit::redis::{CallError, Link};
use tokio::time::Instant;

use super::governor::Load;
use crate::sources::client_list::{self, client_list};
use crate::sources::read::text;

/// The number of PINGs from which the median is computed.
const PINGS: usize = 5;

/// Measures the server's load, in several round trips.
///
/// # Errors
/// Without a reply, or when a command is refused.
pub(super) async fn load(link: &Link) -> Result<Load, CallError> {
    let stats = info(link, "stats").await?;
    let mut pings = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent = Instant::now();
        link.ping().await?;
        pings.push(sent.elapsed());
    }
    pings.sort_unstable();
    // Only the whole part is parsed, since some values have a fraction.
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

/// Returns whether another client has MONITOR on. `own` is the number of our connection, if it is open. Then only older
/// ones count, so that two dashboards do not yield to each other.
///
/// # Errors
/// Without a reply.
pub(super) async fn another_has_monitor(link: &Link, own: Option<i64>) -> Result<bool, CallError> {
    match client_list(link).await {
        Ok(Some(list)) => Ok(list.lines().any(|client| is_other(client, own))),
        Ok(None) | Err(CallError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_other(client: &str, own: Option<i64>) -> bool {
    let field = |name| client_list::field(client, name);
    let id: Option<i64> = field("id").and_then(|id| id.parse().ok());
    field("flags").is_some_and(|flags| flags.contains('O'))
        && own.is_none_or(|own| id.is_some_and(|id| id < own))
}

pub(super) async fn info(link: &Link, section: &str) -> Result<String, CallError> {
    link.call(cmd("INFO").arg(section).clone()).await.map(|reply| text(&reply))
}

pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

pub(super) fn texts(value: &Value) -> Vec<String> {
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
