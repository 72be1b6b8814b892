//! Floods of the agent's socket: connections of one user that send as much as the agent accepts.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow, ensure};
use harness::user;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::{Errno, read, write};

use crate::wire::{Caller, encode, shown, whole};

/// The maximum number of bytes read from a connection at once.
const READ: usize = 64 << 10;

/// The content of a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// LOCKS with a pattern that is slow to match and matches nothing, 16 at a time.
    Locks,
    /// LOCKS with long replies, one at a time.
    Listings,
    /// PING, one at a time.
    Ping,
    /// LOCK and UNLOCK of names that nobody else uses, 16 pairs at a time.
    Lock,
    /// EVENTS of its session, one at a time.
    Events,
    /// PING, 10,000 at a time.
    Pipeline,
    /// LOCKS with long replies that are never read.
    Unread,
    /// Connect, PING, close.
    Connects,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Locks,
        Self::Listings,
        Self::Ping,
        Self::Lock,
        Self::Events,
        Self::Pipeline,
        Self::Unread,
        Self::Connects,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Locks => "LOCKS",
            Self::Listings => "listings",
            Self::Ping => "PING",
            Self::Lock => "LOCK",
            Self::Events => "EVENTS",
            Self::Pipeline => "pipelines",
            Self::Unread => "unread replies",
            Self::Connects => "connects",
        }
    }

    /// Returns the number of pending requests on a connection.
    const fn depth(self) -> usize {
        match self {
            Self::Locks | Self::Lock => 16,
            Self::Listings | Self::Ping | Self::Events | Self::Connects => 1,
            Self::Pipeline | Self::Unread => 10_000,
        }
    }

    /// Returns the request of a connection, and its number of replies.
    fn request(self, number: usize, session: &[String]) -> (Vec<u8>, usize) {
        match self {
            Self::Locks => {
                let pattern = format!("*{}*b", "a*".repeat(20));
                (encode(&["LOCKS", "COUNT", "1000", "MATCH", &pattern]), 1)
            }
            Self::Ping | Self::Pipeline | Self::Connects => (encode(&["PING"]), 1),
            Self::Lock => {
                let name = format!("bench:flood:{number}");
                let pair = [encode(&["LOCK", &name]), encode(&["UNLOCK", &name])];
                (pair.concat(), 2)
            }
            Self::Events => {
                let mut words = vec!["EVENTS"];
                words.extend(session.iter().map(String::as_str));
                (encode(&words), 1)
            }
            Self::Listings | Self::Unread => (encode(&["LOCKS", "COUNT", "1000"]), 1),
        }
    }
}

/// A flood on a separate thread.
#[derive(Debug)]
pub(crate) struct Flood {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Flood {
    /// Starts a flood from that many connections.
    pub(crate) fn start(socket: &Path, kind: Kind, connections: usize) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let (ends, socket) = (Arc::clone(&end), socket.to_owned());
        let thread = std::thread::spawn(move || {
            ensure!(user::become_another()?, "a flood needs root, to come from another user");
            Flooder::new(socket, kind, connections)?.run(&ends)
        });
        Self { end, thread }
    }

    /// Ends the flood and closes its connections. Returns the number of replies that it read.
    pub(crate) fn stop(self) -> Result<u64> {
        self.end.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the flood panicked"))?
    }
}

struct Flooder {
    socket: PathBuf,
    kind: Kind,
    epoll: std::os::fd::OwnedFd,
    connections: Vec<Connection>,
    replies: u64,
}

struct Connection {
    stream: UnixStream,
    /// The connection of the session whose events it reads, if any.
    _session: Option<Caller<UnixStream>>,
    request: Vec<u8>,
    replies_each: usize,
    /// Replies of the oldest request that are outstanding.
    outstanding: usize,
    unsent: VecDeque<u8>,
    unread: Vec<u8>,
}

