//! The order of inputs that wait for the core: round robin by user, then by connection.

use std::collections::VecDeque;
use std::time::Duration;
use std::vec::Drain;

use redisson::Moment;

use crate::collections::HashMap;
use crate::core::Input;
use crate::thread_time::ThreadTime;
use crate::types::ConnectionId;

/// A user id; `None` for the agent itself and its HTTP pages.
pub(super) type User = Option<u32>;

/// The maximum number of inputs that are handled from the backlog before urgent work has its turn again.
const BATCH: usize = 256;
/// A user with this many waiting inputs has its connections paused: they read nothing, write nothing, and notice their
/// client's end only afterwards.
const MOST_WAITING: usize = 512;
/// The time for which inputs are handled before urgent work has its turn again. The input that is being handled then is
/// finished.
const TURN: Duration = Duration::from_millis(1);
/// [`TURN`] while more than one user is active.
const CONTESTED_TURN: Duration = Duration::from_micros(250);
/// A user with this many scripts in flight waits with its next command, so that a script of another user does not wait
/// behind thousands of them in Redis.
const MOST_SCRIPTS: usize = 1024;
/// [`MOST_SCRIPTS`] while more than one user is active.
const CONTESTED_SCRIPTS: usize = 128;
/// The time without a reply after which a user's commands no longer wait for replies to earlier ones: Redis does not answer
/// anyway, and commands have their own time limits.
const SILENCE: Duration = Duration::from_millis(50);

/// The inputs that wait for the core. Those of one connection stay in order.
#[derive(Debug)]
pub(super) struct Turns {
    time: ThreadTime,
    users: HashMap<ConnectionId, u32>,
    queue: FairQueue<Input>,
    scripts: Scripts,
}

impl Turns {
    pub(super) fn new(time: ThreadTime) -> Self {
        Self {
            time,
            users: HashMap::default(),
            queue: FairQueue::default(),
            scripts: Scripts { most: MOST_SCRIPTS, users: HashMap::default() },
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len
    }

    /// Returns the time from which an input may be handled; never if none waits.
    pub(super) fn next_at(&self) -> Moment {
        let users = self.queue.users.iter();
        users.map(|user| self.scripts.open_at(*user)).min().unwrap_or(Moment::NEVER)
    }

    /// Forgets the user of a connection after its last input.
    pub(super) fn on_closed(&mut self, connection: ConnectionId) {
        self.users.remove(&connection);
    }

    /// Counts a script of a user's command.
    pub(super) fn on_sent(&mut self, user: User, now: Moment) {
        self.scripts.on_sent(user, now);
    }

    /// Counts the outcome of such a script.
    pub(super) fn on_answered(&mut self, user: User, now: Moment) {
        self.scripts.on_answered(user, now);
    }

    /// Counts time that the core has spent on a user's input.
    pub(super) fn charge(&self, user: User, time: Duration) {
        if let Some(uid) = user {
            self.time.charge(uid, time);
        }
    }

    /// Begins a turn with the inputs that have arrived: in order of arrival without a backlog, else in fair order.
    pub(super) fn begin<'a>(&mut self, arrived: &'a mut Vec<Input>, now: Moment) -> Turn<'a> {
        let contested = self.time.is_contested();
        self.scripts.most = if contested { CONTESTED_SCRIPTS } else { MOST_SCRIPTS };
        let ends = now + if contested { CONTESTED_TURN } else { TURN };
        let mut arrived = arrived.drain(..);
        if self.len() == 0 {
            return Turn { arrived, from_backlog: 0, now, ends };
        }
        arrived.by_ref().for_each(|input| self.push(input));
        Turn { arrived, from_backlog: BATCH, now, ends }
    }

    fn push(&mut self, input: Input) {
        let user = self.user(&input);
        let waiting = self.queue.push(user, input.connection(), input);
        if waiting >= MOST_WAITING {
            self.set_held_back(user, true);
        }
    }

    fn pop(&mut self, now: Moment) -> Option<(User, Input)> {
        let scripts = &self.scripts;
        let (user, waiting, input) = self.queue.pop(|user| scripts.open_at(user) <= now)?;
        if waiting == MOST_WAITING - 1 {
            self.set_held_back(user, false);
        }
        Some((user, input))
    }

    fn set_held_back(&self, user: User, held_back: bool) {
        if let Some(uid) = user {
            self.time.set_held_back(uid, held_back);
        }
    }

    /// Returns the user of an input, and remembers that of a connection that has just been opened.
    fn user(&mut self, input: &Input) -> User {
        if let Input::Opened { connection, peer, .. } = input {
            self.users.insert(*connection, peer.uid);
        }
        input.connection().and_then(|connection| self.users.get(&connection).copied())
    }
}

