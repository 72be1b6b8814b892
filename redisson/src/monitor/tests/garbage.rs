//! Decoding continues after any input.

use super::*;
use crate::LockName;
use proptest::prelude::*;

const ACQUIRE: &str = "149c5a8bf18676fd99e9e6e24923bd64d9b62f94";

fn taken(name: &[u8]) -> Vec<Vec<u8>> {
    let holder = H.as_bytes();
    vec![
        printed("0 10.0.0.1:7", &[b"EVALSHA", ACQUIRE.as_bytes(), b"1", name, b"30000", holder]),
        printed("0 lua", &[b"exists", name]),
        printed("0 lua", &[b"hincrby", name, holder, b"1"]),
        printed("0 lua", &[b"pexpire", name, b"30000"]),
    ]
}

fn framed(lines: &[Vec<u8>]) -> Vec<u8> {
    lines.iter().flat_map(|line| [b"+", &line[..], b"\r\n"].concat()).collect()
}

#[test]
fn an_endless_line_is_dropped_and_the_next_is_decoded() {
    let mut decoder = Decoder::new(ServerRole::Master);
    let mut events = Vec::new();
    decoder.feed(b"+1.5 [0 127.0.0.1:1] \"SET\" \"k\" \"", &mut events);
    for _ in 0..100 {
        decoder.feed(&[b'x'; 64 * 1024], &mut events);
        assert!(decoder.buffered() <= 600 * 1024);
    }
    decoder.feed(b"\"\r\n", &mut events);
    decoder.feed(&framed(&taken(b"a")), &mut events);
    decoder.flush(&mut events);
    assert_eq!(events.len(), 1);
    assert_eq!(decoder.counts(), LineCounts { lock: 4, cut: 1, ..LineCounts::default() });
}

#[test]
fn a_name_above_the_limit_is_ignored() {
    let mut stream = Stream::new(ServerRole::Master);
    for line in taken(&[b'x'; LockName::MAX + 1]) {
        stream.decoder.feed_line(&line, &mut stream.events);
    }
    assert!(stream.seen().is_empty());
}

proptest! {
    #[test]
    fn hostile_names_stay_names(name in prop::collection::vec(any::<u8>(), 1..200)) {
        let mut stream = Stream::new(ServerRole::Master);
        for line in taken(&name) {
            stream.decoder.feed_line(&line, &mut stream.events);
        }
        let events = stream.events();
        prop_assert_eq!(events.len(), 1);
        prop_assert_eq!(events[0].lock.as_bytes(), &name[..]);
        prop_assert_eq!(events[0].certainty, Certainty::Certain);
    }

    #[test]
    fn chunk_boundaries_do_not_matter(
        names in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..5),
        step in 1_usize..200,
    ) {
        let lines: Vec<Vec<u8>> = names.iter().flat_map(|name| taken(name)).collect();
        let mut whole = Stream::new(ServerRole::Master);
        for line in &lines {
            whole.decoder.feed_line(line, &mut whole.events);
        }
        let mut cut = Stream::new(ServerRole::Master);
        for part in framed(&lines).chunks(step) {
            cut.decoder.feed(part, &mut cut.events);
        }
        prop_assert_eq!(whole.events(), cut.events());
    }

    #[test]
    fn garbage_is_counted_and_does_not_derail_decoding(
        garbage in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..10),
        within in 0_usize..4,
    ) {
        let mut stream = Stream::new(ServerRole::Master);
        let mut lines = taken(b"a");
        for bytes in &garbage {
            let mut line = lines[within].clone();
            line.truncate(bytes.len());
            line.extend(bytes.iter().filter(|byte| **byte != b'\n'));
            stream.decoder.feed(&framed(&[line]), &mut stream.events);
        }
        stream.events();
        let before = stream.decoder.counts();
        prop_assert_eq!(
            before.garbage + before.other + before.lock + before.cut,
            garbage.len() as u64
        );
        for line in lines.drain(..) {
            stream.decoder.feed(&framed(&[line]), &mut stream.events);
        }
        let events = stream.events();
        prop_assert_eq!(events.len(), 1);
        prop_assert_eq!(events[0].lock.as_bytes(), b"a");
    }

    #[test]
    fn random_bytes_cause_no_panic_and_no_events(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8)) {
        let mut decoder = Decoder::new(ServerRole::Replica);
        let mut events = Vec::new();
        for part in &parts {
            decoder.feed(part, &mut events);
        }
        decoder.flush(&mut events);
        prop_assert!(events.is_empty());
    }
}
