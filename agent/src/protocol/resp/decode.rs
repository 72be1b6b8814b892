//! Decodes requests incrementally from a stream of bytes.
//!
//! A request is an array of bulk strings, or a line of words as people type it (an inline command). The decoder
//! examines each byte about once, does not copy an array's bytes, and does not trust declared lengths: memory
//! grows only with the bytes that have arrived, up to [`MAX_REQUEST`].

use thiserror::Error;

/// The longest bulk string of a request in bytes. Lock names are far shorter.
pub const MAX_BULK: usize = 64 * 1024;
/// The maximum number of words of a request.
pub const MAX_ARGS: usize = 1024;
/// The longest inline command in bytes.
pub const MAX_INLINE: usize = 64 * 1024;
/// The longest request in bytes.
pub const MAX_REQUEST: usize = 128 * 1024;

/// The longest line with a length: a sign, digits, CR and LF.
const MAX_LENGTH_LINE: usize = 32;

/// A malformed request. The text is the client's error reply without the leading `-ERR `.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Malformed {
    #[error("Protocol error: invalid multibulk length, expected 0 to {MAX_ARGS}")]
    ArrayLength,
    #[error("Protocol error: invalid bulk length, expected 0 to {MAX_BULK}")]
    BulkLength,
    /// An element of an array that is not a bulk string.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    NotABulk(u8),
    /// A bulk string that is longer than declared.
    #[error("Protocol error: expected CRLF after a bulk string of {0} bytes")]
    BulkEnd(usize),
    #[error("Protocol error: too big a request, at most {MAX_REQUEST} bytes are read")]
    TooBig,
    #[error("Protocol error: too big inline request, at most {MAX_INLINE} bytes are read")]
    InlineTooBig,
    #[error("Protocol error: too many words in an inline request, at most {MAX_ARGS} are read")]
    InlineTooMany,
    /// A quote that is not closed, or not followed by a space.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// Neither an array nor text.
    #[error("Protocol error: expected '*' or a line of text, got '{}'", .0.escape_ascii())]
    Garbage(u8),
}

/// A complete request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The words; there are none for an empty line or array, which clients may send and which get no reply.
    pub args: Args<'a>,
    /// The number of bytes to discard from the input before the next call.
    pub consumed: usize,
}

/// The words of a request.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

/// The start and end of a word.
type Span = (usize, usize);

impl<'a> Args<'a> {
    #[must_use]
    pub fn len(self) -> usize {
        self.spans.len()
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the word at `index`; the command's name has index 0.
    #[must_use]
    pub fn get(self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|&(start, end)| &self.bytes[start..end])
    }

    /// Returns the words from `index` on.
    #[must_use]
    pub fn from(self, index: usize) -> Self {
        Self { bytes: self.bytes, spans: self.spans.get(index..).unwrap_or_default() }
    }

    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        self.spans.iter().map(move |&(start, end)| &self.bytes[start..end])
    }
}

/// The decoder of one connection.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The positions of the request's words so far, in the input or in `line`.
    spans: Vec<Span>,
    /// The words of an inline command with quotes and escapes resolved.
    line: Vec<u8>,
    /// The number of bytes of the incomplete request already examined.
    at: usize,
    /// The number of bulk strings that the incomplete array still lacks.
    missing: usize,
}

impl Decoder {
    /// Decodes the first request of `input`; `None` while it is incomplete, in which case the next call must pass the same
    /// bytes followed by more. After a request, the next call must omit its [`Request::consumed`] bytes.
    ///
    /// # Errors
    /// Fails if the bytes are malformed. The rest of the stream cannot be decoded then, so the connection must close.
    pub fn decode<'a>(&'a mut self, input: &'a [u8]) -> Result<Option<Request<'a>>, Malformed> {
        let inline = match input.first() {
            None => return Ok(None),
            Some(b'*') => false,
            Some(b' ' | b'\t' | b'\r' | b'\n' | 0x21..=0x7e) => true,
            Some(&other) => return Err(Malformed::Garbage(other)),
        };
        let complete = if inline { self.inline(input)? } else { self.array(input)? };
        if !complete {
            return if input.len() > MAX_REQUEST { Err(Malformed::TooBig) } else { Ok(None) };
        }
        let consumed = std::mem::take(&mut self.at);
        let bytes = if inline { self.line.as_slice() } else { input };
        Ok(Some(Request { args: Args { bytes, spans: &self.spans }, consumed }))
    }

    /// Frees the memory of a large request. Has an effect only between requests.
    pub fn shrink(&mut self) {
        if self.at == 0 && (self.spans.capacity() > 32 || self.line.capacity() > 512) {
            self.spans = Vec::new();
            self.line = Vec::new();
        }
    }

