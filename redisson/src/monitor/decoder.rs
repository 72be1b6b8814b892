//! The stream of one server, line by line.

use std::collections::HashMap;

use memchr::memchr;

use super::classify::Classifier;
use super::command::Command;
use super::event::{Action, Address, Certainty, Event};
use super::intent::{self, Intent};
use super::known_locks::KnownLocks;
use super::line::{Arg, Args, Line, Source};
use super::unit::{Origin, Unit};
use crate::script::{self, hex_digest};
use crate::shape::MODE_FIELD;
use crate::{HolderId, keys};

/// The longest line that is read, in bytes. A renewal of a hundred locks with names as long as we take them fits in.
const MAX_LINE: usize = 512 * 1024;
/// The longest text of a script that is looked at, as printed.
const MAX_TEXT: usize = 16 * 1024;
/// How many texts of scripts are remembered with their digests.
const TEXTS: usize = 128;

/// Which kind of server the stream comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRole {
    /// One that clients write to.
    Master,
    /// One that is told by its master: it shows what was changed, not who asked for it, nor refused attempts.
    Replica,
}

impl ServerRole {
    /// The client by its address as printed.
    pub(super) fn address(self, printed: &[u8]) -> Option<Address> {
        match self {
            Self::Replica => None,
            Self::Master if printed.starts_with(b"unix:") => Some(Address::Unix),
            Self::Master => std::str::from_utf8(printed).ok()?.parse().ok().map(Address::Tcp),
        }
    }
}

/// What became of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineCounts {
    /// Lines about locks.
    pub lock: u64,
    /// Lines about anything else, of which no more was read than showed that.
    pub other: u64,
    /// Lines that are none of MONITOR's.
    pub garbage: u64,
    /// Lines too long to be read to their end.
    pub cut: u64,
}

/// Reads a server's stream. It keeps bounded memory whatever comes, and goes on after whatever it cannot read.
#[derive(Debug)]
pub struct Decoder {
    role: ServerRole,
    digests: HashMap<[u8; 40], Intent>,
    /// What the scripts that were sent in full are for; none: not known.
    texts: Vec<(Box<[u8]>, Option<Intent>)>,
    scratch: Vec<u8>,
    unit: Unit,
    known: KnownLocks,
    partial: Vec<u8>,
    skipping: bool,
    counts: LineCounts,
}

