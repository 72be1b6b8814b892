//! The list of a server's clients. It is bounded, since each client in it costs the server time.

use redis::cmd;
use service_kit::redis::{CallError, Link};

use super::read::text;

/// The maximum number of clients that are listed. Listing a thousand takes the server two milliseconds.
pub(super) const MAX_CLIENTS: u64 = 1_000;

/// Returns all clients, one on each line, or `None` if there are too many to list.
///
/// # Errors
/// Without a reply, or when a command is refused.
pub(super) async fn client_list(link: &Link) -> Result<Option<String>, CallError> {
    let info = text(&link.call(cmd("INFO").arg("clients").clone()).await?);
    let count = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
    let count = count.and_then(|count| count.trim().parse::<u64>().ok());
    if count.is_none_or(|count| count > MAX_CLIENTS) {
        return Ok(None);
    }
    Ok(Some(text(&link.call(cmd("CLIENT").arg("LIST").clone()).await?)))
}

/// Returns a field of a client's line. Names cannot contain blanks, so none can be mistaken for another field.
pub(super) fn field<'a>(client: &'a str, name: &str) -> Option<&'a str> {
    client.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}
