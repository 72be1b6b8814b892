//! The test bed: a Redis, an agent, a JVM with Redisson, and locks that both sides can acquire.

use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail, ensure};
use harness::client::encode;
use harness::jvm::{Pending, Thread, Thrown};
use harness::{Agent, Client, Jvm, RedisServer, Reply, eventually, programs};
use parking_lot::Mutex;

/// A lease and a poll interval so long that only a message can wake a waiter before the test gives up.
pub(crate) const LEASE: &str = "10m";

/// A kind of lock, with its names on each side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// The word after `KIND`.
    pub(crate) word: &'static str,
    /// The first minor version of Redisson 3 that it is tested with.
    since: u32,
    /// The word in SHOW's reply: plain and fenced locks cannot be told apart in Redis.
    pub(crate) shown: &'static str,
    /// The suffix of a holder's field after the thread number.
    suffix: &'static str,
    /// The calls that lead to the lock object; `NAME` stands for its name.
    object: &'static [&'static str],
    /// The metric label of the agent's acquire script.
    acquire: &'static str,
    /// The channel of its release messages; `NAME` stands for the lock's name.
    channel: &'static str,
}

/// All exclusive kinds. A further one is a row here.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        word: "lock",
        since: 0,
        shown: "lock",
        suffix: "",
        object: &["getLock", "NAME"],
        acquire: "acquire",
        channel: "redisson_lock__channel:{NAME}",
    },
    Kind {
        word: "fenced",
        since: 19,
        shown: "lock",
        suffix: "",
        object: &["getFencedLock", "NAME"],
        acquire: "acquire",
        channel: "redisson_lock__channel:{NAME}",
    },
    Kind {
        word: "write",
        since: 0,
        shown: "write",
        suffix: ":write",
        object: &["getReadWriteLock", "NAME", ".", "writeLock"],
        acquire: "acquire_write",
        channel: "redisson_rwlock:{NAME}",
    },
    FAIR,
];

/// A kind whose waiters queue.
pub(crate) const FAIR: Kind = Kind {
    word: "fair",
    since: 0,
    shown: "lock",
    suffix: "",
    object: &["getFairLock", "NAME"],
    acquire: "acquire_fair",
    // Each waiter has a channel: this prefix, a colon, and its id.
    channel: "redisson_lock__channel:{NAME}:*",
};

/// Readers exclude writers only; see `readers.rs`.
pub(crate) const READ: Kind = Kind {
    word: "read",
    since: 0,
    shown: "read",
    suffix: "",
    object: &["getReadWriteLock", "NAME", ".", "readLock"],
    acquire: "acquire_read",
    channel: "redisson_rwlock:{NAME}",
};

/// Returns the kinds that the version under test has.
pub(crate) fn kinds() -> Result<Vec<Kind>> {
    let version = version()?;
    Ok(KINDS.iter().copied().filter(|kind| kind.is_in(&version)).collect())
}

/// Makes a test of each function in `cases`, which runs it for each kind.
macro_rules! for_each_kind {
    ($($name:ident),* $(,)?) => { $(
        #[tokio::test]
        async fn $name() -> anyhow::Result<()> {
            for kind in crate::bed::kinds()? {
                anyhow::Context::with_context(cases::$name(kind).await, || kind.word)?;
            }
            Ok(())
        }
    )* };
}
pub(crate) use for_each_kind;

/// Returns the version of Redisson under test.
pub(crate) fn version() -> Result<String> {
    std::env::var("LOCKSCOPE_REDISSON").context("`make interop` runs these tests")
}

/// Returns a version of Redisson from a different time.
pub(crate) fn other_version() -> Result<String> {
    std::env::var("LOCKSCOPE_REDISSON_OTHER").context("`make interop` runs these tests")
}

/// Returns the JVM that tests share, each with its own clients; starting one takes longer than most tests.
pub(crate) fn shared() -> Result<Arc<Jvm>> {
    static SHARED: OnceLock<Result<Arc<Jvm>, String>> = OnceLock::new();
    programs::once(&SHARED, || Jvm::start(&version()?))
}

