//! Critical sections that reveal a broken lock: Java threads and the agent's sessions read and then write a counter in
//! Redis under it. Each write is recorded in a list; two workers that hold the lock together record the same number.
//! Other workers die meanwhile, in a section or while they wait.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::client::encode;
use harness::jvm::{Pending, Thread};
use harness::{Agent, Client, Jvm, RedisServer, Reply, Worker, within};
use tokio::task::JoinSet;

use super::bed::{Kind, open, version};

/// Sets the counter and records the write in one step, so that a killed worker leaves both or neither.
const WRITE: &str =
    "redis.call('set', KEYS[1], ARGV[1]) redis.call('rpush', KEYS[2], ARGV[1] .. ' ours')";

/// The time limit of ten thousand sections on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(240);

/// The settings of a Java client that will be killed: its locks are free only when their leases have ended, and its
/// threads in a fair queue count as dead about as soon. A JVM that pauses for that long would lose what it holds.
const MORTAL: &str = "watchdog=6000";
const MORTAL_IN_QUEUES: &str = "watchdog=6000 fairwait=5000";

/// A way to enter a section alone: one lock, several at once, or a red lock.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    acquire: Vec<String>,
    release: Vec<String>,
    /// The calls that lead to the Java lock.
    java: Vec<String>,
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

impl Guard {
    /// Returns a guard of one lock of that kind.
    pub(crate) fn one(kind: Kind, name: &str) -> Self {
        Self { acquire: kind.lock(name, ""), release: kind.unlock(name), java: kind.java(name) }
    }

    /// Returns a guard of several locks at once, which Java acquires in that order.
    pub(crate) fn several(names: &[&str]) -> Self {
        let count = names.len().to_string();
        let command = |verb| words(&[&[verb, count.as_str()], names].concat());
        Self {
            acquire: command("MLOCK"),
            release: command("MUNLOCK"),
            java: words(&[&["multi"], names].concat()),
        }
    }

    /// Returns a guard of a red lock; these Java clients have one of its servers each.
    pub(crate) fn red(clients: &[String], name: &str) -> Self {
        let members = clients.iter().map(|client| format!("{client}@{name}"));
        Self {
            acquire: words(&["LOCK", name, "KIND", "red"]),
            release: words(&["UNLOCK", name]),
            java: std::iter::once("red".to_owned()).chain(members).collect(),
        }
    }

    async fn enter(&self, session: &mut Client) -> Result<()> {
        let held = session.call_args(&self.acquire).await?.ok()?;
        ensure!(held != Reply::Null, "a wait without a limit has ended");
        Ok(())
    }

    async fn leave(&self, session: &mut Client) -> Result<()> {
        session.call_args(&self.release).await?.ok().map(drop)
    }

    /// Begins a call of the Java lock on a thread.
    pub(crate) fn begin(&self, thread: &Thread, call: &str) -> Result<Pending> {
        let mut chain = self.java.clone();
        chain.push(".".to_owned());
        chain.extend(call.split_whitespace().map(str::to_owned));
        thread.begin_words(&chain)
    }

    /// Begins sections on a Java thread: see `tests/redisson`.
    pub(crate) fn begin_sections(
        &self,
        thread: &Thread,
        many: usize,
        counter: &str,
    ) -> Result<Pending> {
        self.begin_many("sections", thread, many, counter)
    }

    /// Begins readings on a Java thread: see `tests/redisson`.
    pub(crate) fn begin_readings(
        &self,
        thread: &Thread,
        many: usize,
        counter: &str,
    ) -> Result<Pending> {
        self.begin_many("readings", thread, many, counter)
    }

    /// Lets each of these Java threads run one section that is not counted. The first one takes so long that sessions
    /// could end all of theirs before it.
    pub(crate) async fn warm_up(&self, threads: &[Thread]) -> Result<()> {
        let begun = threads.iter().map(|thread| self.begin_sections(thread, 1, "counter:warm"));
        for section in begun.collect::<Result<Vec<_>>>()? {
            section.answer().await??;
        }
        Ok(())
    }

    fn begin_many(
        &self,
        what: &str,
        thread: &Thread,
        many: usize,
        counter: &str,
    ) -> Result<Pending> {
        let mut chain = words(&[what, &many.to_string(), counter]);
        chain.extend(self.java.iter().cloned());
        thread.begin_words(&chain)
    }
}

