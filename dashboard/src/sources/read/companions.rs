//! Companion keys of a lock: a fair lock's queue and deadlines, a fenced lock's token, readers' markers.
//!
//! They are read in the same transaction as the lock, and in bounded number. A queue's entries can have any length, so
//! they are read only after the queue's memory use.

use std::time::Duration;

use redis::{Cmd, Value, cmd};
use redisson::{HolderId, LockName, keys};

use super::call::{Caller, ReadError, command, send};
use super::reply::{integer, is_list, signed, strings};
use crate::model::types::{Companions, KnownParts, Marker, Queue, QueueEntry, Token};

/// The maximum number of queue entries that are read.
pub const MAX_QUEUE: usize = 64;
/// The maximum number of markers in one reading.
const MAX_MARKERS: usize = 256;
/// The markers read for a reader whose count is unknown, or large.
const MARKERS_EACH: i64 = 4;
/// The largest average size at which a queue's entries are read, in bytes.
const ENTRY_BYTES: u64 = 512;
/// The size of the key itself, in bytes.
const KEY_BYTES: u64 = 8_192;

/// The part of a queue that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueRead {
    /// Only the type of its key, which shows whether it exists.
    Type,
    Length,
    Front,
}

/// The companions to read for one lock.
#[derive(Debug)]
pub(super) struct CompanionRead {
    queue: QueueRead,
    /// True if a queue exists, or deadlines without one.
    is_queued: bool,
    waiting: Vec<HolderId>,
    readers: Vec<(HolderId, i64)>,
    token: bool,
    /// True if a token exists.
    is_fenced: bool,
    /// The server's clock, in milliseconds since 1970.
    clock: u64,
}

/// A further read that the replies make necessary.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FollowUpRead {
    /// A queue or deadlines exist, so their size has to be read first.
    Queue,
    Waiting(Vec<HolderId>),
}

impl CompanionRead {
    pub(super) fn new(known: &KnownParts, clock: u64) -> Self {
        let queue = if known.waiting.is_empty() { QueueRead::Type } else { QueueRead::Front };
        Self {
            queue,
            is_queued: !known.waiting.is_empty(),
            waiting: known.waiting.clone(),
            readers: known.readers.clone(),
            token: known.token,
            is_fenced: known.fenced,
            clock,
        }
    }

    /// Adds the markers of the readers among the lock's fields.
    pub(super) fn add_readers(&mut self, fields: &[Vec<u8>]) {
        if !fields.iter().any(|field| field == redisson::shape::MODE_FIELD) {
            return;
        }
        let readers = fields.iter().filter_map(|field| HolderId::parse(field));
        for id in readers.filter(|id| !id.write) {
            if !self.readers.iter().any(|(known, _)| *known == id) {
                self.readers.push((id, MARKERS_EACH));
            }
        }
    }

    /// Returns the keys whose absence shows that there are no companions, or `None` if some are known.
    pub(super) fn keys_if_unknown(&self, name: &LockName) -> Option<Vec<Vec<u8>>> {
        let is_unknown = self.queue == QueueRead::Type
            && !self.is_queued
            && !self.is_fenced
            && self.readers.is_empty();
        let token = self.token.then(|| keys::token(name));
        is_unknown.then(|| std::iter::once(keys::queue(name)).chain(token).collect())
    }

    /// Returns the companions if these keys are absent.
    pub(super) fn absent(&self) -> Companions {
        let token = if self.token { Token::Absent } else { Token::NotRead };
        Companions { token, ..Companions::default() }
    }

    /// Records that a queue or deadlines exist, even if the lock does not.
    pub(super) fn expect_queue(&mut self) {
        self.is_queued = true;
    }

    /// Records that a queue exists, which may be read or only counted.
    pub(super) fn set_queue(&mut self, may_be_read: bool) {
        self.is_queued = true;
        self.queue = if may_be_read { QueueRead::Front } else { QueueRead::Length };
    }

    pub(super) fn set_waiting(&mut self, waiting: Vec<HolderId>) {
        self.waiting = waiting;
    }

