//! A proxy between two of our processes that fails as networks do, connection by connection and in either direction.
//!
//! It can deliver held bytes late, even after the sender has closed: the receiver then still gets the bytes, and the
//! end after them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::eventually;

/// The number of pieces that one direction of a line holds back; beyond it the proxy stops reading from the sender.
const HELD: usize = 4096;

/// The number of held bytes per direction that tests can inspect.
const KEPT: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client that connected.
    Up,
    /// Back to the client.
    Down,
}

/// The treatment of the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Pass,
    /// They are kept, and delivered when the flow is [`Flow::Pass`] again.
    Hold,
    /// They are delivered until one piece contains this word; from then on they are held.
    HoldFrom(&'static str),
    /// They are read and never delivered.
    Swallow,
    /// They are delivered that much later, in order.
    Delay(Duration),
    /// That many more bytes are delivered, then both ends see the connection close.
    CutAfter(usize),
    /// The receiver sees the end, and the other direction continues; further bytes are swallowed.
    End,
    /// The first text is delivered, then the second one again and again; further bytes are swallowed.
    Flood(&'static str, &'static str),
}

/// The treatment of new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// They are connected to the target.
    Open,
    /// They are closed at once.
    Refuse,
    /// They are accepted, but nothing ever comes back; what they send is kept until [`Proxy::heal`].
    Silent,
}

/// The target of a proxy.
#[derive(Debug, Clone)]
pub enum Place {
    /// A port of this host.
    Port(u16),
    /// A Unix socket.
    Socket(PathBuf),
}

/// The proxy. When dropped, it ends with all its lines.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: Option<u16>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    to: Mutex<Place>,
    gate: Mutex<Gate>,
    lines: Mutex<Vec<Arc<Line>>>,
    /// Added to the seconds in replies to TIME.
    clock: Arc<AtomicI64>,
}

/// One connection through the proxy.
#[derive(Debug)]
pub struct Line {
    name: Mutex<Option<String>>,
    up: Lane,
    down: Lane,
    /// Set to true to cut the line.
    cut: watch::Sender<bool>,
    open: watch::Sender<bool>,
}

