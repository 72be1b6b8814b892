//! The order of inputs that wait for the core: round robin by user, then by session.

use std::collections::{HashMap, VecDeque};

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

    pub(super) fn push(&mut self, input: Input) {
        let session = input.session();
        if let Input::Opened { session, peer, .. } = &input {
            self.opened(*session, peer.uid);
        }
        let user = session.and_then(|session| self.users.get(&session).copied());
        self.queue.push(user, session, input);
    }

    pub(super) fn pop(&mut self) -> Option<Input> {
        self.queue.pop()
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
