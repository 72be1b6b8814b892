//! A worker as a separate process: it runs its commands on one connection, prints each reply on a line, then keeps the
//! connection until it is killed. Tests and the demo kill it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use harness::{Reply, client};

/// The arguments of a worker.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The agent's socket.
    #[arg(long)]
    socket: PathBuf,
    /// Leave a child process behind that inherits the connection, and print its pid first.
    #[arg(long)]
    heir: bool,
    /// Commands, each one argument of words.
    commands: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut stream = UnixStream::connect(&arguments.socket)
        .with_context(|| format!("cannot connect to {}", arguments.socket.display()))?;
    if arguments.heir {
        rustix::io::fcntl_setfd(&stream, rustix::io::FdFlags::empty())?;
        let mut heir = Command::new("sleep");
        heir.arg("120").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let heir = heir.spawn()?;
        say(&heir.id().to_string())?;
    }
    let mut unread = Vec::new();
    for command in &arguments.commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        stream.write_all(&client::encode(&words))?;
        say(&reply(&mut stream, &mut unread)?.text())?;
    }
    // All further input is read and dropped, until the agent closes the connection or the process is killed.
    std::io::copy(&mut stream, &mut std::io::sink())?;
    Ok(())
}

fn reply(stream: &mut UnixStream, unread: &mut Vec<u8>) -> Result<Reply> {
    loop {
        if let Some((reply, taken)) = Reply::decode(unread)? {
            unread.drain(..taken);
            return Ok(reply);
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes)? {
            0 => bail!("the agent has closed the connection"),
            n => unread.extend_from_slice(&bytes[..n]),
        }
    }
}

/// Prints a line at once.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
