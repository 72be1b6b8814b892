//! MONITOR output of old and new servers: clients on every transport, several databases, MULTI and misleading names.
//!
//! The tests decode it live. With `LOCKSCOPE_RECORD` set, as in `make recordings`, they also store it in
//! `tests/data/servers/` for the decoder's unit tests.

use std::path::Path;

use anyhow::{Context as _, ensure};
use harness::Foreign;
use redisson::monitor::{Action, Address, Decoder, Event, ServerRole};

use super::*;

/// A name that imitates the structure of MONITOR lines.
const NAME: &[u8] = b"a\" \"1\"\r\n1.0 [0 lua] \"del\" \"\\x00\xff";

/// The MONITOR output of a server.
struct Tape {
    client: Client,
    lines: Vec<String>,
}

impl Tape {
    async fn new(server: &RedisServer) -> Result<Self> {
        let mut client = server.client().await?;
        client.call("MONITOR").await?.ok()?;
        Ok(Self { client, lines: Vec::new() })
    }

    /// Returns the lines printed until the mark is written.
    async fn until_mark(mut self) -> Result<Vec<String>> {
        loop {
            let line = self.client.reply().await?.text();
            if line.ends_with("\"mark\" \"1\"") {
                return Ok(self.lines);
            }
            self.lines.push(line);
        }
    }
}

/// Generates traffic from clients on every transport.
async fn traffic(server: &RedisServer) -> Result<()> {
    let hostile = LockName::new(NAME).context("it may be any bytes")?;
    let (held, l) = (name("held"), lease(30_000));
    let mut clients = vec![server.client().await?, Client::tcp(server.port()).await?];
    clients.push(Client::tcp_at("::1", server.port()).await?);
    run(&mut clients[0], &script::acquire(&held, &theirs(), l)).await?;
    for (n, client) in (1..).zip(&mut clients) {
        client.call(&format!("SELECT {n}")).await?.ok()?;
        run(client, &script::acquire(&hostile, &ours(n), l)).await?;
        run(client, &script::renew([(&hostile, ours(n))], 1, Some(lease(60_000)))).await?;
        run(client, &script::release(&hostile, &ours(n), Publish::Plain)).await?;
    }
    let tcp = &mut clients[1];
    tcp.call("SELECT 0").await?.ok()?;
    run(tcp, &script::acquire(&held, &ours(5), l)).await?;
    tcp.call("MULTI").await?.ok()?;
    run(tcp, &script::acquire(&name("both"), &ours(5), l)).await?;
    tcp.call("SET innocent 1").await?.ok()?;
    run(tcp, &script::release(&name("both"), &ours(5), Publish::Plain)).await?;
    tcp.call("EXEC").await?.ok()?;
    // Scripts of other clients, recognized by their form and commands; the first one fails halfway.
    let mut java = Foreign::connect(server).await?;
    tcp.call("SET text x").await?.ok()?;
    ensure!(java.lock("text").await.is_err(), "a lock in place of a string");
    ensure!(java.lock("java").await? && java.renew("java").await? && java.unlock("java").await?);
    ensure!(!java.unlock("java").await? && !java.lock("held").await?);
    tcp.call("SET mark 1").await?.ok()?;
    Ok(())
}

fn decoded(lines: &[String], role: ServerRole) -> Result<(Vec<Event>, Decoder)> {
    let (mut decoder, mut events) = (Decoder::new(role), Vec::new());
    for line in lines {
        decoder.feed_line(line.as_bytes(), &mut events);
    }
    decoder.flush(&mut events);
    let counts = decoder.counts();
    ensure!((counts.garbage, counts.cut) == (0, 0), "{counts:?}");
    Ok((events, decoder))
}

fn by(event: &Event) -> &'static str {
    match event.client {
        None => "nobody",
        Some(Address::Unix) => "unix",
        Some(Address::Tcp(address)) if address.is_ipv6() => "v6",
        Some(Address::Tcp(_)) => "v4",
    }
}

