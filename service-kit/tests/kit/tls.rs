//! Tests of `rediss://` against a redis-server with its own certificate.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use redis::cmd;
use service_kit::redis::{Link, Target};
use service_kit::shutdown::Shutdown;
use tempfile::TempDir;

use crate::server::Server;
use crate::{DEADLINE, down, link_options, target, up};

struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// Generates a CA, a certificate that it signed for `localhost`, and a CA that has signed nothing.
    fn generate() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, pem: String| std::fs::write(folder.path().join(name), pem).unwrap();
        let ca = authority();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        write("ca.pem", ca.pem());
        write("server.pem", params.signed_by(&key, &ca).unwrap().pem());
        write("server.key", key.serialize_pem());
        write("other-ca.pem", authority().pem());
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn server(&self) -> Server {
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let (cert, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
        // The later `port` replaces the one without TLS.
        Server::start(&[
            ("port", "0"),
            ("tls-port", "FREE_PORT"),
            ("tls-auth-clients", "no"),
            ("tls-cert-file", &cert),
            ("tls-key-file", &key),
            ("tls-ca-cert-file", &ca),
        ])
        .await
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn secure(host: &str, server: &Server, ca: &Path) -> Target {
    target(&format!("rediss://{host}:{}", server.port())).with_ca_file(ca.to_owned())
}

#[tokio::test]
async fn a_server_with_a_certificate_of_the_configured_ca_is_trusted() {
    let certificates = Certificates::generate();
    let server = certificates.server().await;
    let shutdown = Shutdown::new();
    let options = service_kit::redis::LinkOptions { response_timeout: DEADLINE, ..link_options() };
    let link =
        Link::start(secure("localhost", &server, &certificates.path("ca.pem")), options, &shutdown);
    up(&link).await;
    link.call(cmd("PING")).await.unwrap();
}

#[tokio::test]
async fn other_servers_are_rejected_with_the_reason() {
    let certificates = Certificates::generate();
    let server = certificates.server().await;
    let shutdown = Shutdown::new();
    let start = |target| Link::start(target, link_options(), &shutdown);
    let unknown_ca = start(secure("localhost", &server, &certificates.path("other-ca.pem")));
    down(&unknown_ca, "invalid peer certificate").await;
    let wrong_name = start(secure("127.0.0.1", &server, &certificates.path("ca.pem")));
    down(&wrong_name, "certificate not valid for name").await;
    let system_roots = start(target(&format!("rediss://localhost:{}", server.port())));
    down(&system_roots, "certificate").await;
    let no_file = start(secure("localhost", &server, &certificates.path("none.pem")));
    down(&no_file, "none.pem").await;
    let no_certificate = start(secure("localhost", &server, &certificates.path("server.key")));
    down(&no_certificate, "there is no certificate in it").await;
    let no_tls = start(target(&format!("redis://localhost:{}", server.port())));
    down(&no_tls, "").await;
}
