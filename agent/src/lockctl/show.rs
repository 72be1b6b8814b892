//! `lockctl show` and `lockctl status`: one lock as Redis has it, and the agent itself.

use redis::Value;

use crate::cli::shown;
use crate::client::{Agent, Failure, bytes, field, millis, number, text};
use crate::duration;
use crate::holders;
use crate::table;

/// One lock, whoever holds it; nothing where it is free.
///
/// # Errors
/// Where the agent cannot tell.
pub(crate) async fn lock(
    agent: &mut Agent,
    name: &[u8],
    as_json: bool,
) -> Result<Option<Vec<String>>, Failure> {
    let mut show = redis::cmd("SHOW");
    show.arg(name);
    let lock = agent.call(&show).await?;
    if as_json {
        return Ok(Some(vec![table::json(&lock).to_string()]));
    }
    if lock == Value::Nil {
        return Ok(None);
    }
    let mut lines = vec![format!("lock     {}", shown(name))];
    let mut line = |head: &str, text: String| lines.push(format!("{head:<9}{text}"));
    line("kind", field(&lock, "kind").and_then(text).unwrap_or_default());
    for holder in items(&lock, "holders") {
        let id = field(holder, "holder").and_then(bytes).map(shown).unwrap_or_default();
        let count = field(holder, "holds").and_then(number).unwrap_or(0);
        let times = if count == 1 { String::new() } else { format!(", {count} times") };
        let who = match holders::who(holder) {
            Some(who) => format!(" — {who}"),
            None => String::new(),
        };
        line("held by", format!("{id}{times}{who}"));
    }
    line("ttl", millis(&lock, "pttl_ms").map_or_else(|| "none".to_owned(), duration::show));
    if let Some(token) = field(&lock, "token").and_then(number) {
        line("token", token.to_string());
    }
    let length = field(&lock, "queue_length").and_then(number).unwrap_or(0);
    if length > 0 {
        line("queue", format!("{length} waiting"));
    }
    for server in items(&lock, "servers") {
        let at = field(server, "server").and_then(text).unwrap_or_default();
        let ids = items(server, "holders").iter();
        let ids: Vec<String> = ids.filter_map(bytes).map(shown).collect();
        let state = match field(server, "trouble").and_then(text) {
            Some(trouble) => trouble,
            None if ids.is_empty() => "free".to_owned(),
            None => ids.join(", "),
        };
        line("on", format!("{at}: {state}"));
    }
    for warning in items(&lock, "warnings") {
        line("warning", text(warning).unwrap_or_default());
    }
    Ok(Some(lines))
}

fn items<'a>(map: &'a Value, key: &str) -> &'a [Value] {
    match field(map, key) {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}

/// What the agent says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// Whether locks are to be had.
    pub(crate) well: bool,
    /// The status as lines.
    pub(crate) lines: Vec<String>,
}

/// The fields of INFO's section on the agent, with what they are called here.
const FIELDS: [(&str, &str); 8] = [
    ("lockscope_version", "version"),
    ("process_id", "pid"),
    ("agent", "agent"),
    ("redis_up", "redis_up"),
    ("redis", "redis"),
    ("draining", "draining"),
    ("holds", "holds"),
    ("waiters", "waiters"),
];

/// The agent's own state.
///
/// # Errors
/// Where it does not answer.
pub(crate) async fn status(agent: &mut Agent, as_json: bool) -> Result<Status, Failure> {
    let info = agent.call(&redis::cmd("INFO")).await?;
    let info = match &info {
        Value::VerbatimString { text, .. } => text.clone(),
        other => text(other).unwrap_or_default(),
    };
    let value = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let known: Vec<(&str, &str)> =
        FIELDS.iter().filter_map(|(key, name)| Some((*name, value(key)?))).collect();
    let well = value("redis_up") == Some("1") && value("draining") == Some("0");
    let lines = if as_json {
        let pairs = known.iter().map(|(name, text)| {
            let value = match text.parse::<u64>() {
                Ok(flag) if matches!(*name, "redis_up" | "draining") => (flag == 1).into(),
                Ok(number) => number.into(),
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
            name => format!("{name:<10}{}", shown(text.as_bytes())),
        };
        known.iter().map(line).collect()
    };
    Ok(Status { well, lines })
}
