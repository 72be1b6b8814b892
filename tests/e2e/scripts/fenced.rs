//! Fenced locks: each grant has an ever-increasing token.

use anyhow::{Result, bail};
use redisson::script::{
    AcquireOutcome, HandOverOutcome, ReleaseOutcome, parse_acquire, parse_hand_over,
};
use redisson::{HolderId, LockName};

use super::{Bench, full, lease, name, ours, script, theirs};

/// A token far above the clock in microseconds, so that only the counter determines the next.
const AHEAD: u64 = 5_000_000_000_000_000;

fn granted(token: u64) -> AcquireOutcome {
    AcquireOutcome::Granted { token: Some(token) }
}

fn passed(token: u64) -> HandOverOutcome {
    HandOverOutcome::Passed { subscribers: Some(0), token: Some(token) }
}

impl Bench {
    async fn fenced(
        &mut self,
        lock: &LockName,
        who: HolderId,
        least: u64,
    ) -> Result<AcquireOutcome> {
        Ok(parse_acquire(
            &self.call(&script::acquire_fenced(lock, &who, lease(300_000), least)).await?,
        )?)
    }

    async fn hand_over_fenced(
        &mut self,
        lock: &LockName,
        from: HolderId,
        to: HolderId,
        least: u64,
    ) -> Result<HandOverOutcome> {
        let call = script::hand_over_fenced(lock, &from, &to, lease(300_000), least);
        Ok(parse_hand_over(&self.call(&call).await?)?)
    }

    async fn now_us(&mut self) -> Result<u64> {
        let time = self.client.call("TIME").await?;
        let part = |n: usize| Ok::<u64, anyhow::Error>(time.items()?[n].text().parse()?);
        Ok(part(0)? * 1_000_000 + part(1)?)
    }

    async fn token(&mut self, lock: &str) -> Result<String> {
        Ok(self.client.call(&format!("GET redisson_lock_token:{{{lock}}}")).await?.text())
    }
}

#[tokio::test]
async fn each_grant_gets_the_next_token() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    // A counter ahead of the clock counts on.
    bench.client.call(&format!("SET redisson_lock_token:{{a}} {AHEAD}")).await?.ok()?;
    for n in 1..=3 {
        assert_eq!(bench.fenced(&lock, ours(n), 1).await?, granted(AHEAD + n.unsigned_abs()));
        bench.release(&lock, ours(n)).await?;
    }
    assert_eq!(bench.token("a").await?, (AHEAD + 3).to_string(), "it outlives the lock");
    assert_eq!(bench.client.call("PTTL redisson_lock_token:{a}").await?.int()?, -1);
    Ok(())
}

#[tokio::test]
async fn a_counter_behind_the_clock_is_raised_to_it() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    let mut last = 0;
    for (n, loss) in [(1, "FLUSHALL"), (2, "SET redisson_lock_token:{a} 70"), (3, "PING")] {
        bench.client.call(loss).await?;
        let before = bench.now_us().await?;
        let AcquireOutcome::Granted { token: Some(token) } =
            bench.fenced(&lock, ours(n), 1).await?
        else {
            bail!("not granted");
        };
        assert!(token > last && (before..=bench.now_us().await?).contains(&token), "{token}");
        last = token;
        bench.release(&lock, ours(n)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_repeated_acquire_gets_one_token() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    for _ in 0..2 {
        assert_eq!(bench.fenced(&lock, ours(1), AHEAD).await?, granted(AHEAD));
    }
    for _ in 0..2 {
        let outcome = bench.hand_over_fenced(&lock, ours(1), ours(2), 1).await?;
        assert_eq!(outcome, passed(AHEAD + 1));
    }
    assert_eq!(bench.token("a").await?, (AHEAD + 1).to_string());
    bench.assert_held(&lock, ours(2), 1, 240_000..=300_000).await
}

#[tokio::test]
async fn a_counter_that_fell_back_is_raised_above_the_known_token() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    assert_eq!(bench.fenced(&lock, ours(1), AHEAD).await?, granted(AHEAD));
    bench.client.call("DEL redisson_lock_token:{a}").await?;
    assert_eq!(bench.fenced(&lock, ours(1), AHEAD).await?, granted(AHEAD), "sent twice");
    bench.client.call("SET redisson_lock_token:{a} 17").await?;
    let least = AHEAD + 1;
    assert_eq!(bench.hand_over_fenced(&lock, ours(1), ours(2), least).await?, passed(least));
    bench.client.call(&format!("SET redisson_lock_token:{{a}} {}", AHEAD + 9)).await?;
    let counted = bench.hand_over_fenced(&lock, ours(2), ours(3), least).await?;
    assert_eq!(counted, passed(AHEAD + 10));
    // Beyond the precision of Lua numbers.
    bench.client.call("SET redisson_lock_token:{a} 900719925474099300").await?;
    let least = 900_719_925_474_099_302;
    assert_eq!(bench.hand_over_fenced(&lock, ours(3), ours(4), least).await?, passed(least));
    let next = bench.hand_over_fenced(&lock, ours(4), ours(5), 1).await?;
    assert_eq!(next, passed(900_719_925_474_099_303));
    Ok(())
}

#[tokio::test]
async fn a_refused_attempt_does_not_count() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.acquire(&lock, theirs(), 300_000).await?;
    let before = bench.dump().await?;
    assert!(matches!(bench.fenced(&lock, ours(1), 5).await?, AcquireOutcome::Held { .. }));
    let late = bench.hand_over_fenced(&lock, ours(1), ours(2), 5).await?;
    assert_eq!(late, HandOverOutcome::Stolen);
    assert_eq!(bench.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn a_token_key_that_is_not_a_counter_is_reported_and_unchanged() -> Result<()> {
    let mut bench = Bench::new().await?;
    for (lock, make) in [
        ("text", "SET redisson_lock_token:{text} many"),
        ("huge", "SET redisson_lock_token:{huge} 9223372036854775807"),
        ("list", "RPUSH redisson_lock_token:{list} x"),
    ] {
        bench.client.call(make).await?.ok()?;
        let before = bench.dump().await?;
        let reply = bench.fenced(&name(lock), ours(1), 1).await?;
        let no_number = "lock whose token key holds no number".to_owned();
        assert_eq!(reply, AcquireOutcome::WrongType(no_number), "{lock}");
        assert_eq!(bench.dump().await?, before, "{lock}");
    }
    Ok(())
}

#[tokio::test]
async fn a_full_redis_refuses_a_grant_but_allows_a_hand_over() -> Result<()> {
    let mut bench = Bench::new().await?;
    let lock = name("a");
    bench.fenced(&lock, ours(1), AHEAD).await?;
    full::fill(&mut bench).await?;
    assert_eq!(bench.hand_over_fenced(&lock, ours(1), ours(2), 1).await?, passed(AHEAD + 1));
    assert_eq!(bench.release(&lock, ours(2)).await?, ReleaseOutcome::Released);
    let refused = bench.fenced(&lock, ours(3), 1).await.unwrap_err().to_string();
    assert!(refused.starts_with("OOM"), "{refused}");
    assert_eq!(bench.token("a").await?, (AHEAD + 1).to_string());
    bench.assert_free(&lock).await
}
