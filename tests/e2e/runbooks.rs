//! The runbooks: everything that they name exists, and their commands work on a real fault.

use std::collections::BTreeSet;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use harness::{
    Agent, Dashboard, Foreign, RedisCluster, RedisServer, Reply, eventually, http, programs,
    project,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// Returns every runbook with its name and text.
fn runbooks() -> Result<Vec<(String, String)>> {
    let mut books = Vec::new();
    for entry in std::fs::read_dir(project::path("docs/runbooks"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        books.push((name, std::fs::read_to_string(path)?));
    }
    ensure!(books.len() > 10, "{books:?}");
    Ok(books)
}

/// Returns the code spans outside blocks; a span may continue on the next line.
fn spans(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2).collect::<String>();
    let spans = prose.split('`').skip(1).step_by(2);
    spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Runs a shell command and returns the first line that it prints, or an empty line if it ends without one.
async fn first_line(command: &str) -> Result<String> {
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("exec 2>&1; {command}")]).stdin(Stdio::null());
    let mut child = shell.stdout(Stdio::piped()).kill_on_drop(true).process_group(0).spawn()?;
    let out = child.stdout.take().context("piped")?;
    let mut lines = BufReader::new(out).lines();
    let line = tokio::time::timeout(harness::PATIENCE, lines.next_line());
    let line = line.await.with_context(|| format!("{command}: it says nothing"))??;
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
        // The command may have ended by itself.
        kill_process_group(pid, Signal::KILL).unwrap_or_default();
    }
    Ok(line.unwrap_or_default())
}

