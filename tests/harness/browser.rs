//! A real headless chromium, driven through `WebDriver`.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::process::{self, Process};
use crate::redis::random_port;
use crate::{PATIENCE, eventually, http};

/// The limit of browsers that run at once: more of them would only slow each other and all other tests down.
static TURNS: Semaphore = Semaphore::const_new(2);
/// The time limit for a browser to start on a busy machine.
const TO_START: Duration = Duration::from_secs(120);

/// A browser with one tab. Closed when dropped.
#[derive(Debug)]
pub struct Browser {
    process: Process,
    port: u16,
    session: String,
    _profile: TempDir,
    _turn: SemaphorePermit<'static>,
}

/// Keys without a character, as `WebDriver` encodes them.
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";

const ARGUMENTS: [&str; 10] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
];

impl Browser {
    /// Starts chromedriver and a browser with a new profile.
    ///
    /// # Errors
    /// Returns an error if either is not installed or does not start.
    pub async fn start() -> Result<Self> {
        let missing = "is not on the PATH: `make deps` installs chromium and chromium-driver";
        let driver =
            process::on_path("chromedriver").with_context(|| format!("chromedriver {missing}"))?;
        let chromium =
            process::on_path("chromium").with_context(|| format!("chromium {missing}"))?;
        let turn = TURNS.acquire().await?;
        let profile = tempfile::Builder::new().prefix("lockscope-browser-").tempdir()?;
        let log = profile.path().join("chromedriver.log");
        let mut started = None;
        for port in std::iter::repeat_with(random_port).take(20) {
            // Another program on the port would answer instead.
            if TcpListener::bind(("127.0.0.1", port)).is_ok()
                && let Some(process) = drive(&driver, port, &log).await?
            {
                started = Some((process, port));
                break;
            }
        }
        let (process, port) = started.context("no port is free for chromedriver")?;
        let mut arguments = ARGUMENTS.map(str::to_owned).to_vec();
        arguments.push(format!("--user-data-dir={}", profile.path().join("profile").display()));
        let options = json!({"binary": chromium, "args": arguments});
        let wanted = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}});
        let created = post(TO_START, port, "/session", &wanted).await?;
        let session = created["sessionId"].as_str().context("no session")?.to_owned();
        Ok(Self { process, port, session, _profile: profile, _turn: turn })
    }

    async fn command(&self, command: &str, body: &Value) -> Result<Value> {
        let path = format!("/session/{}/{command}", self.session);
        post(PATIENCE, self.port, &path, body).await
    }

    /// Opens an address.
    ///
    /// # Errors
    /// Returns an error if the page cannot be loaded.
    pub async fn open(&self, url: &str) -> Result<()> {
        self.command("url", &json!({"url": url})).await?;
        Ok(())
    }

    /// Runs JavaScript in the page, and returns its value.
    ///
    /// # Errors
    /// Returns an error if it throws.
    pub async fn run(&self, script: &str) -> Result<Value> {
        self.command("execute/sync", &json!({"script": script, "args": []})).await
    }

    /// Sets the page's size, of a window or a phone, and the reader's preferred colours.
    ///
    /// # Errors
    /// Returns an error if the browser does not answer.
    pub async fn show_as(&self, (width, height): (u32, u32), dark: bool) -> Result<()> {
        let phone = width < 500;
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.devtools("Emulation.setDeviceMetricsOverride", &size).await?;
        self.devtools("Emulation.setScrollbarsHidden", &json!({"hidden": true})).await?;
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features})).await
    }

    /// Limits pages to the colours of the reader's system, as a theme of high contrast does.
    ///
    /// # Errors
    /// Returns an error if the browser does not answer.
    pub async fn force_colors(&self) -> Result<()> {
        let features = json!([{"name": "forced-colors", "value": "active"}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features})).await
    }

    /// Sets the time zone that pages see, such as `Asia/Kolkata`.
    ///
    /// # Errors
    /// Returns an error if the browser does not answer.
    pub async fn move_to(&self, zone: &str) -> Result<()> {
        self.devtools("Emulation.setTimezoneOverride", &json!({"timezoneId": zone})).await
    }

    /// Returns the seconds for which the page's main thread has been busy.
    ///
    /// # Errors
    /// Returns an error if the browser does not answer.
    pub async fn busy_seconds(&self) -> Result<f64> {
        let none = json!({});
        self.devtools("Performance.enable", &none).await?;
        let body = json!({"cmd": "Performance.getMetrics", "params": none});
        let reply = self.command("goog/cdp/execute", &body).await?;
        let metrics = reply["metrics"].as_array().context("no metrics")?;
        let busy = metrics.iter().find(|metric| metric["name"] == "TaskDuration");
        busy.and_then(|metric| metric["value"].as_f64()).context("no TaskDuration")
    }

    async fn devtools(&self, command: &str, parameters: &Value) -> Result<()> {
        let body = json!({"cmd": command, "params": parameters});
        self.command("goog/cdp/execute", &body).await?;
        Ok(())
    }

    /// Returns a screenshot of the window, as a PNG.
    ///
    /// # Errors
    /// Returns an error if the browser does not answer.
    pub async fn screenshot(&self) -> Result<Vec<u8>> {
        let path = format!("/session/{}/screenshot", self.session);
        let json = http::get(self.port, &path).await?.json()?;
        let encoded = json["value"].as_str().context("no screenshot")?;
        Ok(BASE64_STANDARD.decode(encoded)?)
    }

    /// Presses and releases a key, at the current focus.
    ///
    /// # Errors
    /// Returns an error if the browser does not answer.
    pub async fn press(&self, key: &str) -> Result<()> {
        let actions = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.command("actions", &json!({"actions": [keyboard]})).await?;
        Ok(())
    }

    /// Moves the pointer to a place in the window, in pixels from its top left corner.
    ///
    /// # Errors
    /// Returns an error if the browser does not answer.
    pub async fn point_at(&self, (x, y): (i64, i64)) -> Result<()> {
        let to = json!({"type": "pointerMove", "duration": 0, "x": x, "y": y});
        let pointer = json!({"type": "pointer", "id": "pointer", "actions": [to]});
        self.command("actions", &json!({"actions": [pointer]})).await?;
        Ok(())
    }

    /// Returns the window that receives commands.
    ///
    /// # Errors
    /// Returns an error if the browser does not answer.
    pub async fn window(&self) -> Result<String> {
        let path = format!("/session/{}/window", self.session);
        let json = http::get(self.port, &path).await?.json()?;
        Ok(json["value"].as_str().context("no window")?.to_owned())
    }

    /// Opens another window, which receives commands from now on.
    ///
    /// # Errors
    /// Returns an error if the browser does not open it.
    pub async fn new_window(&self) -> Result<String> {
        let opened = self.command("window/new", &json!({"type": "window"})).await?;
        let handle = opened["handle"].as_str().context("no window")?.to_owned();
        self.switch_to(&handle).await?;
        Ok(handle)
    }

    /// Directs commands to that window.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub async fn switch_to(&self, window: &str) -> Result<()> {
        self.command("window", &json!({"handle": window})).await?;
        Ok(())
    }

    /// The process of chromedriver.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Closes the session, which ends chromium; if only chromedriver were killed, chromium would keep running.
