//! Other clients of the same Redis: they take, wait and release as Redisson does, and now and then die.

use redisson::script::Value;

use super::redis::{Content, Entry};
use super::run::{Event, NAMES, Phase, Simulation, channel, lock_name};

#[derive(Debug, Clone)]
enum State {
    Idle,
    Waiting(&'static str),
    Holding { lock: &'static str, until: u64 },
}

/// One thread of a Java service, say.
#[derive(Debug)]
pub(super) struct Foreign {
    index: u64,
    threads: u64,
    state: State,
}

impl Foreign {
    pub(super) fn new(index: u64) -> Self {
        Self { index, threads: 0, state: State::Idle }
    }

    pub(super) fn waits_for(&self) -> Option<&'static str> {
        match self.state {
            State::Waiting(lock) => Some(lock),
            _ => None,
        }
    }

    pub(super) fn field(&self) -> String {
        format!("f0000000-0000-4000-8000-00000000000{}:{}", self.index, self.threads)
    }

    /// The lock it believes to hold at that instant.
    pub(super) fn inside(&self, now: u64) -> Option<&'static str> {
        match self.state {
            State::Holding { lock, until } if now < until => Some(lock),
            _ => None,
        }
    }
}

impl Simulation {
    pub(super) fn foreign_acts(&mut self, index: usize) {
        if !self.server_is_well() {
            return self.after(50_000, Event::Foreign(index));
        }
        match self.foreign[index].state.clone() {
            State::Idle if self.phase == Phase::Ending => {}
            State::Idle => {
                let lock = self.dice.pick(&NAMES);
                self.foreign_tries(index, lock);
            }
            State::Waiting(lock) => self.foreign_tries(index, lock),
            State::Holding { lock, until } if until <= self.now || self.dice.one_in(8) => {
                // It died, or was too slow: the lease runs out by itself.
                self.foreign[index].state = State::Idle;
                let _ = lock;
                let pause = self.dice.within(1000..1_000_000);
                self.after(pause, Event::Foreign(index));
            }
            State::Holding { lock, .. } => {
                let field = self.foreign[index].field();
                if self.server.redis.has(lock, &field) {
                    self.server.redis.keys_mut().remove(lock);
                    self.log(|| format!("foreign {index} releases {lock}"));
                    self.publish(&[channel(&lock_name(lock))]);
                }
                self.foreign[index].state = State::Idle;
                let pause = self.dice.within(100..1_000_000);
                self.after(pause, Event::Foreign(index));
            }
        }
        self.count_subscribers();
    }

    fn foreign_tries(&mut self, index: usize, lock: &'static str) {
        if self.phase == Phase::Ending {
            self.foreign[index].state = State::Idle;
            return;
        }
        if let Some(entry) = self.server.redis.get(lock) {
            let left = entry.expires_ms.map_or(1000, |at| at - self.server.redis.now_ms() + 1);
            self.foreign[index].state = State::Waiting(lock);
            return self.after(left.min(3000) * 1000, Event::Foreign(index));
        }
        let lease = self.dice.within(300..3000);
        self.foreign[index].threads += 1;
        let field = self.foreign[index].field();
        self.log(|| format!("foreign {index} takes {lock} for {lease} ms"));
        self.laws.taken(lock);
        let content = Content::Hash(vec![(field, "1".to_owned())]);
        let expires_ms = Some(self.server.redis.now_ms() + lease);
        self.server.redis.keys_mut().insert(lock.to_owned(), Entry { content, expires_ms });
        self.foreign[index].state = State::Holding { lock, until: self.now + lease * 1000 };
        let pause = self.dice.within(100..lease * 1200);
        self.after(pause, Event::Foreign(index));
    }

    /// An operator releases what stands there, as the dashboard does.
    pub(super) fn force_release(&mut self, lock: &'static str) {
        let hash = {
            let fields = self.server.redis.fields(lock);
            let pairs = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            redisson::shape::LockHash::parse(pairs)
        };
        let seen = redisson::script::ExpectedLock { hash: &hash, max_ttl: None };
        self.laws.excuse_key(lock, &self.server.redis);
        let publish = redisson::script::Publish::Plain;
        let call = redisson::script::force_release(&lock_name(lock), seen, publish);
        let served = self.server.redis.serve(&call);
        self.log(|| format!("an operator releases {lock}: {:?}", served.reply));
        if served.reply == Ok(Value::Array(vec![Value::Int(1)])) {
            self.publish(&served.published);
            for holder in hash.holders {
                let Some(host) = self.hosts.iter().position(|host| host.client == holder.id.client)
                else {
                    continue;
                };
                let run = self.hosts[host].run;
                let input = super::host::Input::Forced(lock_name(lock), holder.id.thread);
                let link = &mut self.hosts[host].links[super::link::MESSAGES];
                if link.up
                    && let Some(at) = link.answer(self.now, &mut self.dice)
                {
                    self.at(at, Event::Input { host, run, input });
                }
            }
        }
    }
}
