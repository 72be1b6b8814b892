//! The scenes of a worker, played by each library: every change to its locks is noticed.

use anyhow::{Context as _, Result, bail, ensure};
use harness::{Agent, Client, PATIENCE, RedisServer, Reply, eventually, within};

use super::driver::{Driver, Sent};
use super::libraries::{LETTUCE, Library, Pushes, REDIS_PY, Settings};
use super::relay::Relay;

/// The duration of a LOCK behind another holder: longer than the default time-outs of libraries.
const LONG: i64 = 10_000;

async fn servers() -> Result<(RedisServer, Agent)> {
    let redis = RedisServer::start().await?;
    // Renewed every five seconds, so a lock that is gone from Redis is soon noticed; Redis has one second to answer.
    let agent = Agent::with(&redis, &["--lease", "15s"]).await?;
    Ok((redis, agent))
}

/// Plays all scenes with a separate Redis and agent.
pub(super) async fn play(library: &Library) -> Result<()> {
    let (redis, agent) = servers().await?;
    let scenes = [Settings::Advised, Settings::Default].map(async |settings| {
        let relay = Relay::start(&agent.socket())?;
        let driver = Driver::start(library, &relay.socket(), settings)?;
        let mut stage = Stage { library, agent: &agent, redis: &redis, relay, driver };
        let played = match settings {
            Settings::Advised => stage.advised().await,
            Settings::Default | Settings::Hasty => stage.default().await,
        };
        played.with_context(|| format!("{} with {settings:?} settings", library.name))
    });
    let [advised, default] = scenes;
    tokio::try_join!(advised, default)?;
    Ok(())
}

/// Lettuce gives up on a LOCK but keeps its connection, so the agent may grant the lock unnoticed. HOLDS shows such a
/// hold, CANCEL prevents it, and the end of the connection ends it.
pub(super) async fn lettuce_gives_up() -> Result<()> {
    let (redis, agent) = servers().await?;
    let relay = Relay::start(&agent.socket())?;
    let driver = Driver::start(&LETTUCE, &relay.socket(), Settings::Hasty)?;
    let mut stage = Stage { library: &LETTUCE, agent: &agent, redis: &redis, relay, driver };
    let mut other = agent.client().await?;
    for name in ["hasty:a", "hasty:b"] {
        other.call(&format!("LOCK {name}")).await?.ok()?;
    }
    let (session, secret) = stage.credentials("w").await?;
    for (owner, name) in [(1, "hasty:a"), (2, "hasty:b")] {
        let given_up = stage.driver.call("w", &format!("LOCK {name} OWNER {owner}")).await?;
        ensure!(given_up.error().is_some_and(|error| error.contains("timed out")), "{given_up}");
        stage.until_waiting(name).await;
    }
    // Replies keep their order: on the worker's own connection this would wait behind the LOCKs.
    let cancelled = stage.driver.call("c", &format!("CANCEL {session} {secret} OWNER 2")).await?;
    ensure!(cancelled == Reply::Int(1), "{cancelled}");
    for name in ["hasty:a", "hasty:b"] {
        other.call(&format!("UNLOCK {name}")).await?.ok()?;
    }
    eventually("the session to list the granted lock", async || {
        let holds = stage.driver.call("w", "HOLDS").await?;
        let [hold] = holds.items()? else { bail!("{holds}") };
        ensure!(hold.field("lock")?.text() == "hasty:a", "{holds}");
        Ok(())
    })
    .await;
    stage.until_free("hasty:b").await;
    stage.relay.cut();
    stage.until_free("hasty:a").await;
    Ok(())
}

