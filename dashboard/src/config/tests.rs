//! What settings are understood, and what mistakes are told.

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
fn without_anything_it_looks_at_the_local_server() {
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
fn a_file_may_say_it_all() {
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
fn mistakes_are_named() {
    for (args, word) in [
        (&["--listen", "0.0.0.0:80"][..], "--insecure"),
        (&["--metrics-listen", "[::]:80"], "--insecure"),
        (&["--metrics-listen", "127.0.0.1:9761"], "same address"),
        (&["--redis-url", "a=redis://x", "--redis-url", "a=redis://y"], "`a`"),
        (&["--redis-url", "a b=redis://x"], "letters"),
        (&["--redis-url", "redis://u@x"], "password"),
        (&["--scan-every", "10ms"], "1s"),
        (&["--group", "=x"], "glob"),
        (&["--public-url", "locks"], "https://"),
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
fn it_may_be_told_that_nobody_needs_to_log_in() {
    assert!(load(&["--listen", "0.0.0.0:80", "--insecure"], &[]).is_ok());
    let config = load(&["--public-url", "https://locks.example.com/x"], &[]).unwrap();
    assert_eq!(config.public_host.as_deref(), Some("locks.example.com"));
}
