//! The environment of a command: variables, standard input and unmodified arguments.

use std::process::Stdio;

use anyhow::{Context as _, Result};
use std::io::Write as _;

use harness::{eventually, process};

use super::{Desk, programs};

#[tokio::test]
async fn inner_values_win_over_outer_ones() -> Result<()> {
    let mut desk = Desk::new().await?;
    let lockctl = programs::path("lockctl")?;
    let lockctl = lockctl.display();
    let print = r#"echo "$LOCKSCOPE_LOCK|$LOCKSCOPE_HOLDER|${LOCKSCOPE_TOKEN-unset}|$LOCKSCOPE_SOCKET|$TRACEPARENT""#;
    let script = format!(
        "{print} > outer; {lockctl} exec in side -- sh -c '{print} > inner'; {print} > after"
    );
    let (code, said) = desk.exec("--kind fenced out", &script)?.end().await?;
    assert_eq!(code, 0, "{said}");
    let outer = desk.mark("outer").await;
    let fields: Vec<&str> = outer.split('|').collect();
    let token = desk.bench.direct.call("GET redisson_lock_token:{out}").await?.text();
    assert_eq!((fields[0], fields[2]), ("out", token.as_str()), "{outer}");
    assert_eq!(fields[3], desk.bench.agent.socket().display().to_string());
    assert_eq!(fields[4].len(), 55, "{outer}");
    let inner = desk.mark("inner").await;
    let of_inner: Vec<&str> = inner.split('|').collect();
    assert_eq!(of_inner[0], "in\nside");
    assert_eq!(of_inner[1].lines().count(), 2, "a holder for each: {inner}");
    assert!(!of_inner[1].contains(fields[1]), "{inner}");
    assert_eq!(of_inner[2], "unset", "a token belongs to its lock alone");
    assert_eq!(of_inner[4], fields[4], "one trace for all of it");
    assert_eq!(desk.mark("after").await, outer);
    Ok(())
}

#[tokio::test]
async fn a_session_has_the_name_of_its_command_or_the_chosen_one() -> Result<()> {
    let desk = Desk::new().await?;
    let mut worker = desk.bench.session().await?;
    for (options, variable, expected) in [
        ("a", "", "lockctl:sh"),
        ("a", "pod-7f9c ü", "pod-7f9c"),
        ("--name nightly a", "pod-7f9c", "nightly"),
    ] {
        let mut words = vec!["exec"];
        words.extend(options.split(' '));
        words.extend(["--", "sh", "-c", "read -r line"]);
        let mut command = desk.command(&words)?;
        let mut child = command.env("LOCKSCOPE_NAME", variable).stdin(Stdio::piped()).spawn()?;
        let name = eventually("the hold", async || {
            let rows = worker.call("LOCKS MATCH a").await?;
            let row = rows.items()?[1].items()?.first().context("no hold")?;
            Ok(row.field("name")?.text())
        })
        .await;
        assert_eq!(name, expected);
        drop(child.stdin.take());
        child.wait()?;
    }
    Ok(())
}

#[tokio::test]
async fn input_goes_to_the_command_and_no_shell_reads_its_arguments() -> Result<()> {
    let desk = Desk::new().await?;
    let script =
        r#"cat > input; ls -l /proc/self/fd > open; for arg; do printf '%s\n' "$arg"; done > args"#;
    let mut command = desk.command(&[
        "exec",
        "a",
        "--",
        "sh",
        "-c",
        script,
        "sh",
        "$HOME",
        "two words",
        "*",
        "--wait",
    ])?;
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    child.stdin.take().context("no pipe")?.write_all(b"line one\nline two\n")?;
    let status = child.wait()?;
    assert!(status.success(), "{status}");
    assert_eq!(desk.mark("input").await, "line one\nline two");
    assert_eq!(desk.mark("args").await, "$HOME\ntwo words\n*\n--wait");
    let open = desk.mark("open").await;
    assert!(!open.contains("socket:"), "the session is not the command's: {open}");
    Ok(())
}

#[tokio::test]
async fn an_existing_trace_is_continued() -> Result<()> {
    let desk = Desk::new().await?;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut command =
        desk.command(&["exec", "a", "--", "sh", "-c", "echo $TRACEPARENT > trace"])?;
    command.env("TRACEPARENT", trace);
    assert_eq!(desk.spawn(command)?.end().await?.0, 0);
    assert_eq!(desk.mark("trace").await, trace);
    Ok(())
}

#[tokio::test]
async fn a_process_group_of_another_pid_namespace_is_harmless() -> Result<()> {
    let mut desk = Desk::new().await?;
    let apart = |script: &str| -> Result<_> {
        let unshare = process::on_path("unshare").context("no unshare")?;
        let mut command = process::command(&unshare);
        command.args(["--pid", "--fork", "--mount-proc", "sh", "-c", script]);
        command.current_dir(&desk.folder).env("LOCKSCOPE_SOCKET", desk.bench.agent.socket());
        Ok(command)
    };
    if !apart("true")?.output()?.status.success() {
        // Only root may create a name space.
        return Ok(());
    }
    // Like `nsenter`: the process group of the shell, and of its commands, is outside the name space.
    let lockctl = programs::path("lockctl")?.display().to_string();
    let script = format!(
        "read -r _ _ _ _ group _ < /proc/self/stat; {lockctl} exec a -- sh -c \"exit $((group + 3))\""
    );
    let (code, said) = desk.spawn(apart(&script)?)?.end().await?;
    assert_eq!(code, 3, "{said}");
    desk.bench.until_free("a").await;
    Ok(())
}

#[tokio::test]
async fn a_relative_socket_is_found_from_another_folder() -> Result<()> {
    let desk = Desk::new().await?;
    std::os::unix::fs::symlink(desk.bench.agent.socket(), desk.path("agent.sock"))?;
    let lockctl = programs::path("lockctl")?.display().to_string();
    let script = format!("cd /; exec {lockctl} exec b -- sh -c 'exit 3'");
    let mut command =
        desk.command(&["exec", "--socket", "./agent.sock", "a", "--", "sh", "-c", &script])?;
    command.env_remove("LOCKSCOPE_SOCKET");
    let (code, said) = desk.spawn(command)?.end().await?;
    assert_eq!(code, 3, "{said}");
    Ok(())
}
