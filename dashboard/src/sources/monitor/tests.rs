//! Tests of the checks before MONITOR is opened, against a scripted server, and of the judgements while it is open.

use prometheus::Registry;
use redisson::{Grouping, Moment};
use service_kit::redis::{LinkOptions, Target};
use service_kit::shutdown::Shutdown;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::config::ByteSize;
use crate::metrics::MonitorMetrics;
use crate::model::types::{Rule, Settings, Source};
use crate::model::{Model, actor};
use crate::sources::status::Sources;

/// Reads the words of the next command, or returns `None` at the end.
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

/// Returns the reply of a quiet master without limits for readers.
fn reply_to(words: &[&str]) -> String {
    match words {
        ["PING"] => "+PONG\r\n".to_owned(),
        ["INFO", "server"] => "$22\r\nredis_version:7.0.15\r\n\r\n".to_owned(),
        ["INFO", "replication"] => "$13\r\nrole:master\r\n\r\n".to_owned(),
        ["INFO", _] => "$0\r\n\r\n".to_owned(),
        ["CONFIG", "GET", name] => format!("*2\r\n${}\r\n{name}\r\n$0\r\n\r\n", name.len()),
        _ => "+OK\r\n".to_owned(),
    }
}

/// Serves as a master without limits for readers. Each read of its limits is reported on `checks`, and a watch is
/// requested before the first reply.
async fn serve(stream: TcpStream, switch: &Switch, checks: mpsc::Sender<()>) {
    let mut stream = BufReader::new(stream);
    let mut first = true;
    while let Some(words) = command(&mut stream).await {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if words == ["CONFIG", "GET", "client-output-buffer-limit"] {
            if std::mem::take(&mut first) {
                assert!(switch.watch());
            }
            checks.send(()).await.unwrap();
        }
        stream.write_all(reply_to(&words).as_bytes()).await.unwrap();
    }
}

/// Serves as a quiet master whose connection ends when its clients are to be listed.
async fn serve_until_list(stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    while let Some(words) = command(&mut stream).await {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if words == ["INFO", "clients"] {
            return;
        }
        stream.write_all(reply_to(&words).as_bytes()).await.unwrap();
    }
}

/// Returns the reader of that server, its switch, and the model's task.
fn reader(
    target: &Target,
    mode: MonitorMode,
    shutdown: &Shutdown,
) -> (MonitorReader, Switch, actor::Actor) {
    let options =
        LinkOptions { response_timeout: Duration::from_secs(60), ..LinkOptions::new(CLIENT_NAME) };
    let link = Link::start(target.clone(), options, shutdown);
    let usual = Rule { stuck_after: None, starving_after: None };
    let settings = Settings {
        max_locks: 10,
        poll_rate: Some(10),
        usual: usual.into(),
        rules: Vec::new(),
        ignore: Vec::new(),
        groups: Vec::new(),
    };
    let model = Model::new(settings, Grouping::new(Vec::new(), 10), &[], Moment::from_micros(0));
    let (actor, handle, _hub, _batches) = actor::new(model, &[]);
    let sources = Sources::default();
    let status = sources.add(&Arc::from("main"), "node", Source::Monitor);
    let metrics = MonitorMetrics::register(&Registry::new()).unwrap().of("main", "node");
    let monitor = MonitorSettings { mode, max_ops: 10_000, budget: ByteSize(0), unbounded: false };
    let endpoint = target.clone().into();
    let (reader, switch) = MonitorReader::new(
        endpoint,
        link,
        monitor,
        Vec::new(),
        handle,
        status,
        metrics,
        Traces::default(),
    );
    (reader, switch, actor)
}

#[tokio::test]
async fn a_watch_requested_during_a_check_leads_to_another_check() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let target: Target = url.parse().unwrap();
    let shutdown = Shutdown::new();
    let (reader, switch, _actor) = reader(&target, MonitorMode::Auto, &shutdown);
    let (checks, mut checked) = mpsc::channel(1);
    let served = async {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, &switch, checks).await;
    };
    let two_checks = async {
        for _ in 0..2 {
            // The next automatic check is due in minutes.
            let check = tokio::time::timeout(REFUSED_INTERVAL / 4, checked.recv()).await;
            check.expect("it never checked again").expect("the server has ended");
        }
    };
    tokio::select! {
        () = two_checks => {}
        () = served => panic!("the connection was lost"),
        () = reader.run() => panic!("it has ended"),
    }
}

