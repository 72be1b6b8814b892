//! A redis-server for one test.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Connection, FromRedisValue, cmd};
use redisson::script::Call;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;

use crate::serving::PATIENCE;

/// A Redis server in a separate folder, stopped at the end of the test.
pub(crate) struct RedisServer {
    child: Child,
    pub(crate) port: u16,
    extra: Vec<String>,
    folder: tempfile::TempDir,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further arguments.
    pub(crate) fn with(extra: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let extra: Vec<String> = extra.iter().map(|arg| (*arg).to_owned()).collect();
        for _ in 0..20 {
            // If another process has the port, the server exits at once, and the loop tries another port.
            let port = random_port();
            let mut child = spawn(port, &extra, folder.path());
            if answers(port, &mut child) {
                return Self { child, port, extra, folder };
            }
        }
        panic!("no redis-server could be started");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn connect(&self) -> Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Lets the server's attempt to save its data fail. It must have a `save` setting.
    pub(crate) async fn fail_to_save(&self) {
        std::fs::create_dir(self.folder.path().join("dump.rdb")).unwrap();
        let mut connection = self.connect();
        run::<String>(&mut connection, &["BGSAVE"]);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !run::<String>(&mut connection, &["INFO"]).contains("rdb_last_bgsave_status:err") {
            assert!(tokio::time::Instant::now() < deadline, "it has saved its data");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Restarts the server on its port, without data.
    pub(crate) fn restart(&mut self) {
        self.kill();
        for _ in 0..50 {
            self.child = spawn(self.port, &self.extra, self.folder.path());
            if answers(self.port, &mut self.child) {
                return;
            }
        }
        panic!("redis-server could not be started again");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn run<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command.query(connection).unwrap()
}

/// Returns a port outside the range that the kernel uses for outgoing connections.
fn random_port() -> u16 {
    let random = RandomState::new().build_hasher().finish() % 20_000;
    10_000 + u16::try_from(random).unwrap()
}

fn spawn(port: u16, extra: &[String], folder: &std::path::Path) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(folder)
        .args(extra)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}

/// Waits until this server answers. Otherwise returns `false`, and the server has ended.
fn answers(port: u16, child: &mut Child) -> bool {
    let answers = does_answer(port, child);
    if !answers {
        drop(child.kill());
        drop(child.wait());
    }
    answers
}

fn does_answer(port: u16, child: &mut Child) -> bool {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < deadline && child.try_wait().unwrap().is_none() {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        if let Ok(mut connection) = client.get_connection_with_timeout(Duration::from_secs(1)) {
            // A server that requires a password does not report its process id.
            return match cmd("INFO").arg("server").query::<String>(&mut connection) {
                Ok(info) => info.contains(&format!("process_id:{}\r\n", child.id())),
                Err(error) => error.to_string().contains("NOAUTH"),
            };
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    false
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
