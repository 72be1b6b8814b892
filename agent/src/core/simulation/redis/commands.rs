//! The Redis commands that scripts call, with the replies, errors and memory rules of Redis.

use std::str::FromStr;

use super::{Content, Entry, Fields, List, Redis, Scores, Stored};

/// A command's reply.
#[derive(Debug)]
pub(super) enum Reply {
    Nil,
    Int(i64),
    Bulk(String),
    Status(&'static str),
    Array(Vec<Self>),
}

/// An error reply.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refusal {
    TooFewReplicas,
    OutOfMemory,
    WrongType,
    NotAnInteger,
    NotAFloat,
}

impl Refusal {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::TooFewReplicas => "NOREPLICAS Not enough good replicas to write.",
            Self::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
            Self::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::NotAnInteger => "ERR value is not an integer or out of range",
            Self::NotAFloat => "ERR value is not a valid float",
        }
    }
}

type Outcome<T = Reply> = Result<T, Refusal>;

/// The commands of one running script.
#[derive(Debug, Default)]
pub(super) struct Commands {
    pub(super) redis: Redis,
    /// A write command has run. From then on Redis accepts all commands, so that the script can finish.
    wrote: bool,
    pub(super) published: Vec<String>,
    /// The last error that `redis.call` raised.
    pub(super) raised: Option<Refusal>,
}

/// A command's use of memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    /// A write that never needs memory.
    Shrink,
    /// A write that may need memory, flagged `denyoom`.
    Grow,
}

impl Commands {
    pub(super) fn new(redis: Redis) -> Self {
        Self { redis, ..Self::default() }
    }

