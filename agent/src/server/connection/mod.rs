//! The connection of one worker: reads commands, passes them to the core, writes replies. One task per connection.
//!
//! The core never waits for a connection, and a connection uses bounded memory: at most [`PIPELINE`] unanswered
//! commands, only one of them a listing, and [`write_buffer::MAX_UNSENT`] unsent bytes; fewer commands and bytes while those of its
//! user or of all connections add up to too much ([`buffers`]). At a bound it stops reading, which applies backpressure to the client.

mod buffers;
mod close_notice;
mod disconnect;
mod read_buffer;
#[cfg(test)]
mod tests;
mod write_buffer;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use crate::core::{Input, PIPELINE};
use crate::metrics::Metrics;
use crate::protocol::command::{self, Command};
use crate::protocol::resp::{Decoder, Frame, Outgoing, Protocol};
use crate::server::handshake::{self, AgentInfo, ClientState, ConnectionInfo};
use crate::server::peer;
use crate::server::process::{Process, Processes, Watch};
use crate::thread_time::ThreadTime;
use crate::types::{ConnectionId, Secret};
use buffers::Share;
pub use buffers::{Buffers, Evicted};
use close_notice::CloseNotice;
use disconnect::Disconnect;
use read_buffer::{Read, ReadBuffer};
use write_buffer::WriteBuffer;

/// The number of commands that a connection decodes before it yields: all connections, the core and its renewals share
/// one thread.
const COMMANDS_PER_TURN: usize = 32;
/// The time after which a listing for which there was no memory is tried again.
const MEMORY_RETRY: Duration = Duration::from_millis(10);
/// The time after which a connection whose commands have no room is read again, if others have made room.
const ROOM_RETRY: Duration = Duration::from_millis(100);
/// An idle connection keeps memory for this number of unanswered commands.
const KEPT_UNANSWERED: usize = 4;
/// The time for the last replies of a connection at shutdown, a part of the second that the agent gives all connections.
const LAST_WRITES: Duration = Duration::from_millis(500);

/// The room for unanswered commands, in bytes for each of `--max-waiters`: about the size of a LOCK that waits.
pub const BYTES_OF_COMMAND: usize = 512;

/// The state that all connections share.
#[derive(Debug)]
pub struct Shared {
    pub core: mpsc::Sender<Input>,
    pub processes: Arc<Processes>,
    /// Cancelled to close every connection once its last replies are written.
    pub stop: CancellationToken,
    /// The facts that INFO reports.
    pub agent: Arc<AgentInfo>,
    pub metrics: Arc<Metrics>,
    pub buffers: Buffers,
    pub time: ThreadTime,
}

/// Serves a connection until it ends. The core receives exactly one [`Input::Closed`] per [`Input::Opened`].
pub async fn serve(stream: UnixStream, connection: ConnectionId, shared: Arc<Shared>) {
    let Ok(peer) = peer::of(&stream) else { return };
    let process = match shared.processes.watch(peer.pid) {
        Watch::Watched(process) => Some(process),
        Watch::Unwatched => None,
        // The session ends with the process that connected, even if another one inherited the socket.
        Watch::Dead => return,
    };
    let mut secret = [0; 16];
    if let Err(error) = getrandom::fill(&mut secret) {
        tracing::error!(%error, "connection refused: the kernel provides no random bytes");
        return;
    }
    let info = ConnectionInfo { id: connection.0, pid: peer.pid };
    let uid = peer.uid;
    let (outbox, replies) = mpsc::channel(Semaphore::MAX_PERMITS);
    let Ok(permit) = shared.core.reserve().await else { return };
    permit.send(Input::Opened { connection, peer, secret: Secret(secret), outbox });
    let close_notice = CloseNotice::new(connection, shared.core.clone());
    let share = shared.buffers.share(uid, connection);
    let eviction = share.eviction();
    let disconnect =
        std::pin::pin!(disconnect::wait(&stream, process.as_deref(), &shared.stop, &eviction));
    Connection {
        stream: &stream,
        id: connection,
        shared: &shared,
        process: process.clone(),
        disconnect,
        replies,
        client: ClientState::default(),
        info,
        decoder: Decoder::default(),
        input: ReadBuffer::default(),
        output: WriteBuffer::new(),
        share,
        held_listing: None,
        unsent: VecDeque::new(),
        unanswered: VecDeque::new(),
        sent: 0,
        answered: 0,
        listing: 0,
        input_ended: false,
        output_ended: false,
    }
    .run()
    .await;
    close_notice.send().await;
}