/// Redis stops answering for a while and answers again in time: EVENTS and pushes report both.
pub(super) async fn jeopardy_is_reported() -> Result<()> {
    let mut redis = RedisServer::start().await?;
    // The last third of the lease must suffice to receive the warning and to recover.
    let agent = Agent::with(&redis, &["--lease", "30s"]).await?;
    let mut polling = Driver::start(&REDIS_PY, &agent.socket(), Settings::Advised)?;
    let mut pushed = Driver::start(&LETTUCE, &agent.socket(), Settings::Advised)?;
    let session = polling.call("w", "SESSION").await?.ok()?;
    let ask = format!("EVENTS {} {} WAIT 25000", session.field("id")?, session.field("secret")?);
    pushed.call("w", "SESSION PUSH on").await?.ok()?;
    polling.call("w", "LOCK polled").await?.ok()?;
    pushed.call("w", "LOCK pushed").await?.ok()?;
    redis.process().freeze().await?;
    let warning = pushed.push("w").await?;
    redis.process().thaw()?;
    let relief = pushed.push("w").await?;
    for (push, event) in [(warning, "lock-jeopardy"), (relief, "lock-safe")] {
        ensure!(push[0] == event && push[1..3] == ["pushed", "lock"], "{push:?}");
    }
    // One reply may have both events.
    let mut polled = Vec::new();
    while polled.len() < 2 {
        let events = polling.call("listener", &ask).await?.ok()?;
        ensure!(!events.items()?.is_empty(), "only {polled:?}");
        polled.extend(events.items()?.iter().map(Reply::text));
    }
    for (event, word) in polled.iter().zip(["jeopardy", "safe"]) {
        ensure!(event.starts_with(&format!("[{word}, polled, lock")), "{polled:?}");
    }
    Ok(())
}

struct Stage<'a> {
    library: &'a Library,
    agent: &'a Agent,
    redis: &'a RedisServer,
    relay: Relay,
    driver: Driver,
}

