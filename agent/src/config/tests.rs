use std::ffi::OsString;

use super::*;
use crate::core::Limits;

fn load(args: &[&str], env: &[(&str, &str)]) -> Result<Config, String> {
    let args = std::iter::once("lockscope-agent").chain(args.iter().copied());
    let env = env.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    settings::load_from(&PROGRAM, args.map(OsString::from), env, build)
        .map_err(|stop| stop.text().to_owned())
}

#[test]
fn sentinels_have_their_own_password() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{name}-password\n")).unwrap();
        path.display().to_string()
    };
    let (own, theirs) = (file("own"), file("theirs"));
    let url = "redis+sentinel://u@a,b:2/m?sentinel_username=s";
    let args = ["--redis-url", url, "--redis-password-file", &own];
    let error = load(&args, &[]).unwrap_err();
    assert!(
        error.contains("user is given without a password"),
        "the sentinels' user has no password: {error}"
    );
    let args = [args.as_slice(), &["--sentinel-password-file", &theirs]].concat();
    let target = load(&args, &[]).unwrap().target;
    let password = |file: &str| Password::from_file(Path::new(file)).unwrap();
    let wanted = url.parse::<Deployment>().unwrap().with_password(password(&own));
    assert_eq!(target, wanted.with_sentinel_password(&password(&theirs)));
    let error = load(&["--sentinel-password-file", &theirs], &[]).unwrap_err();
    assert!(error.contains("redis+sentinel://"), "{error}");
}

#[test]
fn unset_settings_have_defaults() {
    let config = load(&[], &[]).unwrap();
    assert_eq!(config.target.to_string(), "redis://127.0.0.1:6379/0");
    assert_eq!(config.http.to_string(), "127.0.0.1:9760");
    assert_eq!(config.core.lease.millis(), 30_000);
    assert_eq!(config.core.response_timeout, Duration::from_secs(2));
    assert_eq!(config.core.lost_margin, Duration::from_millis(500));
    assert_eq!(config.core.poll_max, Duration::from_secs(5));
    assert_eq!((config.core.handover_max, config.core.handover_max_time.as_millis()), (32, 100));
    assert_eq!(config.max_sessions, 20_000);
    assert_eq!(config.core.limits, Limits { max_waiters: 100_000, max_locks: 1_000_000 });
    assert_eq!((config.max_groups, config.socket_mode), (50, 0o660));
    assert_eq!(config.drain_timeout, Duration::from_secs(25));
    assert_eq!(config.core.lock_delay, Duration::ZERO);
    assert_eq!(config.core.frozen, core::Frozen::Keep);
    assert!(!config.core.require_session && !config.http_sessions);
}

#[test]
fn the_scheme_selects_a_cluster() {
    let config = load(&["--redis-url", "redis+cluster://a:1,b:2"], &[]).unwrap();
    assert_eq!(config.target.to_string(), "redis+cluster://a:1,b:2");
    assert!(config.core.slots);
    assert_eq!((config.core.publish, config.cluster_messages), (Publish::Plain, Publish::Both));
    assert!(!load(&[], &[]).unwrap().core.slots);
    let messages = |how| load(&["--cluster-messages", how], &[]).map(|c| c.cluster_messages);
    assert_eq!(messages("spublish"), Ok(Publish::Sharded));
    assert_eq!(messages("publish"), Ok(Publish::Plain));
    assert!(messages("none").unwrap_err().contains("both, publish or spublish"));
    // Each server of red locks must be independent.
    let red = load(&["--redlock-url", "redis+cluster://a:1"], &[]).unwrap_err();
    assert!(red.contains("redis+cluster"), "{red}");
}

#[test]
fn red_locks_have_no_database_in_common_with_other_kinds() {
    let with = |url| {
        let red = ["redis://a", "redis://b", url].map(|url| ["--redlock-url", url]);
        load(&[&["--redis-url", "redis://c/1"], red.as_flattened()].concat(), &[])
    };
    let error = with("redis://c/1").unwrap_err();
    assert!(error.contains("--redlock-url") && error.contains("another database"), "{error}");
    assert_eq!(with("redis://c/2").unwrap().red.len(), 3);
    assert_eq!(with("redis://c:6380/1").unwrap().red.len(), 3);
}

