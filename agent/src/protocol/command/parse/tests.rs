use super::*;
use crate::protocol::resp::Decoder;

fn with_args<T>(line: &str, then: impl FnOnce(Args<'_>) -> T) -> T {
    let mut decoder = Decoder::default();
    let input = format!("{line}\r\n");
    let request = decoder.decode(input.as_bytes()).unwrap().unwrap();
    then(request.args)
}

fn read(line: &str) -> Result<Command, String> {
    with_args(line, |args| parse(args, Protocol::Resp2)).map_err(|frame| match frame {
        Frame::Error(text) => text,
        other => panic!("no error: {other:?}"),
    })
}

fn plain(name: &str) -> LockRequest {
    LockRequest::new(LockName::new(name.as_bytes()).unwrap())
}

#[test]
fn operator_commands_are_parsed() {
    let name = || LockName::new("a".as_bytes()).unwrap();
    assert_eq!(read("FORCE a"), Ok(Command::Force { name: name(), holder: None, report: false }));
    let holder = Some(b"u:1".to_vec());
    assert_eq!(
        read("force a holder u:1 report"),
        Ok(Command::Force { name: name(), holder, report: true })
    );
    assert_eq!(read("kick 1-2"), Ok(Command::Kick(b"1-2".to_vec())));
}

#[test]
fn lock_takes_all_its_options() {
    assert_eq!(read("LOCK a"), Ok(Command::Lock(plain("a"))));
    let full = "lock a kind LOCK wait 250 lease 100 owner -3 in s1 traceparent 00-ab";
    let expected = LockRequest {
        wait: Wait::AtMost(Duration::from_millis(250)),
        lease: Lease::new(Duration::from_millis(100)),
        owner: -3,
        session: Some(b"s1".to_vec()),
        traceparent: Some(b"00-ab".to_vec()),
        ..plain("a")
    };
    assert_eq!(read(full), Ok(Command::Lock(expected)));
    let now = LockRequest { wait: Wait::AtMost(Duration::ZERO), ..plain("a") };
    assert_eq!(read("LOCK a NOWAIT"), Ok(Command::Lock(now.clone())));
    assert_eq!(read("LOCK a WAIT 0"), Ok(Command::Lock(now)));
    assert_eq!(read("LOCK WAIT NOWAIT").unwrap().word(), "lock", "a name may look like a keyword");
}

#[test]
fn all_other_commands_are_parsed() {
    let (kind, session) = (Some(Kind::Lock), Some(b"s".to_vec()));
    let hold = HoldRequest { kind, owner: 7, session, ..HoldRequest::new(plain("a").name) };
    assert_eq!(read("UNLOCK a KIND lock OWNER 7 IN s"), Ok(Command::Unlock(hold.clone())));
    assert_eq!(
        read("EXTEND a 5000 KIND lock OWNER 7 IN s"),
        Ok(Command::Extend(hold.clone(), Lease::new(Duration::from_secs(5))))
    );
    assert_eq!(read("EXTEND a 0 KIND lock OWNER 7 IN s"), Ok(Command::Extend(hold, None)));
    assert_eq!(read("holds"), Ok(Command::Holds));
    assert_eq!(read("SHOW a").unwrap().word(), "show");
    let list = ListRequest { pattern: Some(b"x*".to_vec()), cursor: 12, count: 5 };
    assert_eq!(read("LOCKS MATCH x* CURSOR 12 COUNT 5"), Ok(Command::Locks(list)));
    assert_eq!(
        read("SESSION PUSH off DEADLINES ON PROCESS on"),
        Ok(Command::Session {
            grace: None,
            push: Some(false),
            deadlines: Some(true),
            process: Some(true)
        })
    );
    assert_eq!(
        read("EVENTS s k WAIT 10"),
        Ok(Command::Events {
            session: b"s".to_vec(),
            secret: b"k".to_vec(),
            wait: Duration::from_millis(10)
        })
    );
    assert_eq!(
        read("CANCEL s k OWNER 4"),
        Ok(Command::Cancel { session: b"s".to_vec(), secret: b"k".to_vec(), owner: 4 })
    );
}

#[test]
fn pushes_need_resp3() {
    let on = Ok(Command::Session { grace: None, push: Some(true), deadlines: None, process: None });
    assert_eq!(with_args("SESSION PUSH on", |args| parse(args, Protocol::Resp3)), on);
    assert!(read("SESSION PUSH on").unwrap_err().starts_with("SYNTAX PUSH on needs RESP3"));
}

#[test]
fn every_invalid_command_gets_an_error_that_names_the_cause() {
    let year = "31536000000";
    let over = "31536000001";
    let huge = "9".repeat(40);
    let long = "x".repeat(513);
    let cases: Vec<(String, &str)> = vec![
        ("LOCK".into(), "SYNTAX missing arguments: LOCK name"),
        ("LOCK ''".into(), "SYNTAX a lock name cannot be empty"),
        (format!("LOCK {long}"), "LIMIT a lock name of 513 bytes is too long"),
        ("LOCK a WAIT".into(), "SYNTAX WAIT needs a value"),
        ("LOCK a WAIT -5".into(), "SYNTAX WAIT takes whole milliseconds, not '-5'"),
        ("LOCK a WAIT 1.5".into(), "SYNTAX WAIT takes whole milliseconds, not '1.5'"),
        ("LOCK a WAIT ''".into(), "SYNTAX WAIT takes whole milliseconds, not ''"),
        (format!("LOCK a WAIT {over}"), "LIMIT WAIT 31536000001 exceeds 31536000000 ms"),
        (format!("LOCK a WAIT {huge}"), "LIMIT WAIT 999"),
        ("LOCK a WAIT 1 NOWAIT".into(), "SYNTAX give either WAIT or NOWAIT"),
        ("LOCK a NOWAIT WAIT 1".into(), "SYNTAX give either WAIT or NOWAIT"),
        ("LOCK a NOWAIT NOWAIT".into(), "SYNTAX NOWAIT is given twice"),
        ("LOCK a WAIT 1 WAIT 1".into(), "SYNTAX WAIT is given twice"),
        ("LOCK a LEASE 99".into(), "LIMIT LEASE must be from 100 to 31536000000 ms"),
        ("LOCK a LEASE 0".into(), "LIMIT LEASE must be"),
        (format!("LOCK a LEASE {huge}"), "LIMIT LEASE must be"),
        ("LOCK a LEASE x".into(), "SYNTAX LEASE takes whole milliseconds"),
        ("LOCK a LEASE 100 LEASE 100".into(), "SYNTAX LEASE is given twice"),
        ("FORCE a REPORT REPORT".into(), "SYNTAX REPORT is given twice"),
        ("LOCK a OWNER x".into(), "SYNTAX OWNER takes a whole number"),
        ("LOCK a OWNER -".into(), "SYNTAX OWNER takes a whole number"),
        (format!("LOCK a OWNER {huge}"), "LIMIT OWNER 999"),
        ("LOCK a KIND soft".into(), "SYNTAX 'soft' is not a kind of lock"),
        (format!("LOCK a IN {long}"), "LIMIT IN of 513 bytes is too long"),
        ("LOCK a b".into(), "SYNTAX unexpected 'B': LOCK name"),
        ("UNLOCK a WAIT 5".into(), "SYNTAX unexpected 'WAIT': UNLOCK name"),
        ("EXTEND a".into(), "SYNTAX missing arguments: EXTEND name ms"),
        ("EXTEND a 99".into(), "LIMIT EXTEND must be from 100"),
        (format!("EXTEND a {over}"), "LIMIT EXTEND must be"),
        ("HOLDS a".into(), "SYNTAX missing arguments: HOLDS [id secret]"),
        ("HOLDS 1-1 secret b".into(), "SYNTAX unexpected 'B': HOLDS"),
        ("SHOW".into(), "SYNTAX missing arguments: SHOW name"),
        ("SHOW a b".into(), "SYNTAX unexpected 'B': SHOW name"),
        ("LOCKS COUNT 0".into(), "LIMIT COUNT must be from 1 to 1000"),
        ("LOCKS COUNT 1001".into(), "LIMIT COUNT must be"),
        (
            format!("LOCKS CURSOR {huge}"),
            "SYNTAX CURSOR takes the cursor that the last LOCKS returned",
        ),
        (format!("LOCKS MATCH {long}"), "LIMIT a MATCH of 513 bytes"),
        ("SESSION PUSH yes".into(), "SYNTAX PUSH takes on or off, not 'yes'"),
        ("EVENTS s".into(), "SYNTAX missing arguments: EVENTS id secret"),
        ("CANCEL s".into(), "SYNTAX missing arguments: CANCEL id secret"),
        ("FORCE".into(), "SYNTAX missing arguments: FORCE name [HOLDER id] [REPORT]"),
        ("FORCE a NOW".into(), "SYNTAX unexpected 'NOW': FORCE name"),
        ("KICK".into(), "SYNTAX missing arguments: KICK session"),
        ("KICK s now".into(), "SYNTAX unexpected 'NOW': KICK session"),
        ("MULTI".into(), "ERR MULTI is not supported: each command takes effect on its own"),
    ];
    for (line, start) in cases {
        let error = read(&line).unwrap_err();
        assert!(error.starts_with(start), "{line}: {error}");
    }
    assert!(read(&format!("LOCK a WAIT {year} LEASE {year}")).is_ok());
}

#[test]
fn an_unknown_command_gets_the_error_of_redis() {
    let text = "ERR unknown command 'FOO', with args beginning with: 'a' 'b c' ";
    assert_eq!(read("FOO a 'b c'").unwrap_err(), text);
    assert_eq!(read("foo").unwrap_err(), "ERR unknown command 'foo', with args beginning with: ");
    let long = read(&format!("x {} y", "z".repeat(300))).unwrap_err();
    assert!(long.ends_with(&format!("'{}' ", "z".repeat(128))), "{long}");
    assert!(!read("\"a\\n\\x1b[2J\"").unwrap_err().contains(char::is_control));
}

#[test]
fn mlock_and_munlock_name_several_locks() {
    let full = "mlock 2 b a kind write wait 250 lease 100 owner 3 in s1";
    let like = LockRequest {
        kind: Kind::Write,
        wait: Wait::AtMost(Duration::from_millis(250)),
        lease: Lease::new(Duration::from_millis(100)),
        owner: 3,
        session: Some(b"s1".to_vec()),
        ..plain("b")
    };
    let other = LockRequest { name: plain("a").name, ..like.clone() };
    assert_eq!(read(full), Ok(Command::LockAll(vec![like, other])));
    let kind = Some(Kind::Read);
    let hold = |name| HoldRequest { kind, owner: 3, ..HoldRequest::new(plain(name).name) };
    let expected = Command::UnlockAll(vec![hold("b"), hold("a")]);
    assert_eq!(expected.owner(), 3);
    assert_eq!(read("munlock 2 b a kind read owner 3"), Ok(expected));
    // A name may look like a keyword: the count shows where names end.
    let wait = Command::LockAll(vec![plain("WAIT"), plain("5")]);
    assert_eq!(read("MLOCK 2 WAIT 5"), Ok(wait));
}

#[test]
fn the_number_of_locks_is_bounded() {
    let names: Vec<_> = (0..65).map(|i| format!("n{i}")).collect();
    assert!(read(&format!("MLOCK 64 {}", names[..64].join(" "))).is_ok());
    let refused = |line: &str, word: &str| {
        let sentence = read(line).unwrap_err();
        assert!(sentence.starts_with(word), "{line}: {sentence}");
        assert!(sentence.contains("n name"), "{line}: {sentence}");
    };
    refused(&format!("MLOCK 65 {}", names.join(" ")), "LIMIT the number of locks must be");
    refused("MUNLOCK 0 a", "LIMIT");
    refused("MLOCK 99999999999999999999999 a", "LIMIT");
    refused("MLOCK 2 a", "SYNTAX missing arguments");
    refused("MLOCK", "SYNTAX missing arguments");
    refused("MLOCK 2 a a", "SYNTAX `a` appears twice");
    refused("MLOCK 1 a b", "SYNTAX unexpected 'B'");
    refused("MLOCK 1 a TRACEPARENT", "SYNTAX");
    assert!(read("MLOCK a b").unwrap_err().starts_with("SYNTAX the number of locks takes a whole"));
}
