//! Text from Redis, made safe to display and to paste.

use redisson::LockName;
use redisson::name::is_invisible;

/// Returns a lock's name as pages show it: one line in which every character is visible.
#[must_use]
pub fn shown_name(name: &LockName) -> String {
    visible(name.as_bytes())
}

/// Returns any bytes as one line in which every character is visible, in the form that [`redisson::LockName`] displays,
/// with invisible blanks escaped.
#[must_use]
pub fn visible(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    let (start, end) = (bytes.trim_ascii_start(), bytes.trim_ascii_end());
    let inner = bytes.len() - start.len()..end.len();
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == ' ' && !inner.contains(&at) {
                shown.push_str("\\x20");
            } else if c != ' ' && (c == '\\' || c.is_control() || is_invisible(c) || is_blank(c)) {
                shown.extend(c.escape_default());
            } else {
                shown.push(c);
            }
            at += c.len_utf8();
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
        at += chunk.invalid().len();
    }
    shown
}

/// Returns a text with invisible characters escaped. Blanks and backslashes stay as they are, other than in [`visible`].
#[must_use]
pub fn revealed(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Puts visible text into backticks, between which pages show it as code. Backticks in the text are escaped.
#[must_use]
pub fn code(visible: &str) -> String {
    format!("`{}`", visible.replace('`', "\\x60"))
}

/// Returns true for characters that look like a space or are invisible.
fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}')
}

/// Returns one word for a shell: printable ASCII within single quotes, and other bytes as `$'\xHH'`. Every such run of
/// bytes has separate quotes, since some shells would read on through hexadecimal digits that follow.
#[must_use]
pub fn quoted(bytes: &[u8]) -> String {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~');
    let mut word = String::new();
    for run in bytes.chunk_by(|a, b| plain(a) == plain(b)) {
        if run.first().is_some_and(plain) {
            word.push('\'');
            for &byte in run {
                if byte == b'\'' {
                    word.push_str("'\\''");
                } else {
                    word.push(char::from(byte));
                }
            }
            word.push('\'');
        } else {
            word.push_str("$'");
            for byte in run {
                word.push_str(&format!("\\x{byte:02x}"));
            }
            word.push('\'');
        }
    }
    word
}

/// Returns a line for a shell that runs a Redis command with a key. `program` is `redis-cli` with its options, and `rest` is
/// what follows the key.
#[must_use]
pub fn redis_command(program: &str, command: &str, key: &[u8], rest: &str) -> String {
    // An argument of a process cannot contain a zero byte, so redis-cli has to read escapes.
    if key.contains(&0) {
        let mut escaped = String::new();
        for &byte in key {
            match byte {
                b'\'' | b'"' | b'\\' | ..0x20 | 0x7f.. => {
                    escaped.push_str(&format!("\\x{byte:02x}"));
                }
                printable => escaped.push(char::from(printable)),
            }
        }
        return format!("{program} --quoted-input {command} '\"{escaped}\"'{rest}");
    }
    format!("{program} {command} {}{rest}", quoted(key))
}

/// Formats a count with its digits in groups of three.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Returns a count with its noun in the right number.
#[must_use]
pub fn amount(n: u64, one: &str, several: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { several })
}

/// Returns a count with its noun, which takes an `s` in the plural.
#[must_use]
pub fn counted(n: u64, noun: &str) -> String {
    amount(n, noun, &format!("{noun}s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_has_its_noun_in_the_right_number() {
        let texts = [0, 1, 2, 1_000].map(|n| counted(n, "held lock"));
        assert_eq!(texts, ["0 held locks", "1 held lock", "2 held locks", "1,000 held locks"]);
    }

    #[test]
    fn a_backtick_in_a_name_does_not_end_its_code_span() {
        assert_eq!(code("a b"), "`a b`");
        assert_eq!(code(&visible(b"a`\\x60")), "`a\\x60\\\\x60`");
    }

    #[test]
    fn bytes_look_like_displayed_names_with_blanks_escaped() {
        for name in ["żółw\n\\".as_bytes(), b"\xff\x00", "\u{202e}x".as_bytes()] {
            assert_eq!(visible(name), LockName::new(name).unwrap().to_string());
        }
        assert_eq!(visible(b" a  b "), "\\x20a  b\\x20");
        assert_eq!(visible(b" "), "\\x20");
        assert_eq!(visible("a\u{a0}\u{3000}".as_bytes()), "a\\u{a0}\\u{3000}");
        assert_eq!(visible(b""), "");
    }
}
