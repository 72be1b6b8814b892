use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use clap::Parser;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use serde::Deserialize;

use super::*;

#[derive(Parser, Debug)]
#[command(name = "thing", version)]
struct Args {
    /// The duration.
    #[arg(long, default_value = "30s")]
    lease: HumanDuration,
    /// The number.
    #[arg(long, default_value_t = 50)]
    max_groups: u16,
    /// The group.
    #[arg(long)]
    group: Vec<String>,
    /// The switch.
    #[arg(long)]
    insecure: bool,
    /// Address; by default that of the host. It may be masked
    #[arg(long)]
    redis_url: Option<String>,
    /// Hush.
    #[arg(long)]
    password: Option<Secret>,
    /// The file.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The folder.
    #[arg(long, value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
}

#[derive(Deserialize, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    after: Option<HumanDuration>,
}

const PROGRAM: Program =
    Program { env_prefix: "THING", env_fallbacks: &[("redis_url", "REDIS_URL")], tables: &["row"] };

/// One start of the program: its flags, its environment, its file.
#[derive(Default)]
struct Start {
    folder: Option<tempfile::TempDir>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

impl Start {
    fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(OsString::from));
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn file(mut self, content: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thing.toml");
        std::fs::write(&path, content).unwrap();
        self.folder = Some(folder);
        let path = path.to_str().unwrap().to_owned();
        self.args(&["--config", &path])
    }

    fn load(&self) -> Result<Raw<Args>, Stop> {
        self.load_with(Ok)
    }

    fn load_with<C>(
        &self,
        build: impl FnOnce(Raw<Args>) -> Result<C, Vec<String>>,
    ) -> Result<C, Stop> {
        let args = std::iter::once("thing".into()).chain(self.args.iter().cloned());
        load_from(&PROGRAM, args, self.env.clone(), build)
    }

    fn values(&self) -> Args {
        self.load().unwrap_or_else(|stop| panic!("{}", stop.text())).values
    }

    fn mistakes(&self) -> String {
        let stop = self.load().unwrap_err();
        assert!(stop.failed());
        stop.text().to_owned()
    }
}

#[test]
fn each_layer_beats_the_ones_below_it() {
    let file = "lease = \"1s\"\nmax_groups = 1\nredis_url = \"redis://file\"\n";
    let values = Start::default().file(file).values();
    assert_eq!(values.lease.0, Duration::from_secs(1));
    assert_eq!(values.max_groups, 1);

    let start =
        Start::default().file(file).env("THING_LEASE", "2s").env("REDIS_URL", "redis://env");
    let values = start.values();
    assert_eq!(values.lease.0, Duration::from_secs(2));
    assert_eq!(values.redis_url.as_deref(), Some("redis://env"));

    let start = start.env("THING_REDIS_URL", "redis://own").args(&["--lease", "3s"]);
    let values = start.values();
    assert_eq!(values.lease.0, Duration::from_secs(3));
    assert_eq!(values.redis_url.as_deref(), Some("redis://own"));
    assert_eq!(values.max_groups, 1);

    let values = Start::default().values();
    assert_eq!((values.lease.0, values.max_groups), (Duration::from_secs(30), 50));
    assert!(values.redis_url.is_none() && values.group.is_empty() && !values.insecure);
}

#[test]
fn lists_and_switches_can_be_given_in_every_layer() {
    let file = "group = [\"a b\", \"c\"]\ninsecure = true";
    let values = Start::default().file(file).values();
    assert_eq!(values.group, ["a b", "c"]);
    assert!(values.insecure);
    let start =
        Start::default().file(file).env("THING_GROUP", " x  y\n").env("THING_INSECURE", "off");
    let values = start.values();
    assert_eq!(values.group, ["x", "y"]);
    assert!(!values.insecure);
    let values = start.args(&["--group", "z", "--insecure"]).values();
    assert_eq!(values.group, ["z"]);
    assert!(values.insecure);
}

