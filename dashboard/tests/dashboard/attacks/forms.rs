//! Tests of forms of other sites, which a browser sends together with the visitor's cookies.

use serde_json::json;

use super::{NO_REDIS, OPEN, ROUTES, TOKENS, ask, cookie, guarded, raw, token};
use crate::serving::{Dashboard, post, post_json, request};

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
            // No browser sends a value in upper case, and such a value does not count as same-origin.
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
    // A form of another site can only send these content types without a preflight request, and none is JSON.
    let cookie = cookie(&dashboard, token("ack")).await;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let head = format!(
            "POST /api/v1/acknowledge?name=a HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nCookie: {cookie}\r\n\
             Content-Type: {kind}\r\nContent-Length: 2\r\n\r\n{{}}",
            dashboard.address
        );
        assert_eq!(raw(&dashboard, head.as_bytes()).await.0, 415, "{kind}");
    }
    // A GET changes nothing, so no link, image or prefetch does.
    for path in ["/acknowledge?name=a", "/sources/watch", "/logout", "/api/v1/monitor/watch"] {
        let bearer = format!("Bearer {}", token("ack"));
        let (status, _) = ask(&dashboard, "GET", path, &[("Authorization", &bearer)]).await;
        assert_eq!(status, 405, "{path}");
    }
}

/// The headers that a browser sends along.
type Headers<'a> = &'a [(&'a str, &'a str)];

/// Some proxies remove the headers that name the site of a form.
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
    let open = Dashboard::with(&["--redis-url", NO_REDIS, "--allow-release", "--insecure"]).await;
    let changes = ROUTES.iter().filter(|(method, path, _)| *method == "POST" && *path != "/login");
    // Logging out comes last, since it ends a login.
    let (last, first): (Vec<_>, Vec<_>) = changes.partition(|(_, path, _)| *path == "/logout");
    for (_, path, needed) in first.into_iter().chain(last) {
        // The victim's browser is made to send the form, and only the other visitor's CSRF token is known to the
        // attacker.
        let (victim, other) =
            (cookies(&|right| right == needed), cookies(&|right| right != needed));
        let users = ["anna", "bert"].map(|user| [("X-Forwarded-User", user)]);
        let cases: [(&Dashboard, Headers<'_>, Option<Headers<'_>>); 3] = [
            (&logins, &victim, Some(&other)),
            (&proxied, &users[0], Some(&users[1])),
            (&open, &[], None),
        ];
        for (dashboard, victim, other) in cases {
            let of_another = match other {
                Some(other) => dashboard.csrf_token(other).await,
                None => "AAAA".to_owned(),
            };
            let form = "problem=stuck&reason=none&for=1h&seen=x&target=lock&name=a&count=1";
            for forged in
                [form.to_owned(), format!("{form}&csrf="), format!("{form}&csrf={of_another}")]
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
                let csrf = dashboard.csrf_token(victim).await;
                let own = format!("{form}&csrf={csrf}");
                let answer = post(dashboard.address, path, victim, &own).await;
                assert!(!matches!(answer.status, 401 | 403), "{path} {victim:?}: {answer:?}");
            }
        }
    }
    // A CSRF token is valid for one login, not for all logins with the same token.
    let first = cookie(&logins, token("look")).await;
    let again = cookie(&logins, token("look")).await;
    let first = logins.csrf_token(&[("Cookie", &first)]).await;
    assert_ne!(first, logins.csrf_token(&[("Cookie", &again)]).await);
}
