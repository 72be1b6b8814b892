//! Tests of the login: its redirects, its answers, and who may log in.

use tempfile::NamedTempFile;

use super::{NO_REDIS, guarded, token};
use crate::serving::{Answer, Dashboard, encoded, post};

#[tokio::test(flavor = "multi_thread")]
async fn a_login_leads_nowhere_else_and_its_cookie_stays_here() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
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
        let entered = dashboard.log_in(token("look"), next).await;
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
        let set = dashboard.log_in(token("look"), "/").await;
        let set = set.header("set-cookie").unwrap().to_owned();
        assert!(set.starts_with(name), "{set}");
        for flag in ["; Path=/", "; HttpOnly", "; SameSite=Lax", "; Max-Age="] {
            assert!(set.contains(flag), "{flag}: {set}");
        }
        assert!(!set.contains("Domain") && !set.contains(token("look")), "{set}");
        assert_eq!(set.contains("; Secure"), name.starts_with("__Host"), "{set}");
    }
}

/// The answer to a token that is nearly right is the same as to one that is completely wrong.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_reveals_how_near_a_token_was() {
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
    let (nonce, csrf) = dashboard.login_form().await;
    for token in &near {
        let bearer = format!("Bearer {token}");
        let answer = dashboard.get_with("/api/v1/locks", &[("Authorization", &bearer)]).await;
        bearers.push(told(&answer));
        let same = [("Sec-Fetch-Site", "same-origin"), ("Cookie", nonce.as_str())];
        let form = format!("token={}&csrf={csrf}", encoded(token.as_bytes()));
        logins.push(told(&post(dashboard.address, "/login", &same, &form).await));
    }
    for answers in [bearers, logins] {
        assert_eq!(answers[0].0, 401);
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    }
}

/// A visitor who is logged in without noticing shows an attacker what they look at, and acts in the attacker's name.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_logged_in_by_another_sites_form() {
    let (dashboard, _file) = guarded(NO_REDIS).await;
    let form = format!("token={}&next=/", token("look"));
    let (victim, word) = dashboard.login_form().await;
    let (attacker, attackers) = dashboard.login_form().await;
    assert!(victim != attacker && word != attackers && !victim.contains(&word));
    // A proxy that removes the headers naming the site of a form passes the request on like this.
    for (cookie, csrf) in [
        (None, None),
        (None, Some(&attackers)),
        (Some(&victim), None),
        (Some(&victim), Some(&String::new())),
        (Some(&victim), Some(&attackers)),
        // There are two cookies: one of them has been set by another site.
        (Some(&format!("{victim}; {attacker}")), Some(&attackers)),
        (Some(&"lockscope-login=".to_owned()), Some(&attackers)),
    ] {
        let headers: Vec<(&str, &str)> =
            cookie.iter().map(|cookie| ("Cookie", cookie.as_str())).collect();
        let csrf = csrf.map(|csrf| format!("&csrf={csrf}")).unwrap_or_default();
        let answer = post(dashboard.address, "/login", &headers, &format!("{form}{csrf}")).await;
        assert_eq!(answer.status, 403, "{cookie:?} {csrf}: {answer:?}");
        let set = answer.header("set-cookie").unwrap_or_default();
        assert!(!set.contains("lockscope="), "{set}");
        // The visitor who was meant to see the form can try again.
        assert!(answer.body.contains("name=\"csrf\""), "{}", answer.body);
    }
    for (cookie, csrf) in [(&victim, &word), (&attacker, &attackers), (&victim, &word)] {
        let own = format!("{form}&csrf={csrf}");
        let answer = post(dashboard.address, "/login", &[("Cookie", cookie)], &own).await;
        assert_eq!(answer.status, 303, "{answer:?}");
    }
    // Browsers send the cookie to this site only. Behind TLS, they send it over TLS only.
    let set = dashboard.get("/login").await.header("set-cookie").unwrap().to_owned();
    assert!(set.starts_with("lockscope-login="), "{set}");
    for flag in ["; Path=/", "; HttpOnly", "; SameSite=Strict"] {
        assert!(set.contains(flag), "{flag}: {set}");
    }
}
