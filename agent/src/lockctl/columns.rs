//! The columns that text occupies in a terminal: ideographs and most emoji have two, combining characters none.

use unicode_width::UnicodeWidthChar as _;

/// Returns the number of columns of a character. Terminals show characters one by one, so those of a text add up.
fn columns(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Returns the number of columns of a text.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// Appends spaces to a text that has fewer than `wanted` columns.
pub(crate) fn padded(text: &str, wanted: usize) -> String {
    let mut padded = text.to_owned();
    padded.extend(std::iter::repeat_n(' ', wanted.saturating_sub(width(text))));
    padded
}

/// Returns the characters at the start of a text that fit into `most` columns.
pub(crate) fn start(text: &str, most: usize) -> String {
    fitting(text.chars(), most).collect()
}

/// Returns the characters at the end of a text that fit into `most` columns, without marks whose letter does not.
fn end(text: &str, most: usize) -> String {
    let kept: Vec<char> = fitting(text.chars().rev(), most).collect();
    kept.into_iter().rev().skip_while(|c| columns(*c) == 0).collect()
}

fn fitting(chars: impl Iterator<Item = char>, most: usize) -> impl Iterator<Item = char> {
    chars.scan(0, move |used, c| {
        *used += columns(c);
        (*used <= most).then_some(c)
    })
}

/// Cuts characters from the middle of a text that has more than `most` columns: names often differ only at their end.
pub(crate) fn shorten(text: &mut String, most: usize) {
    if width(text) > most {
        let head = start(text, most / 2);
        let tail = end(text, most.saturating_sub(1) / 2);
        *text = format!("{head}…{tail}");
    }
}

/// Breaks a text between words into lines of at most `most` columns. A word that is longer than a line is broken, too.
pub(crate) fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            if width(&line) + 1 + width(word) > most {
                lines.push(std::mem::take(&mut line));
            } else {
                line.push(' ');
            }
        }
        for c in word.chars() {
            if !line.is_empty() && width(&line) + columns(c) > most {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_have_two_columns_and_marks_none() {
        for (text, columns) in
            [("größe", 5), ("gro\u{308}ße", 5), ("注文:42", 7), ("🔒a", 3), ("ｱ", 1), ("", 0)]
        {
            assert_eq!(width(text), columns, "{text}");
            assert_eq!(padded(text, 8), format!("{text}{}", " ".repeat(8 - columns)));
        }
        assert_eq!(padded("注文", 3), "注文");
    }

    #[test]
    fn a_cut_splits_no_character_and_leaves_no_mark_alone() {
        let cut = |text: &str, most| {
            let mut text = text.to_owned();
            shorten(&mut text, most);
            assert!(width(&text) <= most, "{text}");
            text
        };
        assert_eq!(cut("abcdefgh", 8), "abcdefgh");
        assert_eq!(cut("abcdefgh", 7), "abc…fgh");
        assert_eq!(cut("abcdefgh", 6), "abc…gh");
        assert_eq!(cut("注文注文注文", 12), "注文注文注文");
        assert_eq!(cut("注文注文注文", 9), "注文…注文");
        assert_eq!(cut("注文注文注文", 8), "注文…文");
        assert_eq!(cut("e\u{301}e\u{301}e\u{301}e\u{301}", 3), "e\u{301}…e\u{301}");
        assert_eq!(cut("abo\u{308}", 2), "a…");
        assert_eq!((start("注文", 3), start("e\u{301}a", 1)), ("注".into(), "e\u{301}".into()));
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("no agent listens", 80), ["no agent listens"]);
        assert_eq!(wrapped("no agent listens", 8), ["no agent", "listens"]);
        assert_eq!(wrapped("no /run/agent.sock: gone", 8), ["no", "/run/age", "nt.sock:", "gone"]);
        assert_eq!(wrapped("注文は 注文", 5), ["注文", "は", "注文"]);
        assert_eq!(wrapped("注a", 1), ["注", "a"]);
        assert_eq!(wrapped("", 5), [""]);
    }
}