/// The servers and the Redisson clients of one test.
pub(crate) struct Bed {
    pub(crate) agent: Agent,
    jvm: Arc<Jvm>,
    /// The prefix that identifies this test's clients.
    prefix: String,
    opened: Mutex<Vec<String>>,
    pub(crate) redis: RedisServer,
    /// A direct connection to Redis, independent of both sides.
    pub(crate) direct: Client,
    /// The id of client `a`, which begins its holder ids.
    pub(crate) id: String,
}

impl Bed {
    /// Starts both sides with long leases, so that only a message wakes a waiter.
    pub(crate) async fn new() -> Result<Self> {
        Self::with(&["--lease", LEASE, "--poll-max", LEASE], "watchdog=600000").await
    }

    /// Starts both sides for several Java threads that wait at the same time; leases are long except for write locks.
    /// Redisson's release of a write lock wakes the sleeping threads of a Redisson client but is lost on a thread that
    /// is about to sleep: so Java threads miss one another's releases. They try again at the end of the lease that the
    /// refusal reported, so for this kind it is short. Also returns the settings for further clients.
    pub(crate) async fn crowded(kind: Kind) -> Result<(Self, &'static str)> {
        let (flags, settings) = match kind.word {
            "write" => (["--lease", "6s"].as_slice(), "watchdog=6000"),
            _ => (["--lease", LEASE, "--poll-max", LEASE].as_slice(), "watchdog=600000"),
        };
        Ok((Self::with(flags, settings).await?, settings))
    }

    /// Starts both sides with these flags of the agent and these settings of client `a`.
    pub(crate) async fn with(flags: &[&str], settings: &str) -> Result<Self> {
        let redis = RedisServer::start().await?;
        let agent = Agent::with(&redis, flags).await?;
        let prefix = format!("{}:", redis.port());
        let (direct, opened) = (redis.client().await?, Mutex::default());
        let mut bed =
            Self { agent, jvm: shared()?, prefix, opened, direct, redis, id: String::new() };
        bed.id = bed.open("a", settings).await?;
        Ok(bed)
    }

    /// Opens a further client in the JVM, and returns its id.
    pub(crate) async fn open(&self, client: &str, settings: &str) -> Result<String> {
        let client = format!("{}{client}", self.prefix);
        self.opened.lock().push(client.clone());
        open(&self.jvm, &client, &self.redis, settings).await
    }

    /// Returns a thread of a client.
    pub(crate) fn thread(&self, client: &str, thread: u32) -> Thread {
        self.jvm.thread(&format!("{}{client}", self.prefix), thread)
    }

    /// Returns the lock, used by the first thread of client `a`.
    pub(crate) fn java(&self, kind: Kind, name: &str) -> JavaLock {
        JavaLock::new(self.thread("a", 1), kind, name)
    }

    /// Opens a session of the agent.
    pub(crate) async fn session(&self) -> Result<Client> {
        self.agent.client().await
    }

    /// Returns the holders in Redis with their counts, sorted.
    pub(crate) async fn holders(&mut self, name: &str) -> Result<Vec<(String, String)>> {
        let reply = self.direct.call_args(&["HGETALL", name]).await?.ok()?;
        let pairs = reply.items()?.chunks(2).map(|pair| (pair[0].text(), pair[1].text()));
        // In a read-write lock's hash this field says which side is held.
        let mut holders: Vec<_> = pairs.filter(|(field, _)| field != "mode").collect();
        holders.sort();
        Ok(holders)
    }

    pub(crate) async fn pttl(&mut self, name: &str) -> Result<i64> {
        self.direct.call_args(&["PTTL", name]).await?.int()
    }

    /// Sends a LOCK, and returns once its waiter sleeps: it has subscribed and failed a second time, so that only a
    /// message will wake it.
    pub(crate) async fn begin_wait(
        &self,
        session: &mut Client,
        kind: Kind,
        name: &str,
    ) -> Result<()> {
        let attempts = async || {
            let metrics = self.agent.metrics().await?;
            let script = [("script", kind.acquire)];
            anyhow::Ok(metrics.sum("lockscope_agent_redis_seconds_count", &script))
        };
        let before = attempts().await?;
        session.send_bytes(&encode(&kind.lock(name, ""))).await?;
        eventually("the agent's waiter to sleep", async || {
            let made = attempts().await? - before;
            ensure!(made >= 2.0, "{made} attempts");
            Ok(())
        })
        .await;
        Ok(())
    }

