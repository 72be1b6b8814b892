//! Random workers on a network that fails: whatever happens, no two of them are inside, and nothing is left behind.

use std::collections::HashMap;
use std::time::Duration;

use redisson::{Lease, Moment};

use super::world::{LEASE, Network, World, lock_command, name};
use crate::command::{Command, HoldRequest, LockRequest, Wait};
use crate::session::SessionId;

const SEEDS: u64 = 1000;
const STEPS: u64 = 300;
const NAMES: [&str; 3] = ["x", "y", "z"];

struct Dice(u64);

impl Dice {
    /// A number below `sides` (xorshift).
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    /// An index below `len`.
    fn pick(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(len as u64)).expect("below a usize")
    }
}

struct Chaos {
    world: World,
    dice: Dice,
    open: Vec<SessionId>,
    asked: HashMap<SessionId, usize>,
    answered: HashMap<SessionId, usize>,
    /// Whether scripts may run late. Then a ghost may stay for a lease, if nobody comes by who removes it.
    late: bool,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self {
            world: World::new(),
            dice,
            open: vec![],
            asked: HashMap::new(),
            answered: HashMap::new(),
            late: seed.is_multiple_of(2),
        }
    }

    fn step(&mut self) {
        match self.dice.roll(20) {
            0 | 1 if self.open.len() < 6 => {
                let id = self.world.open();
                self.open.push(id);
            }
            2 if !self.open.is_empty() => {
                let at = self.dice.pick(self.open.len());
                let id = self.open.swap_remove(at);
                self.world.close(id);
            }
            3 => {
                self.world.network = match self.dice.roll(8) {
                    0 => Network::LosesReplies,
                    1 if self.late => Network::Holds,
                    2 => Network::Down,
                    3 => Network::Full,
                    4..=6 => Network::Slow(1 + self.dice.roll(3000)),
                    _ => Network::Good,
                };
            }
            4 => self.world.network = Network::Good,
            5 => self.world.network = Network::Slow(1 + self.dice.roll(40)),
            6 => self.world.deliver_late(),
            7..=10 => {
                let scale = [1, 20, 500, 12_000][self.dice.pick(4)];
                let time = Duration::from_millis(1 + self.dice.roll(scale));
                self.world.pass(time);
            }
            _ => self.command(),
        }
        self.check();
    }

    fn command(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let id = self.open[self.dice.pick(self.open.len())];
        let lock = NAMES[self.dice.pick(3)];
        let owner = self.dice.roll(2) as i64;
        let lease = Lease::new(Duration::from_millis(200 + self.dice.roll(20_000)));
        let hold = HoldRequest { name: name(lock), kind: None, owner, session: None };
        let command = match self.dice.roll(10) {
            0..=3 => {
                let wait = match self.dice.roll(3) {
                    0 => Wait::Forever,
                    1 => Wait::AtMost(Duration::ZERO),
                    _ => Wait::AtMost(Duration::from_millis(self.dice.roll(5000))),
                };
                let lease = lease.filter(|_| self.dice.roll(4) == 0);
                Command::Lock(LockRequest { wait, lease, owner, ..lock_command(lock) })
            }
            4 => Command::Extend(hold, lease.filter(|_| self.dice.roll(2) == 0)),
            _ => Command::Unlock(hold),
        };
        *self.asked.entry(id).or_default() += 1;
        self.world.command(id, command);
    }

    fn check(&mut self) {
        for (id, _) in std::mem::take(&mut self.world.replies) {
            *self.answered.entry(id).or_default() += 1;
        }
        let now = self.world.now;
        let mut inside: HashMap<String, i64> = HashMap::new();
        let holds: Vec<(String, i64, Moment)> = self
            .world
            .core
            .holds
            .values()
            .map(|hold| (hold.name.to_string(), hold.number, hold.valid_until))
            .collect();
        for (lock, number, valid_until) in holds {
            if valid_until <= now {
                continue;
            }
            assert_eq!(inside.insert(lock.clone(), number), None, "two inside {lock}");
            let field = self.world.holders(&lock);
            assert!(
                field.iter().any(|field| field.ends_with(&format!(":{number}"))),
                "{number} believes to hold {lock}, Redis has {field:?}"
            );
        }
    }

    /// All is well again and everybody goes: nothing may be left.
    fn settle(&mut self) {
        self.world.network = Network::Good;
        self.world.deliver_late();
        // Nobody waits for a lease to run out where no script can be late.
        let late = self.late;
        let leases = |n| if late { LEASE * n } else { Duration::from_secs(5) };
        self.world.pass(leases(1));
        self.check();
        for id in self.open.clone() {
            // A worker that still waits does so for a lock that another one holds.
            let missing = self.asked.get(&id).unwrap_or(&0) - self.answered.get(&id).unwrap_or(&0);
            let waits = self.world.core.sessions[&id].waits.len();
            assert!(missing == 0 || waits > 0, "{missing} commands of {id:?} were never answered");
        }
        for id in std::mem::take(&mut self.open) {
            self.world.close(id);
        }
        self.world.pass(leases(2));
        for lock in NAMES {
            assert!(self.world.holders(lock).is_empty(), "{lock} is still held");
        }
        let core = &self.world.core;
        assert!(core.is_idle(), "{:?} {:?}", core.ops, core.holds);
        assert!(core.names.is_empty(), "{:?}", core.names);
        assert_eq!(core.next_deadline(), None);
    }
}

#[test]
fn no_two_inside_and_nothing_left_behind() {
    for seed in 1..=SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut chaos = Chaos::new(seed);
            (0..STEPS).for_each(|_| chaos.step());
            chaos.settle();
        });
        assert!(run.is_ok(), "seed {seed} failed, see above");
    }
}
