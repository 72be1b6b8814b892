//! Random commands of the agent's protocol.

use harness::client::encode;
use harness::random::Random;

use super::{NUMBERS, mutate};

/// The longest wait that a command requests, in milliseconds.
const LONGEST_WAIT: u64 = 20;
/// The longest command in bytes that the agent certainly reads. It closes the connection after one of more than 128 KiB.
const LONGEST_COMMAND: usize = 127 * 1024;

const NAMES: [&[u8]; 10] = [
    b"fuzz:a",
    b"fuzz:b",
    b"fuzz:{c}:d",
    b"fuzz:<script>alert(1)</script>",
    b"fuzz:\0\xff\r\n",
    b"fuzz:*",
    b"fuzz:}{",
    "fuzz:żółw ⚡ 錠".as_bytes(),
    b"fuzz:'\"\\",
    &[b'x'; 512],
];
const KINDS: [&str; 6] = ["lock", "fair", "read", "write", "fenced", "red"];
const WORDS: [&str; 40] = [
    "LOCK",
    "LOCK",
    "LOCK",
    "LOCK",
    "LOCK",
    "LOCK",
    "UNLOCK",
    "UNLOCK",
    "UNLOCK",
    "UNLOCK",
    "MLOCK",
    "MLOCK",
    "MLOCK",
    "MUNLOCK",
    "MUNLOCK",
    "EXTEND",
    "EXTEND",
    "EXTEND",
    "HOLDS",
    "LOCKS",
    "LOCKS",
    "SHOW",
    "SHOW",
    "SESSION",
    "RESUME",
    "EVENTS",
    "CANCEL",
    "FORCE",
    "HELLO",
    "AUTH",
    "PING",
    "ECHO",
    "RESET",
    "SELECT",
    "CLIENT",
    "COMMAND",
    "INFO",
    "SUBSCRIBE",
    "QUIT",
    "KICK",
];

type Words = Vec<Vec<u8>>;

/// Generates the commands of one connection.
pub(super) struct Commands<'a> {
    random: &'a mut Random,
    /// The id and the secret of its session.
    session: Option<(&'a str, &'a str)>,
    /// The names and the kind that most of its commands use, so that they find holds.
    names: [Vec<u8>; 2],
    kind: &'static str,
}

impl<'a> Commands<'a> {
    pub(super) fn new(random: &'a mut Random, session: Option<(&'a str, &'a str)>) -> Self {
        let mut names = [random.pick(&NAMES).to_vec(), random.pick(&NAMES).to_vec()];
        if random.one_in(2) {
            // No other connection uses these names.
            names = [1, 2].map(|_| format!("fuzz:{}", random.below(u64::MAX)).into());
        }
        let kind = random.pick(&KINDS);
        Self { random, session, names, kind }
    }

    /// Returns commands that are well-formed on the wire, each with valid or invalid arguments. None waits for longer
    /// than [`LONGEST_WAIT`].
    pub(super) fn any(&mut self) -> Vec<Words> {
        let commands = (0..=self.random.index(24)).map(|_| self.one());
        // An empty array has no reply.
        commands.filter(|words| !words.is_empty()).collect()
    }

    fn one(&mut self) -> Words {
        let mut word = self.random.pick(&WORDS);
        if matches!(word, "QUIT" | "KICK") && !self.random.one_in(4) {
            word = "LOCK";
        }
        let mut words = vec![word.as_bytes().to_vec()];
        self.arguments(word, &mut words);
        if self.random.one_in(5) {
            self.spoil(&mut words);
        }
        bound_waits(&mut words);
        let own = |word: &[u8], (id, secret): (&str, &str)| match word {
            b"<id>" => Some(id.as_bytes().to_vec()),
            b"<secret>" => Some(secret.as_bytes().to_vec()),
            _ => None,
        };
        for word in &mut words {
            if let Some(value) = self.session.and_then(|session| own(word, session)) {
                *word = value;
            }
        }
        words
    }

    fn arguments(&mut self, word: &str, words: &mut Words) {
        match word {
            "LOCK" => {
                words.push(self.name());
                self.options(words, &["KIND", "WAIT", "LEASE", "OWNER", "IN", "TRACEPARENT"]);
            }
            "UNLOCK" => {
                words.push(self.name());
                self.options(words, &["KIND", "OWNER", "IN"]);
            }
            "MLOCK" | "MUNLOCK" => {
                let count = 1 + self.random.index(2);
                words.push(count.to_string().into());
                words.extend((0..count).map(|_| self.name()));
                let waits = ["KIND", "OWNER", "IN", "WAIT", "LEASE", "TRACEPARENT"];
                self.options(words, if word == "MLOCK" { &waits } else { &waits[..3] });
            }
            "EXTEND" => {
                words.extend([self.name(), self.number()]);
                self.options(words, &["KIND", "OWNER", "IN"]);
            }
            "LOCKS" => self.options(words, &["MATCH", "CURSOR", "COUNT"]),
            "SHOW" => words.push(self.name()),
            "SESSION" => self.options(words, &["GRACE", "PUSH", "DEADLINES"]),
            "RESUME" => words.extend([b"<id>".to_vec(), b"<secret>".to_vec()]),
            "EVENTS" => {
                words.extend([b"<id>".to_vec(), b"<secret>".to_vec()]);
                self.options(words, &["WAIT"]);
            }
            "CANCEL" => {
                words.extend([b"<id>".to_vec(), b"<secret>".to_vec()]);
                self.options(words, &["OWNER"]);
            }
            "FORCE" => {
                words.push(self.name());
                self.options(words, &["HOLDER", "REPORT"]);
            }
            "KICK" => {
                words.push(if self.random.one_in(4) { b"<id>".to_vec() } else { self.noise() });
            }
            "HELLO" => {
                words.push(self.random.pick(&["2", "3", "4", "two"]).into());
                self.options(words, &["AUTH", "SETNAME"]);
            }
            "CLIENT" => {
                let what =
                    ["SETNAME", "GETNAME", "SETINFO", "ID", "INFO", "LIST", "NO-EVICT", "KILL"];
                words.push(self.random.pick(&what).into());
                words.extend((0..self.random.index(3)).map(|_| self.noise()));
            }
            "COMMAND" => words.push(self.random.pick(&["DOCS", "COUNT", "INFO", "NONE"]).into()),
            _ => words.extend((0..self.random.index(3)).map(|_| self.noise())),
        }
    }

