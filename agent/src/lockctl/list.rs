//! `lockctl ls`: the holds and waits of this host's agent.

use redis::Value;

use crate::client::{Agent, Failure};
use crate::duration;
use crate::reply::{Fields as _, printable, text};
use crate::{output, table};

/// The rows requested at a time, which is the most that the agent returns.
const PAGE: usize = 1000;

pub(crate) const COLUMNS: [&str; 9] =
    ["LOCK", "KIND", "STATE", "AGE", "VALID", "PID", "USER", "SESSION", "WHO"];

/// Returns the list as lines of a table or of JSON, oldest first. In a terminal, names of locks are shortened to its width.
///
/// # Errors
/// Fails if the agent does not answer.
pub(crate) async fn list(
    agent: &mut Agent,
    glob: Option<&[u8]>,
    as_json: bool,
) -> Result<Vec<String>, Failure> {
    let rows = rows(agent, glob).await?;
    if as_json {
        return Ok(vec![table::json(&Value::Array(rows)).to_string()]);
    }
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    Ok(table::table(&COLUMNS, rows, output::terminal_size().map(|(_, width)| width)))
}

/// Returns all holds and waits, oldest first. Locks may come and go between two pages.
///
/// # Errors
/// Fails if the agent does not answer.
pub(crate) async fn rows(agent: &mut Agent, glob: Option<&[u8]>) -> Result<Vec<Value>, Failure> {
    let mut rows = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut locks = redis::cmd("LOCKS");
        locks.arg("CURSOR").arg(&cursor).arg("COUNT").arg(PAGE);
        if let Some(glob) = glob {
            locks.arg("MATCH").arg(glob);
        }
        let Value::Array(page) = agent.call(&locks).await? else { break };
        let mut page = page.into_iter();
        cursor = page.next().as_ref().and_then(text).unwrap_or_default();
        if let Some(Value::Array(more)) = page.next() {
            rows.extend(more);
        }
        if cursor.is_empty() || cursor == "0" {
            break;
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.millis("age_ms")));
    Ok(rows)
}

/// Returns the cells of a row in the order of [`COLUMNS`].
pub(crate) fn cells(row: &Value) -> Vec<String> {
    let text = |key: &str| row.bytes(key).map(printable).unwrap_or_default();
    let number = |key: &str| row.number(key).map(|n| n.to_string()).unwrap_or_default();
    let duration = |key: &str| row.millis(key).map(duration::format).unwrap_or_default();
    let name = Some(text("name")).filter(|name| !name.is_empty());
    let stopped = if row.number("frozen") == Some(1) { ", stopped" } else { "" };
    vec![
        text("lock"),
        text("kind"),
        text("state") + stopped,
        duration("age_ms"),
        duration("valid_ms"),
        number("pid"),
        number("uid"),
        text("session"),
        name.unwrap_or_else(|| text("comm")),
    ]
}
