//! The commands of README.md and of the start pages, run as printed.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail, ensure};
use harness::process::{self, Process};
use harness::redis::random_port;
use harness::{
    Agent, Client, Dashboard, RedisCluster, RedisServer, Sentinels, eventually, http, programs,
    project,
};
use tempfile::TempDir;

/// Returns the blocks of code in this language, without the indentation of a list.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for line in text.lines() {
        let words = line.trim_start();
        match &mut open {
            None if words == format!("```{language}") => {
                open = Some((line.len() - words.len(), String::new()));
            }
            None => {}
            Some(_) if words == "```" => blocks.extend(open.take().map(|(_, code)| code)),
            Some((indentation, code)) => {
                code.push_str(line.get(*indentation..).unwrap_or_default());
                code.push('\n');
            }
        }
    }
    blocks
}

/// Returns the commands in backticks, outside of blocks, that start one of these programs with arguments.
fn inline(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect();
    let spans = prose.split('`').skip(1).step_by(2);
    let spans = spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" "));
    spans.filter(|span| is_service(span) || span.starts_with("lockctl exec ")).collect()
}

/// Returns whether a command serves until it is ended.
fn is_service(command: &str) -> bool {
    let program = command.split(' ').next().unwrap_or_default();
    ["lockscope-agent", "lockscope-dashboard"].contains(&program) && command.contains(' ')
}

/// The hosts of the documents: each address and path in a command leads to one of these servers or folders.
struct Stage {
    redis: RedisServer,
    agent: Agent,
    dashboard: Dashboard,
    others: Vec<RedisServer>,
    folder: TempDir,
}

impl Stage {
    async fn new() -> Result<Self> {
        let redis = RedisServer::start().await?;
        let agent = Agent::start(&redis).await?;
        let dashboard = Dashboard::start(&redis.url(), &[]).await?;
        let folder = tempfile::tempdir()?;
        for script in ["report", "deploy.sh"] {
            let path = folder.path().join(script);
            std::fs::write(&path, "#!/bin/sh\necho \"reported $*\"\n")?;
            let mut chmod = Command::new("chmod");
            ensure!(chmod.arg("+x").arg(&path).status()?.success(), "chmod");
        }
        Ok(Self { redis, agent, dashboard, others: Vec::new(), folder })
    }

    fn adapt(&self, command: &str) -> String {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let (url, redis_cli) = (self.redis.url(), format!("redis-cli -p {}", self.redis.port()));
        let mut command = command
            .replace("redis-cli -s", "redis-cli  -s")
            .replace("redis-cli ", &format!("{redis_cli} "))
            .replace(&format!("{redis_cli}  -s"), "redis-cli -s")
            .replace("redis://redis.example:6379", &url)
            .replace("redis://127.0.0.1:6379", &url)
            .replace("redis://locks", &url)
            .replace("--redis-url URL", &format!("--redis-url {url}"))
            .replace("127.0.0.1:9760", &format!("127.0.0.1:{}", self.agent.http()))
            .replace("127.0.0.1:9761", &format!("127.0.0.1:{}", self.dashboard.port()))
            .replace("/tmp/try", &path("try"))
            .replace("/usr/local/bin/report", &path("report"));
        for (other, name) in self.others.iter().zip(["redis://a", "redis://b", "redis://c"]) {
            command = command.replace(name, &other.url());
        }
        command
    }

    fn shell(&self, script: &str) -> Result<Command> {
        let bin = programs::path("lockctl")?;
        let bin = bin.parent().context("a folder")?.display();
        let mut shell = process::command(Path::new("/bin/bash"));
        let path = std::env::var("PATH").unwrap_or_default();
        shell.env("PATH", format!("{bin}:{path}")).env("HOME", self.folder.path());
        shell.env("LOCKSCOPE_SOCKET", self.agent.socket()).current_dir(self.folder.path());
        shell.args(["-c", &self.adapt(script)]);
        Ok(shell)
    }

    fn run(&self, script: &str) -> Result<Output> {
        Ok(self.shell(script)?.output()?)
    }

