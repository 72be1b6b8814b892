//! Tests of valid settings, and of the mistakes that are reported.

use std::ffi::OsString;
use std::time::Duration;

use super::*;

fn load(args: &[&str], env: &[(&str, &str)]) -> Result<Config, String> {
    let args = std::iter::once("lockscope-dashboard").chain(args.iter().copied());
    let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let loaded = Config::load_from(args.map(Into::into), env);
    loaded.map_err(|stop| stop.text().to_owned())
}

fn with_file(text: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dashboard.toml");
    std::fs::write(&path, text).unwrap();
    load(&["--config", path.to_str().unwrap()], &[])
}

#[test]
fn the_local_server_is_the_default() {
    let config = load(&[], &[]).unwrap();
    assert_eq!(config.scopes(), [(Arc::from("default"), 0)]);
    assert_eq!(config.listen.to_string(), "127.0.0.1:9761");
    assert_eq!(config.model.usual.stuck_after, Some(Duration::from_secs(300)));
}

#[test]
fn servers_have_names_and_databases() {
    let flags =
        ["--redis-url", "a=redis://h1/2", "--redis-url", "redis://h2:7", "--db", "3", "--db", "1"];
    let config = load(&flags, &[]).unwrap();
    let names: Vec<_> = config.scopes().iter().map(|(n, db)| format!("{n}/{db}")).collect();
    assert_eq!(names, ["a/1", "a/3", "h2:7/1", "h2:7/3"]);
    let config = load(&[], &[("REDIS_URL", "redis://h/5")]).unwrap();
    assert_eq!(config.scopes(), [(Arc::from("default"), 5)]);
}

#[test]
fn a_file_may_configure_servers_and_rules() {
    let config = with_file(
        "stuck_after = \"1m\"\nignore = [\"cart:*\"]\n[[redis]]\nname = \"eu\"\nurl = \"redis://h\"\n\
         [[lock]]\nmatch = \"leader:*\"\nexpected = \"long\"\n[[lock]]\nmatch = \"x\"\nstuck_after = \"10s\"\n",
    )
    .unwrap();
    assert_eq!(config.scopes(), [(Arc::from("eu"), 0)]);
    assert_eq!(config.model.rules.len(), 2);
    assert_eq!(config.model.rules[0].rule.stuck_after, None);
    assert_eq!(config.model.ignore, [b"cart:*"]);
}

