//! RESP3, the protocol of the agent's socket.

use std::env;
use std::os::unix::ffi::OsStrExt as _;

/// The depth of nested values; the agent's replies have three levels.
const DEPTH: usize = 16;

/// A value that the agent sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Integer(i64),
    Text(Vec<u8>),
    Error(String),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Push(Vec<Value>),
}

impl Value {
    /// Returns the value of a map's key.
    pub(crate) fn get(&self, key: &str) -> &Self {
        let Self::Map(pairs) = self else { return &Self::Null };
        let found = pairs.iter().find(|(k, _)| matches!(k, Self::Text(k) if k == key.as_bytes()));
        found.map_or(&Self::Null, |(_, value)| value)
    }

    pub(crate) fn integer(&self) -> Option<i64> {
        if let Self::Integer(value) = self { Some(*value) } else { None }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if let Self::Text(text) = self { text } else { &[] }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    pub(crate) fn list(&self) -> &[Self] {
        if let Self::List(values) = self { values } else { &[] }
    }
}

/// The bytes of a command.
#[derive(Debug, Default)]
pub(crate) struct Command {
    words: usize,
    body: Vec<u8>,
}

impl Command {
    pub(crate) fn new(word: &str) -> Self {
        Self::default().word(word)
    }

    /// Returns the first command of a connection. It names the connection as `LOCKSCOPE_NAME` says.
    pub(crate) fn hello() -> Self {
        let given = env::var_os("LOCKSCOPE_NAME").unwrap_or_default();
        let visible = given.as_bytes().iter().copied().filter(u8::is_ascii_graphic);
        let name: Vec<u8> = visible.take(100).collect();
        let hello = Self::new("HELLO").word("3");
        if name.is_empty() { hello } else { hello.word("SETNAME").word(name) }
    }

    pub(crate) fn word(mut self, word: impl AsRef<[u8]>) -> Self {
        let word = word.as_ref();
        self.words += 1;
        self.body.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        self.body.extend_from_slice(word);
        self.body.extend_from_slice(b"\r\n");
        self
    }

    pub(crate) fn number(self, number: u128) -> Self {
        self.word(number.to_string())
    }

    pub(crate) fn write_to(&self, buffer: &mut Vec<u8>) {
        buffer.extend_from_slice(format!("*{}\r\n", self.words).as_bytes());
        buffer.extend_from_slice(&self.body);
    }
}

/// The input was not RESP.
#[derive(Debug)]
pub(crate) struct Malformed;

/// Values that arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    buffer: Vec<u8>,
    at: usize,
}

impl Parser {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next value once it is complete.
    pub(crate) fn next(&mut self) -> Result<Option<Value>, Malformed> {
        let mut reader = Reader { input: &self.buffer, at: self.at };
        let value = reader.value(DEPTH)?;
        if value.is_some() {
            self.at = reader.at;
        }
        Ok(value)
    }
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = &self.input[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        self.at += end + 2;
        Some(&rest[..end])
    }

    fn value(&mut self, depth: usize) -> Result<Option<Value>, Malformed> {
        let Some(line) = self.line() else { return Ok(None) };
        let (kind, rest) = line.split_first().ok_or(Malformed)?;
        match kind {
            b'+' | b'#' | b',' => return Ok(Some(Value::Text(rest.to_vec()))),
            b'-' => return Ok(Some(Value::Error(String::from_utf8_lossy(rest).into_owned()))),
            b'_' => return Ok(Some(Value::Null)),
            _ => {}
        }
        let number: i64 =
            std::str::from_utf8(rest).ok().and_then(|n| n.parse().ok()).ok_or(Malformed)?;
        if *kind == b':' {
            return Ok(Some(Value::Integer(number)));
        }
        let Ok(size) = usize::try_from(number) else { return Ok(Some(Value::Null)) };
        let depth = depth.checked_sub(1).ok_or(Malformed)?;
        match kind {
            b'$' => {
                let Some(bytes) = self.input[self.at..].get(..size) else { return Ok(None) };
                if self.input.len() < self.at + size + 2 {
                    return Ok(None);
                }
                self.at += size + 2;
                Ok(Some(Value::Text(bytes.to_vec())))
            }
            b'%' => {
                let Some(values) = self.values(size.saturating_mul(2), depth)? else {
                    return Ok(None);
                };
                let mut values = values.into_iter();
                let pairs = std::iter::from_fn(|| values.next().zip(values.next()));
                Ok(Some(Value::Map(pairs.collect())))
            }
            b'*' | b'~' => Ok(self.values(size, depth)?.map(Value::List)),
            b'>' => Ok(self.values(size, depth)?.map(Value::Push)),
            _ => Err(Malformed),
        }
    }

    fn values(&mut self, count: usize, depth: usize) -> Result<Option<Vec<Value>>, Malformed> {
        let mut values = Vec::new();
        for _ in 0..count {
            let Some(value) = self.value(depth)? else { return Ok(None) };
            values.push(value);
        }
        Ok(Some(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLY: &[u8] =
        b"%2\r\n$4\r\nlock\r\n$2\r\n\r\n\r\n+holds\r\n:1\r\n>2\r\n+lock-lost\r\n_\r\n-ERR no\r\n";

    #[test]
    fn values_that_arrive_byte_by_byte_are_the_same() {
        let mut parser = Parser::default();
        let mut values = Vec::new();
        for byte in REPLY {
            parser.feed(&[*byte]);
            while let Some(value) = parser.next().expect("RESP") {
                values.push(value);
            }
        }
        assert_eq!(values[0].get("lock").bytes(), b"\r\n");
        assert_eq!(values[0].get("holds").integer(), Some(1));
        assert_eq!(values[1], Value::Push(vec![Value::Text(b"lock-lost".to_vec()), Value::Null]));
        assert_eq!(values[2], Value::Error("ERR no".to_owned()));
        assert_eq!(values.len(), 3);
    }

    #[test]
    fn input_that_is_not_resp_is_rejected() {
        for input in [&b"hello\r\n"[..], b"\r\n", b"$x\r\n", &b"*1\r\n".repeat(DEPTH + 2)] {
            let mut parser = Parser::default();
            parser.feed(input);
            assert!(parser.next().is_err(), "{input:?}");
        }
    }

    #[test]
    fn a_command_is_a_list_of_its_words() {
        let mut bytes = Vec::new();
        Command::new("LOCK").word("ä").number(7).write_to(&mut bytes);
        assert_eq!(bytes, "*3\r\n$4\r\nLOCK\r\n$2\r\nä\r\n$1\r\n7\r\n".as_bytes());
    }
}
