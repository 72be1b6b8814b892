//! `lockscope-dashboard doctor` on real servers: its findings, its exit status, and that it changes nothing.

use std::path::Path;
use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, Client, RedisCluster, RedisServer, Sentinels, eventually, process, programs};
use serde_json::Value;

use super::HOLDER;
use crate::secure::documented_users;

/// Settings under which the doctor finds no risk in a server.
const SOUND: [(&str, &str); 3] = [
    ("appendonly", "yes"),
    ("notify-keyspace-events", "KEA"),
    ("client-output-buffer-limit", "normal 32mb 0 0"),
];
/// A holder of another client than that of [`HOLDER`].
const STRANGER: &str = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d:7";
/// A client that is in no holder registry.
const UNPUBLISHED: &str = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed";

/// Runs the command to its end, outside the runtime's threads.
async fn run(url: &str, flags: &[&str]) -> Result<Output> {
    let mut command = process::command(&programs::path("lockscope-dashboard")?);
    command.args(["doctor", "--redis-url", url]).args(flags);
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

/// Returns the report in JSON, with the exit status.
async fn report(url: &str, flags: &[&str]) -> Result<(Value, i32)> {
    let output = run(url, &[flags, &["--json"]].concat()).await?;
    let text = String::from_utf8(output.stdout)?;
    let report: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    let status = output.status.code().context("it was killed")?;
    assert_eq!(report["exit_status"], status, "{text}");
    Ok((report, status))
}

fn findings(report: &Value) -> Vec<&Value> {
    report["findings"].as_array().into_iter().flatten().collect()
}

/// Returns the finding of this kind about this name; an empty name is for a finding about a server.
fn finding<'a>(report: &'a Value, id: &str, name: &str) -> Result<&'a Value> {
    let is = |found: &&Value| found["id"] == id && found["name"].as_str().unwrap_or("") == name;
    findings(report).into_iter().find(is).with_context(|| format!("no {id} `{name}`: {report:#}"))
}

/// Runs the command of redis-cli that a finding advises, and returns what it prints.
async fn run_command(finding: &Value) -> Result<String> {
    let advice = finding["next_step"].as_str().unwrap_or_default();
    let line = advice.split('`').find(|part| part.starts_with("redis-cli "));
    let mut shell = process::command(Path::new("bash"));
    shell.args(["-c", line.with_context(|| format!("no command: {finding}"))?]);
    let output = tokio::task::spawn_blocking(move || shell.output()).await??;
    Ok(String::from_utf8(output.stdout)?)
}

fn ids(report: &Value) -> Vec<String> {
    let ids = findings(report).into_iter();
    ids.map(|found| found["id"].as_str().unwrap_or_default().to_owned()).collect()
}

async fn all(direct: &mut Client, commands: &[String]) -> Result<()> {
    for command in commands {
        direct.call(command).await?.ok().context(command.clone())?;
    }
    Ok(())
}

/// Returns every key with its value and whether it has a TTL, to detect changes.
async fn contents(direct: &mut Client) -> Result<Vec<String>> {
    let keys = direct.call("KEYS *").await?.ok()?;
    let mut contents = Vec::new();
    for key in keys.items()? {
        let key = key.text();
        let dump = direct.call_args(&["DUMP", &key]).await?.ok()?;
        let expires = direct.call_args(&["EXPIRETIME", &key]).await?.ok()?;
        contents.push(format!("{key}: {dump:?} {expires:?}"));
    }
    contents.sort();
    Ok(contents)
}

