//! Redis commands that affect locks.

/// A Redis command that may affect a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Eval,
    EvalSha,
    Fcall,
    Exists,
    Del,
    HGet,
    HSet,
    HDel,
    HExists,
    HIncrBy,
    Expire,
    ExpireAt,
    PExpire,
    PExpireAt,
    PTtl,
    Type,
    HLen,
    Publish,
    Get,
    Set,
    ZAdd,
    ZRem,
    RPush,
    LPop,
    LRem,
    Rename,
    Subscribe,
    Unsubscribe,
    Other,
}

impl Command {
    /// Parses a name, ignoring case.
    pub(super) fn parse(word: &[u8]) -> Self {
        let mut lower = [0; 12];
        let Some(lower) = lower.get_mut(..word.len()) else { return Self::Other };
        lower.copy_from_slice(word);
        lower.make_ascii_lowercase();
        match &*lower {
            b"eval" => Self::Eval,
            b"evalsha" => Self::EvalSha,
            b"fcall" => Self::Fcall,
            b"exists" => Self::Exists,
            b"del" | b"unlink" => Self::Del,
            b"hget" => Self::HGet,
            b"hset" | b"hmset" => Self::HSet,
            b"hdel" => Self::HDel,
            b"hexists" => Self::HExists,
            b"hincrby" => Self::HIncrBy,
            b"expire" => Self::Expire,
            b"expireat" => Self::ExpireAt,
            b"pexpire" => Self::PExpire,
            b"pexpireat" => Self::PExpireAt,
            b"pttl" => Self::PTtl,
            b"type" => Self::Type,
            b"hlen" => Self::HLen,
            b"publish" | b"spublish" => Self::Publish,
            b"get" => Self::Get,
            b"set" => Self::Set,
            b"zadd" => Self::ZAdd,
            b"zrem" => Self::ZRem,
            b"rpush" => Self::RPush,
            b"lpop" => Self::LPop,
            b"lrem" => Self::LRem,
            b"rename" => Self::Rename,
            b"subscribe" | b"ssubscribe" => Self::Subscribe,
            b"unsubscribe" | b"sunsubscribe" => Self::Unsubscribe,
            _ => Self::Other,
        }
    }
}
