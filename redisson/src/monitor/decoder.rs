//! The decoder of one server's stream, line by line.

use std::collections::HashMap;
use std::sync::Arc;

use memchr::memchr;

use super::classify::Classifier;
use super::command::Command;
use super::event::{Action, Certainty, Event};
use super::intent::{self, Intent};
use super::known_locks::{Known, KnownLocks};
use super::line::{Arg, Args, Line, Source};
use super::server_role::ServerRole;
use super::traced_lines::TracedLines;
use super::unit::{Origin, Unit};
use crate::script::{self, hex_digest};
use crate::shape::MODE_FIELD;
use crate::{HolderId, LockName, keys};

/// The longest line read, in bytes. Fits a renewal of a hundred locks with the longest names.
const MAX_LINE: usize = 512 * 1024;
/// The longest source of a script that is read, as printed.
const MAX_TEXT: usize = 16 * 1024;
/// The maximum number of keys of one command that are reported as removed: a cache may remove thousands at a time.
const MAX_REMOVED: usize = 1_000;
/// The maximum number of script sources cached with their intents.
const TEXTS: usize = 128;

/// The number of lines by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineCounts {
    /// Lines about locks.
    pub lock: u64,
    /// Lines about anything else, skipped as early as possible.
    pub other: u64,
    /// Lines that are not in MONITOR's format.
    pub garbage: u64,
    /// Lines too long to be read in full.
    pub cut: u64,
}

/// A decoder of a server's stream. Memory is bounded for any input, and decoding continues after unreadable input.
#[derive(Debug)]
pub struct Decoder {
    role: ServerRole,
    digests: HashMap<[u8; 40], Intent>,
    /// The intents of scripts that were sent in full; `None` for unknown ones.
    texts: Vec<(Box<[u8]>, Option<Intent>)>,
    scratch: Vec<u8>,
    unit: Unit,
    known: KnownLocks,
    partial: Vec<u8>,
    skipping: bool,
    counts: LineCounts,
    traced: TracedLines,
}

impl Decoder {
    /// Creates a decoder for a new stream.
    #[must_use]
    pub fn new(role: ServerRole) -> Self {
        let redissons = intent::REDISSON.iter().map(|(digest, intent)| (*digest, *intent));
        let own = script::ALL.iter().map(|script| (script.sha(), intent::of_own(script)));
        let digests = redissons
            .chain(own)
            .filter_map(|(digest, intent)| Some((digest.as_bytes().try_into().ok()?, intent)))
            .collect();
        Self {
            role,
            digests,
            texts: Vec::new(),
            scratch: Vec::new(),
            unit: Unit::default(),
            known: KnownLocks::default(),
            partial: Vec::new(),
            skipping: false,
            counts: LineCounts::default(),
            traced: TracedLines::default(),
        }
    }

    /// Returns the counts of all lines so far.
    #[must_use]
    pub fn counts(&self) -> LineCounts {
        self.counts
    }

    /// Stores the lines behind each event from now on, or no longer.
    pub fn trace_lines(&mut self, on: bool) {
        self.traced.set(on);
    }

    /// Returns the lines behind each event emitted since the last call, in the order of the events: a script's call with
    /// the commands that it ran, as printed, shortened. Empty unless they are traced.
    pub fn take_lines(&mut self) -> Vec<Arc<[u8]>> {
        self.traced.take()
    }

    /// Records that a name is a lock's, for commands that name nothing else.
    pub fn record_lock(&mut self, name: &LockName) {
        if !self.known.contains(name.as_bytes()) {
            self.known.record(name, None);
        }
    }

