//! Random and mutated input for the agent's socket and for the HTTP servers of both programs.
//!
//! A seed determines what one connection sends. A failure names the seeds that were in use; they are repeated by
//!
//! ```sh
//! LOCKSCOPE_SEEDS=1234 cargo test -p lockscope-tests --test e2e fuzz           # one
//! LOCKSCOPE_FUZZ_SECONDS=600 cargo test -p lockscope-tests --test e2e fuzz     # as many as fit into ten minutes
//! ```

mod commands;
mod http;
mod socket;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::random::Random;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;

/// The limit for an answer on a busy machine. Only failures take that long.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The seeds of a run, issued one at a time.
struct Seeds {
    next: AtomicU64,
    end: u64,
    until: Option<Instant>,
    running: Mutex<BTreeSet<u64>>,
}

impl Seeds {
    /// Returns the seeds from the environment, or else the default ones.
    fn chosen(default: Range<u64>) -> Result<Self> {
        let seeds = match std::env::var("LOCKSCOPE_SEEDS") {
            Ok(text) => match text.split_once("..") {
                Some((from, to)) => from.parse()?..to.parse()?,
                None => text.parse()?..text.parse::<u64>()? + 1,
            },
            Err(_) => default,
        };
        let Ok(seconds) = std::env::var("LOCKSCOPE_FUZZ_SECONDS") else {
            return Ok(Self {
                next: seeds.start.into(),
                end: seeds.end,
                until: None,
                running: Mutex::default(),
            });
        };
        let until = Instant::now() + Duration::from_secs(seconds.parse()?);
        Ok(Self {
            next: seeds.start.into(),
            end: u64::MAX,
            until: Some(until),
            running: Mutex::default(),
        })
    }

    fn next(&self) -> Option<u64> {
        let seed = self.next.fetch_add(1, Ordering::Relaxed);
        let due = self.until.is_none_or(|until| Instant::now() < until);
        (seed < self.end && due).then_some(seed)
    }

    /// Runs `one` with each seed, in turn.
    async fn run(&self, one: impl AsyncFn(u64) -> Result<()>) -> Result<()> {
        while let Some(seed) = self.next() {
            self.running.lock().insert(seed);
            one(seed).await.with_context(|| {
                let running = self.running.lock().clone();
                format!("seed {seed} failed (LOCKSCOPE_SEEDS={seed} repeats it) among {running:?}")
            })?;
            self.running.lock().remove(&seed);
        }
        Ok(())
    }
}

/// Numbers at and beyond the bounds of their types, and words that resemble numbers.
const NUMBERS: [&str; 22] = [
    "0",
    "-0",
    "00",
    "1",
    "-1",
    "+1",
    " 1",
    "1.5",
    "1e9",
    "0x10",
    "NaN",
    "inf",
    "255",
    "65536",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
];

/// Changes bytes in one to six places.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    const SPECIAL: &[u8] = b"\0\r\n\t \"'<>&%$*:+-?=/\\{}[]\x7f\x80\xff";
    for _ in 0..=random.index(6) {
        let at = random.index(bytes.len());
        let to = bytes.len().min(at + 1 + random.index(24));
        match random.below(9) {
            0 if at < to => bytes[at] ^= 1 << random.below(8),
            1 if at < to => bytes[at] = SPECIAL[random.index(SPECIAL.len())],
            2 => drop(bytes.drain(at..to)),
            3 => {
                let copy = bytes[at..to].repeat(1 + random.index(4));
                bytes.splice(at..at, copy);
            }
            4 => {
                let length = 1 + random.index(16);
                let noise: Vec<u8> = (0..length).map(|_| random.byte()).collect();
                bytes.splice(at..at, noise);
            }
            5 if random.one_in(4) => bytes.truncate(at),
            6 => drop(bytes.splice(at..at, *b"\r\n")),
            _ => {
                // The next number becomes another one.
                let digits = |byte: &u8| byte.is_ascii_digit();
                let Some(start) = bytes[at..].iter().position(digits) else { continue };
                let rest = &bytes[at + start..];
                let length = rest.iter().position(|byte| !digits(byte)).unwrap_or(rest.len());
                let number = random.pick(&NUMBERS).as_bytes().iter().copied();
                bytes.splice(at + start..at + start + length, number);
            }
        }
    }
}

/// Writes bytes whole or in pieces. The peer may close the connection before it has read them all.
async fn write_in_pieces(
    random: &mut Random,
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Result<()> {
    let longest = *random.pick(&[&1, &7, &64, &1_500, &usize::MAX]);
    // Single bytes of a long request would take too long.
    let longest = longest.max(bytes.len() / 200).max(1);
    for piece in bytes.chunks(longest) {
        let written = tokio::time::timeout(ANSWER_WITHIN, stream.write_all(piece)).await;
        if written.context("nobody reads")?.is_err() {
            break;
        }
        match random.below(16) {
            0 => tokio::time::sleep(Duration::from_millis(random.below(3))).await,
            1..8 => tokio::task::yield_now().await,
            _ => {}
        }
    }
    Ok(())
}

/// Checks that a program has reported no panic.
fn ensure_no_panic(log: &str) -> Result<()> {
    let panic = log.lines().find(|line| line.contains("panicked"));
    ensure!(panic.is_none(), "{}", panic.unwrap_or_default());
    Ok(())
}
