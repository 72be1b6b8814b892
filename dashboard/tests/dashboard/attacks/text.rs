//! Tests of untrusted text: names of locks, and text from agents and people.

use redis::Connection;
use serde_json::{Value, json};

use crate::redis_server::{HOLDER, RedisServer, run, take};
use crate::serving::{Dashboard, encoded, post_json};

/// Names that an attacker with access to Redis, but not to the dashboard, may choose for a lock.
const NASTY: [&[u8]; 16] = [
    b"<script>window.pwned=1</script>",
    b"\"><img src=x onerror=pwned()>",
    b"' onmouseover='pwned()",
    b"</title><svg/onload=pwned()>",
    b"javascript:pwned()",
    b"{{7*7}}${7*7}",
    b"-->]]><b>bold</b>",
    b"=HYPERLINK(\"http://evil.example\")",
    b"+1+cmd|' /C calc'!A0",
    b"@SUM(1+1)",
    b"\t=1+1",
    b"x;=1+1;y",
    b"x; =cmd|' /C calc'!A0;y",
    "order\u{202e}321\u{2066}\u{200b}\u{feff}".as_bytes(),
    b"\x1b[31mred\x1b]0;title\x07",
    b"raw\xff\xfe\0bytes\r\nX-Evil: yes",
];

/// Writes locks with hostile names and hostile text of agents.
fn plant(redis: &mut Connection) {
    let client = "7d9b1f40-3c52-4e8a-9b16-0f4d5a6c7e82";
    // This is an agent's number, so the agent's keys are read.
    let number = "1927729949788078270";
    let nasty = "<script>pwned()</script>\u{202e}\u{1b}[31m";
    for name in NASTY {
        take(redis, name, &format!("{client}:{number}"), 600_000);
    }
    let agent = format!("lockscope:agent:{{{client}}}");
    let fields = ["host", nasty, "pid", "7", "version", nasty, "started", "1795320000000"];
    run::<i64>(redis, &[&["HSET", &agent], &fields[..]].concat());
    let note = json!({
        "pid": 7, "uid": 7, "comm": nasty, "client": nasty, "session": nasty,
        "since": 1_795_320_000_000_u64, "cmdline": nasty,
    });
    let holders = format!("lockscope:holders:{{{client}}}");
    run::<i64>(redis, &["HSET", &holders, number, &note.to_string()]);
}

