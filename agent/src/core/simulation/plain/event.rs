//! Events of a run, and the inputs of a core.

use std::rc::Rc;

use redisson::LockName;
use redisson::script::{Call, Value};

use crate::core::{Failure, OpId};
use crate::protocol::command::Command;
use crate::protocol::resp::Outgoing;
use crate::types::{ConnectionId, Number};

#[derive(Debug)]
pub(super) enum Event {
    Arrive(Packet),
    Answer {
        host: usize,
        run: u64,
        lane: usize,
        generation: u64,
        id: u64,
        outcome: Result<Value, Failure>,
    },
    TimeOut {
        host: usize,
        run: u64,
        lane: usize,
        generation: u64,
        id: u64,
    },
    /// A host sends the scripts that have become ready together.
    Flush {
        host: usize,
        run: u64,
    },
    Heartbeat {
        host: usize,
        run: u64,
        lane: usize,
        generation: u64,
    },
    Break {
        host: usize,
        run: u64,
        lane: usize,
        generation: u64,
    },
    Connect {
        host: usize,
        run: u64,
        lane: usize,
    },
    Subscribe {
        host: usize,
        run: u64,
        generation: u64,
        name: LockName,
    },
    Input {
        host: usize,
        run: u64,
        input: Input,
    },
    Alarm {
        host: usize,
        at: u64,
    },
    Resume {
        host: usize,
    },
    Reconnect {
        host: usize,
        run: u64,
        connection: ConnectionId,
    },
    Act {
        host: usize,
        run: u64,
        connection: ConnectionId,
        owner: usize,
    },
    Read {
        host: usize,
        run: u64,
        connection: ConnectionId,
    },
    Join {
        host: usize,
    },
    OtherClient(usize),
    Fault,
    Repair(Repair),
}

/// An input of a core.
#[derive(Debug)]
pub(super) enum Input {
    Outcome {
        renewal: bool,
        op: OpId,
        outcome: Result<Value, Failure>,
    },
    Connected,
    Message(LockName),
    Subscribed(LockName),
    Unsubscribed,
    Forced(LockName, Number),
    Opened(ConnectionId, bool),
    Command(ConnectionId, Command),
    Answered(ConnectionId, Outgoing),
    Closed(ConnectionId),
    /// The agent checked which workers are stopped.
    Stopped,
}

impl Input {
    /// The priority that the runtime gives to an input; 0 is the highest.
    pub(super) fn urgency(&self) -> u8 {
        match self {
            Self::Outcome { renewal: true, .. } => 0,
            Self::Outcome { .. } => 1,
            Self::Opened(..) | Self::Command(..) | Self::Answered(..) | Self::Closed(_) => 3,
            _ => 2,
        }
    }
}

/// The generation of a copy that the network made. It belongs to no connection.
pub(super) const REPEATED: u64 = u64::MAX;

/// A script of an operation.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) op: OpId,
    pub(super) call: Call,
}

/// A call on its way to Redis.
#[derive(Debug, Clone)]
pub(super) struct Packet {
    pub(super) host: usize,
    pub(super) run: u64,
    pub(super) lane: usize,
    pub(super) generation: u64,
    pub(super) id: u64,
    /// The scripts that share it, or the only one.
    pub(super) scripts: Rc<[Script]>,
    /// The network delayed it, and it arrives in any case.
    pub(super) held: bool,
}

impl Packet {
    /// Reports whether it is a copy that the network made.
    pub(super) fn is_repeated(&self) -> bool {
        self.generation == REPEATED
    }
}

/// The repair of a lasting fault.
#[derive(Debug, Clone, Copy)]
pub(super) enum Repair {
    ServerUp,
    Memory,
    Disk(usize),
    Refusal,
    Alien(&'static str),
    Counter(&'static str),
}