/// Connections write their last replies after the core has ended.
impl Drop for Turns {
    fn drop(&mut self) {
        for (user, queue) in &self.queue.queues {
            if queue.len >= MOST_WAITING {
                self.set_held_back(*user, false);
            }
        }
    }
}

/// The inputs of one turn.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    arrived: Drain<'a, Input>,
    /// The number of inputs that may still be taken from the backlog.
    from_backlog: usize,
    /// The instant at which it began.
    now: Moment,
    ends: Moment,
}

impl Turn<'_> {
    pub(super) fn next(&mut self, turns: &mut Turns) -> Option<(User, Input)> {
        for input in self.arrived.by_ref() {
            let user = turns.user(&input);
            if turns.scripts.open_at(user) <= self.now {
                return Some((user, input));
            }
            turns.push(input);
        }
        self.from_backlog = self.from_backlog.checked_sub(1)?;
        turns.pop(self.now)
    }

    pub(super) fn is_over(&self, now: Moment) -> bool {
        now >= self.ends
    }

    /// Ends the turn. Inputs that it did not reach wait for the next one.
    pub(super) fn end(self, turns: &mut Turns) {
        self.arrived.for_each(|input| turns.push(input));
    }
}

/// The scripts in flight of each user's commands.
#[derive(Debug)]
struct Scripts {
    /// The maximum for one user.
    most: usize,
    users: HashMap<u32, UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    count: usize,
    /// The time of the latest reply, or of the first script if there was none since.
    last_reply: Moment,
}

impl Scripts {
    fn on_sent(&mut self, user: User, now: Moment) {
        let Some(uid) = user else { return };
        self.users.entry(uid).or_insert(UnderWay { count: 0, last_reply: now }).count += 1;
    }

    fn on_answered(&mut self, user: User, now: Moment) {
        let Some(uid) = user else { return };
        let Some(scripts) = self.users.get_mut(&uid) else { return };
        scripts.count -= 1;
        scripts.last_reply = now;
        if scripts.count == 0 {
            self.users.remove(&uid);
        }
    }

