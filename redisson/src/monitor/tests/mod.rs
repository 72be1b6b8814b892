//! Tests of the decoder with input in the form that Redis prints.

mod garbage;
mod lines;
mod recordings;
mod servers;
mod traffic;

use super::*;

const H: &str = "285475da-9152-4c83-822a-67ee2f116a79:52";
const OTHER: &str = "9f1c7a52-0000-4000-8000-000000000001:7";

/// Formats a command as MONITOR prints it.
fn printed(source: &str, args: &[&[u8]]) -> Vec<u8> {
    let mut line = format!("1795217440.976640 [{source}]").into_bytes();
    for arg in args {
        line.extend_from_slice(b" \"");
        for byte in *arg {
            match byte {
                b'"' | b'\\' => line.extend_from_slice(&[b'\\', *byte]),
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                b'\t' => line.extend_from_slice(b"\\t"),
                7 => line.extend_from_slice(b"\\a"),
                8 => line.extend_from_slice(b"\\b"),
                0x20..=0x7e => line.push(*byte),
                _ => line.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
            }
        }
        line.push(b'"');
    }
    line
}

/// A decoder and the events it has produced.
struct Stream {
    decoder: Decoder,
    events: Vec<Event>,
}

impl Stream {
    fn new(role: ServerRole) -> Self {
        Self { decoder: Decoder::new(role), events: Vec::new() }
    }

    fn client(&mut self, words: &str) -> &mut Self {
        self.print("0 127.0.0.1:52958", words)
    }

    fn lua(&mut self, words: &str) -> &mut Self {
        self.print("0 lua", words)
    }

    /// Feeds a command whose words contain no spaces.
    fn print(&mut self, source: &str, words: &str) -> &mut Self {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.decoder.feed_line(&printed(source, &words), &mut self.events);
        self
    }

    fn events(&mut self) -> Vec<Event> {
        self.decoder.flush(&mut self.events);
        std::mem::take(&mut self.events)
    }

    /// Returns the events so far, one line each: action, lock, kind, holder.
    fn seen(&mut self) -> Vec<String> {
        self.events().iter().map(shown).collect()
    }
}

/// Formats an event as action, lock, kind and holder, with a question mark if it is not certain.
fn shown(event: &Event) -> String {
    let sure = if event.certainty == Certainty::Certain { "" } else { "?" };
    let kind = event.kind.map_or("-", crate::Kind::as_str);
    let holder = event.holder.map_or_else(|| "-".to_owned(), |holder| holder.to_string());
    let holder = holder.replace(H, "H").replace(OTHER, "O");
    let mut text = format!("{}{sure} {} {kind} {holder}", event.action.as_str(), event.lock);
    match event.action {
        Action::Acquired { lease } | Action::Renewed { lease } => text += &format!(" {lease:?}"),
        Action::Reentered { lease, count } => text += &format!(" {lease:?} {count:?}"),
        Action::Recounted { count } => text += &format!(" {count}"),
        Action::HandedOver { to, lease } => {
            text += &format!(" {lease:?} to {}", to.to_string().replace(OTHER, "O"));
        }
        Action::Queued { deadline_millis } => text += &format!(" {deadline_millis}"),
        _ => {}
    }
    text
}