#[tokio::test]
async fn a_sound_server_with_ten_thousand_locks_has_no_findings() -> Result<()> {
    let redis = RedisServer::with(&SOUND).await?;
    let mut direct = redis.client().await?;
    let script = format!(
        "for i = 1, 10000 do redis.call('HSET', 'job:' .. i, '{HOLDER}', 1) redis.call('PEXPIRE', 'job:' .. i, 600000) \
         redis.call('HSET', 'user:' .. i, 'name', i) redis.call('SET', 'text:' .. i, i) end"
    );
    direct.call_args(&["EVAL", &script, "0"]).await?.ok()?;
    // The commands of the script above count as load.
    let (report, status) = report(&redis.url(), &["--monitor-max-ops", "10000000"]).await?;
    assert_eq!((ids(&report), status), (Vec::new(), 0), "{report:#}");
    let database = &report["databases"][0];
    assert_eq!((&database["locks"], &database["keys"]), (&10_000.into(), &30_000.into()));
    assert_eq!(database["by_kind"]["lock"], 10_000);
    assert_eq!((&database["without_ttl"], &database["complete"]), (&0.into(), &true.into()));
    assert_eq!(report["cost"]["keys"], 30_000);
    ensure!(report["cost"]["commands"].as_u64() > Some(40_000), "{}", report["cost"]);
    let text = String::from_utf8(run(&redis.url(), &[]).await?.stdout)?;
    ensure!(text.contains("10,000 locks held: 10,000 lock; 30,000 keys"), "{text}");
    let stats = direct.call("INFO commandstats").await?.text();
    for forbidden in ["monitor", "config|set", "del", "publish", "keys", "hgetall"] {
        ensure!(!stats.contains(&format!("cmdstat_{forbidden}:")), "{forbidden}: {stats}");
    }
    Ok(())
}

#[tokio::test]
async fn leaks_orphans_and_lookalikes_are_found_with_evidence_and_nothing_is_changed() -> Result<()>
{
    let redis = RedisServer::with(&SOUND).await?;
    let mut direct = redis.client().await?;
    let commands = [
        format!("HSET sound {HOLDER} 1"),
        "PEXPIRE sound 600000".to_owned(),
        format!("HSET leaked {HOLDER} 2"),
        format!("HSET suspected {STRANGER} 1"),
        format!("HSET awaited {STRANGER} 1"),
        format!("HSET malformed {HOLDER} 0"),
        "PEXPIRE malformed 600000".to_owned(),
        format!("HSET scores {STRANGER} 3 {STRANGER}1 4"),
        format!("RPUSH redisson_lock_queue:{{orphan}} {HOLDER}"),
        format!("ZADD redisson_lock_timeout:{{orphan}} 1000 {HOLDER}"),
        format!("HSET fair {HOLDER} 1"),
        "PEXPIRE fair 600000".to_owned(),
        format!("RPUSH redisson_lock_queue:{{fair}} {STRANGER}"),
        format!("ZADD redisson_lock_timeout:{{fair}} 1000 {STRANGER}"),
        "SET redisson_unlock_latch:{x}:1 1".to_owned(),
        format!("SET {{reader}}:{HOLDER}:rwlock_timeout:1 1"),
        "SET redisson_lock_token:{fenced} 7".to_owned(),
        "HSET application name a mail b".to_owned(),
    ];
    all(&mut direct, &commands).await?;
    direct.call_args(&["HSET", "<script>\n\u{1b}[31m", HOLDER, "1"]).await?.ok()?;
    let mut waiter = redis.client().await?;
    waiter.call("SUBSCRIBE redisson_lock__channel:{awaited}").await?.ok()?;
    let before = contents(&mut direct).await?;
    let (report, status) = report(&redis.url(), &[]).await?;
    assert_eq!(status, 2, "{report:#}");
    assert_eq!(contents(&mut direct).await?, before, "it only reads");

    let leaked = finding(&report, "leaked", "leaked")?;
    assert_eq!((&leaked["severity"], &leaked["certainty"]), (&"problem".into(), &"certain".into()));
    assert_eq!(leaked["holders"], Value::from(vec![HOLDER]));
    let evidence = leaked["evidence"].as_str().unwrap_or_default();
    ensure!(evidence.contains("also holds 3 locks with a TTL"), "{evidence}");
    ensure!(evidence.contains("(count 2)") && evidence.contains("last used"), "{evidence}");
    let suspected = finding(&report, "leaked", "suspected")?;
    assert_eq!(
        (&suspected["severity"], &suspected["certainty"]),
        (&"warning".into(), &"suspected".into())
    );
    let awaited = finding(&report, "leaked", "awaited")?;
    ensure!(
        awaited["evidence"].as_str().is_some_and(|e| e.contains("1 connection waits")),
        "{awaited}"
    );
    finding(&report, "leaked", "<script>\\n\\u{1b}[31m")?;
    finding(&report, "malformed", "malformed")?;
    finding(&report, "look_alike", "scores")?;
    finding(&report, "orphan", "orphan")?;
    finding(&report, "dead_waiter", "fair")?;
    finding(&report, "orphan", "redisson_unlock_latch:{x}:1")?;
    finding(&report, "orphan", &format!("{{reader}}:{HOLDER}:rwlock_timeout:1"))?;
    finding(&report, "tokens", "")?;
    assert_eq!(findings(&report).len(), 11, "{report:#}");
    for (id, name, prints) in [
        ("leaked", "leaked", format!("{HOLDER}\n2\n")),
        ("leaked", "<script>\\n\\u{1b}[31m", format!("{HOLDER}\n1\n")),
        ("orphan", "orphan", format!("{HOLDER}\n")),
        ("orphan", "redisson_unlock_latch:{x}:1", "1\n".to_owned()),
    ] {
        assert_eq!(run_command(finding(&report, id, name)?).await?, prints, "{id} {name}");
    }
    let output = run(&redis.url(), &["--limit", "1"]).await?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(text.contains("PROBLEM  leaked  <script>\\n\\u{1b}[31m\n"), "{text}");
    ensure!(text.contains("and 2 more leaked (--limit)"), "{text}");
    ensure!(!text.contains('\u{1b}'), "{text}");
    let places: Vec<_> = ["PROBLEM ", "WARNING ", "NOTE "].map(|word| text.find(word)).into();
    ensure!(places.is_sorted() && places.iter().all(Option::is_some), "worst first: {text}");
    Ok(())
}

