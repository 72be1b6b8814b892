//! A list of attacks, and what comes of each.

use redis::Connection;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::redis_server::{HOLDER, RedisServer, run, take};
use crate::serving::{Answer, Dashboard, PATIENCE, encoded, post, post_json, request};

const NO_REDIS: &str = "redis://127.0.0.1:1";
/// A token for each right; each may look as well.
const TOKENS: [(&str, &str); 4] = [
    ("look", "0a1b2c3d4e5f60718293"),
    ("ack", "1a1b2c3d4e5f60718293"),
    ("watch", "2a1b2c3d4e5f60718293"),
    ("release", "3a1b2c3d4e5f60718293"),
];
/// What nobody needs to be known for.
const OPEN: &str = "open";

/// Every route: method, path and query, the right it needs.
const ROUTES: &[(&str, &str, &str)] = &[
    ("GET", "/", "look"),
    ("GET", "/lock?name=a", "look"),
    ("GET", "/lock?name=a&format=bundle", "look"),
    ("POST", "/acknowledge?name=a", "ack"),
    ("POST", "/unacknowledge?name=a", "ack"),
    ("POST", "/api/v1/acknowledge?name=a", "ack"),
    ("POST", "/api/v1/unacknowledge?name=a", "ack"),
    ("GET", "/release?name=a", "release"),
    ("POST", "/release?name=a", "release"),
    ("GET", "/api/v1/release?name=a", "release"),
    ("POST", "/api/v1/release?name=a", "release"),
    ("GET", "/owners", "look"),
    ("GET", "/owner?id=x", "look"),
    ("GET", "/problems", "look"),
    ("GET", "/contention", "look"),
    ("GET", "/events", "look"),
    ("GET", "/sources", "look"),
    ("POST", "/sources/watch", "watch"),
    ("POST", "/api/v1/monitor/watch", "watch"),
    ("GET", "/live?path=/", "look"),
    ("GET", "/static/{name}", OPEN),
    ("GET", "/favicon.ico", OPEN),
    ("GET", "/api/v1/locks", "look"),
    ("GET", "/api/v1/lock?name=a", "look"),
    ("GET", "/api/v1/events?from=-1h", "look"),
    ("GET", "/api/v1/owners", "look"),
    ("GET", "/api/v1/problems", "look"),
    ("GET", "/api/v1/contention", "look"),
    ("GET", "/api/v1/sources", "look"),
    ("GET", "/api/v1/stream", "look"),
    ("GET", "/api/v1/openapi.json", "look"),
    ("GET", "/metrics", "look"),
    ("GET", "/nowhere", "look"),
    ("GET", "/login", OPEN),
    ("POST", "/logout", "look"),
];

async fn guarded(redis_url: &str) -> (Dashboard, NamedTempFile) {
    let file = NamedTempFile::new().unwrap();
    let lines = TOKENS.map(|(right, token)| format!("{token},{right}er,{right}\n"));
    std::fs::write(file.path(), lines.concat()).unwrap();
    let tokens = file.path().to_str().unwrap().to_owned();
    let flags = ["--redis-url", redis_url, "--allow-release", "--auth-token-file", &tokens];
    (Dashboard::with(&flags).await, file)
}

fn token(right: &str) -> &'static str {
    TOKENS.iter().find(|(name, _)| *name == right).unwrap().1
}

/// Status and head of the answer to a request as it stands here; what follows the head, which may be endless, is left.
async fn raw(dashboard: &Dashboard, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(dashboard.address).await.unwrap();
    // A server that has refused the first part may close before it has read the rest.
    let sent = stream.write_all(bytes).await;
    let mut head = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        while !head.windows(4).any(|window| window == b"\r\n\r\n") {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(n) => head.extend_from_slice(&buffer[..n]),
            }
        }
    };
    timeout(PATIENCE, read).await.expect("an answer");
    let head = String::from_utf8_lossy(&head).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no answer ({sent:?}): {head}"));
    (status, head.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase())
}

