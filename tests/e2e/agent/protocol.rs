//! Bytes on the socket: RESP2, RESP3, inline commands, requests in pieces, floods and garbage.

use anyhow::{Result, ensure};
use harness::process::memory;
use harness::{Client, PATIENCE, Reply, client::encode, eventually};
use redisson::LockName;

use super::{Bench, assert_error, lock};

#[tokio::test]
async fn any_bytes_up_to_512_are_a_name() -> Result<()> {
    let mut bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let longest = vec![0xaa; LockName::MAX];
    let names: [&[u8]; 13] = [
        b" ",
        b"\r\n",
        b"\0",
        b"\xff\xfe",
        b"a{b",
        b"{}",
        b"NOWAIT",
        b"<script>alert(1)</script>",
        "żółw ⚡ 錠".as_bytes(),
        b"'\"",
        b"*1",
        b"-ERR",
        &longest,
    ];
    for name in names {
        let shown = name.escape_ascii();
        let granted = worker.call_args(&[b"LOCK".as_slice(), name, b"NOWAIT"]).await?;
        assert_eq!(granted.field("lock")?.bytes()?, name);
        let field = bench.direct.call_args(&[b"HKEYS".as_slice(), name]).await?;
        assert_eq!(field.items()?[0], *granted.field("holder")?, "{shown}");
        let renamed = worker.call_args(&[b"SHOW".as_slice(), name]).await?;
        assert_eq!(renamed.field("lock")?.bytes()?, name);
        assert_eq!(worker.call_args(&[b"UNLOCK".as_slice(), name]).await?, Reply::Int(0));
    }
    assert_eq!(harness::redis::locks(&mut bench.direct).await?, 0);
    let too_long = vec![b'x'; LockName::MAX + 1];
    let refused = worker.call_args(&[b"LOCK".as_slice(), &too_long]).await?;
    assert_error(&refused, "LIMIT", "512");
    assert!(worker.call_args(&["LOCK", ""]).await?.error().is_some());
    // An error message remains one line, however odd the name in it is.
    let odd = b"two\r\nlines \xff";
    let refused = worker.call_args(&[b"UNLOCK".as_slice(), odd]).await?;
    assert_error(&refused, "NOTHELD", "two\\r\\nlines \\xff");
    Ok(())
}

#[tokio::test]
async fn replies_fit_the_protocol() -> Result<()> {
    let bench = Bench::new().await?;
    let mut old = bench.session().await?;
    let mut new = bench.agent.client3().await?;
    let flat = lock(&mut old, "LOCK a").await?;
    assert_eq!(flat.items()?.len(), 16, "{flat}");
    let map = lock(&mut new, "LOCK b").await?;
    assert!(matches!(&map, Reply::Map(pairs) if pairs.len() == 8), "{map}");
    // The connection returns to the old protocol, in the same session.
    new.call("HELLO 2").await?.ok()?;
    assert_eq!(new.call("HOLDS").await?.items()?[0].items()?.len(), 18);
    Ok(())
}

#[tokio::test]
async fn nulls_have_the_form_of_the_protocol() -> Result<()> {
    let bench = Bench::new().await?;
    let mut holder = bench.session().await?;
    lock(&mut holder, "LOCK a").await?;
    for (hello, null) in [("HELLO 2\r\n", "*-1\r\n"), ("HELLO 3\r\n", "_\r\n")] {
        let bytes = format!("{hello}LOCK a NOWAIT\r\nQUIT\r\n");
        let answer = raw(&bench, bytes.as_bytes()).await?;
        let end = format!("{null}+OK\r\n");
        assert!(answer.ends_with(&end), "{answer:?}");
    }
    Ok(())
}

/// Sends these bytes and returns everything received until the agent closes the connection.
async fn raw(bench: &Bench, bytes: &[u8]) -> Result<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::UnixStream::connect(bench.agent.socket()).await?;
    stream.write_all(bytes).await?;
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await??;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn inline_commands_are_accepted() -> Result<()> {
    let bench = Bench::new().await?;
    let lines = "ping\r\n\r\nLOCK  'a b'  nowait\nlock \"c\\x41\" NoWait\r\nHOLDS\r\nQUIT\r\n";
    let answer = raw(&bench, lines.as_bytes()).await?;
    assert!(answer.starts_with("+PONG\r\n*16\r\n"), "{answer}");
    assert!(answer.contains("\r\na b\r\n") && answer.contains("\r\ncA\r\n"), "{answer}");
    assert!(answer.ends_with("+OK\r\n"), "{answer}");
    Ok(())
}

