//! A JVM with real Redisson clients, driven over its pipes (`tests/redisson`).

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::PATIENCE;
use crate::process::{self, Process};

/// A running JVM. Killed when dropped; its threads' locks then stay until their leases end, as when a service dies.
///
/// It belongs to no tokio runtime, so that many tests can share one.
#[derive(Debug)]
pub struct Jvm {
    process: Mutex<Process>,
    stdin: Mutex<ChildStdin>,
    open: Arc<Open>,
    numbers: AtomicU64,
    _folder: TempDir,
}

/// The callers waiting for each numbered answer; `None` once the JVM has ended.
type Open = Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>;

/// The result of a call: its value as text (`null` for none), or the exception.
pub type Answer = Result<String, Thrown>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thrown {
    /// The simple name of its class.
    pub class: String,
    pub message: String,
}

impl fmt::Display for Thrown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
    }
}

impl std::error::Error for Thrown {}

impl Jvm {
    /// Starts a JVM with this version of Redisson, for which `make interop` has built the driver.
    ///
    /// # Errors
    /// Returns an error if there is no such build, or no Java.
    pub fn start(version: &str) -> Result<Arc<Self>> {
        let built = built(version);
        let libraries = std::fs::read_to_string(built.join("classpath")).with_context(|| {
            format!("no driver for Redisson {version}: `make interop VERSIONS={version}` builds it")
        })?;
        let java = process::on_path("java").context("there is no java on the PATH")?;
        let folder = tempfile::Builder::new().prefix("lockscope-jvm-").tempdir()?;
        let mut command = process::command(&java);
        // A quick start matters more here than speed later.
        command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn").arg("-cp");
        command.arg(format!("{}:{}", built.join("classes").display(), libraries.trim()));
        command.arg("bed.Bed");
        let log = folder.path().join("jvm.log");
        let open: Arc<Open> = Arc::new(Mutex::new(Some(HashMap::new())));
        let (started, process) = std::sync::mpsc::sync_channel(1);
        let theirs = Arc::clone(&open);
        // A child ends with the thread that started it, so that thread must live as long as the JVM.
        std::thread::Builder::new().name("main".to_owned()).spawn(move || {
            match begin(command, &log) {
                Ok((process, stdin, stdout)) => {
                    if started.send(Ok((process, stdin))).is_ok() {
                        read(stdout, &theirs);
                    }
                }
                Err(error) => started.send(Err(error)).unwrap_or_default(),
            }
        })?;
        let (process, stdin) = process.recv()??;
        Ok(Arc::new(Self {
            process: Mutex::new(process),
            stdin: Mutex::new(stdin),
            open,
            numbers: AtomicU64::default(),
            _folder: folder,
        }))
    }

    /// Returns a thread of one of its clients. Threads start when they are first used.
    #[must_use]
    pub fn thread(self: &Arc<Self>, client: &str, thread: u32) -> Thread {
        Thread { jvm: Arc::clone(self), client: client.to_owned(), thread }
    }

    /// Kills the JVM.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    pub fn kill(&self) -> Result<()> {
        self.process.lock().kill()
    }

    /// Prints the end of its log, which the test runner shows when a test fails.
    pub fn print_log(&self) {
        self.process.lock().print_log();
    }

    fn send<A: AsRef<str>>(&self, who: &str, words: &[A]) -> Result<Pending> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut line = format!("{number} {}", encode(who));
        for word in words {
            line.push(' ');
            line.push_str(&encode(word.as_ref()));
        }
        line.push('\n');
        let (sender, receiver) = oneshot::channel();
        self.open.lock().as_mut().context("the JVM has ended")?.insert(number, sender);
        self.stdin.lock().write_all(line.as_bytes()).context("the JVM has ended")?;
        let what = words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ");
        Ok(Pending { what, receiver })
    }
}

/// One Java thread, which executes its calls one after another.
#[derive(Debug, Clone)]
pub struct Thread {
    jvm: Arc<Jvm>,
    client: String,
    thread: u32,
}

impl Thread {
    #[must_use]
    pub fn number(&self) -> u32 {
        self.thread
    }

    /// Returns another thread of the same client.
    #[must_use]
    pub fn other(&self, thread: u32) -> Self {
        Self { thread, ..self.clone() }
    }

    /// Begins a call of these words (see `tests/redisson`), and does not wait for the answer.
    ///
    /// # Errors
    /// Returns an error if the JVM has ended.
    pub fn begin_words<A: AsRef<str>>(&self, words: &[A]) -> Result<Pending> {
        self.jvm.send(&format!("{}/{}", self.client, self.thread), words)
    }

