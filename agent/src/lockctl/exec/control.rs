//! The messages between front and guard, over a socket pair that is the guard's standard input.
//!
//! The front first sends the number of its process group, with its standard input attached for the command. Each further
//! byte is a signal to forward; the end of the stream means that it died. The guard sends lines of text.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

/// A message from the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardMessage {
    /// The command runs in this process group.
    Running(i32),
    /// This signal stopped the command.
    Stopped(i32),
    /// The command has ended, and its locks are being released.
    Ended,
    GuardEnded,
}

/// A message from the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrontMessage {
    /// Forwards a signal to the command.
    Signal(i32),
    FrontDied,
}

/// The front's end.
#[derive(Debug)]
pub(crate) struct FrontControl(BufReader<UnixStream>);

/// The guard's end.
#[derive(Debug)]
pub(crate) struct GuardControl(UnixStream);

impl FrontControl {
    /// Sends the process group of the front and the standard input of the command.
    ///
    /// # Errors
    /// Fails if the guard has ended, or outside a runtime.
    pub(crate) fn open(stream: StdStream, group: i32, stdin: BorrowedFd<'_>) -> io::Result<Self> {
        let fds = [stdin];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let number = group.to_ne_bytes();
        sendmsg(&stream, &[IoSlice::new(&number)], &mut ancillary, SendFlags::NOSIGNAL)?;
        stream.set_nonblocking(true)?;
        Ok(Self(BufReader::new(UnixStream::from_std(stream)?)))
    }

    /// Waits for the next message of the guard.
    pub(crate) async fn next(&mut self) -> GuardMessage {
        let mut line = String::new();
        loop {
            line.clear();
            // A failed read also means that the guard has ended.
            if self.0.read_line(&mut line).await.unwrap_or(0) == 0 {
                return GuardMessage::GuardEnded;
            }
            match line.trim_end().split_once(' ') {
                Some(("runs", group)) => {
                    if let Ok(group) = group.parse() {
                        return GuardMessage::Running(group);
                    }
                }
                Some(("stopped", signal)) => {
                    if let Ok(signal) = signal.parse() {
                        return GuardMessage::Stopped(signal);
                    }
                }
                None if line == "ended\n" => return GuardMessage::Ended,
                _ => {}
            }
        }
    }

    /// Sends a signal for the guard to forward. Has no effect if the guard has ended.
    pub(crate) async fn forward(&mut self, signal: i32) {
        let byte = u8::try_from(signal).unwrap_or(0);
        self.0.get_mut().write_all(&[byte]).await.unwrap_or_default();
    }
}

impl GuardControl {
    /// Receives the first message: the process group of the front and the standard input of the command.
    ///
    /// # Errors
    /// Fails if the standard input is not such a socket.
    pub(crate) fn accept() -> io::Result<(StdStream, i32, OwnedFd)> {
        let stream = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut number = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &stream,
            &mut [IoSliceMut::new(&mut number)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let stdin = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        match stdin {
            Some(stdin) if received.bytes == number.len() => {
                Ok((stream, i32::from_ne_bytes(number), stdin))
            }
            _ => Err(io::Error::other("its standard input is not from lockctl exec")),
        }
    }

    /// Moves the socket to the async runtime.
    ///
    /// # Errors
    /// Fails outside a runtime.
    pub(crate) fn new(stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream).map(Self)
    }

    /// Waits for the next message of the front.
    pub(crate) async fn next(&mut self) -> FrontMessage {
        let mut byte = [0];
        match self.0.read(&mut byte).await {
            Ok(1..) => FrontMessage::Signal(byte[0].into()),
            Ok(0) | Err(_) => FrontMessage::FrontDied,
        }
    }

    /// Reports that the command runs.
    pub(crate) async fn report_running(&mut self, group: i32) {
        self.send(&format!("runs {group}\n")).await;
    }

    /// Reports that a signal has stopped the command.
    pub(crate) async fn report_stopped(&mut self, signal: i32) {
        self.send(&format!("stopped {signal}\n")).await;
    }

    /// Reports that the command has ended.
    pub(crate) async fn report_ended(&mut self) {
        self.send("ended\n").await;
    }

    async fn send(&mut self, line: &str) {
        // If the front has died, the next message reports it.
        self.0.write_all(line.as_bytes()).await.unwrap_or_default();
    }
}
