//! Traces over TLS.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use harness::{Agent, RedisServer, SpanReceiver, eventually};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, crypto};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{SPANS, ok, sending, span};

/// A TLS server in front of a receiver, with a certificate that clients trust only if they have its file.
struct Front {
    port: u16,
    folder: TempDir,
}

impl Front {
    /// Starts a server in front of the receiver at this address, for HTTP/2 or HTTP/1.1.
    async fn before(receiver: &str, protocol: &[u8]) -> Result<Self> {
        let behind: u16 = receiver.rsplit(':').next().unwrap_or_default().parse()?;
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem())?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let mut config =
            ServerConfig::builder_with_provider(crypto::ring::default_provider().into())
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        // The task ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust the certificate disconnects.
                    let mut outside = acceptor.accept(stream).await?;
                    let mut inside = TcpStream::connect((Ipv4Addr::LOCALHOST, behind)).await?;
                    copy_bidirectional(&mut outside, &mut inside).await
                });
            }
        });
        Ok(Self { port, folder })
    }

    fn endpoint(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    fn authority(&self) -> String {
        self.folder.path().join("cert.pem").display().to_string()
    }
}

#[tokio::test]
async fn traces_use_tls_with_a_trusted_certificate() -> Result<()> {
    let receiver = SpanReceiver::start().await?;
    let redis = RedisServer::start().await?;
    for (plain, protocol, spoken) in [
        (receiver.grpc(), "grpc", b"h2".as_slice()),
        (receiver.http(), "http/protobuf", b"http/1.1".as_slice()),
    ] {
        let front = Front::before(&plain, spoken).await?;
        let (endpoint, authority) = (front.endpoint(), front.authority());
        let lock = format!("by-{}", protocol.len());
        let mut variables = sending(&endpoint, protocol).to_vec();

        // An agent that does not know the authority sends no traces, reports this, and serves locks.
        let mut stranger = Agent::in_environment(&redis, &[], &variables).await?;
        let mut worker = stranger.client().await?;
        ok(&mut worker, &format!("LOCK {lock}")).await?;
        ok(&mut worker, &format!("UNLOCK {lock}")).await?;
        eventually("its spans to fail", async || {
            let log = stranger.process().log();
            // Without any authorities of the system the export does not even start.
            let says = ["traces cannot be sent", "no traces are sent"];
            ensure!(says.iter().any(|text| log.contains(text)), "{log}");
            Ok(())
        })
        .await;
        let sent = stranger.metrics().await?.sum(SPANS, &[("outcome", "exported")]);
        assert_eq!((sent, receiver.about("lock hold", &lock).len()), (0.0, 0), "{protocol}");

        variables.push(("OTEL_EXPORTER_OTLP_CERTIFICATE", &*authority));
        let agent = Agent::in_environment(&redis, &[], &variables).await?;
        let mut worker = agent.client().await?;
        ok(&mut worker, &format!("LOCK {lock}")).await?;
        ok(&mut worker, &format!("UNLOCK {lock}")).await?;
        let held = span(&receiver, "lock hold", &lock, |_| true).await;
        assert_eq!(held.resource["service.name"], "lockscope-agent");
        eventually("them to be counted", async || {
            let metrics = agent.metrics().await?;
            ensure!(metrics.sum(SPANS, &[("outcome", "exported")]) > 0.0, "none {protocol}");
            Ok(())
        })
        .await;
    }
    Ok(())
}