#[tokio::test]
async fn the_markers_of_readers_are_compared_with_locks_outside_the_pattern() -> Result<()> {
    let redis = RedisServer::with(&SOUND).await?;
    let mut direct = redis.client().await?;
    let held = format!("{{prices}}:{HOLDER}:rwlock_timeout:1");
    let orphan = format!("{{prices}}:{STRANGER}:rwlock_timeout:1");
    let commands = [
        format!("HSET prices mode read {HOLDER} 1"),
        "PEXPIRE prices 600000".to_owned(),
        format!("SET {held} 1 PX 600000"),
        format!("SET {orphan} 1 PX 600000"),
        format!("HSET fenced {HOLDER} 1"),
        "PEXPIRE fenced 600000".to_owned(),
        "SET redisson_lock_token:{fenced} 7".to_owned(),
    ];
    all(&mut direct, &commands).await?;
    for flags in [&[][..], &["--scan-match", "orders:*"]] {
        let (report, status) = report(&redis.url(), flags).await?;
        assert_eq!((ids(&report), status), (vec!["orphan".to_owned()], 1), "{report:#}");
        finding(&report, "orphan", &orphan)?;
    }
    let (report, status) = report(&redis.url(), &["--ignore", "prices"]).await?;
    assert_eq!((ids(&report), status), (Vec::new(), 0), "{report:#}");
    Ok(())
}

#[tokio::test]
async fn the_holder_registry_distinguishes_living_holders_from_gone_ones() -> Result<()> {
    let redis = RedisServer::with(&SOUND).await?;
    let mut direct = redis.client().await?;
    let agent = Agent::start(&redis).await?;
    let mut worker = agent.client().await?;
    worker.call("LOCK held").await?.ok()?;
    let holder = direct.call("HKEYS held").await?.items()?[0].text();
    let (client, number) = holder.rsplit_once(':').context("no holder")?;
    let entry = format!("HEXISTS lockscope:holders:{{{client}}} {number}");
    eventually("the holder to be published", async || {
        let published = direct.call(&entry).await?.ok()?;
        ensure!(published.text() == "1", "{published:?}");
        Ok(())
    })
    .await;
    let all_holds = [
        format!("HSET copied {holder} 1"),
        // The thread numbers of agents are that large.
        format!("HSET unknown {client}:1932735283200000007 1"),
        "PEXPIRE unknown 3600000".to_owned(),
        "HSET gone 9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d:1932735283200000007 1".to_owned(),
        "PEXPIRE gone 3600000".to_owned(),
        "SET lockscope:agent:{9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d}:trace 1 PX 3600000".to_owned(),
        // Its agent may not publish itself.
        format!("HSET unpublished {UNPUBLISHED}:1932735283200000007 1"),
        "PEXPIRE unpublished 3600000".to_owned(),
    ];
    all(&mut direct, &all_holds).await?;
    let (report, _) = report(&redis.url(), &[]).await?;
    let evidence = |name: &str| -> Result<(Value, String)> {
        let found = finding(&report, "leaked", name)?;
        Ok((found["certainty"].clone(), found["evidence"].to_string()))
    };
    let (certainty, copied) = evidence("copied")?;
    ensure!(certainty == "certain" && copied.contains("its agent reports process"), "{copied}");
    let (certainty, unknown) = evidence("unknown")?;
    ensure!(certainty == "suspected" && unknown.contains("reports no such holder"), "{unknown}");
    let (certainty, gone) = evidence("gone")?;
    ensure!(certainty == "suspected" && gone.contains("not in the holder registry"), "{gone}");
    assert_eq!(findings(&report).len(), 3, "{report:#}");
    Ok(())
}

