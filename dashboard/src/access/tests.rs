use std::io::Write as _;
use std::os::fd::IntoRawFd as _;

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

/// Creates a token file without a name in a folder, so that nothing is left behind.
fn token_file(text: &str) -> TokenFile {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    TokenFile::open(format!("/proc/self/fd/{}", file.into_raw_fd()).into()).unwrap()
}

fn access(file: &str) -> Access {
    Access { tokens: Some(token_file(file)), ..Access::default() }
}

fn proxied(rules: Vec<Rule>) -> Access {
    Access {
        proxy: Some(Proxy {
            logout: None,
            networks: vec!["10.1.0.0/16".parse().unwrap()],
            user: Some(HeaderName::from_static("x-user")),
            groups: Some(HeaderName::from_static("x-groups")),
            address: Some(HeaderName::from_static("x-forwarded-for")),
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
        assert_eq!(ask(wrong).err(), Some(Refusal::Unknown), "{wrong}");
    }
    assert_eq!(access.visitor(&HeaderMap::new(), HERE, NOW).err(), Some(Refusal::Unknown));
}

#[test]
fn a_login_ends_by_time_by_logout_and_with_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    std::fs::write(&path, format!("{TOKEN},anna\n{OTHER},robot\n")).unwrap();
    let file = TokenFile::open(path.clone()).unwrap();
    let access = Access { tokens: Some(file.clone()), ..Access::default() };
    let log_in = |token: &str| {
        let token = access.token_of_form(token, HERE, NOW).unwrap();
        access.logins.begin(&token, NOW).unwrap()
    };
    let ask = |cookie: &str, now| {
        access.visitor(&headers(&[("cookie", &format!("lockscope={cookie}"))]), HERE, now).ok()
    };
    let name = |cookie: &str, now| ask(cookie, now).and_then(|visitor| visitor.name);
    let (first, second, robot) = (log_in(TOKEN), log_in(TOKEN), log_in(OTHER));
    assert!(first != second && !first.contains(TOKEN));
    assert_eq!(name(&first, NOW).as_deref(), Some("anna"));
    assert_eq!(name(&first, NOW + logins::LOGIN_SECS), None, "expired");
    assert_eq!(name(&format!("{first}; lockscope=x"), NOW), None, "sent twice");
    for forged in [first.to_lowercase(), format!("{first}A"), String::new(), TOKEN.to_owned()] {
        assert_eq!(name(&forged, NOW), None, "{forged}");
    }
    let [first_stay, second_stay, robot_stay] =
        [&first, &second, &robot].map(|cookie| ask(cookie, NOW).unwrap().stay.ended);
    access.log_out(&headers(&[("cookie", &format!("lockscope={first}"))]));
    assert!(first_stay.is_cancelled() && name(&first, NOW).is_none());
    assert!(!second_stay.is_cancelled() && name(&second, NOW).is_some());
    // The rights of a login are the current ones of its token. A token that was changed needs a new login.
    std::fs::write(&path, format!("{TOKEN},anna,look\n{OTHER},robot\n")).unwrap();
    file.reload(false);
    assert!(second_stay.is_cancelled() && name(&second, NOW).is_none());
    assert!(!robot_stay.is_cancelled() && name(&robot, NOW).is_some());
    assert!(!access.token_of_form(TOKEN, HERE, NOW).unwrap().visitor().may(Right::Release));
    // A file with mistakes changes nothing.
    for broken in ["", "short,x\n"] {
        std::fs::write(&path, broken).unwrap();
        file.reload(false);
        assert!(name(&robot, NOW).is_some(), "{broken}");
    }
    std::fs::write(&path, format!("{TOKEN},anna\n")).unwrap();
    file.reload(false);
    assert!(robot_stay.is_cancelled() && name(&robot, NOW).is_none());
    assert_eq!(access.token_of_form(OTHER, HERE, NOW).err(), Some(Refusal::Unknown));
    // An emptied file revokes all tokens only once it is settled, since it may be about to be written.
    std::fs::write(&path, "# nobody\n").unwrap();
    file.reload(false);
    assert!(access.token_of_form(TOKEN, HERE, NOW).is_ok());
    file.reload(true);
    assert_eq!(access.token_of_form(TOKEN, HERE, NOW).err(), Some(Refusal::Unknown));
}

#[test]
fn an_address_that_guesses_tokens_is_rejected_for_a_minute() {
    let access = access(&format!("{TOKEN},anna"));
    let guesser: IpAddr = "192.0.2.7".parse().unwrap();
    let ask = |token: &str, from, now| {
        access.visitor(&headers(&[("authorization", &format!("Bearer {token}"))]), from, now).err()
    };
    let cookie = access.logins.begin(&access.token_of_form(TOKEN, HERE, NOW).unwrap(), NOW);
    for _ in 0..attempts::MAX_PER_MINUTE {
        assert_eq!(ask(OTHER, guesser, NOW), Some(Refusal::Unknown));
    }
    // A correct guess is rejected too. Other addresses, and users who have logged in, are not affected.
    assert_eq!(ask(TOKEN, guesser, NOW + 1), Some(Refusal::Limited));
    assert_eq!(access.token_of_form(TOKEN, guesser, NOW + 1).err(), Some(Refusal::Limited));
    assert_eq!(ask(TOKEN, HERE, NOW + 1), None);
    let logged_in = headers(&[("cookie", &format!("lockscope={}", cookie.unwrap()))]);
    assert!(access.visitor(&logged_in, guesser, NOW + 1).is_ok());
    assert_eq!(ask(TOKEN, guesser, NOW + 60), None);
}

#[test]
fn rights_can_be_limited_to_lock_names() {
    let name = |text: &str| LockName::new(text.as_bytes().to_vec()).unwrap();
    let access = access(&format!("{TOKEN},anna,ack+release orders:*+release cart,x"));
    let anna = access.token_of_form(TOKEN, HERE, NOW).unwrap().visitor();
    for (lock, expected) in
        [("orders:42", true), ("cart,x", true), ("users:1", false), ("my-orders:", false)]
    {
        assert_eq!(anna.may_for(Right::Release, &name(lock)), expected, "{lock}");
        assert!(anna.may_for(Right::Ack, &name(lock)));
    }
    assert!(!anna.may(Right::Release) && !anna.may(Right::Watch));
    let joined = Rights::parse(["release a*"]).unwrap().union(&Rights::parse(["ack b"]).unwrap());
    assert!(joined.has_for(Right::Release, &name("a1")) && joined.has_for(Right::Ack, &name("b")));
    assert!(
        !joined.has_for(Right::Ack, &name("a1")) && !joined.has_for(Right::Release, &name("b"))
    );
    assert!(Rights::parse(["watch orders:*"]).unwrap_err().contains("omit `orders:*`"));
}

#[test]
fn cookies_are_hidden_from_scripts_and_other_sites() {
    let mut access = Access::default();
    assert_eq!(access.set_cookie("v", 5), "lockscope=v; Path=/; Max-Age=5; HttpOnly; SameSite=Lax");
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
        (&*format!("\n{TOKEN},anna,look+fly"), "line 2: `fly` is not a right"),
        (&*format!("{TOKEN},a\n{TOKEN},b"), "line 2: duplicate token"),
        (&*format!("{TOKEN},{}", "n".repeat(65)), "64"),
    ] {
        let stored = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(stored.path(), file).unwrap();
        let mistakes = TokenFile::open(stored.path().to_owned()).unwrap_err().join("; ");
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
        // The proxy checks the login again when a page opens its next stream.
        assert_eq!(visitor.stay.until_secs, Some(NOW + 600));
    }
    for other in ["10.2.0.1", "127.0.0.1", "::1"] {
        let refused = access.visitor(&anna, other.parse().unwrap(), NOW);
        assert_eq!(refused.err(), Some(Refusal::Unknown), "{other}");
    }
    assert_eq!(access.visitor(&HeaderMap::new(), proxy, NOW).err(), Some(Refusal::Unknown));
    assert_eq!(
        access.visitor(&headers(&[("x-user", " ")]), proxy, NOW).err(),
        Some(Refusal::Unknown)
    );
    let long = access.visitor(&headers(&[("x-user", &"x".repeat(257))]), proxy, NOW);
    assert!(matches!(long, Err(Refusal::Denied(why)) if why.contains("longer than 256 bytes")));
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
    assert_eq!(access.visitor(&anna, HERE, NOW).err(), Some(Refusal::Unknown), "no proxy");
}

