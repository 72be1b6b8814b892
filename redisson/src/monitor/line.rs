//! Lazy parsing of one line.
//!
//! The form is `SECONDS.MICROS [DB SOURCE] "argument" "argument" ...`. The source is `lua` for commands called by a
//! script, else the client's address. Arguments are quoted and escaped, so they cannot imitate structure. The path of a
//! Unix socket is not escaped and may contain anything.

use memchr::{memchr, memchr_iter, memchr2};

/// A line with a well-formed header.
pub(super) struct Line<'a> {
    time: &'a [u8],
    pub(super) db: u32,
    pub(super) source: Source<'a>,
    /// The command and its arguments.
    pub(super) args: Args<'a>,
}

/// The sender of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source<'a> {
    /// The preceding script or function.
    Lua,
    /// A client, identified by its address as printed.
    Client(&'a [u8]),
}

impl<'a> Line<'a> {
    /// Parses everything before the arguments.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let (time, rest) = line.split_at_checked(memchr(b' ', line)?)?;
        let rest = rest.strip_prefix(b" [")?;
        let (db, rest) = number(rest)?;
        let rest = rest.strip_prefix(b" ")?;
        let db = u32::try_from(db).ok()?;
        if let Some(args) = rest.strip_prefix(b"lua] ") {
            return Some(Self { time, db, source: Source::Lua, args: Args(args) });
        }
        let raw_path = rest.starts_with(b"unix:");
        for end in memchr_iter(b']', rest) {
            if let Some(args) = rest[end..].strip_prefix(b"] \"") {
                let args = Args(&rest[rest.len() - args.len() - 1..]);
                if !raw_path || args.clone().all(|arg| arg.is_some()) {
                    return Some(Self { time, db, source: Source::Client(&rest[..end]), args });
                }
            }
        }
        None
    }

    /// Returns the instant at which the command ran, in epoch microseconds.
    pub(super) fn micros(&self) -> Option<u64> {
        let (seconds, rest) = number(self.time)?;
        let (micros, rest) = number(rest.strip_prefix(b".")?)?;
        let whole = rest.is_empty() && micros < 1_000_000;
        whole.then(|| seconds.saturating_mul(1_000_000).saturating_add(micros))
    }
}

/// Splits `text` into its leading number and the rest.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !(1..=18).contains(&digits) {
        return None;
    }
    let (digits, rest) = text.split_at(digits);
    Some((digits.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')), rest))
}

/// An iterator over arguments. Yields `None` for a malformed argument, and then ends.
#[derive(Clone)]
pub(super) struct Args<'a>(&'a [u8]);

/// An argument as printed, without quotes.
#[derive(Clone, Copy)]
pub(super) struct Arg<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> Iterator for Args<'a> {
    type Item = Option<Arg<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let arg = self.take();
        if arg.is_none() {
            self.0 = b"";
        }
        Some(arg)
    }
}

impl<'a> Args<'a> {
    fn take(&mut self) -> Option<Arg<'a>> {
        let text = self.0.strip_prefix(b"\"")?;
        let mut at = 0;
        let mut escaped = false;
        loop {
            at += memchr2(b'"', b'\\', text.get(at..)?)?;
            if text[at] == b'"' {
                break;
            }
            escaped = true;
            at += 2;
        }
        let (raw, rest) = text.split_at(at);
        self.0 = match &rest[1..] {
            [] => b"",
            rest => rest.strip_prefix(b" ").filter(|rest| !rest.is_empty())?,
        };
        Some(Arg { raw, escaped })
    }
}

impl<'a> Arg<'a> {
    /// Returns the argument as printed, possibly with escapes.
    pub(super) fn raw(self) -> &'a [u8] {
        self.raw
    }

    /// Appends the unescaped argument to `bytes`. Returns false for an escape that Redis never prints.
    pub(super) fn append_to(self, bytes: &mut Vec<u8>) -> bool {
        if !self.escaped {
            bytes.extend_from_slice(self.raw);
            return true;
        }
        let mut raw = self.raw;
        while let Some(at) = memchr(b'\\', raw) {
            bytes.extend_from_slice(&raw[..at]);
            let (byte, length) = match &raw[at + 1..] {
                [b'x', high, low, ..] => match (hex(*high), hex(*low)) {
                    (Some(high), Some(low)) => (high << 4 | low, 4),
                    _ => return false,
                },
                [b'n', ..] => (b'\n', 2),
                [b'r', ..] => (b'\r', 2),
                [b't', ..] => (b'\t', 2),
                [b'a', ..] => (7, 2),
                [b'b', ..] => (8, 2),
                [byte @ (b'"' | b'\\'), ..] => (*byte, 2),
                _ => return false,
            };
            bytes.push(byte);
            raw = &raw[at + length..];
        }
        bytes.extend_from_slice(raw);
        true
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}
