//! lockctl in a real terminal, under a shell with job control.

use anyhow::{Context as _, Result};
use harness::process::on_path;
use harness::{Process, eventually};

use super::{Desk, process, programs};

/// Runs a program in a new terminal, types each line of its input, and prints what it prints.
/// `^C` and `^Z` by themselves are typed as these keys.
const TERMINAL: &str = r#"
import os, pty, select, sys
pid, master = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
keys = {b"^C": b"\x03", b"^Z": b"\x1a"}
pending = b""
while True:
    ready, _, _ = select.select([0, master], [], [])
    if master in ready:
        try:
            shown = os.read(master, 4096)
        except OSError:
            break
        os.write(1, shown)
    if 0 in ready:
        typed = os.read(0, 4096)
        if not typed:
            break
        pending += typed
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            os.write(master, keys.get(line, line + b"\n"))
"#;

struct Terminal {
    process: Process,
    keys: std::process::ChildStdin,
    log: std::path::PathBuf,
}

impl Terminal {
    /// Opens a terminal with an interactive bash.
    fn open(desk: &Desk) -> Result<Self> {
        Self::running(desk, &["bash", "--norc", "--noprofile", "-i"])
    }

    fn running(desk: &Desk, words: &[&str]) -> Result<Self> {
        let python = on_path("python3").context("no python3")?;
        let mut command = process::command(&python);
        let lockctl = programs::path("lockctl")?;
        command
            .args(["-c", TERMINAL])
            .args(words)
            .current_dir(desk.folder.path())
            .env("PS1", "$ ")
            .env("TERM", "dumb");
        command.env("LOCKSCOPE_SOCKET", desk.bench.agent.socket()).env("L", lockctl);
        let log = desk.path("screen");
        let mut process = Process::spawn_piped("terminal", command, &desk.path("terminal.log"))?;
        let mut shown = process.take_stdout().context("no output")?;
        let mut file = std::fs::File::create(&log)?;
        std::thread::spawn(move || std::io::copy(&mut shown, &mut file));
        let keys = process.take_stdin().context("no input")?;
        Ok(Self { process, keys, log })
    }

    fn types(&mut self, line: &str) -> Result<()> {
        use std::io::Write as _;
        Ok(writeln!(self.keys, "{line}")?)
    }

    async fn shows(&self, words: &str) {
        eventually(words, async || {
            let screen = std::fs::read(&self.log)?;
            let screen = String::from_utf8_lossy(&screen);
            anyhow::ensure!(screen.contains(words), "the screen: {screen}");
            Ok(())
        })
        .await;
    }
}

#[tokio::test]
async fn the_command_gets_the_terminal_and_returns_it() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut terminal = Terminal::open(&desk)?;
    // The command reads from the terminal, which only the foreground process group may do.
    terminal.types("$L exec a -- sh -c 'echo $$ > shell; read word < /dev/tty; echo got:$word:got'; echo status:$?:one")?;
    desk.mark("shell").await;
    terminal.types("hello")?;
    terminal.shows("got:hello:got").await;
    terminal.shows("status:0:one").await;
    // The shell has the terminal again.
    terminal.types("echo back:$((6*7)):back")?;
    terminal.shows("back:42:back").await;
    terminal.types("$L exec a -- sh -c 'sh -c \"echo \\$\\$ > second; exec sleep 600\"; true'")?;
    // If the shell had not started the sleeper yet, it would receive the key itself.
    let second = desk.pid("second").await?;
    terminal.types("^C")?;
    super::until_gone(second).await;
    desk.bench.until_free("a").await;
    // On the same line it would not run, as after any command that Ctrl-C ends.
    terminal.types("echo status:$?:two")?;
    terminal.shows("status:130:two").await;
    assert!(desk.bench.is_free("a").await?);
    terminal.process.kill()
}

#[tokio::test]
async fn ctrl_z_returns_to_the_shell_and_fg_resumes() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut terminal = Terminal::open(&desk)?;
    terminal
        .types("$L exec a -- sh -c 'echo $$ > shell; read word < /dev/tty; echo got:$word:got'")?;
    desk.mark("shell").await;
    terminal.types("^Z")?;
    terminal.shows("Stopped").await;
    terminal.types("echo shell:$((6*7)):shell")?;
    terminal.shows("shell:42:shell").await;
    assert!(!desk.bench.is_free("a").await?, "a stopped command keeps its lock");
    terminal.types("fg")?;
    // Once the command continues, it is in the foreground and reads the typed text.
    let shell = desk.pid("shell").await?;
    eventually("the command to continue in the foreground", async || {
        let stat = std::fs::read_to_string(format!("/proc/{shell}/stat"))?;
        let fields: Vec<&str> = stat.rsplit(") ").next().context("no stat")?.split(' ').collect();
        anyhow::ensure!(fields[0] != "T" && fields[2] == fields[5], "{stat}");
        Ok(())
    })
    .await;
    terminal.types("again")?;
    terminal.shows("got:again:got").await;
    desk.bench.until_free("a").await;
    terminal.process.kill()
}

#[tokio::test]
async fn a_background_command_leaves_the_terminal_alone() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut terminal = Terminal::open(&desk)?;
    terminal.types(
        "$L exec a -- sh -c 'echo $$ > shell; while ! test -e stop; do sleep 0.02; done; exit 5' &",
    )?;
    desk.mark("shell").await;
    terminal.types("echo shell:$((6*7)):shell")?;
    terminal.shows("shell:42:shell").await;
    terminal.types("touch stop; wait %1; echo status:$?:bg")?;
    terminal.shows("status:5:bg").await;
    desk.bench.until_free("a").await;
    terminal.process.kill()
}

