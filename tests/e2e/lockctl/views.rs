//! Listings of locks, and operator actions.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use harness::{Process, eventually};
use serde_json::Value;

use super::{Desk, is_there};
use crate::agent::{holder, lock};

/// Runs lockctl to its end. Returns its status, standard output and standard error.
fn run(desk: &Desk, args: &[&str]) -> Result<(i32, String, String)> {
    let output = desk.command(args)?.stdin(Stdio::null()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code().context("a signal")?, text(&output.stdout), text(&output.stderr)))
}

fn json(desk: &Desk, args: &[&str]) -> Result<Value> {
    let (status, out, err) = run(desk, args)?;
    ensure!(status == 0, "{args:?}: {status}: {err}");
    Ok(serde_json::from_str(&out)?)
}

#[tokio::test]
async fn the_list_shows_holders_and_waiters() -> Result<()> {
    let desk = Desk::new().await?;
    let mut one = desk.bench.session().await?;
    one.call("CLIENT SETNAME nightly").await?.ok()?;
    lock(&mut one, "LOCK orders:1").await?;
    one.call_args(&["LOCK", "bad\u{1b}[2Jname"]).await?.ok()?;
    let mut two = desk.bench.session().await?;
    two.send("LOCK orders:1").await?;
    desk.bench.until_waiting("orders:1", 1).await?;
    let (status, out, _) = run(&desk, &["ls"])?;
    assert_eq!(status, 0);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("LOCK") && lines[0].ends_with("WHO"), "{out}");
    assert!(lines.len() == 4 && !out.contains('\u{1b}'), "{out:?}");
    assert!(lines[1].contains("held") && lines[1].ends_with("nightly"), "the oldest first: {out}");
    let rows = json(&desk, &["ls", "--json", "orders:*"])?;
    let rows = rows.as_array().context("a list")?;
    let states: Vec<_> = rows.iter().map(|row| row["state"].as_str()).collect();
    assert_eq!(states, [Some("held"), Some("waiting")]);
    assert_eq!(rows[0]["pid"], std::process::id());
    // More locks than fit on one page.
    for n in 0..1100 {
        one.send(&format!("LOCK many:{n}")).await?;
    }
    for _ in 0..1100 {
        one.reply().await?.ok()?;
    }
    assert_eq!(json(&desk, &["ls", "--json", "many:*"])?.as_array().map(Vec::len), Some(1100));
    Ok(())
}

#[tokio::test]
async fn show_describes_the_lock_as_stored_in_redis() -> Result<()> {
    let desk = Desk::new().await?;
    let mut one = desk.bench.session().await?;
    let grant = lock(&mut one, "LOCK a KIND fenced").await?;
    let (held, token) = (holder(&grant)?, grant.field("token")?.int()?);
    lock(&mut one, "LOCK a KIND fenced").await?;
    let (twice, us) = (format!("held by  {held}, 2 times"), std::process::id());
    let out = eventually("the count in Redis", async || {
        let (status, out, _) = run(&desk, &["show", "a"])?;
        ensure!(status == 0 && out.contains(&twice), "{status}: {out}");
        Ok(out)
    })
    .await;
    for words in [&format!("token    {token}"), &format!("(pid {us}, user ")] {
        assert!(out.contains(words), "`{words}` is not in {out}");
    }
    let ttl = out.lines().find_map(|line| line.strip_prefix("ttl      "));
    let seconds = ttl.and_then(|ttl| ttl.split(|c: char| !c.is_ascii_digit()).next());
    let seconds: u64 = seconds.with_context(|| out.clone())?.parse()?;
    assert!((10..=30).contains(&seconds), "{out}");
    let shown = json(&desk, &["show", "--json", "a"])?;
    assert_eq!((&shown["holders"][0]["holder"], &shown["token"]), (&held.into(), &token.into()));
    assert_eq!(run(&desk, &["show", "b"])?.1, "b is free\n");
    assert_eq!(json(&desk, &["show", "--json", "b"])?, Value::Null);
    Ok(())
}

#[tokio::test]
async fn show_says_that_nobody_holds_what_is_left_of_a_lock() -> Result<()> {
    let desk = Desk::new().await?;
    let mut redis = desk.bench.redis.client().await?;
    redis.call("RPUSH redisson_lock_queue:{left} there:7").await?.ok()?;
    redis.call("ZADD redisson_lock_timeout:{left} 1000 there:7").await?.ok()?;
    redis.call("SET text 1").await?.ok()?;
    let left = run(&desk, &["show", "left"])?.1;
    assert_eq!(left, "lock     left\nkind     fair\nheld by  nobody\nqueue    1 waiting\n");
    let text = run(&desk, &["show", "text"])?.1;
    assert!(
        text.starts_with("lock     text\nheld by  nobody\nwarning  the key is not a lock"),
        "{text}"
    );
    Ok(())
}

