//! The example workers of the documents, run as printed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::process::{self, Process};
use harness::{Agent, RedisServer, eventually, project};

use super::libraries::{folder, go, installed, java, node, python};

pub(super) struct Servers {
    pub(super) agent: Agent,
    redis: RedisServer,
}

impl Servers {
    pub(super) async fn new() -> Result<Self> {
        let redis = RedisServer::start().await?;
        Ok(Self { agent: Agent::start(&redis).await?, redis })
    }

    /// Runs a program to its end while the test holds `name`, which the program has to wait for. Returns its output.
    pub(super) async fn run_against_a_holder(
        &self,
        command: Command,
        name: &str,
    ) -> Result<String> {
        let mut holder = self.agent.client().await?;
        holder.call(&format!("LOCK {name}")).await?.ok()?;
        let folder = tempfile::tempdir()?;
        let mut process = Process::spawn("client", command, &folder.path().join("log"), None)?;
        eventually("the program to wait for the lock", async || {
            ensure!(process.ended()?.is_none(), "it has ended: {}", process.log());
            let waits =
                holder.call(&format!("LOCKS MATCH {name}")).await?.text().contains("waiting");
            ensure!(waits, "it does not wait");
            Ok(())
        })
        .await;
        holder.call(&format!("UNLOCK {name}")).await?.ok()?;
        let status = process.end().await;
        ensure!(status.success(), "{status}: {}", process.log());
        let mut direct = self.redis.client().await?;
        eventually("nothing to be left in Redis", async || {
            let left = harness::redis::locks(&mut direct).await?;
            ensure!(left == 0, "{left} keys");
            Ok(())
        })
        .await;
        Ok(process.log())
    }
}

/// Returns a document's block of code in this language under this heading (any heading if empty), with the socket filled in.
fn block(document: &str, heading: &str, language: &str, socket: &Path) -> Result<String> {
    let text = project::text(document)?;
    let (_, section) =
        text.split_once(heading).with_context(|| format!("no `{heading}` in {document}"))?;
    let code =
        first_block(section, language).with_context(|| format!("{document} under `{heading}`"))?;
    let socket_there = "/run/lockscope/agent.sock";
    ensure!(code.contains(socket_there), "it does not name the socket: {code}");
    Ok(code.replace(socket_there, &socket.display().to_string()))
}

/// Returns the first block of code in this language, without the indentation of a list that it is in.
fn first_block(text: &str, language: &str) -> Result<String> {
    let fence = format!("```{language}\n");
    let (before, rest) = text.split_once(&fence).with_context(|| format!("no {language}"))?;
    let (code, _) = rest.split_once("```").context("a block ends")?;
    let indentation = before.rsplit('\n').next().unwrap_or_default();
    Ok(code
        .lines()
        .map(|line| line.strip_prefix(indentation).unwrap_or(line))
        .flat_map(|line| [line, "\n"])
        .collect())
}