async fn read(direct: &mut Client, counter: &str) -> Result<i64> {
    Ok(match direct.call_args(&["GET", counter]).await?.ok()? {
        Reply::Null => 0,
        value => value.text().parse()?,
    })
}

/// Reads the counter and writes the next number.
async fn count(direct: &mut Client, counter: &str) -> Result<()> {
    let next = (read(direct, counter).await? + 1).to_string();
    let log = format!("{counter}:log");
    direct.call_args(&["EVAL", WRITE, "2", counter, &log, &next]).await?.ok()?;
    Ok(())
}

/// Runs sections in one session of an agent.
pub(crate) async fn sections(
    mut session: Client,
    mut direct: Client,
    guard: Guard,
    counter: String,
    many: usize,
) -> Result<()> {
    for _ in 0..many {
        guard.enter(&mut session).await?;
        count(&mut direct, &counter).await?;
        guard.leave(&mut session).await?;
    }
    Ok(())
}

/// Runs readings in one session: it reads the counter twice under a read lock, and nobody may write in between.
pub(crate) async fn readings(
    mut session: Client,
    mut direct: Client,
    guard: Guard,
    counter: String,
    many: usize,
) -> Result<()> {
    for _ in 0..many {
        guard.enter(&mut session).await?;
        let first = direct.call_args(&["GET", &counter]).await?.ok()?;
        let second = direct.call_args(&["GET", &counter]).await?.ok()?;
        ensure!(first == second, "{first} became {second} during a reading");
        guard.leave(&mut session).await?;
    }
    Ok(())
}

/// The summary of all recorded sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// The number of all sections.
    pub(crate) total: usize,
    /// The number of sections whose next one belonged to the other side.
    pub(crate) turns: usize,
}

/// Checks that each number was written once, and returns the summary.
pub(crate) async fn tally(direct: &mut Client, counter: &str) -> Result<Tally> {
    let total = usize::try_from(read(direct, counter).await?)?;
    let log = direct.call_args(&["LRANGE", &format!("{counter}:log"), "0", "-1"]).await?.ok()?;
    let records: Vec<String> = log.items()?.iter().map(Reply::text).collect();
    for (record, expected) in records.iter().zip(1..) {
        let number: i64 = record.split(' ').next().unwrap_or_default().parse()?;
        ensure!(
            number == expected,
            "two workers wrote {expected}, so they held the lock together: {record}"
        );
    }
    ensure!(records.len() == total, "{} records of {total} sections", records.len());
    let is_agents = |record: &String| record.ends_with("ours");
    let turns =
        records.windows(2).filter(|pair| is_agents(&pair[0]) != is_agents(&pair[1])).count();
    Ok(Tally { total, turns })
}

/// Returns the sections of the agents' sessions and of the Java threads up to the point where one side has all its
/// `each`.
pub(crate) async fn shares(direct: &mut Client, counter: &str, each: usize) -> Result<[usize; 2]> {
    let log = direct.call_args(&["LRANGE", &format!("{counter}:log"), "0", "-1"]).await?.ok()?;
    let mut sections = [0, 0];
    for record in log.items()?.iter().map(Reply::text) {
        sections[usize::from(!record.ends_with("ours"))] += 1;
        if sections.contains(&each) {
            break;
        }
    }
    Ok(sections)
}

/// Workers of both sides that run until their sections are done.
#[derive(Debug, Default)]
pub(crate) struct Crowd(JoinSet<Result<()>>);

impl Crowd {
    /// Adds Java threads and sessions with that many sections each; the sessions are spread evenly over the agents.
    pub(crate) async fn add(
        &mut self,
        guard: &Guard,
        (counters, counter): (&RedisServer, &str),
        (threads, by_thread): (&[Thread], usize),
        (agents, sessions, by_session): (&[&Agent], usize, usize),
    ) -> Result<()> {
        for thread in threads {
            self.await_java(guard.begin_sections(thread, by_thread, counter)?);
        }
        for n in 0..sessions {
            let (session, direct) =
                (agents[n % agents.len()].client().await?, counters.client().await?);
            self.0.spawn(sections(session, direct, guard.clone(), counter.to_owned(), by_session));
        }
        Ok(())
    }

    /// Adds a call that a Java thread has started.
    pub(crate) fn await_java(&mut self, begun: Pending) {
        self.0.spawn(async move {
            begun.answer_within(LONG).await??;
            Ok(())
        });
    }

