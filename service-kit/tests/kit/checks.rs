//! Changes of a server behind a live connection.

use std::os::unix::fs::symlink;
use std::time::Duration;

use redis::cmd;
use service_kit::redis::{Endpoint, Link, LinkOptions, LinkState, LinkStatus, Role, ServerInfo};
use service_kit::shutdown::Shutdown;

use crate::server::Server;
use crate::{DEADLINE, down, in_time, target, up};

/// Starts a link that checks often, and never treats slowness as an outage.
fn checking(server: &Server, writable: bool, shutdown: &Shutdown) -> Link {
    let options = LinkOptions {
        response_timeout: DEADLINE,
        check: Some(Duration::from_millis(20)),
        writable,
        ..LinkOptions::new("kit-test")
    };
    Link::start(target(&server.url()), options, shutdown)
}

/// Waits until the facts about the server satisfy a condition, and returns the state.
async fn known(link: &Link, what: &str, is_so: impl Fn(&ServerInfo) -> bool) -> LinkState {
    let mut state = link.state();
    let is_so = |state: &LinkState| matches!(&state.status, LinkStatus::Up(info) if is_so(info));
    in_time(what, state.wait_for(is_so)).await.unwrap().clone()
}

#[tokio::test]
async fn a_change_of_role_or_policy_is_reported_and_the_connection_stays() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = checking(&server, false, &shutdown);
    let first = up(&link).await;
    assert_eq!(first.role, Some(Role::Master));
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    known(&link, "the policy is known", ServerInfo::evicts).await;
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    known(&link, "the role is known", |info| info.role == Some(Role::Replica)).await;
    server.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    let other = |info: &ServerInfo| info.role == Some(Role::Master) && info.replid != first.replid;
    let state = known(&link, "the other history is known", other).await;
    assert_eq!(state.generation, 1, "all of it on one connection");
}

#[tokio::test]
async fn an_unchanged_server_is_not_reported() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = checking(&server, false, &shutdown);
    up(&link).await;
    let mut state = link.state();
    state.mark_unchanged();
    crate::eventually("twenty checks", async || {
        let stats: String = server.ask(&["INFO", "commandstats"]);
        let calls =
            stats.split("cmdstat_time:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.is_some_and(|calls| calls.parse::<u32>().unwrap() >= 20)
    })
    .await;
    assert!(!state.has_changed().unwrap());
}

#[tokio::test]
async fn a_link_for_writes_leaves_a_replica_and_comes_back_to_a_master() {
    let server = Server::start(&[("replicaof", "127.0.0.1 1")]).await;
    let shutdown = Shutdown::new();
    let link = checking(&server, true, &shutdown);
    down(&link, "is a replica, which takes no writes").await;
    server.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    up(&link).await;
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    // Either the check on the connection or the next attempt reports it, depending on timing.
    down(&link, "a replica, which takes no writes").await;
    server.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    up(&link).await;
}

#[tokio::test]
async fn a_refused_write_is_enough_to_leave_a_replica() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let options = LinkOptions {
        response_timeout: DEADLINE,
        heartbeat: DEADLINE,
        writable: true,
        ..LinkOptions::new("kit-test")
    };
    let link = Link::start(target(&server.url()), options, &shutdown);
    up(&link).await;
    server.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = link.call(cmd("SET").arg(&["k", "v"]).to_owned()).await.unwrap_err();
    assert!(refused.refused().is_some_and(|error| error.is_read_only()), "{refused}");
    let status = link.state().borrow().status.clone();
    assert!(matches!(status, LinkStatus::Down { .. }), "down before the caller knows: {status:?}");
}

#[tokio::test]
async fn a_refused_write_is_enough_for_all_connections_to_leave_a_demoted_master() {
    let (old, new) = (Server::start(&[]).await, Server::start(&[]).await);
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("redis.sock");
    symlink(old.socket(), &address).unwrap();
    let shutdown = Shutdown::new();
    let endpoint = Endpoint::from(target(&format!("unix://{}", address.display())));
    let start = |writable| {
        let patient = LinkOptions {
            response_timeout: DEADLINE,
            heartbeat: DEADLINE,
            ..LinkOptions::new("kit-test")
        };
        Link::start(endpoint.clone(), LinkOptions { writable, ..patient }, &shutdown)
    };
    let (writer, reader) = (start(true), start(false));
    let before = up(&reader).await;
    up(&writer).await;
    // The address leads to the new master before any connection learns of the demotion.
    std::fs::remove_file(&address).unwrap();
    symlink(new.socket(), &address).unwrap();
    old.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    writer.call(cmd("SET").arg(&["k", "v"]).to_owned()).await.unwrap_err();
    known(&reader, "it is at the new master", |info| info.run_id != before.run_id).await;
}

#[tokio::test]
async fn denied_checks_do_not_end_the_connection() {
    let server = Server::with_user("narrow", ">pw ~* -@all +ping").await;
    let shutdown = Shutdown::new();
    let url = format!("redis://narrow:pw@127.0.0.1:{}", server.port());
    let options = LinkOptions {
        response_timeout: DEADLINE,
        check: Some(Duration::from_millis(5)),
        writable: true,
        ..LinkOptions::new("kit-test")
    };
    let link = Link::start(target(&url), options, &shutdown);
    up(&link).await;
    crate::eventually("checks have been denied", async || {
        let errors: String = server.ask(&["INFO", "errorstats"]);
        let count = errors.split("errorstat_NOPERM:count=").nth(1);
        count.is_some_and(|count| count.trim().parse::<u32>().is_ok_and(|count| count > 50))
    })
    .await;
    assert_eq!(link.state().borrow().generation, 1);
}
