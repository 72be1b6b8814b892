//! Parses requests into commands and checks the bounds of every argument.

mod multi;

use std::time::Duration;

use redisson::{Kind, Lease, LockName};
use smallvec::SmallVec;

use super::{Command, HoldRequest, ListRequest, LockRequest, SessionName, Wait};
use crate::protocol::resp::{Args, Frame, Protocol};

/// The longest WAIT: a year.
const MAX_WAIT: Duration = Lease::MAX;
/// The maximum number of rows of one LOCKS page.
const MAX_COUNT: u64 = 1000;
/// The rows of one LOCKS page by default.
const DEFAULT_COUNT: usize = 100;
/// The longest session id, secret or `traceparent` in bytes; valid ones are shorter, and a `traceparent` has 55.
const MAX_TEXT: usize = 128;

const LOCK: &str = "LOCK name [KIND lock|fair|read|write|fenced|red] [WAIT ms | NOWAIT] [LEASE ms] [OWNER n] [IN session] [TRACEPARENT v]";
const MLOCK: &str = "MLOCK n name… [KIND lock|fair|read|write|fenced|red] [WAIT ms | NOWAIT] [LEASE ms] [OWNER n] [IN session] [TRACEPARENT v]";
/// The name of MLOCK's first argument in errors.
const MEMBERS: &str = "the number of locks";
const UNLOCK: &str = "UNLOCK name [KIND kind] [OWNER n] [IN session]";
const MUNLOCK: &str = "MUNLOCK n name… [KIND kind] [OWNER n] [IN session]";
const EXTEND: &str = "EXTEND name ms [KIND kind] [OWNER n] [IN session]";
const HOLDS: &str = "HOLDS [id secret]";
const LOCKS: &str = "LOCKS [MATCH glob] [CURSOR c] [COUNT n]";
const SHOW: &str = "SHOW name";
const SESSION: &str = "SESSION [GRACE ms] [PUSH on|off] [DEADLINES on|off] [PROCESS on|off]";
const RESUME: &str = "RESUME id secret";
const EVENTS: &str = "EVENTS id secret [WAIT ms]";
const CANCEL: &str = "CANCEL id secret [OWNER n]";
const FORCE: &str = "FORCE name [HOLDER id] [REPORT]";
const KICK: &str = "KICK session";

/// The kinds that LOCK accepts.
const KINDS: &str = "one of lock, fair, read, write, fenced, red";

type Parsed<T> = Result<T, Frame>;

/// A word of a command in upper case: on the heap only if it is longer than all known words.
type Word = SmallVec<[u8; 16]>;

/// Parses a command. `protocol` is the connection's, since pushes require RESP3.
///
/// # Errors
/// Returns the error reply, which names the mistake and the expected form.
pub fn parse(args: Args<'_>, protocol: Protocol) -> Result<Command, Frame> {
    let word = upper(args.get(0).unwrap_or_default());
    match word.as_slice() {
        b"LOCK" => lock(lock_name(args, LOCK)?, Options::new(args, 2, LOCK)).map(Command::Lock),
        b"UNLOCK" => {
            hold(lock_name(args, UNLOCK)?, Options::new(args, 2, UNLOCK)).map(Command::Unlock)
        }
        b"MLOCK" => multi::lock_all(args),
        b"MUNLOCK" => multi::unlock_all(args),
        b"EXTEND" => extend(args),
        b"HOLDS" if args.get(1).is_none() => Ok(Command::Holds),
        b"HOLDS" => {
            let (session, secret) = credentials(args, HOLDS)?;
            Options::new(args, 3, HOLDS).end()?;
            Ok(Command::HoldsOf { session, secret })
        }
        b"LOCKS" => locks(args),
        b"SHOW" => {
            let name = lock_name(args, SHOW)?;
            Options::new(args, 2, SHOW).end()?;
            Ok(Command::Show(name))
        }
        b"SESSION" => session(args, protocol),
        b"RESUME" => {
            let (session, secret) = credentials(args, RESUME)?;
            Options::new(args, 3, RESUME).end()?;
            Ok(Command::Resume { session, secret })
        }
        b"EVENTS" => events(args),
        b"CANCEL" => cancel(args),
        b"FORCE" => force(args),
        b"KICK" => {
            let session = bounded("the session", args.get(1).ok_or_else(|| usage(KICK))?)?;
            Options::new(args, 2, KICK).end()?;
            Ok(Command::Kick(session))
        }
        b"MULTI" | b"EXEC" | b"DISCARD" | b"WATCH" => Err(error(format!(
            "ERR {} is not supported: each command takes effect on its own; send them one by one, \
             or pipeline them without a transaction",
            String::from_utf8_lossy(&word)
        ))),
        _ => Err(unknown(args)),
    }
}