#[test]
fn a_client_has_the_address_that_the_last_trusted_proxy_names() {
    let access = proxied(Vec::new());
    let client = |peer: &str, lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
        access.client(&headers(&lines), peer.parse().unwrap()).to_string()
    };
    for (lines, expected) in [
        (&["192.0.2.7"][..], "192.0.2.7"),
        (&["192.0.2.7:4711"], "192.0.2.7"),
        (&[" ::ffff:192.0.2.7 "], "192.0.2.7"),
        (&["[2001:db8::7]:4711"], "2001:db8::7"),
        // The client has sent the first one itself.
        (&["127.0.0.1, 192.0.2.7"], "192.0.2.7"),
        (&["127.0.0.1", "192.0.2.7"], "192.0.2.7"),
        (&["198.51.100.1, 192.0.2.7, 10.1.9.9"], "192.0.2.7"),
        (&["192.0.2.7, 10.1.9.9", "10.1.8.8"], "192.0.2.7"),
        (&["10.1.9.9"], "10.1.9.9"),
        // Nothing before a word that is no address is believed.
        (&["192.0.2.7, unknown"], "10.1.2.3"),
        (&["192.0.2.7, unknown, 10.1.9.9"], "10.1.9.9"),
        (&["192.0.2.7", ""], "10.1.2.3"),
        (&["192.0.2.7", "ä"], "10.1.2.3"),
        (&[], "10.1.2.3"),
    ] {
        assert_eq!(client("10.1.2.3", lines), expected, "{lines:?}");
    }
    assert_eq!(client("192.0.2.1", &["198.51.100.1"]), "192.0.2.1", "no proxy");
    let unnamed = Access::default().client(&headers(&[("x-forwarded-for", "192.0.2.7")]), HERE);
    assert_eq!(unnamed, HERE);
}