#[tokio::test]
async fn the_list_is_redrawn_until_it_is_stopped() -> Result<()> {
    let desk = Desk::new().await?;
    let mut terminal = Terminal::open(&desk)?;
    let mut worker = desk.bench.session().await?;
    crate::agent::lock(&mut worker, "LOCK first:one").await?;
    terminal.types("$L watch --interval 100ms 'first:*'")?;
    terminal.shows("first:one").await;
    terminal.shows("1 held, 0 waiting").await;
    crate::agent::lock(&mut worker, "LOCK first:two").await?;
    crate::agent::lock(&mut worker, "LOCK second").await?;
    terminal.shows("first:two").await;
    terminal.shows("2 held, 0 waiting").await;
    worker.call("UNLOCK first:one").await?.ok()?;
    worker.call("UNLOCK first:two").await?.ok()?;
    terminal.shows("0 held, 0 waiting").await;
    terminal.types("^C")?;
    // The terminal is back in its previous state.
    terminal.shows("^C").await;
    terminal.types("echo shell:$((6*7)):shell; stty -a | grep -c ' echo '")?;
    terminal.shows("shell:42:shell").await;
    terminal.process.kill()
}

#[tokio::test]
async fn the_list_shortens_names_to_the_width_of_the_terminal() -> Result<()> {
    let desk = Desk::new().await?;
    let mut terminal = Terminal::open(&desk)?;
    let name = format!("orders:{}:42", "x".repeat(400));
    let mut worker = desk.bench.session().await?;
    crate::agent::lock(&mut worker, &format!("LOCK {name}")).await?;
    terminal.types("stty cols 110; $L ls > file; $L ls; echo done:$((6*7))")?;
    terminal.shows("done:42").await;
    let screen = String::from_utf8_lossy(&std::fs::read(&terminal.log)?).into_owned();
    let row = screen.lines().find(|line| line.contains("orders:")).context(screen.clone())?;
    let (start, end) = row.split_once('…').context(screen.clone())?;
    assert!(start.starts_with("orders:xx") && end.contains("xx:42  lock  held"), "{screen}");
    assert!(row.trim_end().chars().count() <= 110, "{screen}");
    let file = std::fs::read_to_string(desk.path("file"))?;
    assert!(file.contains(&format!("{name}  lock  held")), "the whole name in a file: {file}");
    terminal.process.kill()
}

#[tokio::test]
async fn ctrl_c_ends_the_script_too() -> Result<()> {
    let mut desk = Desk::new().await?;
    let mut terminal = Terminal::open(&desk)?;
    let mut other = desk.bench.session().await?;
    crate::agent::lock(&mut other, "LOCK a").await?;
    terminal.types("bash -c '$L exec a -- true; touch next'")?;
    desk.bench.until_waiting("a", 1).await?;
    terminal.types("^C")?;
    desk.bench.until_waiting("a", 0).await?;
    terminal.types("echo status:$?:one")?;
    terminal.shows("status:130:one").await;
    terminal.types(
        "bash -c '$L exec b -- sh -c \"echo \\$\\$ > shell; exec sleep 600\"; touch next'",
    )?;
    let shell = desk.pid("shell").await?;
    eventually("the sleeper", async || {
        let name = std::fs::read_to_string(format!("/proc/{shell}/comm"))?;
        anyhow::ensure!(name == "sleep\n", "{name}");
        Ok(())
    })
    .await;
    terminal.types("^C")?;
    desk.bench.until_free("b").await;
    terminal.types("echo status:$?:two")?;
    terminal.shows("status:130:two").await;
    assert!(!desk.path("next").exists(), "the script has gone on");
    terminal.process.kill()
}

#[tokio::test]
async fn in_a_pipeline_the_command_gets_the_terminal_when_it_needs_it() -> Result<()> {
    let desk = Desk::new().await?;
    let mut terminal = Terminal::open(&desk)?;
    terminal.types(
        "$L exec a -- sh -c 'echo $$ > shell; while ! test -e stop; do sleep 0.02; done; read word < /dev/tty; \
         echo got:$word:got' | sh -c 'read word < /dev/tty; echo reader:$word:reader; touch stop; cat'; echo status:$?:one",
    )?;
    desk.mark("shell").await;
    terminal.types("first")?;
    terminal.shows("reader:first:reader").await;
    terminal.types("second")?;
    terminal.shows("got:second:got").await;
    terminal.shows("status:0:one").await;
    terminal.process.kill()
}

#[tokio::test]
async fn without_a_shell_ctrl_z_stops_nothing() -> Result<()> {
    let mut desk = Desk::new().await?;
    let lockctl = programs::path("lockctl")?.display().to_string();
    let script = "echo $$ > shell; read word < /dev/tty; echo got:$word:got";
    let words = [lockctl.as_str(), "exec", "a", "--", "sh", "-c", script];
    let mut terminal = Terminal::running(&desk, &words)?;
    desk.mark("shell").await;
    terminal.types("^Z")?;
    terminal.types("on")?;
    terminal.shows("got:on:got").await;
    desk.bench.until_free("a").await;
    terminal.process.kill()
}
