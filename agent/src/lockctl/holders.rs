//! Who has a lock, in a sentence.

use std::time::Duration;

use redis::Value;

use crate::cli::shown;
use crate::client::{Agent, Failure, field, millis, number, text};
use crate::duration;

/// How many holders are named: a lock may have thousands of readers.
const NAMED: usize = 3;

/// `is held by … for …; its time to live is …`; nothing where it is free.
///
/// # Errors
/// Where the agent cannot tell.
pub(crate) async fn of(agent: &mut Agent, name: &[u8]) -> Result<Option<String>, Failure> {
    let mut show = redis::cmd("SHOW");
    show.arg(name);
    let lock = agent.call(&show).await?;
    let Some(Value::Array(holders)) = field(&lock, "holders").filter(|holders| !is_empty(holders))
    else {
        return Ok(None);
    };
    let mut named: Vec<String> = holders.iter().take(NAMED).filter_map(describe).collect();
    if holders.len() > NAMED {
        named.push(format!("{} others", holders.len() - NAMED));
    }
    let lasting = match millis(&lock, "pttl_ms") {
        Some(left) => format!("its time to live is {}", duration::show(left)),
        None => "it has no time to live".to_owned(),
    };
    Ok(Some(format!("is held by {}; {lasting}", named.join(", "))))
}

fn is_empty(list: &Value) -> bool {
    matches!(list, Value::Array(items) if items.is_empty())
}

fn describe(holder: &Value) -> Option<String> {
    let id = text(field(holder, "holder")?)?;
    Some(who(holder).unwrap_or_else(|| shown(id.as_bytes())))
}

/// Which process a holder is and for how long, where the agent tells.
pub(crate) fn who(holder: &Value) -> Option<String> {
    let uid = field(holder, "uid").and_then(number)?;
    let pid = field(holder, "pid").and_then(number);
    let age = millis(holder, "age_ms").unwrap_or(Duration::ZERO);
    let name = ["name", "comm"].iter().find_map(|key| field(holder, key).and_then(text));
    let who = match (name, pid) {
        (Some(name), Some(pid)) => format!("{} (pid {pid}, user {uid})", shown(name.as_bytes())),
        (_, Some(pid)) => format!("pid {pid} of user {uid}"),
        _ => format!("a process of user {uid}"),
    };
    Some(format!("{who} for {}", duration::show(age)))
}
