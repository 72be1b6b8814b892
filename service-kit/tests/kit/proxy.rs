//! A TCP proxy that can fail like real ones: it continues to accept connections but forwards nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Proxy {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    /// The number of connections, from the first on, that swallow everything.
    stuck: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let stuck = Arc::new(AtomicUsize::new(0));
        let (count, swallowing) = (Arc::clone(&accepted), Arc::clone(&stuck));
        let accepting = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let before = count.fetch_add(1, Ordering::Relaxed);
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let swallowing = Arc::clone(&swallowing);
                tokio::spawn(forward(client, server, before, swallowing));
            }
        });
        Self { address, accepted, stuck, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Makes the connections that exist swallow everything from now on; later ones work.
    pub(crate) fn stop_forwarding_the_existing(&self) {
        self.stuck.store(self.accepted(), Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Forwards until either side ends. Swallows everything while more than `before` connections are stuck.
async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    before: usize,
    stuck: Arc<AtomicUsize>,
) {
    let (mut up, mut down) = ([0_u8; 4096], [0_u8; 4096]);
    loop {
        let forwarded = tokio::select! {
            n = client.read(&mut up) => match n {
                Ok(n) if n > 0 && stuck.load(Ordering::Relaxed) > before => Ok(()),
                Ok(n) if n > 0 => server.write_all(&up[..n]).await,
                _ => return,
            },
            n = server.read(&mut down) => match n {
                Ok(n) if n > 0 && stuck.load(Ordering::Relaxed) > before => Ok(()),
                Ok(n) if n > 0 => client.write_all(&down[..n]).await,
                _ => return,
            },
        };
        if forwarded.is_err() {
            return;
        }
    }
}
