//! Tests of access control: visitors who are let in, and the attempts of attackers.

use std::sync::Arc;

use lockscope_dashboard::access::csrf::LoginNonce;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::serving::{Answer, Dashboard, PATIENCE, encoded, post};

const NO_REDIS: &str = "redis://127.0.0.1:1";
const TOKEN: &str = "5f1c0b6b7d6e4c1f9a2e";
const ACK_ONLY: &str = "a2e5f1c0b6b7d6e4c1f9";

fn tokens() -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{TOKEN},Anna <b>\n{ACK_ONLY},robot,ack\n")).unwrap();
    file
}

async fn guarded(more: &[&str]) -> (Dashboard, NamedTempFile) {
    let file = tokens();
    let path = file.path().to_str().unwrap().to_owned();
    let flags = ["--redis-url", NO_REDIS, "--auth-token-file", &path];
    (Dashboard::with(&[&flags, more].concat()).await, file)
}

/// Returns the cookie as a browser sends it back.
fn cookie(answer: &Answer) -> String {
    let set = answer.header("set-cookie").expect("a cookie");
    set.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn nothing_is_shown_without_authentication() {
    let (dashboard, _file) = guarded(&[]).await;
    for path in [
        "/",
        "/lock?name=a",
        "/sources",
        "/live?path=/",
        "/metrics",
        "/api/v1/locks",
        "/api/v1/lock?name=a",
        "/owners",
        "/owner?id=x",
        "/problems",
        "/contention",
        "/history",
        "/api/v1/held?at=-1m",
        "/api/v1/contention",
        "/api/v1/owners",
        "/overview",
        "/api/v1/blockers",
        "/api/v1/incidents",
        "/api/v1/problems",
        "/api/v1/sources",
        "/api/v1/stream",
        "/api/v1/openapi.json",
        "/nowhere",
        "//login",
        "/login/",
        "/LOGIN",
        "/static",
    ] {
        let answer = dashboard.get(path).await;
        assert_eq!(answer.status, 401, "{path}: {answer:?}");
        assert!(answer.header("www-authenticate").is_some_and(|how| how.starts_with("Bearer")));
    }
    for path in ["/healthz", "/readyz", "/login", "/static/app.css", "/favicon.ico"] {
        assert_eq!(dashboard.get(path).await.status, 200, "{path}");
    }
    // A token in an address would end up in logs and browser histories.
    for path in [format!("/?token={TOKEN}"), format!("/api/v1/locks?access_token={TOKEN}")] {
        assert_eq!(dashboard.get(&path).await.status, 401, "{path}");
    }
    // This dashboard is not configured to accept such a header from a proxy.
    for header in ["X-Forwarded-User", "X-Remote-User", "Remote-User", "X-User"] {
        assert_eq!(dashboard.get_with("/", &[(header, "anna")]).await.status, 401, "{header}");
    }
}

#[tokio::test]
async fn a_browser_logs_in_and_out() {
    let (dashboard, _file) = guarded(&[]).await;
    let html = [("Accept", "text/html")];
    let led = dashboard.get_with("/lock?name=a%26b", &html).await;
    assert_eq!(led.status, 303);
    assert_eq!(led.header("location"), Some("/login?next=%2Flock%3Fname%3Da%2526b"));
    let form = dashboard.get("/login?next=%2Flock%3Fname%3Da%2526b").await;
    assert!(form.body.contains("value=\"/lock?name=a%26b\""), "{}", form.body);
    let wrong = dashboard.log_in("wrong-token-of-some-length", "/").await;
    assert_eq!(wrong.status, 401);
    assert!(wrong.header("set-cookie").is_none() && wrong.body.contains("Unknown token"));
    let entered = dashboard.log_in(TOKEN, "/lock?name=a%26b").await;
    assert_eq!((entered.status, entered.header("location")), (303, Some("/lock?name=a%26b")));
    let set = entered.header("set-cookie").unwrap();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Lax") && !set.contains(TOKEN));
    let cookie = cookie(&entered);
    let page = dashboard.get_with("/", &[("Cookie", &cookie)]).await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("Anna &#60;b&#62;"), "named, and escaped");
    assert_eq!(dashboard.get_with("/api/v1/locks", &[("Cookie", &cookie)]).await.status, 200);
    let mut stream = TcpStream::connect(dashboard.address).await.unwrap();
    let request =
        format!("GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let left = dashboard.submit("/logout", &[("Cookie", &cookie)], "").await;
    assert!(left.header("set-cookie").is_some_and(|set| set.contains("Max-Age=0")));
    // The logout ends the login for copies of its cookie and for open streams too.
    assert_eq!(dashboard.get_with("/api/v1/locks", &[("Cookie", &cookie)]).await.status, 401);
    let end = async {
        let (mut rest, mut chunk) = (Vec::new(), [0; 4_096]);
        while !rest.ends_with(b"0\r\n\r\n") {
            let read = stream.read(&mut chunk).await.unwrap();
            assert!(read > 0, "closed without an end");
            rest.extend_from_slice(&chunk[..read]);
        }
    };
    tokio::time::timeout(PATIENCE, end).await.expect("the stream ends");
}

#[tokio::test]
async fn a_form_that_is_sent_after_the_login_leads_to_the_login_and_back_to_its_page() {
    let (dashboard, _file) = guarded(&[]).await;
    let page = format!("http://{}/lock?name=a%26b", dashboard.address);
    let sent = [("Accept", "text/html"), ("Cookie", "lockscope=over"), ("Referer", page.as_str())];
    for path in ["/acknowledge?name=a%26b", "/logout"] {
        let led = post(dashboard.address, path, &sent, "problem=leaked").await;
        assert_eq!(led.status, 303, "{led:?}");
        let login = led.header("location").unwrap();
        assert_eq!(login, "/login?unsent=true&next=%2Flock%3Fname%3Da%2526b");
        let form = dashboard.get(login).await;
        assert!(form.body.contains("Nothing was done: your login is over."), "{}", form.body);
        assert!(form.body.contains("value=\"/lock?name=a%26b\""), "{}", form.body);
    }
    let led = post(dashboard.address, "/release?name=a", &sent[..2], "").await;
    assert_eq!(led.header("location"), Some("/login?unsent=true&next=%2F"));
    // A program receives the reason.
    assert_eq!(post(dashboard.address, "/api/v1/release?name=a", &sent, "").await.status, 401);
    assert_eq!(post(dashboard.address, "/release?name=a", &sent[1..], "").await.status, 401);
}

#[tokio::test]
async fn a_login_leads_to_our_own_pages_only() {
    let (dashboard, _file) = guarded(&[]).await;
    for next in [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "/\r\nX: y",
    ] {
        let entered = dashboard.log_in(TOKEN, next).await;
        assert_eq!(entered.header("location"), Some("/"), "{next:?}");
        assert!(entered.header("x").is_none());
        let form = dashboard.get(&format!("/login?next={}", encoded(next.as_bytes()))).await;
        assert!(!form.body.contains("evil.example"), "{next:?}");
    }
    let script = dashboard.get("/login?next=%2F%22%3E%3Cscript%3E").await;
    assert!(!script.body.contains("\"><script>"), "{}", script.body);
}

#[tokio::test]
async fn other_sites_cannot_use_a_login() {
    let (dashboard, _file) = guarded(&[]).await;
    let host = dashboard.address.to_string();
    let origin = format!("http://{host}");
    let (nonce, csrf) = dashboard.login_form().await;
    let body = format!("token={TOKEN}&csrf={csrf}");
    for (headers, status) in [
        (vec![("Sec-Fetch-Site", "same-origin")], 303),
        (vec![("Origin", origin.as_str())], 303),
        (vec![("Sec-Fetch-Site", "cross-site"), ("Origin", origin.as_str())], 403),
        (vec![("Sec-Fetch-Site", "same-site")], 403),
        (vec![("Origin", "http://evil.example")], 403),
        (vec![("Origin", "null")], 403),
        // A client that is no browser sends neither header.
        (vec![], 303),
    ] {
        for path in ["/login", "/logout"] {
            let cookie = cookie(&dashboard.log_in(TOKEN, "/").await);
            let out = format!("csrf={}", dashboard.csrf_token(&[("Cookie", &cookie)]).await);
            let form = if path == "/login" { &body } else { &out };
            let both = format!("{cookie}; {nonce}");
            let headers = [headers.as_slice(), &[("Cookie", both.as_str())]].concat();
            let answer = post(dashboard.address, path, &headers, form).await;
            assert_eq!(answer.status, status, "{path} {headers:?}");
        }
    }
    // Another site cannot log the visitor in with someone else's token either.
    let evil = [("Sec-Fetch-Site", "cross-site"), ("Cookie", nonce.as_str())];
    let answer = post(dashboard.address, "/login", &evil, &body).await;
    assert_eq!(answer.status, 403);
    assert!(answer.header("set-cookie").is_none());
}

#[tokio::test]
async fn machines_send_their_token() {
    let (dashboard, _file) = guarded(&["--monitor", "off"]).await;
    let bearer = format!("Bearer {TOKEN}");
    for path in ["/", "/api/v1/locks", "/metrics"] {
        let answer = dashboard.get_with(path, &[("Authorization", &bearer)]).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    let robot = format!("Bearer {ACK_ONLY}");
    assert_eq!(dashboard.get_with("/", &[("Authorization", &robot)]).await.status, 200);
    for wrong in ["Bearer", "Bearer nonsense", "Basic YW5uYTphbm5h"] {
        let answer = dashboard.get_with("/", &[("Authorization", wrong)]).await;
        assert_eq!(answer.status, 401, "{wrong}");
    }
    let metrics = dashboard.get_with("/metrics", &[("Authorization", &bearer)]).await.body;
    let rejected = "\nlockscope_dashboard_rejected_tokens_total 1\n";
    assert!(metrics.contains(rejected), "only `Bearer nonsense` has a token: {metrics}");
    for (sent, status) in [(&robot, 403), (&bearer, 409)] {
        let headers = [("Authorization", sent.as_str()), ("Content-Length", "0")];
        let path = "/api/v1/monitor/watch";
        let answer = crate::serving::request(dashboard.address, "POST", path, &headers).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let long = format!("Bearer {}", "x".repeat(20_000));
    assert_eq!(dashboard.get_with("/", &[("Authorization", &long)]).await.status, 401);
}

#[tokio::test]
async fn a_trusted_proxy_names_its_users() {
    let dashboard = Dashboard::with(&[
        "--redis-url",
        NO_REDIS,
        "--trusted-user-header",
        "X-Forwarded-User",
        "--trusted-proxy",
        "127.0.0.0/8",
        "--proxy-logout-url",
        "/oauth2/sign_out?rd=/",
    ])
    .await;
    let anna = dashboard.get_with("/", &[("X-Forwarded-User", "anna@example.com")]).await;
    assert_eq!(anna.status, 200);
    assert!(anna.body.contains("anna@example.com"));
    assert!(anna.body.contains("href=\"/oauth2/sign_out?rd=/\">Log out</a>"), "{}", anna.body);
    assert_eq!(dashboard.get("/").await.status, 401);
    let twice = [("X-Forwarded-User", "anna"), ("X-Forwarded-User", "root")];
    assert_eq!(dashboard.get_with("/", &twice).await.status, 403);
    // There is no token to log in with.
    let nonce = LoginNonce::generate().unwrap();
    let cookie = format!("lockscope-login={}", nonce.as_str());
    let form = format!("token={TOKEN}&csrf={}", nonce.token().as_str());
    let entered = post(dashboard.address, "/login", &[("Cookie", &cookie)], &form).await;
    assert_eq!(entered.status, 401, "{entered:?}");
}

#[tokio::test]
async fn a_browser_of_a_user_without_access_receives_a_page_that_shows_no_locks() {
    let settings = NamedTempFile::new().unwrap();
    let toml = format!(
        "redis_url = \"{NO_REDIS}\"\ntrusted_proxy = [\"127.0.0.0/8\"]\ntrusted_user_header = \"X-Forwarded-User\"\n\
         [[access]]\nuser = \"anna\"\nrights = [\"look\"]\n"
    );
    std::fs::write(settings.path(), toml).unwrap();
    let dashboard = Dashboard::with(&["--config", settings.path().to_str().unwrap()]).await;
    let html = ("Accept", "text/html,application/xhtml+xml");
    let bob = ("X-Forwarded-User", "bob");
    let page = dashboard.get_with("/", &[html, bob]).await;
    assert_eq!(page.status, 403);
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
    assert!(page.body.contains("No [[access]] row matches bob."), "{}", page.body);
    assert!(!page.body.contains("/owners"), "nothing of the dashboard: {}", page.body);
    let nobody = dashboard.get_with("/overview", &[html]).await;
    assert_eq!(nobody.status, 401);
    assert!(nobody.body.contains("<h1>No access</h1>"), "{}", nobody.body);
    // The page's own style sheet is served to everyone, and programs receive JSON.
    let (_, style) = page.body.split_once("stylesheet\" href=\"").unwrap();
    let (style, _) = style.split_once('"').unwrap();
    assert_eq!(dashboard.get_with(style, &[bob]).await.status, 200);
    for (path, headers) in [("/", vec![bob]), ("/api/v1/locks", vec![html, bob])] {
        let answer = dashboard.get_with(path, &headers).await;
        let kind = answer.header("content-type");
        assert_eq!((answer.status, kind), (403, Some("application/problem+json")), "{path}");
    }
}

#[tokio::test]
async fn an_error_shows_nothing_of_the_dashboard_before_the_login() {
    let (dashboard, _file) = guarded(&[]).await;
    for path in ["/login", "/static/app.css"] {
        let headers = [("Accept", "text/html")];
        let answer = crate::serving::request(dashboard.address, "DELETE", path, &headers).await;
        assert_eq!(answer.status, 405, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
    }
}

#[tokio::test]
async fn metrics_on_a_separate_address_need_no_token() {
    let (dashboard, _file) = guarded(&["--metrics-listen", "127.0.0.1:0"]).await;
    let metrics = crate::serving::request(dashboard.metrics.unwrap(), "GET", "/metrics", &[]).await;
    assert_eq!(metrics.status, 200);
    assert_eq!(dashboard.get("/metrics").await.status, 401, "not among the pages then");
}

#[tokio::test]
async fn pages_are_served_by_tls() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let flags = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let (dashboard, _file) = guarded(&flags).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(&certificate).unwrap()).unwrap();
    let config =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(dashboard.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, stream).await.unwrap();
    let nonce = LoginNonce::generate().unwrap();
    let body = format!("token={TOKEN}&csrf={}", nonce.token().as_str());
    let (length, number) = (body.len(), nonce.as_str());
    let request = format!(
        "POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nSec-Fetch-Site: same-origin\r\n\
         Cookie: __Host-lockscope-login={number}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The connection may also end without a TLS close notification.
    drop(stream.read_to_end(&mut answer).await);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
    assert!(
        answer.contains("set-cookie: __Host-lockscope=") && answer.contains("; Secure"),
        "{answer}"
    );
    // A client that speaks plain HTTP, or sends nothing, does not keep others from connecting.
    let mut plain = TcpStream::connect(dashboard.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    drop(plain.read_to_end(&mut answer).await);
    assert!(!answer.starts_with(b"HTTP/"), "plain HTTP was answered");
    let _silent = TcpStream::connect(dashboard.address).await.unwrap();
    dashboard.stop().await;
}
