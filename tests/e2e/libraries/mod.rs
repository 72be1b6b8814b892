//! The conformance suite of the client libraries in `clients/`: a table of scenarios, each with a real agent and a real
//! Redis, and a driver program for each library. Every library passes the same scenarios.

mod driver;
mod interruptions;
mod orders;
mod resumption;
mod scenarios;
mod stage;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use harness::{Agent, RedisServer, eventually, process, programs, project};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::time::timeout;

use self::stage::Stage;
use crate::clients::libraries::{build_go, go, installed};
use crate::clients::relay::Relay;

/// A library with the driver program for the scenarios.
pub(crate) struct Library {
    command: fn() -> Result<Command>,
    /// True if its language can fork a running process.
    forks: bool,
    /// True if a failing listener does not end the process.
    shields: bool,
    /// True if its names are texts, of which not every one can be sent.
    texts: bool,
}

const PYTHON_THREADS: Library =
    Library { command: || python("threads"), forks: true, shields: true, texts: true };
const PYTHON_ASYNCIO: Library =
    Library { command: || python("asyncio"), forks: true, shields: true, texts: true };

/// Python's asyncio with another event loop.
const PYTHON_UVLOOP: Library =
    Library { command: uvloop_driver, forks: true, shields: true, texts: true };

const NODE: Library = Library { command: node_driver, forks: false, shields: true, texts: true };
/// A timer for the longest time that Node.js has, 24.8 days, ends at once.
const NODE_AFTER_WEEKS: Library =
    Library { command: node_driver_after_weeks, forks: false, shields: true, texts: true };
const GO: Library = Library { command: go_driver, forks: false, shields: false, texts: false };
const JAVA: Library = Library { command: java_driver, forks: false, shields: true, texts: true };
const RUST: Library = Library { command: rust_driver, forks: false, shields: false, texts: false };

fn folder(language: &str) -> PathBuf {
    project::path("clients").join(language)
}

fn python(api: &str) -> Result<Command> {
    let mut command = process::command(&installed("python3")?);
    command.arg(folder("python").join("conformance/driver.py")).arg(api);
    Ok(command)
}

fn uvloop_python() -> PathBuf {
    project::path("tests/clients/.venv/bin/python")
}

/// Returns the libraries, with `PYTHON_UVLOOP` where uvloop is installed.
fn with_uvloop(mut libraries: Vec<Library>) -> Vec<Library> {
    let import = process::command(&uvloop_python()).args(["-c", "import uvloop"]).output();
    if import.is_ok_and(|import| import.status.success()) {
        libraries.push(PYTHON_UVLOOP);
    }
    libraries
}

fn uvloop_driver() -> Result<Command> {
    let mut command = process::command(&uvloop_python());
    command.arg(folder("python").join("conformance/driver.py")).arg("uvloop");
    Ok(command)
}

fn node_driver() -> Result<Command> {
    let mut command = process::command(&installed("node")?);
    command.arg(folder("node").join("conformance/driver.js"));
    Ok(command)
}

fn node_driver_after_weeks() -> Result<Command> {
    const SET_TIMER: &str = "data:text/javascript,const set = setTimeout;\
        globalThis.setTimeout = (run, ms, ...more) => set(run, ms * Number(ms < 2 ** 31 - 1), ...more);";
    let mut command = process::command(&installed("node")?);
    command.args(["--import", SET_TIMER]).arg(folder("node").join("conformance/driver.js"));
    Ok(command)
}

fn go_driver() -> Result<Command> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || build_go(&folder("go"), "./conformance", "go-library-driver");
    Ok(process::command(&programs::once(&BUILT, build)?))
}

fn java_driver() -> Result<Command> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let classes = programs::once(&BUILT, build_java_driver)?;
    let mut command = process::command(&installed("java")?);
    // Small and quick to start, because many run at the same time.
    command.args(["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp"]).arg(classes);
    command.arg("Driver");
    Ok(command)
}

fn build_java_driver() -> Result<PathBuf> {
    let classes = Path::new(env!("CARGO_TARGET_TMPDIR")).join("java-library");
    let mut build = process::command(&installed("javac")?);
    build
        .args(["-Xlint:all", "-Werror", "--release", "17", "-encoding", "UTF-8", "-d"])
        .arg(&classes);
    build.arg("--source-path").arg(folder("java").join("src/main/java"));
    build.arg(folder("java").join("conformance/Driver.java"));
    process::succeed(&mut build, "the driver in Java cannot be built")?;
    Ok(classes)
}

