//! Workers as they are in production: quick ones, crowds, readers, those with odd names. The faults are in [`scenes`].

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use harness::Client;
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::scenes;
use crate::stage::Stage;

/// Returns a number below `n`, random enough for the demo.
fn random(n: u64) -> u64 {
    RandomState::new().build_hasher().finish() % n
}

/// Sleeps for a random time between two numbers of milliseconds.
pub(crate) async fn pause(from_ms: u64, to_ms: u64) {
    sleep(Duration::from_millis(from_ms + random(to_ms - from_ms + 1))).await;
}

/// Starts all actors, each in a separate task that restarts after its agent has ended.
pub(crate) async fn play(stage: Rc<Stage>) -> Result<()> {
    // Fails early, with a clear message, if the actors cannot reach Redis.
    drop(stage.redis.client().await?);
    let socket = |i: usize| stage.agents[i % 2].socket();
    for i in 0..14 {
        again(socket(i), orders);
    }
    for i in 0..10 {
        again(socket(i), async |client| hold(client, b"contended:sku-4711", 150, 900).await);
    }
    for i in 0..3 {
        again(socket(i), async |client| hold(client, b"exports:monthly", 2_000, 4_500).await);
    }
    for i in 0..5 {
        again(socket(i), async |client| hold_as(client, "fair", b"fair:printer", 800, 2_500).await);
    }
    for i in 0..4 {
        again(socket(i), async |client| hold_as(client, "read", PRICES, 1_000, 3_000).await);
    }
    again(socket(1), write_prices);
    again(socket(0), async |client| {
        hold_as(client, "fenced", b"fenced:ledger", 1_000, 4_000).await
    });
    for name in ODD_NAMES {
        again(socket(0), async move |client| hold(client, name, 2_000, 12_000).await);
    }
    again(socket(1), reenter);
    again(socket(1), fixed_lease);
    again(socket(0), async |client| hold(client, b"killed:import", 300, 800).await);
    scenes::play(&stage);
    Ok(())
}

/// The lock that readers share and a writer sometimes acquires.
const PRICES: &[u8] = b"read-write:prices";

/// Runs a part again and again. After a failure (its agent was stopped, say) it restarts after a second.
pub(crate) fn forever(mut part: impl AsyncFnMut() -> Result<()> + 'static) {
    spawn_local(async move {
        loop {
            if part().await.is_err() {
                sleep(Duration::from_secs(1)).await;
            }
        }
    });
}

/// Runs a part again and again, each time in a new session.
pub(crate) fn again(
    socket: PathBuf,
    mut part: impl AsyncFnMut(&mut Client) -> Result<()> + 'static,
) {
    forever(async move || {
        let mut client = Client::unix(&socket).await?;
        client.call("CLIENT SETNAME demo").await?.ok()?;
        loop {
            part(&mut client).await?;
        }
    });
}

const ODD_NAMES: [&[u8]; 6] = [
    "café ⚡ żółw".as_bytes(),
    b"<script>alert('x')</script>",
    b"a{b",
    b"raw\xff\xfe\x00bytes",
    b"two\nlines",
    "order\u{202e}321".as_bytes(),
];

/// Acquires a lock, however long that takes, works, and releases it.
async fn hold(client: &mut Client, name: &[u8], from_ms: u64, to_ms: u64) -> Result<()> {
    hold_as(client, "lock", name, from_ms, to_ms).await
}

/// Does the same with a lock of any kind.
async fn hold_as(
    client: &mut Client,
    kind: &str,
    name: &[u8],
    from_ms: u64,
    to_ms: u64,
) -> Result<()> {
    let kind = kind.as_bytes();
    // A client stops reading after a while, so it asks again rather than waits forever.
    let lock = [b"LOCK".as_slice(), name, b"KIND", kind, b"WAIT", b"20000"];
    if client.call_args(&lock).await?.ok()? != harness::Reply::Null {
        pause(from_ms, to_ms).await;
        client.call_args(&[b"UNLOCK".as_slice(), name, b"KIND", kind]).await?.ok()?;
    }
    pause(50, to_ms / 2 + 50).await;
    Ok(())
}

/// Writes to a read-write lock: rarely and briefly.
async fn write_prices(client: &mut Client) -> Result<()> {
    pause(4_000, 8_000).await;
    hold_as(client, "write", PRICES, 500, 1_500).await
}

/// Holds many names, each for a moment: the common case.
async fn orders(client: &mut Client) -> Result<()> {
    let name = format!("orders:{}", 8_800 + random(60));
    hold(client, name.as_bytes(), 300, 3_000).await
}

/// Acquires the same lock several times, as nested calls do.
async fn reenter(client: &mut Client) -> Result<()> {
    for _ in 0..3 {
        client.call("LOCK checkout:cart:77").await?.ok()?;
        pause(500, 1_500).await;
    }
    for _ in 0..3 {
        client.call("UNLOCK checkout:cart:77").await?.ok()?;
        pause(500, 1_500).await;
    }
    Ok(())
}

/// Holds a lock with a fixed lease, which nobody renews.
async fn fixed_lease(client: &mut Client) -> Result<()> {
    client.call("LOCK fixed-lease:batch LEASE 4000").await?.ok()?;
    pause(6_000, 10_000).await;
    Ok(())
}
