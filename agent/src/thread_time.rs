//! The time of the one thread that connections and the core run on, shared by users.
//!
//! Tokio runs all tasks that are ready, one after the other. If one user has hundreds of ready connections, another user's worker
//! would wait for all of them at each step. Each user therefore has a small share of every pass of the scheduler. Connections
//! beyond it are queued and admitted in small groups in later passes, with other users' tasks in between.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The time in a pass for which a user's connections, and the core with their commands, may run.
const SHARE: Duration = Duration::from_micros(250);
/// [`SHARE`] while no other user is active, since waiting for another pass costs time.
const SHARE_ALONE: Duration = Duration::from_millis(2);
/// The time after its latest run for which a user counts as active.
const ACTIVE: Duration = Duration::from_secs(10);
/// The number of groups of connections that fit in a share. The scripts of a group go to Redis together.
const GROUPS_OF_A_SHARE: u32 = 2;
/// The maximum number of connections of a group.
const MAX_GROUP: usize = 64;
/// The maximum time that counts as used, so that one long command costs a user eight passes at most.
const MAX_USED: Duration = Duration::from_millis(2);

#[cfg(not(test))]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
use tests::now;

use crate::collections::HashMap;

/// The thread's time.
#[derive(Debug, Clone, Default)]
pub struct ThreadTime(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    users: Mutex<Users>,
    /// Notified when a connection begins to wait, or may run again.
    queued: Notify,
}

#[derive(Debug, Default)]
struct Users {
    by_uid: HashMap<u32, User>,
    /// The user whose connection ran last.
    latest: Option<u32>,
    /// The time at which the latest user took over from another one.
    changed: Option<Instant>,
}

impl Users {
    /// Returns whether more than one user is active.
    fn is_contested(&self, now: Instant) -> bool {
        self.changed.is_some_and(|changed| now.duration_since(changed) < ACTIVE)
    }

    /// Returns each user's share of a pass.
    fn share(&self, now: Instant) -> Duration {
        if self.is_contested(now) { SHARE } else { SHARE_ALONE }
    }

    /// Counts time that a user's connection has used until `now`, and lets the user's next one run.
    fn ran(&mut self, uid: u32, time: Duration, now: Instant) {
        if self.latest != Some(uid) {
            self.changed = self.latest.replace(uid).map(|_| now);
        }
        let share = self.share(now);
        if let Some(user) = self.by_uid.get_mut(&uid) {
            user.ran(time);
            user.admit(share);
        }
    }
}

#[derive(Debug, Default)]
struct User {
    connections: usize,
    /// The time used in this pass, and in earlier ones beyond their shares.
    used: Duration,
    /// The moving average of the time that a connection runs, and the core meanwhile.
    usual: Duration,
    /// The time that the core has spent on this user's commands since one of its connections last ran.
    core: Duration,
    /// Too many of its commands wait for the core.
    held_back: bool,
    /// The connections that wait for their turn, the next one first; `None` for those that have ended.
    queue: VecDeque<Option<Waker>>,
    /// The number of entries that were ever taken from the queue, which is the ticket of the first one in it.
    admitted: u64,
    /// The number of connections that were admitted and have not run since.
    about_to_run: usize,
}

impl User {
    fn may_run(&self, share: Duration) -> bool {
        self.used < share && !self.held_back
    }

    /// Counts time that the core has spent on commands.
    fn charge(&mut self, time: Duration) {
        self.used = (self.used + time).min(MAX_USED);
        self.core += time;
    }

    /// Counts the time that a connection has run.
    fn ran(&mut self, time: Duration) {
        self.used = (self.used + time).min(MAX_USED);
        self.usual = (self.usual * 7 + time + std::mem::take(&mut self.core)) / 8;
    }

    /// Adds a connection to the queue. Returns its ticket.
    fn enqueue(&mut self, waker: Waker) -> u64 {
        self.queue.push_back(Some(waker));
        self.admitted + self.queue.len() as u64 - 1
    }

