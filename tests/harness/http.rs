//! A minimal HTTP client for our own programs and chromedriver.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::PATIENCE;

#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body; invalid UTF-8 is replaced.
    pub body: String,
}

impl Response {
    /// Returns a header's value, by its lower-case name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the body as JSON.
    ///
    /// # Errors
    /// Returns an error if it is not JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.body).with_context(|| format!("no JSON: {}", self.body))
    }
}

/// Sends a GET to a port of this host.
///
/// # Errors
/// Returns an error if nobody answers within [`PATIENCE`].
pub async fn get(port: u16, path: &str) -> Result<Response> {
    request(port, "GET", path, &[], "").await
}

/// Sends a GET in HTTP/1.0, so that the server cannot answer with a chunked body.
///
/// # Errors
/// Returns an error if nobody answers within [`PATIENCE`].
pub async fn get_whole(port: u16, path: &str) -> Result<Response> {
    let exchange = async {
        let (status, headers, mut stream) = begin("HTTP/1.0", port, "GET", path, &[], "").await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        Ok(Response { status, headers, body: String::from_utf8_lossy(&bytes).into_owned() })
    };
    timeout(PATIENCE, exchange).await.with_context(|| format!("no answer to GET {path}"))?
}

/// Sends any request, with further headers and a body.
///
/// # Errors
/// Returns an error if nobody answers within [`PATIENCE`].
pub async fn request(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Response> {
    request_within(PATIENCE, port, method, path, headers, body).await
}

/// Sends a request as [`request`] does, with its own deadline.
///
/// # Errors
/// Returns an error if nobody answers within it.
pub async fn request_within(
    patience: Duration,
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Response> {
    let exchange = async {
        let version = "HTTP/1.1\r\nConnection: close";
        let (status, headers, mut stream) =
            begin(version, port, method, path, headers, body).await?;
        let mut bytes = Vec::new();
        ensure!(!headers.iter().any(|(name, _)| name == "transfer-encoding"), "a body in chunks");
        let length = headers.iter().find(|(name, _)| name == "content-length");
        if let Some((_, length)) = length {
            bytes.resize(length.parse()?, 0);
            if method != "HEAD" {
                stream.read_exact(&mut bytes).await?;
            }
        } else {
            stream.read_to_end(&mut bytes).await?;
        }
        Ok(Response { status, headers, body: String::from_utf8_lossy(&bytes).into_owned() })
    };
    timeout(patience, exchange).await.with_context(|| format!("no answer to {method} {path}"))?
}

type Headers = Vec<(String, String)>;

/// Sends a request and reads the answer's head. In HTTP/1.0 bodies of unknown length are not chunked.
async fn begin(
    version: &str,
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<(u16, Headers, BufReader<TcpStream>)> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let mut stream = BufReader::new(stream);
    let mut head = format!("{method} {path} {version}\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("Host: 127.0.0.1:{port}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).await?;
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        ensure!(stream.read_line(&mut line).await? > 0, "the answer ends within its head");
        if line.trim_end().is_empty() {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let status = lines.first().and_then(|line| line.split(' ').nth(1)).context("no status")?;
    let headers = lines.iter().skip(1).filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    Ok((status.parse()?, headers.collect(), stream))
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Event {
    /// Its id; empty if it has none.
    pub id: String,
    /// Its name; `message` if it has none.
    pub event: String,
    pub data: String,
}

/// A stream of server-sent events.
#[derive(Debug)]
pub struct EventStream(BufReader<TcpStream>);

impl EventStream {
    /// Opens the stream.
    ///
    /// # Errors
    /// Returns an error if the request fails, or the answer is not such a stream.
    pub async fn open(port: u16, path: &str) -> Result<Self> {
        let headers = [("Accept", "text/event-stream")];
        let (status, headers, mut stream) =
            begin("HTTP/1.0", port, "GET", path, &headers, "").await?;
        let is_stream = headers
            .iter()
            .any(|(name, value)| name == "content-type" && value.starts_with("text/event-stream"));
        if status != 200 || !is_stream {
            let mut body = String::new();
            stream.read_to_string(&mut body).await?;
            bail!("no stream but {status}: {body}");
        }
        Ok(Self(stream))
    }

    /// Returns the next event; comments are skipped.
    ///
    /// # Errors
    /// Returns an error if the stream ends, or none comes within [`PATIENCE`].
    pub async fn next(&mut self) -> Result<Event> {
        let mut event = Event::default();
        loop {
            let mut line = String::new();
            let read = timeout(PATIENCE, self.0.read_line(&mut line)).await;
            ensure!(read.context("no event came")?? > 0, "the stream has ended");
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                if event == Event::default() {
                    continue;
                }
                if event.event.is_empty() {
                    event.event.push_str("message");
                }
                return Ok(event);
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => event.id = value.to_owned(),
                "event" => event.event = value.to_owned(),
                "data" if event.data.is_empty() => event.data = value.to_owned(),
                "data" => event.data.push_str(&format!("\n{value}")),
                _ => {}
            }
        }
    }
}