    /// Runs a command. The first word is its name, in capital letters.
    ///
    /// # Panics
    ///
    /// Panics on a command, or a form of one, that the model lacks.
    pub(super) fn run(&mut self, words: &[String]) -> Outcome {
        use Access::{Grow, Read, Shrink};
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let access = match words[0] {
            "HSET" | "INCR" | "RPUSH" | "SET" | "ZADD" => Grow,
            "DEL" | "HDEL" | "LPOP" | "LREM" | "PEXPIRE" | "ZREM" => Shrink,
            _ => Read,
        };
        if access != Read && self.redis.read_only && !self.wrote {
            return Err(Refusal::TooFewReplicas);
        }
        if access == Grow && self.redis.full && !self.wrote {
            return Err(Refusal::OutOfMemory);
        }
        // Even if it changes nothing or fails.
        self.wrote |= access != Read;
        match words[..] {
            ["EXISTS", ref keys @ ..] => {
                Ok(count(keys.iter().filter(|key| self.redis.get(key).is_some()).count()))
            }
            ["TYPE", key] => Ok(Reply::Status(
                self.redis.get(key).map_or("none", |entry| entry.content.type_name()),
            )),
            ["PTTL", key] => Ok(Reply::Int(self.pttl(key))),
            ["PEXPIRE", key, ms] => self.pexpire(key, ms, false),
            ["PEXPIRE", key, ms, "GT"] => self.pexpire(key, ms, true),
            ["DEL", ref keys @ ..] => {
                Ok(count(keys.iter().filter(|key| self.redis.keys.remove(**key).is_some()).count()))
            }
            ["TIME"] => {
                let ms = self.redis.now_ms;
                let parts = [ms / 1000, ms % 1000 * 1000];
                Ok(Reply::Array(parts.map(|part| Reply::Bulk(part.to_string())).into()))
            }
            ["PUBLISH", channel, _] => {
                self.published.push(channel.to_owned());
                Ok(count(self.subscribers(channel)))
            }
            // Nobody is subscribed to shard channels.
            ["SPUBLISH", _, _] => Ok(Reply::Int(0)),
            ["PUBSUB", "NUMSUB", channel] => {
                let channel_name = Reply::Bulk(channel.to_owned());
                Ok(Reply::Array(vec![channel_name, count(self.subscribers(channel))]))
            }

            ["HEXISTS", key, field] => Ok(flag(self.field(key, field)?.is_some())),
            ["HGET", key, field] => Ok(bulk(self.field(key, field)?)),
            ["HSTRLEN", key, field] => Ok(count(self.field(key, field)?.map_or(0, str::len))),
            ["HLEN", key] => Ok(count(self.read::<Fields>(key)?.map_or(0, Vec::len))),
            ["HKEYS", key] => {
                let fields = self.read::<Fields>(key)?.into_iter().flatten();
                Ok(Reply::Array(fields.map(|(name, _)| Reply::Bulk(name.clone())).collect()))
            }
            ["HSET", key, ref pairs @ ..] => self.change(key, |fields: &mut Fields| {
                let before = fields.len();
                for pair in pairs.chunks_exact(2) {
                    match fields.iter_mut().find(|(name, _)| name == pair[0]) {
                        Some((_, value)) => pair[1].clone_into(value),
                        None => fields.push((pair[0].to_owned(), pair[1].to_owned())),
                    }
                }
                count(fields.len() - before)
            }),
            ["HDEL", key, field] => self.change(key, |fields: &mut Fields| {
                let index = fields.iter().position(|(name, _)| name == field);
                flag(index.map(|index| fields.remove(index)).is_some())
            }),

            ["GET", key] => Ok(bulk(self.read::<String>(key)?.map(String::as_str))),
            ["STRLEN", key] => Ok(count(self.read::<String>(key)?.map_or(0, String::len))),
            ["SET", key, value] => Ok(self.set(key, value, None)),
            ["SET", key, value, "PX", ms] => {
                let ms = integer::<u64>(ms)?;
                Ok(self.set(key, value, Some(self.redis.now_ms + ms)))
            }
            ["INCR", key] => {
                let value = self.read::<String>(key)?.map_or(Ok(0), |text| integer::<i64>(text))?;
                let next = value.checked_add(1).ok_or(Refusal::NotAnInteger)?;
                self.change(key, |text: &mut String| {
                    *text = next.to_string();
                    Reply::Int(next)
                })
            }

            ["LLEN", key] => Ok(count(self.read::<List>(key)?.map_or(0, List::len))),
            ["LINDEX", key, index] => {
                let index = integer::<i64>(index)?;
                let list = self.read::<List>(key)?;
                let item = list.and_then(|list| list.get(from_start(index, list.len())?));
                Ok(bulk(item.map(String::as_str)))
            }
            ["LPOS", key, item] => {
                let list = self.read::<List>(key)?;
                let index = list.and_then(|list| list.iter().position(|other| other == item));
                Ok(index.map_or(Reply::Nil, count))
            }
            ["LRANGE", key, first, last] => {
                let (first, last) = (integer::<i64>(first)?, integer::<i64>(last)?);
                let Some(list) = self.read::<List>(key)? else { return Ok(Reply::Array(vec![])) };
                let first = from_start(first, list.len()).unwrap_or(0);
                let end = from_start(last, list.len()).map_or(0, |last| last + 1);
                let items = list.iter().take(end).skip(first);
                Ok(Reply::Array(items.cloned().map(Reply::Bulk).collect()))
            }
            ["RPUSH", key, item] => self.change(key, |items: &mut List| {
                items.push_back(item.to_owned());
                count(items.len())
            }),
            ["LPOP", key] => self
                .change(key, |items: &mut List| items.pop_front().map_or(Reply::Nil, Reply::Bulk)),
            ["LREM", key, "0", item] => self.change(key, |items: &mut List| {
                let before = items.len();
                items.retain(|other| other != item);
                count(before - items.len())
            }),

            ["ZSCORE", key, member] => {
                let score = self.read::<Scores>(key)?.and_then(|scores| scores.get(member));
                Ok(score.map_or(Reply::Nil, |score| Reply::Bulk(score.to_string())))
            }
            ["ZADD", key, score, member] => {
                let score = float(score)?;
                self.change(key, |scores: &mut Scores| {
                    flag(scores.insert(member.to_owned(), score).is_none())
                })
            }
            ["ZREM", key, member] => {
                self.change(key, |scores: &mut Scores| flag(scores.remove(member).is_some()))
            }
            ref other => panic!("the model of Redis lacks the command {other:?}"),
        }
    }