fn rust_driver() -> Result<Command> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    Ok(process::command(&programs::once(&BUILT, build_rust_driver)?))
}

/// Builds the driver in the target folder in which `make test` has built it together with the library's own tests.
fn build_rust_driver() -> Result<PathBuf> {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = temporary.parent().context("no target folder")?;
    let mut build = programs::cargo();
    build.current_dir(folder("rust")).args(["build", "--locked", "--quiet", "--example"]);
    build.arg("conformance").arg("--target-dir").arg(target);
    process::succeed(&mut build, "the driver in Rust cannot be built")?;
    Ok(target.join("debug/examples/conformance"))
}

macro_rules! conformance {
    ($($library:ident $value:ident;)*) => {$(
        mod $library {
            conformance! { @scenarios scenarios $value
                a_lock_is_granted_and_released
                sessions_have_the_name_in_the_environment
                a_fenced_lock_has_growing_tokens
                a_wait_times_out
                a_wait_of_more_than_a_year_has_no_limit
                an_owner_reenters_its_lock
                tasks_of_one_process_exclude_each_other
                a_waiting_task_does_not_delay_the_others
                a_hold_at_risk_is_reported_and_becomes_safe
                a_loss_is_reported_at_once
                a_loss_blocks_reentry_until_the_release
                redis_away_loses_the_hold_and_rejects_new_ones
                a_fixed_lease_expires
                the_lease_of_a_readers_entry_ends_with_it
                a_lease_that_is_too_short_is_rejected_and_never_renewed
                a_negative_grace_is_rejected
                a_time_beyond_the_limit_is_rejected
                a_restarted_agent_keeps_hold_and_wait
                a_cut_connection_is_resumed
                a_draining_agent_rejects_tries_and_delays_waits
                a_hold_stays_certain_while_a_draining_agent_refuses_another_one
                a_forked_child_neither_holds_nor_releases
                a_thousand_locks_are_held_at_once
                a_cancelled_wait_leaves_nothing_behind
                a_stopped_process_finds_its_hold_over
                a_grant_that_arrives_after_its_deadline_is_not_used
                a_grant_that_is_lost_before_it_is_read_is_not_used
                several_locks_are_acquired_together_or_not_at_all
                a_loss_among_several_is_reported
                a_cancelled_wait_for_several_leaves_nothing_behind
                a_hold_stays_certain_while_its_owner_waits_for_another_lock
            }
            conformance! { @scenarios interruptions $value
                a_shorter_lease_counts_from_the_instant_at_which_it_is_sent
                a_lease_that_redis_does_not_confirm_counts_too
                a_loss_at_the_deadline_is_reported_while_the_agent_hangs
                a_return_to_renewal_counts_from_the_instant_at_which_it_is_sent
                a_late_list_does_not_shorten_a_new_lease
                a_hung_agent_delays_no_limited_wait
                a_cancelled_wait_for_a_hung_agent_ends
                a_cancellation_that_meets_the_grant_leaves_nothing_behind
                a_cancelled_wait_that_fails_leaves_the_other_holds
                a_cancelled_release_or_extension_goes_on
                a_killed_process_leaves_no_lock
                a_close_ends_waits_and_refuses_later_locks
                a_close_ends_sessions_that_are_being_resumed
                a_session_whose_resumption_breaks_is_resumed
                a_grant_of_an_abandoned_call_goes_to_no_later_call
                a_listener_that_fails_disturbs_nobody
                a_name_that_cannot_be_sent_spoils_no_connection
                one_of_several_is_released_alone
            }
            conformance! { @scenarios resumption $value
                a_fixed_hold_outlives_a_cut_long_after_its_grant
                holds_outlive_a_cut_after_a_long_wait
                without_grace_a_hold_ends_with_its_connection
                sessions_have_grace_once_the_journal_can_be_written
                a_grant_to_a_call_that_failed_is_released_once_the_agent_is_back
                a_close_in_an_outage_ends_the_sessions
                a_release_without_a_reply_succeeds
                a_hold_at_risk_is_reported_again_after_a_cut
                a_reentry_without_a_reply_is_renewed
                a_loss_among_several_names_all_of_them
                a_loss_during_a_resumption_counts
                a_loss_that_no_event_reports_is_found_in_the_list
                a_grant_that_comes_with_the_end_of_its_connection_is_kept
                a_lease_that_begins_with_the_end_of_the_connection_counts_after_it_is_resumed
            }
        }
    )*};
    (@scenarios $file:ident $value:ident $($scenario:ident)*) => {$(
        #[tokio::test]
        async fn $scenario() -> anyhow::Result<()> {
            super::$file::$scenario(&super::$value).await
        }
    )*};
}

