//! Tests of pub/sub that stays subscribed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use service_kit::redis::{PubSubEvent, Subscriber, SubscriberOptions};
use service_kit::shutdown::Shutdown;
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;

use crate::proxy::Proxy;
use crate::server::Server;
use crate::{DEADLINE, eventually, in_time, subscriber_options, target};

struct Listener {
    subscriber: Subscriber,
    events: Receiver<PubSubEvent>,
    shutdown: Shutdown,
}

impl Listener {
    fn start(url: &str) -> Self {
        Self::with(url, subscriber_options())
    }

    /// Starts a subscriber that never treats slowness as an outage.
    fn patient(url: &str) -> Self {
        Self::patient_with(url, false)
    }

    fn patient_with(url: &str, batched: bool) -> Self {
        let options = subscriber_options();
        Self::with(url, SubscriberOptions { response_timeout: DEADLINE, batched, ..options })
    }

    fn with(url: &str, options: SubscriberOptions) -> Self {
        let shutdown = Shutdown::new();
        let (subscriber, events) = Subscriber::start(target(url), options, &shutdown);
        Self { subscriber, events, shutdown }
    }

    async fn next(&mut self) -> PubSubEvent {
        in_time("an event", self.events.recv()).await.expect("the subscriber lives")
    }

    /// Returns the next event that `wanted` accepts; others are skipped.
    async fn until(&mut self, wanted: impl Fn(&PubSubEvent) -> bool) -> PubSubEvent {
        loop {
            let event = self.next().await;
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Waits until each of these is reported as subscribed.
    async fn subscribed(&mut self, channels: &[Vec<u8>]) {
        let mut missing: BTreeSet<&Vec<u8>> = channels.iter().collect();
        while !missing.is_empty() {
            if let PubSubEvent::Subscribed(channel) = self.next().await {
                missing.remove(&channel);
            }
        }
    }
}

fn channels(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| format!("channel:{n}").into_bytes()).collect()
}

fn message(channel: &str, pattern: Option<&str>, payload: &str) -> PubSubEvent {
    let bytes = |text: &str| text.as_bytes().to_vec();
    PubSubEvent::Message {
        channel: bytes(channel),
        pattern: pattern.map(bytes),
        payload: bytes(payload),
    }
}

#[tokio::test]
async fn messages_arrive_once_a_channel_is_reported_as_subscribed() {
    for batched in [false, true] {
        messages_arrive(batched).await;
    }
}

async fn messages_arrive(batched: bool) {
    let server = Server::start(&[]).await;
    let mut listener = Listener::patient_with(&server.url(), batched);
    assert_eq!(listener.next().await, PubSubEvent::Up);
    assert!(server.clients().contains(&"kit-pubsub".to_owned()));
    let binary = b"\xff\r\n\0".to_vec();
    listener.subscriber.subscribe([b"news".to_vec(), binary.clone()]);
    listener.subscribed(&[b"news".to_vec(), binary]).await;
    server.ask::<()>(&["PUBLISH", "news", "one"]);
    assert_eq!(listener.next().await, message("news", None, "one"));

    listener.subscriber.psubscribe([b"wea*".to_vec()]);
    assert_eq!(listener.next().await, PubSubEvent::PSubscribed(b"wea*".to_vec()));
    server.ask::<()>(&["PUBLISH", "weather", ""]);
    assert_eq!(listener.next().await, message("weather", Some("wea*"), ""));

    listener.subscriber.unsubscribe([b"news".to_vec()]);
    eventually("the subscription is gone", async || {
        server.ask::<u32>(&["PUBLISH", "news", "two"]) == 0
    })
    .await;
    assert_eq!(listener.subscriber.wanted(), 2);
}

#[tokio::test]
async fn subscribing_again_is_confirmed_again() {
    let server = Server::start(&[]).await;
    let mut listener = Listener::patient(&server.url());
    for _ in 0..3 {
        listener.subscriber.subscribe([b"a".to_vec()]);
        listener.subscribed(&[b"a".to_vec()]).await;
    }
}

#[tokio::test]
async fn after_a_lost_connection_everything_is_resubscribed_and_reported() {
    for batched in [false, true] {
        everything_comes_back(batched).await;
    }
}

async fn everything_comes_back(batched: bool) {
    let server = Server::start(&[]).await;
    let mut listener = Listener::patient_with(&server.url(), batched);
    listener.subscriber.subscribe([b"a".to_vec()]);
    listener.subscriber.psubscribe([b"b*".to_vec()]);
    listener.subscribed(&[b"a".to_vec()]).await;
    for _ in 0..3 {
        eventually("a connection to kill", async || {
            server.ask::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]) == 1
        })
        .await;
        let down = listener.until(|event| matches!(event, PubSubEvent::Down { .. })).await;
        assert_eq!(
            down,
            PubSubEvent::Down { reason: "the server closed the connection".to_owned() }
        );
        assert_eq!(listener.next().await, PubSubEvent::Up);
        let reported: Vec<PubSubEvent> = vec![listener.next().await, listener.next().await];
        assert!(reported.contains(&PubSubEvent::Subscribed(b"a".to_vec())), "{reported:?}");
        assert!(reported.contains(&PubSubEvent::PSubscribed(b"b*".to_vec())), "{reported:?}");
        server.ask::<()>(&["PUBLISH", "a", "x"]);
        assert_eq!(listener.next().await, message("a", None, "x"));
    }
}

