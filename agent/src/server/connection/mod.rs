//! One worker's connection: bytes in, commands to the core, its replies out. One task each.
//!
//! The core never waits for a connection, and a connection holds bounded memory: at most [`PIPELINE`] commands
//! unanswered, one listing at a time among them, and [`write_buffer::MOST`] bytes unsent. At a bound it stops reading,
//! and the client is held by its own socket.

mod close_notice;
mod disconnect;
mod read_buffer;
#[cfg(test)]
mod tests;
mod write_buffer;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_util::sync::CancellationToken;

use crate::core::{Input, PIPELINE, PUSHES};
use crate::metrics::Figures;
use crate::protocol::command::{self, Command};
use crate::protocol::resp::{Decoder, Frame, Outgoing, Protocol};
use crate::server::handshake::{self, AgentInfo, Client, ClientState};
use crate::server::peer;
use crate::server::process::{Processes, Watch};
use crate::types::SessionId;
use close_notice::CloseNotice;
use disconnect::Disconnect;
use read_buffer::{Read, ReadBuffer};
use write_buffer::WriteBuffer;

/// How many commands a connection takes from its input before others have their turn: all connections, the core
/// and its renewals share one thread.
const TURN: usize = 32;

/// What all connections share.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Where commands go.
    pub core: mpsc::Sender<Input>,
    /// The workers' processes.
    pub processes: Arc<Processes>,
    /// Ends every connection, once what it has been given is written.
    pub stop: CancellationToken,
    /// What INFO tells of the agent.
    pub agent: Arc<AgentInfo>,
    /// Where commands are counted that a connection answers without the core.
    pub figures: Arc<Figures>,
}

/// Serves a connection to its end. The core is told of its beginning and, however it comes, of its end.
pub async fn serve(stream: UnixStream, session: SessionId, shared: Shared) {
    let Ok(peer) = peer::of(&stream) else { return };
    let process = match shared.processes.watch(peer.pid) {
        Watch::Watched(process) => Some(process),
        Watch::Blind => None,
        // Whoever has inherited the socket, the process that connected is dead, and so is its session.
        Watch::Dead => return,
    };
    let mut secret = [0; 16];
    if let Err(error) = getrandom::fill(&mut secret) {
        tracing::error!(%error, "the kernel gives no random bytes: a connection is refused");
        return;
    }
    let about = Client { id: session.0, pid: peer.pid };
    let (outbox, replies) = mpsc::channel(PIPELINE + PUSHES);
    let Ok(permit) = shared.core.reserve().await else { return };
    permit.send(Input::Opened { session, peer, secret, outbox });
    let close_notice = CloseNotice::new(session, shared.core.clone());
    let end = std::pin::pin!(disconnect::wait(&stream, process.as_deref(), &shared.stop));
    Connection {
        stream: &stream,
        session,
        shared: &shared,
        end,
        replies,
        client: ClientState::default(),
        about,
        decoder: Decoder::default(),
        input: ReadBuffer::default(),
        output: WriteBuffer::default(),
        held: None,
        unsent: VecDeque::new(),
        sent: 0,
        answered: 0,
        listing: 0,
        ended: false,
        last: false,
    }
    .run()
    .await;
    close_notice.send().await;
}

struct Connection<'a, End> {
    stream: &'a UnixStream,
    session: SessionId,
    shared: &'a Shared,
    /// Ready when the worker is gone or the agent ends.
    end: Pin<&'a mut End>,
    replies: mpsc::Receiver<Outgoing>,
    client: ClientState,
    about: Client,
    decoder: Decoder,
    input: ReadBuffer,
    output: WriteBuffer,
    /// A listing that waits for the one before it.
    held: Option<Command>,
    /// What the core has no room for yet: at most what one command has to say.
    unsent: VecDeque<Input>,
    /// How many commands have been sent to the core.
    sent: u64,
    /// How many of these it has answered.
    answered: u64,
    /// Which of them was the last listing.
    listing: u64,
    /// Nothing more will be read: the client has closed its writing side, or sent what is no request.
    ended: bool,
    /// Nothing more will be written once the output is empty.
    last: bool,
}