fn lock(name: LockName, mut options: Options<'_>) -> Parsed<LockRequest> {
    let mut request = LockRequest::new(name);
    while let Some(word) = options.next() {
        match word.as_slice() {
            b"KIND" => request.kind = options.kind()?,
            b"WAIT" => {
                options.once_of("WAIT", "NOWAIT")?;
                request.wait = Wait::AtMost(options.wait()?);
            }
            b"NOWAIT" => {
                options.once_of("NOWAIT", "WAIT")?;
                request.wait = Wait::AtMost(Duration::ZERO);
            }
            b"LEASE" => request.lease = Some(options.lease()?),
            b"OWNER" => request.owner = options.owner()?,
            b"IN" => request.session = Some(options.text("IN")?),
            b"TRACEPARENT" => {
                request.traceparent = Some(options.text("TRACEPARENT")?);
            }
            other => return Err(options.unknown(other)),
        }
    }
    Ok(request)
}

fn hold(name: LockName, mut options: Options<'_>) -> Parsed<HoldRequest> {
    let mut request = HoldRequest::new(name);
    while let Some(word) = options.next() {
        match word.as_slice() {
            b"KIND" => request.kind = Some(options.kind()?),
            b"OWNER" => request.owner = options.owner()?,
            b"IN" => request.session = Some(options.text("IN")?),
            other => return Err(options.unknown(other)),
        }
    }
    Ok(request)
}

fn extend(args: Args<'_>) -> Parsed<Command> {
    let Some(millis) = args.get(2) else { return Err(usage(EXTEND)) };
    let lease = match number("EXTEND", millis)? {
        Some(0) => None,
        millis => Some(lease_of("EXTEND", millis)?),
    };
    let request = hold(lock_name(args, EXTEND)?, Options::new(args, 3, EXTEND))?;
    Ok(Command::Extend(request, lease))
}

fn locks(args: Args<'_>) -> Parsed<Command> {
    let mut options = Options::new(args, 1, LOCKS);
    let mut request = ListRequest { pattern: None, cursor: 0, count: DEFAULT_COUNT };
    while let Some(word) = options.next() {
        match word.as_slice() {
            b"MATCH" => {
                let pattern = options.value("MATCH")?;
                if pattern.len() > LockName::MAX {
                    return Err(limit(format!(
                        "a MATCH of {} bytes is too long, the limit is {}",
                        pattern.len(),
                        LockName::MAX
                    )));
                }
                request.pattern = Some(pattern.to_vec());
            }
            b"CURSOR" => {
                let cursor = options.value("CURSOR")?;
                request.cursor = number("CURSOR", cursor)?.ok_or_else(|| {
                    syntax("CURSOR takes the cursor that the last LOCKS returned, or 0")
                })?;
            }
            b"COUNT" => {
                let count = options.value("COUNT")?;
                request.count = match number("COUNT", count)? {
                    Some(count @ 1..=MAX_COUNT) => usize::try_from(count).unwrap_or(DEFAULT_COUNT),
                    _ => return Err(limit(format!("COUNT must be from 1 to {MAX_COUNT}"))),
                };
            }
            other => return Err(options.unknown(other)),
        }
    }
    Ok(Command::Locks(request))
}

fn session(args: Args<'_>, protocol: Protocol) -> Parsed<Command> {
    let mut options = Options::new(args, 1, SESSION);
    let (mut grace, mut push, mut deadlines, mut process) = (None, None, None, None);
    while let Some(word) = options.next() {
        match word.as_slice() {
            b"GRACE" => {
                let value = options.value("GRACE")?;
                let millis = number("GRACE", value)?;
                grace = Some(millis.map_or(Duration::MAX, Duration::from_millis));
            }
            b"PUSH" => push = Some(options.switch("PUSH")?),
            b"DEADLINES" => deadlines = Some(options.switch("DEADLINES")?),
            b"PROCESS" => process = Some(options.switch("PROCESS")?),
            other => return Err(options.unknown(other)),
        }
    }
    if push == Some(true) && protocol == Protocol::Resp2 {
        return Err(syntax(
            "PUSH on needs RESP3, and this connection uses RESP2: send HELLO 3 first, or poll with EVENTS",
        ));
    }
    Ok(Command::Session { grace, push, deadlines, process })
}