struct Connection<'a, Gone> {
    stream: &'a UnixStream,
    id: ConnectionId,
    shared: &'a Shared,
    process: Option<Arc<Process>>,
    /// Resolves when the worker disconnects, the agent stops, or the connection is evicted.
    disconnect: Pin<&'a mut Gone>,
    replies: mpsc::Receiver<Outgoing>,
    client: ClientState,
    info: ConnectionInfo,
    decoder: Decoder,
    input: ReadBuffer,
    output: WriteBuffer,
    share: Share,
    /// A listing that waits for the previous one, or for memory.
    held_listing: Option<Command>,
    /// Messages for which the core's queue has no room: at most those of one command.
    unsent: VecDeque<Input>,
    /// The bytes of each command that the core has not answered.
    unanswered: VecDeque<u32>,
    /// The number of commands sent to the core.
    sent: u64,
    /// The number of those that the core has answered.
    answered: u64,
    /// The ordinal of the last listing among the sent commands.
    listing: u64,
    /// Nothing more will be read: the client stopped writing, or sent a malformed request.
    input_ended: bool,
    /// Nothing more will be added to the output.
    output_ended: bool,
}

/// The connection has ended.
#[derive(Debug)]
struct Closed;

/// The reason why decoding stopped for now.
enum Stop {
    /// The buffer has no complete command.
    NeedsInput,
    /// Replies must arrive or be written first.
    Full,
    /// The core's queue is full.
    CoreFull,
    /// Other connections are due.
    Yield,
}