    /// Returns the known parts, for a read on another node.
    pub(super) fn known(&self, fields: Vec<Vec<u8>>) -> KnownParts {
        let (waiting, readers) = (self.waiting.clone(), self.readers.clone());
        let (token, fenced) = (self.token, self.is_fenced);
        KnownParts { fields, settled: false, waiting, readers, token, fenced, revalidate: None }
    }

    /// Returns the numbers of a reader's markers to read: those of its newest holds, which expire last.
    fn numbers(&self, count: i64) -> impl Iterator<Item = u32> + use<> {
        let each = MAX_MARKERS / self.readers.len().max(1);
        let each = MARKERS_EACH.min(i64::try_from(each).unwrap_or(MARKERS_EACH)).max(1);
        let newest = count.clamp(1, i64::from(u32::MAX));
        ((newest - each).max(0) + 1..=newest).filter_map(|n| u32::try_from(n).ok())
    }

    fn requested_readers(&self) -> impl Iterator<Item = &(HolderId, i64)> {
        self.readers.iter().take(MAX_MARKERS)
    }

    pub(super) fn commands(&self, name: &LockName) -> Vec<Cmd> {
        let (queue, deadlines) = (keys::queue(name), keys::deadlines(name));
        let mut commands = vec![command("TYPE", &queue)];
        if self.queue != QueueRead::Type {
            commands.push(command("LLEN", &queue));
            commands.push(command("ZCARD", &deadlines));
            let mut passed = command("ZCOUNT", &deadlines);
            passed.arg("-inf").arg(self.clock);
            commands.push(passed);
        }
        if self.queue == QueueRead::Front {
            let mut front = command("LRANGE", &queue);
            front.arg(0).arg(MAX_QUEUE - 1);
            commands.push(front);
            if !self.waiting.is_empty() {
                let mut scores = command("ZMSCORE", &deadlines);
                for id in &self.waiting {
                    scores.arg(id.to_string());
                }
                commands.push(scores);
            }
        }
        if self.token {
            let mut token = command("GETRANGE", &keys::token(name));
            token.arg(0).arg(20);
            commands.push(token);
        }
        for (id, count) in self.requested_readers() {
            let markers = keys::read_marker_prefix(name, id);
            for n in self.numbers(*count) {
                let marker = [&markers, format!(":{n}").as_bytes()].concat();
                commands.push(command("PTTL", &marker));
            }
        }
        commands
    }

    /// Parses the replies to these commands. A key of another type than the companion's counts as absent.
    pub(super) fn read(
        &self,
        results: &mut impl Iterator<Item = Value>,
        counts: &[redisson::shape::Holder],
    ) -> Result<(Companions, Option<FollowUpRead>), ReadError> {
        let mut next = || results.next().ok_or(ReadError::UnexpectedReply("EXEC"));
        let mut more = None;
        let is_list = is_list(&Ok(next()?));
        let mut queue = None;
        if self.queue == QueueRead::Type {
            if is_list || self.is_queued {
                more = Some(FollowUpRead::Queue);
            }
        } else {
            let len = integer(&next()?).unwrap_or(0);
            let deadlines = integer(&next()?).unwrap_or(0);
            let passed = integer(&next()?).unwrap_or(0);
            let mut front = Vec::new();
            if self.queue == QueueRead::Front {
                let members = strings(&next()?).unwrap_or_default();
                let scores = if self.waiting.is_empty() { Vec::new() } else { doubles(&next()?) };
                let ids: Vec<HolderId> =
                    members.iter().filter_map(|member| HolderId::parse(member)).collect();
                let deadline = |id: &HolderId| {
                    let known = self.waiting.iter().position(|waiting| waiting == id)?;
                    scores.get(known).copied().flatten()
                };
                front =
                    ids.iter().map(|id| QueueEntry { id: *id, deadline: deadline(id) }).collect();
                if ids.iter().any(|id| !self.waiting.contains(id)) {
                    more = Some(FollowUpRead::Waiting(ids));
                }
            }
            if len > 0 || deadlines > 0 {
                queue = Some(Queue { len, front, deadlines, passed });
            }
        }
        let token = match self.token.then(&mut next).transpose()? {
            None => Token::NotRead,
            Some(Value::BulkString(digits)) => std::str::from_utf8(&digits)
                .ok()
                .and_then(|digits| digits.parse().ok())
                .map_or(Token::Absent, Token::Value),
            Some(_) => Token::Absent,
        };
        let mut markers = Vec::new();
        // Readers that no longer hold the lock may have left markers behind.
        for (id, expected) in self.requested_readers() {
            let mut found: Option<Marker> = None;
            for _ in self.numbers(*expected) {
                found = longest(found, signed(&next()?));
            }
            let count = counts.iter().find(|holder| holder.id == *id).map(|holder| holder.count);
            match (found, count) {
                (Some(marker), _) => markers.push((*id, marker)),
                // With more holds than expected, the markers that were read may just be old.
                (None, Some(count)) if count > *expected => {}
                (None, _) => markers.push((*id, Marker::Missing)),
            }
        }
        Ok((Companions { queue, token, markers }, more))
    }
}