#[test]
fn the_file_may_be_named_by_the_environment_and_empty_variables_are_absent() {
    let start = Start::default().file("max_groups = 7");
    let path = start.args[1].clone();
    let env = Start::default().env("THING_CONFIG", path.to_str().unwrap()).env("THING_LEASE", "");
    assert_eq!(env.values().max_groups, 7);
}

#[test]
fn all_mistakes_are_reported_together_each_with_its_origin() {
    let mistakes = Start::default()
        .file("lease = 30\nmax_groups = 70000\ninsecure = \"yes\"\nmax-groups = 3\nrow = 1\ncolour = \"red\"\nredis_url = [\"a\"]")
        .env("THING_MAX_GROUPS", "many")
        .env("THING_COLOUR", "red")
        .env("THING_INSECURE", "perhaps")
        .mistakes();
    for expected in [
        "thing.toml: key `lease`: invalid value `30`: expected a duration with its unit",
        "thing.toml: key `max_groups`: invalid value `70000`: 70000 is not in 0..=65535",
        "thing.toml: key `insecure`: expected true or false",
        "thing.toml: key `max-groups`: unknown setting; write `max_groups`",
        "thing.toml: key `colour`: unknown setting; the settings are group, insecure, key_file, lease,",
        "thing.toml: key `redis_url`: expected one value, not a list",
        "environment variable THING_MAX_GROUPS: invalid value `many`: expected a whole number",
        "environment variable THING_COLOUR: unknown setting",
        "environment variable THING_INSECURE: invalid value `perhaps`: expected true or false",
    ] {
        assert!(mistakes.contains(expected), "no {expected:?} in\n{mistakes}");
    }
    assert_eq!(mistakes.lines().count(), 9, "{mistakes}");
}

#[test]
fn a_misspelled_setting_is_answered_with_the_one_that_is_similar() {
    let mistakes = Start::default()
        .file("redis_ulr = 1\nleas = 1\ngroups = 1\nMAX-GROUP = 1\nrows = 1\nlog = 1")
        .env("THING_REDIS_ULR", "x")
        .env("THING_CONFIGS", "x")
        .mistakes();
    for expected in [
        "key `redis_ulr`: unknown setting; did you mean `redis_url`?",
        "key `leas`: unknown setting; did you mean `lease`?",
        "key `groups`: unknown setting; did you mean `group`?",
        "key `MAX-GROUP`: unknown setting; did you mean `max_groups`?",
        "key `rows`: unknown setting; did you mean `row`?",
        "key `log`: unknown setting; the settings are group,",
        "environment variable THING_REDIS_ULR: unknown setting; did you mean THING_REDIS_URL?",
        "environment variable THING_CONFIGS: unknown setting; did you mean THING_CONFIG?",
    ] {
        assert!(mistakes.contains(expected), "no {expected:?} in\n{mistakes}");
    }
}

#[test]
fn only_a_check_rejects_a_folder_that_this_user_may_not_write_to() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o555)).unwrap();
    let inner = folder.path().join("a/b");
    let load = |args: &[&str]| {
        let checked = |raw: Raw<Args>| raw.check_data_folder("redis_url", &inner);
        Start::default().args(args).load_with(|raw| checked(raw).map_err(|mistake| vec![mistake]))
    };
    // Root may write everywhere. Only this thread becomes another user.
    let as_another = || {
        if geteuid().is_root() {
            let user = Uid::from_raw(65_534);
            set_thread_res_uid(user, user, user).unwrap();
        }
        (load(&["--check-config"]).unwrap_err(), load(&[]))
    };
    let (checked, started) = std::thread::scope(|scope| scope.spawn(as_another).join()).unwrap();
    let expected = format!("error: --redis-url: cannot write to {}", folder.path().display());
    assert!(checked.failed() && checked.text().starts_with(&expected), "{checked:?}");
    assert!(started.is_ok());
}

