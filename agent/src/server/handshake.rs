//! The commands with which client libraries set up a connection, such as HELLO and CLIENT. Answered without the core.

use redisson::{ClientId, Moment};
use service_kit::clock::boot_micros;
use tokio::sync::watch;

use crate::protocol::command::{error, shown, upper};
use crate::protocol::resp::{Args, Frame, Outgoing, Protocol};
use crate::types::Status;

/// The Redis version reported to libraries: the one whose connection commands are served here.
const REDIS_VERSION: &str = "7.2.0";
/// The longest client name in bytes.
const MAX_CLIENT_NAME: usize = 128;
/// The longest text in bytes that PING and ECHO return. It may wait in the core for the replies to earlier commands.
const MAX_ECHO: usize = 4_096;

/// The identity of a connection, for HELLO and CLIENT.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionInfo {
    pub id: u64,
    /// The pid of the worker, if its namespace is visible.
    pub pid: Option<i32>,
}

/// The facts about the agent that INFO reports.
#[derive(Debug, Clone)]
pub struct AgentInfo {
    /// The client id of the agent in Redis.
    pub client: ClientId,
    pub status: watch::Receiver<Status>,
}

impl AgentInfo {
    /// Placeholder facts for tests.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self { client: ClientId::from_random([0; 16]), status: watch::channel(Status::default()).1 }
    }
}

