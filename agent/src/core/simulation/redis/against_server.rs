//! Compares the model with a real server: the same random calls must give the same replies, messages and keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use harness::{Client, RedisServer, Reply};
use redisson::script::{
    self, Call, ExpectedLock, ExpectedTtl, MissingMarkers, Publish, QueueEntry, Value,
};
use redisson::shape::LockHash;
use redisson::{ClientId, HolderId, Lease, LockName, keys};

use super::super::requests::{channel, lock_name};
use super::super::rng::Rng;
use super::{Content, Entry, Redis};
use crate::core::ops::FAIR_WAIT;

const STEPS: usize = 1000;
const LOCKS: [&str; 2] = ["a", "b"];

/// A step on both sides.
enum Step {
    Script(Call),
    /// A command of another client.
    Plain(Vec<String>),
    /// Memory is full from now on, or not.
    Full(bool),
    /// No writes are taken from now on, or again.
    ReadOnly(bool),
    /// Time passes until short leases expire.
    Rest,
}

struct Pair {
    rng: Rng,
    model: Redis,
    client: Client,
    subscriber: Client,
    /// The number of steps that were not compared, since their outcome depends on the exact millisecond.
    ambiguous: usize,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn value(reply: &Reply) -> Value {
    match reply {
        Reply::Null => Value::Nil,
        Reply::Int(n) => Value::Int(*n),
        Reply::Bulk(bytes) => Value::Bytes(bytes.clone()),
        Reply::Array(items) => Value::Array(items.iter().map(value).collect()),
        other => panic!("unexpected reply {other}"),
    }
}

fn micros(reply: &Reply) -> u64 {
    let parts: Vec<u64> =
        reply.items().unwrap().iter().map(|part| part.text().parse().unwrap()).collect();
    parts[0] * 1_000_000 + parts[1]
}

/// The largest reply code or count. Larger numbers in replies are times.
const MAX_CODE: i64 = 4;

/// Compares two replies; times may differ by up to `slack` ms.
fn same(model: &Value, real: &Value, slack: u64) -> bool {
    match (model, real) {
        (Value::Array(model), Value::Array(real)) => {
            model.len() == real.len()
                && model.iter().zip(real).all(|(model, real)| same(model, real, slack))
        }
        (Value::Int(model), Value::Int(real)) if *model.min(real) > MAX_CODE => {
            model.abs_diff(*real) <= slack
        }
        (model, real) => model == real,
    }
}

impl Pair {
    async fn time(&mut self) -> u64 {
        micros(&self.client.call("TIME").await.unwrap()) / 1000
    }

    fn ours(&mut self) -> HolderId {
        let number = i64::try_from(self.rng.within(1..5)).expect("a small number");
        HolderId::new(ClientId::from_random([7; 16]), number)
    }

    fn dead_waiters(&mut self, waiter: &HolderId) -> Vec<QueueEntry> {
        let deadline_ms = self.rng.pick(&[None, Some(1), Some(9_000_000_000_000)]);
        let entry = QueueEntry { waiter: waiter.to_string().into_bytes(), deadline_ms };
        if self.rng.one_in(2) { vec![entry] } else { Vec::new() }
    }

