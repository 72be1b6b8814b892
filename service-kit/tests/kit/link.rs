//! Tests of connecting, logging in and calling.

use redis::{Value, cmd, pipe};
use service_kit::redis::{CallError, Link, LinkOptions, LinkStatus, Role};
use service_kit::shutdown::Shutdown;

use crate::server::Server;
use crate::{DEADLINE, down, eventually, in_time, link_options, patient_link, target, up};

const SCRIPT: &str = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
const SCRIPT_SHA: &str = "8cd00688c05c46bde4a2e60658ef20a2e5c0b248";

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

#[tokio::test]
async fn a_link_connects_and_reports_the_server() {
    let server =
        Server::start(&[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    let info = up(&link).await;
    let reported: String = server.ask(&["INFO", "server"]);
    assert!(reported.contains(&format!("redis_version:{}\r", info.version.as_deref().unwrap())));
    assert!(reported.contains(&format!("run_id:{}\r", info.run_id.as_deref().unwrap())));
    assert_eq!(info.role, Some(Role::Master));
    assert_eq!(info.replid.as_ref().unwrap().len(), 40);
    assert!(info.evicts() && !info.cluster);
    assert_eq!(link.state().borrow().generation, 1);
    assert!(server.clients().contains(&"kit-test".to_owned()));
    assert_eq!(link.call(cmd("ECHO").arg("hi").to_owned()).await, Ok(text("hi")));
}

#[tokio::test]
async fn the_database_and_the_socket_of_the_url_are_used() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let url = format!("unix://{}?db=3", server.socket().display());
    let link = patient_link(&url, &shutdown);
    up(&link).await;
    link.call(cmd("SET").arg("here").arg(1).to_owned()).await.unwrap();
    let other = Link::start(target(&url).with_db(4), LinkOptions::new("other"), &shutdown);
    up(&other).await;
    assert_eq!(other.call(cmd("DBSIZE")).await, Ok(Value::Int(0)));
    assert!(server.ask::<String>(&["INFO", "keyspace"]).contains("db3:keys=1"));

    let beyond = Link::start(target(&url).with_db(99), link_options(), &shutdown);
    down(&beyond, "selecting the database: ERR DB index is out of range").await;
}

#[tokio::test]
async fn a_login_succeeds_or_reports_the_reason() {
    let server = Server::with_user("agent", ">s3cret ~* +@all").await;
    let shutdown = Shutdown::new();
    let port = server.port();
    let right = patient_link(&format!("redis://agent:s3cret@127.0.0.1:{port}"), &shutdown);
    up(&right).await;
    let reply = right.call(cmd("ACL").arg("WHOAMI").to_owned()).await;
    assert_eq!(reply, Ok(text("agent")));

    let wrong = patient_link(&format!("redis://agent:hunter2@127.0.0.1:{port}"), &shutdown);
    down(&wrong, "logging in: WRONGPASS").await;
    let error = wrong.call(cmd("PING")).await.unwrap_err();
    assert!(
        matches!(&error, CallError::Unsent { reason } if reason.contains("WRONGPASS")),
        "{error}"
    );
    assert!(!format!("{error} {wrong:?}").contains("hunter2"));
    // An operator corrects the password in Redis; the link needs no restart.
    right.call(cmd("ACL").arg(&["SETUSER", "agent", ">hunter2"]).to_owned()).await.unwrap();
    up(&wrong).await;

    right
        .call(cmd("ACL").arg(&["SETUSER", "default", "resetpass", ">x"]).to_owned())
        .await
        .unwrap();
    let anonymous = Link::start(target(&server.url()), link_options(), &shutdown);
    down(&anonymous, "NOAUTH").await;
}

#[tokio::test]
async fn a_rejected_login_is_retried_with_backoff() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let url = format!("redis://some:wrong@127.0.0.1:{}", server.port());
    let wrong = Link::start(target(&url), link_options(), &shutdown);
    down(&wrong, "WRONGPASS").await;
    // The pause is at least a quarter of a second; a tight loop would make hundreds of attempts.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let errors: String = server.ask(&["INFO", "errorstats"]);
    let (_, attempts) = errors.split_once("errorstat_WRONGPASS:count=").unwrap();
    assert!(attempts.trim().parse::<u32>().unwrap() <= 3, "{errors}");
}