    /// Returns the time from which the user's inputs may be handled.
    fn open_at(&self, user: User) -> Moment {
        match user.and_then(|uid| self.users.get(&uid)) {
            Some(scripts) if scripts.count >= self.most => scripts.last_reply + SILENCE,
            _ => Moment::default(),
        }
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
    /// The connections with items, the next one first.
    connections: VecDeque<Option<ConnectionId>>,
    items: HashMap<Option<ConnectionId>, VecDeque<T>>,
    len: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { users: VecDeque::new(), queues: HashMap::default(), len: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Returns the number of the user's items with this one.
    fn push(&mut self, user: User, connection: Option<ConnectionId>, item: T) -> usize {
        let queue = self.queues.entry(user).or_insert_with(|| {
            self.users.push_back(user);
            UserQueue { connections: VecDeque::new(), items: HashMap::default(), len: 0 }
        });
        let items = queue.items.entry(connection).or_insert_with(|| {
            queue.connections.push_back(connection);
            VecDeque::new()
        });
        items.push_back(item);
        queue.len += 1;
        self.len += 1;
        queue.len
    }

    /// Takes the next item of the next user who is open, and returns it with the number of that user's remaining items.
    fn pop(&mut self, is_open: impl Fn(User) -> bool) -> Option<(User, usize, T)> {
        let at = self.users.iter().position(|user| is_open(*user))?;
        let user = self.users.remove(at)?;
        let queue = self.queues.get_mut(&user)?;
        let connection = queue.connections.pop_front()?;
        let items = queue.items.get_mut(&connection)?;
        let item = items.pop_front()?;
        if items.is_empty() {
            queue.items.remove(&connection);
        } else {
            queue.connections.push_back(connection);
        }
        queue.len -= 1;
        let left = queue.len;
        if left == 0 {
            self.queues.remove(&user);
        } else {
            self.users.push_back(user);
        }
        self.len -= 1;
        Some((user, left, item))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, Pending};
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake};

    use super::*;
    use crate::thread_time::Timed;

    fn drain(queue: &mut FairQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop(|_| true)).map(|(_, _, item)| item).collect()
    }

    /// The core's loop in model time: a turn of a millisecond, in which a command costs `cost` microseconds.
    struct Model {
        turns: Turns,
        inbox: Vec<Input>,
        micros: u64,
        served: Vec<ConnectionId>,
        each_sends_a_script: bool,
        connection: Option<Pin<Box<Timed<Pending<()>>>>>,
    }

    impl Model {
        fn send(&mut self, connection: u64, uid: u32) {
            self.turns.users.insert(ConnectionId(connection), uid);
            self.inbox.push(Input::Quit(ConnectionId(connection)));
        }

        /// Returns the number of commands that the turn has handled.
        fn turn(&mut self, cost: u64) -> usize {
            let before = self.served.len();
            let arriving = self.inbox.len().min(BATCH);
            let mut arrived: Vec<Input> = self.inbox.drain(..arriving).collect();
            let mut turn = self.turns.begin(&mut arrived, self.now());
            while let Some((user, input)) = turn.next(&mut self.turns) {
                self.micros += cost;
                self.served.extend(input.connection());
                if self.each_sends_a_script {
                    self.turns.on_sent(user, self.now());
                }
                if turn.is_over(self.now()) {
                    break;
                }
            }
            turn.end(&mut self.turns);
            self.served.len() - before
        }

        fn new() -> Self {
            Self {
                turns: Turns::new(ThreadTime::default()),
                inbox: Vec::new(),
                micros: 0,
                served: Vec::new(),
                each_sends_a_script: false,
                connection: None,
            }
        }

        fn now(&self) -> Moment {
            Moment::from_micros(self.micros)
        }
    }