/// A folder in which a program of a document is prepared to run.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    /// Returns the command that runs a program in this language.
    fn command(&self, language: &str, code: &str) -> Result<Command> {
        let (mut command, file) = match language {
            "python" => (python()?, "worker.py"),
            "javascript" => (node()?, "worker.js"),
            "bash" => (process::command(Path::new("/bin/bash")), "worker.sh"),
            "java" => (java()?, "Worker.java"),
            "go" => {
                for file in ["go.mod", "go.sum"] {
                    std::fs::copy(folder().join("go").join(file), self.0.path().join(file))?;
                }
                std::fs::write(self.0.path().join("main.go"), code)?;
                // Built before the lock is held: with a cold cache this takes a while.
                let mut build = go()?;
                build.args(["build", "-o", "worker", "main.go"]).current_dir(self.0.path());
                process::succeed(&mut build, "a program in Go cannot be built")?;
                return Ok(process::command(&self.0.path().join("worker")));
            }
            other => anyhow::bail!("nothing runs {other} here"),
        };
        let path: PathBuf = self.0.path().join(file);
        std::fs::write(&path, code)?;
        command.arg(path);
        Ok(command)
    }

    /// Returns the command that runs a program with the client library of this language.
    fn library_command(&self, language: &str, code: &str) -> Result<Command> {
        let at = |name: &str| self.0.path().join(name);
        let clients = project::path("clients").canonicalize()?;
        let build = |command: &mut Command| {
            process::succeed(command.current_dir(self.0.path()), "the program cannot be built")
        };
        let mut command;
        match language {
            "python" => {
                std::fs::write(at("worker.py"), code)?;
                command = process::command(&installed("python3")?);
                command.env("PYTHONPATH", clients.join("python/src")).arg(at("worker.py"));
            }
            "js" => {
                std::fs::create_dir(at("node_modules"))?;
                std::os::unix::fs::symlink(clients.join("node"), at("node_modules/lockscope"))?;
                std::fs::write(at("worker.mjs"), code)?;
                command = node()?;
                command.arg(at("worker.mjs"));
            }
            "go" => {
                let module = "github.com/lockscope/lockscope/clients/go";
                let library = clients.join("go");
                std::fs::write(
                    at("go.mod"),
                    format!(
                        "module worker\n\nrequire {module} v0.0.0\n\nreplace {module} => {}\n",
                        library.display()
                    ),
                )?;
                std::fs::write(at("main.go"), code)?;
                build(go()?.args(["build", "-mod=mod", "-o", "worker", "main.go"]))?;
                command = process::command(&at("worker"));
            }
            "java" => {
                std::fs::write(at("Worker.java"), code)?;
                let mut javac = process::command(&installed("javac")?);
                javac.args([
                    "--release",
                    "17",
                    "-encoding",
                    "UTF-8",
                    "-d",
                    "classes",
                    "--source-path",
                ]);
                build(javac.arg(clients.join("java/src/main/java")).arg("Worker.java"))?;
                command = process::command(&installed("java")?);
                command.arg("-cp").arg(at("classes")).arg("Worker");
            }
            other => anyhow::bail!("there is no library for {other}"),
        }
        Ok(command)
    }
}

/// Checks that a program of a document waits for `orders:42` and works under it.
async fn works(document: &str, heading: &str, language: &str) -> Result<()> {
    let servers = Servers::new().await?;
    let place = Place::new()?;
    let code = block(document, heading, language, &servers.agent.socket())?;
    let command = place.command(language, &code)?;
    let printed = servers.run_against_a_holder(command, "orders:42").await;
    let printed = printed.with_context(|| format!("{document} {heading} {language}"))?;
    ensure!(printed.contains("working on orders:42\n"), "{document} {heading}: {printed}");
    Ok(())
}

/// The documents with a program that uses a client library, and its language.
const LIBRARY_PROGRAMS: [(&str, &str); 6] = [
    ("README.md", "python"),
    ("clients/python/README.md", "python"),
    ("clients/node/README.md", "js"),
    ("clients/go/README.md", "go"),
    ("clients/java/README.md", "java"),
    ("docs/start/worker.md", "python"),
];

#[tokio::test]
async fn the_programs_that_use_a_client_library() -> Result<()> {
    for (document, language) in LIBRARY_PROGRAMS {
        let servers = Servers::new().await?;
        let place = Place::new()?;
        let text = project::text(document)?;
        let code = first_block(&text, language).context(document)?;
        let socket = servers.agent.socket();
        let code = code.replace("/tmp/try/agent.sock", &socket.display().to_string());
        let mut command = place.library_command(language, &code)?;
        command.env("LOCKSCOPE_SOCKET", &socket);
        let printed = servers.run_against_a_holder(command, "orders:42").await.context(document)?;
        ensure!(printed.contains("working on orders:42\n"), "{document}: {printed}");
    }
    Ok(())
}

/// The programs of docs/howto/clients.md, and the language of each.
const PROGRAMS: [(&str, &str); 9] = [
    ("redis-py", "python"),
    ("redis-py, asyncio", "python"),
    ("ioredis", "javascript"),
    ("node-redis", "javascript"),
    ("go-redis", "go"),
    ("Lettuce", "java"),
    ("Jedis", "java"),
    ("Java without a library", "java"),
    ("Shell", "bash"),
];

#[tokio::test]
async fn the_programs_of_the_page_on_libraries() -> Result<()> {
    for (library, language) in PROGRAMS {
        works("docs/howto/clients.md", &format!("\n## {library}\n"), language).await?;
    }
    let text = project::text("docs/howto/clients.md")?;
    let blocks = text.lines().filter(|line| line.starts_with("```") && line.len() > 3).count();
    ensure!(blocks == PROGRAMS.len(), "{blocks} programs are there, {} were run", PROGRAMS.len());
    Ok(())
}