conformance! {
    python_threads PYTHON_THREADS;
    python_asyncio PYTHON_ASYNCIO;
    python_uvloop PYTHON_UVLOOP;
    go GO;
    node NODE;
    java JAVA;
    rust RUST;
}

#[test]
fn the_library_for_go_passes_its_own_tests() -> Result<()> {
    let output = go()?.current_dir(folder("go")).args(["test", "./..."]).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(printed.contains("ok "), "no test ran: {printed}");
    Ok(())
}

#[tokio::test]
async fn without_an_agent_a_long_wait_ends_after_half_a_minute() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("agent.sock");
    let libraries = [PYTHON_THREADS, PYTHON_ASYNCIO, GO, NODE, JAVA, RUST];
    let calls = libraries.iter().map(async |library| {
        let mut driver = driver::Driver::start(library, &socket)?;
        driver.fails("lock a orders:42 wait=3600000", "unavailable").await
    });
    try_join_all(calls).await.map(drop)
}

/// Listens on a socket whose queue of connections is full as long as the results live.
async fn full_socket(path: &Path) -> Result<(UnixListener, UnixStream)> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let listener = socket.listen(0)?;
    Ok((listener, UnixStream::connect(path).await?))
}

#[tokio::test]
async fn each_wait_has_its_own_limit_while_an_agent_accepts_no_connection() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("agent.sock");
    let _full = full_socket(&path).await?;
    let libraries = with_uvloop(vec![PYTHON_THREADS, PYTHON_ASYNCIO, GO, NODE, JAVA, RUST]);
    let calls = libraries.iter().map(async |library| {
        let mut driver = driver::Driver::start(library, &path)?;
        driver.fails("lock a orders:42 wait=0", "unavailable").await?;
        let longer = driver.send("main", "lock a orders:42 wait=29000").await?;
        let refused = driver.call_in("second", "lock b orders:43 wait=1000").await?;
        ensure!(!driver.has_answered(longer), "both waits have one limit");
        let text = refused["text"].as_str().unwrap_or_default();
        ensure!(text.contains("no agent at") && !text.contains("null"), "{refused}");
        anyhow::Ok(())
    });
    try_join_all(calls).await.map(drop)
}

#[tokio::test]
async fn a_cancelled_wait_ends_while_an_agent_accepts_no_connection() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("agent.sock");
    let _full = full_socket(&path).await?;
    let libraries = with_uvloop(vec![PYTHON_THREADS, PYTHON_ASYNCIO, GO, NODE, JAVA, RUST]);
    let calls = libraries.iter().map(async |library| {
        let mut driver = driver::Driver::start(library, &path)?;
        let longer = driver.send("second", "lock b orders:43 wait=29000").await?;
        let waiting = driver.send("main", "lock a orders:42 wait=60000").await?;
        // This takes seconds, in which both usually begin to connect.
        driver.call_in("third", "lock c orders:44 wait=0").await?;
        interruptions::cancelled_before(&mut driver, waiting, longer).await
    });
    try_join_all(calls).await.map(drop)
}

#[tokio::test]
async fn an_agent_object_of_asyncio_serves_one_event_loop_after_another() -> Result<()> {
    for library in with_uvloop(vec![PYTHON_ASYNCIO]) {
        serves_one_event_loop_after_another(&library).await?;
    }
    Ok(())
}

async fn serves_one_event_loop_after_another(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let used = stage.driver.ok("loops orders:42").await?;
    let errors = serde_json::json!([
        "its event loop was closed",
        "its event loop was closed",
        "its event loop was closed",
        "this Agent is bound to a different event loop: create one for each event loop",
        "this hold is bound to a different event loop",
    ]);
    ensure!(used["errors"] == errors, "{used}");
    ensure!(stage.is_free("orders:42").await?);
    Ok(())
}

#[tokio::test]
async fn a_signal_handler_uses_an_agent_object_of_python_that_starts() -> Result<()> {
    let mut stage = Stage::new(&PYTHON_THREADS).await?;
    stage.driver.ok("signal orders:42").await?;
    ensure!(stage.is_free("orders:42").await?);
    Ok(())
}

