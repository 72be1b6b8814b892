//! Drives this library for the conformance suite, by commands on standard input.
//!
//! Reads one command per line: `<tag> <task> <verb> <arguments>`. Each task has a separate owner and runs its commands
//! one after another. Answers `<tag> <JSON>`; a loss and a warning are reported as `event <JSON>`. The verbs:
//!
//! ```text
//! lock <handle> <name>[,<name>…] [wait=<ms>] [lease=<ms>] [kind=<kind>]
//! check <handle> | release <handle> | extend <handle> <ms>
//! part <handle>   releases the first of several; the handle is that of the others
//! graced <ms>     locks and releases with another agent object, of this grace
//! runtimes <name> uses another agent object in two runtimes, one after the other
//! close           closes the agent object
//! many <count>   one lock for each of that many tasks; `unmany` releases them
//! cancel <tag>   cancels a command
//! ```

use std::collections::HashMap;
use std::env;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockscope_client::{Agent, Error, Hold, Kind, LockRequest, Owner};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::{Notify, mpsc};

#[derive(Debug)]
struct Command {
    tag: String,
    words: Vec<String>,
    cancelled: Arc<Notify>,
}

/// The holds of each handle: several for names separated by commas.
type Handles = HashMap<String, Vec<Arc<Hold>>>;

struct Driver {
    agent: Agent,
    handles: Mutex<Handles>,
    many: Mutex<Vec<Hold>>,
}

fn say(tag: &str, value: &Value) {
    println!("{tag} {value}");
}

fn failure(error: &Error) -> Value {
    let word = match error {
        Error::Timeout { .. } => "timeout",
        Error::Lost(_) => "lost",
        Error::Rejected { code, .. } => code,
        error if error.is_unavailable() => "unavailable",
        error => panic!("an unknown error: {error}"),
    };
    json!({ "error": word, "text": error.to_string() })
}

fn describe(holds: &[Arc<Hold>]) -> Value {
    let remaining = holds.iter().map(|hold| hold.remaining()).min().unwrap_or_default();
    let remaining = u64::try_from(remaining.as_millis()).expect("a time");
    let holders: Vec<_> = holds.iter().map(|hold| hold.holder()).collect();
    json!({ "token": holds[0].token(), "holder": holders.join(","), "remaining": remaining })
}

fn configured<H>(mut request: LockRequest<H>, options: &[String]) -> LockRequest<H> {
    for option in options {
        let (name, value) = option.split_once('=').expect("an option");
        let millis = || {
            let millis: f64 = value.parse().expect("milliseconds");
            Duration::try_from_secs_f64(millis / 1000.0).unwrap_or(Duration::MAX)
        };
        request = match name {
            "wait" => request.wait(millis()),
            "lease" => request.lease(millis()),
            _ => request.kind(kind(value)),
        };
    }
    request
}

fn kind(word: &str) -> Kind {
    match word {
        "fair" => Kind::Fair,
        "read" => Kind::Read,
        "write" => Kind::Write,
        "fenced" => Kind::Fenced,
        "red" => Kind::Red,
        _ => Kind::Plain,
    }
}

impl Driver {
    fn find(&self, handle: &str) -> Option<Vec<Arc<Hold>>> {
        self.handles.lock().expect("no panic").get(handle).cloned()
    }

    async fn lock(&self, owner: &Owner, words: &[String]) -> Result<Value, Error> {
        let (handle, names, options) = (&words[1], &words[2], &words[3..]);
        let holds: Vec<_> = if names.contains(',') {
            let request = configured(owner.lock_all(names.split(',')), options);
            request.await?.into_iter().map(Arc::new).collect()
        } else {
            vec![Arc::new(configured(owner.lock(names), options).await?)]
        };
        for hold in &holds {
            let (mut risk, lost) = (hold.risk(), hold.lost());
            let (warned, ended) = (handle.clone(), handle.clone());
            tokio::spawn(async move {
                while risk.changed().await.is_ok() {
                    if *risk.borrow_and_update() {
                        say("event", &json!({ "risk": warned }));
                    }
                }
            });
            tokio::spawn(async move {
                let lost = lost.await;
                say("event", &json!({ "lost": ended, "reason": lost.reason }));
            });
        }
        let description = describe(&holds);
        self.handles.lock().expect("no panic").insert(handle.clone(), holds);
        Ok(description)
    }

    fn check(&self, handle: &str) -> Result<Value, Error> {
        let holds = self.find(handle).expect("a handle");
        for hold in &holds {
            hold.check()?;
        }
        Ok(describe(&holds))
    }

    async fn release(&self, handle: &str) -> Result<Value, Error> {
        let holds = self.handles.lock().expect("no panic").remove(handle).expect("a handle");
        for hold in holds {
            let hold = Arc::try_unwrap(hold).expect("no command of this task runs");
            hold.release().await?;
        }
        Ok(json!({}))
    }

    async fn extend(&self, handle: &str, millis: &str) -> Result<Value, Error> {
        let holds = self.find(handle).expect("a handle");
        match millis.parse::<f64>().expect("milliseconds") {
            0.0 => holds[0].keep_renewed().await?,
            millis => holds[0].extend(Duration::from_secs_f64(millis / 1000.0)).await?,
        }
        Ok(describe(&holds))
    }

