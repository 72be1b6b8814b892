//! Names of arbitrary bytes and with unbalanced braces.

use anyhow::Result;
use redisson::LockName;
use redisson::script::{HandOverOutcome, ReleaseOutcome, RenewOutcome};

use super::{Bench, GRANTED, keys, messages, ours};

#[tokio::test]
async fn names_may_be_any_bytes() -> Result<()> {
    let mut bench = Bench::new().await?;
    let odd: [&[u8]; 12] = [
        b" ",
        b"\r\n",
        b"\0",
        b"\xff\xfe",
        b"a{b",
        b"a}b",
        b"{}x",
        b"{a}{b}",
        b"}{",
        b"*?[x]",
        "żółw ⚡ 錠".as_bytes(),
        &[0xaa; LockName::MAX],
    ];
    for bytes in odd {
        let lock = LockName::new(bytes)?;
        let mut waiter = bench.subscriber(&keys::channel(&lock)).await?;
        assert_eq!(bench.acquire(&lock, ours(1), 300_000).await?, GRANTED, "{lock}");
        assert_eq!(bench.renew(&lock, ours(1), 2, 300_000).await?, RenewOutcome::Renewed, "{lock}");
        let passed = bench.hand_over(&lock, ours(1), ours(2), 300_000).await?;
        assert_eq!(passed, HandOverOutcome::Passed { subscribers: Some(1), token: None }, "{lock}");
        bench.assert_held(&lock, ours(2), 1, 240_000..=300_000).await?;
        assert_eq!(bench.show(&lock).await?.hash.holders.len(), 1, "{lock}");
        assert_eq!(bench.release(&lock, ours(2)).await?, ReleaseOutcome::Released, "{lock}");
        assert_eq!(messages(&mut waiter).await?, ["0"], "{lock}");
        assert_eq!(bench.client.call("DBSIZE").await?.int()?, 0, "{lock}");
    }
    Ok(())
}
