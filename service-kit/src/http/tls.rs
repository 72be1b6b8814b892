//! TLS for a server, with reloading of a renewed certificate.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::settings::watched_file::{FileVersion, follow};

/// The interval between two checks of the files for a renewed certificate.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);

/// A certificate with its key, reloaded when their files change.
#[derive(Debug, Clone)]
pub struct ServerTls {
    acceptor: DebugAcceptor,
    files: Arc<CertificateFiles>,
    loaded: Versions,
}

/// The versions of certificate and key.
type Versions = [Option<FileVersion>; 2];

#[derive(Clone)]
struct DebugAcceptor(TlsAcceptor);

impl std::fmt::Debug for DebugAcceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsAcceptor")
    }
}

#[derive(Debug)]
struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    now: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for CertificateFiles {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.now.read()))
    }
}

impl ServerTls {
    /// Reads a certificate with its chain and its key, both PEM. The process' crypto provider must be installed.
    ///
    /// # Errors
    /// A sentence that names the file and the mistake.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, String> {
        let loaded = versions(certificate, key);
        let now = RwLock::new(Arc::new(read(certificate, key)?));
        let files = Arc::new(CertificateFiles {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            now,
        });
        let resolver: Arc<dyn ResolvesServerCert> = Arc::<CertificateFiles>::clone(&files);
        let mut config =
            rustls::ServerConfig::builder().with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: DebugAcceptor(TlsAcceptor::from(Arc::new(config))), files, loaded })
    }

    /// Checks the files that [`load`](Self::load) reads.
    ///
    /// # Errors
    /// A sentence that names the file and the mistake.
    pub fn check(certificate: &Path, key: &Path) -> Result<(), String> {
        read(certificate, key).map(drop)
    }

    /// Performs the handshake.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.acceptor.0.accept(stream).await
    }

    /// Reloads a renewed certificate until `stop` is cancelled. An invalid one is logged, and the old one stays in use.
    pub async fn follow_files(self, stop: CancellationToken) {
        follow(self, RELOAD_INTERVAL, None, stop, |tls, _| tls.renew()).await;
    }

    /// Reloads the files if they have changed.
    fn renew(&mut self) {
        let found = versions(&self.files.certificate, &self.files.key);
        if found != self.loaded && self.files.reload() {
            self.loaded = found;
        }
    }
}

impl CertificateFiles {
    /// Loads the files, and returns `true` on success. Key and certificate may be written one after the other, so a
    /// mismatched pair is tried again.
    fn reload(&self) -> bool {
        match read(&self.certificate, &self.key) {
            Ok(fresh) => {
                *self.now.write() = Arc::new(fresh);
                tracing::info!(certificate = %self.certificate.display(), "a renewed certificate is used");
                true
            }
            Err(error) => {
                tracing::warn!(error, "the renewed certificate cannot be used; the old one stays");
                false
            }
        }
    }
}

fn versions(certificate: &Path, key: &Path) -> Versions {
    [certificate, key].map(FileVersion::of)
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let bad = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| bad(certificate, &error))?;
    if chain.is_empty() {
        return Err(bad(certificate, &"there is no certificate in it"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, &error))?;
    let provider = ring::default_provider();
    // If the keys cannot be compared here, a mismatch shows in the handshakes.
    CertifiedKey::from_der(chain, secret, &provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            bad(key, &format!("it does not belong to {}", certificate.display()))
        }
        error => bad(key, &error),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
    use tokio::runtime::Builder;

    use super::*;
    use crate::redis::install_crypto_provider;

    fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn mismatched_and_invalid_files_are_named() {
        install_crypto_provider();
        let folder = tempfile::tempdir().unwrap();
        let make = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (one, two) = (make(), make());
        let certificate = write(folder.path(), "cert.pem", &one.cert.pem());
        let key = write(folder.path(), "key.pem", &one.signing_key.serialize_pem());
        let other = write(folder.path(), "other.pem", &two.signing_key.serialize_pem());
        let tls = ServerTls::load(&certificate, &key).unwrap();
        let mismatch = ServerTls::load(&certificate, &other).unwrap_err();
        assert!(mismatch.contains("other.pem") && mismatch.contains("cert.pem"), "{mismatch}");
        let empty = write(folder.path(), "empty.pem", "");
        assert!(ServerTls::load(&empty, &key).unwrap_err().contains("empty.pem"));
        assert!(ServerTls::load(&certificate, &empty).unwrap_err().contains("empty.pem"));
        assert!(ServerTls::load(&folder.path().join("none"), &key).unwrap_err().contains("none"));
        // The old pair stays in use until both files are renewed.
        let serial = |tls: &ServerTls| tls.files.now.read().cert[0].to_vec();
        let before = serial(&tls);
        write(folder.path(), "cert.pem", &two.cert.pem());
        assert!(!tls.files.reload());
        assert_eq!(serial(&tls), before);
        write(folder.path(), "key.pem", &two.signing_key.serialize_pem());
        assert!(tls.files.reload());
        assert_ne!(serial(&tls), before);
    }

    #[test]
    fn a_certificate_that_cannot_be_read_for_long_stops_no_other_task() {
        install_crypto_provider();
        let folder = tempfile::tempdir().unwrap();
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let pipe = write(folder.path(), "cert.pem", &pair.cert.pem());
        let key = write(folder.path(), "key.pem", &pair.signing_key.serialize_pem());
        let (runs, running) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime =
                Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let tls = ServerTls::load(&pipe, &key).unwrap();
                tokio::spawn(tls.clone().follow_files(CancellationToken::new()));
                fs::remove_file(&pipe).unwrap();
                mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
                // Without a reader, this fails.
                while open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).is_err() {
                    tokio::time::advance(RELOAD_INTERVAL).await;
                }
                runs.send(()).unwrap();
            });
        });
        // Nothing has been written to the pipe.
        running.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}