impl<Gone: Future<Output = Disconnect>> Connection<'_, Gone> {
    async fn run(mut self) {
        // Every step may end the connection; nothing is left to do then.
        let Err(Closed) = self.steps().await;
    }

    async fn steps(&mut self) -> Result<std::convert::Infallible, Closed> {
        loop {
            let stop = self.dispatch_commands()?;
            self.collect();
            self.output.flush(self.stream, &mut self.share).map_err(|_| Closed)?;
            if self.is_done(&stop) {
                return Err(Closed);
            }
            match stop {
                Stop::Yield => {
                    tokio::task::yield_now().await;
                    if let Some(reason) = self.disconnect.as_mut().now_or_never() {
                        return Err(self.leave(&reason).await);
                    }
                }
                Stop::CoreFull => self.wait_for_core().await?,
                // Replies or writes since then may have removed the cause.
                Stop::Full if !self.is_full() => {}
                Stop::NeedsInput => self.wait(!self.input_ended).await?,
                Stop::Full => self.wait(false).await?,
            }
        }
    }

    /// Returns whether the connection has nothing left to do.
    fn is_done(&self, stop: &Stop) -> bool {
        let idle = matches!(stop, Stop::NeedsInput) && self.sent == self.answered;
        self.output.is_empty() && (self.output_ended || (self.input_ended && idle))
    }

    /// Decodes and dispatches commands.
    fn dispatch_commands(&mut self) -> Result<Stop, Closed> {
        for _ in 0..COMMANDS_PER_TURN {
            if !self.unsent.is_empty() {
                return Ok(Stop::CoreFull);
            }
            if self.is_full() {
                return Ok(Stop::Full);
            }
            if let Some(listing) = self.held_listing.take() {
                self.send(listing, 0)?;
            } else if !self.dispatch_command()? {
                return Ok(Stop::NeedsInput);
            }
        }
        Ok(Stop::Yield)
    }

    /// Returns whether replies must arrive or be written before the next command.
    fn is_full(&self) -> bool {
        // Leaves room for two at once: an error and the close after it.
        let room = self.sent - self.answered + 2 <= PIPELINE as u64;
        let listing = self.held_listing.is_some() && !self.may_list();
        let full = self.output.is_full() || self.share.is_exhausted();
        self.output_ended || full || !room || listing
    }

    /// Returns whether the previous listing has been answered, and there is memory for another.
    fn may_list(&self) -> bool {
        self.listing <= self.answered && self.share.may_list()
    }

    /// Dispatches the next command; false if none is complete.
    fn dispatch_command(&mut self) -> Result<bool, Closed> {
        let request = match self.decoder.decode(self.input.unread()) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(false),
            Err(malformed) => {
                tracing::debug!(session = self.id.0, %malformed, "closing connection after a malformed request");
                self.input_ended = true;
                self.input.clear();
                self.reply(Outgoing::Reply(Frame::Error(format!("ERR {malformed}"))))?;
                self.reply(Outgoing::Close)?;
                return Ok(true);
            }
        };
        let (args, consumed) = (request.args, request.consumed);
        if args.is_empty() {
            self.input.consume(consumed);
            return Ok(true);
        }
        let before = self.client.protocol;
        if let Some(reply) = handshake::reply(args, &mut self.client, self.info, &self.shared.agent)
        {
            self.input.consume(consumed);
            if reply.named {
                let name = self.client.name.clone().unwrap_or_default();
                self.notify_core(Input::ClientName(self.id, name))?;
            }
            if self.client.protocol != before {
                let resp3 = self.client.protocol == Protocol::Resp3;
                self.notify_core(Input::Resp3(self.id, resp3))?;
            }
            self.reply(reply.frame)?;
            if reply.close {
                self.notify_core(Input::Quit(self.id))?;
                self.input_ended = true;
                self.input.clear();
                self.reply(Outgoing::Close)?;
            }
            return Ok(true);
        }
        let command = command::parse(args, before);
        self.input.consume(consumed);
        match command {
            Ok(command) => {
                if let Command::Session { process: Some(on), .. } = &command {
                    self.watch_process(*on)?;
                }
                self.send(command, consumed)?;
            }
            Err(refusal) => self.reply(Outgoing::Reply(refusal))?,
        }
        Ok(true)
    }

    /// Sets whether the death of the worker's process ends the session's grace, even after the connection has closed.
    fn watch_process(&mut self, on: bool) -> Result<(), Closed> {
        let watch = self.process.as_ref().filter(|_| on).map(|process| {
            let (keep, kept) = oneshot::channel();
            let (process, core, connection) =
                (Arc::clone(process), self.shared.core.clone(), self.id);
            let stop = self.shared.stop.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = process.died() => {
                        // Fails only if the core has ended, and its sessions with it.
                        core.send(Input::Died(connection)).await.ok();
                    }
                    _ended = kept => {}
                    () = stop.cancelled() => {}
                }
            });
            keep
        });
        self.notify_core(Input::Watched(self.id, watch))
    }

    /// Writes a reply directly if no earlier command is unanswered; otherwise queues it behind them in the core.
    fn reply(&mut self, reply: Outgoing) -> Result<(), Closed> {
        let mut bytes = 0;
        if let Outgoing::Reply(frame) | Outgoing::Switch(_, frame) = &reply {
            let failed = matches!(frame, Frame::Error(_));
            self.shared.metrics.commands.answered(Command::OTHER, failed, Duration::ZERO);
            bytes = frame.allocated();
        }
        if self.sent > self.answered {
            self.count_command(bytes);
            return self.notify_core(Input::Answered(self.id, reply));
        }
        self.write(&reply);
        Ok(())
    }

    /// Sends a command to the core. A second listing waits for the first, since each may be large, and each waits for memory.
    fn send(&mut self, command: Command, bytes: usize) -> Result<(), Closed> {
        if matches!(
            command,
            Command::Holds | Command::HoldsOf { .. } | Command::Locks(_) | Command::Show(_)
        ) {
            if !self.may_list() {
                self.held_listing = Some(command);
                return Ok(());
            }
            self.listing = self.sent + 1;
            self.share.set_listing(true);
        }
        self.count_command(bytes);
        self.notify_core(Input::Command(self.id, command))
    }

    /// Counts a command that the core will answer, or whose answer by this connection passes through the core. `bytes`: those
    /// that the core keeps for it.
    fn count_command(&mut self, bytes: usize) {
        self.sent += 1;
        let bytes = u32::try_from(bytes + size_of::<Command>()).unwrap_or(u32::MAX);
        self.unanswered.push_back(bytes);
        self.share.add_command(bytes);
    }

    fn notify_core(&mut self, input: Input) -> Result<(), Closed> {
        if !self.unsent.is_empty() {
            self.unsent.push_back(input);
            return Ok(());
        }
        match self.shared.core.try_send(input) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(Closed),
            Err(TrySendError::Full(input)) => {
                self.unsent.push_back(input);
                Ok(())
            }
        }
    }

    async fn wait_for_core(&mut self) -> Result<(), Closed> {
        while let Some(input) = self.unsent.pop_front() {
            tokio::select! {
                biased;
                reason = self.disconnect.as_mut() => return Err(self.leave(&reason).await),
                permit = self.shared.core.reserve() => permit.map_err(|_| Closed)?.send(input),
            }
        }
        Ok(())
    }

    /// Collects the core's replies while there is room for them.
    fn collect(&mut self) {
        while !self.output_ended && !self.output.is_full() {
            let Ok(outgoing) = self.replies.try_recv() else { return };
            self.receive(&outgoing);
        }
    }

    fn receive(&mut self, outgoing: &Outgoing) {
        // A close by an operator may answer no command.
        if !matches!(outgoing, Outgoing::Push(_) | Outgoing::Loss(_))
            && let Some(bytes) = self.unanswered.pop_front()
        {
            self.answered += 1;
            self.share.remove_command(bytes);
            if self.answered == self.listing {
                self.share.set_listing(false);
            }
        }
        self.write(outgoing);
    }

    fn write(&mut self, outgoing: &Outgoing) {
        self.output_ended |= *outgoing == Outgoing::Close;
        self.output.put(outgoing, &mut self.share);
    }

    /// Waits for a reply, for room to write, or, if `reading`, for input.
    async fn wait(&mut self, reading: bool) -> Result<(), Closed> {
        self.input.trim();
        self.output.trim();
        if self.unanswered.is_empty() {
            self.unanswered.shrink_to(KEPT_UNANSWERED);
        }
        self.decoder.shrink();
        self.share.set_input(self.input.unread().len(), reading);
        let collecting = !self.output_ended && !self.output.is_full();
        let lacks_memory = self.held_listing.is_some() && self.listing <= self.answered;
        // Other connections may make room for its commands, and nothing else wakes it then.
        let lacks_room = !reading && self.share.is_exhausted();
        let pause = if lacks_memory { MEMORY_RETRY } else { ROOM_RETRY };
        let mut retry = (lacks_memory || lacks_room).then(|| Box::pin(tokio::time::sleep(pause)));
        let wakeup = poll_fn(|cx| {
            if let Poll::Ready(reason) = self.disconnect.as_mut().poll(cx) {
                return Poll::Ready(Wakeup::Disconnected(reason));
            }
            if collecting && let Poll::Ready(outgoing) = self.replies.poll_recv(cx) {
                return Poll::Ready(outgoing.map_or(Wakeup::CoreEnded, Wakeup::Outgoing));
            }
            if !self.output.is_empty() && self.stream.poll_write_ready(cx).is_ready() {
                return Poll::Ready(Wakeup::Writable);
            }
            if reading && self.stream.poll_read_ready(cx).is_ready() {
                return Poll::Ready(Wakeup::Readable);
            }
            if let Some(retry) = &mut retry
                && retry.as_mut().poll(cx).is_ready()
            {
                return Poll::Ready(Wakeup::Retry);
            }
            Poll::Pending
        })
        .await;
        match wakeup {
            Wakeup::Disconnected(reason) => Err(self.leave(&reason).await),
            Wakeup::CoreEnded => Err(self.leave(&Disconnect::Shutdown).await),
            Wakeup::Outgoing(outgoing) => {
                self.receive(&outgoing);
                Ok(())
            }
            // The next step writes, or sends the listing.
            Wakeup::Writable | Wakeup::Retry => Ok(()),
            Wakeup::Readable => self.read(),
        }
    }

    fn read(&mut self) -> Result<(), Closed> {
        match self.input.read(self.stream) {
            Ok(Read::Some | Read::Nothing) => Ok(()),
            Ok(Read::End) => {
                self.input_ended = true;
                Ok(())
            }
            Err(_) => Err(Closed),
        }
    }

    /// Ends the connection. On shutdown it first writes the core's last replies, as far as the client accepts them in time.
    async fn leave(&mut self, reason: &Disconnect) -> Closed {
        if matches!(reason, Disconnect::Shutdown) {
            // The connection closes either way.
            drop(Box::pin(tokio::time::timeout(LAST_WRITES, self.write_rest())).await);
        }
        Closed
    }

    async fn write_rest(&mut self) -> io::Result<()> {
        loop {
            self.collect();
            self.output.flush(self.stream, &mut self.share)?;
            if !self.output.is_empty() {
                self.stream.writable().await?;
            } else if self.output_ended || self.replies.is_empty() {
                return Ok(());
            }
        }
    }
}

/// The reason why a wait ended.
enum Wakeup {
    Disconnected(Disconnect),
    CoreEnded,
    Outgoing(Outgoing),
    Writable,
    Readable,
    Retry,
}