impl Connection {
    fn open(socket: &Path, kind: Kind, number: usize) -> Result<Self> {
        let (session, id) = match kind {
            Kind::Events => session(socket).map(|(session, id)| (Some(session), id))?,
            _ => (None, Vec::new()),
        };
        let stream = UnixStream::connect(socket).context("flood")?;
        stream.set_nonblocking(true)?;
        let (request, replies_each) = kind.request(number, &id);
        let unsent = request.repeat(kind.depth()).into();
        let outstanding = replies_each;
        Ok(Self {
            stream,
            _session: session,
            request,
            replies_each,
            outstanding,
            unsent,
            unread: Vec::new(),
        })
    }

    /// Sends as much as the socket accepts.
    fn send(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match write(&self.stream, self.unsent.as_slices().0) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what has arrived. Returns the number of replies, or `None` at the end of the connection.
    fn receive(&mut self) -> Result<Option<u64>> {
        self.unread.reserve(READ);
        match read(&self.stream, rustix::buffer::spare_capacity(&mut self.unread)) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        let (mut at, mut replies) = (0, 0);
        while let Some(length) = self.unread.get(at..).and_then(whole) {
            let reply = self.unread.get(at..at + length).unwrap_or_default();
            ensure!(!reply.starts_with(b"-"), "flood: {}", shown(reply));
            at += length;
            replies += 1;
            self.outstanding -= 1;
            if self.outstanding == 0 {
                self.outstanding = self.replies_each;
                self.unsent.extend(&self.request);
            }
        }
        self.unread.drain(..at);
        Ok(Some(replies))
    }
}

/// Opens a session. Returns its connection, and its id and secret.
fn session(socket: &Path) -> Result<(Caller<UnixStream>, Vec<String>)> {
    let mut caller = Caller::unix(socket)?;
    let reply = String::from_utf8(caller.call(&encode(&["SESSION"]))?)?;
    let texts: Vec<String> = reply
        .split("\r\n")
        .filter(|word| !word.starts_with(['*', '$', '%']))
        .map(str::to_owned)
        .collect();
    let value = |key: &str| {
        let at = texts.iter().position(|text| text == key).context("SESSION without it")?;
        texts.get(at + 1).cloned().context("SESSION without its value")
    };
    let id = vec![value("id")?, value("secret")?];
    Ok((caller, id))
}

impl Flooder {
    fn new(socket: PathBuf, kind: Kind, connections: usize) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut flooder = Self { socket, kind, epoll, connections: Vec::new(), replies: 0 };
        for number in 0..connections {
            let connection = flooder.open(number)?;
            flooder.connections.push(connection);
        }
        Ok(flooder)
    }

    fn open(&self, number: usize) -> Result<Connection> {
        let mut connection = Connection::open(&self.socket, self.kind, number)?;
        connection.send()?;
        let reads = if self.kind == Kind::Unread { EventFlags::empty() } else { EventFlags::IN };
        let events = reads | EventFlags::OUT | EventFlags::ET;
        epoll::add(
            &self.epoll,
            connection.stream.as_fd(),
            EventData::new_u64(number as u64),
            events,
        )?;
        Ok(connection)
    }

    fn run(mut self, end: &AtomicBool) -> Result<u64> {
        let mut events: Vec<Event> = Vec::with_capacity(1024);
        while !end.load(Ordering::Relaxed) {
            events.clear();
            let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&pause))?;
            for event in &events {
                let data = event.data;
                self.serve(usize::try_from(data.u64())?)?;
            }
        }
        Ok(self.replies)
    }

    fn serve(&mut self, number: usize) -> Result<()> {
        let connection = self.connections.get_mut(number).context("a connection of the flood")?;
        if self.kind == Kind::Unread {
            return connection.send();
        }
        // The events are edge-triggered, so read until nothing is left.
        loop {
            let replies = connection.receive()?;
            match replies {
                Some(0) => break,
                Some(replies) => {
                    self.replies += replies;
                    if self.kind == Kind::Connects {
                        let fresh = self.open(number)?;
                        if let Some(old) = self.connections.get_mut(number) {
                            *old = fresh;
                        }
                        return Ok(());
                    }
                    connection.send()?;
                }
                None => anyhow::bail!("flood: the agent closed a connection"),
            }
        }
        connection.send()
    }
}
