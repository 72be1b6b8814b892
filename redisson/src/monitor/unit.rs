//! A unit: a script with the commands it called, or related bare commands of one client on one lock.

use std::ops::Range;

use super::byte_strings::ByteStrings;
use super::command::Command;
use super::intent::Intent;
use super::line::{Arg, Args};
use crate::HolderId;
use crate::shape::MODE_FIELD;

/// The maximum number of commands per unit: a renewal of a hundred locks has four hundred.
const MAX_EFFECTS: usize = 4_096;
/// The maximum number of arguments read of a script call.
const MAX_WORDS: usize = 1_024;

/// A unit being collected.
#[derive(Debug, Default)]
pub(super) struct Unit {
    pub(super) from: Option<Origin>,
    pub(super) at_micros: u64,
    pub(super) db: u32,
    client: Vec<u8>,
    /// The key of bare commands, as printed.
    printed: Vec<u8>,
    /// The keys and arguments of the script.
    pub(super) words: ByteStrings,
    /// The number of keys among the words.
    pub(super) keys: usize,
    effects: Vec<(Command, Range<usize>)>,
    effect_words: ByteStrings,
    /// True if a part of it could not be read.
    pub(super) broken: bool,
}

/// The origin of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A script, and whether its digest is known.
    Script(Intent, bool),
    /// Bare commands.
    Commands,
}

/// A command of a unit.
#[derive(Clone, Copy)]
pub(super) struct Effect<'a> {
    pub(super) command: Command,
    pub(super) key: &'a [u8],
    pub(super) field: &'a [u8],
    pub(super) value: &'a [u8],
}

impl Effect<'_> {
    /// Returns the holder named by its field.
    pub(super) fn holder(&self) -> Option<HolderId> {
        HolderId::parse(self.field)
    }

    /// Returns whether it raises or sets the holder's count.
    pub(super) fn takes(&self, lock: &[u8], holder: HolderId) -> bool {
        let raises = match self.command {
            Command::HIncrBy => !self.value.starts_with(b"-"),
            Command::HSet => true,
            _ => false,
        };
        raises && self.key == lock && self.holder() == Some(holder)
    }

    /// Returns whether it lowers a holder's count.
    pub(super) fn lowers(&self, lock: &[u8]) -> bool {
        self.command == Command::HIncrBy && self.key == lock && self.value.starts_with(b"-")
    }

    pub(super) fn is(&self, command: Command, key: &[u8]) -> bool {
        self.command == command && self.key == key
    }
}

impl Unit {
    /// Starts a new, empty unit.
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

    /// Reads the keys and arguments of a script. Returns false if they are malformed, too many or without a key.
    pub(super) fn read_call(&mut self, mut args: Args<'_>) -> bool {
        self.words.clear();
        let Some(Some(count)) = args.next() else { return false };
        let count = std::str::from_utf8(count.raw()).ok().and_then(|text| text.parse().ok());
        self.keys = count.unwrap_or(0);
        let whole =
            args.by_ref().take(MAX_WORDS).all(|arg| arg.is_some_and(|arg| self.words.push(arg)));
        whole && (1..=self.words.len()).contains(&self.keys)
    }

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

    /// Iterates over the commands in order.
    pub(super) fn effects(&self) -> impl DoubleEndedIterator<Item = Effect<'_>> + Clone {
        self.effects.iter().map(|(command, words)| {
            let word = |n: usize| {
                let index = words.start + n;
                if index < words.end { self.effect_words.get(index) } else { b"" }
            };
            // HSET of the mode and a holder in one command.
            let at = if *command == Command::HSet && word(1) == MODE_FIELD && !word(3).is_empty() {
                3
            } else {
                1
            };
            Effect { command: *command, key: word(0), field: word(at), value: word(at + 1) }
        })
    }

    /// Returns whether it consists of bare commands of that client in that database.
    pub(super) fn is_of(&self, db: u32, client: &[u8]) -> bool {
        self.from == Some(Origin::Commands) && self.db == db && self.client == client
    }

    /// Returns the first holder among the arguments.
    pub(super) fn holder(&self) -> Option<HolderId> {
        self.words.range(self.keys..self.words.len()).find_map(HolderId::parse)
    }

    /// Returns the sender's address as printed.
    pub(super) fn client(&self) -> &[u8] {
        &self.client
    }

    /// Reads the lock that bare commands concern, if they name one.
    pub(super) fn read_key(&mut self, lock: Option<Arg<'_>>) -> bool {
        self.words.clear();
        self.keys = 0;
        self.printed.clear();
        self.printed.extend_from_slice(lock.map_or(b"", Arg::raw));
        lock.is_none_or(|lock| self.words.push(lock))
    }

    /// Returns whether it consists of bare commands on this key, as printed.
    pub(super) fn is_about(&self, key: &[u8]) -> bool {
        self.from == Some(Origin::Commands) && self.words.len() > 0 && self.printed == key
    }

    /// Returns whether another command on this lock belongs to the unit.
    pub(super) fn continues_with(&self, lock: Arg<'_>, command: Command) -> bool {
        let counted = |effect: Effect<'_>| effect.command == Command::HIncrBy;
        let counts_again = command == Command::HIncrBy && self.effects().any(counted);
        !counts_again && self.words.len() > 0 && self.printed == lock.raw()
    }
}
