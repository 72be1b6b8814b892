//! Tests of a link while Redis, or the network to it, fails.

use std::time::Duration;

use redis::{Value, cmd};
use service_kit::redis::{CallError, Link, LinkOptions, LinkStatus};
use service_kit::shutdown::Shutdown;
use tokio::time::Instant;

use crate::proxy::Proxy;
use crate::server::Server;
use crate::{DEADLINE, down, eventually, in_time, link_options, patient_link, target, up};

fn start(url: &str, shutdown: &Shutdown) -> Link {
    Link::start(target(url), link_options(), shutdown)
}

fn reason_of(error: &CallError) -> &str {
    match error {
        CallError::Unsent { reason } | CallError::Lost { reason } => reason,
        CallError::Refused(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_frozen_server_is_noticed_by_an_idle_link() {
    let mut server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = start(&server.url(), &shutdown);
    up(&link).await;
    server.process().freeze().await.unwrap();
    down(&link, "no reply within 300ms").await;
    let before = link.state().borrow().generation;
    server.process().thaw().unwrap();
    up(&link).await;
    assert!(link.state().borrow().generation > before);
    // The short limit may end that connection, too.
    let pong = Ok(Value::SimpleString("PONG".to_owned()));
    eventually("a call is answered", async || link.call(cmd("PING")).await == pong).await;
}

#[tokio::test]
async fn with_a_frozen_server_all_calls_in_flight_end_as_lost() {
    let mut server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    // There is no heartbeat in time: the calls themselves must notice, and all are sent before the first one does.
    let options = LinkOptions {
        heartbeat: DEADLINE,
        response_timeout: Duration::from_secs(3),
        ..link_options()
    };
    let link = Link::start(target(&server.url()), options, &shutdown);
    up(&link).await;
    server.process().freeze().await.unwrap();
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let link = link.clone();
            tokio::spawn(async move { link.call(cmd("INCR").arg("k").to_owned()).await })
        })
        .collect();
    for call in calls {
        let error = in_time("the call ends", call).await.unwrap().unwrap_err();
        assert!(error.is_lost(), "{error}");
        assert_eq!(reason_of(&error), "no reply within 3s");
    }
    // The lost calls have closed the connection.
    let status = link.state().borrow().status.clone();
    assert!(matches!(status, LinkStatus::Down { .. }), "{status:?}");
    let error = link.call(cmd("PING")).await.unwrap_err();
    assert!(matches!(error, CallError::Unsent { .. }), "{error}");
    server.process().thaw().unwrap();
    up(&link).await;
}

#[tokio::test]
async fn the_first_call_that_times_out_ends_the_younger_ones_too() {
    let mut server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let options = LinkOptions {
        heartbeat: DEADLINE,
        response_timeout: Duration::from_secs(5),
        ..link_options()
    };
    let link = Link::start(target(&server.url()), options, &shutdown);
    up(&link).await;
    server.process().freeze().await.unwrap();
    let end_of = async |link: Link| {
        assert!(link.call(cmd("PING")).await.unwrap_err().is_lost());
        Instant::now()
    };
    let old = end_of(link.clone());
    let young = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        end_of(link.clone()).await
    };
    let (old, young) = tokio::join!(old, young);
    // With a timeout of its own, each would end as late as it began.
    let apart = old.max(young) - old.min(young);
    assert!(apart < Duration::from_secs(1), "{apart:?}");
    server.process().thaw().unwrap();
}

#[tokio::test]
async fn a_killed_server_is_noticed_and_its_successor_is_distinguished() {
    let mut server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    let first = up(&link).await;
    server.process().kill().unwrap();
    down(&link, "cannot reach 127.0.0.1:").await;
    let error = link.call(cmd("PING")).await.unwrap_err();
    assert!(matches!(error, CallError::Unsent { .. }), "{error}");
    server.restart().await.unwrap();
    let second = up(&link).await;
    assert_ne!(first.run_id, second.run_id);
    assert!(second.connected_at_micros > first.connected_at_micros);
    assert_eq!(link.state().borrow().generation, 2);
}