    /// Admits the next group of connections once the previous one has run, if the user has time left.
    fn admit(&mut self, share: Duration) {
        if self.about_to_run > 0 || !self.may_run(share) {
            return;
        }
        let time = share / GROUPS_OF_A_SHARE;
        let group = time.as_nanos() / self.usual.as_nanos().max(1);
        let group = usize::try_from(group).unwrap_or(MAX_GROUP).clamp(1, MAX_GROUP);
        while self.about_to_run < group
            && let Some(next) = self.queue.pop_front()
        {
            self.admitted += 1;
            if let Some(waker) = next {
                self.about_to_run += 1;
                waker.wake();
            }
        }
    }

    /// Forgets a connection that waits, or is about to run.
    fn forget(&mut self, ticket: u64) {
        match ticket.checked_sub(self.admitted).and_then(|at| usize::try_from(at).ok()) {
            Some(at) => {
                if let Some(entry) = self.queue.get_mut(at) {
                    *entry = None;
                }
            }
            None => self.about_to_run -= 1,
        }
    }
}

impl ThreadTime {
    /// Starts the passes on this runtime, to its end.
    #[must_use]
    pub fn start() -> Self {
        let time = Self::default();
        let passes = time.clone();
        tokio::spawn(async move { passes.begin_passes().await });
        time
    }

    /// Wraps a connection of a user, to be spawned as a separate task: while it waits, only the waker that it was first polled with
    /// is called.
    pub fn connection<F: Future>(&self, uid: u32, connection: F) -> Timed<F> {
        self.0.users.lock().by_uid.entry(uid).or_default().connections += 1;
        Timed { time: self.clone(), uid, ticket: None, connection: Box::pin(connection) }
    }