#[tokio::test]
async fn show_names_the_process_behind_a_holder_of_another_agent() -> Result<()> {
    let mut desk = Desk::new().await?;
    let host = "node-7";
    let other = desk.bench.another_agent(&["--host-name", host]).await?;
    let mut there = other.client().await?;
    there.call("CLIENT SETNAME nightly").await?.ok()?;
    let held = holder(&lock(&mut there, "LOCK a").await?)?;
    let user = rustix::process::getuid().as_raw();
    let process = format!(" — nightly (pid {}, user {user}) on {host}", std::process::id());
    eventually("the other agent's entry", async || {
        let (_, out, _) = run(&desk, &["show", "a"])?;
        ensure!(out.contains(&format!("held by  {held}{process}")), "{out}");
        Ok(())
    })
    .await;
    let shown = json(&desk, &["show", "--json", "a"])?;
    let first = &shown["holders"][0];
    assert_eq!((&first["host"], &first["age_ms"]), (&host.into(), &Value::Null));
    // An agent that may not read the entries shows everything else.
    let denied = "ACL SETUSER default resetkeys ~a ~redisson_* ~{a}* ~lockscope:holders:*";
    desk.bench.direct.call(denied).await?.ok()?;
    let (status, out, _) = run(&desk, &["show", "a"])?;
    assert!(status == 0 && out.contains(&held) && !out.contains(host), "{out}");
    Ok(())
}

#[tokio::test]
async fn the_status_reports_whether_locks_are_available() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut one = desk.bench.session().await?;
    lock(&mut one, "LOCK a").await?;
    let status = json(&desk, &["status", "--json"])?;
    assert_eq!((&status["pid"], &status["holds"]), (&desk.bench.agent.pid().into(), &1.into()));
    assert_eq!((&status["redis_up"], &status["draining"]), (&true.into(), &false.into()));
    desk.bench.redis.process().kill()?;
    eventually("the status to tell that Redis is gone", async || {
        let (status, out, _) = run(&desk, &["status"])?;
        ensure!(status == 69 && out.contains("redis up  no"), "{status}: {out}");
        Ok(())
    })
    .await;
    desk.bench.agent.process().kill()?;
    let (status, _, err) = run(&desk, &["status"])?;
    assert!(status == 69 && err.contains("no agent answers at "), "{status}: {err}");
    Ok(())
}