#[test]
fn a_short_lease_shortens_the_response_timeout() {
    let response_timeout = |lease| load(&["--lease", lease], &[]).unwrap().core.response_timeout;
    assert_eq!(response_timeout("3s"), Duration::from_millis(200));
    assert_eq!(response_timeout("500ms"), Duration::from_millis(50));
    assert_eq!(response_timeout("1h"), Duration::from_secs(2));
}

#[test]
fn flags_override_environment_which_overrides_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.toml");
    std::fs::write(&file, "lease = \"10s\"\nmax_sessions = 5\ngroup = [\"a:*\", \"b*=b\"]\n")
        .unwrap();
    let config = ["--config", file.to_str().unwrap(), "--max-sessions", "7"];
    let config =
        load(&config, &[("LOCKSCOPE_AGENT_LEASE", "20s"), ("REDIS_URL", "redis://elsewhere/2")])
            .unwrap();
    assert_eq!(config.core.lease.millis(), 20_000);
    assert_eq!((config.max_sessions, config.groups.len()), (7, 2));
    assert_eq!(config.target.to_string(), "redis://elsewhere:6379/2");
}

#[test]
fn errors_name_the_setting_and_the_expected_value() {
    for (args, words) in [
        (&["--lease", "100ms"][..], ["--lease", "expected 500ms to a year"]),
        (&["--socket-mode", "999"], ["--socket-mode", "octal"]),
        (&["--socket-mode", "0666"], ["--socket-mode", "--world-writable-socket"]),
        (&["--http", "0.0.0.0:1", "--http-sessions"], ["--http-sessions", "other hosts"]),
        (&["--policy", "/no/such"], ["--policy", "/no/such"]),
        (&["--socket-group", "no-such-group"], ["--socket-group", "no-such-group"]),
        (&["--redis-url", "http://host"], ["--redis-url", "`http`"]),
        (&["--redis-ca-file", "/x"], ["--redis-ca-file", "rediss://"]),
        (&["--redis-password-file", "/no/such"], ["--redis-password-file", "cannot read"]),
        (&["--group", "a=$1"], ["--group", "bad group"]),
        (&["--poll-max", "0s"], ["--poll-max", "expected 10ms"]),
        (&["--drain-timeout", "18446744073709551615s"], ["--drain-timeout", "0s to a year"]),
        (&["--redlock-url", "redis://a"], ["--redlock-url", "odd number"]),
        (&["--redlock-password-file", "/no/such"], ["--redlock-password-file", "cannot read"]),
        (&["--node-timeout", "5s"], ["--node-timeout", "1ms to 2s"]),
        (&["--host-name", "a host"], ["--host-name", "253 visible ASCII"]),
        (&["--host-name", ""], ["--host-name", "253 visible ASCII"]),
        (&["--frozen", "thaw"], ["--frozen", "keep or lapse"]),
        (&["--lock-delay", "2h"], ["--lock-delay", "0s to 1h"]),
        (&["--min-replicas", "101"], ["--min-replicas", "0..=100"]),
        (&["--max-sessions", "0"], ["--max-sessions", "1..=1000000"]),
        (&["--grace", "5s"], ["--grace", "unexpected"]),
    ] {
        let error = load(args, &[]).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{args:?}: {error}");
    }
}

#[test]
fn red_locks_need_an_odd_number_of_distinct_servers() {
    let urls = |urls: &[&str]| {
        let args: Vec<_> = urls.iter().flat_map(|url| ["--redlock-url", url]).collect();
        load(&args, &[])
    };
    let config = urls(&["redis://a", "redis://:secret@b", "redis://c:7"]).unwrap();
    let red = config.core.red.unwrap();
    assert_eq!(red.nodes, ["redis://a:6379/0", "redis://:***@b:6379/0", "redis://c:7/0"]);
    assert_eq!((red.node_timeout, config.red.len()), (Duration::from_millis(50), 3));
    assert!(load(&[], &[]).unwrap().core.red.is_none());
    for (given, words) in [
        (&["redis://a", "redis://b", "redis://c", "redis://d"][..], "not 4"),
        (&["redis://a", "redis://b", "redis://a:6379"], "given twice"),
        (&["redis://a", "redis://b", "redis://:secret@a/1"], "a:6379 is given twice"),
    ] {
        let error = urls(given).unwrap_err();
        assert!(error.contains("--redlock-url") && error.contains(words), "{error}");
    }
}

