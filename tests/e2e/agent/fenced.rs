//! KIND fenced: a token with each grant.

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
    assert_eq!((first.field("kind")?.text().as_str(), token(&first)?), ("fenced", 1));
    let again = lock(&mut one, "LOCK a KIND fenced").await?;
    assert_eq!((token(&again)?, again.field("holds")?.int()?), (1, 2), "a re-entry is no grant");
    let holds = one.call("HOLDS").await?;
    assert_eq!(token(&holds.items()?[0])?, 1);

    two.send("LOCK a KIND fenced").await?;
    bench.until_waiting("a", 1).await?;
    for _ in 0..2 {
        one.call("UNLOCK a").await?.ok()?;
    }
    assert_eq!(token(&two.reply().await?)?, 2, "handed over");
    assert_eq!(bench.agent.metrics().await?.sum("lockscope_agent_handovers_total", &[]), 1.0);
    assert_eq!(two.call("SHOW a").await?.field("token")?.int()?, 2);
    two.call("UNLOCK a KIND fenced").await?.ok()?;

    // Redisson counts on in the same sequence.
    bench.direct.call("INCR redisson_lock_token:{a}").await?.ok()?;
    assert_eq!(token(&lock(&mut one, "LOCK a KIND fenced").await?)?, 4);
    Ok(())
}

#[tokio::test]
async fn a_lost_counter_does_not_restart() -> Result<()> {
    let mut bench = Bench::new().await?;
    let (mut one, mut two) = (bench.session().await?, bench.session().await?);
    for n in 1..=3 {
        assert_eq!(token(&lock(&mut one, "LOCK a KIND fenced").await?)?, n);
        one.call("UNLOCK a").await?.ok()?;
    }
    bench.direct.call("FLUSHALL").await?.ok()?;
    assert_eq!(token(&lock(&mut one, "LOCK a KIND fenced").await?)?, 4);
    two.send("LOCK a KIND fenced").await?;
    bench.until_waiting("a", 1).await?;
    bench.direct.call("DEL redisson_lock_token:{a}").await?;
    one.call("UNLOCK a").await?.ok()?;
    assert_eq!(token(&two.reply().await?)?, 5);
    Ok(())
}

#[tokio::test]
async fn plain_and_fenced_exclude_each_other_even_for_one_owner() -> Result<()> {
    let bench = Bench::new().await?;
    let (mut one, mut two) = (bench.session().await?, bench.session().await?);
    lock(&mut one, "LOCK a").await?;
    assert_eq!(two.call("LOCK a KIND fenced NOWAIT").await?, Reply::Null);
    assert_error(&one.call("LOCK a KIND fenced").await?, "WRONGKIND", "a");
    two.send("LOCK a KIND fenced").await?;
    bench.until_waiting("a", 1).await?;
    one.call("UNLOCK a").await?.ok()?;
    let fenced = two.reply().await?;
    assert_eq!(token(&fenced)?, 1, "from a plain holder to a fenced one");
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
