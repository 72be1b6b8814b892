//! The faults of the demo, each with a lock named after it.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use harness::{Client, Foreign, Reply, Worker};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

use crate::actors::{again, forever, pause};
use crate::stage::{Place, Stage};

/// Locks whose scenes last as long as the demo. The dashboard's settings allow holds of that length, so that each lock
/// shows only the problem that it is named after.
pub(crate) const LONG: [&str; 5] =
    ["foreign:*", "overdue:*", "expired:*", "deadlock:*", "malformed:*"];

const LEAKED: &str = "leaked:invoice-run";
/// A lock that leaked before the dashboard started: it has no waiters, and no other source reports it.
const LEAKED_BEFORE: &str = "leaked:old-import";
const ORPHAN: &str = "orphan:mail-merge";
const MALFORMED: &str = "malformed:migration";
/// Two threads of one service, and the locks that each holds while it waits for the other's.
const ACCOUNTS: [&str; 2] = ["deadlock:account-a", "deadlock:account-b"];
const THREADS: [&str; 2] =
    ["7c2e5d90-41b8-4d3a-9f66-2b8f0a4c1e73:21", "7c2e5d90-41b8-4d3a-9f66-2b8f0a4c1e73:22"];

/// Starts all scenes.
pub(crate) fn play(stage: &Rc<Stage>) {
    let socket = |i: usize| stage.agents[i % 2].socket();
    again(socket(0), stuck);
    again(socket(1), starving_holder);
    for i in 0..2 {
        again(socket(i), starving_waiter);
    }
    let (frozen, folder) = (socket(1), stage.agents[1].folder().to_owned());
    forever(async move || freeze(&frozen, &folder).await);
    let (dying, folder) = (socket(0), stage.agents[0].folder().to_owned());
    forever(async move || die_holding(&dying, &folder).await);
    on(stage, foreign);
    on(stage, leak);
    on(stage, overdue);
    on(stage, expire);
    on(stage, deadlock);
    on(stage, malformed);
    on(stage, orphan);
}

/// Repeats a scene that needs no agent.
fn on(stage: &Rc<Stage>, scene: impl AsyncFn(&Place) -> Result<()> + 'static) {
    let stage = Rc::clone(stage);
    forever(async move || scene(&stage.redis).await);
}

/// Runs a job that should have ended long ago: its agent keeps renewing the lock, so it never becomes free.
async fn stuck(client: &mut Client) -> Result<()> {
    client.call("LOCK stuck:nightly-report").await?.ok()?;
    loop {
        sleep(Duration::from_secs(10)).await;
        client.call("PING").await?.ok()?;
    }
}

/// Stops a worker (SIGSTOP) that holds a lock: its agent keeps the lock, since the process lives.
async fn freeze(socket: &std::path::Path, folder: &std::path::Path) -> Result<()> {
    let mut worker = Worker::start(socket, folder, &["LOCK frozen:video-encode"])?;
    worker.line().await?;
    worker.process().freeze().await?;
    std::future::pending().await
}

/// Kills a worker that holds a lock while others wait for it.
async fn die_holding(socket: &std::path::Path, folder: &std::path::Path) -> Result<()> {
    let mut worker = Worker::start(socket, folder, &["LOCK killed:import"])?;
    worker.line().await?;
    pause(2_000, 5_000).await;
    worker.process().kill()?;
    pause(1_000, 3_000).await;
    Ok(())
}

/// Holds a fair lock with a long fixed lease: no watchdog renews it, so its holder is not stuck, but others starve.
async fn starving_holder(client: &mut Client) -> Result<()> {
    client.call("LOCK starving:export KIND fair LEASE 600000").await?.ok()?;
    loop {
        sleep(Duration::from_secs(10)).await;
        ensure!(client.call("HOLDS").await?.ok()?.items()?.len() == 1, "its lease is over");
    }
}

