use std::time::Duration;

use prometheus::Registry;
use redisson::Moment;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

/// Far longer than any step takes.
const DEADLINE: Duration = Duration::from_secs(30);

/// A connection whose core is the test itself.
struct Rig {
    client: UnixStream,
    inbox: mpsc::Receiver<Input>,
    outbox: mpsc::Sender<Outgoing>,
    stop: CancellationToken,
    buffers: Buffers,
    registry: Registry,
    task: JoinHandle<()>,
}

impl Rig {
    async fn new() -> Self {
        Self::with_room(4096).await
    }

    /// Creates a connection whose core has a queue of this length.
    async fn with_room(room: usize) -> Self {
        Self::with(room, usize::MAX).await
    }

    /// Creates a connection with that many bytes for unanswered commands.
    async fn with_commands(bytes: usize) -> Self {
        Self::with(4096, bytes).await
    }

    async fn with(room: usize, commands: usize) -> Self {
        let (client, server) = UnixStream::pair().unwrap();
        let (core, mut inbox) = mpsc::channel(room);
        let (stop, buffers) = (CancellationToken::new(), Buffers::new(commands));
        let registry = Registry::new();
        let shared = Shared {
            core,
            processes: Processes::new(100),
            stop: stop.clone(),
            agent: AgentInfo::for_tests().into(),
            metrics: Arc::new(Metrics::new(&registry, "default").unwrap()),
            buffers: buffers.clone(),
            time: ThreadTime::start(),
        };
        let task = tokio::spawn(serve(server, ConnectionId(5), shared.into()));
        let Ok(Some(Input::Opened { connection: ConnectionId(5), peer, secret, outbox })) =
            timeout(DEADLINE, inbox.recv()).await
        else {
            panic!("not opened")
        };
        assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
        assert_ne!(secret, Secret([0; 16]));
        Self { client, inbox, outbox, stop, buffers, registry, task }
    }

    async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        timeout(DEADLINE, self.client.write_all(bytes.as_ref())).await.unwrap().unwrap();
    }

    async fn read(&mut self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        timeout(DEADLINE, self.client.read_exact(&mut bytes)).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    async fn read_end(&mut self) -> String {
        let mut text = String::new();
        timeout(DEADLINE, self.client.read_to_string(&mut text)).await.unwrap().unwrap();
        text
    }

    async fn input(&mut self) -> Input {
        timeout(DEADLINE, self.inbox.recv()).await.unwrap().unwrap()
    }

    async fn command(&mut self) -> Command {
        match self.input().await {
            Input::Command(ConnectionId(5), command) => command,
            other => panic!("no command: {other:?}"),
        }
    }

    /// Returns the next reply that the connection has made itself.
    async fn answered(&mut self) -> Outgoing {
        match self.input().await {
            Input::Answered(ConnectionId(5), reply) => reply,
            other => panic!("no reply: {other:?}"),
        }
    }

    async fn answer(&self, text: &'static str) {
        self.outbox.send(Outgoing::Reply(Frame::Simple(text))).await.unwrap();
    }

    async fn closed(&mut self) {
        let input = self.input().await;
        assert!(matches!(input, Input::Closed(ConnectionId(5))), "{input:?}");
        assert!(timeout(DEADLINE, self.inbox.recv()).await.unwrap().is_none(), "more than one end");
    }

    /// Answers `+OK` to every command in order, from a task.
    fn answer_all(&mut self) -> JoinHandle<u64> {
        let (_, nothing) = mpsc::channel(1);
        let mut inbox = std::mem::replace(&mut self.inbox, nothing);
        let outbox = self.outbox.clone();
        tokio::spawn(async move {
            let mut commands = 0;
            while let Some(input) = inbox.recv().await {
                let reply = match input {
                    Input::Answered(_, reply) => reply,
                    Input::Command(..) => Outgoing::Reply(Frame::Simple("OK")),
                    Input::Closed(_) => return commands,
                    _ => continue,
                };
                commands += 1;
                outbox.try_send(reply).expect("room for every reply");
            }
            panic!("never closed")
        })
    }
}

