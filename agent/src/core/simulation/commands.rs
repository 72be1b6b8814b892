//! The commands that scripts use, as far as they use them.

use std::collections::{BTreeMap, VecDeque};

use super::redis::{Content, Redis};

/// Why Redis ended a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// A command that may need memory, in a script that has not written yet, on a full server.
    Full,
    /// A command on a key of another type.
    WrongType,
    /// INCR of what is no number, or too high.
    NoNumber,
}

/// One script at work.
pub(super) struct Run<'a> {
    redis: &'a mut Redis,
    /// Once a script has written, a full Redis lets everything pass, so that it can end what it began.
    wrote: bool,
    pub(super) published: Vec<String>,
}

impl<'a> Run<'a> {
    pub(super) fn new(redis: &'a mut Redis) -> Self {
        Self { redis, wrote: false, published: Vec::new() }
    }

    fn hash(&self, key: &str) -> Result<&[(String, String)], Stop> {
        match self.redis.get(key).map(|entry| &entry.content) {
            None => Ok(&[]),
            Some(Content::Hash(fields)) => Ok(fields),
            Some(_) => Err(Stop::WrongType),
        }
    }

    pub(super) fn type_of(&self, key: &str) -> &'static str {
        self.redis.get(key).map_or("none", |entry| entry.content.type_name())
    }

    pub(super) fn exists(&self, key: &str) -> bool {
        self.redis.get(key).is_some()
    }

    pub(super) fn hexists(&self, key: &str, field: &str) -> Result<bool, Stop> {
        Ok(self.hash(key)?.iter().any(|(name, _)| name == field))
    }

    pub(super) fn hget(&self, key: &str, field: &str) -> Result<Option<String>, Stop> {
        Ok(self.hash(key)?.iter().find(|(name, _)| name == field).map(|(_, value)| value.clone()))
    }

    pub(super) fn hkeys(&self, key: &str) -> Result<Vec<String>, Stop> {
        Ok(self.hash(key)?.iter().map(|(name, _)| name.clone()).collect())
    }

    pub(super) fn hset(&mut self, key: &str, field: &str, value: &str) -> Result<(), Stop> {
        if self.redis.full && !self.wrote {
            return Err(Stop::Full);
        }
        self.hash(key)?;
        self.wrote = true;
        let entry = self.redis.entry(key, Content::Hash(Vec::new()));
        if let Content::Hash(fields) = &mut entry.content {
            match fields.iter_mut().find(|(name, _)| name == field) {
                Some((_, had)) => value.clone_into(had),
                None => fields.push((field.to_owned(), value.to_owned())),
            }
        }
        Ok(())
    }

    /// Whether it was there.
    pub(super) fn hdel(&mut self, key: &str, field: &str) -> Result<bool, Stop> {
        let had = self.hexists(key, field)?;
        self.redis.change(key, |entry| {
            if let Content::Hash(fields) = &mut entry.content {
                fields.retain(|(name, _)| name != field);
            }
        });
        self.wrote |= had;
        Ok(had)
    }

    pub(super) fn del(&mut self, key: &str) {
        self.wrote |= self.redis.keys_mut().remove(key).is_some();
    }

    /// A string, if one is there.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        match self.redis.get(key).map(|entry| &entry.content) {
            Some(Content::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// As INCR, on what is surely a counter or nothing.
    pub(super) fn incr(&mut self, key: &str) -> Result<(), Stop> {
        let had = self.text(key).map_or(Some(0), |had| had.parse::<i64>().ok());
        if self.redis.full && !self.wrote {
            return Err(Stop::Full);
        }
        let next = had.and_then(|had| had.checked_add(1)).ok_or(Stop::NoNumber)?;
        self.set(key, &next.to_string(), true)
    }

    /// As SET, which drops a time to live unless told otherwise.
    pub(super) fn set(&mut self, key: &str, value: &str, keep_ttl: bool) -> Result<(), Stop> {
        if self.redis.full && !self.wrote {
            return Err(Stop::Full);
        }
        self.wrote = true;
        let entry = self.redis.entry(key, Content::Text(String::new()));
        entry.content = Content::Text(value.to_owned());
        if !keep_ttl {
            entry.expires_ms = None;
        }
        Ok(())
    }

    /// As PTTL: −2 without a key, −1 without a time to live.
    pub(super) fn pttl(&self, key: &str) -> i64 {
        let Some(entry) = self.redis.get(key) else { return -2 };
        entry.expires_ms.map_or(-1, |at| {
            i64::try_from(at.saturating_sub(self.redis.now_ms())).expect("a time to live")
        })
    }

    pub(super) fn pexpire(&mut self, key: &str, ms: i64) {
        let at = self.redis.now_ms() + u64::try_from(ms).expect("leases are positive");
        self.wrote |= self.redis.change(key, |entry| entry.expires_ms = Some(at)).is_some();
    }

    pub(super) fn publish(&mut self, channel: &str) {
        self.published.push(channel.to_owned());
    }

    pub(super) fn subscribers(&self, channel: &str) -> usize {
        self.redis.subscribers.get(channel).copied().unwrap_or(0)
    }

    pub(super) fn list(&self, key: &str) -> Vec<String> {
        match self.redis.get(key).map(|entry| &entry.content) {
            Some(Content::List(items)) => items.iter().cloned().collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn lpop(&mut self, key: &str) {
        let popped = self.redis.change(key, |entry| match &mut entry.content {
            Content::List(items) => items.pop_front(),
            _ => None,
        });
        self.wrote |= popped.flatten().is_some();
    }

    pub(super) fn rpush(&mut self, key: &str, item: &str) -> Result<(), Stop> {
        if self.redis.full && !self.wrote {
            return Err(Stop::Full);
        }
        self.wrote = true;
        let entry = self.redis.entry(key, Content::List(VecDeque::new()));
        if let Content::List(items) = &mut entry.content {
            items.push_back(item.to_owned());
        }
        Ok(())
    }

    /// As LREM of all.
    pub(super) fn lrem(&mut self, key: &str, item: &str) {
        let before = self.list(key).len();
        self.redis.change(key, |entry| {
            if let Content::List(items) = &mut entry.content {
                items.retain(|had| had != item);
            }
        });
        self.wrote |= self.list(key).len() < before;
    }

    pub(super) fn zadd(&mut self, key: &str, score: f64, member: &str) -> Result<(), Stop> {
        if self.redis.full && !self.wrote {
            return Err(Stop::Full);
        }
        self.wrote = true;
        let entry = self.redis.entry(key, Content::Scores(BTreeMap::new()));
        if let Content::Scores(scores) = &mut entry.content {
            scores.insert(member.to_owned(), score);
        }
        Ok(())
    }

    pub(super) fn zrem(&mut self, key: &str, member: &str) {
        let removed = self.redis.change(key, |entry| match &mut entry.content {
            Content::Scores(scores) => scores.remove(member),
            _ => None,
        });
        self.wrote |= removed.flatten().is_some();
    }

    pub(super) fn zscore(&self, key: &str, member: &str) -> Option<f64> {
        let none = BTreeMap::new();
        let scores = match self.redis.get(key).map(|entry| &entry.content) {
            Some(Content::Scores(scores)) => scores,
            _ => &none,
        };
        scores.get(member).copied()
    }

    #[expect(clippy::cast_precision_loss, reason = "epoch milliseconds fit a double exactly")]
    pub(super) fn now_ms_f64(&self) -> f64 {
        self.redis.now_ms() as f64
    }
}