#[test]
fn a_mistake_in_a_layer_is_reported_even_if_a_higher_layer_overrides_it() {
    let start = Start::default().file("lease = \"soon\"").args(&["--lease", "3s"]);
    assert!(start.mistakes().contains("key `lease`"));
}

#[test]
fn variables_added_by_an_orchestrator_are_accepted() {
    let start = Start::default()
        .env("THING_PORT", "tcp://10.0.0.1:80")
        .env("THING_PORT_80_TCP_ADDR", "10.0.0.1")
        .env("THING_SERVICE_HOST", "10.0.0.1")
        .env("THING_HTTP_SERVICE_PORT_HTTP", "80");
    assert_eq!(start.values().max_groups, 50);
    assert!(Start::default().env("THING_PORTS", "1").load().is_err());
}

#[test]
fn unreadable_files_are_named() {
    let mistakes = Start::default().args(&["--config", "/nowhere/thing.toml"]).mistakes();
    assert!(mistakes.contains("cannot read /nowhere/thing.toml"), "{mistakes}");
    let mistakes = Start::default().file("\npassword = \"hunter2").mistakes();
    assert!(mistakes.contains("thing.toml line 2: "), "{mistakes}");
    assert!(!mistakes.contains("hunter2"), "{mistakes}");
}

#[test]
fn only_a_file_that_cannot_be_read_may_be_there_at_the_next_start() {
    let status =
        |start: Start| start.load_with::<()>(|_| Err(vec!["no".into()])).unwrap_err().report();
    let no_input = ExitCode::from(66);
    let start = || Start::default().file("key_file = \"/nowhere/key\"");
    assert_eq!(status(start()), no_input);
    assert_eq!(status(start().args(&["--key-file", "/etc/passwd"])), ExitCode::from(EXIT_USAGE));
    assert_eq!(status(start().args(&["--max-groups", "x"])), ExitCode::from(EXIT_USAGE));
    assert_eq!(status(Start::default().args(&["--config", "/nowhere/thing.toml"])), no_input);
    let folder = Start::default().args(&["--state-dir", "/nowhere"]);
    assert_eq!(status(folder), ExitCode::from(EXIT_USAGE));
}

#[test]
fn mistakes_in_tables_name_the_table() {
    let raw = Start::default()
        .file("[[row]]\nname = \"a\"\nafter = \"5m\"\n[[row]]\nname = \"b\"")
        .load()
        .unwrap();
    let rows: Vec<Row> = raw.tables("row").unwrap();
    let after = Some(HumanDuration(Duration::from_secs(300)));
    assert_eq!(rows, [Row { name: "a".into(), after }, Row { name: "b".into(), after: None }]);

    let raw = Start::default()
        .file("[[row]]\nname = 1\n[[row]]\nname = \"b\"\nsince = 1\n[[row]]\nname = \"c\"\nafter = \"5\"")
        .load()
        .unwrap();
    let mistakes = raw.tables::<Row>("row").unwrap_err();
    assert_eq!(mistakes.len(), 3, "{mistakes:?}");
    assert!(
        mistakes[0].contains("[[row]] number 1") && mistakes[0].contains("name"),
        "{mistakes:?}"
    );
    assert!(mistakes[1].contains("unknown field `since`"), "{mistakes:?}");
    assert!(mistakes[2].contains("500ms"), "{mistakes:?}");

    let raw = Start::default().file("row = 3").load().unwrap();
    assert!(raw.tables::<Row>("row").unwrap_err()[0].contains("[[row]]"));
    assert!(Start::default().load().unwrap().tables::<Row>("row").unwrap().is_empty());
}

#[test]
fn mistakes_found_by_the_program_name_the_origin() {
    let start = Start::default()
        .file("lease = \"1ms\"")
        .env("THING_MAX_GROUPS", "0")
        .args(&["--group", ""]);
    let stop = start
        .load_with::<()>(|raw| {
            let fields = ["lease", "max_groups", "group", "redis_url"];
            Err(fields.iter().map(|field| raw.mistake(field, "think again")).collect())
        })
        .unwrap_err();
    let text = stop.text();
    assert!(text.contains("thing.toml: key `lease`: think again"), "{text}");
    assert!(text.contains("environment variable THING_MAX_GROUPS: think again"), "{text}");
    assert!(text.contains("--group: think again"), "{text}");
    assert!(text.contains("--redis-url: think again"), "{text}");
}

