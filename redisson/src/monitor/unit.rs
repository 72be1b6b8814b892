//! What belongs together: a script with the commands it called, or bare commands of one client about one lock.

use std::ops::Range;

use super::byte_strings::ByteStrings;
use super::command::Command;
use super::intent::Intent;
use super::line::{Arg, Args};
use crate::HolderId;
use crate::shape::MODE_FIELD;

/// The most commands of one unit that are looked at: a renewal of a hundred locks has four hundred.
const MAX_EFFECTS: usize = 4_096;
/// The most words of one command that are looked at.
const MAX_WORDS: usize = 1_024;

/// What is gathered.
#[derive(Debug, Default)]
pub(super) struct Unit {
    pub(super) from: Option<Origin>,
    pub(super) at_micros: u64,
    pub(super) db: u32,
    client: Vec<u8>,
    /// The key that bare commands are about, as printed.
    printed: Vec<u8>,
    /// Keys and arguments of the script.
    pub(super) words: ByteStrings,
    /// How many of the words are keys.
    pub(super) keys: usize,
    effects: Vec<(Command, Range<usize>)>,
    effect_words: ByteStrings,
    /// Whether something of it could not be read.
    pub(super) broken: bool,
}

/// What a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A script, whether its digest is known.
    Script(Intent, bool),
    /// Bare commands.
    Commands,
}

/// One command of a unit.
#[derive(Clone, Copy)]
pub(super) struct Effect<'a> {
    pub(super) command: Command,
    pub(super) key: &'a [u8],
    pub(super) field: &'a [u8],
    pub(super) value: &'a [u8],
}

impl Effect<'_> {
    /// The holder that its field names.
    pub(super) fn holder(&self) -> Option<HolderId> {
        HolderId::parse(self.field)
    }

    /// Whether it raises or sets this holder's count.
    pub(super) fn takes(&self, lock: &[u8], holder: HolderId) -> bool {
        let raises = match self.command {
            Command::HIncrBy => !self.value.starts_with(b"-"),
            Command::HSet => true,
            _ => false,
        };
        raises && self.key == lock && self.holder() == Some(holder)
    }

    /// Whether it lowers a holder's count.
    pub(super) fn lowers(&self, lock: &[u8]) -> bool {
        self.command == Command::HIncrBy && self.key == lock && self.value.starts_with(b"-")
    }

    pub(super) fn is(&self, command: Command, key: &[u8]) -> bool {
        self.command == command && self.key == key
    }
}

impl Unit {
    /// Begins a unit, without anything in it.
    pub(super) fn begin(&mut self, from: Origin, at_micros: u64, db: u32, client: &[u8]) {
        self.from = Some(from);
        self.at_micros = at_micros;
        self.db = db;
        self.client.clear();
        self.client.extend_from_slice(client);
        self.effects.clear();
        self.effect_words.clear();
        self.broken = false;
    }

    /// Takes in keys and arguments of a script; false where there is none to speak of.
    pub(super) fn read_call(&mut self, mut args: Args<'_>) -> bool {
        self.words.clear();
        let Some(Some(count)) = args.next() else { return false };
        let count = std::str::from_utf8(count.raw()).ok().and_then(|text| text.parse().ok());
        self.keys = count.unwrap_or(0);
        let whole =
            args.by_ref().take(MAX_WORDS).all(|arg| arg.is_some_and(|arg| self.words.push(arg)));
        whole && (1..=self.words.len()).contains(&self.keys)
    }

    /// Adds a command.
    pub(super) fn add(&mut self, command: Command, args: Args<'_>) {
        if self.effects.len() >= MAX_EFFECTS {
            self.broken = true;
            return;
        }
        let first = self.effect_words.len();
        for arg in args.take(5) {
            self.broken |= !arg.is_some_and(|arg: Arg<'_>| self.effect_words.push(arg));
        }
        self.effects.push((command, first..self.effect_words.len()));
    }

    /// The commands in their order.
    pub(super) fn effects(&self) -> impl DoubleEndedIterator<Item = Effect<'_>> + Clone {
        self.effects.iter().map(|(command, words)| {
            let word = |n: usize| {
                let index = words.start + n;
                if index < words.end { self.effect_words.get(index) } else { b"" }
            };
            // A hash set together with its mode.
            let at = if *command == Command::HSet && word(1) == MODE_FIELD && !word(3).is_empty() {
                3
            } else {
                1
            };
            Effect { command: *command, key: word(0), field: word(at), value: word(at + 1) }
        })
    }

    /// Whether it is bare commands of that client in that database.
    pub(super) fn is_of(&self, db: u32, client: &[u8]) -> bool {
        self.from == Some(Origin::Commands) && self.db == db && self.client == client
    }

    /// The first holder among the arguments.
    pub(super) fn holder(&self) -> Option<HolderId> {
        self.words.range(self.keys..self.words.len()).find_map(HolderId::parse)
    }

    /// Its sender's address as printed.
    pub(super) fn client(&self) -> &[u8] {
        &self.client
    }

    /// Takes in the lock that bare commands are about, where they name one.
    pub(super) fn read_key(&mut self, lock: Option<Arg<'_>>) -> bool {
        self.words.clear();
        self.keys = 0;
        self.printed.clear();
        self.printed.extend_from_slice(lock.map_or(b"", Arg::raw));
        lock.is_none_or(|lock| self.words.push(lock))
    }

    /// Whether it is bare commands about the lock with this key, as printed.
    pub(super) fn is_about(&self, key: &[u8]) -> bool {
        self.from == Some(Origin::Commands) && self.words.len() > 0 && self.printed == key
    }

    /// Whether another command on this lock belongs to what was begun.
    pub(super) fn goes_on_with(&self, lock: Arg<'_>, command: Command) -> bool {
        let counted = |effect: Effect<'_>| effect.command == Command::HIncrBy;
        let counts_again = command == Command::HIncrBy && self.effects().any(counted);
        !counts_again && self.words.len() > 0 && self.printed == lock.raw()
    }
}