/// The protocol version and the name that a client has chosen.
#[derive(Debug, Clone, Default)]
pub struct ClientState {
    pub protocol: Protocol,
    /// The name set with CLIENT SETNAME.
    pub name: Option<Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeReply {
    pub frame: Outgoing,
    /// The client set or cleared its name.
    pub named: bool,
    /// The connection closes after the reply.
    pub close: bool,
}

impl HandshakeReply {
    fn new(frame: Frame) -> Self {
        Self { frame: Outgoing::Reply(frame), named: false, close: false }
    }
}

/// Returns the reply to a connection command and updates `state`; `None` for every other command.
pub fn reply(
    args: Args<'_>,
    state: &mut ClientState,
    connection: ConnectionInfo,
    agent: &AgentInfo,
) -> Option<HandshakeReply> {
    let word = upper(args.get(0)?);
    let frame = match word.as_slice() {
        b"PING" => match args.len() {
            1 => Frame::Simple("PONG"),
            2 => echo(args),
            _ => wrong_number("ping"),
        },
        b"ECHO" if args.len() == 2 => echo(args),
        b"ECHO" => wrong_number("echo"),
        b"HELLO" => return Some(hello(args, state, connection)),
        b"CLIENT" => return Some(client_command(args, state, connection)),
        b"RESET" => {
            let named = state.name.is_some();
            *state = ClientState::default();
            let reply = Outgoing::Switch(Protocol::Resp2, Frame::Simple("RESET"));
            return Some(HandshakeReply { frame: reply, named, close: false });
        }
        b"QUIT" => return Some(HandshakeReply { close: true, ..HandshakeReply::new(ok()) }),
        // The agent has no users; the socket's permissions restrict who may connect.
        b"AUTH" if matches!(args.len(), 2 | 3) => ok(),
        b"AUTH" => wrong_number("auth"),
        b"SELECT" if args.len() == 2 => match args.get(1).and_then(number) {
            Some(_) => ok(),
            None => error("ERR value is not an integer or out of range"),
        },
        b"SELECT" => wrong_number("select"),
        b"COMMAND" => command(args),
        b"INFO" => Frame::bytes(info(agent)),
        _ => return None,
    };
    Some(HandshakeReply::new(frame))
}

fn ok() -> Frame {
    Frame::Simple("OK")
}

fn echo(args: Args<'_>) -> Frame {
    match args.get(1).unwrap_or_default() {
        text if text.len() > MAX_ECHO => {
            error(format!("LIMIT PING and ECHO take {MAX_ECHO} bytes at most, not {}", text.len()))
        }
        text => Frame::bytes(text),
    }
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn wrong_number(command: &str) -> Frame {
    error(format!("ERR wrong number of arguments for '{command}' command"))
}

/// Answers `HELLO [2|3 [AUTH user password] [SETNAME name]]`. Changes nothing unless all of it is valid.
fn hello(args: Args<'_>, state: &mut ClientState, connection: ConnectionInfo) -> HandshakeReply {
    let mut protocol = state.protocol;
    if let Some(version) = args.get(1) {
        protocol = match number(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return HandshakeReply::new(error("NOPROTO unsupported protocol version")),
            None => {
                let text = "ERR Protocol version is not an integer or out of range";
                return HandshakeReply::new(error(text));
            }
        };
    }
    let mut name = None;
    let mut at = 2;
    while let Some(option) = args.get(at) {
        match upper(option).as_slice() {
            b"AUTH" if args.len() > at + 2 => at += 3,
            b"SETNAME" if args.len() > at + 1 => {
                match client_name(args.get(at + 1).unwrap_or_default()) {
                    Ok(given) => name = Some(given),
                    Err(refused) => return HandshakeReply::new(refused),
                }
                at += 2;
            }
            _ => {
                let option = shown(option);
                return HandshakeReply::new(error(format!(
                    "ERR Syntax error in HELLO option '{option}'"
                )));
            }
        }
    }
    state.protocol = protocol;
    let named = name.is_some();
    if let Some(name) = name {
        state.name = name;
    }
    let reply = Frame::Map(vec![
        ("server", Frame::word("lockscope")),
        ("version", Frame::word(REDIS_VERSION)),
        ("proto", Frame::Int(if protocol == Protocol::Resp3 { 3 } else { 2 })),
        ("id", Frame::count(connection.id)),
        ("mode", Frame::word("standalone")),
        ("role", Frame::word("master")),
        ("modules", Frame::Array(Vec::new())),
    ]);
    HandshakeReply { frame: Outgoing::Switch(protocol, reply), named, close: false }
}

/// Validates a client name; `None` for the empty one, which clears it.
fn client_name(name: &[u8]) -> Result<Option<Vec<u8>>, Frame> {
    if name.len() > MAX_CLIENT_NAME {
        let text = format!("ERR Client names cannot be longer than {MAX_CLIENT_NAME} bytes");
        return Err(error(text));
    }
    if !printable(name) {
        return Err(error(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    Ok((!name.is_empty()).then(|| name.to_vec()))
}

fn printable(text: &[u8]) -> bool {
    text.iter().all(|b| (b'!'..=b'~').contains(b))
}

fn client_command(
    args: Args<'_>,
    state: &mut ClientState,
    connection: ConnectionInfo,
) -> HandshakeReply {
    let word = args.get(1).unwrap_or_default();
    let frame = match (upper(word).as_slice(), args.len()) {
        (b"SETNAME", 3) => match client_name(args.get(2).unwrap_or_default()) {
            Ok(name) => {
                state.name = name;
                return HandshakeReply { named: true, ..HandshakeReply::new(ok()) };
            }
            Err(refused) => refused,
        },
        (b"GETNAME", 2) => Frame::or_null(state.name.clone().map(Frame::bytes)),
        (b"SETINFO", 4) => set_info(args),
        (b"ID", 2) => Frame::count(connection.id),
        (b"INFO", 2) | (b"LIST", _) => Frame::bytes(client_line(state, connection)),
        (b"NO-EVICT" | b"NO-TOUCH", 3) => match args.get(2).unwrap_or_default() {
            value if value.eq_ignore_ascii_case(b"on") => ok(),
            value if value.eq_ignore_ascii_case(b"off") => ok(),
            _ => error("ERR syntax error"),
        },
        (b"", _) => wrong_number("client"),
        (
            known @ (b"SETNAME" | b"GETNAME" | b"SETINFO" | b"ID" | b"INFO" | b"NO-EVICT"
            | b"NO-TOUCH"),
            _,
        ) => wrong_number(&format!("client|{}", String::from_utf8_lossy(known).to_lowercase())),
        _ => error(format!(
            "ERR unknown subcommand '{}': CLIENT serves SETNAME, GETNAME, SETINFO, ID, INFO, LIST, \
             NO-EVICT and NO-TOUCH",
            shown(word)
        )),
    };
    HandshakeReply::new(frame)
}

/// Accepts and ignores the library's name and version.
fn set_info(args: Args<'_>) -> Frame {
    let what = args.get(2).unwrap_or_default().to_ascii_lowercase();
    match what.as_slice() {
        b"lib-name" | b"lib-ver" if printable(args.get(3).unwrap_or_default()) => ok(),
        b"lib-name" | b"lib-ver" => error(format!(
            "ERR {} cannot contain spaces, newlines or special characters.",
            String::from_utf8_lossy(&what)
        )),
        _ => error(format!("ERR Unrecognized option '{}'", shown(&what))),
    }
}

fn client_line(state: &ClientState, connection: ConnectionInfo) -> String {
    let name = state.name.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    let protocol = if state.protocol == Protocol::Resp3 { 3 } else { 2 };
    let pid = connection.pid.unwrap_or(0);
    format!("id={} name={name} db=0 resp={protocol} pid={pid}\n", connection.id)
}

/// Describes no commands, so that tools send them as typed.
fn command(args: Args<'_>) -> Frame {
    let word = args.get(1).unwrap_or_default();
    match upper(word).as_slice() {
        b"" | b"INFO" | b"LIST" => Frame::Array(Vec::new()),
        b"DOCS" => Frame::Map(Vec::new()),
        b"COUNT" => Frame::Int(0),
        _ => error(format!(
            "ERR unknown subcommand '{}': COMMAND serves COUNT, DOCS, INFO and LIST",
            shown(word)
        )),
    }
}

fn info(agent: &AgentInfo) -> String {
    let status = agent.status.borrow();
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let redis = line(&status.detail);
    let refusal = line(status.refusal(Moment::from_micros(boot_micros())).unwrap_or_default());
    let journal = line(status.journal_missing.as_deref().unwrap_or_default());
    let (redis_up, draining) = (u8::from(status.redis_up), u8::from(status.draining));
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\n\
         lockscope_version:{version}\r\nprocess_id:{pid}\r\n\r\n\
         # Persistence\r\nloading:0\r\n\r\n\
         # Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n\
         # Cluster\r\ncluster_enabled:0\r\n\r\n\
         # Lockscope\r\nagent:{}\r\nredis_up:{redis_up}\r\nredis:{redis}\r\nredis_refusal:{refusal}\r\ndraining:{draining}\r\n\
         journal_missing:{journal}\r\nholds:{}\r\nwaiters:{}\r\n",
        agent.client, status.holds, status.waiters
    )
}

#[cfg(test)]
mod tests;