    /// Decodes an array; false while it is incomplete.
    fn array(&mut self, input: &[u8]) -> Result<bool, Malformed> {
        if self.at == 0 {
            let Some((count, next)) = length(input, 1, MAX_ARGS, Malformed::ArrayLength)? else {
                return Ok(false);
            };
            self.spans.clear();
            (self.missing, self.at) = (count, next);
        }
        while self.missing > 0 {
            match input.get(self.at) {
                None => return Ok(false),
                Some(b'$') => {}
                Some(&other) => return Err(Malformed::NotABulk(other)),
            }
            let Some((size, start)) = length(input, self.at + 1, MAX_BULK, Malformed::BulkLength)?
            else {
                return Ok(false);
            };
            let end = start + size;
            if end + 2 > MAX_REQUEST {
                return Err(Malformed::TooBig);
            }
            let Some(tail) = input.get(end..end + 2) else { return Ok(false) };
            if tail != b"\r\n" {
                return Err(Malformed::BulkEnd(size));
            }
            self.spans.push((start, end));
            self.at = end + 2;
            self.missing -= 1;
        }
        Ok(true)
    }

    /// Decodes a line; false while it is incomplete.
    fn inline(&mut self, input: &[u8]) -> Result<bool, Malformed> {
        let Some(newline) = input[self.at..].iter().position(|&b| b == b'\n') else {
            self.at = input.len();
            return if self.at > MAX_INLINE { Err(Malformed::InlineTooBig) } else { Ok(false) };
        };
        let end = self.at + newline;
        if end > MAX_INLINE {
            return Err(Malformed::InlineTooBig);
        }
        let text = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        self.split(text)?;
        self.at = end + 1;
        Ok(true)
    }

    /// Splits a line into words: `"…"` supports escapes, `'…'` only `\'`, and a closing quote ends its word.
    fn split(&mut self, text: &[u8]) -> Result<(), Malformed> {
        self.spans.clear();
        self.line.clear();
        let mut rest = text.trim_ascii_start();
        while !rest.is_empty() {
            if self.spans.len() == MAX_ARGS {
                return Err(Malformed::InlineTooMany);
            }
            let start = self.line.len();
            rest = word(rest, &mut self.line)?.trim_ascii_start();
            self.spans.push((start, self.line.len()));
        }
        Ok(())
    }
}

/// Parses the decimal number from `start` to the end of its line and returns it with the start of the next line;
/// `None` while the line is incomplete.
fn length(
    input: &[u8],
    start: usize,
    max: usize,
    error: Malformed,
) -> Result<Option<(usize, usize)>, Malformed> {
    let line = &input[start..input.len().min(start + MAX_LENGTH_LINE)];
    let Some(end) = line.iter().position(|&b| b == b'\n') else {
        let plausible = line.iter().all(|b| b.is_ascii_digit() || *b == b'\r');
        return if plausible && line.len() < MAX_LENGTH_LINE { Ok(None) } else { Err(error) };
    };
    let digits = line[..end].strip_suffix(b"\r").unwrap_or_default();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(error);
    }
    let number = digits.iter().try_fold(0_usize, |number, digit| {
        number.checked_mul(10)?.checked_add(usize::from(digit - b'0'))
    });
    match number {
        Some(number) if number <= max => Ok(Some((number, start + end + 1))),
        _ => Err(error),
    }
}

/// Appends the first word of `text` to `into` and returns the rest.
fn word<'a>(text: &'a [u8], into: &mut Vec<u8>) -> Result<&'a [u8], Malformed> {
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = match first {
            b'"' => closed(double_quoted(after, into)?)?,
            b'\'' => closed(single_quoted(after, into)?)?,
            b if b.is_ascii_whitespace() => return Ok(rest),
            b => {
                into.push(*b);
                after
            }
        };
        if matches!(first, b'"' | b'\'') {
            return Ok(rest);
        }
    }
    Ok(rest)
}

/// Checks that a space or nothing follows a closing quote.
fn closed(rest: &[u8]) -> Result<&[u8], Malformed> {
    match rest.first() {
        Some(b) if !b.is_ascii_whitespace() => Err(Malformed::Quotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'a>(text: &'a [u8], into: &mut Vec<u8>) -> Result<&'a [u8], Malformed> {
    let mut rest = text;
    loop {
        rest = match rest {
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'x', high, low, after @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                into.push(nibble(*high) << 4 | nibble(*low));
                after
            }
            [b'\\', escaped, after @ ..] => {
                into.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                after
            }
            [b, after @ ..] => {
                into.push(*b);
                after
            }
            [] => return Err(Malformed::Quotes),
        };
    }
}

fn single_quoted<'a>(text: &'a [u8], into: &mut Vec<u8>) -> Result<&'a [u8], Malformed> {
    let mut rest = text;
    loop {
        rest = match rest {
            [b'\'', after @ ..] => return Ok(after),
            [b'\\', b'\'', after @ ..] => {
                into.push(b'\'');
                after
            }
            [b, after @ ..] => {
                into.push(*b);
                after
            }
            [] => return Err(Malformed::Quotes),
        };
    }
}

/// Returns the value of a hexadecimal digit.
fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests;