#[tokio::test]
async fn connection_commands_are_answered_without_the_core() {
    let mut rig = Rig::new().await;
    rig.write("PING\r\n*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\nNONSENSE\r\n").await;
    let unknown = "-ERR unknown command 'NONSENSE', with args beginning with: \r\n";
    rig.read(&format!("+PONG\r\n$2\r\nhi\r\n{unknown}")).await;
    rig.write("CLIENT SETNAME me\r\n").await;
    rig.read("+OK\r\n").await;
    assert!(matches!(rig.input().await, Input::ClientName(ConnectionId(5), name) if name == b"me"));
    rig.write("HELLO 3\r\nHELLO 3\r\n").await;
    rig.read("%7\r\n$6\r\nserver\r\n$9\r\nlockscope\r\n").await;
    assert!(matches!(rig.input().await, Input::Resp3(ConnectionId(5), true)));
    drop(rig.client);
    rig.client = UnixStream::pair().unwrap().0;
    rig.closed().await;
}

#[tokio::test]
async fn replies_keep_the_order_of_their_commands() {
    let mut rig = Rig::new().await;
    rig.write("LOCK a\r\nPING\r\nHELLO 3\r\nLOCK b NOWAIT\r\n").await;
    assert_eq!(rig.command().await.word(), "lock");
    let pong = rig.answered().await;
    assert_eq!(pong, Outgoing::Reply(Frame::Simple("PONG")));
    assert!(matches!(rig.input().await, Input::Resp3(_, true)));
    let hello = rig.answered().await;
    assert!(matches!(hello, Outgoing::Switch(Protocol::Resp3, _)));
    assert_eq!(rig.command().await.word(), "lock");
    rig.outbox.send(Outgoing::Reply(Frame::Null)).await.unwrap();
    rig.outbox.send(pong).await.unwrap();
    rig.outbox.send(hello).await.unwrap();
    rig.outbox.send(Outgoing::Push(vec![Frame::Int(1)])).await.unwrap();
    rig.outbox.send(Outgoing::Reply(Frame::Null)).await.unwrap();
    rig.read("*-1\r\n+PONG\r\n%7\r\n").await;
    rig.client.shutdown().await.unwrap();
    let rest = rig.read_end().await;
    assert!(rest.ends_with(">1\r\n:1\r\n_\r\n"), "{rest}");
}

#[tokio::test]
async fn commands_that_the_connection_answers_are_counted_behind_others_too() {
    let mut rig = Rig::new().await;
    rig.write("PING\r\nLOCK a\r\nPING\r\n").await;
    rig.read("+PONG\r\n").await;
    rig.command().await;
    rig.answered().await;
    let metrics = service_kit::metrics::encode(&rig.registry).unwrap();
    let counted = r#"commands_total{command="other",outcome="ok"} 2"#;
    assert!(metrics.contains(counted), "{metrics}");
}

