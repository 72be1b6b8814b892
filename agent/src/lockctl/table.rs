//! Replies as tables for people, and as JSON for programs.

use redis::Value;

use crate::reply::{bytes, printable};

/// Formats rows as lines, with each column as wide as its widest cell.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let length = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = heads.iter().map(|head| length(head)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(length(cell));
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, width) in cells.zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width + 2 - length(cell)));
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
        assert_eq!(table(&["LOCK", "AGE"], &rows), ["LOCK   AGE", "größe  1", "a      22 ms"]);
        assert_eq!(table(&["LOCK", "AGE"], &[]), ["LOCK  AGE"]);
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