#[tokio::test]
async fn the_fields_of_the_json_report_are_stable() -> Result<()> {
    let redis = RedisServer::with(&SOUND).await?;
    redis.client().await?.call(&format!("HSET leaked {STRANGER} 1")).await?.ok()?;
    let (report, status) = report(&redis.url(), &["--limit", "1"]).await?;
    assert_eq!((status, &report["schema"]), (1, &1.into()));
    let keys = |value: &Value| -> Vec<String> {
        value.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
    };
    let sorted = |names: &str| -> Vec<String> {
        let mut names: Vec<String> = names.split(' ').map(str::to_owned).collect();
        names.sort();
        names
    };
    for (part, names) in [
        (&report, "schema version exit_status servers databases findings omitted unreachable cost"),
        (
            &report["servers"][0],
            "deployment server version role replicas clients commands_per_second input_bytes_per_second monitor_bytes_per_second",
        ),
        (
            &report["databases"][0],
            "deployment server db keys locks by_kind without_ttl longest_ttl contended complete",
        ),
        (
            &report["findings"][0],
            "id severity certainty deployment server db name holders evidence next_step",
        ),
        (&report["cost"], "keys commands seconds server_seconds"),
    ] {
        let mut found = keys(part);
        found.sort();
        assert_eq!(found, sorted(names));
    }
    Ok(())
}

#[tokio::test]
async fn settings_of_the_server_that_endanger_locks_are_found() -> Result<()> {
    let settings = [("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")];
    let redis = RedisServer::with(&settings).await?;
    let mut direct = redis.client().await?;
    direct.call("SELECT 2").await?.ok()?;
    direct.call("SET elsewhere 1").await?.ok()?;
    let (report, status) = report(&redis.url(), &[]).await?;
    assert_eq!(status, 2, "{report:#}");
    let found = ids(&report);
    let wanted = [
        "evicts",
        "persistence_off",
        "unchecked_databases",
        "notifications_off",
        "monitor_unbounded",
    ];
    assert_eq!(found, wanted, "{report:#}");
    let evicts = finding(&report, "evicts", "")?["evidence"].to_string();
    ensure!(evicts.contains("allkeys-lru") && evicts.contains("100 MiB"), "{evicts}");
    Ok(())
}