    /// Adds the loop of a session.
    pub(crate) fn spawn(&mut self, work: impl Future<Output = Result<()>> + Send + 'static) {
        self.0.spawn(work);
    }

    /// Waits until all are done.
    pub(crate) async fn done(mut self) -> Result<()> {
        while let Some(ended) = self.0.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Workers that die while others continue.
pub(crate) struct Dying<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) guard: Guard,
    pub(crate) counters: &'a RedisServer,
    pub(crate) counter: &'a str,
    /// The clients of a JVM that will be killed, with their servers. On the first one's server, `key` holds the ids of
    /// the holders.
    pub(crate) clients: Vec<(String, &'a RedisServer)>,
    pub(crate) key: &'a str,
    /// True if its threads wait in a queue.
    pub(crate) queues: bool,
    /// True if all of them only read.
    pub(crate) reads: bool,
}

impl Dying<'_> {
    /// Kills a hundred sessions, twenty processes, and that many JVMs. Returns how many sections were certainly
    /// written.
    pub(crate) async fn all(&self, jvms: usize) -> Result<usize> {
        let (sessions, workers, jvms) =
            tokio::join!(self.drop_sessions(100), self.kill_workers(20), self.kill_jvms(jvms));
        // A killed JVM may have written a section without reporting it.
        jvms?;
        Ok(sessions? + workers?)
    }

    /// Performs a worker's last action: nothing, a read or a complete write. Returns the number of sections it wrote.
    async fn last_action(&self, direct: &mut Client, n: usize) -> Result<usize> {
        match n % 3 {
            0 => Ok(0),
            _ if self.reads => read(direct, self.counter).await.map(|_| 0),
            1 => read(direct, self.counter).await.map(|_| 0),
            _ => count(direct, self.counter).await.map(|()| 1),
        }
    }

    /// Closes sessions in a section or during a wait.
    async fn drop_sessions(&self, many: usize) -> Result<usize> {
        let (mut direct, mut written) = (self.counters.client().await?, 0);
        for n in 0..many {
            let mut session = self.agent.client().await?;
            if n % 5 == 0 {
                // It disconnects before it knows that it holds the lock.
                session.send_bytes(&encode(&self.guard.acquire)).await?;
                continue;
            }
            self.guard.enter(&mut session).await?;
            written += self.last_action(&mut direct, n).await?;
        }
        Ok(written)
    }

    /// Kills processes in the middle of a section.
    async fn kill_workers(&self, many: usize) -> Result<usize> {
        let (mut direct, mut written) = (self.counters.client().await?, 0);
        let command = self.guard.acquire.join(" ");
        for n in 0..many {
            let mut worker = Worker::start(&self.agent.socket(), self.agent.folder(), &[&command])?;
            worker.line().await?;
            written += self.last_action(&mut direct, n).await?;
            worker.process().kill()?;
        }
        Ok(written)
    }

    /// Kills JVMs in the middle of their sections.
    async fn kill_jvms(&self, many: usize) -> Result<()> {
        let settings = if self.queues { MORTAL_IN_QUEUES } else { MORTAL };
        let (first, server) = &self.clients[0];
        let mut direct = server.client().await?;
        for _ in 0..many {
            let jvm = Jvm::start(&version()?)?;
            let mut ids = Vec::new();
            for (client, server) in &self.clients {
                ids.push(open(&jvm, client, server, settings).await?);
            }
            let mut is_holding = async |expected| {
                let fields = direct.call_args(&["HKEYS", self.key]).await?.ok()?;
                let holds = fields.items()?.iter().any(|field| field.text().starts_with(&ids[0]));
                ensure!(holds == expected, "held by {fields}");
                Ok(())
            };
            for thread in 1..=3 {
                let thread = jvm.thread(first, thread);
                let endless = if self.reads {
                    self.guard.begin_readings(&thread, 1_000_000, self.counter)
                } else {
                    self.guard.begin_sections(&thread, 1_000_000, self.counter)
                };
                drop(endless?);
            }
            within(LONG, "a thread of the JVM to hold the lock", async || is_holding(true).await)
                .await;
            jvm.kill()?;
            within(LONG, "the lock of the killed JVM to be free", async || is_holding(false).await)
                .await;
        }
        Ok(())
    }
}
