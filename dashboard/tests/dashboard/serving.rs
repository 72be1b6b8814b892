//! A dashboard in this process, and a small HTTP client.

use std::net::SocketAddr;
use std::time::Duration;

use lockscope_dashboard::config::Config;
use lockscope_dashboard::{Listeners, run};
use serde_json::Value;
use service_kit::shutdown::Shutdown;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// The headers of a request that a script on the dashboard's own page sends.
pub(crate) const OWN: [(&str, &str); 2] =
    [("Sec-Fetch-Site", "same-origin"), ("Content-Type", "application/json")];

/// The longest time that tests wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) struct Dashboard {
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Option<SocketAddr>,
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

impl Dashboard {
    pub(crate) async fn start(redis_url: &str) -> Self {
        Self::with(&["--redis-url", redis_url]).await
    }

    /// Starts a dashboard with these flags.
    pub(crate) async fn with(flags: &[&str]) -> Self {
        service_kit::redis::install_crypto_provider();
        // Without this flag, each dashboard would look for the state folder of the user who runs the tests.
        let without = if flags.contains(&"--history-dir") { None } else { Some("--no-history") };
        let flags = ["lockscope-dashboard"].into_iter().chain(without).chain(flags.iter().copied());
        let config = Config::load_from(flags.map(Into::into), [])
            .unwrap_or_else(|stop| panic!("{}", stop.text()));
        let pages = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let metrics = match config.metrics_listen {
            Some(_) => Some(TcpListener::bind("127.0.0.1:0").await.unwrap()),
            None => None,
        };
        let address = pages.local_addr().unwrap();
        let metrics_address = metrics.as_ref().map(|listener| listener.local_addr().unwrap());
        let shutdown = Shutdown::new();
        let its_end = shutdown.clone();
        let task = tokio::spawn(async move {
            run(config, Listeners { pages, metrics }, &its_end).await.unwrap();
        });
        Self { address, metrics: metrics_address, shutdown, task }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        request(self.address, "GET", path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        request(self.address, "GET", path, headers).await
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let headers = [&[("Content-Length", "0")], headers].concat();
        request(self.address, "POST", path, &headers).await
    }

    /// Returns the CSRF token of a page that is made for these headers.
    pub(crate) async fn csrf_token(&self, headers: &[(&str, &str)]) -> String {
        let page = self.get_with("/sources", headers).await;
        let (_, rest) = page.body.split_once("name=\"csrf\" value=\"").expect("a form");
        rest.split('"').next().unwrap().to_owned()
    }

    /// Sends a form like the page that is made for these headers.
    pub(crate) async fn submit(&self, path: &str, headers: &[(&str, &str)], form: &str) -> Answer {
        let form = format!("{form}&csrf={}", self.csrf_token(headers).await);
        let headers = [&[("Sec-Fetch-Site", "same-origin")], headers].concat();
        post(self.address, path, &headers, &form).await
    }

    /// Opens the login form as a browser does, and returns its cookie and its CSRF token.
    pub(crate) async fn login_form(&self) -> (String, String) {
        let page = self.get("/login").await;
        let cookie = page.header("set-cookie").expect("a cookie").split(';').next().unwrap();
        let (_, rest) = page.body.split_once("name=\"csrf\" value=\"").expect("a form");
        (cookie.to_owned(), rest.split('"').next().unwrap().to_owned())
    }

    /// Logs in with a token, like a browser that then opens a page.
    pub(crate) async fn log_in(&self, token: &str, next: &str) -> Answer {
        let (cookie, csrf) = self.login_form().await;
        let [token, next] = [token, next].map(|text| encoded(text.as_bytes()));
        let form = format!("token={token}&next={next}&csrf={csrf}");
        let headers = [("Sec-Fetch-Site", "same-origin"), ("Cookie", &cookie)];
        post(self.address, "/login", &headers, &form).await
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        self.get(path).await.json()
    }

    /// Returns the lock of that name from the API, once `wished` accepts it.
    pub(crate) async fn lock_when(&self, name: &str, wished: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/api/v1/lock?name={}", encoded(name.as_bytes()));
        self.json_when(&path, wished).await
    }

    /// Like [`Self::lock_when`], for a dashboard that looks at several databases.
    pub(crate) async fn lock_when_in(
        &self,
        name: &str,
        db: u32,
        wished: impl Fn(&Value) -> bool,
    ) -> Value {
        let path = format!("/api/v1/lock?db={db}&name={}", encoded(name.as_bytes()));
        self.json_when(&path, wished).await
    }

    /// Returns the JSON answer of the path, once `wished` accepts it.
    pub(crate) async fn json_when(&self, path: &str, wished: impl Fn(&Value) -> bool) -> Value {
        self.json_when_with(path, &[], wished).await
    }

    /// Like [`Self::json_when`], for requests with headers.
    pub(crate) async fn json_when_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        wished: impl Fn(&Value) -> bool,
    ) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let json = self.get_with(path, headers).await.json();
            if wished(&json) {
                return json;
            }
            assert!(Instant::now() < deadline, "{path} stays {json:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the page of that path, once `wished` accepts it.
    pub(crate) async fn page_when(&self, path: &str, wished: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let page = self.get(path).await.body;
            if wished(&page) {
                return page;
            }
            assert!(Instant::now() < deadline, "{path} stays {page}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until exactly the locks of these names are listed.
    pub(crate) async fn listed_when(&self, query: &str, names: &[&str]) {
        let mut wished: Vec<&str> = names.to_vec();
        wished.sort_unstable();
        self.json_when(&format!("/api/v1/locks?{query}"), |json| listed(json) == wished).await;
    }

    /// Returns the source once it has this state.
    pub(crate) async fn source_when(&self, source: &str, state: &str) -> Value {
        let found = |json: &Value| -> Option<Value> {
            let sources = json["sources"].as_array().unwrap();
            let is = |s: &&Value| s["source"] == source && s["state"] == state;
            sources.iter().find(is).cloned()
        };
        found(&self.json_when("/api/v1/sources", |json| found(json).is_some()).await).unwrap()
    }

    /// Opens an event stream.
    pub(crate) async fn events(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        self.events_over(TcpStream::connect(self.address).await.unwrap(), path, headers).await
    }

    /// Opens an event stream over a connection with a small receive buffer.
    pub(crate) async fn events_slowly(&self, path: &str) -> Events {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8 << 10).unwrap();
        self.events_over(socket.connect(self.address).await.unwrap(), path, &[]).await
    }

    async fn events_over(
        &self,
        mut stream: TcpStream,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Events {
        // Without chunks, each line is whole.
        let head = head("GET", path, self.address, headers).replace("HTTP/1.1", "HTTP/1.0");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut reader = BufReader::new(stream);
        let mut status = String::new();
        reader.read_line(&mut status).await.unwrap();
        assert!(status.contains(" 200 "), "{status}");
        Events { reader }
    }

    /// Stops the dashboard. Its duration is not tested, but it must not take forever.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        timeout(PATIENCE, self.task).await.expect("it ends").unwrap();
    }
}

/// Returns the names of the locks of a list, sorted.
pub(crate) fn listed(json: &Value) -> Vec<&str> {
    let locks = json["locks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut names: Vec<&str> = locks.iter().map(|lock| lock["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

pub(crate) fn encoded(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02X}")).collect()
}

fn head(method: &str, path: &str, address: SocketAddr, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head
}

pub(crate) async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Answer {
    send(address, method, path, headers, "").await
}

/// Sends a form.
pub(crate) async fn post(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    form: &str,
) -> Answer {
    let length = form.len().to_string();
    let mut all =
        vec![("Content-Type", "application/x-www-form-urlencoded"), ("Content-Length", &*length)];
    all.extend_from_slice(headers);
    send(address, "POST", path, &all, form).await
}

pub(crate) async fn post_json(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Answer {
    let body = body.to_string();
    let length = body.len().to_string();
    let mut all = vec![("Content-Type", "application/json"), ("Content-Length", &*length)];
    all.extend_from_slice(headers);
    send(address, "POST", path, &all, &body).await
}

async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut all = vec![("Connection", "close")];
    all.extend_from_slice(headers);
    let request = head(method, path, address, &all) + body;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an answer").unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// The events of one stream.
pub(crate) struct Events {
    reader: BufReader<TcpStream>,
}

#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) event: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

impl Events {
    /// Returns the next event, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let mut event = Event::default();
        loop {
            let mut line = String::new();
            let read = timeout(PATIENCE, self.reader.read_line(&mut line)).await;
            if read.expect("an event").unwrap_or(0) == 0 {
                return None;
            }
            // None of the headers before the first event look like these lines.
            if let Some(name) = line.strip_prefix("event: ") {
                event.event = name.trim_end().to_owned();
            } else if let Some(id) = line.strip_prefix("id: ") {
                event.id = Some(id.trim_end().to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                event.data = serde_json::from_str(data.trim_end()).unwrap();
            } else if line == "\n" && !event.event.is_empty() {
                return Some(event);
            }
        }
    }

    /// Returns the next event that `wished` accepts.
    pub(crate) async fn when(&mut self, mut wished: impl FnMut(&Event) -> bool) -> Event {
        let wait = async {
            loop {
                let event = self.next().await.expect("the stream continues");
                if wished(&event) {
                    return event;
                }
            }
        };
        timeout(PATIENCE, wait).await.expect("the event")
    }
}