fn longest(found: Option<Marker>, pttl: Option<i64>) -> Option<Marker> {
    match (found, pttl) {
        (Some(Marker::Persistent), _) | (_, Some(-1)) => Some(Marker::Persistent),
        (found, Some(ms)) if ms >= 0 => {
            let left = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
            match found {
                Some(Marker::Expires(longest)) if longest > left => found,
                _ => Some(Marker::Expires(left)),
            }
        }
        (found, _) => found,
    }
}

/// Parses scores, which RESP2 sends as text. Deadlines are whole milliseconds.
fn doubles(value: &Value) -> Vec<Option<u64>> {
    let Value::Array(values) = value else { return Vec::new() };
    let score = |value: &Value| {
        let score = match value {
            Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<f64>().ok()?,
            Value::Double(score) => *score,
            _ => return None,
        };
        // Anything outside the range of instants is not a deadline.
        (0.0..=9e15).contains(&score).then(|| format!("{score:.0}").parse().ok()).flatten()
    };
    values.iter().map(score).collect()
}

/// Checks whether queues may be read: by their memory, their entries must have about a holder id's size.
pub(super) async fn readable(
    caller: &mut impl Caller,
    names: &[LockName],
) -> Result<Vec<bool>, ReadError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut commands = Vec::with_capacity(names.len() * 2);
    for name in names {
        let queue = keys::queue(name);
        commands.push(command("LLEN", &queue));
        let mut usage = cmd("MEMORY");
        usage.arg("USAGE").arg(&queue).arg("SAMPLES").arg(MAX_QUEUE);
        commands.push(usage);
    }
    let (_, replies) = send(caller, commands).await?;
    let mut replies = replies.into_iter();
    let mut readable = Vec::with_capacity(names.len());
    for _ in names {
        let mut next = || replies.next().ok_or(ReadError::UnexpectedReply("MEMORY USAGE"));
        let (length, usage) = (next()?, next()?);
        let number = |reply: Result<Value, _>| reply.ok().as_ref().and_then(integer);
        let fits = match (number(length), number(usage)) {
            (Some(length), Some(usage)) => usage <= KEY_BYTES + length.saturating_mul(ENTRY_BYTES),
            _ => false,
        };
        readable.push(fits);
    }
    Ok(readable)
}

#[cfg(test)]
mod tests {
    use redisson::ClientId;
    use redisson::shape::Holder;

    use super::*;

    fn id(thread: i64) -> HolderId {
        HolderId::new(ClientId::from_random([7; 16]), thread)
    }

    fn name() -> LockName {
        LockName::new(&b"a"[..]).unwrap()
    }

    fn read(
        plan: &CompanionRead,
        replies: Vec<Value>,
        counts: &[Holder],
    ) -> (Companions, Option<FollowUpRead>) {
        assert_eq!(plan.commands(&name()).len(), replies.len());
        let mut replies = replies.into_iter();
        let read = plan.read(&mut replies, counts).unwrap();
        assert_eq!(replies.next(), None, "every reply is used");
        read
    }

