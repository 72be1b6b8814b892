//! Tests of the kit against real servers: each test starts its own redis-server processes.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy takes only #[test] functions for tests; all of this crate is one"
)]

mod checks;
mod hostile;
mod http;
mod link;
mod monitor;
mod outages;
mod proxy;
mod server;
mod signals;
mod subscriber;
mod tls;

use std::time::Duration;

use service_kit::redis::{Link, LinkOptions, LinkStatus, SubscriberOptions, Target};
use service_kit::shutdown::Shutdown;
use tokio::time::Instant;

/// Far more than anything here needs: only failures wait this long.
const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a future that must end.
async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

fn target(url: &str) -> Target {
    url.parse().unwrap()
}

/// Options that notice an outage quickly, but suit a loaded machine.
fn link_options() -> LinkOptions {
    LinkOptions {
        response_timeout: Duration::from_millis(300),
        heartbeat: Duration::from_millis(100),
        ..LinkOptions::new("kit-test")
    }
}

fn subscriber_options() -> SubscriberOptions {
    SubscriberOptions {
        response_timeout: Duration::from_millis(300),
        heartbeat: Duration::from_millis(100),
        ..SubscriberOptions::new("kit-pubsub")
    }
}

/// Starts a link that never treats slowness as an outage.
fn patient_link(url: &str, shutdown: &Shutdown) -> Link {
    let options = LinkOptions { response_timeout: DEADLINE, ..LinkOptions::new("kit-test") };
    Link::start(target(url), options, shutdown)
}

async fn up(link: &Link) -> std::sync::Arc<service_kit::redis::ServerInfo> {
    in_time("the link is up", link.up()).await.unwrap()
}

/// Waits until the link is down for a reason with `word` in it.
async fn down(link: &Link, word: &str) {
    let mut state = link.state();
    let is_down = |status: &LinkStatus| matches!(status, LinkStatus::Down { reason, .. } if reason.contains(word));
    let waited =
        tokio::time::timeout(DEADLINE, state.wait_for(|state| is_down(&state.status))).await;
    if waited.is_err() {
        panic!("not down because of {word:?}: {link:?}");
    }
}
