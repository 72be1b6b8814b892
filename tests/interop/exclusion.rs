//! Never two at once: a counter in Redis, read and then written under the lock, by Java threads and the agent's
//! sessions mixed. Each write is noted in a list; two that were inside together note the same number.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::{Client, Jvm, RedisServer, Worker, eventually, within};

use super::bed::{kinds, lock, open, unlock, version};
use super::{Bed, JavaLock, Kind};

/// Set and noted in one step, so that a worker killed within leaves both or neither.
const WRITE: &str =
    "redis.call('set', KEYS[1], ARGV[1]) redis.call('rpush', KEYS[2], ARGV[1] .. ' ours')";

/// How long ten thousand sections may take on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(240);

/// Reads the counter and writes one more.
pub(crate) async fn count(direct: &mut Client, counter: &str) -> Result<()> {
    let next = read(direct, counter).await? + 1;
    write(direct, counter, next).await
}

async fn read(direct: &mut Client, counter: &str) -> Result<i64> {
    Ok(match direct.call_args(&["GET", counter]).await?.ok()? {
        harness::Reply::Null => 0,
        value => value.text().parse()?,
    })
}

async fn write(direct: &mut Client, counter: &str, value: i64) -> Result<()> {
    let (log, value) = (format!("{counter}:log"), value.to_string());
    direct.call_args(&["EVAL", WRITE, "2", counter, &log, &value]).await?.ok()?;
    Ok(())
}

/// What the notes of all sections show.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Sections in all.
    pub(crate) total: usize,
    /// How often the next section was by the other side.
    pub(crate) turns: usize,
}

/// Asserts that each number was written once.
pub(crate) async fn tally(direct: &mut Client, counter: &str) -> Result<Tally> {
    let total = usize::try_from(read(direct, counter).await?)?;
    let log = direct.call_args(&["LRANGE", &format!("{counter}:log"), "0", "-1"]).await?.ok()?;
    let notes: Vec<String> = log.items()?.iter().map(harness::Reply::text).collect();
    for (note, expected) in notes.iter().zip(1..) {
        let number: i64 = note.split(' ').next().unwrap_or_default().parse()?;
        ensure!(number == expected, "two were inside together at {expected}: {note}");
    }
    ensure!(notes.len() == total, "{} notes of {total} sections", notes.len());
    let side = |note: &String| note.ends_with("ours");
    let turns = notes.windows(2).filter(|pair| side(&pair[0]) != side(&pair[1])).count();
    Ok(Tally { total, turns })
}

/// Sections by one session of an agent.
pub(crate) async fn sections(
    mut session: Client,
    mut direct: Client,
    kind: Kind,
    name: &str,
    counter: &str,
    many: usize,
) -> Result<()> {
    for _ in 0..many {
        ensure!(lock(&mut session, kind, name, "").await?, "it waits for as long as it takes");
        count(&mut direct, counter).await?;
        unlock(&mut session, kind, name).await?;
    }
    Ok(())
}