#[tokio::test]
async fn the_documented_observer_suffices_and_another_account_gets_its_missing_rights() -> Result<()>
{
    let redis = RedisServer::with(&SOUND).await?;
    let mut direct = redis.client().await?;
    documented_users(&mut direct, false).await?;
    direct.call(&format!("HSET leaked {HOLDER} 1")).await?.ok()?;
    let as_user = |user: &str, password: &str| {
        redis.url().replace("redis://", &format!("redis://{user}:{password}@"))
    };
    let (full, _) = report(&as_user("lockscope-observer", "observer-password"), &[]).await?;
    let lacks = |report: &Value| {
        ids(report).into_iter().filter(|id| id.starts_with("account_")).collect::<Vec<_>>()
    };
    assert_eq!(lacks(&full), [""; 0], "{full:#}");
    finding(&full, "leaked", "leaked")?;

    let little = "ACL SETUSER little on >secret resetkeys %R~orders:* resetchannels -@all +ping +info +scan +type +exists +hlen \
                  +hrandfield +hstrlen +hmget +pttl +multi +exec +dbsize +psubscribe +subscribe";
    direct.call(little).await?.ok()?;
    direct.call(&format!("HSET orders:1 {HOLDER} 1")).await?.ok()?;
    let (report_of_little, status) = report(&as_user("little", "secret"), &[]).await?;
    assert_eq!(status, 1, "{report_of_little:#}");
    finding(&report_of_little, "leaked", "orders:1")?;
    assert_eq!(lacks(&report_of_little), ["account_commands", "account_keys", "account_channels"]);
    let commands = finding(&report_of_little, "account_commands", "")?["next_step"].to_string();
    for rule in ["SETUSER little ", "'+client|list'", "'+memory|usage'", "'+time'", "'+config|get'"]
    {
        ensure!(commands.contains(rule), "{rule}: {commands}");
    }
    ensure!(!commands.contains("'+scan'"), "{commands}");
    let keys = finding(&report_of_little, "account_keys", "")?;
    ensure!(keys["evidence"].to_string().contains("1 of 2 hashes"), "{keys}");
    let channels = finding(&report_of_little, "account_channels", "")?["next_step"].to_string();
    ensure!(channels.contains("'&redisson_lock__channel:*' '&redisson_rwlock:*'"), "{channels}");

    direct.call("ACL SETUSER blind on >secret ~* &* -@all +ping +info").await?.ok()?;
    let (blind, status) = report(&as_user("blind", "secret"), &[]).await?;
    assert_eq!((status, &blind["databases"]), (2, &Value::Array(Vec::new())));
    ensure!(
        finding(&blind, "account_commands", "")?["evidence"].to_string().contains("were not read")
    );

    direct.call("ACL SETUSER no-exec on >secret ~* &* +@all -exec").await?.ok()?;
    let (no_exec, status) = report(&as_user("no-exec", "secret"), &[]).await?;
    assert_eq!(status, 2, "{no_exec:#}");
    let commands = finding(&no_exec, "account_commands", "")?["next_step"].to_string();
    ensure!(commands.contains("'+exec'"), "{commands}");

    let narrow = "ACL SETUSER narrow on >secret &* +@all ~lockscope-doctor ~orders:* ~leaked ~redisson_* ~{* ~lockscope:agent:* \
                  ~lockscope:holders:*";
    direct.call(narrow).await?.ok()?;
    let (narrow, _) = report(&as_user("narrow", "secret"), &[]).await?;
    let keys = finding(&narrow, "account_keys", "")?["next_step"].to_string();
    ensure!(keys.contains(" '%R~lockscope:waiters:*'"), "{keys}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_hangs_or_is_gone_ends_it_with_an_error() -> Result<()> {
    let mut redis = RedisServer::with(&SOUND).await?;
    redis.process().freeze().await?;
    let url = redis.url();
    let (text, json) = tokio::join!(run(&url, &[]), run(&url, &["--json"]));
    for output in [text?, json?] {
        let error = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(69), "{error}");
        ensure!(
            error.starts_with("error: cannot check 127.0.0.1:")
                && error.contains("no reply within 10s"),
            "{error}"
        );
    }
    redis.process().thaw()?;
    redis.process().kill()?;
    let (gone, status) = report(&redis.url(), &[]).await?;
    assert_eq!(status, 69);
    ensure!(
        gone["unreachable"][0]["reason"].to_string().contains("Connection refused"),
        "{gone:#}"
    );
    let output = run("redis://127.0.0.1:1", &["--limit", "none"]).await?;
    assert_eq!(output.status.code(), Some(64));
    Ok(())
}

#[tokio::test]
async fn a_server_that_hangs_in_the_middle_ends_it_with_an_error() -> Result<()> {
    let mut redis = RedisServer::with(&SOUND).await?;
    let mut direct = redis.client().await?;
    // At a hundred keys per second, the pass takes minutes.
    let script = "for i = 1, 20000 do redis.call('SET', 'key:' .. i, 1) end";
    direct.call_args(&["EVAL", script, "0"]).await?.ok()?;
    let url = redis.url();
    let running = tokio::spawn(async move { run(&url, &["--scan-rate", "100"]).await });
    // One SCAN tries whether the account may do that.
    eventually("the third call of the pass", async || {
        let stats = direct.call("INFO commandstats").await?.text();
        let calls = stats.split("cmdstat_scan:calls=").nth(1);
        let calls: u32 = calls.and_then(|rest| rest.split(',').next()).context("none")?.parse()?;
        ensure!(calls > 3, "{stats}");
        Ok(())
    })
    .await;
    redis.process().freeze().await?;
    let output = running.await??;
    let error = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(69), "{error}");
    ensure!(error.contains("the connection was lost during the pass"), "{error}");
    Ok(())
}