/// Waits in the queue without a limit; the reply is never read.
async fn starving_waiter(client: &mut Client) -> Result<()> {
    // Queues only after the holder.
    while client.call("SHOW starving:export").await?.ok()? == Reply::Null {
        pause(100, 500).await;
    }
    client.send("LOCK starving:export KIND fair").await?;
    sleep(Duration::from_secs(590)).await;
    bail!("it requests the lock again before the lease of the holder ends");
}

fn service(client: Client, holder: &str, lease_ms: u64) -> Foreign {
    let mut service = Foreign::over(client);
    holder.clone_into(&mut service.holder);
    service.lease_ms = lease_ms;
    service
}

/// Runs a Java service with Redisson, which renews without an agent.
async fn foreign(redis: &Place) -> Result<()> {
    let mut service =
        service(redis.client().await?, "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47", 15_000);
    loop {
        if service.lock("foreign:settlement").await? {
            for _ in 0..12 {
                sleep(Duration::from_secs(5)).await;
                ensure!(service.renew("foreign:settlement").await?, "someone took it away");
            }
            service.unlock("foreign:settlement").await?;
        }
        pause(2_000, 6_000).await;
    }
}

async fn leaky(redis: &Place) -> Result<Foreign> {
    Ok(service(redis.client().await?, "0b9d6a52-3c1e-4f57-a7a8-5e0c9d1b2f34:112", 30_000))
}

/// Runs a Java service whose lock an old bug has left without a time to live, so that it never expires. It is released
/// after two minutes, and leaks again.
async fn leak(redis: &Place) -> Result<()> {
    let mut service = leaky(redis).await?;
    ensure!(service.lock(LEAKED).await?, "someone else has it");
    sleep(Duration::from_secs(3)).await;
    let mut client = redis.client().await?;
    client.call(&format!("PERSIST {LEAKED}")).await?.ok()?;
    sleep(Duration::from_secs(120)).await;
    service.unlock(LEAKED).await?;
    pause(3_000, 6_000).await;
    Ok(())
}

/// Runs a service whose watchdog is repeatedly late, but just in time.
async fn overdue(redis: &Place) -> Result<()> {
    const NAME: &str = "overdue:session-sweep";
    let mut service =
        service(redis.client().await?, "c41a7f08-96d2-4b0e-8a35-d17e20b9f6a4:63", 20_000);
    ensure!(service.lock(NAME).await?, "someone else has it");
    for _ in 0..2 {
        sleep(Duration::from_millis(6_600)).await;
        ensure!(service.renew(NAME).await?, "it was lost");
    }
    loop {
        sleep(Duration::from_secs(17)).await;
        ensure!(service.renew(NAME).await?, "it was lost");
    }
}

/// Runs a service that pauses for longer than its lease, continues as if it still held the lock, and returns too late.
async fn expire(redis: &Place) -> Result<()> {
    const NAME: &str = "expired:thumbnails";
    let mut service =
        service(redis.client().await?, "e95b3c17-08fa-4c61-b2d4-63a1f7c80d59:88", 12_000);
    ensure!(service.lock(NAME).await?, "someone else has it");
    // A hold counts as renewed only after its renewals have been observed for a while.
    for _ in 0..6 {
        sleep(Duration::from_secs(4)).await;
        ensure!(service.renew(NAME).await?, "it was lost");
    }
    sleep(Duration::from_secs(15)).await;
    service.unlock(NAME).await?;
    sleep(Duration::from_secs(60)).await;
    Ok(())
}

