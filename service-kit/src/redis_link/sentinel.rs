//! Which server is the master, as sentinels tell it.
//!
//! One of them is listened to, so that a failover is known at once. But only answers are believed: a question brings the
//! truth of the moment, and a message that was missed brings nothing.

mod ear;
mod view;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::DropGuard;

use self::ear::Ear;
use self::view::{View, choose};
use super::error::ConnectError;
use super::greeting::{self, Greeting};
use super::resp::Wire;
use super::target::{Address, Target};
use crate::shutdown::Shutdown;

/// How often one of them is asked, each in its turn, while one is listened to: that one may be cut off from the others.
const CALM: Duration = Duration::from_secs(5);
/// How often while none can be listened to, or none answers.
const HURRY: Duration = Duration::from_secs(1);
/// However often a connection breaks, they have that long between two questions.
const LEAST: Duration = Duration::from_millis(200);
/// How long the others have to contradict the first that answers.
const GRACE: Duration = Duration::from_millis(100);
/// How long a connection waits for the first answer of all.
const FIRST: Duration = Duration::from_secs(1);

/// A master that is known by its name, and some of the sentinels that watch it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelTarget {
    /// With the login and the database of the master, at the first sentinel's address.
    pub(super) master: Target,
    /// The sentinels, at least one, each with its login.
    pub(super) sentinels: Vec<Target>,
    /// The name they know the master by.
    pub(super) name: String,
}

impl SentinelTarget {
    /// The name that the sentinels know the master by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// How sentinels are asked.
#[derive(Debug, Clone)]
pub struct SentinelOptions {
    /// What CLIENT LIST shows; without spaces.
    pub name: String,
    /// The limit for reaching one, TLS included.
    pub connect_timeout: Duration,
    /// The limit for its answers.
    pub response_timeout: Duration,
}

#[derive(Debug, Clone, Default)]
struct Known {
    best: Option<View>,
    /// Why the latest round brought no answer, if it did not.
    trouble: Option<String>,
}

/// Keeps track of a master. Clones share it; it ends with the last of them, or with its stage of shutdown.
#[derive(Debug, Clone)]
pub struct Sentinel {
    target: Arc<SentinelTarget>,
    known: watch::Receiver<Known>,
    signs: Arc<Signs>,
    _stop_with_last_handle: Arc<DropGuard>,
}

/// Reasons to ask before it is time.
#[derive(Debug, Default)]
struct Signs {
    /// A sentinel has told of another master.
    switched: Notify,
    /// Something is amiss with a connection.
    doubt: Notify,
    /// Whether a sentinel is listened to.
    hears: AtomicBool,
}

impl Sentinel {
    /// Starts asking. Returns at once.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(target: SentinelTarget, options: SentinelOptions, shutdown: &Shutdown) -> Self {
        let target = Arc::new(target);
        let signs = Arc::new(Signs::default());
        let (sender, known) = watch::channel(Known::default());
        let greeting = Greeting {
            name: options.name,
            no_touch: false,
            load: Vec::new(),
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
        };
        let ear = Ear {
            target: Arc::clone(&target),
            greeting: greeting.clone(),
            signs: Arc::clone(&signs),
        };
        let asker = Asker {
            target: Arc::clone(&target),
            greeting,
            turn: 0,
            known: sender,
            signs: Arc::clone(&signs),
        };
        let stopped = shutdown.child_token();
        let stop = stopped.clone().drop_guard();
        shutdown.spawn(format!("sentinels of {}", target.name), async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                never = asker.run() => match never {},
                never = ear.run() => match never {},
            }
        });
        Self { target, known, signs, _stop_with_last_handle: Arc::new(stop) }
    }

    /// Whose master.
    #[must_use]
    pub fn target(&self) -> &SentinelTarget {
        &self.target
    }

    /// The same master with another login or database, by the same sentinels.
    pub(super) fn seen_as(&self, change: impl FnOnce(Target) -> Target) -> Self {
        let mut target = SentinelTarget::clone(&self.target);
        target.master = change(target.master);
        Self { target: Arc::new(target), ..self.clone() }
    }

    /// The master, with its login; or why nobody knows it.
    pub(super) async fn master(&self) -> Result<Target, String> {
        let mut known = self.known.clone();
        let told = known.wait_for(|known| known.best.is_some() || known.trouble.is_some());
        let none = || "no sentinel has told yet which server is the master".to_owned();
        let Ok(Ok(known)) = timeout(FIRST, told).await else { return Err(none()) };
        match (&known.best, &known.trouble) {
            (Some(view), _) => Ok(self.target.master.at(view.master.clone())),
            (None, trouble) => Err(trouble.clone().unwrap_or_else(none)),
        }
    }

    /// Waits until another server than this is the master; any that is known, where this is none.
    pub(super) async fn other_than(&self, address: Option<&Address>) {
        let mut known = self.known.clone();
        let other = known.wait_for(|known| {
            known.best.as_ref().is_some_and(|best| Some(&best.master) != address)
        });
        if other.await.is_err() {
            // Nobody asks any more: the connection ends with its own stage.
            std::future::pending::<()>().await;
        }
    }

    /// Somebody has met with a sign of change: ask soon.
    pub(super) fn doubt(&self) {
        self.signs.doubt.notify_one();
    }
}

struct Asker {
    target: Arc<SentinelTarget>,
    greeting: Greeting,
    /// Whose turn it is.
    turn: usize,
    known: watch::Sender<Known>,
    signs: Arc<Signs>,
}

