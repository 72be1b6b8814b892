//! The demo's programs: starts them and ends them.

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, Dashboard, PATIENCE, RedisServer, within};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use crate::{actors, scenes, screenshots};

/// All running programs. Agents end before the Redis that they use.
pub(crate) struct Stage {
    pub(crate) dashboard: Dashboard,
    pub(crate) agents: [Agent; 2],
    pub(crate) redis: Place,
    // The dashboard's settings; removed last.
    _settings: TempDir,
}

/// The Redis in use.
pub(crate) enum Place {
    Private(RedisServer),
    Given(String),
}

impl Place {
    fn url(&self) -> String {
        match self {
            Self::Private(server) => server.url(),
            Self::Given(url) => url.clone(),
        }
    }

    /// Opens a connection to Redis without an agent, for actors that act as other programs.
    pub(crate) async fn client(&self) -> Result<Client> {
        match self {
            Self::Private(server) => server.client().await,
            Self::Given(url) => {
                let port = url
                    .strip_prefix("redis://127.0.0.1:")
                    .or_else(|| url.strip_prefix("redis://localhost:"))
                    .and_then(|port| port.trim_end_matches('/').parse().ok());
                let port = port.context(
                    "the workers of the demo need redis://127.0.0.1:<port>; for another Redis \
                     say --no-actors",
                )?;
                Client::tcp(port).await
            }
        }
    }
}

/// The dashboard's usual port.
const PORT: u16 = 9761;

/// The notice on every page of the dashboard.
const NOTE: &str = "A demo: nothing here is real. Locks are named after what is staged with them, as in stuck:… \
    or deadlock:…; docs/reference/pages.md says more.";

/// Runs until SIGINT or SIGTERM, until the terminal is closed, or until the screenshots are taken.
pub(crate) async fn run(
    redis_url: Option<String>,
    with_actors: bool,
    screenshots: Option<PathBuf>,
) -> Result<()> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let given = redis_url.clone().map(Place::Given);
    let play = async {
        let stage = Rc::new(set(redis_url, with_actors).await?);
        say(&stage, with_actors);
        if let Place::Given(url) = &stage.redis
            && let Some(why) = unreachable(&stage.dashboard).await
        {
            tell(&format!(
                "{url} does not work: {why}. Everything retries; set REDIS_URL to another one, or to none"
            ));
        }
        if with_actors {
            actors::play(Rc::clone(&stage)).await?;
        }
        if let Some(folder) = screenshots {
            return screenshots::take(&stage.dashboard, &folder).await;
        }
        std::future::pending::<Result<()>>().await
    };
    // Dropping the set ends every worker, and the last of them ends the stage and its processes.
    LocalSet::new()
        .run_until(async {
            tokio::select! {
                played = play => played,
                _ = interrupted.recv() => Ok(()),
                _ = terminated.recv() => Ok(()),
                _ = hung_up.recv() => Ok(()),
            }
        })
        .await?;
    match given {
        Some(given) if with_actors => scenes::clean_up(&given).await,
        _ => Ok(()),
    }
}

async fn set(redis_url: Option<String>, with_actors: bool) -> Result<Stage> {
    let redis = match redis_url {
        Some(url) => Place::Given(url),
        None => Place::Private(RedisServer::start().await?),
    };
    // Leases and thresholds are short, so that a minute shows what would otherwise take a day.
    let flags = ["--lease", "6s"];
    let url = redis.url();
    let agents = [Agent::at(&url, &flags).await?, Agent::at(&url, &flags).await?];
    let settings = tempfile::Builder::new().prefix("lockscope-demo-").tempdir()?;
    let file = settings.path().join("dashboard.toml");
    let long = |pattern: &str| format!("[[lock]]\nmatch = \"{pattern}\"\nexpected = \"long\"\n");
    std::fs::write(&file, scenes::LONG.map(long).concat())?;
    let history = settings.path().join("history");
    let [file, history] = [file, history].map(|path| path.to_string_lossy().into_owned());
    let flags = ["--stuck-after", "20s", "--starving-after", "20s", "--environment", "demo"];
    let more = [
        "--note",
        NOTE,
        "--allow-release",
        "--insecure",
        "--config",
        &file,
        "--history-dir",
        &history,
    ];
    if with_actors {
        scenes::prepare(&redis).await?;
    }
    let flags = if with_actors { [flags.as_slice(), &more].concat() } else { flags.to_vec() };
    let dashboard = Dashboard::prefer(PORT, &url, &flags).await?;
    Ok(Stage { dashboard, agents, redis, _settings: settings })
}

/// Waits until the dashboard has tried its Redis, and returns why it cannot use it.
async fn unreachable(dashboard: &Dashboard) -> Option<String> {
    within(PATIENCE, "the dashboard to try its Redis", async || {
        let server = dashboard.json("/api/v1/sources").await?["servers"][0].clone();
        let reason = server["down"]["reason"].as_str().map(str::to_owned);
        ensure!(reason.is_some() || server["version"].is_string(), "{server}");
        Ok(reason)
    })
    .await
}

#[expect(clippy::print_stdout, reason = "prints faults to the terminal")]
fn tell(what: &str) {
    println!("{what}");
}

#[expect(clippy::print_stdout, reason = "prints the addresses to the terminal")]
fn say(stage: &Stage, with_actors: bool) {
    let [first, second] = &stage.agents;
    println!("dashboard   {}", stage.dashboard.url("/"));
    if stage.dashboard.port() != PORT {
        println!(
            "            (port {PORT} is in use: `ss -ltnp 'sport = {PORT}'` shows by which program)"
        );
    }
    if with_actors {
        println!("            (without a login: every user of this host may release its locks)");
    }
    println!("redis       {}", stage.redis.url());
    for (i, agent) in [first, second].into_iter().enumerate() {
        let (socket, http) = (agent.socket(), agent.http());
        println!("agent {}     {}   http://127.0.0.1:{http}/metrics", i + 1, socket.display());
    }
    println!("try         redis-cli -s {} LOCK my-lock", first.socket().display());
    if !with_actors {
        println!("no workers run (--no-actors)");
    }
    println!("Ctrl-C ends everything");
}