#[tokio::test]
async fn a_daemon_thread_of_python_that_waits_at_the_exit_prints_nothing() -> Result<()> {
    const PROGRAM: &str = "import lockscope, sys, threading; agent = lockscope.Agent(); \
        threading.Thread(target=agent.lock, args=('orders:42',), daemon=True).start(); \
        sys.stdin.read()";
    let mut stage = Stage::new(&PYTHON_THREADS).await?;
    stage.other_has("LOCK orders:42").await?;
    let mut command = process::command(&installed("python3")?);
    command.args(["-c", PROGRAM]).env("PYTHONPATH", folder("python").join("src"));
    command.env("LOCKSCOPE_SOCKET", stage.agent.socket());
    let program = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    stage.waits("orders:42", true).await;
    let output = program.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && printed.is_empty(), "{printed}");
    Ok(())
}

#[tokio::test]
async fn a_full_agent_is_reported_with_its_reason() -> Result<()> {
    for library in [PYTHON_THREADS, PYTHON_ASYNCIO, GO, NODE, JAVA, RUST] {
        let redis = RedisServer::start().await?;
        let agent = Agent::with(&redis, &["--max-sessions", "1"]).await?;
        let _only = eventually("the only session", async || {
            let mut client = agent.client().await?;
            client.call("PING").await?.ok()?;
            Ok(client)
        })
        .await;
        let mut driver = driver::Driver::start(&library, &agent.socket())?;
        let refused = driver.call("lock a orders:42 wait=200").await?;
        let text = refused["text"].as_str().unwrap_or_default();
        ensure!(refused["error"] == "unavailable", "{refused}");
        ensure!(text.contains("the agent already serves 1 sessions"), "{refused}");
    }
    Ok(())
}

#[tokio::test]
async fn the_reason_for_a_closed_connection_is_reported_although_nothing_was_sent() -> Result<()> {
    let libraries = vec![PYTHON_THREADS, PYTHON_ASYNCIO, GO, NODE, JAVA, RUST];
    for library in with_uvloop(libraries) {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket)?;
        let agent = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.write_all(b"-LIMIT the agent is full\r\n").await.ok();
            }
        });
        let mut driver = driver::Driver::start(&library, &socket)?;
        for _ in 0..20 {
            let refused = driver.call("lock a orders:42 wait=0").await?;
            let text = refused["text"].as_str().unwrap_or_default();
            ensure!(text.contains("the agent is full"), "{refused}");
        }
        agent.abort();
    }
    Ok(())
}

/// In Rust, the receivers of `risk` belong to the grant.
#[tokio::test]
async fn a_released_hold_of_a_reentered_lock_has_no_listeners() -> Result<()> {
    for library in [PYTHON_THREADS, PYTHON_ASYNCIO, GO, NODE, JAVA] {
        let mut stage = Stage::with(&library, &["--lease", stage::SHORT]).await?;
        let relay = Relay::start(&stage.agent.socket())?;
        stage.connect(&library, &relay.socket())?;
        for command in ["lock a orders:42", "lock b orders:42", "release b"] {
            stage.driver.ok(command).await?;
        }
        relay.cut();
        stage.driver.event("risk", "a").await?;
        // Events that are under way arrive before this answer.
        stage.driver.ok("lock c orders:43 wait=60000").await?;
        stage.direct.call("DEL orders:42").await?.ok()?;
        stage.driver.event("lost", "a").await?;
        stage.driver.ok("check c").await?;
        ensure!(!stage.driver.has_event("risk", "b") && !stage.driver.has_event("lost", "b"));
    }
    Ok(())
}

#[tokio::test]
async fn a_listener_in_python_cannot_use_locks() -> Result<()> {
    let mut stage = Stage::with(&PYTHON_THREADS, &["--lease", stage::SHORT]).await?;
    stage.driver.ok("lock a orders:42").await?;
    stage.driver.ok("meddle a orders:43").await?;
    stage.direct.call("DEL orders:42").await?.ok()?;
    for _ in ["lock", "release"] {
        let event = stage.driver.event("meddled", "a").await?;
        let text = event["text"].as_str().unwrap_or_default();
        ensure!(text.contains("cannot acquire or release locks"), "{event}");
    }
    stage.driver.ok("lock b orders:43 wait=60000").await?;
    stage.driver.fails("release a", "lost").await
}