#[tokio::test]
async fn the_status_quotes_a_redis_that_refuses_all_locks() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut one = desk.bench.session().await?;
    lock(&mut one, "LOCK a").await?;
    desk.bench.direct.call("CONFIG SET min-replicas-to-write 1").await?.ok()?;
    one.send("UNLOCK a").await?;
    eventually("the status to quote the refusal", async || {
        let (status, out, _) = run(&desk, &["status"])?;
        ensure!(status == 69 && out.contains("\nrefuses   NOREPLICAS "), "{status}: {out}");
        let shown = desk.command(&["status", "--json"])?.output()?.stdout;
        let shown: Value = serde_json::from_slice(&shown)?;
        let refusal = shown["redis_refusal"].as_str();
        ensure!(refusal.is_some_and(|error| error.starts_with("NOREPLICAS ")), "{shown}");
        ensure!(shown["redis_up"] == true, "{shown}");
        Ok(())
    })
    .await;
    desk.bench.direct.call("CONFIG SET min-replicas-to-write 0").await?.ok()?;
    eventually("the refusal to be over", async || {
        let shown = json(&desk, &["status", "--json"])?;
        ensure!(shown["redis_refusal"] == Value::Null, "{shown}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_rejected_connection_is_reported_with_the_agents_reason() -> Result<()> {
    let desk = Desk::with(&["--max-sessions", "1"]).await?;
    // The connection that checked whether the agent was ready may not have ended yet.
    let _only =
        eventually("the only session to be free", async || desk.bench.agent.client3().await).await;
    let (status, _, err) = run(&desk, &["status"])?;
    assert!(status == 69 && err.contains("rejected the connection"), "{status}: {err}");
    assert!(err.contains("the agent already serves 1 sessions"), "{err}");
    Ok(())
}

#[tokio::test]
async fn without_a_terminal_changes_are_printed_as_lines() -> Result<()> {
    let mut desk = Desk::new().await?;
    let log = desk.path("watched");
    let file = std::fs::File::create(&log)?;
    let command = desk.command(&["watch", "--interval", "100ms", "orders:*"])?;
    let mut watch = Process::spawn("watch", command, &desk.path("watch.log"), Some(file.into()))?;
    let lines = || -> Result<Vec<String>> {
        let text = std::fs::read_to_string(&log)?;
        Ok(text.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect())
    };
    let tells = async |start: &str| {
        eventually(start, async || {
            let lines = lines()?;
            ensure!(lines.iter().any(|line| line.starts_with(start)), "{lines:?}");
            Ok(())
        })
        .await;
    };
    let mut one = desk.bench.session().await?;
    lock(&mut one, "LOCK orders:1").await?;
    lock(&mut one, "LOCK other").await?;
    tells("held orders:1 lock pid=").await;
    one.call("UNLOCK orders:1").await?.ok()?;
    tells("released orders:1 lock pid=").await;
    // The watch reconnects to a restarted agent.
    desk.bench.agent.restart().await?;
    let mut one = desk.bench.session().await?;
    lock(&mut one, "LOCK orders:2").await?;
    tells("held orders:2 lock pid=").await;
    // The watch sees the wait before the hold only if it polls in between.
    let mut told = lines()?;
    told.retain(|line| !line.starts_with("wait"));
    assert_eq!(told.len(), 3, "each change once: {told:?}");
    watch.kill()
}

#[tokio::test]
async fn a_watch_whose_reader_has_gone_ends_without_a_change_to_print() -> Result<()> {
    let desk = Desk::new().await?;
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let command = desk.command(&["watch", "nothing:*"])?;
    let mut watch = Process::spawn("watch", command, &desk.path("log"), Some(writer.into()))?;
    assert!(watch.end().await.success());
    Ok(())
}

#[tokio::test]
async fn a_forced_release_applies_only_to_an_unchanged_lock() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut run_under = desk.exec("a", "echo $$ > shell; while :; do sleep 0.05; done")?;
    let shell = desk.pid("shell").await?;
    let held = desk.bench.holders("a").await?[0].0.clone();
    let (status, _, err) = run(&desk, &["unlock", "a"])?;
    assert!(status == 64 && err.contains("--force"), "{status}: {err}");
    let other = "11111111-2222-3333-4444-555555555555:42";
    let (status, _, err) = run(&desk, &["unlock", "--force", "--holder", other, "a"])?;
    assert!(status == 65 && err.contains(&held) && err.contains(other), "{status}: {err}");
    let (status, _, err) = run(&desk, &["unlock", "--force", "--holder", "none", "a"])?;
    assert_eq!(
        (status, err),
        (
            65,
            format!(
                "lockctl: nothing is released: `a` is held by {held}, not by `none`; to release it, name its present holder, or \
                 omit the holder (NOTHELD)\n"
            )
        )
    );
    assert!(is_there(shell) && !desk.bench.is_free("a").await?);
    let mut next = desk.bench.session().await?;
    next.send("LOCK a").await?;
    desk.bench.until_waiting("a", 1).await?;
    let (status, out, err) = run(&desk, &["unlock", "--force", "--holder", &held, "a"])?;
    assert_eq!((status, out), (0, format!("released a, holder: {held}\n")), "{err}");
    next.reply().await?.ok()?;
    let (status, said) = run_under.end().await?;
    assert!(status == 76 && said.contains("lost a: an operator released it"), "{status}: {said}");
    assert!(!is_there(shell));
    // Without an expected holder the lock is always released, even if no agent knows its holder.
    desk.bench.direct.call(&format!("HSET b {other} 1")).await?.ok()?;
    assert_eq!(json(&desk, &["unlock", "--force", "--json", "b"])?["released"], 1);
    assert!(desk.bench.is_free("b").await?);
    assert_eq!(run(&desk, &["unlock", "--force", "b"])?.1, "b is free\n");
    desk.bench.direct.call("SET text x").await?.ok()?;
    assert_eq!(run(&desk, &["unlock", "--force", "text"])?.0, 65);
    assert!(!desk.bench.is_free("text").await? || desk.bench.pttl("text").await? == -1);
    let log = desk.bench.agent.process().log();
    let audit = log
        .lines()
        .find(|line| line.contains("lock force-released by an operator"))
        .context(log.clone())?;
    for words in ["\"lock.name\":\"a\"", &held, "\"by.uid\":", "\"by.comm\":\"lockctl\""] {
        assert!(audit.contains(words), "`{words}` is not in {audit}");
    }
    Ok(())
}

#[tokio::test]
async fn a_forced_release_of_one_reader_leaves_the_others() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut readers = [desk.bench.agent.client3().await?, desk.bench.agent.client3().await?];
    let mut ids = Vec::new();
    for reader in &mut readers {
        reader.call("SESSION PUSH on").await?.ok()?;
        ids.push(holder(&lock(reader, "LOCK a KIND read").await?)?);
    }
    let mut writer = desk.bench.session().await?;
    writer.send("LOCK a KIND write").await?;
    desk.bench.until_waiting("a", 1).await?;
    for (n, (reader, id)) in readers.iter_mut().zip(&ids).enumerate() {
        let there: Vec<_> = desk.bench.holders("a").await?;
        assert!(there.iter().any(|(field, _)| field == id), "{n}: {there:?}");
        let (status, out, err) = run(&desk, &["unlock", "--force", "--holder", id, "a"])?;
        assert_eq!((status, out), (0, format!("released a, holder: {id}\n")), "{err}");
        assert_eq!(reader.push().await?, ["lock-lost", "a", "read", "forced"]);
        if n == 0 {
            let (status, _, err) = run(&desk, &["unlock", "--force", "--holder", id, "a"])?;
            assert!(status == 65 && err.contains(&ids[1]), "{status}: {err}");
        }
    }
    let written = writer.reply().await?;
    assert_eq!(written.field("kind")?.text(), "write", "{written}");
    Ok(())
}

