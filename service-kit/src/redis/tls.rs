//! TLS of connections to Redis, with rustls and ring.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Makes ring the process's cryptography provider, unless one is installed. Programs call this first: libraries that use
/// TLS by themselves panic without one.
pub fn install_crypto_provider() {
    if ring::default_provider().install_default().is_err() {
        tracing::debug!("keeping the installed cryptography provider");
    }
}

/// Performs the TLS handshake on `stream`. The server's certificate must be valid for `host`.
pub(crate) async fn handshake(
    stream: TcpStream,
    host: &str,
    ca_file: Option<&Path>,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| invalid(format!("`{host}` cannot be the name in a certificate")))?;
    // Built for each connection, so that renewed certificates are picked up. Reading them blocks.
    let ca_file = ca_file.map(Path::to_owned);
    let config = tokio::task::spawn_blocking(move || client_config(ca_file.as_deref()));
    let config = config.await.map_err(io::Error::other)??;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Returns the configuration of a client that trusts the authorities in the file, or else those of the system.
///
/// # Errors
///
/// A file that cannot be read, or no authority at all.
pub(crate) fn client_config(ca_file: Option<&Path>) -> io::Result<ClientConfig> {
    let roots = match ca_file {
        Some(path) => roots_of_file(path)?,
        None => system_roots()?,
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Checks that a file holds the certificates of authorities.
///
/// # Errors
///
/// A sentence that names the file and the mistake.
pub fn check_ca_file(path: &Path) -> Result<(), String> {
    roots_of_file(path).map(drop).map_err(|error| error.to_string())
}

fn roots_of_file(path: &Path) -> io::Result<RootCertStore> {
    let unusable = |error: &dyn std::fmt::Display| invalid(format!("{}: {error}", path.display()));
    let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(&error))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| unusable(&error))?;
    }
    if roots.is_empty() {
        return Err(unusable(&"there is no certificate in it"));
    }
    Ok(roots)
}

/// Returns the system's root certificates, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`. Unreadable certificates are
/// common and skipped; no certificate at all is an error.
fn system_roots() -> io::Result<RootCertStore> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        let why = loaded.errors.first().map_or_else(String::new, |error| format!(": {error}"));
        return Err(invalid(format!("the system has no root certificates{why}")));
    }
    Ok(roots)
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}