#[tokio::test]
async fn a_release_in_go_ends_a_wait_with_the_context_of_the_hold() -> Result<()> {
    let mut stage = Stage::new(&GO).await?;
    stage.other_has("LOCK taken").await?;
    stage.driver.ok("lock a orders:42").await?;
    let waiting = stage.driver.send("second", "nest a taken").await?;
    stage.waits("taken", true).await;
    stage.driver.ok("release a").await?;
    let ended = stage.driver.answer(waiting).await?;
    ensure!(ended["error"] == "released", "{ended}");
    ensure!(stage.is_free("orders:42").await?);
    Ok(())
}

#[tokio::test]
async fn a_program_in_node_ends_after_its_last_release() -> Result<()> {
    const PROGRAM: &str = "const { Agent } = await import(process.argv[1]); \
        const hold = await new Agent().lock('orders:42'); await hold.release();";
    // The deadlines would be read for the first time much later.
    let stage = Stage::with(&NODE, &["--lease", "10m"]).await?;
    ends_in_node(&stage, PROGRAM).await
}

/// The loss is found by the release, since no timer runs while the event loop is blocked.
#[tokio::test]
async fn a_listener_of_a_loss_in_node_may_release_the_hold() -> Result<()> {
    const PROGRAM: &str = "const { Agent } = await import(process.argv[1]); \
        const hold = await new Agent().lock('orders:42', { lease: 200 }); \
        hold.signal.addEventListener('abort', () => hold.release().catch(() => {})); \
        for (const end = Date.now() + 400; Date.now() < end; ); \
        await hold.release().then(() => process.exit(1), () => {});";
    ends_in_node(&Stage::new(&NODE).await?, PROGRAM).await
}

