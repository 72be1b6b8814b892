//! The order of inputs that wait for the core: round robin by user, then by session.

use std::collections::{HashMap, VecDeque};
use std::vec::Drain;

use crate::core::Input;
use crate::types::SessionId;

/// A user id; none for the agent itself and its HTTP pages.
type User = Option<u32>;

/// The inputs that wait for the core. Those of one session stay in order.
#[derive(Debug, Default)]
pub(super) struct Turns {
    users: HashMap<SessionId, u32>,
    queue: FairQueue<Input>,
}

impl Turns {
    pub(super) fn len(&self) -> usize {
        self.queue.len
    }

    /// Registers the user of a session before its first input.
    pub(super) fn opened(&mut self, session: SessionId, uid: u32) {
        self.users.insert(session, uid);
    }

    pub(super) fn closed(&mut self, session: SessionId) {
        self.users.remove(&session);
    }

    /// Begins a turn with the inputs that have arrived: in order of arrival without a backlog, else at most `most` inputs in fair
    /// order.
    pub(super) fn begin<'a>(&mut self, arrived: &'a mut Vec<Input>, most: usize) -> Turn<'a> {
        let mut arrived = arrived.drain(..);
        if self.len() == 0 {
            return Turn { arrived, from_backlog: 0 };
        }
        arrived.by_ref().for_each(|input| self.push(input));
        Turn { arrived, from_backlog: most }
    }

    fn push(&mut self, input: Input) {
        let session = input.session();
        if let Input::Opened { session, peer, .. } = &input {
            self.opened(*session, peer.uid);
        }
        let user = session.and_then(|session| self.users.get(&session).copied());
        self.queue.push(user, session, input);
    }
}

/// The inputs of one turn.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    arrived: Drain<'a, Input>,
    /// The number of inputs that may still be taken from the backlog.
    from_backlog: usize,
}

impl Turn<'_> {
    pub(super) fn next(&mut self, turns: &mut Turns) -> Option<Input> {
        if let Some(input) = self.arrived.next() {
            return Some(input);
        }
        self.from_backlog = self.from_backlog.checked_sub(1)?;
        turns.queue.pop()
    }

    /// Ends the turn. Inputs that it did not get to wait for the next one.
    pub(super) fn end(self, turns: &mut Turns) {
        self.arrived.for_each(|input| turns.push(input));
    }
}

#[derive(Debug)]
struct FairQueue<T> {
    /// The users with items, the next one first.
    users: VecDeque<User>,
    queues: HashMap<User, UserQueue<T>>,
    len: usize,
}

#[derive(Debug)]
struct UserQueue<T> {
    /// The sessions with items, the next one first.
    sessions: VecDeque<Option<SessionId>>,
    items: HashMap<Option<SessionId>, VecDeque<T>>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { users: VecDeque::new(), queues: HashMap::new(), len: 0 }
    }
}

