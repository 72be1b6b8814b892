//! The bare limits, measured in the same run as everything else: a round trip over a Unix socket, one script, and an
//! acquire followed by a release on Redis, with nothing in between.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::stats::Times;
use crate::wire::{Caller, encode};

/// The minimal script that acquires a lock in Redisson's layout.
const ACQUIRE: &str = "if redis.call('exists', KEYS[1]) == 1 then return 0 end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return 1";

/// The minimal script that releases it.
const RELEASE: &str = "if redis.call('hdel', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('publish', ARGV[2], '0')
return 1";

/// The minimal script that renews many locks, each for its holder. It does not report the missing ones.
const RENEW: &str = "local call, lease = redis.call, ARGV[1]
for i = 1, #KEYS do
  if call('hexists', KEYS[i], ARGV[i + 1]) == 1 then
    call('pexpire', KEYS[i], lease)
  end
end
return #KEYS";

pub(crate) const HOLDER: &str = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:1";
const LEASE_MS: &str = "30000";
/// The lease of locks that are rarely renewed.
pub(crate) const LONG_LEASE_MS: &str = "3600000";

/// The digests of these scripts in one Redis.
#[derive(Debug, Clone)]
pub(crate) struct Bare {
    acquire: String,
    release: String,
    renew: String,
}

impl Bare {
    pub(crate) fn load(redis: &mut Caller<TcpStream>) -> Result<Self> {
        let mut load = |script: &str| -> Result<String> {
            let reply = redis.call(&encode(&["SCRIPT", "LOAD", script]))?;
            // `$40`, then the digest.
            Ok(String::from_utf8_lossy(&reply[5..45]).into_owned())
        };
        Ok(Self { acquire: load(ACQUIRE)?, release: load(RELEASE)?, renew: load(RENEW)? })
    }

    pub(crate) fn acquire(&self, lock: &str) -> Vec<u8> {
        encode(&["EVALSHA", &self.acquire, "1", lock, HOLDER, LEASE_MS])
    }

    pub(crate) fn release(&self, lock: &str) -> Vec<u8> {
        let channel = format!("redisson_lock__channel:{{{lock}}}");
        encode(&["EVALSHA", &self.release, "1", lock, HOLDER, &channel])
    }

    pub(crate) fn renew(&self, locks: &[String]) -> Vec<u8> {
        let count = locks.len().to_string();
        let mut words = vec!["EVALSHA", &self.renew, &count];
        words.extend(locks.iter().map(String::as_str));
        words.push(LONG_LEASE_MS);
        words.extend(std::iter::repeat_n(HOLDER, locks.len()));
        encode(&words)
    }
}

/// Medians in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// A round trip of 64 bytes on a bare Unix socket.
    pub(crate) echo: f64,
    /// An acquire on Redis, over TCP.
    pub(crate) script: f64,
    /// An acquire followed by a release.
    pub(crate) pair: f64,
}

/// Measures all three, each for `time`.
pub(crate) fn measure(port: u16, time: Duration) -> Result<Limits> {
    let echo = echo(time)?;
    let mut redis = Caller::tcp(port)?;
    let bare = Bare::load(&mut redis)?;
    let (acquire, release) = (bare.acquire("bench:bare"), bare.release("bench:bare"));
    let (mut scripts, mut pairs) = (Times::default(), Times::default());
    let start = Instant::now();
    while start.elapsed() < time {
        let began = Instant::now();
        redis.succeed(&acquire)?;
        scripts.add(began.elapsed());
        redis.succeed(&release)?;
        pairs.add(began.elapsed());
    }
    Ok(Limits { echo, script: scripts.median(), pair: pairs.median() })
}

fn echo(time: Duration) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("echo.sock");
    let listener = UnixListener::bind(&path)?;
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = [0; 64];
        loop {
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..count])?;
        }
    });
    let mut stream = UnixStream::connect(&path)?;
    let mut buffer = [7; 64];
    let mut times = Times::default();
    let start = Instant::now();
    while start.elapsed() < time {
        let began = Instant::now();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        times.add(began.elapsed());
    }
    drop(stream);
    server.join().map_err(|_| anyhow::anyhow!("the echo server panicked"))??;
    Ok(times.median())
}
