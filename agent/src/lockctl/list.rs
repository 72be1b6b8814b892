//! `lockctl ls`: the holds and waits of this host's agent.

use redis::Value;

use crate::cli::shown;
use crate::client::{Agent, Failure, bytes, field, millis, number, text};
use crate::duration;
use crate::table;

/// How many rows are asked for at a time: as many as the agent gives.
const PAGE: usize = 1000;

/// The columns' heads.
pub(crate) const HEADS: [&str; 9] =
    ["LOCK", "KIND", "STATE", "AGE", "VALID", "PID", "USER", "SESSION", "WHO"];

/// Every row of LOCKS, held ones and waits. Between two pages locks may come and go.
///
/// # Errors
/// Where the agent does not tell.
pub(crate) async fn rows(agent: &mut Agent, glob: Option<&[u8]>) -> Result<Vec<Value>, Failure> {
    let mut rows = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut locks = redis::cmd("LOCKS");
        locks.arg("CURSOR").arg(&cursor).arg("COUNT").arg(PAGE);
        if let Some(glob) = glob {
            locks.arg("MATCH").arg(glob);
        }
        let Value::Array(page) = agent.call(&locks).await? else { return Ok(rows) };
        let mut page = page.into_iter();
        cursor = page.next().as_ref().and_then(text).unwrap_or_default();
        if let Some(Value::Array(more)) = page.next() {
            rows.extend(more);
        }
        if cursor.is_empty() || cursor == "0" {
            return Ok(rows);
        }
    }
}

/// One row's cells.
pub(crate) fn cells(row: &Value) -> Vec<String> {
    let cell = |key: &str| field(row, key).and_then(bytes).map(shown).unwrap_or_default();
    let count =
        |key: &str| field(row, key).and_then(number).map(|n| n.to_string()).unwrap_or_default();
    let lasting = |key: &str| millis(row, key).map(duration::show).unwrap_or_default();
    let who =
        [cell("name"), cell("comm")].into_iter().find(|who| !who.is_empty()).unwrap_or_default();
    let stopped = field(row, "frozen").and_then(number) == Some(1);
    let state = cell("state") + if stopped { ", stopped" } else { "" };
    vec![
        cell("lock"),
        cell("kind"),
        state,
        lasting("age_ms"),
        lasting("valid_ms"),
        count("pid"),
        count("uid"),
        cell("session"),
        who,
    ]
}

/// Those who have waited or held longest come first.
pub(crate) fn oldest_first(rows: &mut [Value]) {
    rows.sort_by_key(|row| std::cmp::Reverse(millis(row, "age_ms")));
}

/// The list as lines.
///
/// # Errors
/// Where the agent does not tell.
pub(crate) async fn list(
    agent: &mut Agent,
    glob: Option<&[u8]>,
    as_json: bool,
) -> Result<Vec<String>, Failure> {
    let mut rows = rows(agent, glob).await?;
    oldest_first(&mut rows);
    if as_json {
        return Ok(vec![table::json(&Value::Array(rows)).to_string()]);
    }
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    Ok(table::table(&HEADS, &rows))
}