    /// Waits until that many connections listen to the lock's releases: one of each waiting client or, for a fair lock,
    /// one of each waiter.
    pub(crate) async fn until_listening(&mut self, kind: Kind, name: &str, count: i64) {
        let channel = kind.channel(name);
        eventually(&format!("{count} listeners"), async || {
            let found = if kind.is_fair() {
                let channels = self.direct.call_args(&["PUBSUB", "CHANNELS", &channel]).await?;
                i64::try_from(channels.items()?.len())?
            } else {
                let numsub = self.direct.call_args(&["PUBSUB", "NUMSUB", &channel]).await?;
                numsub.items()?[1].int()?
            };
            ensure!(found == count, "{found} of {count} listen to {channel}");
            Ok(())
        })
        .await;
    }

    /// Checks that no lock is held, and that nothing is left except tokens, which outlive their locks, and the
    /// latches by which Redisson 3.52 recognises a release that it sent twice: they last some twenty seconds.
    pub(crate) async fn assert_nothing_left(&mut self) {
        eventually("an empty Redis", async || {
            let keys = self.direct.call("KEYS *").await?.ok()?;
            let kept = |key: &&Reply| {
                let key = key.text();
                !["counter", "lockscope:", "redisson_lock_token:", "redisson_unlock_latch:"]
                    .iter()
                    .any(|kept| key.starts_with(kept))
            };
            let left: Vec<_> = keys.items()?.iter().filter(kept).map(Reply::text).collect();
            ensure!(left.is_empty(), "left over: {left:?}");
            Ok(())
        })
        .await;
    }
}

/// Closes the clients, or they would look for their Redis for as long as other tests run.
impl Drop for Bed {
    fn drop(&mut self) {
        self.jvm.print_log();
        for client in self.opened.lock().drain(..) {
            // A JVM that has ended has closed its clients.
            drop(self.jvm.thread(&client, 0).begin("close"));
        }
    }
}

/// Opens a client in a JVM, and returns its id.
pub(crate) async fn open(
    jvm: &Arc<Jvm>,
    client: &str,
    redis: &RedisServer,
    settings: &str,
) -> Result<String> {
    open_at(jvm, client, &redis.url(), settings).await
}

/// Opens a client of the Redis at that address, and returns its id.
pub(crate) async fn open_at(
    jvm: &Arc<Jvm>,
    client: &str,
    url: &str,
    settings: &str,
) -> Result<String> {
    jvm.thread(client, 0).call(&format!("open {url} {settings}")).await
}

/// Returns whether a version is this minor version of Redisson 3 or a later one.
pub(crate) fn is_since(version: &str, since: u32) -> bool {
    let minor = version.strip_prefix("3.").and_then(|rest| rest.split('.').next()?.parse().ok());
    minor.is_none_or(|minor: u32| minor >= since)
}

impl Kind {
    /// Returns the exclusive kind with that word.
    pub(crate) fn of(word: &str) -> Option<Self> {
        KINDS.iter().copied().find(|kind| kind.word == word)
    }

    /// Returns whether that version of Redisson has this kind.
    pub(crate) fn is_in(self, version: &str) -> bool {
        is_since(version, self.since)
    }

    /// Returns whether its waiters queue in Redis.
    pub(crate) fn is_fair(self) -> bool {
        self.word == "fair"
    }

    /// Returns the field of a Java thread's hold.
    pub(crate) fn field(self, client_id: &str, thread_id: &str) -> String {
        format!("{client_id}:{thread_id}{}", self.suffix)
    }

    /// Returns the calls that lead to Java's lock object of this kind.
    pub(crate) fn java(self, name: &str) -> Vec<String> {
        let words = self.object.iter().map(|&word| if word == "NAME" { name } else { word });
        words.map(str::to_owned).collect()
    }

    /// Returns the agent's command that acquires a lock of this kind.
    pub(crate) fn lock(self, name: &str, more: &str) -> Vec<String> {
        let mut words = vec!["LOCK".to_owned(), name.to_owned()];
        words.extend(format!("KIND {} {more}", self.word).split_whitespace().map(str::to_owned));
        words
    }

