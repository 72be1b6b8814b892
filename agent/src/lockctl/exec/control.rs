//! What front and guard say to one another, over a socket pair that is the guard's standard input.
//!
//! At first the front sends its process group's number with its own standard input beside it, for the command. Then
//! each byte from it is a signal to pass on; that it has died is told by the socket's end. The guard answers in lines.

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

/// What the guard tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The command runs, in this process group.
    Runs(i32),
    /// It has been stopped by a signal.
    Stopped,
    /// The guard has ended.
    End,
}

/// What the front asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Pass this signal on.
    Signal(i32),
    /// Nothing: it has died.
    FrontDied,
}

/// The front's end.
#[derive(Debug)]
pub(crate) struct Front(BufReader<UnixStream>);

/// The guard's end.
#[derive(Debug)]
pub(crate) struct Guard(UnixStream);

impl Front {
    /// Sends the number of the own process group and a standard input.
    ///
    /// # Errors
    /// When the guard has gone, or outside a runtime.
    pub(crate) fn open(stream: StdStream, group: i32, stdin: BorrowedFd<'_>) -> io::Result<Self> {
        let fds = [stdin];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&fds));
        let number = group.to_ne_bytes();
        sendmsg(&stream, &[IoSlice::new(&number)], &mut beside, SendFlags::NOSIGNAL)?;
        stream.set_nonblocking(true)?;
        Ok(Self(BufReader::new(UnixStream::from_std(stream)?)))
    }

    /// What the guard tells next.
    pub(crate) async fn next(&mut self) -> News {
        let mut line = String::new();
        loop {
            line.clear();
            // A connection that fails is the guard's end too.
            if self.0.read_line(&mut line).await.unwrap_or(0) == 0 {
                return News::End;
            }
            match line.trim_end().split_once(' ') {
                Some(("runs", group)) => {
                    if let Ok(group) = group.parse() {
                        return News::Runs(group);
                    }
                }
                None if line == "stopped\n" => return News::Stopped,
                _ => {}
            }
        }
    }

    /// Asks the guard to pass a signal on. One that has ended needs none.
    pub(crate) async fn pass_on(&mut self, signal: i32) {
        let byte = u8::try_from(signal).unwrap_or(0);
        self.0.get_mut().write_all(&[byte]).await.unwrap_or_default();
    }
}

impl Guard {
    /// Takes what the front sends first: its process group, and the command's standard input.
    ///
    /// # Errors
    /// When the standard input is no such socket.
    pub(crate) fn accept() -> io::Result<(StdStream, i32, OwnedFd)> {
        let stream = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut number = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &stream,
            &mut [IoSliceMut::new(&mut number)],
            &mut beside,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let stdin = beside.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        match stdin {
            Some(stdin) if received.bytes == number.len() => {
                Ok((stream, i32::from_ne_bytes(number), stdin))
            }
            _ => Err(io::Error::other("lockctl exec did not start this")),
        }
    }

    /// Goes on with it in a runtime.
    ///
    /// # Errors
    /// Outside a runtime.
    pub(crate) fn new(stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream).map(Self)
    }

    /// What the front asks for next.
    pub(crate) async fn next(&mut self) -> Order {
        let mut byte = [0];
        match self.0.read(&mut byte).await {
            Ok(1..) => Order::Signal(byte[0].into()),
            Ok(0) | Err(_) => Order::FrontDied,
        }
    }

    /// Tells that the command runs.
    pub(crate) async fn runs(&mut self, group: i32) {
        self.tell(&format!("runs {group}\n")).await;
    }

    /// Tells that the command has been stopped.
    pub(crate) async fn stopped(&mut self) {
        self.tell("stopped\n").await;
    }

    async fn tell(&mut self, line: &str) {
        // Where the front has died, the next order says so.
        self.0.write_all(line.as_bytes()).await.unwrap_or_default();
    }
}