    /// Returns whether connections of more than one user have run within the last ten seconds.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.0.users.lock().is_contested(now())
    }

    /// Counts time that the core has spent on a user's commands.
    pub fn charge(&self, uid: u32, time: Duration) {
        if let Some(user) = self.0.users.lock().by_uid.get_mut(&uid) {
            user.charge(time);
        }
    }

    /// Stops a user's connections from running, or lets them run again. Those that were admitted before still run once.
    pub fn set_held_back(&self, uid: u32, held_back: bool) {
        let mut users = self.0.users.lock();
        let share = users.share(now());
        if let Some(user) = users.by_uid.get_mut(&uid) {
            user.held_back = held_back;
            user.admit(share);
        }
        self.0.queued.notify_one();
    }

    /// Starts a new pass each time the scheduler has run all ready tasks, while connections wait. Never returns.
    async fn begin_passes(&self) {
        loop {
            self.0.queued.notified().await;
            // Returns once all ready tasks have run and the runtime has looked for new input.
            tokio::task::yield_now().await;
            while self.begin_pass() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Gives each user a share of a new pass. Returns whether connections wait for the next pass.
    fn begin_pass(&self) -> bool {
        let mut users = self.0.users.lock();
        let share = users.share(now());
        let mut more = false;
        for user in users.by_uid.values_mut() {
            user.used = user.used.saturating_sub(share);
            user.admit(share);
            more |= !user.held_back && !user.queue.is_empty();
        }
        more
    }
}

/// A connection that runs in its user's share of the time.
#[derive(Debug)]
pub struct Timed<F> {
    time: ThreadTime,
    uid: u32,
    /// Its place in the queue, while it waits.
    ticket: Option<u64>,
    connection: Pin<Box<F>>,
}

impl<F> Timed<F> {
    /// Requests a turn. Returns whether the connection may run now. If not, it joins the queue, and `waker` is called
    /// when it may run.
    fn request_turn(&mut self, waker: &Waker, now: Instant) -> bool {
        let mut users = self.time.0.users.lock();
        let share = users.share(now);
        let Some(user) = users.by_uid.get_mut(&self.uid) else { return true };
        match self.ticket {
            Some(ticket) if ticket >= user.admitted => return false,
            // In order of arrival: nobody passes those that have been admitted and have not run yet.
            None if !user.may_run(share) || !user.queue.is_empty() || user.about_to_run > 0 => {
                self.ticket = Some(user.enqueue(waker.clone()));
                self.time.0.queued.notify_one();
                return false;
            }
            None => {}
            Some(_) => {
                self.ticket = None;
                user.about_to_run -= 1;
            }
        }
        true
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let start = now();
        if !self.request_turn(cx.waker(), start) {
            return Poll::Pending;
        }
        let result = self.connection.as_mut().poll(cx);
        let end = now();
        self.time.0.users.lock().ran(self.uid, end.duration_since(start), end);
        result
    }
}

impl<F> Drop for Timed<F> {
    fn drop(&mut self) {
        let mut users = self.time.0.users.lock();
        let share = users.share(now());
        let Some(user) = users.by_uid.get_mut(&self.uid) else { return };
        if let Some(ticket) = self.ticket {
            user.forget(ticket);
            user.admit(share);
        }
        user.connections -= 1;
        if user.connections == 0 {
            users.by_uid.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::task::{JoinSet, yield_now};

    use super::*;

    const FLOOD: u32 = 1000;
    const QUIET: u32 = 1001;

    thread_local! {
        static START: Instant = Instant::now();
        static WORKED: Cell<Duration> = Cell::default();
    }

    /// Returns the time of this thread's clock, which only advances with work.
    pub(super) fn now() -> Instant {
        START.with(|start| *start) + WORKED.get()
    }

    fn work(time: Duration) {
        WORKED.set(WORKED.get() + time);
    }

    /// Runs tasks in one thread, each with a count of its turns.
    struct Model {
        time: ThreadTime,
        tasks: JoinSet<()>,
        turns_of_flood: Arc<AtomicUsize>,
    }

    impl Model {
        fn new() -> Self {
            Self {
                time: ThreadTime::start(),
                tasks: JoinSet::new(),
                turns_of_flood: Arc::default(),
            }
        }

        /// Adds connections that always have work, each turn of which takes that long.
        fn flood(&mut self, connections: usize, turn: Duration) -> Vec<Arc<AtomicUsize>> {
            let mut counts = Vec::new();
            for _ in 0..connections {
                let count = Arc::<AtomicUsize>::default();
                let (mine, all) = (Arc::clone(&count), Arc::clone(&self.turns_of_flood));
                self.tasks.spawn(self.time.connection(FLOOD, async move {
                    loop {
                        work(turn);
                        mine.fetch_add(1, Ordering::Relaxed);
                        all.fetch_add(1, Ordering::Relaxed);
                        yield_now().await;
                    }
                }));
                counts.push(count);
            }
            counts
        }

        /// Returns the most turns of the flood between two turns of a quiet user.
        async fn most_between(&self, turns: usize) -> usize {
            let all = Arc::clone(&self.turns_of_flood);
            let quiet = self.time.connection(QUIET, async move {
                let mut most = 0;
                for _ in 0..turns {
                    let before = all.load(Ordering::Relaxed);
                    yield_now().await;
                    most = most.max(all.load(Ordering::Relaxed) - before);
                }
                most
            });
            tokio::spawn(quiet).await.unwrap()
        }
    }

    #[tokio::test]
    async fn a_quiet_user_waits_for_few_turns_of_a_user_with_many_connections() {
        let mut model = Model::new();
        let counts = model.flood(400, SHARE);
        model.most_between(1).await;
        let most = model.most_between(1_000).await;
        assert!((1..=3).contains(&most), "{most} turns between two of the quiet user's");
        let counts = counts.iter().map(|count| count.load(Ordering::Relaxed));
        let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
        assert!(least > 0 && most - least <= 1, "{least} to {most} turns of each connection");
    }

    #[tokio::test]
    async fn short_turns_run_in_groups() {
        let mut model = Model::new();
        model.flood(400, SHARE / 20);
        model.most_between(100).await;
        let most = model.most_between(500).await;
        assert!((5..=40).contains(&most), "{most} turns between two of the quiet user's");
    }

    #[tokio::test]
    async fn a_user_alone_is_not_divided_into_passes_until_another_one_comes() {
        let mut model = Model::new();
        model.flood(100, SHARE / 10);
        let all = Arc::clone(&model.turns_of_flood);
        let mut most = 0;
        for _ in 0..20 {
            let before = all.load(Ordering::Relaxed);
            yield_now().await;
            most = most.max(all.load(Ordering::Relaxed) - before);
        }
        assert!(most > 40, "{most} turns in a pass");
        model.most_between(100).await;
        let most = model.most_between(100).await;
        assert!(most <= 30, "{most} turns between two of the quiet user's");
    }

    #[tokio::test]
    async fn a_user_who_is_held_back_runs_again_afterwards() {
        let mut model = Model::new();
        let counts = model.flood(3, SHARE);
        model.most_between(10).await;
        model.time.set_held_back(FLOOD, true);
        // One may have been about to run.
        model.most_between(1).await;
        let before = model.turns_of_flood.load(Ordering::Relaxed);
        model.most_between(100).await;
        assert_eq!(model.turns_of_flood.load(Ordering::Relaxed), before);
        model.time.set_held_back(FLOOD, false);
        while counts.iter().any(|count| count.load(Ordering::Relaxed) < before) {
            yield_now().await;
        }
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_connection_that_ends_before_its_turn_lets_the_next_one_run() {
        let time = ThreadTime::default();
        let mut first = Box::pin(time.connection(FLOOD, std::future::pending::<()>()));
        let mut second = Box::pin(time.connection(FLOOD, std::future::pending::<()>()));
        for _ in 0..100 {
            time.0.users.lock().ran(FLOOD, MAX_USED, now());
        }
        let woken = [Arc::<Woken>::default(), Arc::default()];
        for (connection, woken) in [&mut first, &mut second].into_iter().zip(&woken) {
            let waker = Arc::clone(woken).into();
            assert!(connection.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let woken = || woken.each_ref().map(|woken| woken.0.load(Ordering::Relaxed));
        assert_eq!(woken(), [false, false]);
        time.begin_pass();
        assert_eq!(woken(), [true, false]);
        drop(first);
        assert_eq!(woken(), [true, true]);
    }

    #[test]
    fn connections_run_in_order_of_arrival() {
        let time = ThreadTime::default();
        let mut first = Box::pin(time.connection(FLOOD, std::future::ready(())));
        let mut second = Box::pin(time.connection(FLOOD, std::future::ready(())));
        for _ in 0..100 {
            time.0.users.lock().ran(FLOOD, MAX_USED, now());
        }
        let woken = Arc::<Woken>::default();
        let waker = Arc::clone(&woken).into();
        let mut cx = Context::from_waker(&waker);
        assert!(first.as_mut().poll(&mut cx).is_pending());
        while time.begin_pass() {}
        // The first one is admitted, and the second one, which is ready only now, happens to be polled before it.
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(first.as_mut().poll(&mut cx).is_ready());
        assert!(second.as_mut().poll(&mut cx).is_ready(), "the next one follows at once");
    }

    #[tokio::test]
    async fn connections_that_end_while_they_wait_let_others_run() {
        let mut model = Model::new();
        model.flood(20, SHARE);
        model.most_between(5).await;
        let mut waiting = JoinSet::new();
        for _ in 0..20 {
            waiting.spawn(model.time.connection(FLOOD, std::future::pending::<()>()));
        }
        yield_now().await;
        waiting.shutdown().await;
        let before = model.turns_of_flood.load(Ordering::Relaxed);
        while model.turns_of_flood.load(Ordering::Relaxed) < before + 100 {
            yield_now().await;
        }
        model.tasks.shutdown().await;
        assert!(model.time.0.users.lock().by_uid.is_empty());
    }
}
