//! Exit statuses: those of the command, as in a shell, and those of lockctl.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::Desk;
use super::process;
use crate::agent::lock;

#[tokio::test]
async fn lockctl_returns_the_status_of_its_command() -> Result<()> {
    let mut desk = Desk::new().await?;
    for (script, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
    ] {
        let (code, said) = desk.exec("a", script)?.end().await?;
        assert_eq!(code, status, "{script}: {said}");
        assert!(desk.bench.is_free("a").await?, "{script}: released before lockctl ends");
    }
    let run = |args: &[&str]| desk.spawn(desk.command(args)?);
    let (code, said) = run(&["exec", "a", "--", "no-such-command-here"])?.end().await?;
    assert_eq!(code, 127, "{said}");
    assert!(said.contains("cannot run no-such-command-here: No such file"), "{said}");
    let (code, said) = run(&["exec", "a", "--", "/etc/passwd"])?.end().await?;
    assert_eq!(code, 126, "{said}");
    Ok(())
}

#[tokio::test]
async fn an_unavailable_lock_differs_from_a_failure() -> Result<()> {
    let desk = Desk::new().await?;
    let mut other = desk.bench.session().await?;
    other.call("CLIENT SETNAME nightly-report").await?.ok()?;
    lock(&mut other, "LOCK a").await?;
    for words in ["--try a", "--wait 0 a", "--wait 50ms a", "--wait 0.05 free a"] {
        let (code, said) = desk.exec(words, "touch ran")?.end().await?;
        assert_eq!(code, 75, "{words}: {said}");
        let us = std::process::id();
        assert!(said.contains("gave up on"), "{words}: {said}");
        assert!(
            said.contains(&format!("a is held by nightly-report (pid {us}, user ")),
            "{words}: {said}"
        );
        assert!(said.contains("its TTL is 2"), "{words}: {said}");
    }
    let (code, said) = desk.exec("--quiet --try --exit-timeout 1 a", "touch ran")?.end().await?;
    assert_eq!(code, 1, "{said}");
    assert_eq!(said, "", "--quiet prints");
    // The locks that were available are not kept either.
    assert_eq!(desk.exec("--try free", "exit 0")?.end().await?.0, 0);
    assert!(!desk.path("ran").exists(), "a command ran without its lock");
    Ok(())
}