fn events(args: Args<'_>) -> Parsed<Command> {
    let (session, secret) = credentials(args, EVENTS)?;
    let mut options = Options::new(args, 3, EVENTS);
    let mut wait = Duration::ZERO;
    while let Some(word) = options.next() {
        match word.as_slice() {
            b"WAIT" => {
                options.once("WAIT")?;
                wait = options.wait()?;
            }
            other => return Err(options.unknown(other)),
        }
    }
    Ok(Command::Events { session, secret, wait })
}

fn cancel(args: Args<'_>) -> Parsed<Command> {
    let (session, secret) = credentials(args, CANCEL)?;
    let mut options = Options::new(args, 3, CANCEL);
    let mut owner = 0;
    while let Some(word) = options.next() {
        match word.as_slice() {
            b"OWNER" => owner = options.owner()?,
            other => return Err(options.unknown(other)),
        }
    }
    Ok(Command::Cancel { session, secret, owner })
}

fn force(args: Args<'_>) -> Parsed<Command> {
    let name = lock_name(args, FORCE)?;
    let mut options = Options::new(args, 2, FORCE);
    let (mut holder, mut report) = (None, false);
    while let Some(word) = options.next() {
        match word.as_slice() {
            b"REPORT" => {
                options.once("REPORT")?;
                report = true;
            }
            b"HOLDER" => holder = Some(options.text("HOLDER")?),
            other => return Err(options.unknown(other)),
        }
    }
    Ok(Command::Force { name, holder, report })
}

fn credentials(args: Args<'_>, form: &'static str) -> Parsed<(SessionName, Vec<u8>)> {
    match (args.get(1), args.get(2)) {
        (Some(id), Some(secret)) => Ok((bounded("id", id)?, bounded("secret", secret)?)),
        _ => Err(usage(form)),
    }
}

fn lock_name(args: Args<'_>, form: &'static str) -> Parsed<LockName> {
    name_at(args, 1, form)
}

fn name_at(args: Args<'_>, at: usize, form: &'static str) -> Parsed<LockName> {
    let name = args.get(at).ok_or_else(|| usage(form))?;
    LockName::new(name).map_err(|error| if name.is_empty() { syntax(error) } else { limit(error) })
}

/// The keywords of a command and their values.
struct Options<'a> {
    args: Args<'a>,
    at: usize,
    usage: &'static str,
    seen: Vec<&'static str>,
}

impl<'a> Options<'a> {
    fn new(args: Args<'a>, at: usize, usage: &'static str) -> Self {
        Self { args, at, usage, seen: Vec::new() }
    }

    /// Returns the next keyword in upper case.
    fn next(&mut self) -> Option<Word> {
        let word = self.args.get(self.at)?;
        self.at += 1;
        Some(upper(word))
    }

    /// Fails if another keyword follows.
    fn end(mut self) -> Parsed<()> {
        self.next().map_or(Ok(()), |word| Err(self.unknown(&word)))
    }

    fn unknown(&self, word: &[u8]) -> Frame {
        syntax(format!("unexpected '{}': {}", shown(word), self.usage))
    }

    fn once(&mut self, word: &'static str) -> Parsed<()> {
        if self.seen.contains(&word) {
            return Err(syntax(format!("{word} is given twice: {}", self.usage)));
        }
        self.seen.push(word);
        Ok(())
    }

    fn once_of(&mut self, word: &'static str, instead: &'static str) -> Parsed<()> {
        if self.seen.contains(&instead) {
            return Err(syntax(format!("give either WAIT or NOWAIT, not both: {}", self.usage)));
        }
        self.once(word)
    }

    /// Returns the value that must follow `word`.
    fn value(&mut self, word: &'static str) -> Parsed<&'a [u8]> {
        self.once(word)?;
        self.bare_value(word)
    }

    fn bare_value(&mut self, word: &str) -> Parsed<&'a [u8]> {
        let value = self.args.get(self.at);
        self.at += 1;
        value.ok_or_else(|| syntax(format!("{word} needs a value: {}", self.usage)))
    }

    fn text(&mut self, word: &'static str) -> Parsed<Vec<u8>> {
        bounded(word, self.value(word)?)
    }

