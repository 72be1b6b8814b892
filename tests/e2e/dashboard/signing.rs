//! Agents that sign what they publish, and a dashboard that verifies it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use harness::{Agent, http};
use serde_json::Value;

use super::Bench;

/// A key that was made for this test, and its public key.
const SECRET: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
";
const PUBLIC: &str = "MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";

/// Returns the process behind the holder, as the API shows it.
fn process(lock: &Value) -> &Value {
    &lock["holders"][0]["client"]
}

#[tokio::test]
async fn what_an_agent_signs_is_verified_and_the_rest_is_only_claimed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (secret, keys) = (folder.path().join("agent.key"), folder.path().join("agents.keys"));
    std::fs::write(&secret, SECRET)?;
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
    std::fs::write(&keys, format!("web-1 {PUBLIC}\n"))?;
    let file = keys.to_string_lossy();
    let flags = ["--monitor", "off", "--scan-every", "1s", "--agent-keys-file", &*file];
    let mut bench = Bench::with(&flags).await?;
    let signing =
        Agent::with(&bench.redis, &["--signing-key-file", &*secret.to_string_lossy()]).await?;
    let other = Agent::start(&bench.redis).await?;
    let mut workers = Vec::new();
    for (agent, lock) in [(&signing, "signed"), (&other, "unsigned")] {
        let mut holder = agent.client().await?;
        holder.call(&format!("LOCK {lock}")).await?.ok()?;
        workers.push(holder);
    }
    let pid = u64::from(std::process::id());
    let signed = bench.listed("signed", |lock| process(lock)["verified"] == true).await;
    ensure!(process(&signed)["signed_by"] == "web-1", "{signed}");
    ensure!(process(&signed)["pid"] == pid, "{signed}");
    let unsigned = bench.listed("unsigned", |lock| process(lock)["verified"] == false).await;
    ensure!(process(&unsigned)["unverified_because"] == "it is not signed", "{unsigned}");
    ensure!(process(&unsigned)["pid"] == pid, "it is displayed: {unsigned}");
    for (lock, words) in [("signed", "verified by key web-1"), ("unsigned", "only claimed")] {
        let page = http::get(bench.dashboard.port(), &format!("/lock?name={lock}")).await?;
        ensure!(page.body.contains(words), "{}", page.body);
    }

    // The waiters of the other agent count as the one connection that listens for the release.
    for (agent, expected) in [(&signing, (1, true)), (&other, (2, false)), (&other, (2, false))] {
        let mut waiter = agent.client().await?;
        waiter.send("LOCK signed").await?;
        workers.push(waiter);
        let counts = |lock: &Value| (lock["waiting"].as_u64(), lock["waiters_exact"].as_bool());
        let expected = (Some(expected.0), Some(expected.1));
        let lock = bench.listed("signed", |lock| counts(lock) == expected).await;
        ensure!(lock["waiters"].as_array().is_some_and(|named| named.len() == 1), "{lock}");
    }

    // An entry that someone copies to another hold does not verify there.
    let place = |lock: &Value| {
        let id = lock["holders"][0]["id"].as_str().and_then(|id| id.split_once(':'));
        let (agent, number) = id.context("the holder is no agent's")?;
        Ok::<_, anyhow::Error>((format!("lockscope:holders:{{{agent}}}"), number.to_owned()))
    };
    let ((from, signed), (to, unsigned)) = (place(&signed)?, place(&unsigned)?);
    let entry = bench.direct.call(&format!("HGET {from} {signed}")).await?.text();
    bench.direct.call_args(&["HSET", &to, &unsigned, &entry]).await?.ok()?;
    let mismatch =
        |lock: &Value| process(lock)["unverified_because"] == "its signature does not match";
    bench.listed("unsigned", mismatch).await;

    // The keys are read again when their file changes.
    std::fs::write(&keys, format!("web-7 {PUBLIC}\n"))?;
    bench.listed("signed", |lock| process(lock)["signed_by"] == "web-7").await;
    Ok(())
}
