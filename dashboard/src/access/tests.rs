use axum::http::{HeaderName, HeaderValue};

use super::proxy::{Principal, Rule};
use super::*;

const TOKEN: &str = "0123456789abcdef0123";
const OTHER: &str = "fedcba9876543210fedc";
const NOW: u64 = 1_800_000_000;
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    map
}

fn access(file: &str) -> Access {
    Access { tokens: Some(Tokens::parse(file).unwrap()), ..Access::default() }
}

fn proxied(rules: Vec<Rule>) -> Access {
    Access {
        proxy: Some(Proxy {
            networks: vec!["10.1.0.0/16".parse().unwrap()],
            user: Some(HeaderName::from_static("x-user")),
            groups: Some(HeaderName::from_static("x-groups")),
            rules,
        }),
        ..Access::default()
    }
}

#[test]
fn without_settings_everybody_has_all_rights() {
    let visitor = Access::default().visitor(&HeaderMap::new(), HERE, NOW).unwrap();
    assert!(visitor.name.is_none() && Right::ALL.iter().all(|right| visitor.may(*right)));
}

#[test]
fn a_token_grants_its_rights() {
    let access = access(&format!("# people\n\n{TOKEN}, anna\n{OTHER},robot,look+ack\n"));
    let ask = |value: &str| access.visitor(&headers(&[("authorization", value)]), HERE, NOW);
    let anna = ask(&format!("Bearer {TOKEN}")).unwrap();
    assert_eq!((anna.name.as_deref(), anna.auth), (Some("anna"), AuthMethod::Bearer));
    assert!(anna.may(Right::Release));
    let robot = ask(&format!("bearer  {OTHER}")).unwrap();
    assert!(robot.may(Right::Look) && robot.may(Right::Ack));
    assert!(!robot.may(Right::Release) && !robot.may(Right::Watch));
    for wrong in ["", "Bearer", "Bearer ", "Bearer x", "Basic MDEyMzQ=", TOKEN] {
        assert_eq!(ask(wrong), Err(Refusal::Unknown), "{wrong}");
    }
    assert_eq!(access.visitor(&HeaderMap::new(), HERE, NOW), Err(Refusal::Unknown));
}

