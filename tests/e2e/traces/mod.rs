//! Traces as OpenTelemetry's own protobuf service receives them from agents and dashboards.

mod tls;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use harness::otlp::SeenSpan;
use harness::{Agent, Client, Dashboard, RedisServer, SpanReceiver, eventually, http};
use tokio::net::TcpListener;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const WORKER: &str = "b7ad6b7169203331";
const SPANS: &str = "lockscope_agent_trace_spans_total";

/// Returns the variables that make an agent send its spans to this endpoint without delay.
fn sending<'a>(endpoint: &'a str, protocol: &'a str) -> [(&'a str, &'a str); 3] {
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ]
}

/// Waits for a span with this name about this lock for which `is` holds.
async fn span(
    receiver: &SpanReceiver,
    name: &str,
    lock: &str,
    is: impl Fn(&SeenSpan) -> bool,
) -> SeenSpan {
    eventually(&format!("{name} of {lock}"), async || {
        let spans = receiver.about(name, lock);
        spans.iter().find(|span| is(span)).cloned().with_context(|| format!("{spans:#?}"))
    })
    .await
}

/// Returns the names of the Redis calls that are part of a span.
fn calls_of(receiver: &SpanReceiver, parent: &SeenSpan) -> BTreeSet<String> {
    let spans = receiver.spans();
    let calls = spans.iter().filter(|span| span.parent == parent.id && span.kind == 3);
    calls.map(|span| span.attribute("db.stored_procedure.name").to_owned()).collect()
}

