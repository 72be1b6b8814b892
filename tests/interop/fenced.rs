//! Fencing tokens of both sides come from one counter and grow in one sequence.

use anyhow::{Context as _, Result};
use harness::Reply;
use harness::client::encode;

use super::bed::{unlock, version};
use super::{Bed, Kind};

fn token(grant: &Reply) -> Result<i64> {
    grant.field("token")?.int()
}

#[tokio::test]
async fn tokens_of_both_sides_increase_in_one_sequence() -> Result<()> {
    let kind = Kind::of("fenced").context("a word of the table")?;
    if !kind.is_in(&version()?) {
        return Ok(());
    }
    let mut bed = Bed::new().await?;
    let java = bed.java(kind, "a");
    let (mut worker, mut second) = (bed.session().await?, bed.session().await?);
    let mut highest = 0;
    let mut assert_higher = |token: i64| {
        assert!(token > highest, "{token} after {highest}");
        highest = token;
    };
    for _ in 0..5 {
        assert_higher(java.number("lockAndGetToken").await?);
        // Redisson counts a reentry; the agent's hold keeps its token.
        assert_higher(java.number("tryLockAndGetToken").await?);
        java.call("unlock").await?;
        bed.begin_wait(&mut worker, kind, "a").await?;
        java.call("unlock").await?;
        let granted = token(&worker.reply().await?.ok()?)?;
        assert_higher(granted);
        let again = worker.call_args(&kind.lock("a", "")).await?.ok()?;
        assert_eq!((again.field("holds")?.int()?, token(&again)?), (2, granted));
        assert_eq!(java.number("getToken").await?, granted);
        assert_eq!(unlock(&mut worker, kind, "a").await?, 1);
        // Within the agent the lock may pass straight to the next waiter.
        second.send_bytes(&encode(&kind.lock("a", ""))).await?;
        assert_eq!(unlock(&mut worker, kind, "a").await?, 0);
        assert_higher(token(&second.reply().await?.ok()?)?);
        let waiting = java.begin_wait().await?;
        assert_eq!(unlock(&mut second, kind, "a").await?, 0);
        waiting.answer().await??;
        assert_higher(java.number("getToken").await?);
        java.call("unlock").await?;
    }
    bed.assert_nothing_left().await;
    Ok(())
}
