//! Workers as they are in production: quick ones, crowds, long ones, and those that go wrong.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{Client, Foreign, Worker};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::stage::{Place, Stage};

/// A number below `n`, good enough for a play.
fn random(n: u64) -> u64 {
    RandomState::new().build_hasher().finish() % n
}

/// Sleeps for somewhere between two numbers of milliseconds.
async fn pause(from_ms: u64, to_ms: u64) {
    sleep(Duration::from_millis(from_ms + random(to_ms - from_ms + 1))).await;
}

/// Starts them all, each a task of its own that starts again when its agent went away.
pub(crate) async fn play(stage: Rc<Stage>) -> Result<()> {
    // Fails early, with a sentence, where the actors cannot reach Redis.
    drop(stage.redis.client().await?);
    let socket = |i: usize| stage.agents[i % 2].socket();
    for i in 0..14 {
        again(socket(i), async |client| orders(client).await);
    }
    for i in 0..10 {
        again(socket(i), async |client| hold(client, b"inventory:sku-4711", 150, 900).await);
    }
    for i in 0..3 {
        again(socket(i), async |client| hold(client, b"exports:monthly", 4_000, 9_000).await);
    }
    for name in ODD_NAMES {
        again(socket(0), async move |client| hold(client, name, 2_000, 12_000).await);
    }
    again(socket(1), reenter);
    again(socket(0), long);
    again(socket(1), fixed_lease);
    let dying = socket(0);
    let folder = stage.agents[0].folder().to_owned();
    forever(async move || die_holding(&dying, &folder).await);
    let heir = socket(0);
    again(heir, async |client| hold(client, b"import:customers", 300, 800).await);
    let (java, leak) = (Rc::clone(&stage), stage);
    forever(async move || without_agent(&java).await);
    forever(async move || leak_one(&leak).await);
    Ok(())
}

/// Runs a part again and again. One that fails (its agent was stopped, say) begins anew after a second.
fn forever(mut part: impl AsyncFnMut() -> Result<()> + 'static) {
    spawn_local(async move {
        loop {
            if part().await.is_err() {
                sleep(Duration::from_secs(1)).await;
            }
        }
    });
}

/// Runs a part again and again on a session of its own.
fn again(socket: PathBuf, mut part: impl AsyncFnMut(&mut Client) -> Result<()> + 'static) {
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

/// Takes a lock, however long that takes, works, and gives it back.
async fn hold(client: &mut Client, name: &[u8], from_ms: u64, to_ms: u64) -> Result<()> {
    // A client gives up reading after a while, so it asks again rather than waits for ever.
    let lock = [b"LOCK".as_slice(), name, b"WAIT", b"20000"];
    if client.call_args(&lock).await?.ok()? != harness::Reply::Null {
        pause(from_ms, to_ms).await;
        client.call_args(&[b"UNLOCK".as_slice(), name]).await?.ok()?;
    }
    pause(50, to_ms / 2 + 50).await;
    Ok(())
}

/// The common case: many names, each held for a moment.
async fn orders(client: &mut Client) -> Result<()> {
    let name = format!("orders:{}", 8_800 + random(60));
    hold(client, name.as_bytes(), 300, 3_000).await
}

/// Takes the same lock several times over, as nested calls do.
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

/// A job that should have ended long ago: its agent renews the lock faithfully, so it never frees itself.
async fn long(client: &mut Client) -> Result<()> {
    client.call("LOCK reports:nightly").await?.ok()?;
    loop {
        sleep(Duration::from_secs(10)).await;
        client.call("PING").await?.ok()?;
    }
}

/// A worker that wants no watchdog: the lock ends by itself.
async fn fixed_lease(client: &mut Client) -> Result<()> {
    client.call("LOCK thumbnails:batch LEASE 4000").await?.ok()?;
    pause(6_000, 10_000).await;
    Ok(())
}

/// A worker that is killed while it holds a lock that others wait for.
async fn die_holding(socket: &std::path::Path, folder: &std::path::Path) -> Result<()> {
    let mut worker = Worker::start(socket, folder, &["LOCK import:customers"])?;
    worker.line().await?;
    pause(2_000, 5_000).await;
    worker.process().kill()?;
    pause(1_000, 3_000).await;
    Ok(())
}

/// A Java service with Redisson: no agent, renews by itself.
async fn without_agent(stage: &Stage) -> Result<()> {
    let mut service = Foreign::over(stage.redis.client().await?);
    loop {
        if service.lock("payments:settlement").await? {
            for _ in 0..3 {
                sleep(Duration::from_secs(10)).await;
                ensure!(service.renew("payments:settlement").await?, "somebody took it away");
            }
            service.unlock("payments:settlement").await?;
        }
        pause(2_000, 6_000).await;
    }
}

/// Such a service, of which an old bug has taken the time to live away: this lock never ends by itself. It is
/// released after two minutes, and leaks again.
async fn leak_one(stage: &Stage) -> Result<()> {
    let mut service = leaky(&stage.redis).await?;
    ensure!(service.lock(LEAKED).await?, "somebody else has it");
    sleep(Duration::from_secs(5)).await;
    let mut client = stage.redis.client().await?;
    client.call(&format!("PERSIST {LEAKED}")).await?.ok()?;
    sleep(Duration::from_secs(120)).await;
    service.unlock(LEAKED).await?;
    pause(5_000, 10_000).await;
    Ok(())
}

const LEAKED: &str = "billing:invoice-run";

async fn leaky(redis: &Place) -> Result<Foreign> {
    let mut service = Foreign::over(redis.client().await?);
    "0b9d6a52-3c1e-4f57-a7a8-5e0c9d1b2f34:112".clone_into(&mut service.holder);
    Ok(service)
}

/// Takes away what would stay for ever in a Redis that is not ours. All else has a lease.
pub(crate) async fn clean_up(redis: &Place) -> Result<()> {
    leaky(redis).await?.unlock(LEAKED).await?;
    Ok(())
}