#[tokio::test]
async fn requests_may_come_byte_by_byte() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    for byte in encode(&["LOCK", "a", "LEASE", "60000"]) {
        worker.send_bytes(&[byte]).await?;
        tokio::task::yield_now().await;
    }
    assert_eq!(worker.reply().await?.field("lock")?.text(), "a");
    // The agent waits for the rest of a request; if it never arrives, this does no harm.
    worker.send_bytes(b"*2\r\n$6\r\nUNLO").await?;
    let mut other = bench.session().await?;
    assert_eq!(other.call("PING").await?.text(), "PONG");
    worker.send_bytes(b"CK\r\n$1\r\na\r\n").await?;
    assert_eq!(worker.reply().await?, Reply::Int(0));
    worker.send_bytes(b"*2\r\n$4\r\nLO").await?;
    drop(worker);
    assert_eq!(other.call("PING").await?.text(), "PONG");
    Ok(())
}

#[tokio::test]
async fn garbage_ends_only_its_own_session() -> Result<()> {
    let mut bench = Bench::new().await?;
    let long_line = [b"PING ".as_slice(), &vec![b'x'; 1 << 20]].concat();
    let many = [b"*2000000\r\n".as_slice(), &b"$1\r\nx\r\n".repeat(10)].concat();
    let rubbish: [&[u8]; 12] = [
        b"*1\r\n$1073741824\r\n",
        b"*1073741824\r\n",
        b"*-7\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n:5\r\n",
        b"*1\r\n*1\r\n$4\r\nPING\r\n",
        b"*1\r\n$4\r\nPINGxx",
        b"*abc\r\n",
        b"*99999999999999999999999\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &many,
        &long_line,
    ];
    for bytes in rubbish {
        let shown = bytes[..bytes.len().min(40)].escape_ascii().to_string();
        let mut holder = bench.session().await?;
        lock(&mut holder, "LOCK mine").await?;
        // The agent may close the connection before it has read everything.
        holder.send_bytes(bytes).await.unwrap_or_default();
        let replies = holder.until_closed().await?;
        let [Reply::Error(sentence)] = replies.as_slice() else {
            panic!("{shown}: one error, then the end, but {replies:?}")
        };
        assert!(sentence.starts_with("ERR Protocol error"), "{shown}: {sentence}");
        bench.until_free("mine").await;
    }
    let used = memory(bench.agent.pid())?;
    assert!(used < 64 << 20, "{used} bytes");
    assert_eq!(bench.session().await?.call("PING").await?.text(), "PONG");
    assert!(bench.agent.process().ended()?.is_none());
    Ok(())
}

#[tokio::test]
async fn ten_thousand_commands_may_come_before_a_reply_is_read() -> Result<()> {
    const ROUNDS: usize = 500;
    const ECHOES: usize = 17;
    let bench = Bench::new().await?;
    let mut bytes = Vec::new();
    for i in 0..ROUNDS {
        bytes.extend(encode(&["LOCK", "a", "WAIT", "100000"]));
        bytes.extend(encode(&["UNLOCK", "a"]));
        bytes.extend(encode(&["NONSENSE", &i.to_string()]));
        bytes.extend(encode(&["ECHO", &i.to_string()]).repeat(ECHOES));
    }
    // Everything is sent before anything is read: the agent must not depend on the reads.
    let mut worker = bench.session().await?;
    worker.send_bytes(&bytes).await?;
    for i in 0..ROUNDS {
        assert_eq!(worker.reply().await?.field("holds")?, &Reply::Int(1), "{i}");
        assert_eq!(worker.reply().await?, Reply::Int(0));
        assert_error(&worker.reply().await?, "ERR", "unknown command");
        for _ in 0..ECHOES {
            assert_eq!(worker.reply().await?.text(), i.to_string());
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_never_reads_is_throttled() -> Result<()> {
    let bench = Bench::new().await?;
    let mut holder = bench.session().await?;
    lock(&mut holder, "LOCK a").await?;
    let flood = encode(&["ECHO", &"x".repeat(4_000)]).repeat(240);
    let mut stuck = 0;
    let mut floods = Vec::new();
    while stuck < 8 {
        let mut client = Client::unix(&bench.agent.socket()).await?;
        let mut sent = 0;
        // The agent stops reading; from then on sending makes no progress.
        let pause = std::time::Duration::from_millis(500);
        while tokio::time::timeout(pause, client.send_bytes(&flood)).await.is_ok() {
            sent += flood.len();
            ensure!(sent < 256 << 20, "the agent reads on and on");
        }
        floods.push(client);
        stuck += 1;
    }
    let used = memory(bench.agent.pid())?;
    assert!(used < 128 << 20, "{used} bytes");
    assert_eq!(holder.call("UNLOCK a").await?, Reply::Int(0), "others are served meanwhile");
    drop(floods);
    eventually("the sessions to end", async || {
        let sessions = bench.agent.metrics().await?.sum("lockscope_agent_sessions", &[]);
        ensure!(sessions == 1.0, "{sessions}");
        Ok(())
    })
    .await;
    Ok(())
}
