//! `lockctl tail`: one lock, step by step, from a dashboard that traces it.
//!
//! The dashboard opens the one connection with MONITOR, limits its cost for Redis, and decides who may request it. So
//! this program needs no account on Redis.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use redisson::millis;
use serde_json::Value;
use service_kit::http::HttpClient;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use crate::cli::TailArgs;
use crate::columns::padded;
use crate::exit::Exit;
use crate::output::{notice, print};
use crate::reply::printable;

/// The limit for a response, which may wait for the next step for [`WAIT_MS`].
const PATIENCE: Duration = Duration::from_secs(15);
/// The time that the dashboard waits for the next step.
const WAIT_MS: u64 = 4_000;
/// The time before the end of a trace at which it is requested again.
const RENEW_BEFORE: Duration = Duration::from_secs(20);
/// The length of a trace.
const TRACE: Duration = Duration::from_secs(60);
/// The pause after the dashboard could not be reached.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest time for which a dashboard may be unreachable.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// The widths of a printed line's columns.
const LABEL: usize = 14;
const WHO: usize = 34;

/// The failure of a trace.
#[derive(Debug, Error)]
pub(crate) enum TailError {
    #[error("cannot read the token: {0}")]
    Token(String),
    #[error("cannot reach the dashboard at {0}: {1}")]
    Unreachable(String, String),
    #[error("the dashboard refused: {1}")]
    Refused(StatusCode, String),
    #[error(transparent)]
    Output(#[from] io::Error),
}

impl TailError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Refused(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => Exit::DENIED,
            Self::Token(_) | Self::Refused(StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND, _) => {
                Exit(Exit::USAGE)
            }
            Self::Unreachable(..) | Self::Refused(..) => Exit(Exit::NO_AGENT),
            Self::Output(_) => Exit::OS,
        }
    }
}