#[tokio::test]
async fn each_refusal_has_a_separate_status() -> Result<()> {
    let mut desk = Desk::new().await?;
    desk.bench.direct.call("SET text x").await?.ok()?;
    for (words, status, sentence) in [
        ("text", 65, "(WRONGTYPE)"),
        ("twice twice", 64, "`twice` is given twice"),
        ("--socket /nowhere/agent.sock a", 69, "no agent answers at /nowhere/agent.sock"),
        ("--socket /nowhere/\u{1b}[2J a", 69, r"no agent answers at /nowhere/\u{1b}[2J"),
        ("--socket /nowhere/agent.sock --exit-no-agent 3 a", 3, "no agent answers"),
        ("--nonsense a", 64, "--nonsense"),
        ("--wait soon a", 64, "expected a duration such as 500ms"),
        ("--on-lost sleep a", 64, "expected term, kill, ignore"),
        ("--exit-usage 2 --nonsense a", 2, "--nonsense"),
    ] {
        let (code, said) = desk.exec(words, "touch ran")?.end().await?;
        assert_eq!(code, status, "{words}: {said}");
        assert!(said.contains(sentence), "{words}: {said}");
    }
    let (code, said) = desk.spawn(desk.command(&["exec", "a"])?)?.end().await?;
    assert!(code == 64 && said.contains("COMMAND"), "{code}: {said}");
    assert_eq!(desk.spawn(desk.command(&["--help"])?)?.end().await?.0, 0);
    let mut guard = Command::new(super::programs::path("lockctl")?);
    let output = guard.arg0("lockctl-guard").args(["exec", "a", "--", "touch", "ran"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("can only be started by `lockctl exec`"), "{said}");
    assert!(!desk.path("ran").exists());
    Ok(())
}

#[tokio::test]
async fn nothing_runs_if_the_system_refuses_files() -> Result<()> {
    let desk = Desk::new().await?;
    let lockctl = desk.command(&["exec", "--try", "a", "--", "touch", "ran"])?;
    // The loader of lockctl needs four descriptors.
    for files in [4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48] {
        let mut limited = process::command(Path::new("prlimit"));
        limited.arg(format!("--nofile={files}:{files}")).arg(lockctl.get_program());
        limited.args(lockctl.get_args()).current_dir(desk.folder.path());
        limited.env("LOCKSCOPE_SOCKET", desk.bench.agent.socket());
        let (code, said) = desk.spawn(limited)?.end().await?;
        if files == 48 {
            assert_eq!(code, 0, "as many as are asked for are enough: {said}");
            continue;
        }
        assert_eq!(code, 71, "{files}: {said}");
        assert!(said.contains("Too many open files"), "{files}: {said}");
        assert!(!said.contains("panicked") && !desk.path("ran").exists(), "{files}: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn a_policy_denial_has_its_own_status() -> Result<()> {
    let rules = tempfile::tempdir()?;
    let policy = rules.path().join("policy.toml");
    std::fs::write(&policy, "[[allow]]\nnames = [\"orders:*\"]\nmax_wait = \"1m\"\n")?;
    let desk = Desk::with(&["--policy", &policy.display().to_string()]).await?;
    for (words, status, sentence) in [
        ("billing:1", 77, "billing:1"),
        ("--wait 2m orders:1", 77, "(DENIED)"),
        ("orders:1", 77, "--wait"),
        ("--wait 1m orders:1", 0, ""),
    ] {
        let (code, said) = desk.exec(words, "touch ran")?.end().await?;
        assert_eq!(code, status, "{words}: {said}");
        assert!(said.contains(sentence), "{words}: {said}");
        assert_eq!(desk.path("ran").exists(), code == 0, "{words}");
    }
    Ok(())
}

#[tokio::test]
async fn a_policy_denies_looks_to_all_but_operators() -> Result<()> {
    let rules = tempfile::tempdir()?;
    let policy = rules.path().join("policy.toml");
    std::fs::write(&policy, "[[allow]]\nnames = [\"orders:*\"]\n")?;
    let flags = ["--socket-mode", "0666", "--world-writable-socket", "--policy"];
    let policy = policy.display().to_string();
    let desk = Desk::with(&[&flags[..], &[policy.as_str()]].concat()).await?;
    for (lock, status, sentence) in
        [("orders:1", 0, "orders:1 is free"), ("pay", 77, "`pay` is denied to user 65534")]
    {
        let Some(mut command) = desk.as_nobody(&["show", lock])? else { return Ok(()) };
        let output = command.output()?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(output.status.code(), Some(status), "{lock}: {said}");
        assert!(said.contains(sentence), "{lock}: {said}");
    }
    assert!(desk.command(&["show", "pay"])?.output()?.status.success(), "an operator may look");
    Ok(())
}

#[tokio::test]
async fn a_user_who_may_not_use_the_socket_is_denied() -> Result<()> {
    let desk = Desk::with(&["--socket-mode", "0600"]).await?;
    for args in [&["status", "--json"][..], &["ls"], &["exec", "a", "--", "true"]] {
        let Some(mut command) = desk.as_nobody(args)? else { return Ok(()) };
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(77), "{args:?}: {said}");
        assert!(said.contains("this user may not use the agent's socket /"), "{said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_command_does_not_run_without_redis() -> Result<()> {
    let mut desk = Desk::hasty().await?;
    desk.bench.redis.process().freeze().await?;
    let (code, said) = desk.exec("--wait 200ms a", "touch ran")?.end().await?;
    assert_eq!(code, 69, "{said}");
    assert!(said.contains("(UNAVAILABLE)"), "{said}");
    assert!(!desk.path("ran").exists());
    // A wait that continues reports this, and fails only once.
    let (code, said) = desk.exec("--wait 3s a", "touch ran")?.end().await?;
    assert_eq!(code, 69, "{said}");
    assert!(
        said.contains("waiting for a") && said.contains("cannot find out who holds a: "),
        "{said}"
    );
    Ok(())
}