#[tokio::test]
async fn a_request_may_arrive_byte_by_byte() {
    let mut rig = Rig::new().await;
    for byte in b"*2\r\n$4\r\nLOCK\r\n$1\r\na\r\n" {
        rig.write([*byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.command().await.word(), "lock");
}

#[tokio::test]
async fn a_malformed_request_gets_its_error_in_order_and_closes() {
    let mut rig = Rig::new().await;
    rig.write("LOCK a\r\n*1\r\n$1073741824\r\nLOCK b\r\n").await;
    rig.command().await;
    let error = rig.answered().await;
    assert_eq!(rig.answered().await, Outgoing::Close);
    rig.answer("GRANTED").await;
    rig.outbox.send(error).await.unwrap();
    rig.outbox.send(Outgoing::Close).await.unwrap();
    let text = rig.read_end().await;
    assert!(text.starts_with("+GRANTED\r\n-ERR Protocol error: invalid bulk length"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    rig.closed().await;

    let mut rig = Rig::new().await;
    rig.write("\x16\x03\x01").await;
    let text = rig.read_end().await;
    assert_eq!(text, "-ERR Protocol error: expected '*' or a line of text, got '\\x16'\r\n");
    rig.closed().await;
}

#[tokio::test]
async fn a_close_that_answers_no_command_ends_the_connection() {
    for commands in 0..2 {
        let mut rig = Rig::new().await;
        rig.write("PING\r\n").await;
        rig.read("+PONG\r\n").await;
        rig.write("LOCK a\r\n".repeat(commands)).await;
        for _ in 0..commands {
            rig.command().await;
        }
        // The connection waits for the core.
        rig.outbox.send(Outgoing::Close).await.unwrap();
        assert_eq!(rig.read_end().await, "");
        rig.closed().await;
        rig.task.await.expect("no panic");
    }
}

#[tokio::test]
async fn quit_closes_after_its_reply() {
    let mut rig = Rig::new().await;
    rig.write("PING\r\nQUIT\r\nPING\r\n").await;
    assert_eq!(rig.read_end().await, "+PONG\r\n+OK\r\n");
    assert!(matches!(rig.input().await, Input::Quit(_)), "it ends regardless of grace");
    rig.closed().await;
}

#[tokio::test]
async fn ten_thousand_commands_may_be_sent_before_a_reply_is_read() {
    let mut rig = Rig::new().await;
    let answering = rig.answer_all();
    rig.write("LOCK some:name:of:a:lock WAIT 1000\r\nPING\r\n".repeat(5_000)).await;
    let mut replies = vec![0; 5_000 * "+OK\r\n+PONG\r\n".len()];
    timeout(DEADLINE, rig.client.read_exact(&mut replies)).await.unwrap().unwrap();
    assert_eq!(replies, "+OK\r\n+PONG\r\n".repeat(5_000).as_bytes());
    drop(rig.client);
    assert!(answering.await.unwrap() >= 5_000);
}

#[tokio::test]
async fn no_more_than_a_pipeline_is_unanswered() {
    let mut rig = Rig::new().await;
    let (mut reader, mut writer) = rig.client.into_split();
    let flood = tokio::spawn(async move {
        writer.write_all("LOCK a\r\n".repeat(100_000).as_bytes()).await.ok();
    });
    for _ in 0..PIPELINE - 1 {
        assert!(matches!(
            timeout(DEADLINE, rig.inbox.recv()).await.unwrap(),
            Some(Input::Command(..))
        ));
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(rig.inbox.try_recv().is_err(), "it reads on without a reply");
    rig.outbox.send(Outgoing::Reply(Frame::Simple("OK"))).await.unwrap();
    assert!(timeout(DEADLINE, rig.inbox.recv()).await.unwrap().is_some());
    let mut reply = [0; 5];
    timeout(DEADLINE, reader.read_exact(&mut reply)).await.unwrap().unwrap();
    flood.abort();
}

#[tokio::test]
async fn a_client_that_never_reads_is_throttled_and_its_disconnect_is_noticed() {
    let mut rig = Rig::new().await;
    let client = std::mem::replace(&mut rig.client, UnixStream::pair().unwrap().0);
    let answering = rig.answer_all();
    let echo = format!("*2\r\n$4\r\nECHO\r\n$4000\r\n{}\r\n", "x".repeat(4_000)).repeat(3_000);
    // Without backpressure it could write all of this.
    let (mut written, mut refused) = (0, 0);
    while written < echo.len() && refused < 5000 {
        match client.try_write(&echo.as_bytes()[written..]) {
            Ok(count) => (written, refused) = (written + count, 0),
            Err(_) => refused += 1,
        }
        tokio::task::yield_now().await;
    }
    assert!(written < 2 * write_buffer::MAX_UNSENT, "never throttled");
    assert!(written > write_buffer::MAX_UNSENT, "throttled at only {written} bytes");
    drop(client);
    timeout(DEADLINE, answering).await.unwrap().unwrap();
}

#[tokio::test]
async fn listings_run_one_at_a_time() {
    let mut rig = Rig::new().await;
    rig.write("LOCKS\r\nHOLDS\r\nPING\r\n").await;
    assert_eq!(rig.command().await.word(), "locks");
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(rig.inbox.try_recv().is_err(), "the second one waits");
    rig.answer("FIRST").await;
    assert_eq!(rig.command().await.word(), "holds");
    rig.answered().await;
    rig.answer("SECOND").await;
    rig.read("+FIRST\r\n+SECOND\r\n").await;
}

#[tokio::test]
async fn replies_that_arrive_together_unblock_a_listing() {
    let mut rig = Rig::new().await;
    rig.write("LOCK x\r\nHOLDS\r\nSHOW x\r\n").await;
    assert!(matches!(rig.command().await, Command::Lock(_)));
    assert_eq!(rig.command().await, Command::Holds);
    // Both arrive before the connection runs again: no further reply will wake it.
    rig.outbox.try_send(Outgoing::Reply(Frame::Simple("1"))).unwrap();
    rig.outbox.try_send(Outgoing::Reply(Frame::Simple("2"))).unwrap();
    assert!(matches!(rig.command().await, Command::Show(_)));
}

#[tokio::test]
async fn large_commands_are_read_only_while_there_is_room_for_them() {
    let mut rig = Rig::with_commands(100_000).await;
    let large = format!("ECHO {}\r\n", "x".repeat(4_000));
    rig.write("LOCK a\r\n").await;
    assert_eq!(rig.command().await.word(), "lock");
    let (mut reader, mut writer) = rig.client.into_split();
    let flood = tokio::spawn(async move {
        writer.write_all(large.repeat(100).as_bytes()).await.ok();
    });
    let next = async |inbox: &mut mpsc::Receiver<Input>| {
        matches!(timeout(DEADLINE, inbox.recv()).await.unwrap(), Some(Input::Answered(..)))
    };
    // One user has three quarters.
    for _ in 0..19 {
        assert!(next(&mut rig.inbox).await);
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(rig.inbox.try_recv().is_err(), "it reads on without a reply");
    // The reply to LOCK frees little, that to the first ECHO enough.
    for _ in 0..2 {
        rig.outbox.send(Outgoing::Reply(Frame::Simple("OK"))).await.unwrap();
        let mut reply = [0; 5];
        timeout(DEADLINE, reader.read_exact(&mut reply)).await.unwrap().unwrap();
    }
    assert!(next(&mut rig.inbox).await);
    flood.abort();
}

#[tokio::test]
async fn a_command_that_is_answered_here_counts_by_its_reply() {
    let mut rig = Rig::with_commands(100_000).await;
    rig.write("LOCK a\r\n").await;
    assert_eq!(rig.command().await.word(), "lock");
    for _ in 0..20 {
        rig.write(format!("NONSENSE {}\r\n", "x".repeat(10_000))).await;
        rig.answered().await;
    }
    rig.write(format!("ECHO {}\r\n", "x".repeat(4_097))).await;
    let Outgoing::Reply(Frame::Error(refusal)) = rig.answered().await else { panic!() };
    assert_eq!(refusal, "LIMIT PING and ECHO take 4096 bytes at most, not 4097");
}

#[tokio::test]
async fn a_connection_without_room_for_its_commands_is_read_once_others_make_room() {
    let mut rig = Rig::with_commands(100_000).await;
    let uid = rustix::process::geteuid().as_raw();
    let mut other = rig.buffers.share(uid, ConnectionId(100));
    other.add_command(90_000);
    rig.write("LOCK a\r\n".repeat(100)).await;
    let mut read = 0;
    loop {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        match rig.inbox.try_recv() {
            Ok(_) => read += 1,
            Err(_) if read > 0 => break,
            Err(_) => {}
        }
    }
    assert!(read < 100, "it reads on");
    drop(other);
    for _ in read..100 {
        assert!(matches!(rig.command().await, Command::Lock(_)));
    }
}

#[tokio::test]
async fn a_disconnect_is_noticed_while_a_command_blocks_and_input_is_unread() {
    let mut rig = Rig::new().await;
    rig.write("LOCK a\r\n".repeat(PIPELINE + 100)).await;
    for _ in 0..PIPELINE - 1 {
        rig.command().await;
    }
    rig.client = UnixStream::pair().unwrap().0;
    rig.closed().await;
}

#[tokio::test]
async fn a_client_that_stops_writing_still_gets_its_replies() {
    let mut rig = Rig::new().await;
    rig.write("LOCK a\r\nPING\r\nunfinished").await;
    rig.client.shutdown().await.unwrap();
    assert_eq!(rig.command().await.word(), "lock");
    let pong = rig.answered().await;
    rig.answer("GRANTED").await;
    rig.outbox.send(pong).await.unwrap();
    assert_eq!(rig.read_end().await, "+GRANTED\r\n+PONG\r\n");
    rig.closed().await;
}

#[tokio::test]
async fn a_disconnect_after_a_half_close_is_noticed_at_once() {
    let mut rig = Rig::new().await;
    rig.write("LOCK a\r\n").await;
    rig.client.shutdown().await.unwrap();
    assert_eq!(rig.command().await.word(), "lock");
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(rig.inbox.try_recv().is_err(), "it still waits for its reply");
    rig.client = UnixStream::pair().unwrap().0;
    rig.closed().await;
}

#[tokio::test]
async fn a_cancelled_task_sends_the_close_notice() {
    let mut rig = Rig::new().await;
    rig.task.abort();
    rig.closed().await;
}

#[tokio::test]
async fn a_full_core_blocks_the_connection_but_not_its_close_notice() {
    let mut rig = Rig::with_room(1).await;
    rig.write("LOCK a\r\n".repeat(10)).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    rig.client = UnixStream::pair().unwrap().0;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let mut commands = 0;
    while matches!(rig.input().await, Input::Command(..)) {
        commands += 1;
    }
    assert!(commands <= 2, "{commands} commands after the disconnect");
}

#[tokio::test]
async fn the_last_pushes_are_written_at_shutdown() {
    let mut rig = Rig::new().await;
    rig.write("HELLO 3\r\n").await;
    rig.read("%7\r\n").await;
    assert!(matches!(rig.input().await, Input::Resp3(..)));
    // More than a socket takes at once.
    const LOSSES: usize = 20_000;
    for _ in 0..LOSSES {
        rig.outbox.try_send(Outgoing::Loss(vec![Frame::word("lock-lost")])).unwrap();
    }
    rig.stop.cancel();
    assert_eq!(rig.read_end().await.matches(">1\r\n$9\r\nlock-lost\r\n").count(), LOSSES);
    rig.closed().await;
}

#[tokio::test]
async fn a_listing_waits_until_the_user_has_memory_for_its_reply() {
    let mut rig = Rig::new().await;
    let uid = rustix::process::geteuid().as_raw();
    let mut others: Vec<_> = (100..116).map(|i| rig.buffers.share(uid, ConnectionId(i))).collect();
    others.iter_mut().for_each(|other| other.set_listing(true));
    rig.write("UNLOCK a\r\nLOCKS\r\nUNLOCK b\r\n").await;
    assert!(matches!(rig.command().await, Command::Unlock(_)));
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(rig.inbox.try_recv().is_err(), "neither the listing nor what follows it");
    others.pop();
    assert!(matches!(rig.command().await, Command::Locks(_)));
    assert!(matches!(rig.command().await, Command::Unlock(_)));
    assert!(!others[0].may_list(), "the memory is reserved until the reply is there");
    for text in ["one", "two"] {
        rig.answer(text).await;
    }
    rig.read("+one\r\n+two\r\n").await;
    assert!(others[0].may_list());
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_once_it_is_evicted() {
    let mut rig = Rig::new().await;
    rig.write("LOCKS\r\n").await;
    assert!(matches!(rig.command().await, Command::Locks(_)));
    let reply = Frame::Bulk(vec![b'x'; 20 * 1024 * 1024].into());
    rig.outbox.try_send(Outgoing::Reply(reply)).unwrap();
    let now = || Moment::from_micros(service_kit::clock::boot_micros());
    let later = || now() + Duration::from_secs(11);
    let mut evicted = Vec::new();
    while evicted.is_empty() {
        assert_eq!(rig.buffers.evict(now()), [], "it has not been stalled for long");
        tokio::task::yield_now().await;
        evicted = rig.buffers.evict(later());
    }
    assert_eq!((evicted.len(), evicted[0].connection), (1, ConnectionId(5)));
    rig.closed().await;
    assert_eq!(rig.buffers.evict(later()), []);
}

#[tokio::test]
async fn idle_connections_use_little_memory() {
    let mut rig = Rig::new().await;
    rig.write(format!("NONSENSE {}\r\n", "x".repeat(60_000))).await;
    rig.read("-ERR unknown").await;
    let mut input = ReadBuffer::default();
    let (mut client, server) = UnixStream::pair().unwrap();
    client.write_all(&[b'x'; 40_000]).await.unwrap();
    server.readable().await.unwrap();
    let mut count = 0;
    while count < 40_000 {
        assert_eq!(input.read(&server).unwrap(), Read::Some);
        count = input.unread().len();
    }
    input.consume(count);
    input.trim();
    assert_eq!(input.read(&server).unwrap(), Read::Nothing);
    let size = size_of_val(&serve(
        server,
        ConnectionId(1),
        Arc::new(Shared {
            core: mpsc::channel(1).0,
            processes: Processes::new(1),
            stop: CancellationToken::new(),
            agent: AgentInfo::for_tests().into(),
            metrics: Arc::new(Metrics::new(&Registry::new(), "default").unwrap()),
            buffers: Buffers::new(usize::MAX),
            time: ThreadTime::start(),
        }),
    ));
    assert!(size < 2176, "{size} bytes per task");
}