async fn ok(client: &mut Client, words: &str) -> Result<()> {
    client.call(words).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn a_workers_trace_covers_wait_and_hold_with_either_protocol() -> Result<()> {
    let receiver = SpanReceiver::start().await?;
    for (endpoint, protocol) in [(receiver.grpc(), "grpc"), (receiver.http(), "http/protobuf")] {
        let redis = RedisServer::start().await?;
        let mut variables = sending(&endpoint, protocol).to_vec();
        variables.push(("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"));
        let agent = Agent::in_environment(&redis, &[], &variables).await?;
        let lock = format!("orders:{}", protocol.len());
        let (mut first, mut second) = (agent.client().await?, agent.client().await?);
        ok(&mut first, &format!("LOCK {lock} TRACEPARENT 00-{TRACE}-{WORKER}-01")).await?;
        ok(&mut first, &format!("LOCK {lock}")).await?;
        second.send(&format!("LOCK {lock}")).await?;
        eventually("the second to wait", async || {
            let waiters = agent.metrics().await?.sum("lockscope_agent_waiters", &[]);
            ensure!(waiters == 1.0, "{waiters}");
            Ok(())
        })
        .await;
        ok(&mut first, &format!("UNLOCK {lock}")).await?;
        ok(&mut first, &format!("UNLOCK {lock}")).await?;
        second.reply().await?.ok()?;
        let mut hasty = agent.client().await?;
        hasty.call(&format!("LOCK {lock} NOWAIT")).await?;
        ok(&mut second, &format!("UNLOCK {lock}")).await?;

        let acquired = span(&receiver, "lock acquire", &lock, |s| s.parent == WORKER).await;
        assert_eq!(acquired.trace, TRACE);
        assert_eq!(acquired.resource["service.name"], "lockscope-agent");
        assert_eq!(acquired.resource["deployment.environment"], "test");
        assert_eq!(acquired.attribute("lock.outcome"), "acquired");
        assert_eq!(acquired.attribute("lock.group"), "orders:*");
        assert_eq!(acquired.attribute("lock.kind"), "lock");
        assert_eq!(acquired.attribute("worker.pid"), std::process::id().to_string());
        assert!(!acquired.failed && acquired.links.is_empty(), "{acquired:#?}");
        assert_eq!(calls_of(&receiver, &acquired), ["acquire".to_owned()].into());

        let held = span(&receiver, "lock hold", &lock, |s| s.parent == acquired.id).await;
        assert_eq!((&*held.trace, held.attribute("lock.end")), (TRACE, "released"));
        assert_eq!(held.attribute("lock.holder"), acquired.attribute("lock.holder"));
        assert!(held.nanos > 0);

        let outcome = |is: &'static str| move |s: &SeenSpan| s.attribute("lock.outcome") == is;
        let again = span(&receiver, "lock acquire", &lock, outcome("reentered")).await;
        assert_eq!(again.attribute("lock.holds"), "2");
        assert_ne!(again.trace, TRACE, "it was not given a parent");
        let waited =
            span(&receiver, "lock acquire", &lock, |s| !s.links.is_empty() && s.id != again.id);
        let waited = waited.await;
        assert_eq!(waited.links[0], held.id);
        eventually("the hand-over", async || {
            let calls = calls_of(&receiver, &waited);
            ensure!(calls.contains("hand_over"), "{calls:?}");
            Ok(())
        })
        .await;
        span(&receiver, "lock acquire", &lock, outcome("busy")).await;
        let last = span(&receiver, "lock hold", &lock, |s| s.parent == waited.id).await;
        eventually("the release", async || {
            let calls = calls_of(&receiver, &last);
            ensure!(calls.contains("release"), "{calls:?}");
            Ok(())
        })
        .await;
    }
    Ok(())
}

#[tokio::test]
async fn a_lost_hold_shows_its_cause() -> Result<()> {
    let receiver = SpanReceiver::start().await?;
    let endpoint = receiver.grpc();
    let mut redis = RedisServer::start().await?;
    let flags = ["--lease", "6s"];
    let mut agent = Agent::in_environment(&redis, &flags, &sending(&endpoint, "grpc")).await?;
    let mut worker = agent.client().await?;
    ok(&mut worker, "LOCK report").await?;
    eventually("a batch of renewals", async || {
        let spans = receiver.spans();
        let renewed = |s: &&SeenSpan| {
            s.name == "lock renew" && s.attribute("lock.renewed") == "1" && !s.failed
        };
        let batch = spans.iter().find(renewed).context("none")?.clone();
        ensure!(calls_of(&receiver, &batch).contains("keep"), "no call of Redis in it");
        Ok(())
    })
    .await;
    redis.process().freeze().await?;
    let lost = span(&receiver, "lock hold", "report", |_| true).await;
    redis.process().thaw()?;
    assert_eq!(lost.attribute("lock.end"), "unconfirmed");
    assert!(lost.failed);
    let happened: BTreeSet<_> = lost.events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(happened, BTreeSet::from(["jeopardy", "renewal failed"]));
    let failed = |s: &SeenSpan| s.name == "EVALSHA keep" && s.failed;
    let spans = receiver.spans();
    let call = spans.iter().find(|s| failed(s)).context("no failed call")?;
    // The call was sent in vain, or not sent because the connection was already down.
    assert!(["lost", "unsent"].contains(&call.attribute("error.type")), "{call:#?}");
    // The log also says whose lock it was.
    let log = eventually("the loss to be logged", async || {
        let log = agent.process().log();
        let line = log.lines().find(|line| line.contains("lock lost")).context("no line yet")?;
        ensure!(line.contains(&format!("\"worker.pid\":{}", std::process::id())), "{line}");
        Ok(log)
    })
    .await;
    assert!(!log.contains("lock acquire"), "spans are no log lines: {log}");
    Ok(())
}

#[tokio::test]
async fn queued_spans_are_sent_at_exit() -> Result<()> {
    let receiver = SpanReceiver::start().await?;
    let endpoint = receiver.http();
    let redis = RedisServer::start().await?;
    let variables = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*format!("{endpoint}/v1/traces")),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
        ("OTEL_SERVICE_NAME", "locks of host 7"),
    ];
    let mut agent = Agent::in_environment(&redis, &[], &variables).await?;
    let mut worker = agent.client().await?;
    ok(&mut worker, "LOCK a").await?;
    ok(&mut worker, "UNLOCK a").await?;
    drop(worker);
    agent.process().terminate()?;
    assert!(agent.process().end().await.success());
    let held = receiver.about("lock hold", "a");
    assert_eq!(held[0].resource["service.name"], "locks of host 7");
    Ok(())
}

