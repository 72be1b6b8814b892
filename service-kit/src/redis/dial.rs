//! Connecting to an address, by TCP or a Unix socket, with or without TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::future::select_ok;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};

use super::batched::BatchedStream;
use super::error::ConnectError;
use super::target::{Address, Target};
use super::tls;

const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// A byte stream to and from a server.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// Connects to the target's server within `timeout`, TLS included. A `batched` connection by TCP is read in batches.
/// Returns the IP address at the other end of a TCP connection, too.
pub(crate) async fn dial(
    target: &Target,
    timeout: Duration,
    batched: bool,
) -> Result<(Box<dyn ByteStream>, Option<IpAddr>), ConnectError> {
    let address = target.address();
    let unreachable =
        |reason: String| ConnectError::Unreachable { address: address.to_string(), reason };
    match tokio::time::timeout(timeout, open(target, address, batched)).await {
        Ok(opened) => opened.map_err(|error| unreachable(error.to_string())),
        Err(_) => Err(unreachable(format!("no connection within {timeout:?}"))),
    }
}

async fn open(
    target: &Target,
    address: &Address,
    batched: bool,
) -> io::Result<(Box<dyn ByteStream>, Option<IpAddr>)> {
    match address {
        Address::Unix(path) => Ok((Box::new(UnixStream::connect(path).await?), None)),
        Address::Tcp { host, port, tls } => {
            let stream = connect_tcp(host, *port).await?;
            set_tcp_options(&stream)?;
            let peer = Some(stream.peer_addr()?.ip());
            let stream: Box<dyn ByteStream> =
                if batched { Box::new(BatchedStream::new(stream)?) } else { Box::new(stream) };
            if *tls {
                let name = target.certificate_name();
                let stream = tls::handshake(stream, (host, name), target.ca_file()).await?;
                Ok((Box::new(stream), peer))
            } else {
                Ok((stream, peer))
            }
        }
    }
}

/// Connects to all addresses of a name at once and takes the first that succeeds, so that a silent one does not use up
/// the timeout.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    let attempts = addresses.into_iter().map(|address| Box::pin(TcpStream::connect(address)));
    let (stream, _others) = select_ok(attempts).await?;
    Ok(stream)
}

fn set_tcp_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}