#[test]
fn servers_in_the_file_have_separate_databases_and_groups() {
    let row = |name: &str, more: &str| {
        format!("[[redis]]\nname = \"{name}\"\nurl = \"redis://{name}\"\n{more}\n")
    };
    let red = "group = \"red\"";
    let rows = [row("a", red), row("b", red), row("c", "db = [2, 0, 2]")].concat();
    let config = with_file(&format!("db = [5]\n{rows}")).unwrap();
    let scopes: Vec<_> = config.scopes().iter().map(|(d, db)| format!("{d}/{db}")).collect();
    assert_eq!(scopes, ["a/5", "b/5", "c/0", "c/2"]);
    let [group] = &config.model.groups[..] else { panic!("{:?}", config.model.groups) };
    let members: Vec<&str> = group.deployments.iter().map(|name| &**name).collect();
    assert_eq!((&*group.name, members), ("red", vec!["a", "b"]));
    for (rows, word) in [
        (row("a", red), "only one server"),
        (row("a", "group = \"x y\""), "`x y`"),
        (row("a", "db = [70000]"), "db"),
    ] {
        let error = with_file(&rows).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_report_needs_no_settings_that_protect_pages() {
    for args in [
        &["--allow-release"][..],
        &["--listen", "0.0.0.0:80"],
        &["--metrics-listen", "127.0.0.1:9761"],
        &["--tls-cert", "/nowhere", "--tls-key", "/nowhere"],
        &["--auth-token-file", "/nowhere"],
        &["--release-redis-url", "redis://x"],
        &["--trusted-user-header", "X-User"],
        &["--trusted-groups-header", "X-Groups"],
        &["--trusted-address-header", "X-Forwarded-For"],
        &["--trusted-proxy", "0.0.0.0/0"],
        &["--history-dir", "/dev/null"],
    ] {
        let all = ["doctor"].iter().chain(args).map(OsString::from);
        let loaded = Config::load_doctor(all, Vec::new());
        assert!(loaded.is_ok(), "{args:?}: {}", loaded.unwrap_err().text());
        assert!(load(args, &[]).is_err(), "{args:?}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    for text in [
        "[[access]]\nuser = \"anna\"\nrights = [\"everything\"]\n",
        "[[access]]\nuser = \"anna\"\nrights = [\"ack\"]\n",
        "[[access]]\nrole = \"ops\"\n",
    ] {
        std::fs::write(file.path(), text).unwrap();
        let args = ["doctor", "--config", file.path().to_str().unwrap()].map(OsString::from);
        let loaded = Config::load_doctor(args, Vec::new());
        assert!(loaded.is_ok(), "{text}: {}", loaded.unwrap_err().text());
        assert!(with_file(text).is_err(), "{text}");
    }
}

#[test]
fn mistakes_are_named() {
    for (args, word) in [
        (&["--listen", "0.0.0.0:80"][..], "--insecure"),
        (&["--listen", "0.0.0.0:80"], "--auth-token-file"),
        (&["--listen", "0.0.0.0:80"], "--tls-cert"),
        (&["--listen", "0.0.0.0:80", "--tls-cert", "/c", "--tls-key", "/k"], "--auth-token-file"),
        (&["--tls-cert", "/c"], "--tls-key"),
        (&["--tls-cert", "/c", "--tls-key", "/k"], "/c: "),
        (&["--redis-url", "rediss://x", "--redis-ca-file", "/nowhere"], "/nowhere: "),
        (&["--auth-token-file", "/nowhere"], "/nowhere"),
        (&["--trusted-user-header", "X-User"], "--trusted-proxy"),
        (&["--trusted-user-header", "a b", "--trusted-proxy", "10.0.0.1"], "`a b`"),
        (&["--trusted-address-header", "X-Forwarded-For"], "--trusted-proxy"),
        (&["--trusted-proxy", "10.0.0"], "`10.0.0`"),
        (&["--trusted-proxy", "0.0.0.0/0"], "every address"),
        (&["--trusted-proxy", "::/0"], "every address"),
        (&["--trusted-groups-header", "X-Groups"], "--trusted-user-header"),
        (&["--metrics-listen", "127.0.0.1:9761"], "same address as --listen"),
        (&["--metrics-listen", "0.0.0.0:9761"], "127.0.0.1:9761, the address of --listen, overlap"),
        (&["--listen", "[::]:80", "--metrics-listen", "[::1]:80"], "--listen, overlap"),
        (&["--metrics-listen", "[::]:9761"], "127.0.0.1:9761, the address of --listen, overlap"),
        (&["--metrics-listen", "[::ffff:127.0.0.1]:9761"], "the address of --listen, overlap"),
        (&["--redis-url", "a=redis://x", "--redis-url", "a=redis://y"], "`a`"),
        (&["--redis-url", "a b=redis://x"], "letters"),
        (&["--redis-url", "redis://u@x"], "password"),
        (&["--scan-every", "10ms"], "1s"),
        (&["--group", "=x"], "glob"),
        (&["--public-url", "locks"], "https://"),
        (&["--public-url", "https://locks.example.com/x"], "not under `/x`"),
        (&["--public-url", "https://locks.example.com/?x"], "not under `/?x`"),
        (&["--poll-rate", "0"], "poll-rate"),
        (&["--redis-ca-file", "/nowhere"], "rediss://"),
        (&["--redis-password-file", "/nowhere"], "/nowhere"),
    ] {
        let error = load(args, &[]).unwrap_err();
        assert!(error.contains(word), "{args:?}: {error}");
    }
    let error = with_file("[[lock]]\nmatch = \"x\"\n").unwrap_err();
    assert!(error.contains("`x`"), "{error}");
    let error = with_file("[[redis]]\nname = \"x\"\nurl = \"http://u:hunter2@h\"\n").unwrap_err();
    assert!(error.contains("`x`") && !error.contains("hunter2"), "{error}");
}

#[test]
fn a_setting_turns_the_login_off() {
    let open = load(&["--listen", "0.0.0.0:80", "--insecure"], &[]).unwrap();
    assert!(!open.access.is_needed() && !open.access.proxies_only);
    // Metrics on a separate address may be requested from other hosts.
    for address in ["[::]:80", "127.0.0.2:9761", "0.0.0.0:9762", "[::1]:9761"] {
        assert!(load(&["--metrics-listen", address], &[]).is_ok(), "{address}");
    }
    assert!(load(&["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"], &[]).is_ok());
    for (url, origin) in [
        ("https://locks.example.com", "https://locks.example.com"),
        ("https://locks.example.com:443/", "https://locks.example.com"),
        ("https://locks.example.com:8443/", "https://locks.example.com:8443"),
        ("HTTPS://locks.example.com/", "https://locks.example.com"),
        ("http://locks.example.com:443", "http://locks.example.com:443"),
    ] {
        let config = load(&["--public-url", url], &[]).unwrap();
        assert_eq!(config.public_host.as_deref(), Some("locks.example.com"));
        assert_eq!(config.access.public_origin.as_deref(), Some(origin));
        assert_eq!(config.access.secure_cookies, origin.starts_with("https:"), "{url}");
    }
}

#[test]
fn a_public_address_needs_tls_or_a_proxy() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0123456789abcdef,anna\n").unwrap();
    let tokens = ["--auth-token-file", file.path().to_str().unwrap()];
    let listen = ["--listen", "0.0.0.0:80"];
    let error = load(&[listen, tokens].concat(), &[]).unwrap_err();
    assert!(error.contains("sent unencrypted") && !error.contains("0123456789abcdef"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let tls = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let config = load(&[&listen[..], &tokens, &tls].concat(), &[]).unwrap();
    assert!(config.access.secure_cookies && !config.access.proxies_only);
    let proxy = ["--trusted-proxy", "10.0.0.7", "--public-url", "https://locks.example.com"];
    let config = load(&[&listen[..], &tokens, &proxy].concat(), &[]).unwrap();
    assert!(config.access.secure_cookies && config.access.proxies_only);
}

#[test]
fn a_budget_without_its_unit_is_a_mistake() {
    for small in ["1", "64", "512kb"] {
        let error = load(&["--monitor-budget", small], &[]).err().unwrap();
        assert!(error.contains("at least 1mb"), "{error}");
    }
    assert_eq!(load(&["--monitor-budget", "1MB"], &[]).unwrap().monitor.budget.0, 1 << 20);
}

#[test]
fn a_history_folder_that_cannot_be_created_is_a_mistake() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let folder = file.path().join("history");
    let error = load(&["--history-dir", folder.to_str().unwrap()], &[]).err().unwrap();
    assert!(error.contains("--history-dir") && error.contains("is not a folder"), "{error}");
    assert!(load(&["--history-dir", "/nowhere/yet"], &[]).is_ok());
}

#[test]
fn releases_without_a_login_are_refused_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    std::fs::write(&path, "1234567890123456,a\n").unwrap();
    let refused = |more: &[&str]| load(&[&["--allow-release"], more].concat(), &[]).err();
    let error = refused(&[]).unwrap();
    for word in ["--allow-release", "--auth-token-file", "--trusted-user-header", "lockctl unlock"]
    {
        assert!(error.contains(word), "{word}: {error}");
    }
    // A proxy that does not name users does not replace a login.
    assert!(refused(&["--trusted-proxy", "10.0.0.7"]).is_some());
    assert!(refused(&["--listen", "0.0.0.0:9761", "--insecure"]).is_some());
    assert_eq!(refused(&["--insecure"]), None);
    assert_eq!(refused(&["--auth-token-file", path.to_str().unwrap()]), None);
    let user = ["--trusted-user-header", "X-User", "--trusted-proxy", "10.0.0.7"];
    assert_eq!(refused(&user), None);
}

#[test]
fn the_address_of_a_proxys_logout_is_a_path_or_on_a_web_server() {
    let refused = |address: &str, user: &[&str]| {
        load(&[&["--proxy-logout-url", address], user].concat(), &[]).err()
    };
    let user = ["--trusted-user-header", "X-User", "--trusted-proxy", "10.0.0.7"];
    for good in ["/oauth2/sign_out?rd=/", "https://sso.example.com/logout", "/"] {
        assert_eq!(refused(good, &user), None, "{good}");
    }
    for bad in
        ["", "logout", "//evil.example", "/\\evil.example", "javascript:alert(1)", "ftp://h/"]
    {
        assert!(
            refused(bad, &user).is_some_and(|error| error.contains("expected a path")),
            "{bad}"
        );
    }
    let error = refused("/logout", &[]).unwrap();
    assert!(error.contains("--trusted-user-header"), "{error}");
}

#[test]
fn rows_of_access_need_a_proxy_that_reports_them() {
    let proxy = "trusted_user_header = \"X-User\"\ntrusted_proxy = [\"10.0.0.0/8\", \"::1\"]\n";
    let user = "[[access]]\nuser = \"anna\"\nrights = [\"release\"]\n";
    let group = "[[access]]\ngroup = \"ops\"\nrights = [\"ack\"]\n";
    let config = with_file(&format!("{proxy}{user}")).unwrap();
    assert_eq!(config.access.proxy.map(|proxy| proxy.rules.len()), Some(1));
    for (file, word) in [
        (user.to_owned(), "--trusted-user-header"),
        (format!("{proxy}{group}"), "--trusted-groups-header"),
        (format!("{proxy}[[access]]\nrights = []\n"), "`user` or `group`"),
        (format!("{proxy}[[access]]\nuser = \"a\"\nrights = [\"fly\"]\n"), "`fly`"),
    ] {
        let error = with_file(&file).unwrap_err();
        assert!(error.contains(word), "{file}: {error}");
    }
}

#[test]
fn printed_settings_have_no_secret_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens-file");
    std::fs::write(&tokens, "token-of-a-robot-1,robby,look\n").unwrap();
    let flags = [
        "--redis-url",
        "eu=rediss://usher:sesame1@h:7/2",
        "--release-redis-url",
        "eu=rediss://killer:sesame2@h:7",
        "--monitor-redis-url",
        "eu=rediss://tapper:sesame3@h:7",
        "--allow-release",
        "--auth-token-file",
        tokens.to_str().unwrap(),
        "--stuck-after",
        "90s",
        "--ignore",
        "cart:*",
    ];
    let public = load(&flags, &[]).unwrap().public();
    assert_eq!(public["deployments"][0]["name"], "eu");
    assert_eq!(public["deployments"][0]["node"], "h:7");
    assert_eq!(public["usual"]["stuck_after_ms"], 90_000);
    assert_eq!((&public["ignore"][0], &public["asks_who_it_is"]), (&"cart:*".into(), &true.into()));
    let text = public.to_string();
    for secret in ["sesame", "usher", "killer", "tapper", "token-of", "robby", "tokens-file"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

#[test]
fn a_note_is_a_line() {
    let noted = |text: &str| load(&["--note", text], &[]);
    assert_eq!(noted(" Mind the gap. ").unwrap().note.as_deref(), Some("Mind the gap."));
    for wrong in ["", "  ", "two\nlines", &"x".repeat(501)] {
        assert!(noted(wrong).unwrap_err().contains("500 printable"), "{wrong:?}");
    }
}

#[test]
fn a_master_named_by_sentinels_is_one_deployment() {
    let url = "redis+sentinel://u:p@a,b:2/m/3?sentinel_password=q";
    let config = load(&["--redis-url", url], &[]).unwrap();
    assert_eq!(config.scopes(), [(Arc::from("default"), 3)]);
    let public = config.public();
    assert_eq!(public["deployments"][0]["node"], "a:26379,b:2/m");
    let flags = ["--redis-url", url, "--redis-url", "redis+sentinel://a/other", "--db", "1"];
    let config = load(&flags, &[]).unwrap();
    let names: Vec<_> = config.scopes().iter().map(|(n, db)| format!("{n}/{db}")).collect();
    assert_eq!(names, ["m/1", "other/1"]);
    let error = load(&["--redis-url", "redis+sentinel://a"], &[]).unwrap_err();
    assert!(error.contains("names no master"), "{error}");
    for (other, fits) in [
        ("redis+sentinel://x:y@a,b:2/m", true),
        ("redis+sentinel://x:y@a,b:2/other", false),
        ("redis+cluster://x:y@a:26379,b:2", false),
        ("redis://x:y@a:26379", false),
    ] {
        let loaded = load(&["--redis-url", url, "--monitor-redis-url", other], &[]);
        assert_eq!(loaded.is_ok(), fits, "{other}: {:?}", loaded.err());
    }
    let two = ["--redis-url", "eu=redis://h", "--redis-url", "us=redis://i"];
    for other in ["redis://x:y@h", "asia=redis://x:y@h"] {
        let error = load(&[&two[..], &["--monitor-redis-url", other]].concat(), &[]).unwrap_err();
        assert!(error.contains("NAME is one of: eu, us"), "{error}");
    }
}

/// Without the password, the other user would have none, which is rejected.
#[test]
fn the_sentinels_password_is_that_of_the_urls_for_other_users_too() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0123456789abcdef,anna,look+release\n").unwrap();
    let path = file.path().to_str().unwrap();
    let url = |user: &str| format!("redis+sentinel://{user}:p@a,b/m?sentinel_username=s");
    let (main, tap, releaser) = (url("main"), url("tap"), url("releaser"));
    let urls =
        ["--redis-url", &main, "--monitor-redis-url", &tap, "--release-redis-url", &releaser];
    let files = ["--allow-release", "--auth-token-file", path, "--sentinel-password-file", path];
    let deployment = load(&[&urls[..], &files].concat(), &[]).unwrap().deployments.remove(0);
    assert_eq!((deployment.monitor.user(), deployment.release.user()), ("tap", "releaser"));
}

#[test]
fn replicas_are_read_but_for_those_of_a_cluster() {
    let read_from = |args: &[&str]| load(args, &[]).map(|config| config.read_from);
    assert_eq!(read_from(&[]), Ok(ReadFrom::Master));
    let replica = ["--read-from", "replica"];
    assert_eq!(read_from(&replica), Ok(ReadFrom::Replica));
    let url = "redis+sentinel://h:26379/main";
    assert_eq!(read_from(&[&replica[..], &["--redis-url", url]].concat()), Ok(ReadFrom::Replica));
    let url = "redis+cluster://h:7000";
    let error = read_from(&[&replica[..], &["--redis-url", url]].concat()).unwrap_err();
    assert!(error.contains("read-from") && error.contains("not for a cluster"), "{error}");
}

#[test]
fn secrets_that_all_users_may_read_are_warned_of() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0123456789abcdef,anna\n").unwrap();
    let path = file.path().to_str().unwrap();
    for (mode, warns) in [(0o600, false), (0o440, false), (0o644, true)] {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, permissions).unwrap();
        let config = load(&["--auth-token-file", path], &[]).unwrap();
        assert_eq!(!config.warnings.is_empty(), warns, "{mode:o}: {:?}", config.warnings);
    }
}
