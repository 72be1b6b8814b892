//! Replies of Redis and of the agent, RESP2 and RESP3.

use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    /// `_`, `*-1`, `$-1`
    Null,
    Bool(bool),
    /// `,x`, as text
    Double(String),
    Array(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Push(Vec<Self>),
}

impl Reply {
    /// Reads one whole reply from the start of `bytes`, and returns it with its length; `None` if more bytes are
    /// needed.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a reply.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>> {
        let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(None);
        };
        let (kind, line) = bytes[..end].split_first().context("an empty line is no reply")?;
        let line = String::from_utf8_lossy(line).into_owned();
        let body = end + 2;
        let whole = |reply| Ok(Some((reply, body)));
        match kind {
            b'+' => whole(Self::Simple(line)),
            b'-' => whole(Self::Error(line)),
            b':' => whole(Self::Int(line.parse()?)),
            b'_' => whole(Self::Null),
            b'#' => whole(Self::Bool(line == "t")),
            b',' | b'(' => whole(Self::Double(line)),
            b'*' | b'$' if line == "-1" => whole(Self::Null),
            b'$' | b'=' => {
                let length: usize = line.parse()?;
                if bytes.len() < body + length + 2 {
                    return Ok(None);
                }
                ensure!(&bytes[body + length..body + length + 2] == b"\r\n", "a string too long");
                let text = bytes[body..body + length].to_vec();
                Ok(Some((Self::Bulk(text), body + length + 2)))
            }
            b'*' | b'~' | b'>' | b'%' => {
                let length: usize = line.parse()?;
                let count = if *kind == b'%' { 2 * length } else { length };
                let (mut items, mut at) = (Vec::new(), body);
                for _ in 0..count {
                    let Some((item, taken)) = Self::decode(&bytes[at..])? else {
                        return Ok(None);
                    };
                    items.push(item);
                    at += taken;
                }
                let reply = match kind {
                    b'>' => Self::Push(items),
                    b'%' => Self::Map(pairs(items)),
                    _ => Self::Array(items),
                };
                Ok(Some((reply, at)))
            }
            other => bail!("`{}` begins no reply", other.escape_ascii()),
        }
    }

    /// Returns the text of a string; for other replies, how they are displayed.
    #[must_use]
    pub fn text(&self) -> String {
        self.to_string()
    }

    /// Returns the bytes of a string.
    ///
    /// # Errors
    /// Returns an error if it is not a string.
    pub fn bytes(&self) -> Result<&[u8]> {
        match self {
            Self::Bulk(bytes) => Ok(bytes),
            Self::Simple(text) => Ok(text.as_bytes()),
            other => bail!("not a string: {other}"),
        }
    }

    /// Returns a whole number.
    ///
    /// # Errors
    /// Returns an error if it is not a number.
    pub fn int(&self) -> Result<i64> {
        match self {
            Self::Int(n) => Ok(*n),
            other => bail!("not a number: {other}"),
        }
    }

    /// Returns the items of a list or push.
    ///
    /// # Errors
    /// Returns an error if it is neither.
    pub fn items(&self) -> Result<&[Self]> {
        match self {
            Self::Array(items) | Self::Push(items) => Ok(items),
            other => bail!("not a list: {other}"),
        }
    }

    /// Returns the value for `key` in a map, or in a RESP2 list of keys and values.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub fn field(&self, key: &str) -> Result<&Self> {
        let is_key = |k: &Self| k.bytes().is_ok_and(|k| k == key.as_bytes());
        let found = match self {
            Self::Map(pairs) => pairs.iter().find(|(k, _)| is_key(k)).map(|(_, v)| v),
            Self::Array(items) => {
                items.chunks_exact(2).find(|pair| is_key(&pair[0])).map(|pair| &pair[1])
            }
            _ => None,
        };
        found.with_context(|| format!("no `{key}` in {self}"))
    }

    /// Returns the text of an error; `None` for other replies.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text),
            _ => None,
        }
    }

    /// Returns whether it is an error whose first word is `code`.
    #[must_use]
    pub fn is_error(&self, code: &str) -> bool {
        self.error().is_some_and(|text| text.split(' ').next() == Some(code))
    }

    /// Returns the reply unless it is an error.
    ///
    /// # Errors
    /// Returns the text of the error.
    pub fn ok(self) -> Result<Self> {
        match self {
            Self::Error(text) => bail!("{text}"),
            reply => Ok(reply),
        }
    }
}

fn pairs(items: Vec<Reply>) -> Vec<(Reply, Reply)> {
    let mut items = items.into_iter();
    let mut pairs = Vec::new();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        pairs.push((key, value));
    }
    pairs
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, items: &[Self]| {
            items
                .iter()
                .enumerate()
                .try_for_each(|(i, item)| write!(f, "{}{item}", if i == 0 { "" } else { ", " }))
        };
        match self {
            Self::Simple(text) | Self::Double(text) => f.write_str(text),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Int(n) => write!(f, "{n}"),
            Self::Bulk(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => f.write_str(text),
                Err(_) => write!(f, "{}", bytes.escape_ascii()),
            },
            Self::Null => f.write_str("null"),
            Self::Bool(yes) => write!(f, "{yes}"),
            Self::Array(items) => {
                f.write_str("[")?;
                list(f, items)?;
                f.write_str("]")
            }
            Self::Push(items) => {
                f.write_str("push [")?;
                list(f, items)?;
                f.write_str("]")
            }
            Self::Map(pairs) => {
                f.write_str("{")?;
                for (i, (key, value)) in pairs.iter().enumerate() {
                    write!(f, "{}{key}: {value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_whole_or_not_at_all() -> Result<()> {
        let bytes = b"%2\r\n+a\r\n:1\r\n$1\r\nb\r\n*2\r\n_\r\n$-1\r\n";
        for cut in 0..bytes.len() {
            assert_eq!(Reply::decode(&bytes[..cut])?, None, "{cut}");
        }
        let (reply, taken) = Reply::decode(bytes)?.context("whole")?;
        assert_eq!(taken, bytes.len());
        assert_eq!(reply.field("a")?.int()?, 1);
        assert_eq!(reply.field("b")?.items()?, [Reply::Null, Reply::Null]);
        assert!(Reply::decode(b"hello\r\n").is_err());
        Ok(())
    }
}
