//! Measures how many lines of MONITOR one thread decodes per second: `make bench-decoder`.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_types,
    reason = "a program for a terminal, which measures how long its own work takes"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use redisson::monitor::{Decoder, ServerRole};
use redisson::script;

/// The target in lines per second; Redis itself prints about 600,000 at most.
const TARGET: f64 = 1e6;
/// The duration of a round.
const ROUND: Duration = Duration::from_secs(1);
/// The rounds per row, of which the median is shown.
const ROUNDS: usize = 5;
/// The bytes fed at a time, as in one read from a socket.
const CHUNK: usize = 64 * 1024;
/// The number of distinct locks and keys.
const NAMES: usize = 10_000;

fn main() {
    let units = 20_000;
    let rows = [
        ("other traffic alone", stream(units, |i, out| others(i, 8, out))),
        (
            "mixed: a lock cycle, then 10 other commands",
            stream(units, |i, out| {
                cycle(i, out);
                others(i, 10, out);
            }),
        ),
        ("lock cycles of Redisson 4", stream(units, cycle)),
        (
            "refused attempts and renewals",
            stream(units, |i, out| {
                refused(i, out);
                renewed(i, out);
            }),
        ),
        ("scripts sent in full", stream(units / 4, in_full)),
    ];
    println!("{:<46} {:>12} {:>10} {:>12}  target", "stream", "lines/s", "MiB/s", "events/s");
    for (name, bytes) in rows {
        let mut rounds: Vec<[f64; 3]> = (0..ROUNDS).map(|_| round(&bytes)).collect();
        rounds.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let [lines, bytes, events] = rounds[ROUNDS / 2];
        let met = if lines >= TARGET { "met" } else { "missed" };
        println!("{name:<46} {lines:>12.0} {:>10.0} {events:>12.0}  {met}", bytes / 1048576.0);
    }
}

/// Returns lines, bytes and events per second.
fn round(bytes: &[u8]) -> [f64; 3] {
    let mut decoder = Decoder::new(ServerRole::Master);
    let mut events = Vec::new();
    let (mut read, mut seen) = (0_u64, 0_u64);
    let begun = Instant::now();
    while begun.elapsed() < ROUND {
        for chunk in bytes.chunks(CHUNK) {
            decoder.feed(chunk, &mut events);
            seen += black_box(&events).len() as u64;
            events.clear();
        }
        read += bytes.len() as u64;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let counts = decoder.counts();
    assert_eq!((counts.garbage, counts.cut), (0, 0), "the stream is well-formed");
    [counts.lock + counts.other, read, seen].map(|n| n as f64 / seconds)
}

fn stream(units: usize, add: impl Fn(usize, &mut String)) -> Vec<u8> {
    let mut out = String::new();
    for i in 0..units {
        add(i, &mut out);
    }
    out.into_bytes()
}

fn line(out: &mut String, i: usize, source: &str, words: &[&str]) {
    *out += &format!("+1795217{:03}.{:06} [0 {source}]", i / 1000 % 1000, i % 1_000_000);
    for word in words {
        *out += &format!(" \"{word}\"");
    }
    *out += "\r\n";
}

fn client(i: usize) -> String {
    format!("10.0.{}.{}:{}", i % 7, i % 250, 30_000 + i % 20_000)
}

fn holder(i: usize) -> String {
    format!("285475da-9152-4c83-822a-67ee2f116{:03}:{}", i % 100 + 100, i % 64)
}

fn others(i: usize, count: usize, out: &mut String) {
    let value = "v".repeat(100);
    for n in 0..count {
        let (client, key) = (client(i + n), format!("session:{}", (i * 31 + n) % NAMES));
        match n % 4 {
            0 | 1 => line(out, i, &client, &["GET", &key]),
            2 => line(out, i, &client, &["SET", &key, &value, "PX", "60000"]),
            _ => line(out, i, &client, &["HSET", &key, "colour", "red", "size", "9"]),
        }
    }
}

fn cycle(i: usize, out: &mut String) {
    let (from, holder, name) = (client(i), holder(i), format!("orders:{}", i % NAMES));
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let latch = format!("redisson_unlock_latch:{{{name}}}:974d7768d38898168d0afeebcf2bc91d");
    let (take, give) =
        ("149c5a8bf18676fd99e9e6e24923bd64d9b62f94", "6866459238a13a701d42f4971f12d9f3a50e2442");
    line(out, i, &from, &["EVALSHA", take, "1", &name, "30000", &holder]);
    line(out, i, "lua", &["exists", &name]);
    line(out, i, "lua", &["hincrby", &name, &holder, "1"]);
    line(out, i, "lua", &["pexpire", &name, "30000"]);
    let keys = ["EVALSHA", give, "3", &name, &channel, &latch];
    let args = ["0", "30000", &holder, "PUBLISH", "16488"];
    line(out, i, &from, &[&keys[..], &args].concat());
    line(out, i, "lua", &["get", &latch]);
    line(out, i, "lua", &["hexists", &name, &holder]);
    line(out, i, "lua", &["hincrby", &name, &holder, "-1"]);
    line(out, i, "lua", &["del", &name]);
    line(out, i, "lua", &["PUBLISH", &channel, "0"]);
    line(out, i, "lua", &["set", &latch, "1", "px", "16488"]);
    line(out, i, &from, &["DEL", &latch]);
}

fn refused(i: usize, out: &mut String) {
    let (from, holder, name) = (client(i), holder(i), format!("orders:{}", i % NAMES));
    let take = "149c5a8bf18676fd99e9e6e24923bd64d9b62f94";
    line(out, i, &from, &["EVALSHA", take, "1", &name, "30000", &holder]);
    line(out, i, "lua", &["exists", &name]);
    line(out, i, "lua", &["hexists", &name, &holder]);
    line(out, i, "lua", &["pttl", &name]);
}

/// Adds a renewal of ten locks at once.
fn renewed(i: usize, out: &mut String) {
    let names: Vec<String> = (0..10).map(|n| format!("orders:{}", (i + n) % NAMES)).collect();
    let holder = holder(i);
    let mut words = vec!["EVALSHA", "6a3d31570dc6f4b0bd32bcdc8e75667747c6f635", "10"];
    words.extend(names.iter().map(String::as_str));
    words.push("30000");
    words.extend([&*holder; 10]);
    line(out, i, &client(i), &words);
    for name in &names {
        line(out, i, "lua", &["hexists", name, &holder]);
        line(out, i, "lua", &["pexpire", name, "30000"]);
    }
}

fn in_full(i: usize, out: &mut String) {
    let (from, holder, name) = (client(i), holder(i), format!("orders:{}", i % NAMES));
    let queue = format!("redisson_lock_queue:{{{name}}}");
    let deadlines = format!("redisson_lock_timeout:{{{name}}}");
    let text = script::ACQUIRE.source.replace('"', "\\\"").replace('\n', "\\n");
    line(out, i, &from, &["EVAL", &text, "3", &name, &queue, &deadlines, &holder, "10000"]);
    line(out, i, "lua", &["EXISTS", &name, &queue]);
    line(out, i, "lua", &["HSET", &name, &holder, "1"]);
    line(out, i, "lua", &["PEXPIRE", &name, "10000"]);
}
