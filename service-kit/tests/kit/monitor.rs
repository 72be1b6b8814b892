//! Tests of MONITOR, as the server sends it.

use std::time::Duration;

use service_kit::redis::{Monitor, MonitorError, OutputClass};

use crate::server::Server;
use crate::{in_time, target};

const LIMIT: Duration = Duration::from_secs(10);
const NORMAL: OutputClass = OutputClass::Normal;

/// Reads until `wanted` appears.
async fn read_until(monitor: &mut Monitor, wanted: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        let bytes = in_time("lines", monitor.read()).await.unwrap();
        seen += &String::from_utf8_lossy(bytes);
    }
    seen
}

#[tokio::test]
async fn every_command_is_reported_once() {
    let server = Server::start(&[]).await;
    let mut monitor =
        Monitor::open(&target(&server.url()).into(), "monitor", LIMIT, NORMAL).await.unwrap();
    assert!(monitor.info().version.is_some());
    let clients = server.ask::<String>(&["CLIENT", "LIST"]);
    let own = format!("id={} ", monitor.id().unwrap());
    let own = clients.lines().find(|client| client.starts_with(&own)).expect("it is in the list");
    assert!(own.contains("name=monitor") && own.contains("flags=O"), "{own}");
    let large = "x".repeat(300_000);
    server.ask::<String>(&["SET", "large", &large]);
    server.ask::<String>(&["SET", "last", "1"]);
    let seen = read_until(&mut monitor, "\"last\" \"1\"\r\n").await;
    assert_eq!(seen.matches("\"SET\"").count(), 2);
    assert_eq!(seen.matches(&large).count(), 1);
    assert!(seen.starts_with('+') && !seen.contains("+OK"), "only lines are given");
}

#[tokio::test]
async fn a_missing_permission_and_the_end_are_reported() {
    let server = Server::with_user("tapper", "on >pw ~* +@all -monitor").await;
    let url = server.url().replace("redis://", "redis://tapper:pw@");
    let denied = Monitor::open(&target(&url).into(), "monitor", LIMIT, NORMAL).await.unwrap_err();
    assert!(matches!(&denied, MonitorError::Denied(error) if error.code == "NOPERM"), "{denied}");
    let wrong = server.url().replace("redis://", "redis://tapper:wrong@");
    let denied = Monitor::open(&target(&wrong).into(), "monitor", LIMIT, NORMAL).await.unwrap_err();
    assert!(matches!(denied, MonitorError::Denied(_)), "{denied}");

    let server = Server::start(&[]).await;
    let mut monitor =
        Monitor::open(&target(&server.url()).into(), "monitor", LIMIT, NORMAL).await.unwrap();
    let id = monitor.id().unwrap().to_string();
    server.ask::<i64>(&["CLIENT", "KILL", "ID", &id]);
    let ended = loop {
        match in_time("the end", monitor.read()).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(ended, MonitorError::Ended(_)), "{ended}");
    let url = server.url();
    drop(server);
    let failed = Monitor::open(&target(&url).into(), "monitor", LIMIT, NORMAL).await.unwrap_err();
    assert!(matches!(failed, MonitorError::Failed(_)), "{failed}");
}

#[tokio::test]
async fn a_subscribed_monitor_that_stalls_is_ended_by_the_default_limit_of_subscribers() {
    let server = Server::start(&[]).await;
    let endpoint = target(&server.url()).into();
    let mut monitor =
        Monitor::open(&endpoint, "monitor", LIMIT, OutputClass::PubSub).await.unwrap();
    server.ask::<String>(&["SET", "first", "1"]);
    let seen = read_until(&mut monitor, "\"first\" \"1\"\r\n").await;
    assert!(!seen.contains("*3") && !seen.contains("psubscribe\r"), "only lines are given: {seen}");
    assert_eq!(server.ask::<i64>(&["PUBLISH", "lockscope:monitor[]", "forged"]), 0);

    let own = format!("id={} ", monitor.id().unwrap());
    let large = "x".repeat(1_000_000);
    let mut most = 0_u64;
    for _ in 0..200 {
        server.ask::<String>(&["SET", "large", &large]);
        let clients = server.ask::<String>(&["CLIENT", "LIST"]);
        let Some(client) = clients.lines().find(|client| client.starts_with(&own)) else { break };
        let memory = client.split(' ').find_map(|field| field.strip_prefix("omem="));
        most = most.max(memory.unwrap().parse().unwrap());
    }
    assert!(!server.ask::<String>(&["CLIENT", "LIST"]).contains(&own), "{most} bytes are unread");
    assert!(most > 8 << 20, "it was behind: {most}");
    assert!(most <= 32 << 20, "{most} bytes were unread");
}
