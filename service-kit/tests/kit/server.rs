//! A private redis-server.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use redis::{FromRedisValue, cmd};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::eventually;

pub(crate) struct Server {
    folder: TempDir,
    port: u16,
    args: Vec<String>,
    child: Child,
}

impl Server {
    /// Starts an empty server on a free port of 127.0.0.1, and on a Unix socket.
    pub(crate) async fn start(args: &[&str]) -> Self {
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let port = random_port();
            let mut all = vec!["--port".to_owned(), port.to_string()];
            all.extend(args.iter().map(|arg| arg.replace("FREE_PORT", &port.to_string())));
            let child = spawn(&folder, &all);
            let mut server = Self { folder, port, args: all, child };
            if server.is_up().await {
                return server;
            }
        }
        panic!("no redis-server could be started");
    }

    /// Starts an empty server that also knows this user, with these rules.
    pub(crate) async fn with_user(name: &str, rules: &str) -> Self {
        let server = Self::start(&[]).await;
        let mut words = vec!["ACL", "SETUSER", name, "on"];
        words.extend(rules.split(' '));
        server.ask::<()>(&words);
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Sends a command on a separate connection. The socket is open to the default user.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).unwrap()
    }

    fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let url = format!("unix://{}", self.socket().display());
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let mut command = cmd(words[0]);
        command.arg(&words[1..]).query(&mut connection)
    }

    /// Returns the names of the connected clients.
    pub(crate) fn clients(&self) -> Vec<String> {
        let list: String = self.ask(&["CLIENT", "LIST"]);
        let names = list.split_whitespace().filter_map(|field| field.strip_prefix("name="));
        names.map(str::to_owned).collect()
    }

    /// Lets the server's attempt to save its data fail.
    pub(crate) async fn fail_to_save(&self) {
        std::fs::create_dir(self.folder.path().join("dump.rdb")).unwrap();
        self.ask::<()>(&["BGSAVE"]);
        eventually("the attempt fails", async || {
            self.ask::<String>(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
        })
        .await;
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

    /// Starts another, empty server at the same address, after [`kill`](Self::kill).
    pub(crate) async fn start_again(&mut self) {
        eventually("the port is free again", async || {
            self.child = spawn(&self.folder, &self.args);
            self.is_up().await
        })
        .await;
    }

    /// Waits until the server answers. Returns false if it ended instead: its port was taken.
    async fn is_up(&mut self) -> bool {
        let mut up = false;
        eventually("redis-server answers or ends", async || {
            up = self.try_ask::<String>(&["PING"]).is_ok_and(|pong| pong == "PONG");
            up || self.child.try_wait().unwrap().is_some()
        })
        .await;
        up
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns a port outside the range that the kernel uses for outgoing connections.
fn random_port() -> u16 {
    let random = RandomState::new().build_hasher().finish() % 20_000;
    10_000 + u16::try_from(random).unwrap()
}

fn spawn(folder: &TempDir, args: &[String]) -> Child {
    Command::new("redis-server")
        .args([
            "--save",
            "",
            "--appendonly",
            "no",
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            "redis.sock",
            "--dir",
        ])
        .arg(folder.path())
        .args(args)
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server must be installed")
}
