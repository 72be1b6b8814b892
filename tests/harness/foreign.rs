//! A foreign holder: acquires and releases a lock in Redis as a Java service with Redisson does.
//!
//! Its scripts are our own versions of Redisson's, with the same keys and arguments. Its keys are spelled out here
//! rather than taken from our crate, so that tests find a mistake there.

use anyhow::Result;

use crate::{Client, RedisServer, Reply};

const LOCK: &str = "
if redis.call('exists', KEYS[1]) == 1 and redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
  return redis.call('pttl', KEYS[1])
end
redis.call('hincrby', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil";

const UNLOCK: &str = "
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
  return nil
end
if redis.call('hincrby', KEYS[1], ARGV[2], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], '0')
return 1";

const RENEW: &str = "
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
  return 0
end
return redis.call('pexpire', KEYS[1], ARGV[1])";

/// One thread of such a service, with its own connection.
#[derive(Debug)]
pub struct Foreign {
    client: Client,
    /// Its holder id.
    pub holder: String,
    /// The lease that it acquires and renews with, in milliseconds.
    pub lease_ms: u64,
}

impl Foreign {
    /// Connects, with a lease of ten minutes: nobody renews it, and no test lasts that long.
    ///
    /// # Errors
    /// Returns an error if Redis cannot be reached.
    pub async fn connect(redis: &RedisServer) -> Result<Self> {
        Ok(Self::over(redis.client().await?))
    }

    /// Uses an existing connection.
    #[must_use]
    pub fn over(client: Client) -> Self {
        let holder = "0f3c1f6e-5a43-4f9f-8d11-6a2b3c4d5e6f:47".to_owned();
        Self { client, holder, lease_ms: 600_000 }
    }

    async fn run(&mut self, script: &str, keys: &[&str]) -> Result<Reply> {
        let (count, lease) = (keys.len().to_string(), self.lease_ms.to_string());
        let mut args = vec!["EVAL", script, &count];
        args.extend_from_slice(keys);
        args.extend([lease.as_str(), &self.holder]);
        self.client.call_args(&args).await?.ok()
    }

    /// Acquires the lock; returns false if another holder has it.
    ///
    /// # Errors
    /// Returns an error if Redis cannot be reached.
    pub async fn lock(&mut self, name: &str) -> Result<bool> {
        Ok(self.run(LOCK, &[name]).await? == Reply::Null)
    }

    /// Releases one hold; returns false if it holds none.
    ///
    /// # Errors
    /// Returns an error if Redis cannot be reached.
    pub async fn unlock(&mut self, name: &str) -> Result<bool> {
        let tagged = if name.contains('{') { name.to_owned() } else { format!("{{{name}}}") };
        let channel = format!("redisson_lock__channel:{tagged}");
        Ok(self.run(UNLOCK, &[name, &channel]).await? != Reply::Null)
    }

    /// Renews its hold, as the watchdog does every third of the lease; returns false if it holds none.
    ///
    /// # Errors
    /// Returns an error if Redis cannot be reached.
    pub async fn renew(&mut self, name: &str) -> Result<bool> {
        Ok(self.run(RENEW, &[name]).await? == Reply::Int(1))
    }
}