/// Runs a program that gets the library's path as its argument, until it ends.
async fn ends_in_node(stage: &Stage, program: &str) -> Result<()> {
    let mut command = tokio::process::Command::from(process::command(&installed("node")?));
    command.args(["--input-type=module", "-e", program]).arg(folder("node").join("src/index.js"));
    command.env("LOCKSCOPE_SOCKET", stage.agent.socket()).kill_on_drop(true);
    let status = timeout(harness::PATIENCE, command.status()).await??;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// In Java and Rust the kinds are no texts.
#[tokio::test]
async fn a_kind_in_capitals_is_the_same_kind() -> Result<()> {
    for library in with_uvloop(vec![PYTHON_THREADS, PYTHON_ASYNCIO, GO, NODE]) {
        let mut stage = Stage::with(&library, &["--lease", stage::SHORT]).await?;
        stage.driver.ok("lock a orders:42 kind=READ").await?;
        let mut last = i64::MAX;
        eventually("a later deadline", async || {
            let left = stage::number(&stage.driver.ok("check a").await?, "remaining")?;
            let before = std::mem::replace(&mut last, left);
            ensure!(left > before, "{left} after {before}");
            Ok(())
        })
        .await;
        stage.direct.call("DEL orders:42").await?.ok()?;
        let event = stage.driver.event("lost", "a").await?;
        ensure!(event["reason"] == "missing", "{event}");
        stage.driver.fails("lock b orders:42 kind=Read wait=0", "lost").await?;
    }
    Ok(())
}

/// A runtime that has not ended, but that nobody drives any more, is like one thread of several that each have their own.
#[tokio::test]
async fn an_agent_object_of_rust_serves_one_runtime_after_another() -> Result<()> {
    let mut stage = Stage::new(&RUST).await?;
    stage.driver.ok("runtimes orders:42").await?;
    ensure!(stage.is_free("orders:42").await?);
    Ok(())
}

/// Returns the libraries whose event loop runs the code of the program, too.
fn with_event_loops() -> Vec<Library> {
    with_uvloop(vec![PYTHON_ASYNCIO, NODE])
}

#[tokio::test]
async fn a_reply_that_arrives_while_the_event_loop_is_blocked_is_used() -> Result<()> {
    try_join_all(with_event_loops().iter().map(uses_a_late_reply)).await.map(drop)
}

async fn uses_a_late_reply(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    let relay = Relay::start(&stage.agent.socket())?;
    stage.connect(library, &relay.socket())?;
    stage.driver.ok("lock a orders:42").await?;
    stage.agent.process().freeze().await?;
    let extending = stage.driver.send("main", "extend a 600000").await?;
    eventually("the command", async || {
        ensure!(relay.sent("EXTEND")? > 0, "it has not been sent");
        Ok(())
    })
    .await;
    // It is blocked for longer than it waits for a reply.
    let blocked = stage.driver.send("second", "block 12000").await?;
    stage.driver.event("blocks", "12000").await?;
    stage.agent.process().thaw()?;
    stage.driver.answer(blocked).await?;
    let extended = stage.driver.answer(extending).await?;
    ensure!(extended.get("error").is_none(), "{extended}");
    stage.driver.ok("check a").await.map(drop)
}

#[tokio::test]
async fn a_grant_that_arrives_while_the_event_loop_is_blocked_is_used() -> Result<()> {
    try_join_all(with_event_loops().iter().map(uses_a_late_grant)).await.map(drop)
}

async fn uses_a_late_grant(library: &Library) -> Result<()> {
    let mut stage = Stage::new(library).await?;
    stage.other_has("LOCK orders:42").await?;
    let waiting = stage.driver.send("main", "lock a orders:42 wait=10000").await?;
    stage.waits("orders:42", true).await;
    // It is blocked for longer than the wait and the time that the agent has to answer.
    let blocked = stage.driver.send("second", "block 16000").await?;
    stage.driver.event("blocks", "16000").await?;
    stage.other_has("UNLOCK orders:42").await?;
    stage.driver.answer(blocked).await?;
    let granted = stage.driver.answer(waiting).await?;
    ensure!(granted.get("error").is_none(), "{granted}");
    Ok(())
}

#[tokio::test]
async fn many_waits_in_node_share_a_signal_without_a_warning() -> Result<()> {
    let mut stage = Stage::new(&NODE).await?;
    stage.other_has("LOCK orders:42").await?;
    let waiting = stage.driver.send("main", "share orders:42 20").await?;
    eventually("20 waiters", async || {
        let rows = stage.other.call("LOCKS MATCH orders:42").await?.ok()?.text();
        ensure!(rows.matches("waiting").count() == 20, "{rows}");
        Ok(())
    })
    .await;
    stage.driver.cancel(waiting).await?;
    let ended = stage.driver.answer(waiting).await?;
    ensure!(ended["errors"] == serde_json::json!(vec!["AbortError"; 20]), "{ended}");
    ensure!(ended["warnings"] == serde_json::json!([]), "{ended}");
    stage.waits("orders:42", false).await;
    Ok(())
}

#[tokio::test]
async fn the_signal_of_a_hold_in_node_has_many_listeners_without_a_warning() -> Result<()> {
    let mut stage = Stage::new(&NODE).await?;
    for names in ["orders:42", "accounts:1,accounts:2"] {
        stage.driver.ok(&format!("lock a {names}")).await?;
        let listening = stage.driver.ok("listen a 20").await?;
        ensure!(listening["warnings"] == serde_json::json!([]), "{names}: {listening}");
        stage.driver.ok("release a").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_signal_ends_a_wait_in_node_at_any_step() -> Result<()> {
    let mut stage = Stage::new(&NODE).await?;
    stage.other_has("LOCK orders:42").await?;
    let ended = stage.driver.ok("abort orders:42 50").await?;
    ensure!(ended["errors"] == serde_json::json!(vec!["AbortError"; 50]), "{ended}");
    Ok(())
}

#[tokio::test]
async fn a_wait_may_last_longer_than_a_timer_of_node() -> Result<()> {
    let mut stage = Stage::new(&NODE_AFTER_WEEKS).await?;
    stage.other_has("LOCK orders:42").await?;
    for days in [24_u64, 25, 365] {
        let wait = Duration::from_hours(24 * days).as_millis();
        let waiting = stage.driver.send("main", &format!("lock a orders:42 wait={wait}")).await?;
        stage.waits("orders:42", true).await;
        // Timers that have ended run before the driver answers this.
        stage.driver.call_in("second", "lock b orders:43 wait=0").await?;
        stage.driver.call_in("second", "release b").await?;
        stage.other_has("UNLOCK orders:42").await?;
        let granted = stage.driver.answer(waiting).await?;
        ensure!(granted.get("error").is_none(), "{days} days: {granted}");
        stage.driver.ok("release a").await?;
        stage.other_has("LOCK orders:42").await?;
    }
    Ok(())
}
