//! TLS of connections to Redis, with rustls and ring.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    WantsVerifier,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The maximum number of threads that read certificates at a time. On a mount that hangs each would wait for good, and
/// with one for each connection none would be left.
const READERS: usize = 4;
static READS: Semaphore = Semaphore::const_new(READERS);

/// Makes ring the process's cryptography provider, unless one is installed. Programs call this first: libraries that use
/// TLS by themselves panic without one.
pub fn install_crypto_provider() {
    if ring::default_provider().install_default().is_err() {
        tracing::debug!("keeping the installed cryptography provider");
    }
}

/// Performs the TLS handshake on `stream`. The server's certificate must be valid for the host; or for the name, if there
/// is one and the host is an IP address.
pub(crate) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    (host, name): (&str, Option<&str>),
    ca_file: Option<&Path>,
) -> io::Result<TlsStream<S>> {
    let server_name = |host: &str| {
        ServerName::try_from(host.to_owned())
            .map_err(|_| invalid(format!("`{host}` cannot be the name in a certificate")))
    };
    let host = server_name(host)?;
    let (name, address) = match name {
        Some(name) if matches!(host, ServerName::IpAddress(_)) => (server_name(name)?, Some(host)),
        _ => (host, None),
    };
    // Built for each connection, so that renewed certificates are picked up. Reading them blocks.
    let ca_file = ca_file.map(Path::to_owned);
    // The thread returns the permit, even if the connection is given up before.
    let permit = match ca_file {
        Some(_) => Some(READS.acquire().await.map_err(io::Error::other)?),
        None => None,
    };
    let config = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        match address {
            None => client_config(ca_file.as_deref()),
            Some(address) => config_for_either(ca_file.as_deref(), address),
        }
    });
    let config = config.await.map_err(io::Error::other)??;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Returns the configuration of a client that trusts the authorities in the file, or else those of the system.
///
/// # Errors
///
/// A file that cannot be read, or no authority at all.
pub(crate) fn client_config(ca_file: Option<&Path>) -> io::Result<ClientConfig> {
    Ok(builder()?.with_root_certificates(roots(ca_file)?).with_no_client_auth())
}

/// Returns a configuration that also accepts certificates for this address.
fn config_for_either(
    ca_file: Option<&Path>,
    address: ServerName<'static>,
) -> io::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(roots(ca_file)?);
    let by_name = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
    let verifier = NameOrAddress { by_name: by_name.map_err(io::Error::other)?, address };
    let builder = builder()?.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(builder.with_no_client_auth())
}

fn builder() -> io::Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    builder.with_safe_default_protocol_versions().map_err(io::Error::other)
}

fn roots(ca_file: Option<&Path>) -> io::Result<RootCertStore> {
    match ca_file {
        Some(path) => roots_of_file(path),
        None => system_roots(),
    }
}

/// Verifies a certificate as usual, for a name or else for an address.
#[derive(Debug)]
struct NameOrAddress {
    by_name: Arc<WebPkiServerVerifier>,
    address: ServerName<'static>,
}

impl ServerCertVerifier for NameOrAddress {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let valid_for = |name: &ServerName<'_>| {
            self.by_name.verify_server_cert(certificate, intermediates, name, ocsp, now)
        };
        valid_for(&self.address).or_else(|_| valid_for(name))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_name.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_name.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_name.supported_verify_schemes()
    }
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

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_file_that_hangs_occupies_few_threads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        // A pipe without a writer lets its reader wait.
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(READERS + 1).build().unwrap();
        let is_free = runtime.block_on(async {
            for _ in 0..READERS * 2 {
                let (stream, _server) = tokio::io::duplex(64);
                let handshake = handshake(stream, ("localhost", None), Some(&path));
                timeout(Duration::from_millis(10), handshake).await.unwrap_err();
            }
            let other = tokio::task::spawn_blocking(|| ());
            timeout(Duration::from_secs(10), other).await.is_ok()
        });
        // Lets the readers end.
        OpenOptions::new().write(true).open(&path).unwrap();
        runtime.shutdown_background();
        assert!(is_free, "no thread is left");
    }
}