impl Asker {
    async fn run(mut self) -> Infallible {
        let mut all = true;
        loop {
            let looked = if all { self.ask_all(None).await } else { self.ask_one().await };
            let well = looked.is_ok();
            self.tell(looked);
            let calm = well && self.signs.hears.load(Ordering::Relaxed);
            let pause = if calm { CALM } else { HURRY };
            let asked = Instant::now();
            let doubt = async {
                self.signs.doubt.notified().await;
                sleep_until(asked + LEAST).await;
            };
            all = tokio::select! {
                () = sleep(pause) => !well,
                () = doubt => true,
                () = self.signs.switched.notified() => true,
            };
        }
    }

    fn tell(&self, looked: Result<View, String>) {
        let before = self.known.borrow().clone();
        let next = match looked {
            Ok(view) => Known { best: Some(view), trouble: None },
            Err(reason) => Known { trouble: Some(reason), best: before.best.clone() },
        };
        let master = |known: &Known| known.best.as_ref().map(|view| view.master.clone());
        if let Some(master) = master(&next).filter(|now| master(&before).as_ref() != Some(now)) {
            tracing::info!(redis.sentinels = %self.target, %master, "the master that the sentinels name");
        }
        if let Some(reason) = &next.trouble
            && before.trouble.as_ref() != Some(reason)
        {
            tracing::warn!(redis.sentinels = %self.target, reason, "no sentinel tells which server is the master");
        }
        self.known.send_replace(next);
    }

    /// Asks the one whose turn it is, and all where it says anything new, or nothing.
    async fn ask_one(&mut self) -> Result<View, String> {
        let sentinels = &self.target.sentinels;
        self.turn = (self.turn + 1) % sentinels.len().max(1);
        let known = self.known.borrow().best.clone();
        let answer = match sentinels.get(self.turn) {
            Some(sentinel) => self.ask(sentinel).await.ok(),
            None => None,
        };
        match answer {
            Some(view) if Some(&view) == known.as_ref() => Ok(view),
            answer => self.ask_all(answer.map(|view| (self.turn, view))).await,
        }
    }

    /// Asks all of them at once: one that is gone holds nobody up, and who has heard of the latest failover is right. One
    /// may have answered already, and is heard however slow it is.
    async fn ask_all(&self, answered: Option<(usize, View)>) -> Result<View, String> {
        let known = self.known.borrow().best.clone();
        let sentinels = &self.target.sentinels;
        let mut asked: FuturesUnordered<_> = sentinels
            .iter()
            .enumerate()
            .filter(|(place, _)| answered.as_ref().is_none_or(|(answered, _)| place != answered))
            .map(|(place, sentinel)| async move { (place, self.ask(sentinel).await) })
            .collect();
        let mut until = answered.as_ref().map(|_| Instant::now() + GRACE);
        let mut views: Vec<View> = answered.iter().map(|(_, view)| view.clone()).collect();
        let mut reasons = Vec::new();
        loop {
            let next = match until {
                Some(until) => timeout_at(until, asked.next()).await.unwrap_or(None),
                None => asked.next().await,
            };
            match next {
                Some((_, Ok(view))) => {
                    views.push(view);
                    until.get_or_insert_with(|| Instant::now() + GRACE);
                }
                Some((place, Err(reason))) => reasons.push((place, reason)),
                None => break,
            }
        }
        if views.is_empty() {
            reasons.sort();
            let reasons: Vec<String> = reasons.into_iter().map(|(_, reason)| reason).collect();
            return Err(reasons.join("; "));
        }
        // Where there are answers there is at least one view: what is known stands in for none.
        let chosen = choose(&views, sentinels.len(), known.as_ref());
        chosen.or(known).ok_or_else(|| "no sentinel is named".to_owned())
    }

    async fn ask(&self, sentinel: &Target) -> Result<View, String> {
        let mut wire = connect(sentinel, &self.greeting).await?;
        let limit = self.greeting.response_timeout;
        let asked = view::ask(&mut wire, &self.target.name, sentinel.uses_tls());
        timeout(limit, asked)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
            .map_err(|reason| format!("sentinel {}: {reason}", sentinel.address()))
    }
}

async fn connect(sentinel: &Target, greeting: &Greeting) -> Result<Wire, String> {
    match greeting::connect(sentinel, greeting).await {
        Ok((wire, _)) => Ok(wire),
        // It names the address itself.
        Err(error @ ConnectError::Unreachable { .. }) => Err(format!("sentinel: {error}")),
        Err(error) => Err(format!("sentinel {}: {error}", sentinel.address())),
    }
}

/// As a URL, the passwords masked or left out.
impl fmt::Display for SentinelTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.master.uses_tls() { "rediss" } else { "redis" };
        write!(f, "{scheme}+sentinel://")?;
        match (self.master.user(), self.master.password()) {
            (user, Some(password)) => write!(f, "{}:{password}@", user.unwrap_or(""))?,
            (Some(user), None) => write!(f, "{user}@")?,
            (None, None) => {}
        }
        for (place, sentinel) in self.sentinels.iter().enumerate() {
            write!(f, "{}{}", if place == 0 { "" } else { "," }, sentinel.address())?;
        }
        write!(f, "/{}", self.name)?;
        if self.master.db() != 0 {
            write!(f, "/{}", self.master.db())?;
        }
        Ok(())
    }
}