#[test]
fn a_cookie_is_valid_until_it_expires_or_its_token_is_removed() {
    let access = access(&format!("{TOKEN},anna\n{OTHER},robot"));
    let tokens = access.tokens.as_ref().unwrap();
    let cookie = tokens.find(TOKEN).unwrap().cookie(NOW + 60);
    assert!(!cookie.contains(TOKEN));
    let ask = |cookie: &str, now| {
        let visitor = access.visitor(&headers(&[("cookie", cookie)]), HERE, now);
        visitor.ok().and_then(|visitor| visitor.name)
    };
    let sent = format!("a=b; lockscope={cookie}");
    assert_eq!(ask(&sent, NOW).as_deref(), Some("anna"));
    assert_eq!(ask(&sent, NOW + 60), None, "expired");
    assert_eq!(ask(&format!("{sent}; lockscope=x"), NOW), None, "sent twice");
    let parts: Vec<&str> = cookie.split('.').collect();
    let robot = tokens.find(OTHER).unwrap().cookie(NOW + 60);
    let robots = robot.split('.').next().unwrap();
    let far = tokens.find(TOKEN).unwrap().cookie(NOW + LOGIN + 1);
    for forged in [
        format!("{}.{}.{}", parts[0], NOW + 90, parts[2]),
        format!("{robots}.{}.{}", parts[1], parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{cookie}.x"),
        cookie.replace('.', ""),
        String::new(),
        far,
    ] {
        assert_eq!(ask(&format!("lockscope={forged}"), NOW), None, "{forged}");
    }
    // The cookie becomes invalid when its token is removed from the file.
    let without =
        Access { tokens: Tokens::parse(&format!("{OTHER},robot")).ok(), ..Access::default() };
    let visitor = without.visitor(&headers(&[("cookie", &sent)]), HERE, NOW);
    assert_eq!(visitor, Err(Refusal::Unknown));
}

const LOGIN: u64 = tokens::LOGIN_SECS;

#[test]
fn cookies_are_hidden_from_scripts_and_other_sites() {
    let mut access = Access::default();
    assert_eq!(
        access.set_cookie("v", 5),
        "lockscope=v; Path=/; Max-Age=5; HttpOnly; SameSite=Strict"
    );
    access.secure_cookies = true;
    assert!(access.set_cookie("v", 5).starts_with("__Host-lockscope=v; Path=/;"));
    assert!(access.set_cookie("v", 5).ends_with("; Secure"));
}

#[test]
fn token_files_with_mistakes_are_rejected_without_revealing_tokens() {
    let long = "x".repeat(513);
    for (file, words) in [
        ("", "no token"),
        ("# nothing", "no token"),
        ("short,anna", "line 1: a token has 16"),
        (&*long, "16 to 512"),
        (&*format!("\n{TOKEN},anna,look+fly"), "line 2: `fly` is no right"),
        (&*format!("{TOKEN},a\n{TOKEN},b"), "line 2: this token stands above"),
        (&*format!("{TOKEN},{}", "n".repeat(65)), "64"),
    ] {
        let mistakes = Tokens::parse(file).unwrap_err().join("; ");
        assert!(mistakes.contains(words), "{mistakes}");
        assert!(!mistakes.contains(TOKEN), "{mistakes}");
    }
}

#[test]
fn a_proxy_is_trusted_at_its_address_only() {
    let access = proxied(Vec::new());
    let anna = headers(&[("x-user", "anna")]);
    let proxy: IpAddr = "10.1.2.3".parse().unwrap();
    let mapped: IpAddr = "::ffff:10.1.2.3".parse().unwrap();
    for peer in [proxy, mapped] {
        let visitor = access.visitor(&anna, peer, NOW).unwrap();
        assert_eq!((visitor.name.as_deref(), visitor.auth), (Some("anna"), AuthMethod::Proxy));
    }
    for other in ["10.2.0.1", "127.0.0.1", "::1"] {
        let refused = access.visitor(&anna, other.parse().unwrap(), NOW);
        assert_eq!(refused, Err(Refusal::Unknown), "{other}");
    }
    assert_eq!(access.visitor(&HeaderMap::new(), proxy, NOW), Err(Refusal::Unknown));
    assert_eq!(access.visitor(&headers(&[("x-user", " ")]), proxy, NOW), Err(Refusal::Unknown));
    let twice = headers(&[("x-user", "anna"), ("x-user", "root")]);
    assert!(matches!(access.visitor(&twice, proxy, NOW), Err(Refusal::Denied(_))));
}

#[test]
fn access_rules_grant_rights_to_users_and_groups() {
    let row = |principal, words: &[&str]| Rule {
        principal,
        rights: Rights::parse(words.iter().copied()).unwrap(),
    };
    let access = proxied(vec![
        row(Principal::User("anna".to_owned()), &["ack"]),
        row(Principal::Group("ops".to_owned()), &["release"]),
    ]);
    let proxy: IpAddr = "10.1.2.3".parse().unwrap();
    let ask = |user: &str, groups: &str| {
        access.visitor(&headers(&[("x-user", user), ("x-groups", groups)]), proxy, NOW)
    };
    let both = ask("anna", "dev, ops").unwrap();
    assert!(both.may(Right::Ack) && both.may(Right::Release) && !both.may(Right::Watch));
    let ops = ask("bob", "ops").unwrap();
    assert!(ops.may(Right::Look) && ops.may(Right::Release) && !ops.may(Right::Ack));
    assert!(matches!(ask("bob", "devops"), Err(Refusal::Denied(why)) if why.contains("bob")));
}

#[test]
fn plain_http_is_limited_to_this_host_and_the_proxies() {
    let access = Access { proxies_only: true, ..proxied(Vec::new()) };
    let anna = headers(&[("x-user", "anna")]);
    assert!(access.visitor(&anna, "10.1.2.3".parse().unwrap(), NOW).is_ok());
    let refused = access.visitor(&anna, "192.0.2.1".parse().unwrap(), NOW);
    assert!(matches!(refused, Err(Refusal::Denied(why)) if why.contains("proxy")));
    assert_eq!(access.visitor(&anna, HERE, NOW), Err(Refusal::Unknown), "no proxy");
}