#[tokio::test]
async fn a_link_may_be_started_before_its_server() {
    let mut server = Server::start(&[]).await;
    server.process().kill().unwrap();
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    down(&link, "Connection refused").await;
    server.restart().await.unwrap();
    up(&link).await;
}

#[tokio::test]
async fn a_connection_killed_by_the_server_is_replaced_at_once() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    up(&link).await;
    for generation in 2..5 {
        let kill =
            link.call(cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "no"]).to_owned());
        // The server decides whether the answer arrives before the end of the connection.
        drop(in_time("the call ends", kill).await);
        eventually("there is another connection", async || {
            let state = link.state();
            let state = state.borrow();
            state.generation >= generation && matches!(state.status, LinkStatus::Up(_))
        })
        .await;
    }
}

#[tokio::test]
async fn a_silent_proxy_is_left_for_a_new_connection() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::to(server.port()).await;
    let shutdown = Shutdown::new();
    // There is no heartbeat in time: the call itself must notice.
    let options = LinkOptions { heartbeat: DEADLINE, ..link_options() };
    let link = Link::start(target(&proxy.url()), options, &shutdown);
    up(&link).await;
    proxy.stop_forwarding_the_existing();
    let error = link.call(cmd("INCR").arg("k").to_owned()).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    up(&link).await;
    // The short limit may end a call that the server counts.
    let (mut sent, mut count) = (0, None);
    eventually("a call is answered", async || {
        let answer = link.call(cmd("INCR").arg("k").to_owned()).await;
        sent += i64::from(!matches!(answer, Err(CallError::Unsent { .. })));
        count = answer.ok();
        count.is_some()
    })
    .await;
    let Some(Value::Int(count)) = count else { panic!("{count:?}") };
    assert!((1..=sent).contains(&count), "{count}, though the proxy has swallowed the first");
    assert!(proxy.accepted() >= 2);
}

#[tokio::test]
async fn a_silent_proxy_is_noticed_by_an_idle_link() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::to(server.port()).await;
    let shutdown = Shutdown::new();
    let link = start(&proxy.url(), &shutdown);
    up(&link).await;
    proxy.stop_forwarding_the_existing();
    eventually("the link is on its second connection", async || {
        let state = link.state();
        let state = state.borrow();
        state.generation >= 2 && matches!(state.status, LinkStatus::Up(_))
    })
    .await;
}

#[tokio::test]
async fn a_server_that_accepts_but_stays_silent_is_not_connected() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let shutdown = Shutdown::new();
    let link = start(&url, &shutdown);
    down(&link, ", but no reply within 300ms").await;
}

#[tokio::test]
async fn after_a_lost_call_the_next_connection_is_a_new_one() {
    let mut server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    up(&link).await;
    server.process().kill().unwrap();
    // Yields only when the link makes it wait, as a caller in a hurry would.
    let hurry = async {
        loop {
            match link.call(cmd("PING")).await {
                Ok(answer) => break answer,
                Err(_) => drop(link.up().await.unwrap()),
            }
        }
    };
    let (answer, restarted) =
        in_time("both", async { tokio::join!(hurry, server.restart()) }).await;
    restarted.unwrap();
    assert_eq!(answer, Value::SimpleString("PONG".to_owned()));
}

#[tokio::test]
async fn a_healthy_link_keeps_its_one_connection_through_many_heartbeats() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let options = LinkOptions {
        heartbeat: Duration::from_millis(10),
        response_timeout: DEADLINE,
        ..link_options()
    };
    let link = Link::start(target(&server.url()), options, &shutdown);
    up(&link).await;
    eventually("fifty signs of life", async || {
        let stats: String = server.ask(&["INFO", "commandstats"]);
        let calls =
            stats.split("cmdstat_ping:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.is_some_and(|calls| calls.parse::<u32>().unwrap() > 50)
    })
    .await;
    assert_eq!(link.state().borrow().generation, 1);
}
