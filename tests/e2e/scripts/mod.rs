//! Each script against a real Redis: once, repeated, late, and on keys of another type.

mod acquire;
mod batch;
mod fair;
mod fenced;
mod force_release;
mod full;
mod hand_over;
mod monitor;
mod moving;
mod names;
mod read_write;
mod refusals;
mod release;
mod renew;
mod servers;
mod show;

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use anyhow::{Result, bail};
use harness::{Client, RedisServer, Reply};
use redisson::script::{
    AcquireOutcome, Call, ForceReleaseOutcome, HandOverOutcome, LockDetails, MissingMarkers,
    Publish, ReleaseOutcome, RenewOutcome, Value, parse_acquire, parse_force_release,
    parse_hand_over, parse_release, parse_renew, parse_show,
};
use redisson::{ClientId, HolderId, Lease, LockName, keys, script, shape};

/// A grant without a token.
const GRANTED: AcquireOutcome = AcquireOutcome::Granted { token: None };

/// A Redis server with the scripts as methods.
struct Bench {
    redis: RedisServer,
    client: Client,
}

fn lease(ms: u64) -> Lease {
    Lease::new(Duration::from_millis(ms)).expect("tests stay within bounds")
}

fn name(text: &str) -> LockName {
    LockName::new(text.as_bytes()).expect("tests stay within bounds")
}

/// Returns the holder of an agent's `n`-th grant.
fn ours(n: i64) -> HolderId {
    HolderId::new(ClientId::from_random([7; 16]), n)
}

/// Returns a holder of another client.
fn theirs() -> HolderId {
    HolderId::new(ClientId::from_random([9; 16]), 47)
}

fn value(reply: Reply) -> Result<Value> {
    Ok(match reply {
        Reply::Null => Value::Nil,
        Reply::Int(n) => Value::Int(n),
        Reply::Bulk(bytes) => Value::Bytes(bytes),
        Reply::Simple(text) => Value::Bytes(text.into_bytes()),
        Reply::Array(items) => Value::Array(items.into_iter().map(value).collect::<Result<_>>()?),
        Reply::Error(text) => bail!("{text}"),
        other => bail!("no script answers {other}"),
    })
}

/// Runs a script on this client.
async fn run(client: &mut Client, call: &Call) -> Result<Reply> {
    let count = call.keys.len().to_string();
    let mut args: Vec<&[u8]> = vec![b"EVAL", call.script.source.as_bytes(), count.as_bytes()];
    args.extend(call.keys.iter().chain(call.args.iter()));
    client.call_args(&args).await?.ok()
}

async fn eval(client: &mut Client, call: &Call) -> Result<Value> {
    value(run(client, call).await?)
}

/// Returns a first attempt at a fair lock that joins the queue.
fn queued(lock: &LockName, who: HolderId, ms: u64, first: HolderId) -> Call {
    let (wait, waited) = (Duration::from_secs(15), Some(Duration::ZERO));
    script::acquire_fair(lock, &who, lease(ms), wait, waited, &first, Publish::Plain)
}

impl Bench {
    async fn new() -> Result<Self> {
        let redis = RedisServer::start().await?;
        let client = redis.client().await?;
        Ok(Self { redis, client })
    }

    async fn call(&mut self, call: &Call) -> Result<Value> {
        eval(&mut self.client, call).await
    }

    /// Renews a read hold, and restores its markers.
    async fn renew_read(
        &mut self,
        lock: &LockName,
        who: HolderId,
        count: u32,
        ms: u64,
    ) -> Result<RenewOutcome> {
        self.renew_read_with(lock, who, count, ms, MissingMarkers::Restore).await
    }

    async fn renew_read_with(
        &mut self,
        lock: &LockName,
        who: HolderId,
        count: u32,
        ms: u64,
        missing: MissingMarkers,
    ) -> Result<RenewOutcome> {
        let call = script::renew_read([(lock, who)], count, Some(lease(ms)), missing);
        Ok(parse_renew(&self.call(&call).await?, 1)?[0])
    }

    async fn acquire(&mut self, name: &LockName, who: HolderId, ms: u64) -> Result<AcquireOutcome> {
        let reply = self.call(&script::acquire(name, &who, lease(ms))).await?;
        Ok(parse_acquire(&reply)?)
    }

    async fn renew(
        &mut self,
        name: &LockName,
        who: HolderId,
        count: u32,
        ms: u64,
    ) -> Result<RenewOutcome> {
        let reply = self.call(&script::renew([(name, who)], count, Some(lease(ms)))).await?;
        Ok(parse_renew(&reply, 1)?[0])
    }

    async fn release(&mut self, name: &LockName, who: HolderId) -> Result<ReleaseOutcome> {
        let reply = self.call(&script::release(name, &who, Publish::Plain)).await?;
        Ok(parse_release(&reply)?)
    }

    async fn hand_over(
        &mut self,
        name: &LockName,
        from: HolderId,
        to: HolderId,
        ms: u64,
    ) -> Result<HandOverOutcome> {
        let reply = self.call(&script::hand_over(name, &from, &to, lease(ms))).await?;
        Ok(parse_hand_over(&reply)?)
    }

    async fn forced(&mut self, call: &Call) -> Result<ForceReleaseOutcome> {
        Ok(parse_force_release(&self.call(call).await?)?)
    }

    async fn force_release(
        &mut self,
        name: &LockName,
        seen: &[shape::Holder],
    ) -> Result<ForceReleaseOutcome> {
        let hash = shape::LockHash { holders: seen.to_vec(), ..Default::default() };
        let seen = script::ExpectedLock { hash: &hash, ttl: script::ExpectedTtl::Any };
        self.forced(&script::force_release(name, seen, &[], Publish::Plain)).await
    }