fn name_query(name: &[u8]) -> String {
    let bytes = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, name);
    format!("name64={}", encoded(bytes.as_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn text_of_other_clients_is_never_html() {
    let server = RedisServer::start().await;
    let mut redis = server.connect();
    plant(&mut redis);
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().to_str().unwrap();
    let flags =
        ["--redis-url", &server.url(), "--allow-release", "--insecure", "--history-dir", history];
    let dashboard = Dashboard::with(&flags).await;
    dashboard.json_when("/api/v1/locks", |json| json["total"] == NASTY.len()).await;
    let identified = |json: &Value| {
        let locks = json["locks"].as_array().into_iter().flatten();
        let mut clients = locks.map(|lock| &lock["holders"][0]["client"]);
        clients.any(|client| client["comm"].is_string() && client["host"].is_string())
    };
    dashboard.json_when("/api/v1/locks", identified).await;
    // One of these locks is leaked, acknowledged and released with a hostile reason.
    run::<i64>(&mut redis, &["PERSIST", "<script>window.pwned=1</script>"]);
    let leaked = name_query(NASTY[0]);
    let path = format!("/api/v1/lock?{leaked}");
    dashboard.json_when(&path, |lock| lock["problems"][0]["problem"] == "leaked").await;
    let word = json!({"problem": "leaked", "reason": "<img src=x onerror=pwned()>", "for": "1h"});
    let path = format!("/api/v1/acknowledge?{leaked}");
    assert_eq!(post_json(dashboard.address, &path, &[], &word).await.status, 200);
    for invisible in ["it \u{202e}hangs", "it\u{200b}hangs", "it\nhangs", "it \u{1b}[31mhangs"] {
        let word = json!({"problem": "leaked", "reason": invisible, "for": "1h"});
        assert_eq!(
            post_json(dashboard.address, &path, &[], &word).await.status,
            422,
            "{invisible:?}"
        );
    }
    let mut pages: Vec<String> = [
        "/",
        "/problems",
        "/owners",
        "/owner?id=7d9b1f40-3c52-4e8a-9b16-0f4d5a6c7e82",
        "/contention",
        "/history",
        "/sources",
    ]
    .map(str::to_owned)
    .into();
    for name in NASTY {
        let (query, word) = (name_query(name), encoded(name));
        pages.push(format!("/lock?{query}"));
        pages.push(format!("/release?{query}"));
        // The name is part of an address: in an invalid filter, a parameter, or a path.
        for path in [
            "/?filter=age:",
            "/history?from=",
            "/history?filter=event:",
            "/lock?name=a&db=",
            "/owner?id=",
            "/nowhere/",
        ] {
            pages.push(format!("{path}{word}"));
        }
        pages.push(format!("/login?next=/{word}"));
    }
    for path in pages {
        let answer = dashboard.get_with(&path, &[("Accept", "text/html")]).await;
        let html = &answer.body;
        for mark in
            ["<script>", "<img", "<svg/", "<b>", "' onmouseover='pwned", "href=\"javascript:"]
        {
            assert!(!html.contains(mark), "{path}: {mark} stands in {html}");
        }
        let hidden = |c: char| {
            c != '\n' && c.is_control()
                || matches!(c, '\u{202e}' | '\u{2066}' | '\u{200b}' | '\u{feff}')
        };
        // A field shows the text exactly as it was typed, so its value is left out here.
        let html: String = html
            .split(" value=\"")
            .enumerate()
            .map(|(i, part)| if i == 0 { part } else { part.split_once('"').unwrap_or_default().1 })
            .collect();
        let seen =
            html.find(hidden).map(|at| html.get(at.saturating_sub(60)..at).unwrap_or_default());
        assert!(seen.is_none(), "{path}: a hidden character after {seen:?}");
    }
    // The API returns the text unchanged, with a content type that no browser treats as a page.
    for path in [
        "/api/v1/locks",
        "/api/v1/owners",
        "/api/v1/incidents",
        "/api/v1/problems",
        "/api/v1/sources",
    ] {
        let answer = dashboard.get(path).await;
        assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
        assert!(answer.json().is_object(), "{path}");
    }
    // No cell of a CSV file is a formula, whatever its first character, and wherever a spreadsheet splits the lines.
    for list in ["locks", "owners", "problems", "contention", "events"] {
        let answer = dashboard.get(&format!("/api/v1/{list}?format=csv&from=-1h")).await;
        assert_eq!(answer.status, 200, "{list}");
        assert_eq!(answer.header("content-type"), Some("text/csv; charset=utf-8"));
        assert!(answer.header("content-disposition").unwrap().starts_with("attachment"));
        for separator in [',', ';', '\t'] {
            for cell in cells(&answer.body, separator) {
                let text = cell.trim_start_matches(' ');
                let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
                assert!(!formula, "{list} split at {separator:?}: {cell:?}");
            }
        }
    }
    let csv = dashboard.get("/api/v1/locks?format=csv").await.body;
    for whole in ["'=HYPERLINK", "'+1+cmd", "'@SUM"] {
        assert!(csv.contains(whole), "{whole} is there, as text: {csv}");
    }
    // The forced release comes last, so that its reason appears in the events with the name of the operator.
    let plain = HOLDER;
    take(&mut redis, b"plain", plain, 600_000);
    let seen =
        dashboard.json_when("/api/v1/release?name=plain", |json| json["seen"].is_string()).await;
    let wish = |reason: &str| json!({"seen": seen["seen"], "target": "lock", "reason": reason, "name": "plain"});
    let path = "/api/v1/release?name=plain";
    let hidden = post_json(dashboard.address, path, &[], &wish("it \u{202e}hangs")).await;
    assert_eq!(hidden.status, 422, "{hidden:?}");
    let done = post_json(dashboard.address, path, &[], &wish("<script>pwned()</script>")).await;
    assert_eq!(done.status, 200, "{done:?}");
    let events = "/api/v1/events?from=-1h&name=plain";
    let forced = |json: &Value| json["events"].to_string().contains("force_released");
    dashboard.json_when(events, forced).await;
    for path in ["/lock?name=plain", "/history?name=plain"] {
        let told = |html: &str| html.contains("&#60;script&#62;pwned()");
        let html = dashboard.page_when(path, told).await;
        assert!(!html.contains("<script>"), "{path}");
    }
}

/// Returns the cells of a CSV file (RFC 4180), without the quotes around them.
fn cells(csv: &str, separator: char) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = csv.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' if quoted || cell.is_empty() => quoted = !quoted,
            c if !quoted && (c == separator || c == '\n') => cells.push(std::mem::take(&mut cell)),
            '\r' if !quoted => {}
            c => cell.push(c),
        }
    }
    cells
}