    /// Returns a key's value, if the key exists.
    fn read<T: Stored>(&self, key: &str) -> Outcome<Option<&T>> {
        let entry = self.redis.get(key);
        entry.map(|entry| T::of(&entry.content).ok_or(Refusal::WrongType)).transpose()
    }

    fn field(&self, key: &str, field: &str) -> Outcome<Option<&str>> {
        let mut fields = self.read::<Fields>(key)?.into_iter().flatten();
        Ok(fields.find(|(name, _)| name == field).map(|(_, value)| value.as_str()))
    }

    /// Changes a key's value, an empty one if the key is missing. A key whose value is empty afterwards is removed.
    fn change<T: Stored>(&mut self, key: &str, change: impl FnOnce(&mut T) -> Reply) -> Outcome {
        let new = || Entry { content: T::default().into(), expires_ms: None };
        let entry = self.redis.keys.entry(key.to_owned()).or_insert_with(new);
        let reply = change(T::of_mut(&mut entry.content).ok_or(Refusal::WrongType)?);
        if entry.content.is_empty() {
            self.redis.keys.remove(key);
        }
        Ok(reply)
    }

    fn subscribers(&self, channel: &str) -> usize {
        self.redis.subscribers.get(channel).copied().unwrap_or(0)
    }

    fn set(&mut self, key: &str, value: &str, expires_ms: Option<u64>) -> Reply {
        let entry = Entry { content: Content::Text(value.to_owned()), expires_ms };
        self.redis.keys.insert(key.to_owned(), entry);
        Reply::Status("OK")
    }

    fn pttl(&self, key: &str) -> i64 {
        let Some(entry) = self.redis.get(key) else { return -2 };
        entry.expires_ms.map_or(-1, |at| {
            i64::try_from(at.saturating_sub(self.redis.now_ms)).expect("a TTL in milliseconds")
        })
    }

    /// Sets a TTL; with `only_longer`, only if that is longer than the one there.
    fn pexpire(&mut self, key: &str, ms: &str, only_longer: bool) -> Outcome {
        let ms = integer::<i64>(ms)?;
        let at = self.redis.now_ms.saturating_add_signed(ms);
        let Some(entry) = self.redis.keys.get_mut(key) else { return Ok(flag(false)) };
        if only_longer && entry.expires_ms.is_none_or(|expires| at <= expires) {
            return Ok(flag(false));
        }
        entry.expires_ms = Some(at);
        if ms <= 0 {
            self.redis.keys.remove(key);
        }
        Ok(flag(true))
    }
}

fn flag(is: bool) -> Reply {
    Reply::Int(is.into())
}

fn count(count: usize) -> Reply {
    Reply::Int(i64::try_from(count).expect("a small count"))
}

fn bulk(text: Option<&str>) -> Reply {
    text.map_or(Reply::Nil, |text| Reply::Bulk(text.to_owned()))
}

fn integer<T: FromStr>(text: &str) -> Outcome<T> {
    text.parse().map_err(|_| Refusal::NotAnInteger)
}

fn float(text: &str) -> Outcome<f64> {
    text.parse().map_err(|_| Refusal::NotAFloat)
}

/// Converts an index, which counts from the end if it is negative, to one from the start.
fn from_start(index: i64, len: usize) -> Option<usize> {
    let start = if index < 0 { len } else { 0 };
    start.checked_add_signed(isize::try_from(index).ok()?)
}
