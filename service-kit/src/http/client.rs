//! A small HTTP client, for programs that ask another one now and then.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};

use crate::redis::tls::client_config;

/// The largest response, bytes.
const MAX_RESPONSE: usize = 8 << 20;

/// A client of one server. Connections are kept open between requests.
#[derive(Debug, Clone)]
pub struct HttpClient {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    patience: Duration,
}

impl HttpClient {
    /// Creates a client for that URL. `authorities`: a PEM file to trust instead of the system's certificates; `patience`: the
    /// limit for a response to be complete.
    ///
    /// # Errors
    /// The reason why the certificates of an `https` server cannot be checked.
    pub fn new(url: &str, authorities: Option<&Path>, patience: Duration) -> Result<Self, String> {
        // Root certificates are loaded only if they are needed: many containers have none.
        let tls = match url.starts_with("https:") {
            true => client_config(authorities).map_err(|error| error.to_string())?,
            false => without_authorities()?,
        };
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(connector.build());
        Ok(Self { client, patience })
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// The reason why there is no response, or that it is too large.
    pub async fn send(&self, request: Request<Body>) -> Result<(StatusCode, Bytes), String> {
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| causes(&error))?;
            let status = response.status();
            let body = to_bytes(Body::new(response.into_body()), MAX_RESPONSE).await;
            Ok((status, body.map_err(|error| causes(&error))?))
        };
        match tokio::time::timeout(self.patience, exchange).await {
            Ok(result) => result,
            Err(_) => Err(format!("no response within {} s", self.patience.as_secs())),
        }
    }
}

/// Returns settings that trust no authority, for connections without TLS.
fn without_authorities() -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Returns an error with its causes: the outermost one does not say what happened.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::net::TcpListener;

    use super::*;

    async fn ask(url: &str, patience: Duration) -> Result<(StatusCode, Bytes), String> {
        let client = HttpClient::new(url, None, patience).unwrap();
        client.send(Request::get(url).body(Body::empty()).unwrap()).await
    }

    #[tokio::test]
    async fn a_response_is_read_whole_within_its_limits() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/here", get(|| async { "hello" }))
            .route("/large", get(|| async { vec![b'x'; MAX_RESPONSE + 1] }))
            .route("/never", get(std::future::pending::<&str>));
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let minute = Duration::from_secs(60);
        let url = |path| format!("http://{address}/{path}");
        let (status, body) = ask(&url("here"), minute).await.unwrap();
        assert_eq!((status, &*body), (StatusCode::OK, &b"hello"[..]));
        assert_eq!(ask(&url("nowhere"), minute).await.unwrap().0, StatusCode::NOT_FOUND);
        assert!(ask(&url("large"), minute).await.unwrap_err().contains("limit"));
        let error = ask(&url("never"), Duration::from_millis(20)).await.unwrap_err();
        assert!(error.contains("no response"), "{error}");
        server.abort();
        let error = ask("http://127.0.0.1:1/", minute).await.unwrap_err();
        assert!(error.contains("refused"), "{error}");
    }
}
