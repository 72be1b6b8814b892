//! Malformed commands, and the handshakes of client libraries.

use anyhow::Result;
use harness::Reply;

use super::{Bench, assert_error, holder, lock};

#[tokio::test]
async fn wrong_commands_get_explanatory_errors() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let wrong = [
        ("LOCK", "SYNTAX", "LOCK name"),
        ("LOCK a WAIT", "SYNTAX", "WAIT"),
        ("LOCK a WAIT soon", "SYNTAX", "soon"),
        ("LOCK a WAIT -1", "SYNTAX", "-1"),
        ("LOCK a WAIT 1.5", "SYNTAX", "1.5"),
        ("LOCK a WAIT 99999999999999999999999999", "LIMIT", "year"),
        ("LOCK a WAIT 5 NOWAIT", "SYNTAX", "WAIT"),
        ("LOCK a NOWAIT NOWAIT", "SYNTAX", "NOWAIT"),
        ("LOCK a LEASE 99", "LIMIT", "100"),
        ("LOCK a LEASE 9223372036854775808", "LIMIT", "year"),
        ("LOCK a LEASE 500 LEASE 500", "SYNTAX", "LEASE"),
        ("LOCK a OWNER me", "SYNTAX", "me"),
        ("LOCK a OWNER 9223372036854775808", "LIMIT", "64-bit"),
        ("LOCK a KIND spin", "SYNTAX", "spin"),
        ("LOCK a KIND red", "SYNTAX", "red"),
        ("LOCK a SOON", "SYNTAX", "SOON"),
        ("UNLOCK", "SYNTAX", "UNLOCK name"),
        ("UNLOCK a NOWAIT", "SYNTAX", "NOWAIT"),
        ("UNLOCK a", "NOTHELD", "a"),
        ("EXTEND a", "SYNTAX", "EXTEND name ms"),
        ("EXTEND a 99", "LIMIT", "100"),
        ("EXTEND a 500", "NOTHELD", "a"),
        ("HOLDS a", "SYNTAX", "HOLDS"),
        ("HOLDS 1-1 wrong", "SESSION", "secret"),
        ("LOCKS COUNT 0", "LIMIT", "COUNT"),
        ("LOCKS CURSOR x", "SYNTAX", "CURSOR"),
        ("SHOW", "SYNTAX", "SHOW name"),
        ("SESSION PUSH maybe", "SYNTAX", "maybe"),
        ("SESSION GRACE soon", "SYNTAX", "GRACE"),
        ("RESUME 1-1", "SYNTAX", "RESUME id secret"),
        ("RESUME 1-1 wrong", "GONE", "session"),
        ("EVENTS", "SYNTAX", "EVENTS id secret"),
        ("EVENTS 1-1 wrong", "SESSION", "secret"),
        ("CANCEL 1-1 wrong", "SESSION", "secret"),
        ("MULTI", "ERR", "MULTI"),
        ("GET a", "ERR", "unknown command 'GET', with args beginning with: 'a'"),
        ("EVAL x 0", "ERR", "unknown command"),
        ("HELLO 4", "NOPROTO", "unsupported"),
    ];
    for (command, code, named) in wrong {
        let reply = worker.call(command).await?;
        assert!(reply.is_error(code), "{command}: {reply}");
        assert_error(&reply, code, named);
    }
    assert_eq!(worker.call("PING").await?.text(), "PONG");
    assert_eq!(worker.call("HOLDS").await?, Reply::Array(vec![]), "none of them did anything");
    Ok(())
}

#[tokio::test]
async fn keywords_are_accepted_in_any_case() -> Result<()> {
    let bench = Bench::new().await?;
    let mut worker = bench.session().await?;
    let first = holder(&lock(&mut worker, "lock a kind LOCK noWait owner 3").await?)?;
    let again = lock(&mut worker, "LoCk a KIND lock WAIT 5 Lease 60000 OWNER 3").await?;
    assert_eq!(holder(&again)?, first);
    assert_eq!(worker.call("unlock a owner 3").await?, Reply::Int(1));
    Ok(())
}

#[tokio::test]
async fn handshakes_of_client_libraries_are_answered() -> Result<()> {
    let bench = Bench::new().await?;
    let mut client = bench.session().await?;
    let hello = client.call("HELLO 3 AUTH default secret SETNAME me").await?;
    assert_eq!(hello.field("proto")?.int()?, 3);
    assert_eq!(hello.field("role")?.text(), "master");
    assert_eq!(client.call("CLIENT GETNAME").await?.text(), "me");
    let ok = [
        "AUTH secret",
        "AUTH default secret",
        "SELECT 0",
        "SELECT 7",
        "CLIENT SETNAME other",
        "CLIENT SETINFO LIB-NAME test",
        "CLIENT SETINFO LIB-VER 1.0",
        "CLIENT NO-EVICT on",
        "CLIENT NO-TOUCH on",
    ];
    for command in ok {
        assert_eq!(client.call(command).await?.text(), "OK", "{command}");
    }
    assert!(client.call("CLIENT ID").await?.int()? > 0);
    assert!(client.call("CLIENT INFO").await?.text().contains("name=other"));
    assert!(client.call("CLIENT MAINT_NOTIFICATIONS on").await?.is_error("ERR"));
    let info = client.call("INFO").await?.text();
    for line in ["redis_version:", "role:master", "loading:0"] {
        assert!(info.contains(line), "{info}");
    }
    for command in ["COMMAND", "COMMAND DOCS", "COMMAND COUNT"] {
        client.call(command).await?.ok()?;
    }
    assert_eq!(client.call("ECHO hi").await?.text(), "hi");
    assert_eq!(client.call("PING hi").await?.text(), "hi");
    lock(&mut client, "LOCK a").await?;
    assert_eq!(client.call("RESET").await?.text(), "RESET");
    assert_eq!(client.call("HOLDS").await?.items()?.len(), 1, "holds are kept");
    assert_eq!(client.call("QUIT").await?.text(), "OK");
    assert_eq!(client.until_closed().await?, []);
    Ok(())
}
