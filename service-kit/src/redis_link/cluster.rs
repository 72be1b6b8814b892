//! Which node of a cluster serves which slot, as the nodes tell it.

mod view;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio_util::sync::DropGuard;

pub use self::view::Slots;
use self::view::View;
use super::deployment::ClusterTarget;
use super::greeting::{self, Greeting};
use super::target::Address;
use crate::shutdown::Shutdown;

/// Nodes asked at once: one may be gone, and one may not have heard the news.
const AT_ONCE: usize = 3;
/// How often they are asked while all is well.
const CALM: Duration = Duration::from_secs(5);
/// The same while something is not, until the cluster has mended itself.
const HURRY: Duration = Duration::from_millis(250);
/// However often somebody wants to know, the nodes have that long between two questions.
const LEAST: Duration = Duration::from_millis(50);

/// How a [`Cluster`] asks.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// What CLIENT LIST shows; without spaces.
    pub name: String,
    /// The limit for reaching a node, TLS included.
    pub connect_timeout: Duration,
    /// The limit for its answers.
    pub response_timeout: Duration,
}

/// What is known of a cluster. Told anew after each round of questions, changed or not.
#[derive(Debug, Clone, Default)]
pub struct ClusterState {
    /// Who serves what, as far as anybody has told.
    pub slots: Arc<Slots>,
    /// Why the latest round brought no answer, if it did not.
    pub trouble: Option<String>,
}

/// Keeps track of a cluster, by short connections to some of its nodes. Clones share it; it ends with the last of them,
/// or with its stage of shutdown.
#[derive(Debug, Clone)]
pub struct Cluster {
    target: Arc<ClusterTarget>,
    state: watch::Receiver<ClusterState>,
    wishes: Arc<Wishes>,
    _stop_with_last_handle: Arc<DropGuard>,
}

#[derive(Debug, Default)]
struct Wishes {
    refresh: Notify,
    hurry: AtomicBool,
}

impl Cluster {
    /// Starts asking. Returns at once.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(target: ClusterTarget, options: ClusterOptions, shutdown: &Shutdown) -> Self {
        let target = Arc::new(target);
        let wishes = Arc::new(Wishes::default());
        let (sender, state) = watch::channel(ClusterState::default());
        let greeting = Greeting {
            name: options.name,
            no_touch: false,
            load: Vec::new(),
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
        };
        let asker = Asker {
            target: Arc::clone(&target),
            greeting,
            best: None,
            turn: 0,
            state: sender,
            wishes: Arc::clone(&wishes),
        };
        let stopped = shutdown.child_token();
        let stop = stopped.clone().drop_guard();
        shutdown.spawn(format!("cluster {target}"), async move {
            stopped.run_until_cancelled(asker.run()).await;
        });
        Self { target, state, wishes, _stop_with_last_handle: Arc::new(stop) }
    }

    /// What is known, and its changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<ClusterState> {
        self.state.clone()
    }

    /// Which cluster.
    #[must_use]
    pub fn target(&self) -> &ClusterTarget {
        &self.target
    }

    /// A node as the cluster names it in its replies; without a host it is on that of `beside`, which said so.
    #[must_use]
    pub fn address(&self, host: &str, port: u16, beside: &Address) -> Address {
        view::address(&self.target, host, port, beside)
    }

    /// Somebody has met with a sign of change: ask soon.
    pub fn refresh(&self) {
        self.wishes.refresh.notify_one();
    }

    /// Whether something is amiss, so that the cluster is about to change: then it is asked often.
    pub fn hurry(&self, on: bool) {
        if self.wishes.hurry.swap(on, Ordering::Relaxed) != on && on {
            self.refresh();
        }
    }
}

struct Asker {
    target: Arc<ClusterTarget>,
    greeting: Greeting,
    /// The view that is told.
    best: Option<View>,
    /// Which nodes have their turn.
    turn: usize,
    state: watch::Sender<ClusterState>,
    wishes: Arc<Wishes>,
}