    /// Appends some of these options, in any order.
    fn options(&mut self, words: &mut Words, options: &[&str]) {
        for _ in 0..self.random.index(4) {
            let option = self.random.pick(options);
            words.push(option.into());
            match option {
                "KIND" => words.push(self.kind().into()),
                "OWNER" => words.push(self.random.below(2).to_string().into()),
                "WAIT" => words.push(self.random.below(LONGEST_WAIT).to_string().into()),
                "LEASE" => words.push((100 + self.random.below(2_000)).to_string().into()),
                "GRACE" => words.push(self.random.below(300).to_string().into()),
                "IN" => words.push(b"<id>".to_vec()),
                "MATCH" => words.push(self.pattern()),
                "CURSOR" | "COUNT" => words.push(self.number()),
                "PUSH" | "DEADLINES" => words.push(self.random.pick(&["on", "off"]).into()),
                "HOLDER" | "SETNAME" | "TRACEPARENT" => words.push(self.noise()),
                "AUTH" => words.extend([self.noise(), self.noise()]),
                _ => {}
            }
        }
    }

    /// Damages a command: words are lost, repeated, exchanged or changed.
    fn spoil(&mut self, words: &mut Words) {
        let at = self.random.index(words.len());
        match self.random.below(7) {
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[at].clone()),
            2 => words.swap(0, at),
            3 => words[at] = self.number(),
            4 => words[at] = self.noise(),
            5 => words[at].make_ascii_lowercase(),
            _ => mutate(self.random, &mut words[at]),
        }
    }

    fn kind(&mut self) -> &'static str {
        if self.random.one_in(5) { self.random.pick(&KINDS) } else { self.kind }
    }

    fn name(&mut self) -> Vec<u8> {
        let usual = !self.random.one_in(5);
        let mut name = match self.random.index(2) {
            at if usual => self.names[at].clone(),
            _ => self.random.pick(&NAMES).to_vec(),
        };
        if self.random.one_in(8) {
            mutate(self.random, &mut name);
        }
        name
    }

    fn number(&mut self) -> Vec<u8> {
        let small = self.random.below(2_000).to_string();
        let number = if self.random.one_in(2) { &small } else { self.random.pick(&NUMBERS) };
        number.as_bytes().to_vec()
    }

    /// Returns a glob with many more stars than it needs.
    fn pattern(&mut self) -> Vec<u8> {
        let mut pattern = b"*fuzz".to_vec();
        for _ in 0..self.random.index(40) {
            pattern.push(if self.random.one_in(2) { b'*' } else { self.random.byte() });
        }
        pattern
    }

    /// Returns arbitrary bytes, occasionally many.
    fn noise(&mut self) -> Vec<u8> {
        let length = if self.random.one_in(40) { 60_000 } else { 40 };
        (0..self.random.index(length)).map(|_| self.random.byte()).collect()
    }
}

/// Bounds the wait of a command: LOCK and MLOCK get NOWAIT unless they have a short WAIT.
fn bound_waits(words: &mut Words) {
    let is = |word: &[u8], other: &str| word.eq_ignore_ascii_case(other.as_bytes());
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u64>().ok();
    for at in 1..words.len() {
        let long = number(&words[at]).is_some_and(|wait| wait > LONGEST_WAIT);
        if is(&words[at - 1], "WAIT") && long {
            words[at] = LONGEST_WAIT.to_string().into();
        }
    }
    let options = match words.first() {
        Some(word) if is(word, "LOCK") => 2,
        Some(word) if is(word, "MLOCK") => {
            let members = words.get(1).and_then(|count| number(count)).unwrap_or(0);
            usize::try_from(members).unwrap_or(0).min(words.len()) + 2
        }
        _ => return,
    };
    let bounded = words.iter().skip(options).any(|word| is(word, "WAIT") || is(word, "NOWAIT"));
    if !bounded && options <= words.len() {
        words.insert(options, b"NOWAIT".to_vec());
    }
}

/// Returns the bytes of these commands, each as an array of strings.
pub(super) fn bytes(commands: &[Words]) -> Vec<u8> {
    commands.iter().flat_map(|command| encode(command)).collect()
}

/// Returns whether a command may end its own connection.
pub(super) fn may_close(commands: &[Words]) -> bool {
    let closes = |word: &Vec<u8>| {
        [b"QUIT".as_slice(), b"KICK"].iter().any(|other| word.eq_ignore_ascii_case(other))
    };
    let size = |command: &Words| command.iter().map(Vec::len).sum::<usize>();
    commands
        .iter()
        .any(|command| command.first().is_some_and(closes) || size(command) > LONGEST_COMMAND)
}
