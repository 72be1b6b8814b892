//! The model of Redis: a few lines for each script.

use std::time::Duration;

use redisson::script::{Call, RELEASE_FAIR, Value};
use redisson::{HolderId, keys};

use super::{World, name, text};

/// The modes of a read-write lock's hash, as numbers like its counts.
const READ: i64 = -1;
const WRITE: i64 = -2;

impl World {
    /// Removes the locks whose time is over.
    pub(super) fn expire(&mut self) {
        let now = self.now;
        self.redis.retain(|_, hash| hash.expires.is_none_or(|at| at > now));
    }

    /// Runs a script, and returns its reply.
    pub(super) fn run(&mut self, call: &Call) -> Option<Value> {
        self.expire();
        self.served.push(call.script.name);
        let now = self.now;
        let key = text(&call.keys[0]);
        let args: Vec<String> = call.args.iter().map(text).collect();
        let ms = |arg: &str| Duration::from_millis(arg.parse().unwrap());
        let ints = |ints: &[i64]| Some(Value::Array(ints.iter().map(|n| Value::Int(*n)).collect()));
        match call.script.name {
            "acquire" if self.spoilt_counters && call.keys.iter().count() > 3 => {
                let reason = Value::Bytes(b"lock whose token key holds no number".to_vec());
                Some(Value::Array(vec![Value::Int(3), reason]))
            }
            "acquire" => {
                let hash = self.redis.entry(key).or_default();
                if hash.fields.is_empty() || hash.fields.contains_key(&args[0]) {
                    hash.fields.insert(args[0].clone(), 1);
                    hash.expires = hash.expires.max(Some(now + ms(&args[1])));
                    return ints(&[1]);
                }
                let pttl =
                    hash.expires.map_or(-1, |at| i64::try_from(at.since(now).as_millis()).unwrap());
                let mut reply = vec![Value::Int(0), Value::Int(pttl)];
                reply.extend(
                    hash.fields.keys().map(|field| Value::Bytes(field.clone().into_bytes())),
                );
                Some(Value::Array(reply))
            }
            "keep" | "keep_read" => {
                // Readers' markers, whose prefix follows the holder, are all there or all missing; their maximum number
                // comes before the count, and the lease of each after its prefix.
                let plain = call.script.name == "keep";
                let (first, step) = if plain { (2, 1) } else { (3, 3) };
                let count: i64 = args[first - 1].parse().unwrap();
                let (mut kept, mut others) = (0, Vec::new());
                let restores = call.keys.len() > (args.len() - first) / step;
                self.missing_markers &= !restores;
                for ((i, key), words) in
                    (0_i64..).zip(call.keys.iter()).zip(args[first..].chunks(step))
                {
                    let (me, lease) = (&words[0], if plain { &args[0] } else { &words[2] });
                    match self.redis.get_mut(&text(key)) {
                        None => others.extend([i + 1, 0]),
                        Some(hash) => match hash.fields.get_mut(me) {
                            None => others.extend([i + 1, 2]),
                            Some(field) => {
                                *field = count;
                                hash.expires = hash.expires.max(Some(now + ms(lease)));
                                if self.missing_markers && !plain {
                                    others.extend([i + 1, 4]);
                                } else {
                                    kept += 1;
                                }
                            }
                        },
                    }
                }
                ints(&[&[kept][..], &others].concat())
            }
            "release" => {
                let Some(hash) = self.redis.get_mut(&key) else { return ints(&[0]) };
                if hash.fields.remove(&args[0]).is_none() {
                    return ints(&[2]);
                }
                if hash.fields.is_empty() {
                    self.redis.remove(&key);
                    assert_eq!(args[1], text(&keys::channel(&name(&key))));
                }
                ints(&[1])
            }
            "hand_over" => {
                let subscribers =
                    self.other_subscribers + i64::from(self.listening.contains(&name(&key)));
                let Some(hash) = self.redis.get_mut(&key) else { return ints(&[0]) };
                if hash.fields.remove(&args[0]).is_some() {
                    hash.fields.insert(args[1].clone(), 1);
                    hash.expires = Some(now + ms(&args[2]));
                } else if hash.fields.contains_key(&args[1]) {
                    hash.expires = hash.expires.max(Some(now + ms(&args[2])));
                } else {
                    return ints(&[2]);
                }
                ints(&[1, subscribers])
            }
            "acquire_read" | "acquire_write" => {
                let reads = call.script.name == "acquire_read";
                let hash = self.redis.entry(key).or_default();
                let held = hash.fields.contains_key(&args[0]);
                let own_write = reads && hash.fields.contains_key(&args[2]);
                let shared = reads && hash.fields.get("mode") == Some(&READ);
                if hash.fields.is_empty() {
                    hash.fields.insert("mode".to_owned(), if reads { READ } else { WRITE });
                } else if !(held || own_write || shared) {
                    return ints(&[0, 30_000]);
                }
                hash.fields.insert(args[0].clone(), 1);
                hash.expires = hash.expires.max(Some(now + ms(&args[1])));
                ints(&[1])
            }
            "release_read" | "release_write" => {
                let Some(hash) = self.redis.get_mut(&key) else { return ints(&[0]) };
                if hash.fields.remove(&args[0]).is_none() {
                    return ints(&[2]);
                }
                if hash.fields.len() == 1 {
                    self.redis.remove(&key);
                } else if call.script.name == "release_write" {
                    hash.fields.insert("mode".to_owned(), READ);
                }
                ints(&[1])
            }
            "acquire_fair" => {
                let queue = self.queues.entry(key.clone()).or_default();
                let hash = self.redis.entry(key).or_default();
                let first = queue.first().is_none_or(|head| *head == args[0]);
                if hash.fields.contains_key(&args[0]) || (hash.fields.is_empty() && first) {
                    queue.retain(|entry| *entry != args[0]);
                    hash.fields.insert(args[0].clone(), 1);
                    hash.expires = hash.expires.max(Some(now + ms(&args[1])));
                    return ints(&[1]);
                }
                if !args[3].is_empty() && !queue.contains(&args[0]) {
                    queue.push(args[0].clone());
                }
                let mut reply = vec![Value::Int(0), Value::Int(30_000)];
                let head = queue.first().filter(|head| **head != args[0]);
                let before = hash.fields.keys().chain(head);
                reply.extend(before.map(|holder| Value::Bytes(holder.clone().into_bytes())));
                Some(Value::Array(reply))
            }
            "release_fair" => {
                let removed = self
                    .redis
                    .get_mut(&key)
                    .is_some_and(|hash| hash.fields.remove(&args[0]).is_some());
                self.redis.retain(|_, hash| !hash.fields.is_empty());
                let queue = self.queues.entry(key.clone()).or_default();
                queue.retain(|entry| *entry != args[0]);
                let free = !self.redis.contains_key(&key);
                if let Some(head) = queue.first().filter(|_| free && !self.unsubscribed) {
                    let head = HolderId::parse(head.as_bytes()).unwrap().thread;
                    self.turns.push_back((name(&key), head, true));
                }
                ints(&[if removed {
                    1
                } else if free {
                    0
                } else {
                    2
                }])
            }
            "hand_over_fair" => {
                let (from, to) = (&args[0], &args[args.len() - 2]);
                let queue = self.queues.entry(key.clone()).or_default();
                let Some(hash) = self.redis.get_mut(&key) else { return ints(&[0]) };
                let next = queue.first() == Some(to) && hash.fields.contains_key(from);
                if !next && !hash.fields.contains_key(to) {
                    let release = Call { script: &RELEASE_FAIR, ..call.clone() };
                    return self.run(&release);
                }
                queue.retain(|entry| entry != to);
                hash.fields.remove(from);
                hash.fields.insert(to.clone(), 1);
                hash.expires = Some(now + ms(&args[args.len() - 1]));
                ints(&[1, -1])
            }
            other => panic!("no model of {other}"),
        }
    }
}