    fn expected<'a>(&mut self, hash: &'a LockHash) -> ExpectedLock<'a> {
        let most = Duration::from_secs(30);
        let ttls = [
            ExpectedTtl::Any,
            ExpectedTtl::Endless,
            ExpectedTtl::Between(Duration::ZERO, most),
            ExpectedTtl::Between(most, 2 * most),
        ];
        ExpectedLock { hash, ttl: self.rng.pick(&ttls) }
    }

    fn step(&mut self) -> Step {
        let lock = self.rng.pick(&LOCKS);
        let name = lock_name(lock);
        let (holder, other) = (self.ours(), self.ours());
        let lease = Lease::new(Duration::from_millis(self.rng.pick(&[100, 2000, 60_000]))).unwrap();
        let wanted = (!self.rng.one_in(4)).then_some(lease);
        let count = u32::try_from(self.rng.within(1..4)).expect("a small count");
        let publish = Publish::Plain;
        let queue = text(&keys::queue(&name));
        let deadlines = text(&keys::deadlines(&name));
        let counter = text(&keys::token(&name));
        let fenced = self.rng.one_in(2);
        // Above the clock, which differs between the two.
        let least = 5_000_000_000_000_000 + self.rng.pick(&[1, 1, 7, 1_000_000]);
        let fields = self.model.fields(lock).iter();
        let hash =
            LockHash::parse(fields.map(|(field, value)| (field.as_bytes(), value.as_bytes())));
        Step::Script(match self.rng.within(0..64) {
            0..9 if fenced => script::acquire_fenced(&name, &holder, lease, least),
            0..9 => script::acquire(&name, &holder, lease),
            9..14 => script::renew([(&name, holder)], count, wanted),
            14 | 15 => {
                let second = lock_name(LOCKS[0]);
                let holds: [(&LockName, HolderId); 2] = [(&name, holder), (&second, other)];
                script::renew(holds, count, wanted)
            }
            16..19 => script::release(&name, &holder, publish),
            19 => {
                let call = |pair: &mut Self| {
                    let (name, holder) = (lock_name(pair.rng.pick(&LOCKS)), pair.ours());
                    match pair.rng.one_in(2) {
                        true => script::acquire(&name, &holder, lease),
                        false => script::release(&name, &holder, publish),
                    }
                };
                let calls: Vec<Call> = (0..3).map(|_| call(self)).collect();
                script::batch(&calls)
            }
            20..24 if fenced => script::hand_over_fenced(&name, &holder, &other, lease, least),
            20..24 => script::hand_over(&name, &holder, &other, lease),
            24 | 25 => script::show(&name),
            26 => {
                let dead = self.dead_waiters(&other);
                script::force_release(&name, self.expected(&hash), &dead, publish)
            }
            62 => script::purge_queue(&name, &self.dead_waiters(&other), publish),
            63 if self.rng.one_in(2) => script::holder_entry(&other),
            63 => script::agent_state(&other.client),
            38 | 39 if !hash.holders.is_empty() => {
                let index = self.rng.index(hash.holders.len());
                let mut holder = hash.holders[index];
                holder.count += i64::from(self.rng.one_in(4));
                script::force_release_holder(&name, self.expected(&hash), &holder, publish)
            }
            42 | 43 => {
                let deadline = self.rng.pick(&[None, Some(1), Some(9_000_000_000_000)]);
                script::remove_waiter(&name, &other, deadline, publish)
            }
            27 => return Step::Plain(words(&format!("HSET {lock} {other} 2"))),
            28 => return Step::Plain(words(&format!("HSET {lock} colour red"))),
            29 => return Step::Plain(words(&format!("HSET {lock} mode read"))),
            30 => return Step::Plain(words(&format!("SET {lock} text"))),
            31 | 32 => return Step::Plain(words(&format!("DEL {lock}"))),
            33 => return Step::Plain(words(&format!("PERSIST {lock}"))),
            34 => {
                let deadline = self.rng.pick(&["1", "9000000000000"]);
                let position = format!("ZADD {deadlines} {deadline} {other}");
                return if self.rng.one_in(2) {
                    Step::Plain(words(&position))
                } else {
                    Step::Plain(words(&format!("RPUSH {queue} {other}")))
                };
            }
            35 => return Step::Plain(words(&format!("DEL {queue} {deadlines}"))),
            36 => return Step::Full(self.rng.one_in(2)),
            37 => return Step::ReadOnly(self.rng.one_in(3)),
            40 => return Step::Plain(words(&format!("DEL {counter}"))),
            41 => {
                let odd = self.rng.pick(&["text", "9223372036854775807", "12 PX 2000"]);
                return Step::Plain(words(&format!("SET {counter} {odd}")));
            }
            44..48 => {
                let own = HolderId { write: true, ..other };
                script::acquire_read(&name, &holder, lease, self.rng.one_in(2).then_some(&own))
            }
            48..50 => script::acquire_write(&name, &HolderId { write: true, ..holder }, lease),
            50..52 => {
                let missing = self.rng.pick(&[MissingMarkers::Report, MissingMarkers::Restore]);
                script::renew_read([(&name, holder)], count, wanted, missing)
            }
            52..54 => script::release_read(&name, &holder, publish),
            54..56 => script::release_write(&name, &HolderId { write: true, ..holder }, publish),
            56..60 => {
                let waited = Duration::from_secs(self.rng.pick(&[0, 5, 400]));
                let queue = (!self.rng.one_in(4)).then_some(waited);
                script::acquire_fair(&name, &holder, lease, FAIR_WAIT, queue, &other, publish)
            }
            60 => script::release_fair(&name, &holder, FAIR_WAIT, &other, publish),
            61 => {
                let (first, between) = (self.ours(), (&holder, &other));
                script::hand_over_fair(&name, between, lease, FAIR_WAIT, &first, publish)
            }
            _ => return Step::Rest,
        })
    }

    /// Waits until the server's clock is `ms` past the last step. A lease that is set twice within a millisecond would hide
    /// the effect of a full server.
    async fn let_time_pass(&mut self, ms: u64) {
        let until = self.model.now_ms() + ms;
        while self.time().await < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Full(full) => {
                let most = u8::from(full);
                let set = self.client.call(&format!("CONFIG SET maxmemory {most}")).await.unwrap();
                assert_eq!(set.text(), "OK");
                self.model.full = full;
            }
            Step::ReadOnly(read_only) => {
                let replicas = u8::from(read_only);
                let command = format!("CONFIG SET min-replicas-to-write {replicas}");
                assert_eq!(self.client.call(&command).await.unwrap().text(), "OK");
                self.model.read_only = read_only;
            }
            Step::Rest => self.let_time_pass(120).await,
            Step::Plain(command) => {
                self.client.call_args(&command).await.unwrap();
                let now = self.time().await;
                self.copy(now).await;
            }
            Step::Script(call) => self.compare(&call).await,
        }
    }

    async fn compare(&mut self, call: &Call) {
        self.let_time_pass(3).await;
        let count = call.keys.len().to_string();
        let mut args: Vec<&[u8]> = vec![b"EVAL", call.script.source.as_bytes(), count.as_bytes()];
        args.extend(call.keys.iter().chain(call.args.iter()));
        // Sent at once, to keep the time between them short.
        let mut bytes = harness::client::encode(&["TIME"]);
        bytes.extend(harness::client::encode(&args));
        bytes.extend(harness::client::encode(&["TIME"]));
        self.client.send_bytes(&bytes).await.unwrap();
        let before = micros(&self.client.reply().await.unwrap()) / 1000;
        let real = self.client.reply().await.unwrap();
        let after = micros(&self.client.reply().await.unwrap()) / 1000;
        let slack = after - before + 3;
        let near =
            |at: Option<u64>| at.is_some_and(|at| at + slack >= before && at <= after + slack);
        let deadlines = self.model.keys().values().any(|entry| match &entry.content {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "epoch ms")]
            Content::Scores(scores) => scores.values().any(|score| near(Some(*score as u64))),
            _ => false,
        });
        let unsure = deadlines || self.model.keys().values().any(|entry| near(entry.expires_ms));
        self.model.set_clock(before);
        let known = self.model.keys().clone();
        let model = self.model.serve(call);
        let messages = self.messages().await;
        if unsure {
            self.ambiguous += 1;
            return self.copy(after).await;
        }
        let context = format!(
            "{} {:?}, {known:?}",
            call.script.name,
            call.args.iter().map(text).collect::<Vec<_>>()
        );
        match (&model.reply, &real) {
            (Err(model), real) => {
                let word = model.split(' ').next().unwrap();
                assert!(real.is_error(word), "{context}: {model} here, {real} there");
            }
            (Ok(model), real) => {
                assert!(real.error().is_none(), "{context}: {model:?} here, {real} there");
                let real = value(real);
                assert!(same(model, &real, slack), "{context}: {model:?} here, {real:?} there");
            }
        }
        assert_eq!(model.published, messages, "{context}");
        let mut model = std::mem::take(self.model.keys_mut());
        self.copy(after).await;
        // Reading takes time too: keys that expire meanwhile are not compared.
        let end = self.time().await + 2 * slack;
        let lasts = |entry: &Entry| entry.expires_ms.is_none_or(|at| at > end);
        let mut real = self.model.keys().clone();
        let gone: BTreeSet<String> = model
            .iter()
            .chain(&real)
            .filter(|(_, entry)| !lasts(entry))
            .map(|(key, _)| key.clone())
            .collect();
        model.retain(|key, _| !gone.contains(key));
        real.retain(|key, _| !gone.contains(key));
        let names = |keys: &BTreeMap<String, Entry>| keys.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&model), names(&real), "{context}");
        for (key, entry) in &model {
            let there = &real[key];
            let (here, real) = (&entry.content, &there.content);
            assert!(
                alike(here, real, slack),
                "{key}: {here:?} here, {real:?} there, after {context}"
            );
            let close = match (entry.expires_ms, there.expires_ms) {
                (None, None) => true,
                (Some(here), Some(there)) => here.abs_diff(there) <= slack + 3,
                _ => false,
            };
            assert!(close, "{key} lives until {entry:?} here, {there:?} there, after {context}");
        }
    }

    /// Returns the channels of the messages since the last call.
    async fn messages(&mut self) -> Vec<String> {
        self.client.call("PUBLISH end of-step").await.unwrap();
        let mut messages = Vec::new();
        loop {
            let message = self.subscriber.reply().await.unwrap();
            let items = message.items().unwrap();
            let (kind, to) = (items[0].text(), items[items.len() - 2].text());
            match (kind.as_str(), to.as_str()) {
                (_, "end") => return messages,
                ("pmessage", _) => messages.push(to),
                _ => {}
            }
        }
    }

    /// Copies all keys into the model.
    async fn copy(&mut self, now: u64) {
        let mut keys = BTreeMap::new();
        let listed = self.client.call("KEYS *").await.unwrap();
        for key in listed.items().unwrap() {
            let key = key.text();
            let ttl = self.client.call(&format!("PEXPIRETIME {key}")).await.unwrap().int().unwrap();
            let content =
                match self.client.call(&format!("TYPE {key}")).await.unwrap().text().as_str() {
                    "hash" => Content::Hash(pairs(
                        &self.client.call(&format!("HGETALL {key}")).await.unwrap(),
                    )),
                    "list" => {
                        let items = self.client.call(&format!("LRANGE {key} 0 -1")).await.unwrap();
                        Content::List(items.items().unwrap().iter().map(Reply::text).collect())
                    }
                    "zset" => {
                        let range = format!("ZRANGE {key} 0 -1 WITHSCORES");
                        let scores = pairs(&self.client.call(&range).await.unwrap());
                        let score =
                            |(member, score): (String, String)| (member, score.parse().unwrap());
                        Content::Scores(scores.into_iter().map(score).collect())
                    }
                    "string" => match self.client.call(&format!("GET {key}")).await.unwrap() {
                        Reply::Null => continue,
                        text => Content::Text(text.text()),
                    },
                    // It has just expired.
                    _ => continue,
                };
            keys.insert(key, Entry { content, expires_ms: u64::try_from(ttl).ok() });
        }
        *self.model.keys_mut() = keys;
        self.model.set_clock(now);
    }
}

