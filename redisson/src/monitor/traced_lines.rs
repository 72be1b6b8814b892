//! The lines behind events, for traces of locks.

use std::sync::Arc;

use super::event::Event;

/// The maximum number of bytes stored of one event's lines.
const MAX_BYTES: usize = 2 * 1024;
/// The maximum number of bytes stored of an open unit, which may concern several locks.
const MAX_UNIT: usize = 32 * 1024;
/// The quotation marks around a script's digest or source, its command, and its number of keys.
const MARKS: usize = 6;
/// The bytes stored of the beginning and of the end of a long line. The source of a script is between them.
const HEAD: usize = 200;
const TAIL: usize = 600;
/// The mark for omitted bytes.
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
        if !self.on || self.unit.len() >= MAX_UNIT {
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
        self.unit.truncate(MAX_UNIT);
    }

    /// Ends the open unit, which resulted in these events. If they concern several locks, each gets its own lines.
    pub(super) fn close(&mut self, events: &[Event]) {
        if let Some(first) = events.first().filter(|_| self.on) {
            if events.iter().all(|event| event.lock == first.lock) {
                let lines: Arc<[u8]> = self.unit[..self.unit.len().min(MAX_BYTES)].into();
                self.of_events.extend(std::iter::repeat_n(lines, events.len()));
            } else {
                let own = events.iter().map(|event| lines_of(&self.unit, event.lock.as_bytes()));
                self.of_events.extend(own);
            }
        }
        self.unit.clear();
    }

    /// Returns the lines of each event since the last call.
    pub(super) fn take(&mut self) -> Vec<Arc<[u8]>> {
        std::mem::take(&mut self.of_events)
    }
}

/// Returns the lines of a unit that name a lock or its companions, after the beginning of the script's own line.
fn lines_of(unit: &[u8], lock: &[u8]) -> Arc<[u8]> {
    let mut lines = unit.split(|byte| *byte == b'\n');
    let script = lines.next().unwrap_or_default();
    let marks = script.iter().enumerate().filter(|(_, byte)| **byte == b'"');
    let end = marks.map(|(i, _)| i + 1).nth(MARKS - 1).unwrap_or(script.len());
    let mut own = [&script[..end.min(HEAD)], LEFT_OUT].concat();
    // Redis prints other names escaped, and such a name is not searched for: all lines stay.
    let as_printed =
        lock.iter().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\') || *b == b' ');
    for line in lines.filter(|line| !as_printed || names(line, lock)) {
        own.push(b'\n');
        own.extend_from_slice(line);
    }
    own.truncate(MAX_BYTES);
    own.into()
}

/// Returns whether a line has the name as an argument or within a companion's key.
fn names(line: &[u8], lock: &[u8]) -> bool {
    line.windows(lock.len() + 2).any(|part| {
        let ends = (part.first(), part.last());
        let around = matches!(ends, (Some(b'"' | b'{' | b':'), Some(b'"' | b'}' | b':')));
        around && part.get(1..=lock.len()) == Some(lock)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::Action;
    use crate::monitor::event::Certainty;

    fn event(lock: &str) -> Event {
        Event {
            at_micros: 0,
            db: 0,
            client: None,
            lock: crate::LockName::new(lock.as_bytes()).unwrap(),
            kind: None,
            holder: None,
            action: Action::Released,
            certainty: Certainty::Certain,
        }
    }

    #[test]
    fn each_lock_of_a_joint_script_gets_its_own_lines() {
        let mut lines = TracedLines::default();
        lines.set(true);
        lines.add(br#"1.5 [0 1.2.3.4:5] "EVALSHA" "beef" "3" "a" "q:{a}" "a:b" "ra""#);
        lines.add(br#"1.5 [0 lua] "EXISTS" "a" "redisson_lock_queue:{a}""#);
        lines.add(br#"1.5 [0 lua] "HDEL" "ab" "x""#);
        lines.add(br#"1.5 [0 lua] "PUBLISH" "redisson_lock__channel:{ab}" "0""#);
        lines.close(&[event("a"), event("ab")]);
        let text = |lines: &[u8]| String::from_utf8(lines.to_vec()).unwrap();
        let taken = lines.take();
        let head = "1.5 [0 1.2.3.4:5] \"EVALSHA\" \"beef\" \"3\" ... ";
        let exists = "1.5 [0 lua] \"EXISTS\" \"a\" \"redisson_lock_queue:{a}\"";
        assert_eq!(text(&taken[0]), format!("{head}\n{exists}"));
        let released = text(&taken[1]);
        assert!(released.contains("HDEL") && released.contains("PUBLISH"), "{released}");
        assert!(!released.contains("EXISTS"), "{released}");
    }

    #[test]
    fn lines_are_bounded_and_keep_their_ends() {
        let mut lines = TracedLines::default();
        lines.add(b"nobody asked");
        lines.close(&[event("a")]);
        assert!(lines.take().is_empty());
        lines.set(true);
        let long = [b"EVAL ".as_slice(), &[b'x'; 9_000], b" orders:1"].concat();
        lines.add(&long);
        lines.add(b"exists");
        lines.close(&[event("a"), event("a")]);
        let taken = lines.take();
        assert_eq!(taken.len(), 2);
        let text = String::from_utf8(taken[0].to_vec()).unwrap();
        assert!(text.starts_with("EVAL xx") && text.contains("x ... x"), "{text}");
        assert!(text.ends_with(" orders:1\nexists"), "{text}");
        for _ in 0..100 {
            lines.add(&long);
        }
        lines.close(&[event("a")]);
        assert!(lines.take()[0].len() <= MAX_BYTES);
    }
}
