//! A redis-server for one test.

use std::ops::{Deref, DerefMut};

use redis::{Connection, FromRedisValue, cmd};
use redisson::script::Call;
use tempfile::NamedTempFile;

/// A redis-server of the harness, with blocking connections.
pub(crate) struct RedisServer(harness::RedisServer);

impl RedisServer {
    pub(crate) async fn start() -> Self {
        Self::with(&[]).await
    }

    /// Starts a server with further settings.
    pub(crate) async fn with(settings: &[(&str, &str)]) -> Self {
        Self(harness::RedisServer::with(settings).await.unwrap())
    }

    pub(crate) fn connect(&self) -> Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }
}

impl Deref for RedisServer {
    type Target = harness::RedisServer;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for RedisServer {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

pub(crate) fn run<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command.query(connection).unwrap()
}

/// A holder in the form that Redisson writes.
pub(crate) const HOLDER: &str = "285475da-9152-4c83-822a-67ee2f116a79:52";

/// Returns the holder of another thread of the same client.
pub(crate) fn thread(n: u32) -> String {
    format!("{}:{n}", &HOLDER[..36])
}

/// Acquires a lock like Redisson.
pub(crate) fn take(connection: &mut Connection, name: &[u8], holder: &str, lease_ms: u64) {
    redis::pipe()
        .atomic()
        .cmd("HINCRBY")
        .arg(name)
        .arg(holder)
        .arg(1)
        .cmd("PEXPIRE")
        .arg(name)
        .arg(lease_ms)
        .exec(connection)
        .unwrap();
}

/// Releases a lock like Redisson.
pub(crate) fn release(connection: &mut Connection, name: &str) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    redis::pipe()
        .atomic()
        .cmd("DEL")
        .arg(name)
        .cmd("PUBLISH")
        .arg(channel)
        .arg("0")
        .exec(connection)
        .unwrap();
}

/// Runs a script of the lock protocol.
pub(crate) fn eval(connection: &mut Connection, call: &Call) {
    let mut command = cmd("EVAL");
    command.arg(call.script.source).arg(call.keys.len());
    for part in call.keys.iter().chain(call.args.iter()) {
        command.arg(part);
    }
    command.exec(connection).unwrap();
}

/// Returns a settings file with these servers as the deployments `a`, `b` and `c` of one group of red locks.
pub(crate) fn red_group(servers: &[RedisServer; 3]) -> NamedTempFile {
    let row = |(name, server): (&str, &RedisServer)| {
        format!("[[redis]]\nname = \"{name}\"\nurl = \"{}\"\ngroup = \"red\"\n", server.url())
    };
    let rows: String = ["a", "b", "c"].into_iter().zip(servers).map(row).collect();
    let file = NamedTempFile::new().unwrap();
    std::fs::write(&file, rows).unwrap();
    file
}

/// Returns the server's time in epoch milliseconds.
fn clock(redis: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = run(redis, &["TIME"]);
    seconds * 1_000 + micros / 1_000
}

/// Puts threads into a fair lock's queue, each with a deadline relative to now.
pub(crate) fn queue(redis: &mut Connection, name: &str, places: &[(u32, i64)]) {
    let now = clock(redis);
    for (n, deadline) in places {
        let at = now.saturating_add_signed(*deadline).to_string();
        run::<i64>(redis, &["RPUSH", &format!("redisson_lock_queue:{{{name}}}"), &thread(*n)]);
        let deadlines = format!("redisson_lock_timeout:{{{name}}}");
        run::<i64>(redis, &["ZADD", &deadlines, &at, &thread(*n)]);
    }
}
