//! KIND fenced: a token for each grant.

use anyhow::Result;
use harness::Reply;

use super::{Bench, assert_error, lock};

fn token(reply: &Reply) -> Result<i64> {
    reply.field("token")?.int()
}

#[tokio::test]
async fn tokens_increase_with_each_grant_to_any_client() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (mut one, mut two) = (bench.session().await?, bench.session().await?);
    let first = lock(&mut one, "LOCK a KIND fenced").await?;
    assert_eq!(first.field("kind")?.text(), "fenced");
    let issued = token(&first)?;
    let again = lock(&mut one, "LOCK a KIND fenced").await?;
    assert_eq!(
        (token(&again)?, again.field("holds")?.int()?),
        (issued, 2),
        "a reentry is no grant"
    );
    let holds = one.call("HOLDS").await?;
    assert_eq!(token(&holds.items()?[0])?, issued);

    two.send("LOCK a KIND fenced").await?;
    bench.until_waiting("a", 1).await?;
    for _ in 0..2 {
        one.call("UNLOCK a").await?.ok()?;
    }
    let handed_over = token(&two.reply().await?)?;
    assert!(handed_over > issued, "{handed_over} after {issued}");
    assert_eq!(bench.agent.metrics().await?.sum("lockscope_agent_handovers_total", &[]), 1.0);
    assert_eq!(two.call("SHOW a").await?.field("token")?.int()?, handed_over);
    two.call("UNLOCK a KIND fenced").await?.ok()?;

    // Redisson continues the same sequence.
    let redissons = bench.direct.call("INCR redisson_lock_token:{a}").await?.int()?;
    let next = token(&lock(&mut one, "LOCK a KIND fenced").await?)?;
    assert!(handed_over < redissons && redissons < next, "{handed_over}, {redissons}, {next}");
    Ok(())
}

#[tokio::test]
async fn tokens_increase_after_a_loss_of_the_counter_with_any_agent() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (mut one, mut two) = (bench.session().await?, bench.session().await?);
    let mut last = token(&lock(&mut one, "LOCK a KIND fenced").await?)?;
    one.call("UNLOCK a").await?.ok()?;
    for loss in ["FLUSHALL", "SET redisson_lock_token:{a} 17"] {
        bench.direct.call(loss).await?.ok()?;
        // This agent has seen no token of this lock.
        let stranger = bench.another_agent(&[]).await?;
        let mut worker = stranger.client().await?;
        let next = token(&lock(&mut worker, "LOCK a KIND fenced").await?)?;
        assert!(next > last, "{loss}: {next} after {last}");
        last = next;
        worker.call("UNLOCK a").await?.ok()?;
    }
    let mut last = token(&lock(&mut one, "LOCK a KIND fenced").await?)?;
    two.send("LOCK a KIND fenced").await?;
    bench.until_waiting("a", 1).await?;
    bench.direct.call("DEL redisson_lock_token:{a}").await?;
    one.call("UNLOCK a").await?.ok()?;
    let next = token(&two.reply().await?)?;
    assert!(next > last, "{next} after {last}");
    last = next;
    // The counter is ahead of the clock: the agent remembers the last token that it has seen.
    bench
        .direct
        .call(&format!("SET redisson_lock_token:{{a}} {}", last + 1_000_000_000_000))
        .await?;
    two.call("UNLOCK a").await?.ok()?;
    let ahead = token(&lock(&mut one, "LOCK a KIND fenced").await?)?;
    assert_eq!(ahead, last + 1_000_000_000_001);
    one.call("UNLOCK a").await?.ok()?;
    bench.direct.call("FLUSHALL").await?.ok()?;
    assert_eq!(token(&lock(&mut one, "LOCK a KIND fenced").await?)?, ahead + 1);
    Ok(())
}

#[tokio::test]
async fn plain_and_fenced_locks_exclude_each_other_even_for_one_owner() -> Result<()> {
    let bench = Bench::new().await?;
    let (mut one, mut two) = (bench.session().await?, bench.session().await?);
    lock(&mut one, "LOCK a").await?;
    assert_eq!(two.call("LOCK a KIND fenced NOWAIT").await?, Reply::Null);
    assert_error(&one.call("LOCK a KIND fenced").await?, "WRONGKIND", "a");
    two.send("LOCK a KIND fenced").await?;
    bench.until_waiting("a", 1).await?;
    one.call("UNLOCK a").await?.ok()?;
    let fenced = two.reply().await?;
    assert!(token(&fenced)? > 0, "from a plain holder to a fenced one");
    one.send("LOCK a").await?;
    bench.until_waiting("a", 1).await?;
    two.call("UNLOCK a").await?.ok()?;
    let plain = one.reply().await?;
    assert_eq!(plain.field("token")?, &Reply::Null);
    assert_error(&two.call("LOCK a KIND read").await?, "WRONGKIND", "a");
    Ok(())
}

#[tokio::test]
async fn a_token_key_that_is_not_a_counter_is_reported() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    bench.direct.call("SET redisson_lock_token:{a} many").await?.ok()?;
    assert_error(&worker.call("LOCK a KIND fenced").await?, "WRONGTYPE", "token");
    assert!(bench.is_free("a").await?);
    Ok(())
}