/// Runs two threads that wait for each other: each holds a fair lock, and waits in the other's queue.
async fn deadlock(redis: &Place) -> Result<()> {
    let mut holders = Vec::new();
    for (name, thread) in ACCOUNTS.into_iter().zip(THREADS) {
        let mut holder = service(redis.client().await?, thread, 30_000);
        ensure!(holder.lock(name).await?, "someone else has it");
        holders.push((holder, name));
    }
    let mut client = redis.client().await?;
    loop {
        for (name, waiter) in ACCOUNTS.into_iter().zip([THREADS[1], THREADS[0]]) {
            queue_up(&mut client, name, waiter, Duration::from_secs(300)).await?;
        }
        for _ in 0..6 {
            sleep(Duration::from_secs(10)).await;
            for (holder, name) in &mut holders {
                ensure!(holder.renew(name).await?, "it was lost");
            }
        }
    }
}

/// Returns the keys of a fair lock's queue and of its deadlines.
fn queue_keys(name: &str) -> (String, String) {
    (format!("redisson_lock_queue:{{{name}}}"), format!("redisson_lock_timeout:{{{name}}}"))
}

/// Adds a waiter to a fair lock's queue, with this time left until its deadline.
async fn queue_up(client: &mut Client, name: &str, waiter: &str, left: Duration) -> Result<()> {
    let (queue, deadlines) = queue_keys(name);
    let deadline = clock_gettime(ClockId::Realtime).tv_sec.unsigned_abs() + left.as_secs();
    client.call(&format!("LREM {queue} 0 {waiter}")).await?.ok()?;
    client.call(&format!("RPUSH {queue} {waiter}")).await?.ok()?;
    client.call(&format!("ZADD {deadlines} {deadline}000 {waiter}")).await?.ok()?;
    Ok(())
}

/// Leaves a fair lock's queue behind: a service died while it waited, the lock was released, and no client has
/// requested it since. If it is removed, as the runbook says, it reappears after two minutes.
async fn orphan(redis: &Place) -> Result<()> {
    let mut client = redis.client().await?;
    let dead = "2f8ac6d1-70b3-4e59-8c14-d5e09b73a264:31";
    queue_up(&mut client, ORPHAN, dead, Duration::from_secs(1)).await?;
    let (queue, _) = queue_keys(ORPHAN);
    while client.call(&format!("EXISTS {queue}")).await?.int()? == 1 {
        sleep(Duration::from_secs(10)).await;
    }
    sleep(Duration::from_secs(120)).await;
    Ok(())
}

/// Writes a foreign field into a lock's hash.
async fn malformed(redis: &Place) -> Result<()> {
    let mut service =
        service(redis.client().await?, "5d60e2b4-7a19-4e8c-a3f1-90c4d8b72e16:5", 600_000);
    ensure!(service.lock(MALFORMED).await?, "someone else has it");
    let mut client = redis.client().await?;
    loop {
        // The dashboard must know it as a lock first: an unknown hash with such a field does not count as one.
        sleep(Duration::from_secs(8)).await;
        client.call(&format!("HSET {MALFORMED} progress 42")).await?.ok()?;
        sleep(Duration::from_secs(120)).await;
        client.call(&format!("HDEL {MALFORMED} progress")).await?.ok()?;
        ensure!(service.renew(MALFORMED).await?, "it was lost");
    }
}

/// Creates the state in Redis that is older than the dashboard.
pub(crate) async fn prepare(redis: &Place) -> Result<()> {
    let holder = "2f6d1c58-7b3e-4a90-9c41-e85a07d3b6f2:31";
    redis.client().await?.call(&format!("HSET {LEAKED_BEFORE} {holder} 1")).await?.ok()?;
    Ok(())
}

/// Removes what would remain in a Redis that is not private. Everything else has a short lease.
pub(crate) async fn clean_up(redis: &Place) -> Result<()> {
    leaky(redis).await?.unlock(LEAKED).await?;
    let mut client = redis.client().await?;
    client.call(&format!("DEL {MALFORMED} {LEAKED_BEFORE}")).await?.ok()?;
    for name in ACCOUNTS.into_iter().chain([ORPHAN]) {
        let (queue, deadlines) = queue_keys(name);
        client.call(&format!("DEL {name} {queue} {deadlines}")).await?.ok()?;
    }
    Ok(())
}
