//! A recording: runs the steps of an operation and collects the MONITOR output.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use harness::jvm::{Pending, Thread, Thrown};
use harness::{Client, Jvm, PATIENCE, RedisServer};
use sha1::{Digest as _, Sha1};
use tokio::time::timeout;

use crate::operations::Operation;

/// The silence that ends a step: some calls send a last command without waiting for its reply.
const QUIET: Duration = Duration::from_millis(150);

/// The options common to the clients of all recordings.
const CLIENTS: [&str; 2] = ["a", "b"];

pub(crate) struct Tape {
    jvm: Arc<Jvm>,
    redis_url: String,
    direct: Client,
    monitor: Client,
    open: HashMap<String, Pending>,
    text: String,
}

impl Tape {
    pub(crate) async fn new(
        jvm: &Arc<Jvm>,
        redis: &RedisServer,
        version: &str,
        operation: &Operation,
    ) -> Result<Self> {
        let mut direct = Client::tcp(redis.port()).await?;
        direct.call("FLUSHALL").await?.ok()?;
        let info = direct.call("INFO server").await?.text();
        let server = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let text = format!(
            "# {}\n# Redisson {version}, redis-server {}\n",
            operation.what,
            server.context("no version in INFO")?
        );
        let monitor = redis.client().await?;
        let (jvm, open) = (Arc::clone(jvm), HashMap::new());
        Ok(Self { jvm, redis_url: redis.url(), direct, monitor, open, text })
    }

    /// Runs the operation and returns the file, or `None` if this version does not support it.
    pub(crate) async fn record(&mut self, operation: &Operation) -> Result<Option<String>> {
        let opened = !operation.steps.iter().any(|step| step.contains(" open "));
        if opened {
            for client in CLIENTS {
                let open = format!("open {} {}", self.redis_url, operation.settings);
                self.thread(&format!("{client}/0"))?.call(&open).await?;
            }
        }
        self.monitor.call("MONITOR").await?.ok()?;
        let result = self.steps(operation).await;
        for client in CLIENTS {
            self.thread(&format!("{client}/0"))?.call("close").await?;
        }
        match result {
            Ok(()) => Ok(Some(std::mem::take(&mut self.text))),
            Err(error) if lacks(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn steps(&mut self, operation: &Operation) -> Result<()> {
        for step in operation.steps {
            let (who, what) = step.split_once(' ').context("a step has two parts")?;
            let what = &what.replace("URL", &self.redis_url);
            match who {
                "redis" => {
                    let reply = self.direct.call(what).await?;
                    // The next step collects its output, and may wait for its effect.
                    self.note(&format!("redis: {what} = {reply}"));
                }
                "until" => {
                    let listened = timeout(PATIENCE, self.listen(Some(what))).await;
                    listened.with_context(|| format!("no line has `{what}`:\n{}", self.text))??;
                    // Collects the rest of the same script.
                    self.listen(None).await?;
                }
                "answer" => {
                    let answer =
                        self.open.remove(what).context("nothing is open")?.answer().await?;
                    self.note(&format!("{what} = {}", result_text(answer)?));
                    self.listen(None).await?;
                }
                who if who.starts_with('~') => {
                    let who = who.trim_start_matches('~');
                    self.note(&format!("{who} {what} …"));
                    let pending = self.thread(who)?.begin(what)?;
                    self.open.insert(who.to_owned(), pending);
                    self.listen(None).await?;
                }
                who => {
                    let answer = self.thread(who)?.begin(what)?.answer().await?;
                    let note = format!(
                        "{who} {} = {}",
                        what.replace(&self.redis_url, "URL"),
                        result_text(answer)?
                    );
                    self.note(&note);
                    self.listen(None).await?;
                }
            }
        }
        Ok(())
    }

    fn thread(&self, who: &str) -> Result<Thread> {
        let (client, thread) = who.split_once('/').context("client/thread")?;
        Ok(self.jvm.thread(client, thread.parse()?))
    }

    fn note(&mut self, note: &str) {
        // Writing to a string cannot fail.
        writeln!(self.text, "# {note}").unwrap_or_default();
    }

    /// Collects lines until none arrives for a while, or until one contains `wanted`.
    async fn listen(&mut self, wanted: Option<&str>) -> Result<()> {
        loop {
            let line = match (timeout(QUIET, self.monitor.reply()).await, wanted) {
                (Ok(line), _) => line?.text(),
                (Err(_), None) => return Ok(()),
                // A wanted line has no deadline here; dropping [`Client::reply`] loses nothing.
                (Err(_), Some(_)) => self.monitor.reply().await?.text(),
            };
            let line = without_scripts(&line)?;
            self.text.push_str(&line);
            self.text.push('\n');
            if wanted.is_some_and(|wanted| line.contains(wanted)) {
                return Ok(());
            }
        }
    }
}

fn result_text(answer: Result<String, Thrown>) -> Result<String> {
    match answer {
        Err(thrown)
            if ["NoSuchMethodException", "ClassNotFoundException"]
                .contains(&thrown.class.as_str()) =>
        {
            Err(thrown.into())
        }
        Err(thrown) => Ok(format!("{thrown}").replace('\n', " ")),
        Ok(value) => Ok(value),
    }
}

fn lacks(error: &anyhow::Error) -> bool {
    let thrown = error.downcast_ref::<Thrown>();
    thrown.is_some_and(|thrown| {
        thrown.class.starts_with("NoSuchMethod") || thrown.class.starts_with("ClassNot")
    })
}

/// Returns the line with the source of a script replaced by its digest.
fn without_scripts(line: &str) -> Result<String> {
    let begin = ["\"EVAL\" \"", "\"eval\" \"", "\"SCRIPT\" \"LOAD\" \""]
        .iter()
        .find_map(|word| line.find(word).map(|at| at + word.len()));
    let Some(begin) = begin else { return Ok(line.to_owned()) };
    let (head, rest) = line.split_at(begin);
    let (mut script, mut chars) = (Vec::new(), rest.char_indices());
    let mut end = None;
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => {
                end = Some(at);
                break;
            }
            '\\' => script.push(match chars.next().context("a line ends in `\\`")?.1 {
                'n' => b'\n',
                't' => b'\t',
                'r' => b'\r',
                other @ ('"' | '\\') => u8::try_from(other)?,
                other => bail!("`\\{other}` in a script"),
            }),
            other => script.extend(other.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    let end = end.context("a script without an end")?;
    ensure!(script.is_ascii(), "an odd script");
    let digest: String = Sha1::digest(&script).iter().map(|byte| format!("{byte:02x}")).collect();
    let (_, tail) = rest.split_at(end);
    Ok(format!("{head}sha1:{digest}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_replaced_by_its_digest() -> Result<()> {
        let line = r#"1.0 [0 127.0.0.1:1] "EVAL" "return \"a\"\n" "1" "k" "return""#;
        let expected = r#"1.0 [0 127.0.0.1:1] "EVAL" "sha1:c9ceed825203de0876260b850239d61ec2b44ed5" "1" "k" "return""#;
        assert_eq!(without_scripts(line)?, expected);
        let plain = r#"1.0 [0 127.0.0.1:1] "EVALSHA" "149c" "0""#;
        assert_eq!(without_scripts(plain)?, plain);
        Ok(())
    }
}