impl Decoder {
    /// Nothing was read yet.
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
        }
    }

    /// What became of all lines so far.
    #[must_use]
    pub fn counts(&self) -> LineCounts {
        self.counts
    }

    /// Takes in what came next, cut anywhere, and adds what it shows to `events`. What the last line belongs to
    /// may show only when the next one comes, or [`Self::flush`] is called.
    pub fn feed(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) {
        while let Some(end) = memchr(b'\n', bytes) {
            let (head, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.skipping {
                self.skipping = false;
            } else if self.partial.is_empty() {
                self.framed(head, events);
            } else {
                let mut line = std::mem::take(&mut self.partial);
                line.extend_from_slice(head);
                self.framed(&line, events);
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

    /// Bytes of a line whose end has not come yet.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.partial.len()
    }

    fn framed(&mut self, line: &[u8], events: &mut Vec<Event>) {
        match line.strip_prefix(b"+").and_then(|line| line.strip_suffix(b"\r")) {
            Some(line) => self.feed_line(line, events),
            None => {
                self.counts.garbage += 1;
                self.finish(events);
            }
        }
    }

    /// Nothing more comes for the moment: what the last line belongs to is whole, since a script's lines are sent
    /// in one go.
    pub fn flush(&mut self, events: &mut Vec<Event>) {
        self.finish(events);
    }

    /// The connection is a new one: what was begun on the old one is dropped.
    pub fn reset(&mut self, role: ServerRole) {
        self.role = role;
        self.unit.from = None;
        self.partial.clear();
        self.skipping = false;
    }

    /// Takes in one line, without the `+` before it and the end of line after it.
    pub fn feed_line(&mut self, line: &[u8], events: &mut Vec<Event>) {
        let Some(line) = Line::parse(line) else {
            self.counts.garbage += 1;
            return self.finish(events);
        };
        let mut args = line.args.clone();
        let command =
            args.next().flatten().map_or(Command::Other, |word| Command::parse(word.raw()));
        match line.source {
            Source::Lua => {
                let ours = matches!(self.unit.from, Some(Origin::Script(..)));
                if ours {
                    self.unit.add(command, args);
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
                        self.subscription(&line, client, command, args, events)
                    }
                    _ => self.command(&line, client, command, args, events),
                };
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

    /// Tells what the open unit comes to.
    fn finish(&mut self, events: &mut Vec<Event>) {
        if self.unit.from.is_some() {
            let (unit, known, role) = (&self.unit, &mut self.known, self.role);
            Classifier { unit, known, role, events }.run();
            self.unit.from = None;
        }
    }

    /// A script or function; whether it is about locks.
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
        // To compare is quicker than to hash: few are of one length.
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

    /// Whether a script with these keys and arguments may be about a lock: it names a holder, or a key beside a
    /// lock, or a lock seen before.
    fn is_of_interest(&mut self, args: Args<'_>) -> bool {
        args.skip(1).enumerate().any(|(i, arg)| {
            let Some(arg) = arg else { return false };
            let raw = arg.raw();
            is_holder(raw) || raw.starts_with(COMPANION) || (i == 0 && self.is_known(arg))
        })
    }

    /// A client begins or ends to listen to channels; whether to a lock's.
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
            if let Some(lock) = self.known.likeliest(locks)
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

    /// A bare command; whether it is about a lock.
    fn command(
        &mut self,
        line: &Line<'_>,
        client: &[u8],
        command: Command,
        args: Args<'_>,
        events: &mut Vec<Event>,
    ) -> bool {
        let open = self.unit.is_of(line.db, client);
        let lock = match self.bare(command, &args) {
            Bare::Other => {
                self.finish(events);
                return false;
            }
            Bare::Companion if open => {
                self.unit.add(command, args);
                return true;
            }
            Bare::Companion => None,
            Bare::Lock(key) => Some(key),
        };
        // One of a kind in a unit: several commands of one kind are several things done to the lock.
        if !(open && lock.is_some_and(|lock| self.unit.goes_on_with(lock, command))) {
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

    /// Whether it is a lock seen before.
    fn is_known(&mut self, key: Arg<'_>) -> bool {
        self.scratch.clear();
        key.append_to(&mut self.scratch) && self.known.contains(&self.scratch)
    }

    /// What a bare command is about.
    fn bare<'a>(&mut self, command: Command, args: &Args<'a>) -> Bare<'a> {
        let mut words = args.clone().flatten();
        let Some(key) = words.next() else { return Bare::Other };
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
            return Bare::Lock(key);
        }
        let companion = match command {
            Command::ZAdd
            | Command::ZRem
            | Command::RPush
            | Command::LPop
            | Command::LRem
            | Command::Publish => key.raw().starts_with(COMPANION),
            Command::Set | Command::Del | Command::PExpire | Command::PExpireAt => {
                key.raw().starts_with(COMPANION) || is_marker(key.raw())
            }
            _ => false,
        };
        if companion { Bare::Companion } else { Bare::Other }
    }
}

/// What a bare command is about.
enum Bare<'a> {
    /// A lock, by its key.
    Lock(Arg<'a>),
    /// A key or channel beside a lock.
    Companion,
    /// Nothing that matters.
    Other,
}

/// What keys and channels beside locks begin with, all but the markers of readers.
const COMPANION: &[u8] = b"redisson_";

/// Whether it is the marker of a reader.
fn is_marker(raw: &[u8]) -> bool {
    memchr::memmem::find(raw, b":rwlock_timeout:").is_some()
}

fn is_holder(raw: &[u8]) -> bool {
    raw.len() > 37 && raw[8] == b'-' && raw[36] == b':' && HolderId::parse(raw).is_some()
}