#[tokio::test]
async fn a_server_that_is_lost_during_a_check_is_checked_again_soon() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let target: Target = url.parse().unwrap();
    let shutdown = Shutdown::new();
    let (mut reader, _switch, _actor) = reader(&target, MonitorMode::Auto, &shutdown);
    reader.settings.unbounded = true;
    let two_checks = async {
        for _ in 0..2 {
            let (stream, _) = listener.accept().await.unwrap();
            serve_until_list(stream).await;
        }
    };
    // A pause would last a minute.
    let two_checks = tokio::time::timeout(Duration::from_secs(40), two_checks);
    tokio::select! {
        checked = two_checks => checked.expect("it did not check again soon"),
        () = reader.run() => panic!("it has ended"),
    }
}

/// Returns the reason to close MONITOR after a judgement, or an empty text if it stays open.
fn judged(
    reader: &mut MonitorReader,
    judgement: Judgement,
    why: &mut OpenReason,
    silent: u32,
) -> String {
    match reader.apply(judgement, why, &mut Meter::default(), silent) {
        Ok(()) => String::new(),
        Err(CloseReason::WatchEnded) => "watched".to_owned(),
        Err(CloseReason::Pause(why)) => format!("closed: {why}"),
        Err(CloseReason::Broken(why)) => format!("broken: {why}"),
        Err(CloseReason::Denied(why)) => format!("denied: {why}"),
    }
}

#[tokio::test]
async fn each_judgement_decides_whether_it_stays_open() {
    let nowhere = tempfile::tempdir().unwrap();
    let target = format!("unix://{}", nowhere.path().join("redis.sock").display());
    let shutdown = Shutdown::new();
    let (mut reader, switch, _actor) =
        reader(&target.parse().unwrap(), MonitorMode::Auto, &shutdown);
    let quiet = || Ok((Load::default(), None));
    let busy = || Ok((Load { ops: 10_001, ..Load::default() }, None));
    let another = || Ok((Load::default(), Some(ANOTHER_HAS_MONITOR.to_owned())));
    let lost = || Err(CallError::Unsent { reason: "gone".to_owned() });
    let later = Instant::now() + Duration::from_secs(3_600);

    let mut judge = |judgement, mut why| judged(&mut reader, judgement, &mut why, 0);
    // In automatic mode, MONITOR stays open only while the server is quiet and no other client has MONITOR on.
    assert_eq!(judge(quiet(), OpenReason::Auto), "");
    assert!(judge(busy(), OpenReason::Auto).contains("--monitor-max-ops is 10000"));
    assert_eq!(judge(another(), OpenReason::Auto), format!("closed: {ANOTHER_HAS_MONITOR}"));
    assert!(judge(lost(), OpenReason::Auto).starts_with("closed: the load cannot be judged"));
    // On request, MONITOR stays open for the requested time.
    for why in [OpenReason::On, OpenReason::Watch(later)] {
        for judgement in [quiet(), busy(), another(), lost()] {
            assert_eq!(judge(judgement, why), "", "{why:?}");
        }
    }
    assert_eq!(judge(quiet(), OpenReason::Watch(Instant::now())), "watched");

    // A watch that is requested while MONITOR is open extends the time.
    assert!(switch.watch());
    let mut why = OpenReason::Auto;
    assert_eq!(judged(&mut reader, busy(), &mut why, 0), "");
    assert!(matches!(why, OpenReason::Watch(until) if until > Instant::now()), "{why:?}");
    let mut why = OpenReason::Watch(Instant::now());
    assert_eq!(judged(&mut reader, quiet(), &mut why, 0), "");
    // With --monitor on, the time does not end.
    let mut why = OpenReason::On;
    assert_eq!(judged(&mut reader, quiet(), &mut why, 0), "");
    assert_eq!(why, OpenReason::On);

    // Our own PINGs appear on the connection, so silence means that it is dead.
    for mut why in [OpenReason::On, OpenReason::Auto, OpenReason::Watch(later)] {
        let text = judged(&mut reader, quiet(), &mut why, SILENT_TURNS);
        assert_eq!(text, "broken: no line within 10 s", "{why:?}");
    }
}