#[test]
fn printed_settings_hide_passwords() {
    let url = "redis://me:hunter2@host";
    let printed = load(&["--print-config", "--redis-url", url], &[]).unwrap_err();
    assert!(printed.contains("redis_url") && !printed.contains("hunter2"), "{printed}");
    assert!(load(&["--check-config"], &[]).unwrap_err().contains("valid"));
}

#[test]
fn a_socket_path_too_long_to_connect_to_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, has_warning) in [(107, false), (108, true)] {
        let rest = bytes - folder.path().as_os_str().len() - 1;
        let path = folder.path().join("s".repeat(rest)).display().to_string();
        let checked = load(&["--check-config", "--socket", &path], &[]).unwrap_err();
        let warning = format!("warning: --socket: {path} has 108 bytes");
        assert_eq!(checked.contains(&warning), has_warning, "{checked}");
        assert!(checked.contains("the settings are valid"), "{checked}");
    }
}

#[test]
fn a_redis_can_be_required() {
    let error = load(&["--require-redis-url"], &[]).unwrap_err();
    assert!(error.contains("no Redis is chosen: set redis_url"), "{error}");
    let localhost = "redis://127.0.0.1:6379";
    assert!(load(&["--require-redis-url", "--redis-url", localhost], &[]).is_ok());
    assert!(load(&["--require-redis-url"], &[("REDIS_URL", localhost)]).is_ok());
    assert!(load(&[], &[]).is_ok());
}

#[test]
fn files_are_read_before_they_are_needed() {
    let nowhere = ["--redis-url", "rediss://h", "--redis-ca-file", "/nowhere"];
    let error = load(&nowhere, &[]).unwrap_err();
    assert!(error.contains("--redis-ca-file: /nowhere: "), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hunter2\n").unwrap();
    let path = file.path().to_str().unwrap();
    let policy = tempfile::NamedTempFile::new().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(policy.path(), open).unwrap();
    let policy = policy.path().to_str().unwrap();
    let args = ["--redis-password-file", path, "--policy", policy, "--check-config"];
    for (mode, warning) in [(0o600, None), (0o604, Some("chmod o= ")), (0o622, Some("chmod o-w "))]
    {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, permissions).unwrap();
        let checked = load(&args, &[]).unwrap_err();
        let accepted = mode != 0o622;
        assert_eq!(checked.contains("the settings are valid"), accepted, "{checked}");
        assert_eq!(checked.contains("chmod"), warning.is_some(), "{checked}");
        assert!(warning.is_none_or(|warning| checked.contains(warning)), "{checked}");
    }
}

#[test]
fn a_file_in_place_of_the_socket_or_its_folder_is_a_mistake() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let socket = file.path().join("agent.sock");
    let error = load(&["--socket", socket.to_str().unwrap()], &[]).err().unwrap();
    assert!(error.contains("--socket") && error.contains("is not a folder"), "{error}");
    let error = load(&["--socket", file.path().to_str().unwrap()], &[]).err().unwrap();
    assert!(error.contains("--socket") && error.contains("is not a socket"), "{error}");
}

#[test]
fn metrics_without_lock_names_have_the_labels_of_groups_alone() {
    let named = ["--group", "orders:*=orders"];
    for (flags, labels) in [
        (&[][..], ["orders", "report:nightly"]),
        (&["--no-lock-names-in-metrics"], ["orders", "other"]),
    ] {
        let mut grouping = load(&[&named, flags].concat(), &[]).unwrap().grouping();
        let names = ["orders:7", "report:nightly"]
            .map(|name| redisson::LockName::new(name.as_bytes()).unwrap());
        assert_eq!(names.map(|name| grouping.label(&name).to_string()), labels);
    }
}
