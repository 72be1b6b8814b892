use super::*;
use crate::protocol::resp::Decoder;

const CLIENT: ConnectionInfo = ConnectionInfo { id: 7, pid: Some(42) };

fn send(line: &str, state: &mut ClientState) -> Option<HandshakeReply> {
    let mut decoder = Decoder::default();
    let input = format!("{line}\r\n");
    super::reply(
        decoder.decode(input.as_bytes()).unwrap().unwrap().args,
        state,
        CLIENT,
        &AgentInfo::for_tests(),
    )
}

fn reply(line: &str) -> Frame {
    match send(line, &mut ClientState::default()).unwrap().frame {
        Outgoing::Reply(frame) | Outgoing::Switch(_, frame) => frame,
        other => panic!("no reply: {other:?}"),
    }
}

fn error_of(line: &str) -> String {
    match reply(line) {
        Frame::Error(text) => text,
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn connection_commands_are_answered() {
    assert_eq!(reply("PING"), Frame::Simple("PONG"));
    assert_eq!(reply("ping hi"), Frame::bytes("hi"));
    assert_eq!(reply("ECHO hi"), Frame::bytes("hi"));
    for accepted in [
        "AUTH secret",
        "AUTH me secret",
        "SELECT 3",
        "CLIENT SETNAME me",
        "CLIENT SETINFO LIB-NAME redis-py",
        "CLIENT SETINFO lib-ver 8.1.0",
        "CLIENT NO-EVICT on",
        "CLIENT NO-TOUCH OFF",
        "QUIT",
    ] {
        assert_eq!(reply(accepted), ok(), "{accepted}");
    }
    assert_eq!(reply("CLIENT ID"), Frame::Int(7));
    assert_eq!(reply("CLIENT GETNAME"), Frame::NullValue);
    assert_eq!(reply("COMMAND"), Frame::Array(vec![]));
    assert_eq!(reply("COMMAND DOCS lock"), Frame::Map(vec![]));
    assert_eq!(reply("COMMAND COUNT"), Frame::Int(0));
    let Frame::Bulk(info) = reply("INFO server") else { panic!() };
    let info = String::from_utf8(info.into_owned()).unwrap();
    for line in ["redis_version:7.2.0\r\n", "role:master\r\n", "loading:0\r\n"] {
        assert!(info.contains(line), "{info}");
    }
    assert_eq!(send("LOCK a", &mut ClientState::default()), None);
    assert_eq!(send("UNSEEN", &mut ClientState::default()), None);
}

#[test]
fn invalid_commands_get_the_errors_of_redis() {
    for (line, start) in [
        ("PING a b", "ERR wrong number of arguments for 'ping'"),
        ("ECHO", "ERR wrong number of arguments for 'echo'"),
        ("AUTH", "ERR wrong number of arguments for 'auth'"),
        ("SELECT", "ERR wrong number of arguments for 'select'"),
        ("SELECT x", "ERR value is not an integer"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO three", "ERR Protocol version is not an integer"),
        ("HELLO 3 AUTH me", "ERR Syntax error in HELLO option 'AUTH'"),
        ("HELLO 3 SETNAME", "ERR Syntax error in HELLO option 'SETNAME'"),
        ("HELLO 3 SETNAME 'a b'", "ERR Client names cannot contain spaces"),
        ("CLIENT SETNAME 'a b'", "ERR Client names cannot contain spaces"),
        ("CLIENT SETNAME", "ERR wrong number of arguments for 'client|setname'"),
        ("CLIENT", "ERR wrong number of arguments for 'client'"),
        ("CLIENT SETINFO other x", "ERR Unrecognized option 'other'"),
        ("CLIENT NO-EVICT maybe", "ERR syntax error"),
        ("CLIENT MAINT_NOTIFICATIONS ON", "ERR unknown subcommand 'MAINT_NOTIFICATIONS'"),
        ("CLIENT TRACKING ON", "ERR unknown subcommand 'TRACKING'"),
        ("COMMAND GETKEYS", "ERR unknown subcommand 'GETKEYS'"),
    ] {
        let text = error_of(line);
        assert!(text.starts_with(start), "{line}: {text}");
    }
    assert!(error_of(&format!("CLIENT SETNAME {}", "x".repeat(129))).contains("longer than 128"));
}

#[test]
fn hello_changes_all_or_nothing() {
    let mut state = ClientState::default();
    send("HELLO 3 SETNAME me NONSENSE", &mut state).unwrap();
    assert_eq!((state.protocol, state.name.clone()), (Protocol::Resp2, None));
    let answer = send("HELLO 3 AUTH default secret SETNAME me", &mut state).unwrap();
    assert!(matches!(answer.frame, Outgoing::Switch(Protocol::Resp3, Frame::Map(_))));
    assert!(answer.named);
    assert_eq!((state.protocol, state.name.as_deref()), (Protocol::Resp3, Some(&b"me"[..])));
    let answer = send("HELLO", &mut state).unwrap();
    assert!(
        matches!(answer.frame, Outgoing::Switch(Protocol::Resp3, _)),
        "HELLO without arguments changes nothing"
    );
    assert!(!answer.named);
}

#[test]
fn reset_returns_to_resp2_and_clears_the_name() {
    let mut state = ClientState { protocol: Protocol::Resp3, name: Some(b"me".to_vec()) };
    let answer = send("RESET", &mut state).unwrap();
    assert_eq!(answer.frame, Outgoing::Switch(Protocol::Resp2, Frame::Simple("RESET")));
    assert!(answer.named && state.name.is_none());
    assert_eq!(state.protocol, Protocol::Resp2);
}

#[test]
fn client_list_shows_only_the_client_itself() {
    let mut state = ClientState::default();
    send("CLIENT SETNAME me", &mut state).unwrap();
    let Outgoing::Reply(Frame::Bulk(line)) = send("CLIENT LIST", &mut state).unwrap().frame else {
        panic!()
    };
    assert_eq!(&*line, b"id=7 name=me db=0 resp=2 pid=42\n");
}