#[test]
fn help_and_checks_end_the_program_successfully_only_with_valid_settings() {
    for order in ["--help", "--version", "--check-config", "--print-config"] {
        let stop = Start::default().args(&[order]).load().unwrap_err();
        assert!(!stop.failed(), "{order}: {}", stop.text());
    }
    let stop = Start::default().args(&["--help"]).load().unwrap_err();
    assert!(stop.text().contains("THING_<NAME>") && stop.text().contains("--check-config"));
    for order in ["--check-config", "--print-config"] {
        let start = Start::default().args(&[order]);
        assert!(start.load_with::<()>(|_| Err(vec!["no".into()])).unwrap_err().failed());
    }
}

#[test]
fn printed_settings_are_a_valid_file_with_secrets_masked() {
    let start = Start::default()
        .file("group = [\"a=\\\"b\\\"\", \"7\"]\nmax_groups = 3\n[[row]]\nname = \"x\"\nurl = \"redis://u:hunter2@h\"\ntoken = \"hunter2\"")
        .env("REDIS_URL", "redis://u:hunter2@host/1")
        .args(&["--password", "hunter2", "--print-config", "--insecure"]);
    let printed = start.load().unwrap_err().text().to_owned();
    assert!(!printed.contains("hunter2"), "{printed}");
    assert!(printed.contains("max_groups = 3 # "), "{printed}");
    assert!(
        printed.contains("redis_url = \"redis://u:***@host/1\" # environment variable REDIS_URL"),
        "{printed}"
    );

    let again = Start::default().file(&printed);
    let values = again.values();
    assert_eq!(values.group, ["a=\"b\"", "7"]);
    assert!(values.insecure);
    assert_eq!(values.lease.0, Duration::from_secs(30));
    let printed = Start::default().args(&["--print-config"]).load().unwrap_err().text().to_owned();
    assert!(printed.contains("# redis_url is not set: by default that of the host\n"), "{printed}");
    assert!(printed.contains("# password is not set\n"), "{printed}");
    assert!(printed.contains("lease = \"30s\" # default"), "{printed}");
}

#[test]
fn the_error_for_an_invalid_flag_shows_no_password() {
    let stop = Start::default().args(&["--lease", "redis://u:hunter2@h"]).load().unwrap_err();
    assert!(stop.failed() && !stop.text().contains("hunter2"), "{}", stop.text());
}

#[test]
fn the_program_prints_its_manual_page_and_completions() {
    let manual = Start::default().args(&["--man"]).load().unwrap_err();
    let text = manual.text().replace("\\-", "-");
    assert!(!manual.failed() && text.contains(".TH thing 1"), "{text}");
    for flag in ["--lease", "--check-config", "THING_<NAME>"] {
        assert!(text.contains(flag), "{flag} is not in {text}");
    }
    assert!(!text.contains("--completions"), "{text}");
    for shell in ["bash", "zsh", "fish"] {
        let script = Start::default().args(&["--completions", shell]).load().unwrap_err();
        assert!(!script.failed() && script.text().contains("max-groups"), "{}", script.text());
    }
    assert!(Start::default().args(&["--completions", "csh"]).load().unwrap_err().failed());
}

#[test]
fn a_file_that_all_users_may_change_is_rejected() {
    let start = Start::default().file("max_groups = 3\n");
    let path = start.args.last().unwrap().clone();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o646);
    std::fs::set_permissions(&path, permissions).unwrap();
    let mistakes = start.mistakes();
    assert!(mistakes.contains("can be changed by every user (mode 0646)"), "{mistakes}");
}
