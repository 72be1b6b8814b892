//! Descriptions of a lock's holders.

use redis::Value;

use crate::client::{Agent, Failure};
use crate::duration;
use crate::reply::{Fields as _, printable};

/// The maximum number of holders named, since a lock may have thousands of readers.
const MAX_NAMED: usize = 3;

/// Returns a clause such as `is held by … for …; its TTL is …`; `None` if the lock is free.
///
/// # Errors
/// Fails if the agent does not answer or cannot reach Redis.
pub(crate) async fn describe(agent: &mut Agent, name: &[u8]) -> Result<Option<String>, Failure> {
    let lock = agent.call(redis::cmd("SHOW").arg(name)).await?;
    let holders = lock.list("holders");
    if holders.is_empty() {
        return Ok(None);
    }
    let mut named: Vec<String> = holders.iter().take(MAX_NAMED).filter_map(holder).collect();
    if holders.len() > MAX_NAMED {
        let hidden = holders.len() - MAX_NAMED;
        named.push(format!("{hidden} other{}", if hidden == 1 { "" } else { "s" }));
    }
    let ttl = match lock.millis("pttl_ms") {
        Some(left) => format!("its TTL is {}", duration::format(left)),
        None => "it has no TTL".to_owned(),
    };
    Ok(Some(format!("is held by {}; {ttl}", named.join(", "))))
}

fn holder(holder: &Value) -> Option<String> {
    let id = holder.text("holder")?;
    Some(process(holder).unwrap_or_else(|| printable(id.as_bytes())))
}

/// Returns the process of a holder, with its host if that is another one and its hold time as far as they are known; `None` if
/// nothing is.
pub(crate) fn process(holder: &Value) -> Option<String> {
    let name = ["name", "comm"].iter().find_map(|key| holder.text(key));
    let process = match (name, holder.number("pid"), holder.number("uid")) {
        (Some(name), Some(pid), Some(uid)) => {
            format!("{} (pid {pid}, user {uid})", printable(name.as_bytes()))
        }
        (_, Some(pid), Some(uid)) => format!("pid {pid} of user {uid}"),
        (_, _, Some(uid)) => format!("a process of user {uid}"),
        _ => "a process".to_owned(),
    };
    let host = holder.text("host").map(|host| format!(" on {}", printable(host.as_bytes())));
    let age = holder.millis("age_ms").map(|age| format!(" for {}", duration::format(age)));
    if host.is_none() && age.is_none() {
        return None;
    }
    Some([process, host.unwrap_or_default(), age.unwrap_or_default()].concat())
}