#[tokio::test]
async fn the_master_that_sentinels_report_is_checked_with_its_replicas() -> Result<()> {
    let mut sentinels = Sentinels::start(3).await?;
    sentinels.client(0).await?.call(&format!("HSET leaked {HOLDER} 1")).await?.ok()?;
    sentinels.until_replicated("leaked").await?;
    let (master, _) = report(&sentinels.url(), &[]).await?;
    assert_eq!(master["servers"][0]["server"], sentinels.address(0));
    assert_eq!(master["servers"][0]["replicas"], 1);
    finding(&master, "leaked", "leaked")?;
    finding(&master, "replicas_not_required", "")?;
    let replica = sentinels.node(1).url();
    let (replica, _) = report(&replica, &[]).await?;
    finding(&replica, "is_replica", "")?;
    Ok(())
}

#[tokio::test]
async fn every_master_of_a_cluster_is_checked() -> Result<()> {
    let cluster = RedisCluster::start(3, 0).await?;
    let names = cluster.names("leaked:");
    for (place, name) in names.iter().enumerate() {
        let mut node = cluster.client(place).await?;
        node.call(&format!("HSET {name} {STRANGER} 1")).await?.ok()?;
    }
    // A subscriber of another node proves that it is a lock.
    let mut waiter = cluster.client(1).await?;
    waiter.call(&format!("SUBSCRIBE redisson_lock__channel:{{{}}}", names[0])).await?.ok()?;
    let (report, status) = report(&cluster.url(), &[]).await?;
    assert_eq!(status, 2, "{report:#}");
    assert_eq!(report["servers"].as_array().map(Vec::len), Some(3));
    assert_eq!(finding(&report, "leaked", &names[0])?["certainty"], "certain");
    assert_eq!(finding(&report, "leaked", &names[1])?["certainty"], "suspected");
    for name in &names {
        let printed = run_command(finding(&report, "leaked", name)?).await?;
        ensure!(printed.ends_with("\n1\n"), "{name}: {printed}");
    }
    // The plain URL of a node finds the locks of that node only.
    let url = cluster.url().replace("redis+cluster://", "redis://");
    let (node, _others) = url.split_once(',').context("there is one node")?;
    let (one, _) = self::report(node, &[]).await?;
    let advice = finding(&one, "incomplete", "")?["next_step"].to_string();
    ensure!(advice.contains("redis+cluster://"), "{one:#}");
    Ok(())
}

#[tokio::test]
async fn an_old_server_is_read_as_well() -> Result<()> {
    let redis = RedisServer::old(&[("appendonly", "yes")]).await?;
    redis.client().await?.call(&format!("HSET leaked {STRANGER} 1")).await?.ok()?;
    let (report, status) = report(&redis.url(), &[]).await?;
    assert_eq!(status, 1, "{report:#}");
    finding(&report, "leaked", "leaked")?;
    ensure!(report["servers"][0]["version"].to_string().contains("Redis 6.2"), "{report:#}");
    Ok(())
}

#[tokio::test]
async fn a_pass_that_reaches_its_limit_says_so() -> Result<()> {
    let redis = RedisServer::with(&SOUND).await?;
    let mut direct = redis.client().await?;
    let script = format!(
        "for i = 1, 500 do redis.call('HSET', 'job:' .. i, '{HOLDER}', 1) redis.call('PEXPIRE', 'job:' .. i, 600000) end"
    );
    direct.call_args(&["EVAL", &script, "0"]).await?.ok()?;
    let (report, status) = report(&redis.url(), &["--max-locks", "100"]).await?;
    assert_eq!((status, ids(&report)), (1, vec!["incomplete".to_owned()]), "{report:#}");
    assert_eq!(report["databases"][0]["complete"], false);
    Ok(())
}

#[tokio::test]
async fn commands_that_the_server_does_not_offer_are_a_note() -> Result<()> {
    let without = [("rename-command", "CONFIG "), ("rename-command", "MEMORY ")];
    let redis = RedisServer::with(&without).await?;
    let (report, status) = report(&redis.url(), &[]).await?;
    let missing = finding(&report, "commands_missing", "")?;
    assert_eq!((&missing["severity"], status), (&Value::from("note"), 0), "{report:#}");
    let evidence = missing["evidence"].to_string();
    ensure!(evidence.contains("does not offer CONFIG GET, MEMORY USAGE"), "{evidence}");
    Ok(())
}