#[tokio::test]
async fn the_sampler_decides_and_parents_decide_before_it() -> Result<()> {
    let receiver = SpanReceiver::start().await?;
    let endpoint = receiver.grpc();
    let redis = RedisServer::start().await?;
    let mut variables = sending(&endpoint, "grpc").to_vec();
    variables.push(("OTEL_TRACES_SAMPLER", "parentbased_always_off"));
    let agent = Agent::in_environment(&redis, &[], &variables).await?;
    let mut worker = agent.client().await?;
    for (lock, flags) in [("wanted", "01"), ("unwanted", "00")] {
        ok(&mut worker, &format!("LOCK {lock} TRACEPARENT 00-{TRACE}-{WORKER}-{flags}")).await?;
        ok(&mut worker, &format!("UNLOCK {lock}")).await?;
    }
    ok(&mut worker, "LOCK unasked TRACEPARENT nonsense").await?;
    ok(&mut worker, "UNLOCK unasked").await?;
    ok(&mut worker, &format!("MLOCK 2 x y TRACEPARENT 00-{TRACE}-{WORKER}-01")).await?;
    ok(&mut worker, "MUNLOCK 2 x y").await?;
    for lock in ["x", "y", "wanted"] {
        span(&receiver, "lock hold", lock, |s| s.trace == TRACE).await;
    }
    let spans = receiver.spans();
    assert!(spans.iter().all(|s| s.trace == TRACE), "{spans:#?}");
    assert!(spans.iter().all(|s| !s.attribute("lock.name").starts_with('u')), "{spans:#?}");
    Ok(())
}

/// Returns the lower half of an id without its last bit; samplers compare it with their share.
fn place(trace: &str) -> Result<u64> {
    let lower = trace.get(16..).context("an id has 32 digits")?;
    Ok(u64::from_str_radix(lower, 16)? >> 1)
}

#[tokio::test]
async fn a_sampled_trace_is_complete_or_absent() -> Result<()> {
    let receiver = SpanReceiver::start().await?;
    let endpoint = receiver.grpc();
    let redis = RedisServer::start().await?;
    let mut variables = sending(&endpoint, "grpc").to_vec();
    variables.push(("OTEL_TRACES_SAMPLER", "traceidratio"));
    variables.push(("OTEL_TRACES_SAMPLER_ARG", "0.5"));
    let agent = Agent::in_environment(&redis, &[], &variables).await?;
    let mut worker = agent.client().await?;
    for number in 0..64 {
        ok(&mut worker, &format!("LOCK own:{number}")).await?;
        ok(&mut worker, &format!("UNLOCK own:{number}")).await?;
    }
    // This sampler decides by the id alone and ignores the flag of the worker.
    let (below, above) = ("0".repeat(15) + "7" + &"7".repeat(16), "f".repeat(32));
    for (lock, trace, flags) in [("above", above, "01"), ("below", below.clone(), "00")] {
        ok(&mut worker, &format!("LOCK {lock} TRACEPARENT 00-{trace}-{WORKER}-{flags}")).await?;
        ok(&mut worker, &format!("UNLOCK {lock}")).await?;
    }
    eventually("whole traces", async || {
        let spans = receiver.spans();
        let traces: BTreeSet<_> = spans.iter().map(|span| &*span.trace).collect();
        for trace in &traces {
            let mut names: Vec<_> = spans.iter().filter(|span| span.trace == **trace).collect();
            names.sort_by_key(|span| &span.name);
            let names: Vec<_> = names.iter().map(|span| &*span.name).collect();
            let whole = ["EVALSHA acquire", "EVALSHA release", "lock acquire", "lock hold"];
            ensure!(names == whole || names == ["EVALSHA keep", "lock renew"], "{names:?}");
        }
        ensure!(traces.contains(&*below), "not the one with a parent");
        ensure!(receiver.about("lock hold", "above").is_empty());
        Ok(())
    })
    .await;
    let own = receiver.spans().into_iter().filter(|span| span.attribute("lock.group") == "own:*");
    let own: BTreeSet<_> = own.map(|span| span.trace).collect();
    // For all or none of 64 to be sampled, the chance is one in 2^63.
    assert!((1..64).contains(&own.len()), "{own:?}");
    for trace in own {
        assert!(place(&trace)? < 1 << 62, "{trace} would not be taken by others of the same share");
    }
    Ok(())
}

