//! Actions on Redis from outside the agents: other clients, and an operator.

use redisson::script::{ExpectedLock, ExpectedTtl, ForceReleaseOutcome, parse_force_release};

use super::super::redis::{Content, Entry};
use super::super::requests::{channel, lock_name};
use super::connection::MESSAGES;
use super::event::{Event, Input};
use super::names::NAMES;
use super::other_client::State;
use super::simulation::{Phase, Simulation};

impl Simulation {
    pub(super) fn other_client_acts(&mut self, index: usize) {
        if !self.server_is_fault_free() {
            return self.after(50_000, Event::OtherClient(index));
        }
        match self.other_clients[index].state.clone() {
            State::Idle if self.phase == Phase::Ending => {}
            State::Idle => {
                let lock = self.rng.pick(&NAMES);
                self.other_client_tries(index, lock);
            }
            State::Waiting(lock) => self.other_client_tries(index, lock),
            State::Holding { lock, until } if until <= self.now || self.rng.one_in(8) => {
                // It died or was too slow. Its lease expires.
                self.other_clients[index].state = State::Idle;
                let _ = lock;
                let pause = self.rng.within(1000..1_000_000);
                self.after(pause, Event::OtherClient(index));
            }
            State::Holding { lock, .. } => {
                let field = self.other_clients[index].field();
                if self.server.redis.has(lock, &field) {
                    self.server.redis.keys_mut().remove(lock);
                    self.log(|| format!("client {index} releases {lock}"));
                    self.publish(&[channel(&lock_name(lock))]);
                }
                self.other_clients[index].state = State::Idle;
                let pause = self.rng.within(100..1_000_000);
                self.after(pause, Event::OtherClient(index));
            }
        }
        self.count_subscribers();
    }

    fn other_client_tries(&mut self, index: usize, lock: &'static str) {
        if self.phase == Phase::Ending {
            self.other_clients[index].state = State::Idle;
            return;
        }
        if let Some(entry) = self.server.redis.get(lock) {
            let left = entry.expires_ms.map_or(1000, |at| at - self.server.redis.now_ms() + 1);
            self.other_clients[index].state = State::Waiting(lock);
            return self.after(left.min(3000) * 1000, Event::OtherClient(index));
        }
        let lease = self.rng.within(300..3000);
        self.other_clients[index].threads += 1;
        let field = self.other_clients[index].field();
        self.log(|| format!("client {index} acquires {lock} for {lease} ms"));
        self.history.taken(lock);
        let content = Content::Hash(vec![(field, "1".to_owned())]);
        let expires_ms = Some(self.server.redis.now_ms() + lease);
        self.server.redis.keys_mut().insert(lock.to_owned(), Entry { content, expires_ms });
        self.other_clients[index].state = State::Holding { lock, until: self.now + lease * 1000 };
        let pause = self.rng.within(100..lease * 1200);
        self.after(pause, Event::OtherClient(index));
    }

    /// An operator force-releases a lock, as the dashboard does.
    pub(super) fn force_release(&mut self, lock: &'static str) {
        let hash = {
            let fields = self.server.redis.fields(lock);
            let pairs = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            redisson::shape::LockHash::parse(pairs)
        };
        let seen = ExpectedLock { hash: &hash, ttl: ExpectedTtl::Any };
        self.history.excuse_key(lock, &self.server.redis);
        let publish = redisson::script::Publish::Plain;
        let call = redisson::script::force_release(&lock_name(lock), seen, &[], publish);
        let served = self.server.redis.serve(&call);
        self.log(|| format!("an operator releases {lock}: {:?}", served.reply));
        let released = ForceReleaseOutcome::Released;
        if served.reply.as_ref().is_ok_and(|reply| parse_force_release(reply) == Ok(released)) {
            self.publish(&served.published);
            for holder in hash.holders {
                let Some(host) = self.hosts.iter().position(|host| host.client == holder.id.client)
                else {
                    continue;
                };
                let run = self.hosts[host].run;
                let input = Input::Forced(lock_name(lock), holder.id.thread);
                let connection = &mut self.hosts[host].connections[MESSAGES];
                if connection.up
                    && let Some(at) = connection.answer(self.now, &mut self.rng)
                {
                    self.at(at, Event::Input { host, run, input });
                }
            }
        }
    }
}