    /// Runs commands that end by themselves, and returns what they print.
    fn succeeds(&self, script: &str) -> Result<String> {
        let output = self.run(script)?;
        ensure!(output.status.success(), "{script}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts a service, with the ports and folders that the command does not name, and waits until it is connected.
    async fn serves(&self, command: &str) -> Result<Process> {
        for _ in 0..20 {
            if let Some(process) = self.serves_on(command, random_port()).await? {
                return Ok(process);
            }
        }
        bail!("no port is free for `{command}`")
    }

    /// Like [`Self::serves`], on this port. Returns `None` if the port is taken.
    async fn serves_on(&self, command: &str, port: u16) -> Result<Option<Process>> {
        let address = format!("127.0.0.1:{port}");
        let scratch = tempfile::tempdir_in(self.folder.path())?.keep();
        let mut shell = self.shell(&format!("exec {command}"))?;
        shell.env("LOCKSCOPE_AGENT_HTTP", &address).env("LOCKSCOPE_DASHBOARD_LISTEN", &address);
        shell.env("LOCKSCOPE_AGENT_SOCKET", scratch.join("agent.sock"));
        shell.env("LOCKSCOPE_AGENT_STATE_DIR", scratch.join("state"));
        let mut process = Process::spawn("service", shell, &scratch.join("log"), None)?;
        let (page, sign) = if command.starts_with("lockscope-agent") {
            ("/readyz", "")
        } else {
            ("/metrics", "\nlockscope_dashboard_redis_up{")
        };
        let up = eventually(command, async || {
            if process.ended()?.is_some() {
                return Ok(false);
            }
            // Until then the port, and so the answer, may be another program's.
            ensure!(process.log().contains("serving"), "it does not serve yet");
            let answer = http::get(port, page).await?;
            ensure!(answer.status == 200 && answer.body.contains(sign), "{}", answer.body);
            let down = answer.body.lines().find(|line| {
                line.starts_with("lockscope_dashboard_redis_up{") && line.ends_with(" 0")
            });
            ensure!(down.is_none(), "{down:?}");
            Ok(true)
        })
        .await;
        if up {
            return Ok(Some(process));
        }
        let said = process.log();
        ensure!(said.contains("in use"), "`{command}` ended at once: {said}");
        Ok(None)
    }

    /// Runs a single command to its end, or until it serves.
    async fn works(&self, command: &str) -> Result<()> {
        if command.starts_with("lockscope-dashboard doctor ") {
            let output = self.run(command)?;
            let report = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.code() < Some(2) && !report.is_empty(), "{command}: {output:?}");
        } else if command.starts_with("lockscope-dashboard rules ") {
            self.succeeds(&format!("{command} && promtool check rules lockscope.rules.yml"))?;
        } else if is_service(command) {
            let mut process = self.serves(command).await?;
            process.terminate()?;
            let status = process.end().await;
            ensure!(status.success(), "{command}: {status}: {}", process.log());
        } else if command.starts_with("lockctl exec ") {
            let printed = self.succeeds(command)?;
            ensure!(printed.starts_with("reported"), "{command}: {printed}");
        } else if let Some(target) = command.strip_prefix("make ") {
            let target = target.split(' ').next().unwrap_or_default();
            let rule = format!("\n{target}: ");
            ensure!(project::text("Makefile")?.contains(&rule), "no make {target}");
        } else {
            bail!("nothing runs `{command}`");
        }
        Ok(())
    }
}

/// Returns the lines of the shell blocks; each line is a command.
fn lines(text: &str) -> Vec<String> {
    let blocks = blocks(text, "sh");
    blocks.iter().flat_map(|block| block.lines()).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_commands_of_the_readme() -> Result<()> {
    let mut stage = Stage::new().await?;
    for _ in 0..3 {
        stage.others.push(RedisServer::start().await?);
    }
    let cluster = RedisCluster::start(3, 0).await?;
    let sentinels = Sentinels::start(2).await?;
    let text = project::text("README.md")?;
    let commands = [lines(&text), inline(&text)].concat();
    ensure!(commands.len() >= 12, "{commands:?}");
    for command in commands {
        let command =
            command.replace("redis+cluster://redis-1:6379,redis-2:6379", &cluster.url()).replace(
                "redis+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster",
                &sentinels.url(),
            );
        stage.works(&command).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_commands_for_java() -> Result<()> {
    let stage = Stage::new().await?;
    let commands = lines(&project::text("docs/start/java.md")?);
    ensure!(!commands.is_empty(), "no commands");
    for command in commands {
        stage.works(&command).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_commands_for_cron() -> Result<()> {
    let stage = Stage::new().await?;
    let text = project::text("docs/start/cron.md")?;
    let crontab = blocks(&text, "text");
    // Five fields of time and a user come before the command.
    let job = crontab.first().context("no crontab")?.split_whitespace().skip(6);
    stage.works(&job.collect::<Vec<_>>().join(" ")).await?;
    for command in inline(&text).iter().filter(|command| command.contains(" -- ")) {
        stage.works(command).await?;
    }
    for flags in text.lines().filter(|line| line.starts_with("| ")).filter_map(|row| {
        let span = row.split('`').nth(1)?;
        span.starts_with("--").then_some(span)
    }) {
        stage.works(&format!("lockctl exec {flags} nightly-report -- ./report")).await?;
    }
    let commands = lines(&text);
    let [first, second, third] = commands.as_slice() else { bail!("{commands:?}") };
    let log = stage.folder.path().join("log");
    let mut held = Process::spawn("lockctl", stage.shell(&format!("exec {first}"))?, &log, None)?;
    eventually("the lock to be listed", async || {
        let list = stage.succeeds(third)?;
        ensure!(list.contains("nightly-report"), "{list}");
        Ok(())
    })
    .await;
    let printed = stage.succeeds(second)?;
    ensure!(printed == "status 75\n", "{printed}");
    held.terminate()?;
    held.end().await;
    Ok(())
}

#[tokio::test]
async fn the_commands_for_prometheus() -> Result<()> {
    let stage = Stage::new().await?;
    let text = project::text("docs/start/prometheus.md")?;
    let steps = blocks(&text, "sh");
    let [metrics, rules, routes, fault] = steps.as_slice() else { bail!("{steps:?}") };
    eventually("both to report that Redis is up", async || {
        let printed = stage.succeeds(metrics)?;
        let up = printed.lines().filter(|line| !line.starts_with('#') && line.ends_with(" 1"));
        ensure!(up.count() == 2, "{printed}");
        Ok(())
    })
    .await;
    let config = blocks(&text, "yaml");
    std::fs::write(stage.folder.path().join("prometheus.yml"), config.concat())?;
    stage.succeeds(rules)?;
    stage.succeeds("promtool check config prometheus.yml")?;
    let example = project::text("grafana/prometheus/alertmanager.yml")?;
    std::fs::write(stage.folder.path().join("alertmanager.yml"), example)?;
    stage.succeeds(routes)?;
    // The first line stays in the background, so the output goes to a file.
    let log = stage.folder.path().join("log");
    let mut shell = Process::spawn("shell", stage.shell(&format!("{fault}\nwait"))?, &log, None)?;
    eventually("the leak to be counted", async || {
        let metrics = stage.dashboard.metrics().await?;
        let leaked = [("problem", "leaked")];
        ensure!(metrics.sum("lockscope_dashboard_problems", &leaked) == 1.0, "{}", shell.log());
        Ok(())
    })
    .await;
    shell.kill()
}

#[tokio::test]
async fn the_commands_for_a_worker() -> Result<()> {
    let stage = Stage::new().await?;
    let text = project::text("docs/start/worker.md")?;
    let commands = lines(&text);
    let [folder, agent] = commands.as_slice() else { bail!("{commands:?}") };
    stage.succeeds(folder)?;
    let agent = stage.serves(agent).await?;
    let session = blocks(&text, "text");
    let session = session.first().context("no session")?;
    let start = session.lines().next().and_then(|line| line.strip_prefix("$ "));
    let start = start.context("no command")?;
    let typed = session.lines().find_map(|line| Some(line.split_once("> ")?.1));
    let typed = typed.context("nothing is typed")?;
    let printed = stage.succeeds(&format!("echo '{typed}' | {start} --no-raw"))?;
    let fields = |text: &str| -> Vec<String> {
        let quoted = text.lines().filter_map(|line| line.split('"').nth(1));
        quoted.filter(|word| !word.contains('-')).map(str::to_owned).collect()
    };
    ensure!(fields(&printed) == fields(session), "{printed}\n{session}");
    let mut first = Client::unix(&stage.folder.path().join("try/agent.sock")).await?;
    first.call(typed).await?.ok()?;
    let wait = text.split('`').find(|span| span.starts_with("LOCK ") && span.contains("WAIT"));
    let wait = wait.context("no wait")?;
    let printed = stage.succeeds(&format!("{start} --no-raw {wait}"))?;
    ensure!(printed == "(nil)\n", "{printed}");
    drop(agent);
    Ok(())
}