impl Asker {
    async fn run(mut self) {
        loop {
            let looked = self.look().await;
            let well = looked.is_ok();
            self.tell(looked);
            let hurry = !well || self.wishes.hurry.load(Ordering::Relaxed);
            let pause = if hurry { HURRY } else { CALM };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wishes.refresh.notified() => tokio::time::sleep(LEAST).await,
            }
        }
    }

    fn tell(&mut self, looked: Result<View, String>) {
        let known = self.state.borrow().trouble.clone();
        let trouble = match looked {
            Ok(view) => {
                let slots = &view.slots;
                if self.best.as_ref().is_none_or(|best| best.slots != *slots) {
                    let masters: Vec<_> = slots.masters().iter().map(ToString::to_string).collect();
                    tracing::info!(
                        redis.cluster = %self.target, masters = masters.join(", "),
                        unserved = slots.unserved(), "the masters of the cluster"
                    );
                }
                self.best = Some(view);
                None
            }
            Err(reason) => {
                if known.as_ref() != Some(&reason) {
                    tracing::warn!(redis.cluster = %self.target, reason, "no node of the cluster tells who serves what");
                }
                Some(reason)
            }
        };
        let slots = self.best.as_ref().map(|view| Arc::clone(&view.slots)).unwrap_or_default();
        self.state.send_replace(ClusterState { slots, trouble });
    }

    /// Asks some nodes, and all the others where these bring nothing as new as what is known.
    async fn look(&mut self) -> Result<View, String> {
        let nodes = self.nodes();
        self.turn = self.turn.wrapping_add(1);
        let known = self.best.as_ref().map_or(0, |best| best.epoch);
        let mut best: Option<View> = None;
        let mut reason = "it names no node".to_owned();
        for some in nodes.chunks(AT_ONCE) {
            for answer in join_all(some.iter().map(|node| self.ask(node))).await {
                match answer {
                    Ok(view) => {
                        let better = best.as_ref().is_none_or(|best| self.prefers(&view, best));
                        best = if better { Some(view) } else { best };
                    }
                    Err(why) => reason = why,
                }
            }
            if best.as_ref().is_some_and(|best| best.well && best.epoch >= known) {
                break;
            }
        }
        best.ok_or(reason)
    }

    /// Of two views that are as new as one another the one that is told already: who says something else may not have
    /// heard of the latest change yet, and in the end all of them say the same.
    fn prefers(&self, view: &View, to: &View) -> bool {
        let told = |view: &View| self.best.as_ref().is_some_and(|best| best.slots == view.slots);
        let rank =
            |view: &View| (view.well, view.epoch, told(view), u32::MAX - view.slots.unserved());
        rank(view) > rank(to)
    }

    /// All nodes that are known, those that are named behind the others, beginning with another one each time.
    fn nodes(&self) -> Vec<Address> {
        let mut nodes: Vec<Address> = Vec::new();
        if let Some(best) = &self.best {
            nodes.extend(best.slots.masters().iter().chain(&best.replicas).cloned());
            let first = self.turn % nodes.len().max(1);
            nodes.rotate_left(first);
        }
        nodes.extend_from_slice(self.target.seeds());
        let mut seen = HashSet::new();
        nodes.retain(|node| seen.insert(node.clone()));
        nodes
    }

    async fn ask(&self, node: &Address) -> Result<View, String> {
        let target = self.target.node(node.clone());
        let connected = greeting::connect(&target, &self.greeting).await;
        let (mut wire, _) = connected.map_err(|error| error.to_string())?;
        let limit = self.greeting.response_timeout;
        let asked = tokio::time::timeout(limit, view::ask(&mut wire, &self.target, node)).await;
        asked.unwrap_or_else(|_| Err(format!("{node} does not answer within {limit:?}")))
    }
}