impl Stage<'_> {
    async fn advised(&mut self) -> Result<()> {
        let mut other = self.agent.client().await?;
        let (waiting, session) = self.long_wait_begins(&mut other).await?;
        self.starts_up()?;
        self.acquires_and_releases().await.context("acquiring and releasing")?;
        self.has_two_owners().await.context("two owners")?;
        self.polls_a_loss().await.context("a loss reported by EVENTS")?;
        if self.library.pushes != Pushes::Never {
            self.is_pushed_a_loss().await.context("a loss reported by a push")?;
        }
        self.long_wait_ends(&mut other, &waiting, &session).await.context("the long wait")?;
        ensure!(
            self.relay.made() <= CONNECTIONS,
            "the library has opened more connections than needed"
        );
        self.is_cut_off().await.context("a connection cut")
    }

    /// With default settings, some libraries give up on a waiting LOCK, and all reconnect after a cut. By then the
    /// locks of the session are free, and `IN` makes every command that the library sends again fail.
    async fn default(&mut self) -> Result<()> {
        let mut other = self.agent.client().await?;
        other.call("LOCK default:busy").await?.ok()?;
        let (session, _) = self.credentials("w").await?;
        self.starts_up()?;
        self.driver.call("w", &format!("LOCK default:mine IN {session}")).await?.ok()?;
        let waiting = self.driver.send("w", &format!("LOCK default:busy IN {session}")).await?;
        if self.library.impatient {
            // It waits only until the library gives up.
            eventually("the LOCK", async || {
                ensure!(self.relay.attempts("default:busy")? > 0, "it has not been sent");
                Ok(())
            })
            .await;
        } else {
            self.until_waiting("default:busy").await;
            self.relay.cut();
        }
        let reply = self.driver.reply(&waiting).await?;
        ensure!(reply.error().is_some(), "the LOCK that waited was answered {reply}");
        self.until_free("default:mine").await;
        ensure!(
            rows(&mut other, "default:busy").await?.len() == 1,
            "the waiter is still in the queue"
        );
        // The other worker releases the lock only now, so a command that the library sends again finds it free.
        other.call("UNLOCK default:busy").await?.ok()?;
        let again = format!("LOCK default:busy NOWAIT IN {session}");
        let refused = eventually("the library to have connected again", async || {
            let reply = self.driver.call("w", &again).await?;
            match reply.error() {
                Some(error) if error.contains("SESSION") => Ok(error.to_owned()),
                Some(error) => bail!("{error}"),
                None => Ok(format!("it was granted: {reply}")),
            }
        })
        .await;
        ensure!(refused.contains("SESSION"), "{refused}");
        ensure!(self.relay.made() > 1, "it has never connected again");
        self.until_free("default:busy").await;
        Ok(())
    }

    /// Checks that the library sends the expected handshake and works with it.
    fn starts_up(&self) -> Result<()> {
        let commands = self.relay.commands(0)?;
        let by_itself = commands.iter().take_while(|command| *command != "SESSION");
        let by_itself: Vec<&str> = by_itself.map(String::as_str).collect();
        let known = self.library.startup;
        let same = |(sent, known): (&&str, &&str)| match known.strip_suffix('*') {
            Some(start) => sent.starts_with(start),
            None => sent == known,
        };
        let all = by_itself.len() == known.len() && by_itself.iter().zip(known).all(same);
        ensure!(all, "on connecting it sent {by_itself:?}, not {known:?}");
        Ok(())
    }

    async fn acquires_and_releases(&mut self) -> Result<()> {
        for (command, holds) in [("LOCK day:a", 1), ("LOCK day:a", 2), ("LOCK day:a LEASE 9000", 3)]
        {
            let held = self.driver.call("day", command).await?.ok()?;
            ensure!(held.field("holds")?.int()? == holds, "{command}: {held}");
        }
        let mut other = self.agent.client().await?;
        other.call("LOCK day:b").await?.ok()?;
        for (command, reply) in [
            ("LOCK day:b NOWAIT", Reply::Null),
            ("LOCK day:b WAIT 20", Reply::Null),
            ("UNLOCK day:a", Reply::Int(2)),
            ("UNLOCK day:a", Reply::Int(1)),
            ("UNLOCK day:a", Reply::Int(0)),
        ] {
            let got = self.driver.call("day", command).await?;
            ensure!(got == reply, "{command}: {got}");
        }
        let refused = self.driver.call("day", "UNLOCK day:a").await?;
        ensure!(refused.error().is_some_and(|error| error.contains("NOTHELD")), "{refused}");
        let refused = self.driver.call("day", "LOCK day:a NOWAIT IN 0-0").await?;
        ensure!(refused.error().is_some_and(|error| error.contains("SESSION")), "{refused}");
        Ok(())
    }

    async fn has_two_owners(&mut self) -> Result<()> {
        if !self.library.shares {
            // The library runs one command at a time per connection, so these are sent as a pipeline.
            let command =
                "LOCK own OWNER 1 ; LOCK own OWNER 2 ; UNLOCK own OWNER 1 ; UNLOCK own OWNER 2";
            let replies = self.driver.call("own", command).await?;
            let [one, two, rest @ ..] = replies.items()? else { bail!("{replies}") };
            ensure!(one.field("holder")? != two.field("holder")?, "{replies}");
            ensure!(rest == [Reply::Int(0), Reply::Int(0)], "{replies}");
            return Ok(());
        }
        let one = self.driver.call("own", "LOCK own OWNER 1").await?.ok()?;
        let waiting = self.driver.send("own", "LOCK own OWNER 2").await?;
        self.until_waiting("own").await;
        ensure!(self.driver.call("own", "UNLOCK own OWNER 1").await? == Reply::Int(0));
        let two = self.driver.reply(&waiting).await?.ok()?;
        ensure!(one.field("holder")? != two.field("holder")?, "{one} and {two}");
        ensure!(self.driver.call("own", "UNLOCK own OWNER 2").await? == Reply::Int(0));
        Ok(())
    }

    async fn polls_a_loss(&mut self) -> Result<()> {
        let (session, secret) = self.credentials("lose").await?;
        let ask = format!("EVENTS {session} {secret} WAIT 25000");
        let listening = self.driver.send("listener", &ask).await?;
        self.loses("lose").await?;
        let events = self.driver.reply(&listening).await?;
        ensure!(events.text() == "[[lost, lose:a, lock, missing]]", "{events}");
        let refused = self.driver.call("lose", "UNLOCK lose:a").await?;
        ensure!(refused.error().is_some_and(|error| error.contains("LOST")), "{refused}");
        Ok(())
    }

    async fn is_pushed_a_loss(&mut self) -> Result<()> {
        self.driver.call("push", "SESSION PUSH on").await?.ok()?;
        self.loses("push").await?;
        if self.library.pushes == Pushes::AtNextUse {
            // The library finds the push at its next command, which must still succeed.
            self.until_lost("push:a").await;
            ensure!(self.driver.call("push", "PING").await?.text() == "PONG");
        }
        let push = self.driver.push("push").await?;
        ensure!(push == ["lock-lost", "push:a", "lock", "missing"], "{push:?}");
        Ok(())
    }

    /// Acquires a lock, which is then deleted directly in Redis.
    async fn loses(&mut self, connection: &str) -> Result<()> {
        self.driver.call(connection, &format!("LOCK {connection}:a")).await?.ok()?;
        let deleted = self.redis.client().await?.call(&format!("DEL {connection}:a")).await?;
        ensure!(deleted == Reply::Int(1), "{deleted}");
        Ok(())
    }

    /// Starts a LOCK that waits for another worker's lock while its session holds one.
    async fn long_wait_begins(&mut self, other: &mut Client) -> Result<(Sent, String)> {
        other.call("LOCK long:busy").await?.ok()?;
        let (session, _) = self.credentials("long").await?;
        let mine = format!("LOCK long:mine IN {session}");
        self.driver.call("long", &mine).await?.ok()?;
        let busy = format!("LOCK long:busy IN {session}");
        Ok((self.driver.send("long", &busy).await?, session))
    }

    async fn long_wait_ends(
        &mut self,
        other: &mut Client,
        waiting: &Sent,
        session: &str,
    ) -> Result<()> {
        within(PATIENCE, "the wait to be long enough", async || {
            let rows = rows(other, "long:busy").await?;
            let waiter = rows.iter().find(|row| row.state == "waiting").context("no waiter")?;
            ensure!(waiter.age_ms >= LONG, "it waits since {} ms", waiter.age_ms);
            Ok(())
        })
        .await;
        ensure!(!self.driver.has_come(waiting), "the library gave up before the lock was granted");
        other.call("UNLOCK long:busy").await?.ok()?;
        let held = self.driver.reply(waiting).await?.ok()?;
        ensure!(held.field("waited_ms")?.int()? >= LONG, "{held}");
        let holds = self.driver.call("long", "HOLDS").await?;
        ensure!(holds.items()?.len() == 2, "{holds}");
        for name in ["long:busy", "long:mine"] {
            let left = self.driver.call("long", &format!("UNLOCK {name} IN {session}")).await?;
            ensure!(left == Reply::Int(0), "{name}: {left}");
        }
        Ok(())
    }

    /// Checks that each command of the worker fails after a cut, even if the library reconnects.
    async fn is_cut_off(&mut self) -> Result<()> {
        let (session, _) = self.credentials("cut").await?;
        self.driver.call("cut", &format!("LOCK cut:a IN {session}")).await?.ok()?;
        self.relay.cut();
        self.until_free("cut:a").await;
        for command in ["LOCK cut:b NOWAIT", "UNLOCK cut:a", "EXTEND cut:a 1000", "LOCK cut:a"] {
            let refused = self.driver.call("cut", &format!("{command} IN {session}")).await?;
            ensure!(refused.error().is_some(), "{command}: {refused}");
        }
        self.until_free("cut:b").await;
        Ok(())
    }

    async fn credentials(&mut self, connection: &str) -> Result<(String, String)> {
        let reply = self.driver.call(connection, "SESSION").await?.ok()?;
        Ok((reply.field("id")?.text(), reply.field("secret")?.text()))
    }

    async fn until_waiting(&self, name: &str) {
        eventually("the LOCK to wait", async || {
            let rows = rows(&mut self.agent.client().await?, name).await?;
            ensure!(rows.iter().any(|row| row.state == "waiting"), "no waiter for {name}");
            Ok(())
        })
        .await;
    }

    async fn until_free(&self, name: &str) {
        eventually("the lock to be free in Redis", async || {
            let there = self.redis.client().await?.call(&format!("EXISTS {name}")).await?;
            ensure!(there == Reply::Int(0), "{name} is still there");
            Ok(())
        })
        .await;
    }

    async fn until_lost(&self, name: &str) {
        eventually("the loss to be noticed", async || {
            let rows = rows(&mut self.agent.client().await?, name).await?;
            ensure!(rows.is_empty(), "{name} is still held");
            Ok(())
        })
        .await;
    }
}

/// The maximum number of connections that all scenes but the last use.
const CONNECTIONS: usize = 6;

struct Row {
    state: String,
    age_ms: i64,
}

/// Returns the agent's rows with exactly this name.
async fn rows(client: &mut Client, name: &str) -> Result<Vec<Row>> {
    let reply = client.call(&format!("LOCKS MATCH {name} COUNT 1000")).await?.ok()?;
    let rows = reply.items()?[1].items()?.iter();
    rows.map(|row| {
        Ok(Row { state: row.field("state")?.text(), age_ms: row.field("age_ms")?.int()? })
    })
    .collect()
}