/// Requests a trace and prints its steps until it is over.
///
/// # Errors
/// Fails if the dashboard cannot be reached or refuses, or standard output is closed.
pub(crate) async fn tail(args: &TailArgs) -> Result<(), TailError> {
    let dashboard = Dashboard::new(args)?;
    let end = Instant::now() + args.duration;
    // Steps of an earlier trace of the lock are not ours.
    let mut next = number(&dashboard.call(Method::GET, "").await?, "next");
    let mut requested = None;
    let mut reported = None;
    let mut lost_at = None;
    while Instant::now() < end {
        let trace = match dashboard.next_steps(&mut requested, next, end).await {
            Ok(trace) => trace,
            Err(error @ TailError::Unreachable(..)) => {
                let lost_at = lost_at.get_or_insert_with(Instant::now);
                if lost_at.elapsed() > GIVE_UP_AFTER {
                    return Err(error);
                }
                sleep(RETRY_AFTER).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        if lost_at.take().is_some() && number(&trace, "next") < next {
            // Another process serves the address now: it does not know about this trace.
            (next, requested) = (0, None);
            continue;
        }
        let state = match closed(&trace) {
            Some(why) => format!("MONITOR is not open yet: {}", printable(why.as_bytes())),
            None => format!("MONITOR is open: following {}", printable(args.lock.as_bytes())),
        };
        if reported.as_ref() != Some(&state) {
            notice(&state);
            reported = Some(state);
        }
        print(&lines(&trace, next, args))?;
        next = number(&trace, "next");
    }
    Ok(())
}

/// The dashboard's API for one lock.
struct Dashboard {
    client: HttpClient,
    url: String,
    base: String,
    token: Option<String>,
}

impl Dashboard {
    fn new(args: &TailArgs) -> Result<Self, TailError> {
        let token = match &args.token_file {
            Some(path) => {
                let shown = path.display();
                let text = std::fs::read_to_string(path)
                    .map_err(|error| TailError::Token(format!("{shown}: {error}")))?;
                let first = text.lines().next().unwrap_or_default().trim().to_owned();
                if first.is_empty() {
                    return Err(TailError::Token(format!("{shown}: the first line is empty")));
                }
                Some(first)
            }
            None => None,
        };
        let base = args.dashboard.clone();
        let client = HttpClient::new(&base, args.ca_file.as_deref(), PATIENCE)
            .map_err(|error| TailError::Unreachable(base.clone(), error))?;
        let mut url = format!("{base}/api/v1/trace?name={}", encoded(&args.lock));
        if let Some(deployment) = &args.deployment {
            // Writing to a string cannot fail.
            write!(url, "&deployment={}", encoded(deployment)).unwrap_or_default();
        }
        if let Some(db) = args.db {
            write!(url, "&db={db}").unwrap_or_default();
        }
        Ok(Self { client, url, base, token })
    }

    /// Returns the trace from step `next` on, as soon as it has more steps. Requests it first if it was not requested, at
    /// the instant `requested`, or would soon end.
    async fn next_steps(
        &self,
        requested: &mut Option<Instant>,
        next: u64,
        end: Instant,
    ) -> Result<Value, TailError> {
        if is_due(*requested, Instant::now(), end) {
            self.call(Method::POST, "").await?;
            *requested = Some(Instant::now());
        }
        let wait = millis(end.saturating_duration_since(Instant::now())).min(WAIT_MS);
        self.call(Method::GET, &format!("&from={next}&wait={wait}")).await
    }

    async fn call(&self, method: Method, more: &str) -> Result<Value, TailError> {
        let unreachable = |error: String| TailError::Unreachable(self.base.clone(), error);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{more}", self.url))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request =
            request.body(Body::from("{}")).map_err(|error| unreachable(error.to_string()))?;
        let (status, body) = self.client.send(request).await.map_err(unreachable)?;
        let json: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status.is_success() {
            return Ok(json);
        }
        let detail = match (status, json["detail"].as_str()) {
            (StatusCode::UNAUTHORIZED, _) => "it requires a token that it knows (--token-file)",
            (_, Some(detail)) => detail,
            (_, None) => {
                let error = format!("{status} from another program; correct --dashboard");
                return Err(unreachable(error));
            }
        };
        Err(TailError::Refused(status, printable(detail.as_bytes())))
    }
}

/// Returns whether a trace until `end` must be requested, which was last done at the instant `requested`.
fn is_due(requested: Option<Instant>, now: Instant, end: Instant) -> bool {
    requested.is_none_or(|at| now + RENEW_BEFORE > at + TRACE && end > at + TRACE)
}

/// Returns the reason why MONITOR is not open, if it is not.
fn closed(trace: &Value) -> Option<String> {
    let monitors = trace["monitor"].as_array()?;
    let open = |source: &&Value| matches!(source["state"].as_str(), Some("on" | "behind"));
    let first = monitors.first()?;
    let detail = first["detail"].as_str().unwrap_or_default();
    (!monitors.iter().any(|source| open(&source))).then(|| detail.to_owned())
}

fn number(json: &Value, name: &str) -> u64 {
    json[name].as_u64().unwrap_or(0)
}

/// Returns the steps from `first` on as lines.
fn lines(trace: &Value, first: u64, args: &TailArgs) -> Vec<String> {
    let mut lines = Vec::new();
    let steps = trace["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let from = steps.first().map_or(first, |step| number(step, "seq"));
    if from > first {
        notice(&format!("{} older steps were dropped", from - first));
    }
    for step in steps {
        if args.format.json {
            lines.push(step.to_string());
            continue;
        }
        let text = |name: &str| step[name].as_str().map(|text| printable(text.as_bytes()));
        let at = text("at").unwrap_or_default();
        let time = at.get(11..23).unwrap_or(&at);
        let who = text("name").or_else(|| text("owner")).or_else(|| text("address"));
        let label = text("label").unwrap_or_default();
        let unsure = if step["certain"] == false { "?" } else { "" };
        lines.push(format!(
            "{time} {:>10}  {:LABEL$} {} {}",
            gap(step["gap_us"].as_u64()),
            format!("{label}{unsure}"),
            padded(&who.unwrap_or_default(), WHO),
            text("text").unwrap_or_default()
        ));
        for raw in step["lines"].as_array().into_iter().flatten().filter(|_| args.raw) {
            lines.push(format!("    {}", printable(raw.as_str().unwrap_or_default().as_bytes())));
        }
    }
    lines
}

fn gap(micros: Option<u64>) -> String {
    match micros {
        None => String::new(),
        Some(micros @ 0..1_000) => format!("+{micros}us"),
        Some(micros) => format!("+{}.{:03}s", micros / 1_000_000, micros % 1_000_000 / 1_000),
    }
}

/// Returns a value of a query, percent-encoded.
fn encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            write!(encoded, "%{byte:02X}").unwrap_or_default();
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use clap::Parser as _;
    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::cli::{Cli, Verb};
    use crate::columns::width;

    fn args(line: &str) -> TailArgs {
        let words = ["lockctl", "tail", "a"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().verb {
            Verb::Tail(args) => args,
            _ => unreachable!(),
        }
    }

    #[test]
    fn a_step_is_a_line_that_hides_nothing() {
        let step = json!({
            "seq": 3, "at": "2026-11-24T18:41:12.031Z", "gap_us": 1_204_000, "label": "refused",
            "name": "invoices\u{1b}[2J@web-7", "owner": "285475da:52", "certain": false,
            "text": "Another holder has it.", "lines": ["1.2 [0 lua] \"pttl\" \"a\""],
        });
        let trace = json!({"next": 4, "steps": [step]});
        let printed = lines(&trace, 3, &args("--raw"));
        assert_eq!(printed.len(), 2);
        assert!(printed[0].starts_with("18:41:12.031    +1.204s  refused?  "), "{}", printed[0]);
        assert!(printed[0].contains("@web-7") && !printed[0].contains('\u{1b}'), "{}", printed[0]);
        assert_eq!(printed[1], "    1.2 [0 lua] \"pttl\" \"a\"");
        let printed = lines(&trace, 3, &args("--json"));
        assert_eq!(serde_json::from_str::<Value>(&printed[0]).unwrap()["seq"], 3);
    }

    #[test]
    fn wide_names_keep_the_texts_in_line() {
        let step = |name: &str| json!({"label": "granted", "name": name, "text": "It has it."});
        let trace = json!({"steps": [step("注文@web-7"), step("orders@web-7")]});
        let printed = lines(&trace, 0, &args(""));
        assert_eq!(width(&printed[0]), width(&printed[1]), "{printed:?}");
    }

    #[test]
    fn names_survive_in_the_address() {
        assert_eq!(encoded("orders:42 ä&"), "orders%3A42%20%C3%A4%26");
        let dashboard = Dashboard::new(&args("--dashboard http://h:1/ --deployment x --db 3"));
        let url = dashboard.ok().unwrap().url;
        assert_eq!(url, "http://h:1/api/v1/trace?name=a&deployment=x&db=3");
        assert!(Cli::try_parse_from(["lockctl", "tail", "a", "--dashboard", "h:1"]).is_err());
        assert!(Cli::try_parse_from(["lockctl", "tail", "a", "--for", "2h"]).is_err());
    }

    /// Answers as a dashboard that is restarted behind a proxy.
    fn answer(requests: &Mutex<Vec<Method>>, method: Method) -> (StatusCode, &'static str) {
        let mut requests = requests.lock();
        requests.push(method);
        match requests.len() {
            1 | 2 => (StatusCode::OK, r#"{"next":5}"#),
            3 | 5 => (StatusCode::BAD_GATEWAY, "no upstream"),
            4 | 6 => (StatusCode::OK, r#"{"next":0}"#),
            _ => (StatusCode::NOT_FOUND, r#"{"detail":"enough"}"#),
        }
    }

    #[tokio::test]
    async fn a_trace_is_requested_again_although_the_first_attempt_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<Method>>>::default();
        let seen = Arc::clone(&requests);
        let router =
            Router::new().fallback(move |method: Method| std::future::ready(answer(&seen, method)));
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let error = tail(&args(&format!("--dashboard http://{address}"))).await.unwrap_err();
        assert!(matches!(error, TailError::Refused(StatusCode::NOT_FOUND, _)), "{error}");
        let expected = "GET POST GET GET POST POST GET";
        let requests = requests.lock();
        let methods: Vec<&str> = requests.iter().map(Method::as_str).collect();
        assert_eq!(methods.join(" "), expected);
        server.abort();
    }

    #[test]
    fn a_trace_that_lasts_until_the_end_is_not_requested_again() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(is_due(None, at(0), at(5)));
        for now in [1, 39, 41, 59, 60] {
            assert!(!is_due(Some(start), at(now), at(60)), "{now}");
        }
        assert!(!is_due(Some(start), at(39), at(61)));
        assert!(is_due(Some(start), at(41), at(61)));
    }

    #[test]
    fn a_closed_monitor_is_reported() {
        let with = |state: &str| closed(&json!({"monitor": [{"state": state, "detail": "why"}]}));
        assert_eq!(with("paused").as_deref(), Some("why"));
        assert_eq!((with("on"), with("behind")), (None, None));
    }
}