/// The connection is over.
#[derive(Debug)]
struct Over;

/// Why no further command is taken from the input now.
enum Stop {
    /// There is no whole one.
    Starved,
    /// Replies must come or go out first.
    Full,
    /// The core has no room.
    CoreFull,
    /// It is others' turn.
    Turn,
}

impl<End: Future<Output = Disconnect>> Connection<'_, End> {
    async fn run(mut self) {
        // Every step may find that it is over; nothing is left to do then.
        let Err(Over) = self.steps().await;
    }

    async fn steps(&mut self) -> Result<std::convert::Infallible, Over> {
        loop {
            let stop = self.take_commands()?;
            self.collect();
            self.output.flush(self.stream).map_err(|_| Over)?;
            if self.is_done(&stop) {
                return Err(Over);
            }
            match stop {
                Stop::Turn => {
                    tokio::task::yield_now().await;
                    if let Some(gone) = self.end.as_mut().now_or_never() {
                        return Err(self.leave(&gone));
                    }
                }
                Stop::CoreFull => self.wait_for_core().await?,
                // Replies that have come since, or room made by writing, may be all it stopped for.
                Stop::Full if !self.is_full() => {}
                Stop::Starved => self.wait(!self.ended).await?,
                Stop::Full => self.wait(false).await?,
            }
        }
    }

    /// Whether nothing is left to do, or ever will be.
    fn is_done(&self, stop: &Stop) -> bool {
        let idle = matches!(stop, Stop::Starved) && self.sent == self.answered;
        self.output.is_empty() && (self.last || (self.ended && idle))
    }

    /// Takes commands from what has been read.
    fn take_commands(&mut self) -> Result<Stop, Over> {
        for _ in 0..TURN {
            if !self.unsent.is_empty() {
                return Ok(Stop::CoreFull);
            }
            if self.is_full() {
                return Ok(Stop::Full);
            }
            if let Some(listing) = self.held.take() {
                self.send(listing)?;
            } else if !self.take_command()? {
                return Ok(Stop::Starved);
            }
        }
        Ok(Stop::Turn)
    }

    /// Whether replies must come or go out before another command is taken.
    fn is_full(&self) -> bool {
        // Two more may be sent at once: an error, and the close behind it.
        let room = self.sent - self.answered + 2 <= PIPELINE as u64;
        let listing = self.held.is_some() && self.listing > self.answered;
        self.last || self.output.is_full() || !room || listing
    }

    /// Takes the next command, if there is a whole one.
    fn take_command(&mut self) -> Result<bool, Over> {
        let request = match self.decoder.decode(self.input.unread()) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(false),
            Err(malformed) => {
                tracing::debug!(session = self.session.0, %malformed, "closing a connection");
                self.ended = true;
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
        if let Some(answer) =
            handshake::answer(args, &mut self.client, self.about, &self.shared.agent)
        {
            self.input.consume(consumed);
            if answer.named {
                let name = self.client.name.clone().unwrap_or_default();
                self.tell(Input::ClientName(self.session, name))?;
            }
            if self.client.protocol != before {
                let resp3 = self.client.protocol == Protocol::Resp3;
                self.tell(Input::Resp3(self.session, resp3))?;
            }
            self.reply(answer.reply)?;
            if answer.close {
                self.tell(Input::Quit(self.session))?;
                self.ended = true;
                self.input.clear();
                self.reply(Outgoing::Close)?;
            }
            return Ok(true);
        }
        let command = command::parse(args, before);
        self.input.consume(consumed);
        match command {
            Ok(command) => self.send(command)?,
            Err(refusal) => self.reply(Outgoing::Reply(refusal))?,
        }
        Ok(true)
    }

    /// Answers without the core where nothing stands before it; else it waits for its turn there.
    fn reply(&mut self, reply: Outgoing) -> Result<(), Over> {
        if self.sent > self.answered {
            return self.send(Command::Answered(reply));
        }
        if let Outgoing::Reply(frame) | Outgoing::Switch(_, frame) = &reply {
            let failed = matches!(frame, Frame::Error(_));
            self.shared.figures.command("other", failed, Duration::ZERO);
        }
        self.write(&reply);
        Ok(())
    }

    /// Sends a command to the core. A second listing waits for the first: each may be big.
    fn send(&mut self, command: Command) -> Result<(), Over> {
        if matches!(command, Command::Holds | Command::Locks(_) | Command::Show(_)) {
            if self.listing > self.answered {
                self.held = Some(command);
                return Ok(());
            }
            self.listing = self.sent + 1;
        }
        self.sent += 1;
        self.tell(Input::Command(self.session, command))
    }

    fn tell(&mut self, news: Input) -> Result<(), Over> {
        if !self.unsent.is_empty() {
            self.unsent.push_back(news);
            return Ok(());
        }
        match self.shared.core.try_send(news) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(Over),
            Err(TrySendError::Full(news)) => {
                self.unsent.push_back(news);
                Ok(())
            }
        }
    }

    async fn wait_for_core(&mut self) -> Result<(), Over> {
        while let Some(news) = self.unsent.pop_front() {
            tokio::select! {
                biased;
                gone = self.end.as_mut() => return Err(self.leave(&gone)),
                permit = self.shared.core.reserve() => permit.map_err(|_| Over)?.send(news),
            }
        }
        Ok(())
    }

    /// Takes what the core has answered, as far as there is room for it.
    fn collect(&mut self) {
        while !self.last && !self.output.is_full() {
            let Ok(outgoing) = self.replies.try_recv() else { return };
            self.receive(&outgoing);
        }
    }

    fn receive(&mut self, outgoing: &Outgoing) {
        if !matches!(outgoing, Outgoing::Push(_)) {
            self.answered += 1;
        }
        self.write(outgoing);
    }

    fn write(&mut self, outgoing: &Outgoing) {
        self.last |= *outgoing == Outgoing::Close;
        self.output.put(outgoing);
    }

    /// Waits until something can be done, `reading` included if asked for.
    async fn wait(&mut self, reading: bool) -> Result<(), Over> {
        self.input.trim();
        self.output.trim();
        self.decoder.shrink();
        let collecting = !self.last && !self.output.is_full();
        let woken = poll_fn(|cx| {
            if let Poll::Ready(gone) = self.end.as_mut().poll(cx) {
                return Poll::Ready(Woken::Disconnected(gone));
            }
            if collecting && let Poll::Ready(outgoing) = self.replies.poll_recv(cx) {
                return Poll::Ready(outgoing.map_or(Woken::CoreEnded, Woken::Outgoing));
            }
            if !self.output.is_empty() && self.stream.poll_write_ready(cx).is_ready() {
                return Poll::Ready(Woken::Writable);
            }
            if reading && self.stream.poll_read_ready(cx).is_ready() {
                return Poll::Ready(Woken::Readable);
            }
            Poll::Pending
        })
        .await;
        match woken {
            Woken::Disconnected(gone) => Err(self.leave(&gone)),
            Woken::CoreEnded => Err(self.leave(&Disconnect::Shutdown)),
            Woken::Outgoing(outgoing) => {
                self.receive(&outgoing);
                Ok(())
            }
            // The next step writes.
            Woken::Writable => Ok(()),
            Woken::Readable => self.read(),
        }
    }

    fn read(&mut self) -> Result<(), Over> {
        match self.input.read(self.stream) {
            Ok(Read::Some | Read::Nothing) => Ok(()),
            Ok(Read::End) => {
                self.ended = true;
                Ok(())
            }
            Err(_) => Err(Over),
        }
    }

    /// At the agent's end what the core has said last still goes out, if the client takes it at once.
    fn leave(&mut self, gone: &Disconnect) -> Over {
        if matches!(gone, Disconnect::Shutdown) {
            self.collect();
            // The connection is closed whether it works or not.
            drop(self.output.flush(self.stream));
        }
        Over
    }
}

/// Why a wait is over.
enum Woken {
    Disconnected(Disconnect),
    CoreEnded,
    Outgoing(Outgoing),
    Writable,
    Readable,
}
