//! Servers whose replies never end, or announce more than any memory holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::cmd;
use service_kit::redis::{Link, LinkOptions, PubSubEvent, Subscriber, SubscriberOptions};
use service_kit::shutdown::Shutdown;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::server::Server;
use crate::{DEADLINE, in_time, link_options, subscriber_options, target, up};

const MIB: usize = 1024 * 1024;
/// More than the sockets on both sides buffer.
const BUFFERS: usize = 16 * MIB;

/// Bytes sent once, and bytes repeated endlessly after them.
#[derive(Clone, Copy)]
struct Attack {
    head: &'static str,
    body: &'static str,
}

/// A server that completes handshakes, and attacks when it receives the command.
struct Hostile {
    port: u16,
    /// The bytes of attacks that it could write.
    written: Arc<AtomicUsize>,
}

impl Hostile {
    async fn start(command: &'static str, attack: Attack) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let written = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&written);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, command, attack, Arc::clone(&count)));
            }
        });
        Self { port, written }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Waits until it cannot write any more, and returns the number of bytes written.
    async fn written(&self) -> usize {
        let mut before = usize::MAX;
        loop {
            let now = self.written.load(Ordering::Relaxed);
            if now == before {
                return now;
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn serve(stream: TcpStream, command: &str, attack: Attack, written: Arc<AtomicUsize>) {
    let mut stream = BufReader::new(stream);
    while let Some(verb) = verb(&mut stream).await {
        if verb.eq_ignore_ascii_case(command) {
            let body = attack.body.repeat(MIB / attack.body.len());
            let mut part = format!("{}{body}", attack.head);
            while stream.write_all(part.as_bytes()).await.is_ok() {
                written.fetch_add(part.len(), Ordering::Relaxed);
                part.clone_from(&body);
            }
            return;
        }
        let info = "redis_version:7.4.0\r\nrole:master\r\n";
        let reply = match verb.as_str() {
            "INFO" => format!("${}\r\n{info}\r\n", info.len()),
            "PING" => "+PONG\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads a command, and returns its first word.
async fn verb(stream: &mut BufReader<TcpStream>) -> Option<String> {
    async fn number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        line.get(1..)?.trim().parse().ok()
    }
    let mut words = Vec::new();
    for _ in 0..number(stream).await? {
        let mut word = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
    }
    words.into_iter().next()
}

const ATTACKS: [(Attack, &str); 6] = [
    (Attack { head: "$2000000000\r\n", body: "x" }, "a text of 2000000000 bytes"),
    (Attack { head: "*2000000000\r\n", body: ":1\r\n" }, "an array of 2000000000 elements"),
    (Attack { head: "*120000\r\n", body: "$4\r\nabcd\r\n" }, "beyond the limit of 8 MiB"),
    (Attack { head: "*1\r\n", body: "*1\r\n" }, "nested arrays deeper than 16 levels"),
    (Attack { head: "*2\r\n", body: "*90000\r\n:1\r\n" }, "an array of 90000 elements"),
    (Attack { head: "+", body: "x" }, "a line longer than 64 KiB"),
];

#[tokio::test]
async fn a_call_fails_once_its_reply_exceeds_the_limit() {
    for (attack, reason) in ATTACKS {
        let hostile = Hostile::start("ECHO", attack).await;
        let shutdown = Shutdown::new();
        let options =
            LinkOptions { response_timeout: DEADLINE, reply_limit: 8 * MIB, ..link_options() };
        let link = Link::start(target(&hostile.url()), options, &shutdown);
        up(&link).await;
        let error = in_time("the call fails", link.call(cmd("ECHO"))).await.unwrap_err();
        assert!(error.is_lost() && error.to_string().contains(reason), "{reason}: {error}");
        assert!(hostile.written().await < 8 * MIB + BUFFERS, "{reason}");
    }
}

#[tokio::test]
async fn a_handshake_fails_once_a_reply_exceeds_the_limit() {
    for (attack, reason) in ATTACKS {
        let hostile = Hostile::start("INFO", attack).await;
        let shutdown = Shutdown::new();
        let options =
            LinkOptions { response_timeout: DEADLINE, reply_limit: 8 * MIB, ..link_options() };
        let link = Link::start(target(&hostile.url()), options, &shutdown);
        crate::down(&link, reason).await;
        drop(link);
        assert!(hostile.written.load(Ordering::Relaxed) < 10 * (8 * MIB + BUFFERS), "{reason}");
    }
}

#[tokio::test]
async fn a_subscriber_reconnects_after_a_message_beyond_the_limit() {
    for (attack, reason) in ATTACKS {
        let hostile = Hostile::start("SUBSCRIBE", attack).await;
        let shutdown = Shutdown::new();
        let options = SubscriberOptions { response_timeout: DEADLINE, ..subscriber_options() };
        let (subscriber, mut events) =
            Subscriber::start(target(&hostile.url()), options, &shutdown);
        subscriber.subscribe([b"news".to_vec()]);
        assert_eq!(in_time("it is up", events.recv()).await, Some(PubSubEvent::Up));
        let down = in_time("it is down", events.recv()).await;
        assert!(
            matches!(&down, Some(PubSubEvent::Down { reason: said }) if said.contains(reason)),
            "{reason}: {down:?}"
        );
        drop(events);
        assert!(hostile.written().await < 8 * MIB + BUFFERS, "{reason}");
    }
}

#[tokio::test]
async fn a_long_message_is_skipped_and_the_connection_stays() {
    let server = Server::start(&[]).await;
    let shutdown = Shutdown::new();
    let options = SubscriberOptions { response_timeout: DEADLINE, ..subscriber_options() };
    let (subscriber, mut events) = Subscriber::start(target(&server.url()), options, &shutdown);
    subscriber.subscribe([b"news".to_vec()]);
    for expected in [PubSubEvent::Up, PubSubEvent::Subscribed(b"news".to_vec())] {
        assert_eq!(in_time("subscribed", events.recv()).await, Some(expected));
    }
    for payload in ["x".repeat(7 * MIB), "y".repeat(16 * 1024 - 3), "z".repeat(16 * 1024 - 4)] {
        assert_eq!(server.ask::<i64>(&["PUBLISH", "news", &payload]), 1);
    }
    let expected = PubSubEvent::Message {
        channel: b"news".to_vec(),
        pattern: None,
        payload: vec![b'z'; 16 * 1024 - 4],
    };
    assert_eq!(in_time("the short message", events.recv()).await, Some(expected));
}