    async fn part(&self, handle: &str) -> Result<Value, Error> {
        let first = {
            let mut handles = self.handles.lock().expect("no panic");
            handles.get_mut(handle).expect("a handle").remove(0)
        };
        Arc::try_unwrap(first).expect("no command of this task runs").release().await?;
        Ok(json!({}))
    }

    async fn graced(millis: &str) -> Result<Value, Error> {
        let Ok(millis) = millis.parse() else {
            // A negative duration does not exist in Rust.
            return Ok(json!({ "error": "LIMIT", "text": millis }));
        };
        let other = Agent::builder().grace(Duration::from_millis(millis)).build();
        let released = async { other.lock("graced").await?.release().await }.await;
        other.close().await;
        released.map(|()| json!({}))
    }

    /// Nobody drives the first runtime while the second one is used, although it has not ended.
    fn runtimes(name: &str) -> Result<Value, Error> {
        let agent = Agent::new();
        let use_lock = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().expect("a runtime");
            let used = runtime.block_on(async {
                let hold = agent.lock(name).wait(Duration::from_secs(5)).await?;
                hold.release().await
            });
            used.map(|()| runtime)
        };
        let (_first, second) = (use_lock()?, use_lock()?);
        second.block_on(agent.close());
        Ok(json!({}))
    }

    async fn close(&self) -> Value {
        self.agent.close().await;
        json!({})
    }

    async fn many(&self, count: usize) -> Value {
        let lock = |i| self.agent.lock(format!("many:{i}")).wait(Duration::from_secs(600));
        let tasks: Vec<_> = (0..count).map(|i| tokio::spawn(lock(i).into_future())).collect();
        let mut errors = Vec::new();
        for task in tasks {
            match task.await.expect("no panic") {
                Ok(hold) => self.many.lock().expect("no panic").push(hold),
                Err(error) => errors.push(error.to_string()),
            }
        }
        json!({ "errors": errors })
    }

    async fn unmany(&self) -> Value {
        let holds = std::mem::take(&mut *self.many.lock().expect("no panic"));
        let tasks: Vec<_> = holds.into_iter().map(|hold| tokio::spawn(hold.release())).collect();
        let mut errors = Vec::new();
        for task in tasks {
            if let Err(error) = task.await.expect("no panic") {
                errors.push(error.to_string());
            }
        }
        json!({ "errors": errors })
    }

    async fn run(&self, owner: &Owner, words: &[String]) -> Value {
        let released = match words[0].as_str() {
            "check" | "release" | "extend" => self.find(&words[1]).is_none(),
            _ => false,
        };
        if released {
            // The compiler rejects what other languages have to refuse at run time.
            return json!({ "error": "lost", "text": "it was released" });
        }
        let answer = match words[0].as_str() {
            "lock" => self.lock(owner, words).await,
            "check" => self.check(&words[1]),
            "release" => self.release(&words[1]).await,
            "extend" => self.extend(&words[1], &words[2]).await,
            "part" => self.part(&words[1]).await,
            "graced" => Self::graced(&words[1]).await,
            "runtimes" => {
                let name = words[1].clone();
                let used = tokio::task::spawn_blocking(move || Self::runtimes(&name));
                used.await.expect("no panic")
            }
            "close" => Ok(self.close().await),
            "many" => Ok(self.many(words[1].parse().expect("a number")).await),
            "unmany" => Ok(self.unmany().await),
            verb => panic!("no such command: {verb}"),
        };
        answer.unwrap_or_else(|error| failure(&error))
    }
}

#[tokio::main]
async fn main() {
    let grace = env::var("GRACE_MS").ok().and_then(|grace| grace.parse().ok()).unwrap_or(60_000);
    let agent = Agent::builder().grace(Duration::from_millis(grace)).build();
    let (handles, many) = (Mutex::default(), Mutex::default());
    let driver = Arc::new(Driver { agent: agent.clone(), handles, many });
    let mut cancels: HashMap<String, Arc<Notify>> = HashMap::new();
    let mut tasks: HashMap<String, mpsc::Sender<Command>> = HashMap::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.expect("standard input") {
        let mut words = line.split(' ').map(str::to_owned);
        let (tag, task) = (words.next().expect("a tag"), words.next().expect("a task"));
        let words: Vec<_> = words.collect();
        if words[0] == "cancel" {
            cancels[&words[1]].notify_one();
            say(&tag, &json!({}));
            continue;
        }
        let cancelled = Arc::<Notify>::default();
        cancels.insert(tag.clone(), cancelled.clone());
        let queue = tasks.entry(task).or_insert_with(|| {
            let (sender, mut commands) = mpsc::channel::<Command>(100);
            let (driver, owner) = (driver.clone(), agent.owner());
            tokio::spawn(async move {
                while let Some(Command { tag, words, cancelled }) = commands.recv().await {
                    let answer = tokio::select! {
                        // A command that is cancelled before it runs has begun nevertheless.
                        biased;
                        answer = driver.run(&owner, &words) => answer,
                        () = cancelled.notified() => json!({ "error": "cancelled" }),
                    };
                    say(&tag, &answer);
                }
            });
            sender
        });
        let command = Command { tag, words, cancelled };
        queue.try_send(command).expect("a task of the suite has few commands");
    }
    agent.close().await;
}