#[derive(Debug)]
struct Lane {
    flow: watch::Sender<Flow>,
    /// The bytes received during [`Flow::Hold`], up to [`KEPT`].
    kept: Mutex<Vec<u8>>,
    /// The bytes read from the sender and those delivered.
    taken: AtomicUsize,
    arrived: AtomicUsize,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Proxy {
    /// Starts a proxy on a free port of this host.
    ///
    /// # Errors
    /// Returns an error if there is no free port.
    pub async fn tcp(to: Place) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let shared = Shared::new(to);
        let accepting = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                // A failed accept counts as no connection.
                loop {
                    if let Ok((stream, _)) = listener.accept().await {
                        stream.set_nodelay(true).ok();
                        shared.accept(Box::new(stream));
                    }
                }
            }
        });
        Ok(Self { shared, port: Some(port), accepting })
    }

    /// Starts a proxy on a Unix socket at `path`, which must not exist.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be made.
    pub fn unix(path: &Path, to: Place) -> Result<Self> {
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        let shared = Shared::new(to);
        let accepting = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                loop {
                    if let Ok((stream, _)) = listener.accept().await {
                        shared.accept(Box::new(stream));
                    }
                }
            }
        });
        Ok(Self { shared, port: None, accepting })
    }

    /// Returns its address for programs, if it is on a port.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port.unwrap_or_default())
    }

    /// Connects new clients to another target.
    pub fn lead_to(&self, to: Place) {
        *self.shared.to.lock() = to;
    }

    /// Sets the treatment of new connections.
    pub fn gate(&self, gate: Gate) {
        *self.shared.gate.lock() = gate;
    }

    /// Returns the open lines, oldest first; with `name`, only those with that name set by CLIENT SETNAME.
    #[must_use]
    pub fn lines(&self, name: Option<&str>) -> Vec<Arc<Line>> {
        let mut lines = self.shared.lines.lock();
        lines.retain(|line| line.is_open());
        let named = |line: &&Arc<Line>| name.is_none_or(|name| line.is_called(name));
        lines.iter().filter(named).cloned().collect()
    }

    /// Waits for an open line of that name, and returns the newest.
    pub async fn line(&self, name: &str) -> Arc<Line> {
        eventually("a line of that name", async || {
            self.lines(Some(name)).pop().with_context(|| format!("{name} is not connected"))
        })
        .await
    }

    /// Stops all delivery, on old and new connections, unnoticed by either side.
    pub fn part(&self) {
        self.gate(Gate::Silent);
        for line in self.lines(None) {
            line.set(Way::Up, Flow::Hold);
            line.set(Way::Down, Flow::Hold);
        }
    }

    /// Lets everything pass again, held bytes first.
    pub fn heal(&self) {
        self.gate(Gate::Open);
        for line in self.lines(None) {
            line.set(Way::Up, Flow::Pass);
            line.set(Way::Down, Flow::Pass);
        }
    }

    /// Cuts every line.
    pub fn cut(&self) {
        for line in self.lines(None) {
            line.cut();
        }
    }

    /// Adds that many seconds to the server's clock in future replies to TIME.
    pub fn shift_clock(&self, seconds: i64) {
        self.shared.clock.store(seconds, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Shared {
    fn new(to: Place) -> Arc<Self> {
        Arc::new(Self {
            to: Mutex::new(to),
            gate: Mutex::new(Gate::Open),
            lines: Mutex::default(),
            clock: Arc::default(),
        })
    }

    fn accept(&self, near: Box<dyn Stream>) {
        let flow = match *self.gate.lock() {
            Gate::Open => Flow::Pass,
            Gate::Refuse => return,
            Gate::Silent => Flow::Hold,
        };
        let lane = || Lane {
            flow: watch::Sender::new(flow),
            kept: Mutex::default(),
            taken: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
        };
        let line = Arc::new(Line {
            name: Mutex::default(),
            up: lane(),
            down: lane(),
            cut: watch::Sender::new(false),
            open: watch::Sender::new(true),
        });
        self.lines.lock().push(Arc::clone(&line));
        let (to, clock) = (self.to.lock().clone(), Arc::clone(&self.clock));
        tokio::spawn(async move {
            let mut cut = line.cut.subscribe();
            tokio::select! {
                () = line.lead(near, to, &clock) => {}
                // The sender lives as long as the line.
                _ = cut.wait_for(|cut| *cut) => {}
            }
            line.open.send_replace(false);
        });
    }
}

impl Lane {
    /// Writes these until the receiver closes.
    async fn flood(&self, to: &mut (impl AsyncWrite + Unpin), head: &str, body: &str) {
        let body = body.repeat((64 << 10) / body.len());
        let mut piece = format!("{head}{body}");
        while to.write_all(piece.as_bytes()).await.is_ok() {
            self.arrived.fetch_add(piece.len(), Ordering::Relaxed);
            piece.clone_from(&body);
        }
    }
}

impl Line {
    /// Sets the treatment of one direction's bytes.
    pub fn set(&self, way: Way, flow: Flow) {
        self.lane(way).flow.send_replace(flow);
    }

    /// Closes both ends.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Returns whether at least one direction is still open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Returns the number of bytes of one direction that were received but not delivered.
    #[must_use]
    pub fn held(&self, way: Way) -> usize {
        let lane = self.lane(way);
        let arrived = lane.arrived.load(Ordering::Relaxed);
        lane.taken.load(Ordering::Relaxed).saturating_sub(arrived)
    }

    /// Returns whether a script is held on its way up, or was when this direction was last set to hold.
    #[must_use]
    pub fn is_holding_a_script(&self) -> bool {
        self.lane(Way::Up).kept.lock().windows(7).any(|held| held == b"EVALSHA")
    }

    /// Returns the number of bytes of one direction that were delivered.
    #[must_use]
    pub fn delivered(&self, way: Way) -> usize {
        self.lane(way).arrived.load(Ordering::Relaxed)
    }

    /// Waits until one direction has read bytes that it has not delivered.
    pub async fn until_held(&self, way: Way) {
        eventually("bytes to be held", async || {
            anyhow::ensure!(self.held(way) > 0, "none are");
            Ok(())
        })
        .await;
    }

    fn is_called(&self, name: &str) -> bool {
        self.name.lock().as_deref() == Some(name)
    }

    fn lane(&self, way: Way) -> &Lane {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    async fn lead(&self, near: Box<dyn Stream>, to: Place, clock: &AtomicI64) {
        // A client whose target cannot be reached sees its connection close.
        let Ok(far) = connect(&to).await else { return };
        let (near_read, near_write) = tokio::io::split(near);
        let (far_read, far_write) = tokio::io::split(far);
        let up = self.carry(Way::Up, near_read, far_write, None);
        let down = self.carry(Way::Down, far_read, near_write, Some(clock));
        tokio::join!(up, down);
    }

    /// Carries one direction's bytes until the end is delivered, or cannot be.
    async fn carry(
        &self,
        way: Way,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        clock: Option<&AtomicI64>,
    ) {
        let lane = self.lane(way);
        let (pieces, mut taken) = mpsc::channel::<(Instant, Vec<u8>)>(16);
        let take = async move {
            let mut bytes = vec![0; 16 << 10];
            // An error ends the direction, as the sender's close does.
            while let Ok(count @ 1..) = from.read(&mut bytes).await {
                let piece = bytes[..count].to_vec();
                if way == Way::Up {
                    self.learn_name(&piece);
                }
                let flow = *lane.flow.borrow();
                if let Flow::HoldFrom(word) = flow
                    && piece.windows(word.len()).any(|part| part == word.as_bytes())
                {
                    lane.flow.send_replace(Flow::Hold);
                }
                if *lane.flow.borrow() == Flow::Hold {
                    let mut kept = lane.kept.lock();
                    let room = KEPT.saturating_sub(kept.len());
                    kept.extend_from_slice(&piece[..count.min(room)]);
                }
                lane.taken.fetch_add(count, Ordering::Relaxed);
                if pieces.send((Instant::now(), piece)).await.is_err() {
                    return;
                }
            }
        };
        let give = async move {
            let mut flow = lane.flow.subscribe();
            let mut waiting: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
            let mut ended = false;
            loop {
                // The current treatment; a change while we wait below restarts the loop.
                let now = *flow.borrow_and_update();
                if now == Flow::End {
                    to.shutdown().await.ok();
                    while taken.recv().await.is_some() {}
                    return;
                }
                if let Flow::Flood(head, body) = now {
                    let swallow = async { while taken.recv().await.is_some() {} };
                    tokio::join!(lane.flood(&mut to, head, body), swallow);
                    return;
                }
                let due = match (now, waiting.front()) {
                    (
                        Flow::Pass | Flow::HoldFrom(_) | Flow::Swallow | Flow::CutAfter(_),
                        Some(_),
                    ) => Some(Instant::now()),
                    (Flow::Delay(delay), Some((at, _))) => Some(*at + delay),
                    (
                        Flow::Pass
                        | Flow::HoldFrom(_)
                        | Flow::Swallow
                        | Flow::CutAfter(_)
                        | Flow::Delay(_),
                        None,
                    ) if ended => {
                        break;
                    }
                    _ => None,
                };
                tokio::select! {
                    biased;
                    // The sender lives as long as the line.
                    _ = flow.changed() => {}
                    () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                        let Some((_, mut piece)) = waiting.pop_front() else { continue };
                        let whole = piece.len();
                        match now {
                            Flow::Swallow => {}
                            Flow::CutAfter(left) if left < whole => {
                                to.write_all(&piece[..left]).await.ok();
                                to.flush().await.ok();
                                self.cut();
                                return;
                            }
                            _ => {
                                if let Some(clock) = clock {
                                    shift_times(&mut piece, clock.load(Ordering::Relaxed));
                                }
                                if to.write_all(&piece).await.is_err() {
                                    return;
                                }
                            }
                        }
                        lane.arrived.fetch_add(whole, Ordering::Relaxed);
                        if let Flow::CutAfter(left) = now {
                            lane.flow.send_replace(Flow::CutAfter(left - whole));
                        }
                    }
                    piece = taken.recv(), if !ended && waiting.len() < HELD => match piece {
                        Some(piece) => waiting.push_back(piece),
                        None => ended = true,
                    },
                }
            }
            to.shutdown().await.ok();
        };
        tokio::join!(take, give);
    }

    /// Reads the connection's name from its CLIENT SETNAME.
    fn learn_name(&self, bytes: &[u8]) {
        const VERB: &[u8] = b"SETNAME\r\n";
        let mut name = self.name.lock();
        if name.is_some() {
            return;
        }
        let Some(at) = bytes.windows(VERB.len()).position(|window| window == VERB) else { return };
        let mut words = bytes[at + VERB.len()..].split(|byte| *byte == b'\n');
        if let (Some(_length), Some(word)) = (words.next(), words.next()) {
            *name = Some(String::from_utf8_lossy(word).trim_end().to_owned());
        }
    }
}

async fn connect(place: &Place) -> Result<Box<dyn Stream>> {
    Ok(match place {
        Place::Port(port) => {
            let stream = TcpStream::connect(("127.0.0.1", *port)).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Place::Socket(path) => Box::new(UnixStream::connect(path).await?),
    })
}

/// Changes the clock in replies to TIME. The seconds have ten digits for another 200 years, so no length changes.
fn shift_times(bytes: &mut [u8], seconds: i64) {
    const HEAD: &[u8] = b"*2\r\n$10\r\n";
    let mut at = 0;
    while seconds != 0 && at + HEAD.len() + 10 <= bytes.len() {
        if bytes[at..].starts_with(HEAD) {
            let digits = &mut bytes[at + HEAD.len()..at + HEAD.len() + 10];
            let told = std::str::from_utf8(digits).ok().and_then(|text| text.parse::<i64>().ok());
            if let Some(told) = told {
                digits.copy_from_slice(format!("{:010}", told + seconds).as_bytes());
            }
        }
        at += 1;
    }
}