impl Drop for Browser {
    fn drop(&mut self) {
        let request = format!(
            "DELETE /session/{} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\r\n",
            self.session, self.port
        );
        let close = || -> std::io::Result<()> {
            use std::io::{Read as _, Write as _};
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            // It answers once chromium has ended, and keeps the connection open.
            stream.read_exact(&mut [0; 16])?;
            Ok(())
        };
        // A browser that has already ended needs no closing.
        close().unwrap_or_default();
    }
}

/// Starts chromedriver, and waits until it answers; returns `None` if the port was taken meanwhile.
async fn drive(driver: &Path, port: u16, log: &Path) -> Result<Option<Process>> {
    let mut command = process::command(driver);
    command.arg(format!("--port={port}"));
    let mut process = Process::spawn("chromedriver", command, log, None)?;
    let up = eventually("chromedriver to answer", async || {
        if process.ended()?.is_some() {
            return Ok(false);
        }
        let status = http::get(port, "/status").await?.json()?;
        ensure!(status["value"]["ready"] == true, "{status}");
        Ok(true)
    })
    .await;
    Ok(up.then_some(process))
}

async fn post(patience: Duration, port: u16, path: &str, body: &Value) -> Result<Value> {
    let headers = [("Content-Type", "application/json")];
    let body = body.to_string();
    let response = http::request_within(patience, port, "POST", path, &headers, &body).await?;
    let mut json = response.json()?;
    ensure!(response.status == 200, "{path}: {}", json["value"]["message"]);
    Ok(json["value"].take())
}