#[tokio::test]
async fn a_user_without_info_still_gets_a_link() {
    let server = Server::with_user("poor", ">pw ~* +get").await;
    let shutdown = Shutdown::new();
    let link = patient_link(&format!("redis://poor:pw@127.0.0.1:{}", server.port()), &shutdown);
    let info = up(&link).await;
    assert_eq!((&info.run_id, &info.maxmemory_policy, info.evicts()), (&None, &None, false));
    assert_eq!(link.call(cmd("GET").arg("x").to_owned()).await, Ok(Value::Nil));
    let refused = link.call(cmd("DBSIZE")).await.unwrap_err();
    assert_eq!(refused.refused().unwrap().code, "NOPERM");
}

#[tokio::test]
async fn a_server_that_cannot_save_still_gets_a_link() {
    let server = Server::start(&[("save", "3600 1")]).await;
    server.fail_to_save().await.unwrap();
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    up(&link).await;
    assert_eq!(link.call(cmd("GET").arg("x").to_owned()).await, Ok(Value::Nil));
    let refused = link.call(cmd("SET").arg("x").arg(1).to_owned()).await.unwrap_err();
    assert_eq!(refused.refused().unwrap().code, "MISCONF");
}

#[tokio::test]
async fn a_server_with_too_many_clients_is_named_as_such() {
    let server = Server::start(&[("maxclients", "2")]).await;
    let shutdown = Shutdown::new();
    let first = patient_link(&server.url(), &shutdown);
    up(&first).await;
    let second = patient_link(&server.url(), &shutdown);
    up(&second).await;
    let third = Link::start(target(&server.url()), link_options(), &shutdown);
    down(&third, "max number of clients").await;
    drop(second);
    up(&third).await;
}

#[tokio::test]
async fn an_error_reply_leaves_the_connection_up() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    up(&link).await;
    link.call(cmd("SET").arg("k").arg("v").to_owned()).await.unwrap();
    let error = link.call(cmd("HGETALL").arg("k").to_owned()).await.unwrap_err();
    assert!(error.refused().unwrap().is_wrong_type(), "{error}");
    assert!(error.to_string().contains("WRONGTYPE Operation against a key"), "{error}");
    let error = link.call(cmd("NOSUCH")).await.unwrap_err();
    assert_eq!(error.refused().unwrap().code, "ERR");
    assert!(!error.is_transient() && !error.is_lost());
    assert_eq!(link.state().borrow().generation, 1);
}

#[tokio::test]
async fn scripts_run_whether_the_server_knows_them_or_not() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    up(&link).await;
    for sum in 1..=3 {
        let reply = link.script(SCRIPT, SCRIPT_SHA, &["k"], &["1"], false).await;
        assert_eq!(reply, Ok(Value::Int(sum)));
        if sum == 2 {
            server.ask::<()>(&["SCRIPT", "FLUSH"]);
        }
    }
    let error =
        link.script("return nonsense(", "0".repeat(40).as_str(), &["k"], &["1"], false).await;
    assert_eq!(error.unwrap_err().refused().unwrap().code, "ERR");
}

#[tokio::test]
async fn scripts_are_loaded_on_every_connect() {
    let mut server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let options = LinkOptions { load: vec![SCRIPT], response_timeout: DEADLINE, ..link_options() };
    let link = Link::start(target(&server.url()), options, &shutdown);
    let exists = cmd("SCRIPT").arg("EXISTS").arg(SCRIPT_SHA).to_owned();
    up(&link).await;
    assert_eq!(link.call(exists.clone()).await, Ok(Value::Array(vec![Value::Int(1)])));
    server.process().kill().unwrap();
    down(&link, "").await;
    server.restart().await.unwrap();
    up(&link).await;
    assert_eq!(link.call(exists).await, Ok(Value::Array(vec![Value::Int(1)])));
}

