//! The numbers of this run: those of its holders in Redis, and random ones for jitter.

use redisson::{ClientId, HolderId, Kind};

use crate::types::Number;

/// This run's client id, the numbers drawn under it, and a generator of random numbers.
#[derive(Debug)]
pub(in crate::core) struct Numbers {
    client: ClientId,
    first: Number,
    next: Number,
    random: u64,
}

impl Numbers {
    pub(in crate::core) fn new(client: ClientId, first: Number) -> Self {
        Self { client, first, next: first, random: first.unsigned_abs() | 1 }
    }

    #[cfg(test)]
    pub(in crate::core) fn client(&self) -> ClientId {
        self.client
    }

    /// Returns a value that distinguishes this run's sessions from those of every other run: from runs of this client
    /// by the epoch, from those of another client, which may have started in the same second, by a hash of the client
    /// id.
    pub(in crate::core) fn run(&self) -> u64 {
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        let client = self.client.text().iter().fold(0xcbf2_9ce4_8422_2325, fnv);
        client.wrapping_add(self.first.unsigned_abs() >> 30)
    }

    /// Returns a number that was never used before.
    pub(in crate::core) fn draw(&mut self) -> Number {
        let number = self.next;
        // The next run's numbers begin 2^30 later for each second of this run, or 2^40 later if the clock is far behind.
        self.next = self.next.saturating_add(1);
        number
    }

    /// Returns whether the number was drawn in this run.
    pub(in crate::core) fn contains(&self, number: Number) -> bool {
        (self.first..self.next).contains(&number)
    }

    /// Returns the holder id that precedes all others of this run.
    pub(in crate::core) fn first_of_run(&self) -> HolderId {
        HolderId::new(self.client, self.first)
    }

    /// Returns the field of a hold in its lock's hash.
    pub(in crate::core) fn field(&self, kind: Kind, number: Number) -> HolderId {
        HolderId { write: kind == Kind::Write, ..HolderId::new(self.client, number) }
    }

    /// Returns whether a holder belongs to this agent, in this run or an earlier one.
    pub(in crate::core) fn is_own(&self, holder: &HolderId) -> bool {
        holder.client == self.client
    }

    /// Returns whether a holder or waiter belongs to another agent, by its form.
    pub(in crate::core) fn is_of_other_agent(&self, holder: &HolderId) -> bool {
        holder.looks_like_agent() && !self.is_own(holder)
    }

    /// Returns a random number of percent below `most`, for jitter.
    pub(in crate::core) fn percent(&mut self, most: u32) -> u32 {
        u32::try_from(self.jitter() % u64::from(most)).unwrap_or(0)
    }

    /// Returns a cheap random number for jitter (xorshift), determined by the first number so that runs can be repeated.
    pub(in crate::core) fn jitter(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_drawn_once_and_known_from_then_on() {
        let client = ClientId::parse(b"12345678-1234-4234-8234-123456789abc");
        let mut numbers = Numbers::new(client.expect("a client id"), 7);
        assert!(!numbers.contains(7));
        assert_eq!((numbers.draw(), numbers.draw()), (7, 8));
        assert!(numbers.contains(8) && !numbers.contains(9) && !numbers.contains(6));
    }

    #[test]
    fn no_two_runs_have_sessions_of_the_same_name() {
        let run = |client: &[u8], epoch: i64| {
            Numbers::new(ClientId::parse(client).expect("a client id"), epoch << 30).run()
        };
        let (a, b) =
            (b"12345678-1234-4234-8234-123456789abc", b"12345678-1234-4234-8234-123456789abd");
        assert_ne!(run(a, 1_800_000_000), run(a, 1_800_000_001));
        assert_ne!(run(a, 1_800_000_000), run(b, 1_800_000_000));
        assert_eq!(run(a, 1_800_000_000), run(a, 1_800_000_000));
    }

    #[test]
    fn the_same_first_number_repeats_the_same_jitter() {
        let client = ClientId::parse(b"12345678-1234-4234-8234-123456789abc");
        let numbers = || Numbers::new(client.expect("a client id"), 7);
        let (mut a, mut b) = (numbers(), numbers());
        assert_eq!((a.jitter(), a.jitter()), (b.jitter(), b.jitter()));
        assert_ne!(a.jitter(), a.jitter());
    }
}