impl<T> FairQueue<T> {
    fn push(&mut self, user: User, session: Option<SessionId>, item: T) {
        let queue = self.queues.entry(user).or_insert_with(|| {
            self.users.push_back(user);
            UserQueue { sessions: VecDeque::new(), items: HashMap::new() }
        });
        let items = queue.items.entry(session).or_insert_with(|| {
            queue.sessions.push_back(session);
            VecDeque::new()
        });
        items.push_back(item);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<T> {
        let user = self.users.pop_front()?;
        let queue = self.queues.get_mut(&user)?;
        let session = queue.sessions.pop_front()?;
        let items = queue.items.get_mut(&session)?;
        let item = items.pop_front()?;
        if items.is_empty() {
            queue.items.remove(&session);
        } else {
            queue.sessions.push_back(session);
        }
        if queue.sessions.is_empty() {
            self.queues.remove(&user);
        } else {
            self.users.push_back(user);
        }
        self.len -= 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut FairQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    /// The core's loop in model time: a turn of a millisecond, in which a command costs `cost` microseconds.
    struct Model {
        turns: Turns,
        inbox: Vec<Input>,
        micros: u64,
        served: Vec<SessionId>,
    }

    impl Model {
        const TURN: u64 = 1_000;
        const BATCH: usize = 256;

        fn send(&mut self, session: u64, uid: u32) {
            self.turns.opened(SessionId(session), uid);
            self.inbox.push(Input::Quit(SessionId(session)));
        }

        /// Returns the number of commands that the turn has handled.
        fn turn(&mut self, cost: u64) -> usize {
            let (ends, before) = (self.micros + Self::TURN, self.served.len());
            let arriving = self.inbox.len().min(Self::BATCH);
            let mut arrived: Vec<Input> = self.inbox.drain(..arriving).collect();
            let mut turn = self.turns.begin(&mut arrived, Self::BATCH);
            while let Some(input) = turn.next(&mut self.turns) {
                self.micros += cost;
                self.served.extend(input.session());
                if self.micros >= ends {
                    break;
                }
            }
            turn.end(&mut self.turns);
            self.served.len() - before
        }

        fn new() -> Self {
            Self { turns: Turns::default(), inbox: Vec::new(), micros: 0, served: Vec::new() }
        }
    }

    /// Renewals are looked at between two turns.
    #[test]
    fn a_flood_delays_renewals_by_one_turn_and_one_command_at_most() {
        for (cost, most) in [(1, Model::BATCH), (10, 100), (300, 4), (5_000, 1)] {
            let mut model = Model::new();
            for i in 0..10_000 {
                model.send(i % 400, 1_000);
            }
            let mut handled = 0;
            while handled < 10_000 {
                let since = model.micros;
                let turn = model.turn(cost);
                assert!((1..=most).contains(&turn), "{turn} commands of {cost} µs in a turn");
                assert!(model.micros - since < Model::TURN + cost);
                handled += turn;
            }
            assert_eq!((model.turns.len(), model.inbox.len()), (0, 0), "none is left behind");
        }
    }

    #[test]
    fn a_quiet_user_waits_for_one_command_of_a_user_who_floods() {
        let mut model = Model::new();
        for i in 0..4_000 {
            model.send(i % 400, 1_000);
        }
        // Each command of the flood takes a whole turn, so there is a backlog.
        while !model.inbox.is_empty() {
            model.turn(1_000);
        }
        for pair in 0..10 {
            let before = model.served.len();
            model.send(9_999, 1_001);
            let waited = (1..).find(|_| {
                model.turn(1_000);
                model.served[before..].contains(&SessionId(9_999))
            });
            assert!(waited.is_some_and(|turns| turns <= 2), "{waited:?} turns at {pair}");
        }
    }

    #[test]
    fn a_user_with_many_sessions_gets_no_more_turns_than_a_user_with_one() {
        let mut queue = FairQueue::default();
        for (session, item) in [(1, "a1"), (2, "a2"), (3, "a3"), (4, "a4")] {
            queue.push(Some(1000), Some(SessionId(session)), item);
        }
        queue.push(Some(1001), Some(SessionId(9)), "b1");
        queue.push(Some(1001), Some(SessionId(9)), "b2");
        assert_eq!(drain(&mut queue), ["a1", "b1", "a2", "b2", "a3", "a4"]);
    }

    #[test]
    fn a_session_with_a_long_pipeline_delays_another_by_one_command_and_keeps_its_order() {
        let mut queue = FairQueue::default();
        for item in ["a1", "a2", "a3"] {
            queue.push(Some(1000), Some(SessionId(1)), item);
        }
        queue.push(Some(1000), Some(SessionId(2)), "b1");
        assert_eq!(queue.pop(), Some("a1"));
        queue.push(Some(1000), Some(SessionId(2)), "b2");
        assert_eq!(drain(&mut queue), ["b1", "a2", "b2", "a3"]);
        assert_eq!((queue.len, queue.queues.len(), queue.users.len()), (0, 0, 0));
    }
}
