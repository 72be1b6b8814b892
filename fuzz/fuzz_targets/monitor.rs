//! Arbitrary bytes as MONITOR output: no panic, bounded memory, every line counted once, chunk boundaries without effect,
//! and later events decoded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redisson::monitor::{LineCounts, Decoder, Event, ServerRole};

const ACQUIRED: &[u8] = b"+1795217440.976640 [0 10.0.0.1:7] \"EVALSHA\" \
    \"149c5a8bf18676fd99e9e6e24923bd64d9b62f94\" \"1\" \"fuzzed\" \"30000\" \"285475da-9152-4c83-822a-67ee2f116a79:52\"\r\n\
    +1795217440.976641 [0 lua] \"exists\" \"fuzzed\"\r\n\
    +1795217440.976642 [0 lua] \"hincrby\" \"fuzzed\" \"285475da-9152-4c83-822a-67ee2f116a79:52\" \"1\"\r\n\
    +1795217440.976643 [0 lua] \"pexpire\" \"fuzzed\" \"30000\"\r\n";

fn read(parts: impl Iterator<Item = impl AsRef<[u8]>>, role: ServerRole) -> (Vec<Event>, LineCounts) {
    let mut decoder = Decoder::new(role);
    let mut events = Vec::new();
    for part in parts {
        decoder.feed(part.as_ref(), &mut events);
        assert!(decoder.buffered() <= 512 * 1024);
    }
    decoder.flush(&mut events);
    (events, decoder.counts())
}

fuzz_target!(|input: &[u8]| {
    let Some((mode, stream)) = input.split_first() else { return };
    let role = if mode & 1 == 0 { ServerRole::Master } else { ServerRole::Replica };
    let step = usize::from(mode >> 1) + 1;
    let (events, counts) = read([stream].into_iter(), role);
    assert_eq!((events.clone(), counts), read(stream.chunks(step), role));
    let lines = stream.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert_eq!(counts.lock + counts.other + counts.garbage + counts.cut, lines);
    let whole = [stream, b"\r\n", ACQUIRED].concat();
    let (after, _) = read([whole].into_iter(), role);
    assert!(after.last().is_some_and(|event| event.lock.as_bytes() == b"fuzzed"));
});
