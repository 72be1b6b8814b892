//! Replies as tables for people, and as JSON for programs.

use redis::Value;

use crate::columns::{padded, shorten, width};
use crate::reply::{bytes, printable};

/// The minimum width to which the first column is cut.
const LEAST_CUT: usize = 24;

/// Formats rows as lines, with each column as wide as its widest cell. With `limit`, cells of the first column are shortened as
/// far as the lines need it to fit into that many columns of a terminal.
pub(crate) fn table(
    heads: &[&str],
    mut rows: Vec<Vec<String>>,
    limit: Option<usize>,
) -> Vec<String> {
    let mut widths: Vec<usize> = heads.iter().map(|head| width(head)).collect();
    for row in &rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    if let (Some(limit), Some((first, others))) = (limit, widths.split_first_mut()) {
        let others: usize = others.iter().map(|width| width + 2).sum();
        *first = (*first).min(limit.saturating_sub(others).max(LEAST_CUT));
        for cell in rows.iter_mut().filter_map(|row| row.first_mut()) {
            shorten(cell, *first);
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, widest) in cells.zip(&widths) {
            line.push_str(&padded(cell, widest + 2));
        }
        line.truncate(line.trim_end().len());
        line
    };
    let head = line(&mut heads.iter().copied());
    let rows = rows.iter().map(|row| line(&mut row.iter().map(String::as_str)));
    std::iter::once(head).chain(rows).collect()
}

/// Converts a reply to JSON. Strings with invalid UTF-8 are escaped as in Rust: `\xff`.
pub(crate) fn json(reply: &Value) -> serde_json::Value {
    match reply {
        Value::Int(number) => (*number).into(),
        Value::Boolean(yes) => (*yes).into(),
        Value::Double(number) => (*number).into(),
        Value::BulkString(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => bytes.escape_ascii().to_string().into(),
        },
        Value::SimpleString(text) => text.as_str().into(),
        Value::Okay => "OK".into(),
        Value::Array(items) => items.iter().map(json).collect(),
        Value::Map(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| (key_text(key), json(value)));
            serde_json::Value::Object(pairs.collect())
        }
        _ => serde_json::Value::Null,
    }
}

fn key_text(key: &Value) -> String {
    bytes(key).map(printable).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows =
            [vec!["größe".to_owned(), "1".to_owned()], vec!["a".to_owned(), "22 ms".to_owned()]];
        let lines = table(&["LOCK", "AGE"], rows.to_vec(), None);
        assert_eq!(lines, ["LOCK   AGE", "größe  1", "a      22 ms"]);
        assert_eq!(table(&["LOCK", "AGE"], Vec::new(), None), ["LOCK  AGE"]);
    }

    #[test]
    fn wide_names_keep_the_columns_in_line() {
        let rows = ["注文:42", "gro\u{308}ße", "🔒", "a"].map(|name| vec![name.into(), "1".into()]);
        assert_eq!(
            table(&["LOCK", "AGE"], rows.to_vec(), None),
            ["LOCK     AGE", "注文:42  1", "gro\u{308}ße    1", "🔒       1", "a        1"]
        );
        let rows = vec![vec!["注文".repeat(20), "1".into()], vec!["a".into(), "2".into()]];
        let lines = table(&["LOCK", "AGE"], rows, Some(40));
        assert!(lines.iter().all(|line| width(line) <= 40), "{lines:?}");
        assert_eq!(width(&lines[1]), width(&lines[2]), "{lines:?}");
    }

    #[test]
    fn the_first_column_is_shortened_only_as_far_as_the_limit_requires() {
        let name = format!("{}:{}", "ä".repeat(20), "b".repeat(20));
        let lines = |limit| table(&["LOCK", "AGE"], vec![vec![name.clone(), "1".into()]], limit);
        let whole = format!("{name}  1");
        assert_eq!(lines(None).last(), Some(&whole));
        assert_eq!(lines(Some(46)).last(), Some(&whole));
        let (head, tail) = ("ä".repeat(15), "b".repeat(14));
        assert_eq!(
            lines(Some(35)),
            [format!("LOCK{}AGE", " ".repeat(28)), format!("{head}…{tail}  1")]
        );
        let (head, tail) = ("ä".repeat(12), "b".repeat(11));
        assert_eq!(lines(Some(1)).last(), Some(&format!("{head}…{tail}  1")));
    }

    #[test]
    fn replies_are_converted_to_json() {
        let text = |text: &[u8]| Value::BulkString(text.to_vec());
        let reply = Value::Map(vec![
            (text(b"a"), Value::Array(vec![Value::Int(1), Value::Nil])),
            (text(b"b"), text(b"\xff\"")),
        ]);
        assert_eq!(json(&reply).to_string(), r#"{"a":[1,null],"b":"\\xff\\\""}"#);
    }
}