    /// Renewals are handled between two turns.
    #[test]
    fn a_flood_delays_renewals_by_one_turn_and_one_command_at_most() {
        for (cost, most) in [(1, BATCH), (10, 100), (300, 4), (5_000, 1)] {
            let mut model = Model::new();
            for i in 0..10_000 {
                model.send(i % 400, 1_000);
            }
            let mut handled = 0;
            while handled < 10_000 {
                let since = model.now();
                let turn = model.turn(cost);
                assert!((1..=most).contains(&turn), "{turn} commands of {cost} µs in a turn");
                assert!(model.now().since(since) < TURN + Duration::from_micros(cost));
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
                model.served[before..].contains(&ConnectionId(9_999))
            });
            assert!(waited.is_some_and(|turns| turns <= 2), "{waited:?} turns at {pair}");
        }
    }

    #[test]
    fn a_user_with_many_scripts_under_way_waits_for_replies_but_not_for_a_silent_redis() {
        let mut model = Model { each_sends_a_script: true, ..Model::new() };
        for i in 0..3 * MOST_SCRIPTS as u64 {
            model.send(i % 400, 1_000);
        }
        let mut handled = 0;
        while !model.inbox.is_empty() {
            handled += model.turn(1);
        }
        assert_eq!((handled, model.turns.len()), (MOST_SCRIPTS, 2 * MOST_SCRIPTS));
        assert_eq!(model.turn(1), 0);
        model.send(9_999, 1_001);
        assert_eq!(model.turn(1), 1, "another user does not wait");
        for _ in 0..3 {
            model.turns.on_answered(Some(1_000), model.now());
        }
        assert_eq!(model.turn(1), 3);
        let opens = model.turns.next_at();
        assert_eq!(opens, model.now() + SILENCE - Duration::from_micros(3));
        model.micros = opens.as_micros();
        while model.turns.len() > 0 {
            assert!(model.turn(1) > 0, "{} inputs left", model.turns.len());
        }
        for _ in 0..3 * MOST_SCRIPTS - 3 {
            model.turns.on_answered(Some(1_000), model.now());
        }
        model.turns.on_answered(Some(1_001), model.now());
        assert!(model.turns.scripts.users.is_empty());
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Returns a model with a long backlog of a user, and the sign that a connection of that user may run.
    fn backlog() -> (Model, Arc<Woken>) {
        let time = ThreadTime::default();
        let mut connection = Box::pin(time.connection(1_000, std::future::pending::<()>()));
        let mut model = Model { turns: Turns::new(time), ..Model::new() };
        for i in 0..2 * MOST_WAITING as u64 {
            model.send(i % 400, 1_000);
        }
        while !model.inbox.is_empty() {
            model.turn(1_000);
        }
        assert!(model.turns.len() > MOST_WAITING);
        let woken = Arc::<Woken>::default();
        let waker = Arc::clone(&woken).into();
        assert!(connection.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        model.connection = Some(connection);
        (model, woken)
    }

    #[test]
    fn the_connections_of_a_user_with_a_long_backlog_run_once_the_core_has_ended() {
        let (model, woken) = backlog();
        assert!(!woken.0.load(Ordering::Relaxed));
        let Model { turns, connection, .. } = model;
        drop(turns);
        assert!(woken.0.load(Ordering::Relaxed));
        drop(connection);
    }

    #[test]
    fn the_connections_of_a_user_with_a_long_backlog_wait() {
        let (mut model, woken) = backlog();
        while model.turns.len() >= MOST_WAITING {
            assert!(!woken.0.load(Ordering::Relaxed), "{} inputs left", model.turns.len());
            model.turn(1_000);
        }
        assert!(woken.0.load(Ordering::Relaxed));
    }

    #[test]
    fn a_user_with_many_sessions_gets_no_more_turns_than_a_user_with_one() {
        let mut queue = FairQueue::default();
        for (connection, item) in [(1, "a1"), (2, "a2"), (3, "a3"), (4, "a4")] {
            queue.push(Some(1000), Some(ConnectionId(connection)), item);
        }
        queue.push(Some(1001), Some(ConnectionId(9)), "b1");
        queue.push(Some(1001), Some(ConnectionId(9)), "b2");
        assert_eq!(drain(&mut queue), ["a1", "b1", "a2", "b2", "a3", "a4"]);
    }

    #[test]
    fn a_session_with_a_long_pipeline_delays_another_by_one_command_and_keeps_its_order() {
        let mut queue = FairQueue::default();
        for item in ["a1", "a2", "a3"] {
            queue.push(Some(1000), Some(ConnectionId(1)), item);
        }
        queue.push(Some(1000), Some(ConnectionId(2)), "b1");
        assert_eq!(queue.pop(|_| true), Some((Some(1000), 3, "a1")));
        queue.push(Some(1000), Some(ConnectionId(2)), "b2");
        assert_eq!(drain(&mut queue), ["b1", "a2", "b2", "a3"]);
        assert_eq!((queue.len, queue.queues.len(), queue.users.len()), (0, 0, 0));
    }
}
