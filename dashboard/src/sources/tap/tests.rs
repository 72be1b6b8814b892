//! When it looks whether it may be opened, before a server that answers as it is told.

use prometheus::Registry;
use redisson::{Grouping, Moment};
use service_kit::redis_link::{LinkOptions, Target};
use service_kit::shutdown::Shutdown;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::metrics::TapsMetrics;
use crate::model::{Model, Rule, Settings, Source, actor};
use crate::sources::status::Sources;

/// The words of the next command; none at the end.
async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut left = 1_usize;
    while left > 0 {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let (sort, number) = line.trim_end().split_at(1);
        let number = number.parse::<usize>().ok()?;
        if sort == "*" {
            left = number;
            continue;
        }
        let mut word = vec![0; number + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
        left -= 1;
    }
    Some(words)
}

/// A master that bounds no reader. It tells of each time that it is asked for its bounds, and before it answers the first
/// time somebody asks for a watch.
async fn serve(stream: TcpStream, switch: &Switch, looks: mpsc::Sender<()>) {
    let mut stream = BufReader::new(stream);
    let mut first = true;
    while let Some(words) = command(&mut stream).await {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = match words.as_slice() {
            ["PING"] => "+PONG\r\n".to_owned(),
            ["INFO", "server"] => "$22\r\nredis_version:7.0.15\r\n\r\n".to_owned(),
            ["INFO", "replication"] => "$13\r\nrole:master\r\n\r\n".to_owned(),
            ["INFO", _] => "$0\r\n\r\n".to_owned(),
            ["CONFIG", "GET", name] => {
                if *name == "client-output-buffer-limit" {
                    if std::mem::take(&mut first) {
                        assert!(switch.watch());
                    }
                    looks.send(()).await.unwrap();
                }
                format!("*2\r\n${}\r\n{name}\r\n$0\r\n\r\n", name.len())
            }
            _ => "+OK\r\n".to_owned(),
        };
        stream.write_all(reply.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn a_watch_that_is_asked_for_while_it_looks_is_told_by_another_look() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let target: Target = url.parse().unwrap();
    let shutdown = Shutdown::new();
    let options =
        LinkOptions { response_timeout: Duration::from_secs(60), ..LinkOptions::new(CLIENT_NAME) };
    let link = Link::start(target.clone(), options, &shutdown);
    let usual = Rule { stuck_after: None, starving_after: None };
    let settings = Settings {
        max_locks: 10,
        poll_rate: 10,
        usual,
        rules: Vec::new(),
        ignore: Vec::new(),
        groups: Vec::new(),
    };
    let model = Model::new(settings, Grouping::new(Vec::new(), 10), &[], Moment::from_micros(0));
    let (_actor, handle, _hub, _batches) = actor::new(model, &[]);
    let sources = Sources::default();
    let status = sources.add(&Arc::from("main"), "node", Source::Monitor);
    let metrics = TapsMetrics::register(&Registry::new()).unwrap().of("node");
    let monitor = MonitorSettings { mode: MonitorMode::Auto, max_ops: 10_000, unbounded: false };
    let (tap, switch) = Tap::new(target.into(), link, monitor, Vec::new(), handle, status, metrics);
    let (looks, mut looked) = mpsc::channel(1);
    let served = async {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, &switch, looks).await;
    };
    let two_looks = async {
        for _ in 0..2 {
            // The next one of its own accord is due in minutes.
            let look = tokio::time::timeout(ASK_AGAIN / 4, looked.recv()).await;
            look.expect("it never looked again").expect("the server has ended");
        }
    };
    tokio::select! {
        () = two_looks => {}
        () = served => panic!("the connection was lost"),
        () = tap.run() => panic!("it has ended"),
    }
}