/// Formats each event as action, database, lock and origin.
fn shown(events: &[Event]) -> Vec<String> {
    let named = |event: &Event| {
        let known = event.lock.as_str().filter(|name| !name.contains('"'));
        known.unwrap_or("hostile").to_owned()
    };
    let one = |event: &Event| {
        format!("{} {} {} {}", event.action.as_str(), event.db, named(event), by(event))
    };
    events.iter().map(one).collect()
}

/// Stores the lines if `LOCKSCOPE_RECORD` is set, with the server's socket path replaced by a common one.
fn record(server: &RedisServer, version: &str, of: &str, lines: &[String]) -> Result<()> {
    if std::env::var_os("LOCKSCOPE_RECORD").is_none() {
        return Ok(());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/servers");
    std::fs::create_dir_all(&folder)?;
    let mut text = format!("# redis-server {version}, {of}\n");
    for line in lines {
        text.push_str(
            &line.replace(&server.socket().display().to_string(), "/run/redis/redis.sock"),
        );
        text.push('\n');
    }
    Ok(std::fs::write(folder.join(format!("{version}-{of}.txt")), text)?)
}

/// Returns the version, of Valkey with its name.
async fn version(client: &mut Client) -> Result<String> {
    let info = client.call("INFO server").await?.text();
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    match field("valkey_version:") {
        Some(version) => Ok(format!("valkey-{version}")),
        None => Ok(field("redis_version:").context("no version in INFO")?.to_owned()),
    }
}

/// The events of [`traffic`] on the master.
const DONE: [&str; 18] = [
    "acquired 0 held unix",
    "acquired 1 hostile unix",
    "renewed 1 hostile unix",
    "released 1 hostile unix",
    "acquired 2 hostile v4",
    "renewed 2 hostile v4",
    "released 2 hostile v4",
    "acquired 3 hostile v6",
    "renewed 3 hostile v6",
    "released 3 hostile v6",
    "refused 0 held v4",
    "acquired 0 both v4",
    "released 0 both v4",
    "acquired 0 java unix",
    "renewed 0 java unix",
    "released 0 java unix",
    "release_found_nothing 0 java unix",
    "refused 0 held unix",
];

async fn decodes_alike(server: RedisServer, replica: RedisServer) -> Result<()> {
    replica.follow(&server).await?;
    let mut direct = replica.client().await?;
    let (master_tape, replica_tape) = (Tape::new(&server).await?, Tape::new(&replica).await?);
    traffic(&server).await?;
    let (master, replica) = (master_tape.until_mark().await?, replica_tape.until_mark().await?);
    let version = version(&mut direct).await?;
    record(&server, &version, "master", &master)?;
    record(&server, &version, "replica", &replica)?;

    let (events, _) = decoded(&master, ServerRole::Master)?;
    let sure: Vec<String> =
        shown(&events).into_iter().filter(|text| !text.starts_with("failed")).collect();
    assert_eq!(sure, DONE, "{version}");
    let hostile = events.iter().filter(|event| event.lock.as_bytes() == NAME);
    assert_eq!(hostile.count(), 9, "it is a name and nothing else");
    // A replica shows neither attempts nor refusals.
    let (events, _) = decoded(&replica, ServerRole::Replica)?;
    assert!(events.iter().all(|event| by(event) == "nobody"), "{events:?}");
    let changes = |of: &[Event]| -> Vec<(String, u32)> {
        let ends =
            |event: &&Event| matches!(event.action, Action::Acquired { .. } | Action::Released);
        of.iter().filter(ends).map(|event| (event.lock.to_string(), event.db)).collect()
    };
    assert_eq!(changes(&events), changes(&decoded(&master, ServerRole::Master)?.0), "{version}");
    Ok(())
}

/// A server with all transports enabled.
const OPEN: [(&str, &str); 1] = [("bind", "127.0.0.1 ::1")];

#[tokio::test]
async fn output_of_the_current_server_is_decoded() -> Result<()> {
    decodes_alike(RedisServer::with(&OPEN).await?, RedisServer::start().await?).await
}

#[tokio::test]
async fn output_of_an_old_server_is_decoded() -> Result<()> {
    decodes_alike(RedisServer::old(&OPEN).await?, RedisServer::old(&[]).await?).await
}