#[tokio::test]
async fn five_thousand_channels_are_subscribed_and_come_back() {
    let server = Server::start(&[]).await;
    let mut listener = Listener::patient(&server.url());
    let channels = channels(5000);
    listener.subscriber.subscribe(channels.clone());
    listener.subscribed(&channels).await;
    assert_eq!(server.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len(), 5000);
    assert_eq!(server.ask::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]), 1);
    listener.until(|event| matches!(event, PubSubEvent::Up)).await;
    listener.subscribed(&channels).await;
    assert_eq!(server.ask::<Vec<String>>(&["PUBSUB", "CHANNELS"]).len(), 5000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_subscription_is_lost_in_a_churn_with_broken_connections() {
    let server = Server::start(&[]).await;
    let mut listener = Listener::patient(&server.url());
    let all = channels(1000);
    let (subscriber, some) = (listener.subscriber.clone(), all.clone());
    let kill = || server.ask::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let enough = Arc::new(AtomicBool::new(false));
    let may_end = Arc::clone(&enough);
    let churn = tokio::spawn(async move {
        let mut random = 1_u32;
        let mut rounds = 0;
        while rounds < 200 || !may_end.load(Ordering::Relaxed) {
            rounds += 1;
            for _ in 0..100 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let channel = some[(random >> 16) as usize % some.len()].clone();
                if random & 0x4000 == 0 {
                    subscriber.subscribe([channel]);
                } else {
                    subscriber.unsubscribe([channel]);
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let mut reported: HashMap<Vec<u8>, u32> = HashMap::new();
    let mut kills = 0;
    let deadline = Instant::now() + DEADLINE;
    while !churn.is_finished() {
        assert!(Instant::now() < deadline, "{kills} kills, {} channels reported", reported.len());
        // Each kill needs a connection that is up again.
        if kills < 3 {
            kills += kill();
        }
        enough.store(kills >= 3 && reported.len() > 500, Ordering::Relaxed);
        let event = tokio::time::timeout(Duration::from_millis(1), listener.next()).await;
        if let Ok(PubSubEvent::Subscribed(channel)) = event {
            *reported.entry(channel).or_default() += 1;
        }
    }
    churn.await.unwrap();
    assert_eq!(kills, 3);
    // The final request for each channel.
    let (wanted, unwanted) = all.split_at(500);
    listener.subscriber.unsubscribe(unwanted.to_vec());
    listener.subscriber.subscribe(wanted.to_vec());
    listener.subscribed(wanted).await;
    let expected: BTreeSet<String> = (0..500).map(|n| format!("channel:{n}")).collect();
    eventually("exactly what is wished is subscribed", async || {
        server.ask::<BTreeSet<String>>(&["PUBSUB", "CHANNELS"]) == expected
    })
    .await;
}

#[tokio::test]
async fn a_frozen_server_is_noticed_by_an_idle_subscriber() {
    let mut server = Server::start(&[]).await;
    let mut listener = Listener::start(&server.url());
    listener.subscriber.subscribe([b"a".to_vec()]);
    listener.subscribed(&[b"a".to_vec()]).await;
    server.process().freeze().await.unwrap();
    let down = listener.until(|event| matches!(event, PubSubEvent::Down { .. })).await;
    assert_eq!(down, PubSubEvent::Down { reason: "no reply within 300ms".to_owned() });
    server.process().thaw().unwrap();
    listener.until(|event| matches!(event, PubSubEvent::Up)).await;
    listener.subscribed(&[b"a".to_vec()]).await;
}

#[tokio::test]
async fn a_frozen_server_is_noticed_during_a_steady_flow_of_subscriptions() {
    let mut server = Server::start(&[]).await;
    let mut listener = Listener::start(&server.url());
    listener.until(|event| matches!(event, PubSubEvent::Up)).await;
    server.process().freeze().await.unwrap();
    let subscriber = listener.subscriber.clone();
    let wishing = tokio::spawn(async move {
        for n in 0_u32.. {
            subscriber.subscribe([n.to_string().into_bytes()]);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    listener.until(|event| matches!(event, PubSubEvent::Down { .. })).await;
    wishing.abort();
    server.process().thaw().unwrap();
}

#[tokio::test]
async fn a_silent_proxy_is_left_for_a_new_connection() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::to(server.port()).await;
    let mut listener = Listener::start(&proxy.url());
    listener.subscriber.subscribe([b"a".to_vec()]);
    listener.subscribed(&[b"a".to_vec()]).await;
    proxy.stop_forwarding_the_existing();
    listener.until(|event| matches!(event, PubSubEvent::Down { .. })).await;
    listener.subscribed(&[b"a".to_vec()]).await;
    eventually("the message is received", async || server.ask::<u32>(&["PUBLISH", "a", "x"]) > 0)
        .await;
    listener.until(|event| matches!(event, PubSubEvent::Message { .. })).await;
}

#[tokio::test]
async fn a_healthy_connection_is_kept_through_many_heartbeats() {
    let server = Server::start(&[]).await;
    for channels in [0, 1] {
        let options = SubscriberOptions {
            heartbeat: Duration::from_millis(5),
            response_timeout: DEADLINE,
            ..SubscriberOptions::new("kit-pubsub")
        };
        let mut listener = Listener::with(&server.url(), options);
        assert_eq!(listener.next().await, PubSubEvent::Up);
        listener.subscriber.subscribe(self::channels(channels));
        listener.subscribed(&self::channels(channels)).await;
        let pings = || {
            let stats: String = server.ask(&["INFO", "commandstats"]);
            let calls =
                stats.split("cmdstat_ping:calls=").nth(1).and_then(|rest| rest.split(',').next());
            calls.map_or(0, |calls| calls.parse::<u32>().unwrap())
        };
        let before = pings();
        eventually("twenty signs of life", async || pings() > before + 20).await;
        assert!(listener.events.try_recv().is_err(), "no event was sent");
    }
}

#[tokio::test]
async fn a_forbidden_channel_is_named_and_does_not_affect_others() {
    let server = Server::with_user("some", ">pw resetchannels &channel:* &open +@all").await;
    let options = SubscriberOptions {
        response_timeout: DEADLINE,
        retry: Duration::from_millis(20),
        ..subscriber_options()
    };
    let url = format!("redis://some:pw@127.0.0.1:{}", server.port());
    let mut listener = Listener::with(&url, options);
    let mut all = channels(20);
    all.push(b"closed".to_vec());
    listener.subscriber.subscribe(all);
    listener.subscriber.psubscribe([b"*".to_vec()]);
    let (mut reported, mut refused) = (0, BTreeSet::new());
    while reported < 20 || refused.len() < 2 {
        match listener.next().await {
            PubSubEvent::Subscribed(_) => reported += 1,
            PubSubEvent::Refused { channel, reason } => {
                assert!(reason.starts_with("NOPERM"), "{reason}");
                refused.insert(channel);
            }
            PubSubEvent::Up => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, BTreeSet::from([b"closed".to_vec(), b"*".to_vec()]));
    // Each is tried again until it is granted, and reported only then.
    server.ask::<()>(&["ACL", "SETUSER", "some", "&closed"]);
    assert_eq!(listener.next().await, PubSubEvent::Subscribed(b"closed".to_vec()));
    server.ask::<()>(&["ACL", "SETUSER", "some", "allchannels"]);
    assert_eq!(listener.next().await, PubSubEvent::PSubscribed(b"*".to_vec()));
}

#[tokio::test]
async fn a_slow_receiver_misses_nothing() {
    let server = Server::start(&[]).await;
    let limit = Duration::from_secs(3);
    let options = SubscriberOptions { response_timeout: limit, ..subscriber_options() };
    let heartbeat = options.heartbeat;
    let mut listener = Listener::with(&server.url(), options);
    listener.subscriber.subscribe([b"a".to_vec()]);
    listener.subscribed(&[b"a".to_vec()]).await;
    let script = "for i = 1, 20000 do redis.call('PUBLISH', 'a', i) end";
    server.ask::<()>(&["EVAL", script, "0"]);
    // Its confirmation comes after all of that. A wait longer than the heartbeat and the response timeout is no outage.
    listener.subscriber.subscribe([b"b".to_vec()]);
    tokio::time::sleep(heartbeat + limit + Duration::from_millis(200)).await;
    for n in 1..=20_000 {
        assert_eq!(listener.next().await, message("a", None, &n.to_string()));
    }
    assert_eq!(listener.next().await, PubSubEvent::Subscribed(b"b".to_vec()));
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_subscriptions_wait() {
    let server = Server::with_user("some", ">right resetchannels &a +@all").await;
    let mut listener =
        Listener::patient(&format!("redis://some:wrong@127.0.0.1:{}", server.port()));
    listener.subscriber.subscribe([b"a".to_vec()]);
    let PubSubEvent::Down { reason } = listener.next().await else { panic!("not down") };
    assert!(reason.contains("WRONGPASS"), "{reason}");
    server.ask::<()>(&["ACL", "SETUSER", "some", ">wrong"]);
    assert_eq!(listener.next().await, PubSubEvent::Up);
    listener.subscribed(&[b"a".to_vec()]).await;
}

#[tokio::test]
async fn a_subscriber_ends_with_its_stage_or_its_receiver() {
    let server = Server::start(&[]).await;
    let mut listener = Listener::patient(&server.url());
    listener.subscriber.subscribe(channels(10));
    listener.subscribed(&channels(10)).await;
    assert!(listener.shutdown.finish(DEADLINE).await.is_empty());
    assert_eq!(in_time("the events end", listener.events.recv()).await, None);

    let other = Listener::patient(&server.url());
    eventually("it is connected", async || server.clients().contains(&"kit-pubsub".to_owned()))
        .await;
    drop(other.events);
    eventually("it is gone", async || !server.clients().contains(&"kit-pubsub".to_owned())).await;
}