    fn list() -> Value {
        Value::SimpleString("list".into())
    }

    fn text(text: impl Into<String>) -> Value {
        Value::BulkString(text.into().into_bytes())
    }

    #[test]
    fn a_queue_is_checked_then_read_then_its_deadlines() {
        let mut read_plan = CompanionRead::new(&KnownParts::default(), 5);
        assert_eq!(
            read(&read_plan, vec![list()], &[]),
            (Companions::default(), Some(FollowUpRead::Queue))
        );
        read_plan.set_queue(true);
        let front = Value::Array(vec![
            text(id(1).to_string()),
            text("unexpected"),
            text(id(2).to_string()),
        ]);
        let (companions, more) = read(
            &read_plan,
            vec![list(), Value::Int(3), Value::Int(2), Value::Int(1), front.clone()],
            &[],
        );
        assert_eq!(companions.queue.unwrap().len, 3);
        assert_eq!(more, Some(FollowUpRead::Waiting(vec![id(1), id(2)])));
        read_plan.set_waiting(vec![id(1), id(2)]);
        let scores = Value::Array(vec![text("1795219200123"), Value::Nil]);
        let replies = vec![list(), Value::Int(3), Value::Int(2), Value::Int(1), front, scores];
        let (companions, more) = read(&read_plan, replies, &[]);
        let deadlines: Vec<_> =
            companions.queue.unwrap().front.iter().map(|entry| entry.deadline).collect();
        assert_eq!((deadlines, more), (vec![Some(1_795_219_200_123), None], None));
    }

    #[test]
    fn the_keys_of_unknown_companions_are_those_of_plain_locks() {
        let keys = |known: &KnownParts| CompanionRead::new(known, 0).keys_if_unknown(&name());
        let plain = KnownParts { token: true, ..KnownParts::default() };
        assert_eq!(keys(&plain), Some(vec![keys::queue(&name()), keys::token(&name())]));
        assert_eq!(keys(&KnownParts::default()), Some(vec![keys::queue(&name())]));
        assert_eq!(keys(&KnownParts { fenced: true, ..plain.clone() }), None);
        assert_eq!(keys(&KnownParts { waiting: vec![id(1)], ..plain.clone() }), None);
        assert_eq!(keys(&KnownParts { readers: vec![(id(1), 1)], ..plain }), None);
    }

    #[test]
    fn a_reader_is_alive_while_any_of_its_markers_is() {
        let holders = [1, 2, 3].map(|n| Holder { id: id(n), count: n });
        let readers = holders.iter().map(|holder| (holder.id, holder.count)).collect();
        let read_plan =
            CompanionRead::new(&KnownParts { readers, token: true, ..KnownParts::default() }, 0);
        let replies = [-2, 500, -2, -2, -2, -2].map(Value::Int);
        let head = [Value::SimpleString("none".into()), text("")];
        let (companions, _) = read(&read_plan, head.into_iter().chain(replies).collect(), &holders);
        assert_eq!(companions.token, Token::Absent);
        let left = Marker::Expires(Duration::from_millis(500));
        let expected = [(id(1), Marker::Missing), (id(2), left), (id(3), Marker::Missing)];
        assert_eq!(companions.markers, expected);
    }

    #[test]
    fn a_reader_with_more_holds_than_markers_read_is_not_gone() {
        let read_plan = CompanionRead::new(
            &KnownParts { readers: vec![(id(1), 1)], ..KnownParts::default() },
            0,
        );
        let replies = vec![Value::SimpleString("none".into()), Value::Int(-2)];
        let (companions, _) = read(&read_plan, replies, &[Holder { id: id(1), count: 2 }]);
        assert_eq!(companions.markers, []);
    }

    #[test]
    fn a_thousand_readers_cost_at_most_a_few_hundred_commands() {
        let readers = (0..1_000).map(|n| (id(n), 3)).collect();
        let read_plan = CompanionRead::new(&KnownParts { readers, ..KnownParts::default() }, 0);
        assert!(read_plan.commands(&name()).len() <= MAX_MARKERS + 1);
    }
}