    /// Returns the agent's command that releases one hold.
    pub(crate) fn unlock(self, name: &str) -> Vec<String> {
        ["UNLOCK", name, "KIND", self.word].map(str::to_owned).to_vec()
    }

    /// Returns the channel of its release messages; for a fair lock, a pattern of its waiters' channels.
    pub(crate) fn channel(self, name: &str) -> String {
        let plain = self.channel.replace("NAME", name);
        // Names with a brace are used as they are.
        if name.contains('{') { plain.replace(&format!("{{{name}}}"), name) } else { plain }
    }
}

/// Acquires the lock for a session; returns false if the wait timed out.
pub(crate) async fn lock(client: &mut Client, kind: Kind, name: &str, more: &str) -> Result<bool> {
    Ok(client.call_args(&kind.lock(name, more)).await?.ok()? != Reply::Null)
}

/// Releases one hold of a session, and returns how many are left.
pub(crate) async fn unlock(client: &mut Client, kind: Kind, name: &str) -> Result<i64> {
    client.call_args(&kind.unlock(name)).await?.ok()?.int()
}

/// A lock object of Redisson, and the Java thread that uses it.
#[derive(Debug, Clone)]
pub(crate) struct JavaLock {
    thread: Thread,
    object: Vec<String>,
}

impl JavaLock {
    pub(crate) fn new(thread: Thread, kind: Kind, name: &str) -> Self {
        Self { thread, object: kind.java(name) }
    }

    /// Returns the same lock, used by another thread of the same client.
    pub(crate) fn on(&self, thread: u32) -> Self {
        Self { thread: self.thread.other(thread), object: self.object.clone() }
    }

    /// Returns the lock of the same name, used by another client.
    pub(crate) fn by(&self, thread: Thread) -> Self {
        Self { thread, object: self.object.clone() }
    }

    fn words(&self, call: &str) -> Vec<String> {
        let mut words = self.object.clone();
        words.push(".".to_owned());
        words.extend(call.split_whitespace().map(str::to_owned));
        words
    }

    /// Begins a call that may wait.
    pub(crate) fn begin(&self, call: &str) -> Result<Pending> {
        self.thread.begin_words(&self.words(call))
    }

    /// Makes a call, and returns its value as text.
    pub(crate) async fn call(&self, call: &str) -> Result<String> {
        self.thread.call_words(&self.words(call)).await
    }

    /// Makes a call whose value is true or false.
    pub(crate) async fn is(&self, call: &str) -> Result<bool> {
        Ok(self.call(call).await?.parse()?)
    }

    /// Makes a call whose value is a number.
    pub(crate) async fn number(&self, call: &str) -> Result<i64> {
        Ok(self.call(call).await?.parse()?)
    }

    /// Makes a call, and returns its exception.
    pub(crate) async fn thrown(&self, call: &str) -> Result<Thrown> {
        match self.begin(call)?.answer().await? {
            Err(thrown) => Ok(thrown),
            Ok(value) => bail!("{call} gave {value}"),
        }
    }

    /// Returns the Java thread's id, which ends its holder ids.
    pub(crate) async fn thread_id(&self) -> Result<String> {
        self.thread.call("thread").await
    }

    /// Begins `lock()`, and returns once the thread sleeps: it has subscribed and failed a last time, so that only a
    /// message or the end of the reported lease will wake it.
    pub(crate) async fn begin_wait(&self) -> Result<Pending> {
        let waiting = self.begin("lock")?;
        self.until_asleep().await;
        Ok(waiting)
    }

    /// Waits until the thread sleeps in a call.
    pub(crate) async fn until_asleep(&self) {
        let number = self.thread.number();
        let from = self.thread.other(number + 1000);
        eventually("the Java thread to sleep", async || {
            let sleeps = from.call(&format!("sleeps {number}")).await?;
            ensure!(sleeps == "true", "it is still busy");
            Ok(())
        })
        .await;
    }

    /// Interrupts the thread.
    pub(crate) async fn interrupt(&self) -> Result<()> {
        let number = self.thread.number();
        self.thread.other(number + 1000).call(&format!("interrupt {number}")).await?;
        Ok(())
    }
}
