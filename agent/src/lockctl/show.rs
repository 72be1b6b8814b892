//! `lockctl show` and `lockctl status`: the state of a lock in Redis, and of the agent.

use redis::Value;

use crate::client::{Agent, Failure};
use crate::duration;
use crate::holders;
use crate::reply::{Fields as _, bytes, printable, text};
use crate::table;

/// Returns the state of a lock as lines; `None` if it is free.
///
/// # Errors
/// Fails if the agent does not answer or cannot reach Redis.
pub(crate) async fn lock(
    agent: &mut Agent,
    name: &[u8],
    as_json: bool,
) -> Result<Option<Vec<String>>, Failure> {
    let lock = agent.call(redis::cmd("SHOW").arg(name)).await?;
    if as_json {
        return Ok(Some(vec![table::json(&lock).to_string()]));
    }
    Ok((lock != Value::Nil).then(|| lines(name, &lock)))
}

/// Returns the lines about a lock that is not free.
fn lines(name: &[u8], lock: &Value) -> Vec<String> {
    let mut lines = vec![format!("lock     {}", printable(name))];
    let mut line = |head: &str, text: String| {
        lines.push(format!("{head:<9}{}", printable(text.as_bytes())));
    };
    let holders = lock.list("holders");
    // The remains of a lock that nobody holds show its kind only if it is not a plain one.
    if let Some(kind) = lock.text("kind").filter(|kind| !holders.is_empty() || kind != "lock") {
        line("kind", kind);
    }
    if holders.is_empty() && lock.list("servers").is_empty() {
        line("held by", "nobody".to_owned());
    }
    for holder in holders {
        let id = holder.bytes("holder").map(printable).unwrap_or_default();
        let count = holder.number("holds").unwrap_or(0);
        let times = if count == 1 { String::new() } else { format!(", {count} times") };
        let process =
            holders::process(holder).map(|process| format!(" — {process}")).unwrap_or_default();
        line("held by", format!("{id}{times}{process}"));
    }
    match lock.millis("pttl_ms") {
        Some(left) => line("ttl", duration::format(left)),
        None if holders.is_empty() => {}
        None => line("ttl", "none".to_owned()),
    }
    if let Some(token) = lock.number("token") {
        line("token", token.to_string());
    }
    let length = lock.number("queue_length").unwrap_or(0);
    if length > 0 {
        line("queue", format!("{length} waiting"));
    }
    for server in lock.list("servers") {
        let at = server.text("server").unwrap_or_default();
        let ids = server.list("holders").iter();
        let ids: Vec<String> = ids.filter_map(bytes).map(printable).collect();
        let state = match server.text("trouble") {
            Some(trouble) => trouble,
            None if ids.is_empty() => "free".to_owned(),
            None => ids.join(", "),
        };
        line("on", format!("{at}: {state}"));
    }
    for warning in lock.list("warnings") {
        line("warning", text(warning).unwrap_or_default());
    }
    lines
}

/// The state of the agent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// Locks can be acquired.
    pub(crate) healthy: bool,
    pub(crate) lines: Vec<String>,
}

/// The fields of INFO about the agent, with their names in the output.
const FIELDS: [(&str, &str); 10] = [
    ("lockscope_version", "version"),
    ("process_id", "pid"),
    ("agent", "agent"),
    ("redis_up", "redis_up"),
    ("redis", "redis"),
    ("redis_refusal", "redis_refusal"),
    ("draining", "draining"),
    ("journal_missing", "journal_missing"),
    ("holds", "holds"),
    ("waiters", "waiters"),
];

/// Returns the state of the agent.
///
/// # Errors
/// Fails if it does not answer.
pub(crate) async fn status(agent: &mut Agent, as_json: bool) -> Result<Status, Failure> {
    let info = info(agent).await?;
    let value = |key: &str| field(&info, key);
    let fields: Vec<(&str, &str)> =
        FIELDS.iter().filter_map(|(key, name)| Some((*name, value(key)?))).collect();
    let refused = value("redis_refusal").is_some_and(|error| !error.is_empty());
    let healthy = value("redis_up") == Some("1") && !refused && value("draining") == Some("0");
    let lines = if as_json {
        let pairs = fields.iter().map(|(name, text)| {
            let value = match text.parse::<u64>() {
                Ok(flag) if matches!(*name, "redis_up" | "draining") => (flag == 1).into(),
                Ok(number) => number.into(),
                Err(_) if text.is_empty() => serde_json::Value::Null,
                Err(_) => (*text).into(),
            };
            ((*name).to_owned(), value)
        });
        vec![serde_json::Value::Object(pairs.collect()).to_string()]
    } else {
        let yes = |text: &str| if text == "1" { "yes" } else { "no" }.to_owned();
        let line = |(name, text): &(&str, &str)| match *name {
            "redis_up" => format!("{:<10}{}", "redis up", yes(text)),
            "draining" => format!("{:<10}{}", "draining", yes(text)),
            "redis_refusal" => format!("{:<10}{}", "refuses", printable(text.as_bytes())),
            "journal_missing" => format!("{:<10}{}", "no grace", printable(text.as_bytes())),
            name => format!("{name:<10}{}", printable(text.as_bytes())),
        };
        fields.iter().filter(|(_, text)| !text.is_empty()).map(line).collect()
    };
    Ok(Status { healthy, lines })
}

/// Returns the error with which Redis refuses the scripts of all locks, if it does.
///
/// # Errors
/// Fails if the agent does not answer.
pub(crate) async fn refusal(agent: &mut Agent) -> Result<Option<String>, Failure> {
    let info = info(agent).await?;
    let error = field(&info, "redis_refusal").filter(|error| !error.is_empty());
    Ok(error.map(|error| printable(error.as_bytes())))
}

async fn info(agent: &mut Agent) -> Result<String, Failure> {
    let info = agent.call(&redis::cmd("INFO")).await?;
    Ok(match info {
        Value::VerbatimString { text, .. } => text,
        other => text(&other).unwrap_or_default(),
    })
}

fn field<'a>(info: &'a str, key: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_cannot_move_the_cursor() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let map = |pairs: Vec<(&str, Value)>| {
            Value::Map(pairs.into_iter().map(|(key, value)| (text(key), value)).collect())
        };
        let server = map(vec![("server", text("host:1")), ("trouble", text("ERR \u{1b}[2J"))]);
        let lock = map(vec![
            ("servers", Value::Array(vec![server])),
            ("warnings", Value::Array(vec![text("\u{1b}]0;x\u{7}")])),
        ]);
        let expected =
            ["lock     a", r"on       host:1: ERR \u{1b}[2J", r"warning  \u{1b}]0;x\u{7}"];
        assert_eq!(lines(b"a", &lock), expected);
    }
}