    fn kind(&mut self) -> Parsed<Kind> {
        let word = self.value("KIND")?;
        match Kind::parse(word) {
            Some(kind) => Ok(kind),
            None => {
                Err(syntax(format!("'{}' is not a kind of lock: expected {KINDS}", shown(word))))
            }
        }
    }

    fn wait(&mut self) -> Parsed<Duration> {
        let value = self.bare_value("WAIT")?;
        number("WAIT", value)?
            .map(Duration::from_millis)
            .filter(|wait| *wait <= MAX_WAIT)
            .ok_or_else(|| {
                let most = MAX_WAIT.as_millis();
                limit(format!(
                    "WAIT {} exceeds {most} ms, a year; omit WAIT to wait without a limit",
                    shown(value)
                ))
            })
    }

    fn lease(&mut self) -> Parsed<Lease> {
        let value = self.value("LEASE")?;
        lease_of("LEASE", number("LEASE", value)?)
    }

    fn owner(&mut self) -> Parsed<i64> {
        let value = self.value("OWNER")?;
        let digits = value.strip_prefix(b"-").unwrap_or(value);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(syntax(format!("OWNER takes a whole number, not '{}'", shown(value))));
        }
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        number.ok_or_else(|| {
            limit(format!("OWNER {} does not fit a signed 64-bit number", shown(value)))
        })
    }

    fn switch(&mut self, word: &'static str) -> Parsed<bool> {
        match self.value(word)? {
            value if value.eq_ignore_ascii_case(b"on") => Ok(true),
            value if value.eq_ignore_ascii_case(b"off") => Ok(false),
            value => Err(syntax(format!("{word} takes on or off, not '{}'", shown(value)))),
        }
    }
}

/// Parses a whole number; `None` if it does not fit 64 bits.
fn number(word: &str, value: &[u8]) -> Parsed<Option<u64>> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        let what = if matches!(word, "CURSOR" | "COUNT" | MEMBERS) {
            "a whole number"
        } else {
            "whole milliseconds"
        };
        return Err(syntax(format!("{word} takes {what}, not '{}'", shown(value))));
    }
    Ok(std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()))
}

fn lease_of(word: &str, millis: Option<u64>) -> Parsed<Lease> {
    millis.map(Duration::from_millis).and_then(Lease::new).ok_or_else(|| {
        let (least, most) = (Lease::MIN.as_millis(), Lease::MAX.as_millis());
        let hint =
            if word == "EXTEND" { "; EXTEND 0 returns the hold to the watchdog" } else { "" };
        limit(format!("{word} must be from {least} to {most} ms, a year{hint}"))
    })
}

fn bounded(word: &str, value: &[u8]) -> Parsed<Vec<u8>> {
    if value.len() > MAX_TEXT {
        let length = value.len();
        return Err(limit(format!(
            "{word} of {length} bytes is too long, the limit is {MAX_TEXT}"
        )));
    }
    Ok(value.to_vec())
}

pub(crate) fn upper(word: &[u8]) -> Word {
    let mut upper = Word::from_slice(word);
    upper.make_ascii_uppercase();
    upper
}

/// Returns a client's word for an error message: shortened and on one line.
pub(crate) fn shown(word: &[u8]) -> String {
    let cut = &word[..word.len().min(64)];
    let mut text: String = String::from_utf8_lossy(cut)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if cut.len() < word.len() {
        text.push('…');
    }
    text
}

pub(crate) fn error(text: impl Into<String>) -> Frame {
    Frame::Error(text.into())
}

fn syntax(sentence: impl std::fmt::Display) -> Frame {
    error(format!("SYNTAX {sentence}"))
}

fn limit(sentence: impl std::fmt::Display) -> Frame {
    error(format!("LIMIT {sentence}"))
}

fn usage(form: &'static str) -> Frame {
    syntax(format!("missing arguments: {form}"))
}

/// Returns exactly the error of Redis, by which client libraries detect unsupported commands.
fn unknown(args: Args<'_>) -> Frame {
    let clean = |word: &[u8], most: usize| {
        let text = String::from_utf8_lossy(&word[..word.len().min(most)]);
        text.replace(char::is_control, " ")
    };
    let mut begin = String::new();
    for word in args.from(1).iter() {
        let room = 128_usize.saturating_sub(begin.len());
        if room == 0 {
            break;
        }
        begin.push_str(&format!("'{}' ", clean(word, room)));
    }
    let word = clean(args.get(0).unwrap_or_default(), 128);
    error(format!("ERR unknown command '{word}', with args beginning with: {begin}"))
}

#[cfg(test)]
mod tests;
