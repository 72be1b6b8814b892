//! The lines behind events, while somebody traces locks.

use std::sync::Arc;

/// The most bytes stored of one event's lines.
const MAX_BYTES: usize = 2 * 1024;
/// The bytes stored of the beginning and of the end of a long line. The source of a script is between them.
const HEAD: usize = 200;
const TAIL: usize = 600;
/// The mark in place of what was left out.
const LEFT_OUT: &[u8] = b" ... ";

/// The lines of the open unit, and those of the events emitted so far. Bounded for any input.
#[derive(Debug, Default)]
pub(super) struct TracedLines {
    on: bool,
    unit: Vec<u8>,
    of_events: Vec<Arc<[u8]>>,
}

impl TracedLines {
    pub(super) fn set(&mut self, on: bool) {
        if !on {
            *self = Self::default();
        }
        self.on = on;
    }

    /// Adds a line to the open unit.
    pub(super) fn add(&mut self, line: &[u8]) {
        if !self.on || self.unit.len() >= MAX_BYTES {
            return;
        }
        if !self.unit.is_empty() {
            self.unit.push(b'\n');
        }
        if line.len() > HEAD + TAIL + LEFT_OUT.len() {
            self.unit.extend_from_slice(&line[..HEAD]);
            self.unit.extend_from_slice(LEFT_OUT);
            self.unit.extend_from_slice(&line[line.len() - TAIL..]);
        } else {
            self.unit.extend_from_slice(line);
        }
        self.unit.truncate(MAX_BYTES);
    }

    /// Ends the open unit, which amounted to that many events.
    pub(super) fn close(&mut self, events: usize) {
        if self.on && events > 0 {
            let lines: Arc<[u8]> = self.unit.as_slice().into();
            self.of_events.extend(std::iter::repeat_n(lines, events));
        }
        self.unit.clear();
    }

    /// Returns the lines of each event since the last call.
    pub(super) fn take(&mut self) -> Vec<Arc<[u8]>> {
        std::mem::take(&mut self.of_events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_keep_their_ends() {
        let mut lines = TracedLines::default();
        lines.add(b"nobody asked");
        lines.close(1);
        assert!(lines.take().is_empty());
        lines.set(true);
        let long = [b"EVAL ".as_slice(), &[b'x'; 9_000], b" orders:1"].concat();
        lines.add(&long);
        lines.add(b"exists");
        lines.close(2);
        let taken = lines.take();
        assert_eq!(taken.len(), 2);
        let text = String::from_utf8(taken[0].to_vec()).unwrap();
        assert!(text.starts_with("EVAL xx") && text.contains("x ... x"), "{text}");
        assert!(text.ends_with(" orders:1\nexists"), "{text}");
        for _ in 0..100 {
            lines.add(&long);
        }
        lines.close(1);
        assert!(lines.take()[0].len() <= MAX_BYTES);
    }
}