#[tokio::test]
async fn a_killed_session_loses_its_locks_and_is_notified() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut worker = desk.bench.agent.client3().await?;
    let session = worker.call("SESSION PUSH on").await?.ok()?.field("id")?.text();
    lock(&mut worker, "LOCK a").await?;
    let rows = json(&desk, &["ls", "--json"])?;
    assert_eq!(rows[0]["session"], session.as_str());
    let (status, out, err) = run(&desk, &["kick", &session])?;
    assert_eq!((status, out), (0, format!("ended {session}, locks released: 1\n")), "{err}");
    assert_eq!(worker.push().await?, ["lock-lost", "a", "lock", "forced"]);
    assert!(worker.until_closed().await?.is_empty());
    desk.bench.until_free("a").await;
    let (status, _, err) = run(&desk, &["kick", &session])?;
    assert!(status == 65 && err.contains("no such session"), "{status}: {err}");
    let metrics = desk.bench.agent.metrics().await?;
    assert!(metrics.sum("lockscope_agent_lost_holds_total", &[("reason", "forced")]) >= 1.0);
    assert!(desk.bench.agent.process().log().contains("session ended by an operator"));
    Ok(())
}

#[tokio::test]
async fn other_users_are_not_operators() -> Result<()> {
    let mut desk = Desk::with(&["--socket-mode", "0666", "--world-writable-socket"]).await?;
    let mut worker = desk.bench.session().await?;
    lock(&mut worker, "LOCK a").await?;
    let session =
        json(&desk, &["ls", "--json"])?[0]["session"].as_str().context("no session")?.to_owned();
    for args in [&["unlock", "--force", "a"][..], &["kick", &session]] {
        let Some(mut command) = desk.as_nobody(args)? else { return Ok(()) };
        let output = command.output()?;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(77), "{args:?}: {err}");
        assert!(err.contains("you are user 65534"), "{err}");
    }
    assert!(!desk.bench.is_free("a").await?);
    Ok(())
}

#[tokio::test]
async fn a_variable_without_a_value_counts_as_unset() -> Result<()> {
    let desk = Desk::new().await?;
    let socket = desk.bench.agent.socket().display().to_string();
    let mut command = desk.command(&["--socket", &socket, "exec", "a", "--", "true"])?;
    command.env("LOCKCTL_EXIT_LOST", "").env("LOCKSCOPE_SOCKET", "");
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn completions_and_the_manual_cover_every_command() -> Result<()> {
    let desk = Desk::new().await?;
    let verbs =
        ["exec", "ls", "show", "status", "watch", "tail", "unlock", "kick", "completions", "man"];
    let (status, page, _) = run(&desk, &["man"])?;
    assert_eq!(status, 0);
    for verb in verbs {
        assert!(page.contains(&format!(".SH LOCKCTL {}\n", verb.to_uppercase())), "{verb}: {page}");
    }
    for part in [
        r"\-\-kill\-after",
        r"lockctl exec [OPTIONS] <LOCK>... \-\- <COMMAND>...",
        ".SH \"EXIT STATUS\"\nthat of the command",
        "LOCKCTL_EXIT_LOST",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains(r"lockctl\-exec(1)"), "there is no such page: {page}");
    for shell in ["bash", "zsh", "fish"] {
        let (status, script, _) = run(&desk, &["completions", shell])?;
        assert_eq!(status, 0);
        assert!(verbs.iter().all(|verb| script.contains(verb)), "{shell}");
    }
    Ok(())
}