async fn ask(
    dashboard: &Dashboard,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (u16, String) {
    let body = if path.starts_with("/api/") { "{}" } else { "" };
    let kind = if path.starts_with("/api/") {
        "application/json"
    } else {
        "application/x-www-form-urlencoded"
    };
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        text.push_str(&format!("Host: {}\r\n", dashboard.address));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if method == "POST" {
        text.push_str(&format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len()));
        text.push_str(&format!("\r\n{body}"));
    } else {
        text.push_str("\r\n");
    }
    raw(dashboard, text.as_bytes()).await
}

/// The cookie that a login with this token gives.
async fn cookie(dashboard: &Dashboard, token: &str) -> String {
    let same = [("Sec-Fetch-Site", "same-origin")];
    let answer = post(dashboard.address, "/login", &same, &format!("token={token}")).await;
    let set = answer.header("set-cookie").expect("a cookie");
    set.split(';').next().unwrap().to_owned()
}

/// Another one: cookies tell seconds.
async fn cookie_at(dashboard: &Dashboard, token: &str, but: &str) -> String {
    let another = async {
        loop {
            let cookie = cookie(dashboard, token).await;
            if cookie != but {
                return cookie;
            }
        }
    };
    timeout(PATIENCE, another).await.expect("another second")
}

#[test]
fn every_route_is_on_the_list() {
    let source = include_str!("../../src/http/mod.rs");
    let routes: Vec<&str> = source
        .split(".route(\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap_or_default())
        .collect();
    assert!(routes.len() > 25, "{routes:?}");
    for route in routes {
        let known = |(_, path, _): &&(&str, &str, &str)| path.split('?').next() == Some(route);
        assert!(ROUTES.iter().any(|row| known(&row)), "{route} has no row");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_route_needs_its_right_and_no_other_will_do() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    for (method, path, needed) in ROUTES {
        let (status, head) = ask(&dashboard, method, path, &[]).await;
        assert_eq!(status == 401, *needed != OPEN, "{method} {path}, a stranger: {status}");
        assert!(head.contains("content-security-policy: default-src 'none'"), "{path}: {head}");
        for (right, token) in TOKENS {
            let bearer = format!("Bearer {token}");
            let (status, head) = ask(&dashboard, method, path, &[("Authorization", &bearer)]).await;
            let refused = matches!(status, 401 | 403);
            let may = *needed == OPEN || *needed == "look" || *needed == right;
            assert_eq!(!refused, may, "{method} {path} with {right}: {status} {head}");
            assert!(head.contains("x-content-type-options: nosniff"), "{path}: {head}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_sites_page_changes_anything() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    let origin = format!("http://{}", dashboard.address);
    let evil: [&[(&str, &str)]; 6] = [
        &[("Sec-Fetch-Site", "cross-site"), ("Origin", &origin)],
        &[("Sec-Fetch-Site", "same-site")],
        &[("Sec-Fetch-Site", "SAME-ORIGIN ")],
        &[("Origin", "http://evil.example")],
        &[("Origin", "null")],
        &[("Origin", "http://127.0.0.1")],
    ];
    for (method, path, needed) in ROUTES.iter().filter(|(method, ..)| *method == "POST") {
        let right = if *needed == OPEN { "look" } else { needed };
        let cookie = cookie(&dashboard, token(right)).await;
        for headers in evil {
            // Upper case is no value that a browser sends, and none that is taken for one.
            let headers = [headers, &[("Cookie", cookie.as_str())]].concat();
            let (status, _) = ask(&dashboard, method, path, &headers).await;
            assert_eq!(status, 403, "{path} {headers:?}");
        }
        let own = [("Cookie", cookie.as_str())];
        let status = if path.starts_with("/api/") {
            post_json(dashboard.address, path, &own, &json!({})).await.status
        } else {
            dashboard.submit(path, &own, "").await.status
        };
        assert!(!matches!(status, 401 | 403), "{path}: {status}, its own page");
    }
    // What a form of another site can send without asking is no JSON.
    let cookie = cookie(&dashboard, token("ack")).await;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let head = format!(
            "POST /api/v1/acknowledge?name=a HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nCookie: {cookie}\r\n\
             Content-Type: {kind}\r\nContent-Length: 2\r\n\r\n{{}}",
            dashboard.address
        );
        assert_eq!(raw(&dashboard, head.as_bytes()).await.0, 415, "{kind}");
    }
    // Nothing is changed by a GET, so no link, image or prefetch does.
    for path in ["/acknowledge?name=a", "/sources/watch", "/logout", "/api/v1/monitor/watch"] {
        let bearer = format!("Bearer {}", token("ack"));
        let (status, _) = ask(&dashboard, "GET", path, &[("Authorization", &bearer)]).await;
        assert_eq!(status, 405, "{path}");
    }
}

/// What a browser sends along.
type Headers<'a> = &'a [(&'a str, &'a str)];

/// Some proxies take away the headers by which a browser tells whose page sent a form.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_headers_that_tell_of_it_no_other_sites_form_is_taken() {
    let (logins, _file) = guarded(NO_REDIS).await;
    let mut cookies = Vec::new();
    for (right, token) in TOKENS {
        cookies.push((right, cookie(&logins, token).await));
    }
    let cookies = |fits: &dyn Fn(&str) -> bool| {
        let (_, cookie) = cookies.iter().find(|(right, _)| fits(right)).unwrap();
        [("Cookie", cookie.as_str())]
    };
    let proxied = Dashboard::with(&[
        "--redis-url",
        NO_REDIS,
        "--allow-release",
        "--trusted-user-header",
        "X-Forwarded-User",
        "--trusted-proxy",
        "127.0.0.0/8",
    ])
    .await;
    let open = Dashboard::with(&["--redis-url", NO_REDIS, "--allow-release"]).await;
    let changes = ROUTES.iter().filter(|(method, path, _)| *method == "POST" && *path != "/login");
    for (_, path, needed) in changes {
        // Whose browser is made to send it, and what only others have been given.
        let (victim, other) =
            (cookies(&|right| right == *needed), cookies(&|right| right != *needed));
        let users = ["anna", "bert"].map(|user| [("X-Forwarded-User", user)]);
        let cases: [(&Dashboard, Headers<'_>, Option<Headers<'_>>); 3] = [
            (&logins, &victim, Some(&other)),
            (&proxied, &users[0], Some(&users[1])),
            (&open, &[], None),
        ];
        for (dashboard, victim, other) in cases {
            let of_another = match other {
                Some(other) => dashboard.proof(other).await,
                None => "AAAA".to_owned(),
            };
            let form = "problem=stuck&reason=none&for=1h&seen=x&target=lock&name=a";
            for forged in
                [form.to_owned(), format!("{form}&proof="), format!("{form}&proof={of_another}")]
            {
                let answer = post(dashboard.address, path, victim, &forged).await;
                let wanted = if path.starts_with("/api/") { 415 } else { 403 };
                assert_eq!(answer.status, wanted, "{path} {victim:?} {forged}: {answer:?}");
            }
            if path.starts_with("/api/") {
                let empty = [&[("Content-Length", "0")], victim].concat();
                let answer = request(dashboard.address, "POST", path, &empty).await;
                assert_eq!(answer.status, 415, "{path}: {answer:?}");
            } else {
                let proof = dashboard.proof(victim).await;
                let own = format!("{form}&proof={proof}");
                let answer = post(dashboard.address, path, victim, &own).await;
                assert!(!matches!(answer.status, 401 | 403), "{path} {victim:?}: {answer:?}");
            }
        }
    }
    // It is good for one login, not for all of the same token.
    let first = cookies(&|right| right == "look");
    let again = cookie_at(&logins, token("look"), first[0].1).await;
    assert_ne!(logins.proof(&first).await, logins.proof(&[("Cookie", &again)]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_not_ours_gets_nothing() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    let bearer = format!("Bearer {}", token("look"));
    for (method, path, _) in ROUTES.iter().chain(&[("GET", "/healthz", OPEN)]) {
        for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9761"] {
            let headers = [("Host", host), ("Authorization", bearer.as_str())];
            let (status, head) = ask(&dashboard, method, path, &headers).await;
            assert_eq!(status, 421, "{method} {path} for {host}: {head}");
        }
    }
    let own = dashboard.address;
    for (request, wanted) in [
        (format!("GET / HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\n\r\n"), 400),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (format!("GET http://evil.example/ HTTP/1.1\r\nHost: {own}\r\n\r\n"), 421),
        (format!("GET / HTTP/1.1\r\nHost: x@{own}\r\n\r\n"), 400),
        (format!("GET / HTTP/1.1\r\nHost: {own}\r\nX-Forwarded-Host: evil.example\r\n\r\n"), 401),
    ] {
        assert_eq!(raw(&dashboard, request.as_bytes()).await.0, wanted, "{request}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_is_split_and_no_request_smuggled() {
    let dashboard = Dashboard::with(&["--redis-url", NO_REDIS]).await;
    let evil = "a%0d%0aX-Evil:%20yes%0d%0a%0d%0a%3Cscript%3E";
    for (method, path, _) in ROUTES.iter().filter(|(method, ..)| *method == "GET") {
        let path = path.split('?').next().unwrap();
        let query = ["name", "id", "filter", "next", "deployment", "path", "format", "at", "from"]
            .map(|key| format!("{key}={evil}"))
            .join("&");
        let (_, head) = ask(&dashboard, method, &format!("{path}?{query}"), &[]).await;
        assert!(!head.contains("x-evil"), "{path}: {head}");
        // And in the name of a file.
        let (_, head) =
            ask(&dashboard, method, &format!("{path}?name={evil}&format=bundle"), &[]).await;
        assert!(!head.contains("\nx-evil") && !head.contains('<'), "{path}: {head}");
    }
    let own = dashboard.address;
    for (request, wanted) in [
        ("Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", &[400][..]),
        ("Content-Length: +4\r\n\r\nabcd", &[400]),
        ("Content-Length: -1\r\n\r\n", &[400]),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", &[400]),
        ("X-A: b\r\n folded: c\r\n\r\n", &[400]),
        ("X A: b\r\n\r\n", &[400]),
        ("X-A: a\0b\r\n\r\n", &[400]),
    ] {
        let text = format!("POST /logout HTTP/1.1\r\nHost: {own}\r\n{request}");
        let (status, head) = raw(&dashboard, text.as_bytes()).await;
        assert!(wanted.contains(&status), "{request:?}: {head}");
    }
    for method in ["TRACE", "CONNECT", "DELETE", "PUT", "PATCH", "DEBUG"] {
        let same = [("Sec-Fetch-Site", "same-origin"), ("X-Secret", "mirror")];
        let answer = request(dashboard.address, method, "/sources", &same).await;
        assert!((400..500).contains(&answer.status), "{method}: {answer:?}");
        assert!(!answer.body.contains("mirror"), "{method} sends back what it got");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_leads_nowhere_else_and_its_cookie_stays_here() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    let same = [("Sec-Fetch-Site", "same-origin")];
    for next in [
        "//evil.example",
        "///evil.example",
        "https://evil.example",
        "https:evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "\u{2028}//evil.example",
        "javascript:alert(1)",
        "data:text/html,x",
        " //evil.example",
        "/login?next=//evil.example",
        "evil.example",
        "@evil.example",
        ".evil.example",
    ] {
        let form = format!("token={}&next={}", token("look"), encoded(next.as_bytes()));
        let entered = post(dashboard.address, "/login", &same, &form).await;
        assert_eq!((entered.status, entered.header("location")), (303, Some("/")), "{next:?}");
        let form = dashboard.get(&format!("/login?next={}", encoded(next.as_bytes()))).await;
        assert!(form.body.contains("name=\"next\" value=\"/\""), "{next:?}: {}", form.body);
    }
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{},a\n", token("look"))).unwrap();
    let flags = ["--redis-url", NO_REDIS, "--auth-token-file", file.path().to_str().unwrap()];
    let public =
        Dashboard::with(&[&flags[..], &["--public-url", "https://l.example"]].concat()).await;
    for (dashboard, name) in [(&dashboard, "lockscope="), (&public, "__Host-lockscope=")] {
        let form = format!("token={}", token("look"));
        let set = post(dashboard.address, "/login", &same, &form).await;
        let set = set.header("set-cookie").unwrap().to_owned();
        assert!(set.starts_with(name), "{set}");
        for flag in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age="] {
            assert!(set.contains(flag), "{flag}: {set}");
        }
        assert!(!set.contains("Domain") && !set.contains(token("look")), "{set}");
        assert_eq!(set.contains("; Secure"), name.starts_with("__Host"), "{set}");
    }
}

/// A token that is nearly right is told nothing that one that is all wrong is not.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_tells_how_near_a_token_was() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    let right = token("release");
    let upper = right.to_ascii_uppercase();
    let near = [
        "zzzzzzzzzzzzzzzzzzzz".to_owned(),
        right[..19].to_owned(),
        format!("{right}0"),
        right[1..].to_owned(),
        upper,
        format!("{right},releaseer"),
        String::new(),
    ];
    let told = |answer: &Answer| {
        let names = ["content-type", "set-cookie", "location", "content-length"];
        let headers = names.map(|name| answer.header(name).map(str::to_owned));
        (answer.status, headers, answer.body.clone())
    };
    let (mut bearers, mut logins) = (Vec::new(), Vec::new());
    for token in &near {
        let bearer = format!("Bearer {token}");
        let answer = dashboard.get_with("/api/v1/locks", &[("Authorization", &bearer)]).await;
        bearers.push(told(&answer));
        let same = [("Sec-Fetch-Site", "same-origin")];
        let form = format!("token={}", encoded(token.as_bytes()));
        logins.push(told(&post(dashboard.address, "/login", &same, &form).await));
    }
    for answers in [bearers, logins] {
        assert_eq!(answers[0].0, 401);
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_refused() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    let bearer = format!("Bearer {}", token("release"));
    let long = |n: usize| "x".repeat(n);
    for (path, wanted) in [
        (format!("/?filter={}", long(513)), 400),
        (format!("/?filter={}", "a+".repeat(17)), 400),
        (format!("/lock?name={}", long(70_000)), 431),
        (format!("/{}", long(70_000)), 431),
        (format!("/live?path=/%3Ffilter={}", long(513)), 400),
        (format!("/api/v1/locks?cursor={}", long(5_000)), 400),
        (format!("/owner?id={}", long(5_000)), 200),
    ] {
        let (status, _) = ask(&dashboard, "GET", &path, &[("Authorization", &bearer)]).await;
        let short: String = path.chars().take(40).collect();
        assert!(status == wanted || status == 414 && wanted == 431, "{short}…: {status}");
    }
    for (_, path, needed) in ROUTES.iter().filter(|(method, ..)| *method == "POST") {
        // These read no body at all.
        if path.contains("watch") || *path == "/logout" {
            continue;
        }
        let bearer = format!("Bearer {}", token(needed));
        let headers = [("Authorization", bearer.as_str())];
        let answer = if path.starts_with("/api/") {
            post_json(dashboard.address, path, &headers, &json!({"reason": long(20_000)})).await
        } else {
            post(dashboard.address, path, &headers, &format!("reason={}", long(20_000))).await
        };
        assert_eq!(answer.status, 413, "{path}: {}", answer.body);
    }
    let many: String = (0..500).map(|i| format!("X-{i}: y\r\n")).collect();
    let text = format!("GET / HTTP/1.1\r\nHost: {}\r\n{many}\r\n", dashboard.address);
    assert_eq!(raw(&dashboard, text.as_bytes()).await.0, 431);
}

#[tokio::test(flavor = "multi_thread")]
async fn static_is_no_way_to_other_files() {
    let dashboard = Dashboard::with(&["--redis-url", NO_REDIS]).await;
    for path in [
        "/static/../Cargo.toml",
        "/static/../../../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "/static/..%5c..%5cetc%5cpasswd",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/....//....//etc/passwd",
        "/static/%252e%252e%252fetc%252fpasswd",
        "/static/app.css%00.js",
        "/static/app.css/../../Cargo.toml",
        "/static/.git",
        "/static/",
        "/static/%ff",
        "/static/APP.CSS",
    ] {
        let answer = dashboard.get(path).await;
        assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
        assert!(!answer.body.contains("root:") && !answer.body.contains("[package]"), "{path}");
    }
}

/// What somebody with access to Redis, but not to the dashboard, may call a lock.
const NASTY: [&[u8]; 14] = [
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
    "order\u{202e}321\u{2066}\u{200b}\u{feff}".as_bytes(),
    b"\x1b[31mred\x1b]0;title\x07",
    b"raw\xff\xfe\0bytes\r\nX-Evil: yes",
];

/// Text of agents, which is as little to be trusted.
fn plant(redis: &mut Connection) {
    let client = "7d9b1f40-3c52-4e8a-9b16-0f4d5a6c7e82";
    // Such a number is an agent's, so its keys are asked.
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
async fn what_others_wrote_is_text_everywhere() {
    let server = RedisServer::start();
    let mut redis = server.connect();
    plant(&mut redis);
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().to_str().unwrap();
    let flags = ["--redis-url", &server.url(), "--allow-release", "--history-dir", history];
    let dashboard = Dashboard::with(&flags).await;
    dashboard.json_when("/api/v1/locks", |json| json["total"] == NASTY.len()).await;
    let told = |json: &Value| {
        let locks = json["locks"].as_array().into_iter().flatten();
        let mut clients = locks.map(|lock| &lock["holders"][0]["client"]);
        clients.any(|client| client["comm"].is_string() && client["host"].is_string())
    };
    dashboard.json_when("/api/v1/locks", told).await;
    // One of each is leaked, acknowledged and released with a nasty reason.
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
        "/events",
        "/sources",
    ]
    .map(str::to_owned)
    .into();
    for name in NASTY {
        let (query, word) = (name_query(name), encoded(name));
        pages.push(format!("/lock?{query}"));
        pages.push(format!("/release?{query}"));
        // Where it stands in an address: in a filter that is none, a parameter, a path.
        for path in
            ["/?filter=age:", "/events?from=", "/lock?name=a&db=", "/owner?id=", "/nowhere/"]
        {
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
        // What somebody typed stands in its field as they typed it.
        let html: String = html
            .split(" value=\"")
            .enumerate()
            .map(|(i, part)| if i == 0 { part } else { part.split_once('"').unwrap_or_default().1 })
            .collect();
        let seen =
            html.find(hidden).map(|at| html.get(at.saturating_sub(60)..at).unwrap_or_default());
        assert!(seen.is_none(), "{path}: a hidden character after {seen:?}");
    }
    // The API tells it as it is, as what no browser takes for a page.
    for path in ["/api/v1/locks", "/api/v1/owners", "/api/v1/problems", "/api/v1/sources"] {
        let answer = dashboard.get(path).await;
        assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
        assert!(answer.json().is_object(), "{path}");
    }
    // No cell of a CSV is a formula, wherever it begins.
    for list in ["locks", "owners", "problems", "contention", "events"] {
        let answer = dashboard.get(&format!("/api/v1/{list}?format=csv&from=-1h")).await;
        assert_eq!(answer.status, 200, "{list}");
        assert_eq!(answer.header("content-type"), Some("text/csv; charset=utf-8"));
        assert!(answer.header("content-disposition").unwrap().starts_with("attachment"));
        for cell in cells(&answer.body) {
            let formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
            assert!(!formula, "{list}: {cell:?}");
        }
    }
    let csv = dashboard.get("/api/v1/locks?format=csv").await.body;
    for whole in ["'=HYPERLINK", "'+1+cmd", "'@SUM"] {
        assert!(csv.contains(whole), "{whole} is there, as text: {csv}");
    }
    // Last, so that the reason stands in the events: what is released by force says who did and why.
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
    for path in ["/lock?name=plain", "/events?name=plain"] {
        let told = |html: &str| html.contains("&#60;script&#62;pwned()");
        let html = dashboard.page_when(path, told).await;
        assert!(!html.contains("<script>"), "{path}");
    }
}

/// The cells of a CSV (RFC 4180), without their quotes.
fn cells(csv: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = csv.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' | '\n' if !quoted => cells.push(std::mem::take(&mut cell)),
            '\r' if !quoted => {}
            c => cell.push(c),
        }
    }
    cells
}