fn pairs(reply: &Reply) -> Vec<(String, String)> {
    let items = reply.items().unwrap();
    items.chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
}

/// Compares two values; deadlines may differ by up to `slack` ms.
#[expect(clippy::cast_precision_loss, reason = "a few milliseconds")]
fn alike(a: &Content, b: &Content, slack: u64) -> bool {
    match (a, b) {
        (Content::Scores(a), Content::Scores(b)) => {
            a.len() == b.len()
                && a.iter().zip(b).all(|((member, score), (other, there))| {
                    member == other && (score - there).abs() <= (slack + 3) as f64
                })
        }
        (a, b) => sorted(a) == sorted(b),
    }
}

fn sorted(content: &Content) -> Content {
    match content {
        Content::Hash(fields) => {
            let fields: BTreeSet<_> = fields.iter().cloned().collect();
            Content::Hash(fields.into_iter().collect())
        }
        other => other.clone(),
    }
}

#[tokio::test]
async fn the_model_replies_as_redis_does() {
    let redis = RedisServer::start().await.unwrap();
    let client = redis.client().await.unwrap();
    let mut subscriber = redis.client().await.unwrap();
    let subscribed = channel(&lock_name(LOCKS[0]));
    for command in ["PSUBSCRIBE *".to_owned(), format!("SUBSCRIBE {subscribed}")] {
        subscriber.call(&command).await.unwrap();
    }
    let mut model = Redis::default();
    model.subscribers.insert(subscribed, 1);
    let mut pair = Pair { rng: Rng::new(1), model, client, subscriber, ambiguous: 0 };
    let now = pair.time().await;
    pair.copy(now).await;
    for _ in 0..STEPS {
        let step = pair.step();
        pair.take(step).await;
    }
    assert!(pair.ambiguous < STEPS / 10, "{} steps could not be compared", pair.ambiguous);
}
