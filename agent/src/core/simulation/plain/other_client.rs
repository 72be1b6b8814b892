//! Another client of the same Redis: it acquires, waits and releases as Redisson does, and sometimes dies.

#[derive(Debug, Clone)]
pub(super) enum State {
    Idle,
    Waiting(&'static str),
    Holding { lock: &'static str, until: u64 },
}

/// One thread of a Java service, say.
#[derive(Debug)]
pub(super) struct OtherClient {
    pub(super) index: u64,
    pub(super) threads: u64,
    pub(super) state: State,
}

impl OtherClient {
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
