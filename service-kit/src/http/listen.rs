//! The error of a server that cannot listen.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;

/// A server cannot listen on its address.
#[derive(Debug, Error)]
#[error("cannot listen on {address} ({flag}): {error}{}", advice(*address, error))]
pub struct ListenError {
    /// The requested address.
    pub address: SocketAddr,
    /// The flag that sets the address.
    pub flag: &'static str,
    /// The cause.
    pub error: io::Error,
}

fn advice(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("; `ss -ltnp 'sport = {}'` shows the program that uses it", address.port())
        }
        io::ErrorKind::AddrNotAvailable => "; `ip address` shows those of this host".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_and_the_next_step_are_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = taken.local_addr().expect("it is bound");
        let error = std::net::TcpListener::bind(address).expect_err("the port is taken");
        let text = ListenError { address, flag: "--listen", error }.to_string();
        assert!(text.starts_with(&format!("cannot listen on {address} (--listen): ")), "{text}");
        assert!(text.ends_with("shows the program that uses it"), "{text}");
    }
}