/// Four Java threads of two clients and ten sessions of two agents, on one lock.
async fn mixed(kind: Kind, java: usize, ours: usize) -> Result<Tally> {
    let mut bed = Bed::with(&[], "").await?;
    bed.open("b", "").await?;
    // One as it is, and one that lets others have their turn far sooner.
    let second = harness::Agent::with(&bed.redis, &["--handover-max", "2"]).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for (client, thread) in [("a", 1), ("a", 2), ("b", 1), ("b", 2)] {
        let lock = JavaLock::new(bed.thread(client, thread), kind, "till");
        let pending = lock.begin_sections(java / 4, "counter")?;
        tasks.spawn(async move {
            pending.answer_within(LONG).await??;
            Ok(())
        });
    }
    for n in 0..10 {
        let agent = if n % 2 == 0 { &bed.agent } else { &second };
        let (session, direct) = (agent.client().await?, bed.redis.client().await?);
        tasks.spawn(sections(session, direct, kind, "till", "counter", ours / 10));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let tally = tally(&mut bed.direct, "counter").await?;
    bed.assert_nothing_left().await;
    Ok(tally)
}

#[tokio::test]
async fn ten_thousand_sections_of_both_sides() -> Result<()> {
    for kind in kinds()? {
        let tally = mixed(kind, 5_000, 5_000).await.with_context(|| kind.word)?;
        assert_eq!(tally.total, 10_000, "{}", kind.word);
        assert!(tally.turns >= 20, "one side waited for the other's end: {tally:?}");
    }
    Ok(())
}

/// What is killed while others go on: worker processes and sessions of the agent, and whole JVMs.
#[tokio::test]
async fn killed_at_random() -> Result<()> {
    for kind in kinds()? {
        killed(kind).await.with_context(|| kind.word)?;
    }
    Ok(())
}

async fn killed(kind: Kind) -> Result<()> {
    // A killed JVM's lock is free only when its lease has ended; a JVM that stands still for as long loses it.
    let mut bed = Bed::with(&[], "watchdog=5000").await?;
    let redis = &bed.redis;
    let java = bed.java(kind, "till").begin_sections(300, "counter")?;
    let session = bed.agent.client().await?;
    let ours = sections(session, redis.client().await?, kind, "till", "counter", 300);
    let jvms = if super::fair::jvms_may_die(kind, &version()?) { 2 } else { 0 };
    let (dropped, workers, jvms) = (
        drop_sessions(&bed, kind, 100),
        kill_workers(&bed, kind, 20),
        kill_jvms(redis, kind, jvms),
    );
    let (ours, dropped, workers, jvms) = tokio::join!(ours, dropped, workers, jvms);
    ours?;
    java.answer_within(LONG).await??;
    // A killed JVM may have written the section whose answer it never gave.
    jvms?;
    let at_least = 600 + dropped? + workers?;
    let total = tally(&mut bed.direct, "counter").await?.total;
    ensure!(total >= at_least, "{total} sections, at least {at_least} of them ended");
    if kind.is_fair() {
        // Dead places of a JVM stand until somebody comes who finds them dead.
        let mut session = bed.session().await?;
        ensure!(lock(&mut session, kind, "till", "").await?, "its wait has no limit");
        unlock(&mut session, kind, "till").await?;
    }
    bed.assert_nothing_left().await;
    Ok(())
}

/// What a worker does before it dies: nothing, a read, or a whole write. Counts as many sections as it wrote.
async fn last_deed(direct: &mut Client, n: usize) -> Result<usize> {
    match n % 3 {
        0 => Ok(0),
        1 => read(direct, "counter").await.map(|_| 0),
        _ => count(direct, "counter").await.map(|()| 1),
    }
}

/// Sessions that are closed while they hold the lock, or while they wait for it.
async fn drop_sessions(bed: &Bed, kind: Kind, many: usize) -> Result<usize> {
    let (mut direct, mut wrote) = (bed.redis.client().await?, 0);
    for n in 0..many {
        let mut session = bed.session().await?;
        if n % 5 == 0 {
            // Gone before it has the lock, as far as it knows.
            session.send_bytes(&harness::client::encode(&kind.lock("till", ""))).await?;
            continue;
        }
        ensure!(lock(&mut session, kind, "till", "").await?, "it waits for as long as it takes");
        wrote += last_deed(&mut direct, n).await?;
    }
    Ok(wrote)
}

/// Processes that are killed while they hold the lock.
async fn kill_workers(bed: &Bed, kind: Kind, many: usize) -> Result<usize> {
    let (mut direct, mut wrote) = (bed.redis.client().await?, 0);
    for n in 0..many {
        let command = kind.lock("till", "").join(" ");
        let mut worker = Worker::start(&bed.agent.socket(), bed.agent.folder(), &[&command])?;
        worker.line().await?;
        wrote += last_deed(&mut direct, n).await?;
        worker.process().kill()?;
    }
    Ok(wrote)
}

/// JVMs that are killed in the middle of their sections.
async fn kill_jvms(redis: &RedisServer, kind: Kind, many: usize) -> Result<()> {
    let mut direct = redis.client().await?;
    for _ in 0..many {
        let jvm = Jvm::start(&version()?)?;
        // Its threads in a fair queue count as dead as soon.
        let settings = if kind.is_fair() { "watchdog=5000 fairwait=5000" } else { "watchdog=5000" };
        let id = open(&jvm, "a", redis, settings).await?;
        let threads = [1, 2, 3].map(|thread| JavaLock::new(jvm.thread("a", thread), kind, "till"));
        for thread in &threads {
            drop(thread.begin_sections(1_000_000, "counter")?);
        }
        eventually("a thread of it to hold the lock", async || {
            let fields = direct.call("HKEYS till").await?.ok()?;
            let ours = fields.items()?.iter().any(|field| field.text().starts_with(&id));
            ensure!(ours, "held by {fields}");
            Ok(())
        })
        .await;
        jvm.kill()?;
        within(LONG, "what it held to be free", async || {
            let fields = direct.call("HKEYS till").await?.ok()?;
            let gone = !fields.items()?.iter().any(|field| field.text().starts_with(&id));
            ensure!(gone, "held by {fields}");
            Ok(())
        })
        .await;
    }
    Ok(())
}
