//! Command lines of processes, with likely secrets masked.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

const MAX_CHARS: usize = 300;
/// The time after which a read counts as hanging.
const MAX_READ: Duration = Duration::from_secs(1);
const SECRET_WORDS: [&str; 5] = ["pass", "token", "secret", "key", "auth"];
const MASK: &str = "***";

/// A reader of command lines. The kernel can let a read wait for as long as the process is stuck in a system call that
/// changes its memory, so another thread reads.
#[derive(Debug, Default)]
pub(super) struct CommandLines {
    /// The last read, while it has no result. No other one begins before it ends.
    reading: Option<JoinHandle<HashMap<i32, String>>>,
}

impl CommandLines {
    /// Returns the masked command lines of these processes, as far as they can be read, and none while a read hangs.
    pub(super) async fn of(&mut self, pids: Vec<i32>) -> HashMap<i32, String> {
        if self.reading.as_ref().is_some_and(|reading| !reading.is_finished()) {
            return HashMap::new();
        }
        let read = move || pids.into_iter().filter_map(|pid| Some((pid, of(pid)?))).collect();
        let reading = self.reading.insert(spawn_blocking(read));
        let Ok(read) = timeout(MAX_READ, reading).await else {
            tracing::warn!("reading command lines hangs; none is published until it ends");
            return HashMap::new();
        };
        self.reading = None;
        read.unwrap_or_default()
    }
}

/// Returns the masked command line of a process; `None` if it cannot be read.
fn of(pid: i32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let args = text.split_terminator('\0');
    let shown = masked(args).chars().take(MAX_CHARS).collect::<String>();
    (!shown.is_empty()).then_some(shown)
}

/// Joins the arguments with spaces and masks secrets. Masks too much rather than too little.
fn masked<'a>(args: impl Iterator<Item = &'a str>) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut value_is_secret = false;
    for arg in args {
        let is_flag = arg.starts_with('-');
        if std::mem::take(&mut value_is_secret) && !arg.starts_with("--") {
            shown.push(MASK.to_owned());
            // With one dash it may also be a flag, whose value is the secret.
            value_is_secret = is_flag;
            continue;
        }
        let arg = mask_logins(arg);
        let lower = arg.to_ascii_lowercase();
        let secret_word =
            SECRET_WORDS.iter().filter_map(|word| Some(lower.find(word)? + word.len())).min();
        let named = secret_word.and_then(|end| arg.split_at_checked(end));
        shown.push(match named.map(|(name, rest)| (name, rest.find(['=', ':', ' ']), rest)) {
            Some((name, Some(at), rest)) => {
                let before = rest.get(..=at).unwrap_or_default();
                format!("{name}{before}{MASK}")
            }
            named => {
                value_is_secret = is_flag && named.is_some();
                arg
            }
        });
    }
    shown.join(" ")
}

/// Masks the user and password of each URL. With a colon in front, all up to the last `@` may be a password.
fn mask_logins(arg: &str) -> String {
    let mut urls = arg.split("://");
    let mut shown = urls.next().unwrap_or_default().to_owned();
    for url in urls {
        shown.push_str("://");
        let (authority, path) = url.split_at(url.find(['/', '?', '#']).unwrap_or(url.len()));
        match (authority.rsplit_once('@'), url.rsplit_once('@')) {
            (_, Some((login, rest))) if login.contains(':') => {
                shown.push_str(&format!("{MASK}@{rest}"));
            }
            (Some((_, host)), _) => shown.push_str(&format!("{MASK}@{host}{path}")),
            _ => shown.push_str(url),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked() {
        let line = |args: &[&str]| masked(args.iter().copied());
        assert_eq!(line(&["backup", "--all", "/srv"]), "backup --all /srv");
        assert_eq!(line(&["x", "--password", "pw", "y"]), "x --password *** y");
        assert_eq!(line(&["x", "--api-TOKEN=pw", "-v"]), "x --api-TOKEN=*** -v");
        assert_eq!(line(&["x", "--key", "--quiet", "y"]), "x --key --quiet y");
        assert_eq!(
            line(&["x", "--password", "-Zk3", "--quiet", "y"]),
            "x --password *** --quiet y"
        );
        assert_eq!(line(&["x", "--auth", "-p", "pw", "y"]), "x --auth *** *** y");
        assert_eq!(line(&["PGPASSWORD=pw", "psql"]), "PGPASSWORD=*** psql");
        assert_eq!(line(&["x", "redis://me:pw@host:1/0"]), "x redis://***@host:1/0");
        assert_eq!(line(&["x", "--url=redis://me:p/p@w@host/a"]), "x --url=redis://***@host/a");
        assert_eq!(line(&["redis://me@host/a@b"]), "redis://***@host/a@b");
        let two = "redis://:p1@a:1,redis://:p2@b:2 redis://c:3";
        assert_eq!(line(&[two]), "redis://***@a:1,redis://***@b:2 redis://c:3");
        assert_eq!(line(&["-H", "Authorization: Bearer pw"]), "-H Authorization:***");
        assert_eq!(line(&["host=db user=x password=pw"]), "host=db user=x password=***");
        assert_eq!(line(&["--opts={\"password\":\"pw\"}"]), "--opts={\"password\":***");
        assert_eq!(line(&["x", "http://host/a@b"]), "x http://host/a@b");
    }

    #[tokio::test]
    async fn command_lines_are_read_and_truncated() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let read = CommandLines::default().of(vec![pid, i32::MAX]).await;
        let ours = &read[&pid];
        assert!(!ours.is_empty() && ours.chars().count() <= MAX_CHARS, "{ours}");
        assert_eq!(read.len(), 1);
    }

    #[tokio::test]
    async fn no_other_read_begins_while_one_hangs() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hanging = spawn_blocking(move || {
            ended.recv().unwrap_err();
            HashMap::new()
        });
        let mut lines = CommandLines { reading: Some(hanging) };
        assert!(lines.of(vec![pid]).await.is_empty());
        drop(end);
        while lines.of(vec![pid]).await.is_empty() {
            tokio::task::yield_now().await;
        }
    }
}