    /// Begins a call as [`Self::begin_words`] does, with words separated by spaces.
    ///
    /// # Errors
    /// Returns an error if the JVM has ended.
    pub fn begin(&self, words: &str) -> Result<Pending> {
        self.begin_words(&words.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs these words, and returns their value.
    ///
    /// # Errors
    /// Returns the exception as [`Thrown`], or an error if no answer arrives within [`PATIENCE`].
    pub async fn call(&self, words: &str) -> Result<String> {
        Ok(self.begin(words)?.answer().await??)
    }

    /// Runs words as [`Self::call`] does; they may contain anything.
    ///
    /// # Errors
    /// Returns the exception as [`Thrown`], or an error if no answer arrives within [`PATIENCE`].
    pub async fn call_words<A: AsRef<str>>(&self, words: &[A]) -> Result<String> {
        Ok(self.begin_words(words)?.answer().await??)
    }
}

/// A call in progress.
#[derive(Debug)]
pub struct Pending {
    what: String,
    receiver: oneshot::Receiver<Answer>,
}

impl Pending {
    /// Waits for its answer.
    ///
    /// # Errors
    /// Returns an error if none comes within [`PATIENCE`], or the JVM ends.
    pub async fn answer(self) -> Result<Answer> {
        self.answer_within(PATIENCE).await
    }

    /// Waits as [`Self::answer`] does, for a longer call.
    ///
    /// # Errors
    /// Returns an error if none comes within that time, or the JVM ends.
    pub async fn answer_within(self, patience: Duration) -> Result<Answer> {
        let answer = timeout(patience, self.receiver).await;
        let answer = answer.with_context(|| format!("no answer to `{}`", self.what))?;
        answer.with_context(|| format!("the JVM ended in `{}`", self.what))
    }

    /// Returns whether there is no answer yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.receiver.is_empty()
    }
}

/// Returns the folder in which the driver for one version is built.
fn built(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("redisson/target").join(version)
}

fn begin(command: Command, log: &Path) -> Result<(Process, ChildStdin, ChildStdout)> {
    let mut process = Process::spawn_piped("the JVM", command, log)?;
    let pipes = process.take_stdin().zip(process.take_stdout());
    let (stdin, stdout) = pipes.context("it was started without pipes")?;
    Ok((process, stdin, stdout))
}

/// Passes each answer to its caller. At the end the channels of the remaining callers close.
fn read(stdout: ChildStdout, open: &Open) {
    for line in BufReader::new(stdout).lines() {
        let Ok((number, answer)) = line.map_err(anyhow::Error::from).and_then(|line| parse(&line))
        else {
            break;
        };
        if let Some(waiting) = open.lock().as_mut().and_then(|open| open.remove(&number)) {
            // The caller may have given up.
            waiting.send(answer).unwrap_or_default();
        }
    }
    open.lock().take();
}

fn parse(line: &str) -> Result<(u64, Answer)> {
    let words: Vec<&str> = line.split(' ').collect();
    ensure!(words.len() >= 3, "no answer: {line}");
    let answer = match words[1] {
        "ok" => Ok(decode(words[2])?),
        _ => Err(Thrown {
            class: words[2].to_owned(),
            message: decode(words.get(3).copied().unwrap_or_default())?,
        }),
    };
    Ok((words[0].parse()?, answer))
}

fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"./_-".contains(&byte);
    let each = text.bytes().map(|byte| match byte {
        byte if plain(byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    each.collect()
}

/// Decodes Java's form of percent-encoding, with `+` for a space.
fn decode(text: &str) -> Result<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next().unwrap_or(b'-'), rest.next().unwrap_or(b'-')];
                u8::from_str_radix(std::str::from_utf8(&digits)?, 16)?
            }
            other => other,
        });
    }
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were() -> Result<()> {
        for word in ["", "a b+c%20", "{ü}\n\u{1F512}"] {
            assert_eq!(decode(&encode(word))?, word);
        }
        assert_eq!(decode("a+b%0A")?, "a b\n");
        let (number, answer) = parse("7 error IllegalMonitorStateException not+yours")?;
        let thrown = answer.expect_err("it threw");
        assert_eq!(
            (number, thrown.to_string().as_str()),
            (7, "IllegalMonitorStateException: not yours")
        );
        Ok(())
    }
}