    /// Decodes the next bytes, split anywhere, and appends the resulting events. The last unit remains open until the next
    /// line or [`Self::flush`].
    pub fn feed(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) {
        while let Some(end) = memchr(b'\n', bytes) {
            let (head, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.skipping {
                self.skipping = false;
            } else if self.partial.is_empty() {
                self.feed_framed(head, events);
            } else {
                let mut line = std::mem::take(&mut self.partial);
                line.extend_from_slice(head);
                self.feed_framed(&line, events);
                line.clear();
                line.shrink_to(MAX_TEXT);
                self.partial = line;
            }
        }
        if self.skipping {
            return;
        }
        if self.partial.len() + bytes.len() > MAX_LINE {
            self.partial = Vec::new();
            self.skipping = true;
            self.counts.cut += 1;
            self.finish(events);
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    /// Returns the number of buffered bytes of an incomplete line.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.partial.len()
    }

    fn feed_framed(&mut self, line: &[u8], events: &mut Vec<Event>) {
        match line.strip_prefix(b"+").and_then(|line| line.strip_suffix(b"\r")) {
            Some(line) => self.feed_line(line, events),
            None => {
                self.counts.garbage += 1;
                self.finish(events);
            }
        }
    }

    /// Closes the open unit and appends its events. To be called when no more bytes are pending: the lines of a script
    /// arrive together.
    pub fn flush(&mut self, events: &mut Vec<Event>) {
        self.finish(events);
    }

    /// Drops unfinished input after a reconnect.
    pub fn reset(&mut self, role: ServerRole) {
        self.role = role;
        self.unit.from = None;
        self.traced.close(&[]);
        self.partial.clear();
        self.skipping = false;
        self.known.forget_states();
    }

    /// Decodes one line, without its leading `+` and line ending.
    pub fn feed_line(&mut self, printed: &[u8], events: &mut Vec<Event>) {
        let Some(line) = Line::parse(printed) else {
            self.counts.garbage += 1;
            return self.finish(events);
        };
        let mut args = line.args.clone();
        let command =
            args.next().flatten().map_or(Command::Other, |word| Command::parse(word.raw()));
        match line.source {
            Source::Lua => {
                let mut ours = matches!(self.unit.from, Some(Origin::Script(..)));
                if ours {
                    self.unit.add(command, args);
                    self.traced.add(printed);
                } else if self.removes_keys(&line, command, &args) {
                    ours = self.removal(&line, command, args, printed, events);
                }
                self.count(ours);
            }
            Source::Client(client) => {
                let ours = match command {
                    Command::Eval | Command::EvalSha | Command::Fcall => {
                        self.finish(events);
                        self.script(&line, client, command, args)
                    }
                    Command::Subscribe | Command::Unsubscribe => {
                        self.finish(events);
                        let first = events.len();
                        let ours = self.subscription(&line, client, command, args, events);
                        self.traced.add(printed);
                        self.traced.close(&events[first..]);
                        self.count(ours);
                        return;
                    }
                    _ if self.removes_keys(&line, command, &args) => {
                        self.finish(events);
                        let ours = self.removal(&line, command, args, printed, events);
                        self.count(ours);
                        return;
                    }
                    _ => self.command(&line, client, command, args, events),
                };
                if ours {
                    self.traced.add(printed);
                }
                self.count(ours);
            }
        }
    }

    fn count(&mut self, ours: bool) {
        if ours {
            self.counts.lock += 1;
        } else {
            self.counts.other += 1;
        }
    }

    /// Classifies the open unit.
    fn finish(&mut self, events: &mut Vec<Event>) {
        if self.unit.from.is_some() {
            let first = events.len();
            let (unit, known, role) = (&self.unit, &mut self.known, self.role);
            Classifier { unit, known, role, events }.run();
            self.unit.from = None;
            self.traced.close(&events[first..]);
        }
    }

    /// Opens a unit for a script or function. Returns whether it concerns locks.
    fn script(
        &mut self,
        line: &Line<'_>,
        client: &[u8],
        command: Command,
        mut args: Args<'_>,
    ) -> bool {
        let Some(Some(script)) = args.next() else { return false };
        let known = match command {
            Command::EvalSha => self.by_digest(script.raw()),
            Command::Eval if self.is_of_interest(args.clone()) => self.by_text(script),
            _ => None,
        };
        if known == Some(Intent::Nothing) || (known.is_none() && !self.is_of_interest(args.clone()))
        {
            return false;
        }
        let Some(at_micros) = line.micros() else { return false };
        if !self.unit.read_call(args) {
            return false;
        }
        let mut intent =
            known.unwrap_or_else(|| intent::by_shape(&self.unit.words, self.unit.keys));
        if intent == Intent::Expire && !self.known.contains(self.unit.words.get(0)) {
            intent = Intent::Nothing;
        }
        if intent != Intent::Nothing {
            let from = Origin::Script(intent, known.is_some());
            self.unit.begin(from, at_micros, line.db, client);
        }
        intent != Intent::Nothing
    }

    fn by_digest(&self, digest: &[u8]) -> Option<Intent> {
        let mut digest: [u8; 40] = digest.try_into().ok()?;
        digest.make_ascii_lowercase();
        self.digests.get(&digest).copied()
    }

    fn by_text(&mut self, text: Arg<'_>) -> Option<Intent> {
        if text.raw().len() > MAX_TEXT {
            return None;
        }
        // Comparing is faster than hashing: few sources have the same length.
        if let Some((_, known)) = self.texts.iter().find(|(known, _)| **known == *text.raw()) {
            return *known;
        }
        self.scratch.clear();
        let digest = text.append_to(&mut self.scratch).then(|| hex_digest(&self.scratch))?;
        let intent = self.by_digest(digest.as_bytes());
        if self.texts.len() >= TEXTS {
            self.texts.clear();
        }
        self.texts.push((text.raw().into(), intent));
        intent
    }

    /// Returns whether a script with these keys and arguments may concern a lock: it names a holder, a companion key or a
    /// known lock.
    fn is_of_interest(&mut self, args: Args<'_>) -> bool {
        args.skip(1).enumerate().any(|(i, arg)| {
            let Some(arg) = arg else { return false };
            let raw = arg.raw();
            is_holder(raw) || raw.starts_with(COMPANION) || (i == 0 && self.is_known(arg))
        })
    }

    /// Emits events for subscriptions. Returns whether any channel belongs to a lock.
    fn subscription(
        &mut self,
        line: &Line<'_>,
        client: &[u8],
        command: Command,
        args: Args<'_>,
        events: &mut Vec<Event>,
    ) -> bool {
        let action =
            if command == Command::Subscribe { Action::Subscribed } else { Action::Unsubscribed };
        let mut ours = false;
        for arg in args.flatten().filter(|arg| arg.raw().starts_with(COMPANION)) {
            self.scratch.clear();
            let channel = arg.append_to(&mut self.scratch).then_some(&*self.scratch);
            let locks = channel.map(keys::locks_of_channel).unwrap_or_default();
            if let Some(lock) = self.known.most_likely(locks)
                && let Some(at_micros) = line.micros()
            {
                ours = true;
                events.push(Event {
                    at_micros,
                    db: line.db,
                    client: self.role.address(client),
                    lock,
                    kind: None,
                    holder: channel.and_then(keys::waiter_of_channel),
                    action,
                    certainty: Certainty::Certain,
                });
            }
        }
        ours
    }

    /// Returns whether a command removes keys, no matter what they contain, and not as a part of the open unit. On a
    /// replica, expired keys are deleted in this way.
    fn removes_keys(&self, line: &Line<'_>, command: Command, args: &Args<'_>) -> bool {
        // The number of ticks in a second of the clock by which the command sets an end, if it sets one.
        let ticks = match command {
            Command::Del | Command::Rename => None,
            Command::Expire | Command::ExpireAt => Some(1),
            Command::PExpire | Command::PExpireAt => Some(1_000),
            _ => return false,
        };
        let mut words = args.clone().flatten().map(Arg::raw);
        let Some(first) = words.next().filter(|_| self.role == ServerRole::Master) else {
            return false;
        };
        if let Some(ticks) = ticks {
            let is_absolute = matches!(command, Command::ExpireAt | Command::PExpireAt);
            let now =
                if is_absolute { line.micros().unwrap_or(0) / (1_000_000 / ticks) } else { 0 };
            // With a condition after it, the end may not be set.
            let Some(end) = words.next().filter(|_| words.next().is_none()) else { return false };
            if !is_past(end, now) {
                return false;
            }
        }
        let Source::Client(client) = line.source else { return true };
        let is_open = self.unit.is_of(line.db, client);
        !self.unit.is_about(first) && (!is_companion(first) || command == Command::Del && !is_open)
    }

    /// Emits an event for each key that a command removes, up to [`MAX_REMOVED`], since any may be a lock that appeared in no
    /// earlier command.
    /// Returns whether a known lock is among them.
    fn removal(
        &mut self,
        line: &Line<'_>,
        command: Command,
        args: Args<'_>,
        printed: &[u8],
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(at_micros) = line.micros() else { return false };
        let client = match line.source {
            Source::Client(client) => self.role.address(client),
            Source::Lua => None,
        };
        let count = if command == Command::Del { MAX_REMOVED } else { 1 };
        let mut any_known = false;
        for key in args.flatten().take(count).filter(|key| !is_companion(key.raw())) {
            self.scratch.clear();
            let name = key.append_to(&mut self.scratch).then(|| LockName::new(&*self.scratch));
            let Some(Ok(lock)) = name else { continue };
            if self.known.contains(lock.as_bytes()) {
                any_known = true;
                let free = Known { db: line.db, holder: None, ends: None };
                self.known.record(&lock, Some(free));
            }
            events.push(Event {
                at_micros,
                db: line.db,
                client,
                lock,
                kind: None,
                holder: None,
                action: Action::Removed,
                certainty: Certainty::Likely,
            });
            self.traced.add(printed);
            self.traced.close(&events[events.len() - 1..]);
        }
        any_known
    }

    /// Adds a bare command to a unit. Returns whether it concerns a lock.
    fn command(
        &mut self,
        line: &Line<'_>,
        client: &[u8],
        command: Command,
        args: Args<'_>,
        events: &mut Vec<Event>,
    ) -> bool {
        let open = self.unit.is_of(line.db, client);
        let lock = match self.subject(command, &args) {
            Subject::Other => {
                self.finish(events);
                return false;
            }
            Subject::Companion if open => {
                self.unit.add(command, args);
                return true;
            }
            Subject::Companion => None,
            Subject::Lock(key) => Some(key),
        };
        // A second HINCRBY is a separate action and starts a new unit.
        if !(open && lock.is_some_and(|lock| self.unit.continues_with(lock, command))) {
            self.finish(events);
            let Some(at_micros) = line.micros() else { return false };
            if !self.unit.read_key(lock) {
                return false;
            }
            self.unit.begin(Origin::Commands, at_micros, line.db, client);
        }
        self.unit.add(command, args);
        true
    }

    fn is_known(&mut self, key: Arg<'_>) -> bool {
        self.scratch.clear();
        key.append_to(&mut self.scratch) && self.known.contains(&self.scratch)
    }

    fn subject<'a>(&mut self, command: Command, args: &Args<'a>) -> Subject<'a> {
        let mut words = args.clone().flatten();
        let Some(key) = words.next() else { return Subject::Other };
        let field = words.next().map_or(&b""[..], Arg::raw);
        let of_lock = match command {
            Command::HIncrBy | Command::HSet | Command::HDel => {
                is_holder(field) || field == MODE_FIELD
            }
            Command::PExpire | Command::PExpireAt | Command::Del => {
                self.unit.is_about(key.raw()) || self.is_known(key)
            }
            _ => false,
        };
        if of_lock {
            return Subject::Lock(key);
        }
        let companion = match command {
            Command::ZAdd
            | Command::ZRem
            | Command::RPush
            | Command::LPop
            | Command::LRem
            | Command::Publish => key.raw().starts_with(COMPANION),
            Command::Set | Command::Del | Command::PExpire | Command::PExpireAt => {
                is_companion(key.raw())
            }
            _ => false,
        };
        if companion { Subject::Companion } else { Subject::Other }
    }
}

/// The subject of a bare command.
enum Subject<'a> {
    /// A lock, by its key.
    Lock(Arg<'a>),
    /// A companion key or channel of a lock.
    Companion,
    /// Anything else.
    Other,
}

/// The prefix of all companion keys and channels except reader markers.
const COMPANION: &[u8] = b"redisson_";

/// Returns whether a key is a companion of a lock.
fn is_companion(raw: &[u8]) -> bool {
    raw.starts_with(COMPANION) || is_marker(raw)
}

/// Returns whether a TTL or a deadline, in the unit of `now`, is over.
fn is_past(number: &[u8], now: u64) -> bool {
    let number = std::str::from_utf8(number).ok().and_then(|text| text.parse::<i64>().ok());
    number.is_some_and(|number| u64::try_from(number).map_or(true, |number| number <= now))
}

/// Returns whether a key is a reader marker.
fn is_marker(raw: &[u8]) -> bool {
    memchr::memmem::find(raw, b":rwlock_timeout:").is_some()
}

fn is_holder(raw: &[u8]) -> bool {
    raw.len() > 37 && raw[8] == b'-' && raw[36] == b':' && HolderId::parse(raw).is_some()
}