#[test]
fn one_client_of_a_proxy_does_not_use_up_the_attempts_of_another() {
    let access = Access { tokens: Some(token_file(TOKEN)), ..proxied(Vec::new()) };
    let ask = |client: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        let sent = headers(&[("authorization", &bearer), ("x-forwarded-for", client)]);
        access.visitor(&sent, "10.1.2.3".parse().unwrap(), NOW).err()
    };
    for n in 0..20 {
        assert_eq!(ask("192.0.2.7", &format!("guess-{n:014}")), Some(Refusal::Unknown));
    }
    assert_eq!(ask("192.0.2.7", TOKEN), Some(Refusal::Limited));
    assert_eq!(ask("192.0.2.8", TOKEN), None);
}

#[test]
fn names_of_users_and_groups_are_text_in_utf_8() {
    let group = Principal::Group("größe".to_owned());
    let rules = vec![Rule { principal: group, rights: Rights::parse(["ack"]).unwrap() }];
    let ask = |rules: &[Rule], user: &[u8], groups: &[u8]| {
        let mut headers = HeaderMap::new();
        for (name, value) in [("x-user", user), ("x-groups", groups)] {
            let value = HeaderValue::from_bytes(value).unwrap();
            headers.append(HeaderName::from_static(name), value);
        }
        proxied(rules.to_vec()).visitor(&headers, "10.1.2.3".parse().unwrap(), NOW)
    };
    let visitor = ask(&rules, "\tJosé Müller ".as_bytes(), "dev, größe".as_bytes()).unwrap();
    assert_eq!(visitor.name.as_deref(), Some("José Müller"));
    assert!(visitor.may(Right::Ack) && !visitor.may(Right::Release));
    let refused = |rules: &[Rule], user: &[u8], groups: &[u8]| match ask(rules, user, groups) {
        Err(Refusal::Denied(why)) => why,
        other => panic!("{other:?}"),
    };
    // These bytes are Latin-1.
    assert_eq!(refused(&[], b"Jos\xe9", b""), "the header x-user is not UTF-8");
    assert_eq!(refused(&rules, b"anna", b"gr\xf6\xdfe"), "the header x-groups is not UTF-8");
    for hidden in ["anna\troot", "anna\u{85}root", "an\u{202e}na", "anna\u{200b}", "anna\u{a0}"] {
        let why = refused(&[], hidden.as_bytes(), b"");
        assert!(why.contains("x-user contains control"), "{hidden:?}: {why}");
    }
}