    async fn show(&mut self, name: &LockName) -> Result<LockDetails> {
        Ok(parse_show(&self.call(&script::show(name)).await?)?)
    }

    /// Returns the lock's fields and values, in order.
    async fn fields(&mut self, name: &LockName) -> Result<Vec<(String, String)>> {
        let reply = self.client.call_args(&[b"HGETALL", name.as_bytes()]).await?.ok()?;
        let items = reply.items()?;
        let mut fields: Vec<_> =
            items.chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect();
        fields.sort();
        Ok(fields)
    }

    /// Asserts that `who` alone holds the lock, with a TTL above `above` and at most `at_most`.
    async fn assert_held(
        &mut self,
        name: &LockName,
        who: HolderId,
        count: u32,
        ttl: std::ops::RangeInclusive<i64>,
    ) -> Result<()> {
        assert_eq!(self.fields(name).await?, [(who.to_string(), count.to_string())]);
        let pttl = self.pttl(name).await?;
        assert!(ttl.contains(&pttl), "a TTL of {pttl} ms is not in {ttl:?}");
        Ok(())
    }

    async fn assert_free(&mut self, name: &LockName) -> Result<()> {
        assert_eq!(self.pttl(name).await?, -2, "the key is still there");
        Ok(())
    }

    async fn pttl(&mut self, name: &LockName) -> Result<i64> {
        self.client.call_args(&[b"PTTL", name.as_bytes()]).await?.int()
    }

    /// Returns every key with its content and whether it has a TTL, to detect changes.
    async fn dump(&mut self) -> Result<Vec<String>> {
        let mut dump = Vec::new();
        for key in self.client.call("KEYS *").await?.items()? {
            let key = key.bytes()?;
            let kind = self.client.call_args(&[b"TYPE".as_slice(), key]).await?.text();
            let read = if kind == "hash" { b"HGETALL".as_slice() } else { b"DUMP" };
            let content = self.client.call_args(&[read, key]).await?.ok()?;
            // Redis may reorder the fields of a hash.
            let mut content: Vec<_> = match content.items() {
                Ok(items) => items.chunks(2).map(|pair| format!("{pair:?}")).collect(),
                Err(_) => vec![content.text()],
            };
            content.sort();
            let bytes = content.concat();
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            let persistent = self.client.call_args(&[b"PTTL".as_slice(), key]).await?.int()? == -1;
            let start: String = bytes.chars().take(200).collect();
            let key = key.escape_ascii();
            dump.push(format!("{key} {kind} {persistent} {:x} {start}", hasher.finish()));
        }
        dump.sort();
        Ok(dump)
    }

    /// Creates keys that are not plain locks: three that are no hashes, then three hashes.
    async fn other_keys(&mut self) -> Result<[&'static str; 6]> {
        let holder = theirs();
        for command in [
            "SET x.string x",
            "RPUSH x.list x",
            "ZADD x.zset 1 x",
            "HSET x.alien colour red",
            &format!("HSET x.read mode read {holder} 1"),
            &format!("HSET x.write mode write {holder}:write 1"),
        ] {
            self.client.call(command).await?.ok()?;
        }
        Ok(["x.string", "x.list", "x.zset", "x.alien", "x.read", "x.write"])
    }

    /// Asserts that a call changes none of [`Self::other_keys`], with one outcome for hashes and one for the others.
    async fn leaves_other_keys<T: Debug + PartialEq>(
        &mut self,
        hash: &T,
        other: &T,
        call: impl AsyncFn(&mut Self, &LockName) -> Result<T>,
    ) -> Result<()> {
        let locks = self.other_keys().await?;
        let before = self.dump().await?;
        for (index, lock) in locks.into_iter().enumerate() {
            let expected = if index < 3 { other } else { hash };
            assert_eq!(&call(self, &name(lock)).await?, expected, "{lock}");
        }
        assert_eq!(self.dump().await?, before);
        Ok(())
    }

    /// Returns whether this lower-case command has run since the server started, in a script or directly.
    async fn ran(&mut self, command: &str) -> Result<bool> {
        let stats = self.client.call("INFO commandstats").await?.text();
        Ok(stats.contains(&format!("cmdstat_{command}:")))
    }

    /// Opens a second connection, subscribed to this channel.
    async fn subscriber(&self, channel: &[u8]) -> Result<Client> {
        let mut client = self.redis.client().await?;
        client.call_args(&[b"SUBSCRIBE", channel]).await?.ok()?;
        Ok(client)
    }
}

/// Returns the messages received on a subscription so far.
async fn messages(subscriber: &mut Client) -> Result<Vec<String>> {
    // Redis replies in order: earlier messages arrive before the reply to PING.
    subscriber.send("PING here").await?;
    let mut payloads = Vec::new();
    loop {
        let reply = subscriber.reply().await?;
        let items = reply.items()?;
        match items[0].text().as_str() {
            "message" => payloads.push(items[2].text()),
            "pong" => return Ok(payloads),
            other => bail!("unexpected {other}"),
        }
    }
}

#[tokio::test]
async fn the_digest_matches_that_of_redis() -> Result<()> {
    let mut bench = Bench::new().await?;
    for script in script::ALL {
        let sha = bench.client.call_args(&["SCRIPT", "LOAD", script.source]).await?;
        assert_eq!(sha.text(), script.sha(), "{}", script.name);
    }
    Ok(())
}