#[tokio::test]
async fn the_trace_receiver_never_delays_locks() -> Result<()> {
    // One endpoint accepts connections and never answers; the other one has no listener.
    let deaf = TcpListener::bind("127.0.0.1:0").await?;
    let hangs = format!("http://{}", deaf.local_addr()?);
    let gone = TcpListener::bind("127.0.0.1:0").await?;
    let refuses = format!("http://{}", gone.local_addr()?);
    drop(gone);
    let redis = RedisServer::start().await?;
    for (endpoint, outcome) in [(&hangs, "dropped"), (&refuses, "failed")] {
        for protocol in ["grpc", "http/protobuf"] {
            let mut variables = sending(endpoint, protocol).to_vec();
            variables.push(("OTEL_BSP_MAX_QUEUE_SIZE", "8"));
            if outcome == "dropped" {
                variables.push(("OTEL_EXPORTER_OTLP_TIMEOUT", "600000"));
            }
            let mut agent = Agent::in_environment(&redis, &[], &variables).await?;
            let mut worker = agent.client().await?;
            eventually("spans to be given up", async || {
                for _ in 0..20 {
                    ok(&mut worker, "LOCK a").await?;
                    ok(&mut worker, "UNLOCK a").await?;
                }
                let metrics = agent.metrics().await?;
                let given_up = metrics.sum(SPANS, &[("outcome", outcome)]);
                ensure!(given_up > 0.0, "{protocol}: none {outcome}");
                ensure!(metrics.sum(SPANS, &[("outcome", "exported")]) == 0.0);
                Ok(())
            })
            .await;
            drop(worker);
            agent.process().terminate()?;
            assert!(agent.process().end().await.success());
            let log = agent.process().log();
            let told = log.matches("traces cannot be sent").count();
            // A hung endpoint is noticed only when a batch times out, which takes longer than this test.
            assert_eq!(told, usize::from(outcome == "failed"), "{log}");
            assert!(!log.contains("panicked"), "{log}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_mistake_in_the_variables_is_named_and_locks_are_served() -> Result<()> {
    let redis = RedisServer::start().await?;
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")];
    let mut agent = Agent::in_environment(&redis, &["--lease", "2s"], &variables).await?;
    let mut worker = agent.client().await?;
    ok(&mut worker, "LOCK a").await?;
    let log = agent.process().log();
    let line = log.lines().find(|line| line.contains("no traces are sent")).context("no line")?;
    assert!(line.contains("OTEL_EXPORTER_OTLP_ENDPOINT: `collector:4317`"), "{line}");
    // Log lines do not depend on traces.
    redis.client().await?.call("DEL a").await?.ok()?;
    eventually("the loss to be logged", async || {
        let log = agent.process().log();
        let line = log.lines().find(|line| line.contains("lock lost")).context("no line yet")?;
        ensure!(line.contains(&format!("\"worker.pid\":{}", std::process::id())), "{line}");
        Ok(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn requests_to_a_dashboard_are_traced() -> Result<()> {
    let receiver = SpanReceiver::start().await?;
    let endpoint = receiver.http();
    let redis = RedisServer::start().await?;
    let variables = sending(&endpoint, "http/protobuf");
    let variables = variables.map(|(name, value)| (name, value.to_owned()));
    let dashboard = Dashboard::in_environment(&redis.url(), &[], &variables).await?;
    for path in ["/healthz", "/lock?name=%3Cscript%3E", "/nowhere"] {
        http::get(dashboard.port(), path).await?;
    }
    let seen = eventually("a request's span", async || {
        let spans = receiver.spans();
        spans.iter().find(|s| s.name == "GET /lock").cloned().context("none yet")
    })
    .await;
    assert_eq!((seen.kind, seen.attribute("http.route")), (2, "/lock"));
    assert_eq!(seen.resource["service.name"], "lockscope-dashboard");
    assert!(receiver.spans().iter().all(|s| !s.name.contains("healthz")));
    Ok(())
}