#[tokio::test]
async fn each_command_of_a_pipeline_has_its_own_result() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    up(&link).await;
    for atomic in [false, true] {
        let mut pipeline = pipe();
        if atomic {
            pipeline.atomic();
        }
        pipeline.cmd("SET").arg("k").arg("v").cmd("INCR").arg("k").cmd("GET").arg("k");
        let results = link.pipeline(pipeline).await.unwrap();
        assert_eq!(results.len(), 3, "{results:?}");
        assert_eq!(results[0], Ok(Value::Okay));
        assert!(results[1].as_ref().unwrap_err().message.contains("not an integer"));
        assert_eq!(results[2], Ok(text("v")));
    }
    assert_eq!(link.pipeline(pipe()).await, Ok(Vec::new()));
    assert_eq!(link.state().borrow().generation, 1);
}

#[tokio::test]
async fn a_transaction_with_a_bad_command_does_nothing_and_names_it() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    up(&link).await;
    let mut pipeline = pipe();
    pipeline.atomic().cmd("SET").arg("k").arg("v").cmd("NOSUCH");
    let error = link.pipeline(pipeline).await.unwrap_err();
    assert!(error.refused().unwrap().message.contains("NOSUCH"), "{error}");
    assert_eq!(link.call(cmd("EXISTS").arg("k").to_owned()).await, Ok(Value::Int(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_the_limit_in_flight_all_get_their_reply() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    up(&link).await;
    let calls: Vec<_> = (0..10_000_i64)
        .map(|n| {
            let link = link.clone();
            tokio::spawn(async move { (n, link.call(cmd("ECHO").arg(n).to_owned()).await) })
        })
        .collect();
    for call in calls {
        let (n, answer) = in_time("a call is answered", call).await.unwrap();
        assert_eq!(answer, Ok(text(&n.to_string())));
    }
}

/// A caller with 100,000 pending scripts keeps as many of these futures.
#[tokio::test]
async fn a_script_under_way_takes_little_memory() {
    let server = Server::start(&[]).await;
    let link = patient_link(&server.url(), &Shutdown::new());
    let call = link.script(SCRIPT, SCRIPT_SHA, ["counter"], ["1"], false);
    assert!(size_of_val(&call) <= 4096, "{} bytes", size_of_val(&call));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_call_can_be_made_from_a_task() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    let task = tokio::spawn(async move {
        let info = link.up().await.unwrap();
        let mut pipeline = pipe();
        pipeline.cmd("PING");
        let pong = link.pipeline(pipeline).await.unwrap();
        let keys: &[&[u8]] = &[b"k"];
        let sum = link.script(SCRIPT, SCRIPT_SHA, keys, &[b"1".to_vec()], false).await.unwrap();
        (info.version.is_some(), pong.len(), sum)
    });
    assert_eq!(in_time("the task", task).await.unwrap(), (true, 1, Value::Int(1)));
}

#[tokio::test]
async fn a_dropped_call_does_not_affect_others() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    up(&link).await;
    for n in 0..100 {
        let mut dropped = Box::pin(link.call(cmd("ECHO").arg("dropped").to_owned()));
        assert!(futures_util::poll!(&mut dropped).is_pending());
        drop(dropped);
        assert_eq!(link.call(cmd("ECHO").arg(n).to_owned()).await, Ok(text(&n.to_string())));
    }
    assert_eq!(link.state().borrow().generation, 1);
}

#[tokio::test]
async fn a_link_ends_with_its_last_handle_or_its_stage() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let link = patient_link(&server.url(), &shutdown);
    let kept = patient_link(&server.url(), &shutdown);
    up(&link).await;
    up(&kept).await;
    let clone = link.clone();
    drop(link);
    clone.call(cmd("PING")).await.unwrap();
    drop(clone);
    eventually("one connection is closed", async || {
        server.clients().iter().filter(|name| *name == "kit-test").count() == 1
    })
    .await;
    assert!(shutdown.finish(DEADLINE).await.is_empty());
    assert_eq!(in_time("no link", kept.up()).await, None);
    let error = kept.call(cmd("PING")).await.unwrap_err();
    assert!(
        matches!(&error, CallError::Unsent { reason } if reason.contains("stopped")),
        "{error}"
    );
    let status = kept.state().borrow().status.clone();
    assert!(matches!(status, LinkStatus::Down { .. }));
}