/// Someone who was woken finds the same three answers at the head of each page.
#[test]
fn a_runbook_begins_with_its_alerts_their_meaning_the_harm_and_the_first_step() -> Result<()> {
    let mut rules = String::new();
    for program in ["agent", "dashboard"] {
        let file = format!("grafana/prometheus/lockscope-{program}.rules.yml");
        rules.push_str(&project::text(&file)?);
    }
    for (book, text) in runbooks()? {
        let page = format!("/{book}.md\n");
        let alerts = rules.split("- alert: ").skip(1).filter(|alert| alert.contains(&page));
        let alerts: Vec<&str> = alerts.filter_map(|alert| alert.lines().next()).collect();
        // The page about releases by hand belongs to several of the others.
        assert_eq!(alerts.is_empty(), book == "release", "{book}");
        let head = text.split("\n## ").next().unwrap_or_default();
        let unnamed = alerts.iter().find(|alert| !head.contains(&format!("**{alert}**")));
        assert_eq!(unnamed, None, "{book}");
        let labels: Vec<&str> = head
            .lines()
            .filter_map(|line| Some(line.strip_prefix("- **")?.split_once(":**")?.0))
            .collect();
        assert!(
            alerts.is_empty() || labels == ["Meaning", "Workers", "First"],
            "{book}: {labels:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn everything_named_in_runbooks_exists() -> Result<()> {
    let redis = RedisServer::start().await?;
    let history = tempfile::tempdir()?;
    let folder = history.path().display().to_string();
    let dashboard = Dashboard::start(&redis.url(), &["--history-dir", &folder]).await?;
    let mut flags = String::new();
    for command in ["lockscope-agent", "lockscope-dashboard", "lockctl unlock", "redis-cli"] {
        let (program, verb) = command.split_once(' ').unwrap_or((command, ""));
        let verb = (!verb.is_empty()).then_some(verb);
        let program = match program {
            "redis-cli" => program.into(),
            ours => programs::path(ours)?,
        };
        let output = Command::new(program).args(verb).arg("--help").output().await?;
        flags.push_str(&String::from_utf8_lossy(&output.stdout));
    }
    let flags: BTreeSet<&str> = flags
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .filter(|word| word.starts_with("--"))
        .collect();
    let boards: String = ["overview", "agents", "locks"]
        .iter()
        .map(|name| project::text(&format!("grafana/dashboards/{name}.json")))
        .collect::<Result<_, _>>()?;
    let (mut seen_flags, mut seen_routes, mut seen_titles) = (0, 0, 0);
    for (book, text) in runbooks()? {
        for span in spans(&text) {
            if span.starts_with("--") {
                let flag = span.split([' ', '=']).next().unwrap_or_default();
                assert!(flags.contains(flag), "{book}: {flag}");
                seen_flags += 1;
            } else if span.starts_with('/') && !span.starts_with("/run/") {
                let (path, group) = span.split_once('<').unwrap_or((&span, ""));
                let group = if group.is_empty() { "" } else { "orders:*" };
                let path = format!("{path}{}", utf8_percent_encode(group, NON_ALPHANUMERIC));
                let answer = http::get(dashboard.port(), &path).await?;
                assert_eq!(answer.status, 200, "{book}: {path}: {}", answer.body);
                assert!(!answer.body.contains("filter-error"), "{book}: {path} is no filter");
                seen_routes += 1;
            }
        }
        // The names of Grafana's boards and panels are in italics.
        for title in text.replace("**", "").split('*').skip(1).step_by(2) {
            if !title.contains('`') && title.chars().next().is_some_and(char::is_uppercase) {
                let whole = format!("\"title\": \"{title}\"");
                let board = format!("\"title\": \"Lockscope / {title}\"");
                assert!(boards.contains(&whole) || boards.contains(&board), "{book}: {title}");
                seen_titles += 1;
            }
        }
        for row in text.split(" row ").skip(1) {
            let row = row.split([';', '.', ' ']).next().unwrap_or_default();
            assert!(boards.contains(&format!("\"title\": \"{row}\"")), "{book}: row {row}");
        }
    }
    assert!(seen_flags >= 5 && seen_routes >= 3 && seen_titles >= 3, "it reads them no more");
    Ok(())
}

#[tokio::test]
async fn commands_in_runbooks_work() -> Result<()> {
    let redis = RedisServer::start().await?;
    let agent = Agent::start(&redis).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK orders:1").await?.ok()?;
    let dashboard = Dashboard::start(&redis.url(), &["--monitor", "on"]).await?;
    let mut direct = redis.client().await?;
    let monitor = eventually("MONITOR to be on", async || {
        let clients = direct.call("CLIENT LIST").await?.text();
        // Found as the runbook says.
        let line = clients.lines().find(|line| line.contains("flags=O")).map(str::to_owned);
        line.context(clients)
    })
    .await;
    assert!(monitor.contains(" name=lockscope-dashboard"), "{monitor}");
    let id = monitor.split([' ', '=']).nth(1).context("an id comes first")?.to_owned();

    let mut cluster = RedisCluster::start(3, 0).await?;
    let node = cluster.node(0).url();

    let mut run = 0;
    for (book, text) in runbooks()? {
        for span in spans(&text) {
            let is_redis = span.starts_with("redis-cli ") || span.starts_with("INFO ");
            if !is_redis || span == "redis-cli DEL" {
                continue;
            }
            let socket = agent.socket().display().to_string();
            let host = format!("127.0.0.1 -p {}", redis.port());
            let command = span
                .trim_start_matches("redis-cli ")
                .replace("-s <socket>", &format!("-s {socket}"))
                .replace("-s /run/lockscope/agent.sock", &format!("-s {socket}"))
                .replace("HOST -p PORT --user USER", &format!("{host} --user default"))
                .replace("-u <url of a node>", &format!("-u {node}"))
                .replace("<address of a node>", node.trim_start_matches("redis://"))
                .replace("<glob>", "orders:*")
                .replace("<id>", &id)
                .replace("NAME", "orders:1");
            assert!(!command.contains('<'), "{book}: what is meant by {span}?");
            let to = if ["-s ", "-u ", "-h "].iter().any(|flag| command.starts_with(flag)) {
                String::new()
            } else {
                format!("-p {} ", redis.port())
            };
            let said = first_line(&format!("redis-cli {to}{command}")).await?;
            // A server that was never slow has an empty list.
            let fine = (!said.is_empty() || command.starts_with("SLOWLOG"))
                && !["ERR", "(error)", "WRONG", "SYNTAX", "NOPERM", "Could not", "Unrecognized"]
                    .iter()
                    .any(|error| said.starts_with(error));
            assert!(fine || said.starts_with("NOTBUSY"), "{book}: {span}: {said}");
            run += 1;
        }
    }
    assert!(run >= 12, "{run} commands");
    // One of the commands ends MONITOR at once; the dashboard starts another one some seconds later.
    let clients = direct.call("CLIENT LIST").await?.text();
    assert!(!clients.lines().any(|line| line.starts_with(&format!("id={id} "))), "{clients}");
    let curl = format!("curl -s http://127.0.0.1:{}/healthz", dashboard.port());
    assert!(!first_line(&curl).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_lock_is_released_by_hand() -> Result<()> {
    let redis = RedisServer::start().await?;
    let agent = Agent::start(&redis).await?;
    let text = project::text("docs/runbooks/release.md")?;
    let script = text.split("```sh\n").nth(2).and_then(|rest| rest.split("```").next());
    let script = script.context("it has a script after the lockctl command")?;
    let mut service = Foreign::connect(&redis).await?;
    assert!(service.lock("orders:1").await?);
    let mut waiter = agent.client().await?;
    waiter.send("LOCK orders:1").await?;
    let mut direct = redis.client().await?;
    eventually("the agent to listen for the release", async || {
        let channel = "redisson_lock__channel:{orders:1}";
        let count = direct.call(&format!("PUBSUB NUMSUB {channel}")).await?.ok()?;
        ensure!(count.items()?[1] == Reply::Int(1), "{count}");
        Ok(())
    })
    .await;
    let script = script
        .replace("redis-cli", &format!("redis-cli -p {}", redis.port()))
        .replace("1 LOCK HOLDER", &format!("1 orders:1 {}", service.holder));
    assert_eq!(first_line(&script).await?, "released");
    let granted = waiter.reply().await?.ok()?;
    assert_ne!(granted.field("holder")?.text(), service.holder, "it continued at once");
    assert_eq!(first_line(&script).await?, "not the holder any more, nothing done");
    assert_eq!(direct.call("EXISTS orders:1").await?, Reply::Int(1), "the next one is not hit");

    // The channel of a name with braces has no braces around it, and waiters in a cluster use a sharded channel.
    let mut held = redis.client().await?;
    held.call("HSET a{b}c some:1 1").await?.ok()?;
    let mut sharded = redis.client().await?;
    sharded.call("SSUBSCRIBE redisson_lock__channel:a{b}c").await?.ok()?;
    let script = script.replace(&format!("orders:1 {}", service.holder), "'a{b}c' some:1");
    assert_eq!(first_line(&script).await?, "released");
    assert_eq!(sharded.reply().await?.ok()?.items()?[2].text(), "0");

    // A read lock may have other readers, and the next waiter of a fair lock listens on another channel.
    direct.call("HSET docs mode read some:1 1 other:1 1").await?.ok()?;
    direct.call("HSET printer some:1 1").await?.ok()?;
    direct.call("RPUSH redisson_lock_queue:{printer} other:1").await?.ok()?;
    for (name, kind) in [("docs", "read or write lock"), ("printer", "fair lock with a queue")] {
        let said = first_line(&script.replace("'a{b}c'", name)).await?;
        assert_eq!(said, format!("a {kind}, nothing done"));
        assert_eq!(direct.call(&format!("EXISTS {name}")).await?, Reply::Int(1));
    }
    Ok(())
}

#[tokio::test]
async fn the_documented_source_identifies_who_released_by_force() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut agent = Agent::start(&redis).await?;
    let history = tempfile::tempdir()?;
    let folder = history.path().display().to_string();
    let flags = ["--allow-release", "--insecure", "--history-dir", &*folder];
    let mut dashboard = Dashboard::start(&redis.url(), &flags).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK orders:1").await?.ok()?;
    let came = dashboard.release("orders:1", "lock").await?;
    assert_eq!(came["outcome"], "released", "{came}");
    eventually("the event", async || {
        let events = dashboard.json("/api/v1/events?from=-1h").await?.to_string();
        ensure!(events.contains("a test"), "{events}");
        Ok(())
    })
    .await;
    let log = dashboard.process().log();
    let line = log.lines().find(|line| line.contains("forced release requested"));
    let line = line.context(log.clone())?;
    assert!(["orders:1", "a test", "127.0.0.1"].iter().all(|part| line.contains(part)), "{line}");
    eventually("the agent's log to tell", async || {
        let log = agent.process().log();
        let line = log.lines().find(|line| line.contains("lock lost")).context("not yet")?;
        ensure!(line.contains("forced") && line.contains("orders:1"), "{line}");
        Ok(())
    })
    .await;
    Ok(())
}

/// Waits until the dashboard reports that the server refuses writes with this error, or that it accepts them.
async fn refuses(dashboard: &Dashboard, error: Option<&str>) -> Result<()> {
    eventually(&format!("{error:?} to be reported"), async || {
        let (metrics, name) =
            (dashboard.metrics().await?, "lockscope_dashboard_redis_refuses_writes");
        for word in ["OOM", "MISCONF", "NOREPLICAS"] {
            ensure!(metrics.0.contains(&format!("{name}{{")), "the server has not been read");
            let value = metrics.sum(name, &[("error", word)]);
            ensure!((value == 1.0) == (error == Some(word)), "{word}: {value}");
        }
        Ok(())
    })
    .await;
    let sources = dashboard.json("/api/v1/sources").await?;
    let server = sources["servers"][0].as_object().context("a server")?;
    assert_eq!(server["refuses"].as_str(), error);
    Ok(())
}

#[tokio::test]
async fn a_full_redis_is_reported_on_pages_and_in_metrics() -> Result<()> {
    let redis = RedisServer::start().await?;
    let dashboard = Dashboard::start(&redis.url(), &[]).await?;
    refuses(&dashboard, None).await?;
    redis.client().await?.call("CONFIG SET maxmemory 1").await?.ok()?;
    refuses(&dashboard, Some("OOM")).await?;
    let page = http::get(dashboard.port(), "/overview").await?.body;
    assert!(page.contains("Redis is full and grants no locks"), "{page}");
    Ok(())
}

#[tokio::test]
async fn a_redis_that_cannot_save_is_reported_until_it_accepts_writes() -> Result<()> {
    let redis = RedisServer::start().await?;
    let dashboard = Dashboard::start(&redis.url(), &[]).await?;
    let mut direct = redis.client().await?;
    direct.call_args(&["CONFIG", "SET", "save", "3600 1"]).await?.ok()?;
    // A folder in the place of the file.
    std::fs::create_dir(redis.folder().join("dump.rdb"))?;
    direct.call("BGSAVE").await?.ok()?;
    refuses(&dashboard, Some("MISCONF")).await?;
    assert!(direct.call("SET a 1").await?.is_error("MISCONF"));
    let page = http::get(dashboard.port(), "/overview").await?.body;
    assert!(page.contains("Redis cannot save its data and refuses all writes"), "{page}");
    direct.call("CONFIG SET stop-writes-on-bgsave-error no").await?.ok()?;
    refuses(&dashboard, None).await?;
    direct.call("SET a 1").await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn a_redis_that_lacks_replicas_is_reported_also_to_an_account_without_config() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut direct = redis.client().await?;
    direct.call("ACL SETUSER viewer on >secret +@all -config ~* &*").await?.ok()?;
    let url = redis.url().replace("redis://", "redis://viewer:secret@");
    let dashboard = Dashboard::start(&url, &[]).await?;
    refuses(&dashboard, None).await?;
    direct.call("CONFIG SET min-replicas-to-write 1").await?.ok()?;
    refuses(&dashboard, Some("NOREPLICAS")).await?;
    let page = http::get(dashboard.port(), "/overview").await?.body;
    assert!(page.contains("Redis lacks replicas and refuses all writes"), "{page}");
    Ok(())
}

#[tokio::test]
async fn a_changed_policy_is_detected_by_agents_and_dashboards() -> Result<()> {
    let redis =
        RedisServer::with(&[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")]).await?;
    let agent = Agent::start(&redis).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK a").await?.ok()?;
    let dashboard = Dashboard::start(&redis.url(), &[]).await?;
    let mut direct = redis.client().await?;
    for (policy, evicts) in [("allkeys-lru", 1.0), ("noeviction", 0.0), ("volatile-ttl", 1.0)] {
        direct.call(&format!("CONFIG SET maxmemory-policy {policy}")).await?.ok()?;
        eventually(policy, async || {
            let metrics = dashboard.metrics().await?;
            ensure!(metrics.0.contains("lockscope_dashboard_redis_evicts{"), "it has not looked");
            let theirs = metrics.sum("lockscope_dashboard_redis_evicts", &[]);
            let ours = agent.metrics().await?.sum("lockscope_agent_redis_evicts", &[]);
            ensure!((ours, theirs) == (evicts, evicts), "agent {ours}, dashboard {theirs}");
            Ok(())
        })
        .await;
    }
    let lost = agent.metrics().await?.sum("lockscope_agent_locks_lost_total", &[]);
    assert_eq!(lost, 0.0, "what it holds is not touched");
    Ok(())
}
