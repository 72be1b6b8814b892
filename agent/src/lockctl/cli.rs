//! The command line.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, Command, Parser, Subcommand, ValueEnum};
use rustix::process::Signal;

use crate::client;
use crate::duration;
use crate::exit::Exit;
use crate::reply::printable;
use crate::signals;

/// The longest wait and lease that the agent accepts.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// The shortest lease that the agent accepts.
const MIN_LEASE: Duration = Duration::from_millis(100);

/// Runs commands while holding locks, and shows the locks of this host's agent
#[derive(Debug, Parser)]
#[command(name = "lockctl", version)]
pub(crate) struct Cli {
    /// The agent's socket; by default /run/lockscope/agent.sock, otherwise in the user's runtime folder
    #[arg(long, global = true, value_name = "PATH", env = "LOCKSCOPE_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command while holding one or more locks
    Exec(ExecArgs),
    /// List the holds and waits of this host's agent, oldest first
    Ls {
        /// Only locks whose names match this glob, such as `orders:*`
        #[arg(value_name = "GLOB")]
        glob: Option<OsString>,
        #[command(flatten)]
        format: Format,
    },
    /// Show the state of a lock in Redis, no matter which client holds it
    Show {
        /// The lock's name
        #[arg(value_name = "LOCK")]
        lock: OsString,
        #[command(flatten)]
        format: Format,
    },
    /// Show the state of the agent; exit status 0 if it serves and Redis replies, otherwise 69
    Status {
        #[command(flatten)]
        format: Format,
    },
    /// Follow the list: live in a terminal, otherwise one line per change
    Watch {
        /// Only locks whose names match this glob, such as `orders:*`
        #[arg(value_name = "GLOB")]
        glob: Option<OsString>,
        /// Polling interval
        #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
        interval: Duration,
        #[command(flatten)]
        format: Format,
    },
    /// Follow one lock step by step, as Redis runs its commands; needs a dashboard
    ///
    /// The dashboard opens MONITOR, however busy Redis is. That costs time for every command of every client, for as long
    /// as this runs.
    Tail(TailArgs),
    /// Release a lock by force, no matter which client holds it (root and the agent's user only)
    ///
    /// The process that holds it is not stopped, so another one may acquire the lock while it still runs. The caller is
    /// logged.
    Unlock {
        /// Confirm the release; locks of your own are released by the process that holds them
        #[arg(long, required = true)]
        force: bool,
        /// Only if this holder has it, and only its hold if others have the lock too; `lockctl show` prints the id
        #[arg(long, value_name = "ID")]
        holder: Option<OsString>,
        /// The lock's name
        #[arg(value_name = "LOCK")]
        lock: OsString,
        #[command(flatten)]
        format: Format,
    },
    /// End a session and release its locks (root and the agent's user only)
    ///
    /// Its worker is notified of the lost locks, and its connection is closed. The caller is logged.
    Kick {
        /// The session id; `lockctl ls` prints it
        #[arg(value_name = "SESSION")]
        session: OsString,
        #[command(flatten)]
        format: Format,
    },
    /// Print a shell completion script
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print lockctl's manual page, in roff
    Man,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Format {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lockctl tail`
#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// The lock's name
    #[arg(value_name = "LOCK")]
    pub(crate) lock: String,
    /// The dashboard's address
    #[arg(
        long,
        value_name = "URL",
        env = "LOCKSCOPE_DASHBOARD",
        default_value = "http://127.0.0.1:9761",
        value_parser = dashboard
    )]
    pub(crate) dashboard: String,
    /// A file whose first line is a token with the `watch` right, if the dashboard requires a login
    #[arg(long, value_name = "PATH", env = "LOCKSCOPE_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificates to trust instead of the system's, in PEM
    #[arg(long, value_name = "PATH")]
    pub(crate) ca_file: Option<PathBuf>,
    /// The deployment, if the dashboard watches several
    #[arg(long, value_name = "NAME")]
    pub(crate) deployment: Option<String>,
    /// The database, if the dashboard watches several
    #[arg(long, value_name = "NUMBER")]
    pub(crate) db: Option<u32>,
    /// Follow for this long
    #[arg(long = "for", value_name = "DURATION", default_value = "60s", value_parser = follow)]
    pub(crate) duration: Duration,
    /// Print the lines of MONITOR too
    #[arg(long)]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// `lockctl exec`
#[derive(Debug, Args)]
#[command(after_help = EXIT_HELP)]
pub(crate) struct ExecArgs {
    /// Do not wait: give up at once if the lock is taken
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) try_once: bool,
    /// Maximum wait; unlimited by default
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    pub(crate) wait: Option<Duration>,
    /// Maximum wait for an agent, if none is there at the start
    #[arg(long, value_name = "DURATION", env = "LOCKCTL_AGENT_WAIT", default_value = "0s", value_parser = wait)]
    pub(crate) agent_wait: Duration,
    /// Hold the lock for at most this long: it is not renewed, and the command is ended in time
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    pub(crate) lease: Option<Duration>,
    /// Keep the lock across restarts of the agent for at most this long. If lockctl's guard is killed, the lock stays
    /// taken for this long too
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    pub(crate) grace: Option<Duration>,
    /// Kind of the lock
    #[arg(long, value_enum, default_value_t = LockKind::Lock)]
    pub(crate) kind: LockKind,
    /// Reaction to a lost lock: the signal for the command, such as term or kill, or ignore
    #[arg(long, value_name = "WHAT", default_value = "term", value_parser = OnLost::parse)]
    pub(crate) on_lost: OnLost,
    /// Time between ending the command and killing it; after a loss at most the rest of the lock's validity
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    pub(crate) kill_after: Duration,
    /// Name in lists of holders and waiters; by default `lockctl:` and the command
    #[arg(long, value_name = "NAME", env = "LOCKSCOPE_NAME")]
    pub(crate) name: Option<OsString>,
    /// Print nothing about waiting, the lock's holders, or giving up; the exit status reports it
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) exits: Exits,
    /// Names of the locks; all of them are acquired, or none
    #[arg(value_name = "LOCK", required = true)]
    pub(crate) locks: Vec<OsString>,
    /// The command and its arguments, run without a shell
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// The exit statuses that can be chosen.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Exits {
    /// Exit status if the lock could not be acquired in time
    #[arg(long, value_name = "STATUS", env = "LOCKCTL_EXIT_TIMEOUT", default_value_t = Exit::TIMEOUT)]
    pub(crate) exit_timeout: u8,
    /// Exit status if the lock was lost while the command ran
    #[arg(long, value_name = "STATUS", env = "LOCKCTL_EXIT_LOST", default_value_t = Exit::LOST)]
    pub(crate) exit_lost: u8,
    /// Exit status if there is no agent, or it cannot reach Redis
    #[arg(long, value_name = "STATUS", env = "LOCKCTL_EXIT_NO_AGENT", default_value_t = Exit::NO_AGENT)]
    pub(crate) exit_no_agent: u8,
    /// Exit status for an invalid command line
    #[arg(long, value_name = "STATUS", env = EXIT_USAGE, default_value_t = Exit::USAGE)]
    pub(crate) exit_usage: u8,
}

const EXIT_USAGE: &str = "LOCKCTL_EXIT_USAGE";

/// The beginning of the explanation of the exit statuses.
pub(crate) const EXIT_HELP_START: &str = "Exit status: ";

const EXIT_HELP: &str = "\
Exit status: that of the command, 128+n if signal n ended it, 126 if it cannot be run and 127 if it does not exist, as \
in a shell; 75 if the lock could not be acquired in time, 76 if it was lost while the command ran, 69 if there is no \
agent, it cannot reach Redis, one of its limits is reached or too few replicas confirm the lock, 64 for bad usage, 77 if \
the agent's policy denies the lock or its socket the user, 65 if the lock can never be acquired this way, 71 if the \
system refuses a process or an open file.";

/// The arguments of the process that becomes the command
#[derive(Debug, Parser)]
pub(crate) struct Launch {
    /// The pid of the guard; the command does not run if it is no longer the parent
    #[arg(long)]
    pub(crate) guard: i32,
    /// The process group whose terminal is taken over, if any
    #[arg(long)]
    pub(crate) foreground_of: i32,
    /// The command
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LockKind {
    /// One holder
    Lock,
    /// One holder, in order of arrival across all hosts
    Fair,
    /// Shared with other readers
    Read,
    /// Excludes readers and writers
    Write,
    /// One holder, with a fencing token that grows with each grant
    Fenced,
}

impl LockKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Fenced => "fenced",
        }
    }
}

/// The reaction to a lost lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLost {
    /// Sends the signal, and SIGKILL before the lock's validity ends.
    Signal(Signal),
    /// Reports the loss and lets the command continue.
    Ignore,
}

impl OnLost {
    fn parse(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("ignore") {
            return Ok(Self::Ignore);
        }
        signals::by_name(text).map(Self::Signal).ok_or_else(|| {
            "expected term, kill, ignore, or a signal by its name or number, such as INT or 2"
                .to_owned()
        })
    }
}

impl Cli {
    /// Returns the path of the agent's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(client::default_socket)
    }
}

impl ExecArgs {
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.locks.iter().map(|name| name.as_bytes())
    }

    /// Returns the name of a lock that is named more than once, for messages.
    pub(crate) fn repeated_lock(&self) -> Option<String> {
        let mut seen = HashSet::new();
        self.names().find(|name| !seen.insert(*name)).map(printable)
    }

    /// Returns a command about the locks: `single` for one lock, otherwise `multiple` with their number.
    pub(crate) fn for_locks(&self, single: &str, multiple: &str) -> redis::Cmd {
        let names = self.names();
        let mut command = redis::cmd(if names.len() == 1 { single } else { multiple });
        if names.len() > 1 {
            command.arg(names.len());
        }
        for name in names {
            command.arg(name);
        }
        command
    }

    /// Returns the names of the locks for messages.
    pub(crate) fn lock_names(&self) -> String {
        let names: Vec<_> = self.names().map(printable).collect();
        names.join(", ")
    }
}

fn wait(text: &str) -> Result<Duration, String> {
    let wait = duration::parse(text)?;
    if wait <= YEAR { Ok(wait) } else { Err("expected a year at most".to_owned()) }
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration::parse(text)?;
    let fits = (MIN_LEASE..=YEAR).contains(&lease);
    if fits { Ok(lease) } else { Err("expected 100ms to a year".to_owned()) }
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    let fits = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval);
    if fits { Ok(interval) } else { Err("expected 100ms to 1h".to_owned()) }
}

fn dashboard(text: &str) -> Result<String, String> {
    let known = text.starts_with("http://") || text.starts_with("https://");
    let url = text.trim_end_matches('/');
    if known { Ok(url.to_owned()) } else { Err("expected http:// or https://".to_owned()) }
}

fn follow(text: &str) -> Result<Duration, String> {
    let duration = duration::parse(text)?;
    let fits = (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&duration);
    if fits { Ok(duration) } else { Err("expected 1s to 1h".to_owned()) }
}

/// Parses the command line of the program, in which `exec -- -x -- COMMAND` names a lock that begins with a dash.
///
/// # Errors
/// Fails with the mistake, or with the help or version that was requested.
pub(crate) fn parse_cli(args: &[OsString]) -> Result<Cli, clap::Error> {
    let parsed = parse(args);
    if !parsed.as_ref().is_err_and(lacks_locks) {
        return parsed;
    }
    let mut dashes = args.iter().enumerate().filter(|(_, arg)| *arg == "--").map(|(at, _)| at);
    let (Some(first), Some(second)) = (dashes.next(), dashes.next()) else { return parsed };
    let names = &args[first + 1..second];
    if !names.first().is_some_and(|name| name.as_bytes().starts_with(b"-")) {
        // More likely a forgotten lock, and the second `--` belongs to the command.
        return parsed;
    }
    let mut with_placeholder = args.to_vec();
    with_placeholder.splice(first..second, ["LOCK".into()]);
    let mut cli: Cli = parse(&with_placeholder)?;
    if let Verb::Exec(exec) = &mut cli.verb {
        exec.locks = names.to_vec();
    }
    Ok(cli)
}

/// Parses a command line.
///
/// # Errors
/// Fails with the mistake, or with the help or version that was requested.
pub(crate) fn parse<T: Parser>(args: &[OsString]) -> Result<T, clap::Error> {
    let matches = without_empty_variables(T::command()).try_get_matches_from(args)?;
    T::from_arg_matches(&matches)
}

/// Returns whether the names of the locks of `exec` are missing.
fn lacks_locks(error: &clap::Error) -> bool {
    let missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => &missing[..],
        _ => &[],
    };
    error.kind() == ErrorKind::MissingRequiredArgument
        && missing.iter().any(|arg| arg == "<LOCK>...")
}

/// Treats environment variables without a value as unset, as the client libraries do.
fn without_empty_variables(command: Command) -> Command {
    let is_empty = |arg: &Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    command
        .mut_args(|arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg })
        .mut_subcommands(without_empty_variables)
}

/// Corrects the suggestion of an error in a command line of `exec`: to put one argument behind the `--` is wrong, because the
/// whole command belongs there.
fn suggest_dashes(error: &mut clap::Error, mut args: impl Iterator<Item = OsString>) {
    let is_about_args =
        matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::UnknownArgument);
    if !is_about_args || !args.any(|arg| arg == "exec") {
        return;
    }
    error.remove(ContextKind::Suggested);
    let tip = if !args.any(|arg| arg == "--") {
        "write `--` before the command: lockctl exec LOCK -- COMMAND"
    } else if error.kind() == ErrorKind::UnknownArgument
        && error.get(ContextKind::SuggestedArg).is_none()
    {
        "name a lock that begins with a dash first, after `--`: lockctl exec -- LOCK -- COMMAND"
    } else {
        return;
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
}

/// Prints help, version or the usage error, and returns the exit status.
pub(crate) fn report_error(mut error: clap::Error) -> Exit {
    suggest_dashes(&mut error, std::env::args_os());
    // Standard error may be closed.
    error.print().unwrap_or_default();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::OK,
        _ => Exit(usage_status(std::env::args_os(), std::env::var_os(EXIT_USAGE).as_ref())),
    }
}

/// Finds the configured status for bad usage in a command line that failed to parse.
fn usage_status(args: impl Iterator<Item = OsString>, env: Option<&OsString>) -> u8 {
    let status = |text: &OsString| text.to_str().and_then(|text| text.parse().ok());
    let mut args = args.take_while(|arg| arg != "--");
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let value = match text.strip_prefix("--exit-usage") {
            Some("") => args.next(),
            Some(rest) => rest.strip_prefix('=').map(OsString::from),
            None => continue,
        };
        return value.as_ref().and_then(status).unwrap_or(Exit::USAGE);
    }
    env.and_then(status).unwrap_or(Exit::USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn exec(args: &str) -> Result<ExecArgs, String> {
        let words = ["lockctl", "exec"].into_iter().chain(args.split_whitespace());
        match parse_cli(&words.map(OsString::from).collect::<Vec<_>>()) {
            Ok(Cli { verb: Verb::Exec(args), .. }) => Ok(args),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn locks_come_before_the_dashes_and_the_command_after() {
        let args = exec("--wait 2.5s --kind fenced --on-lost INT a b -- sh -c x --wait").unwrap();
        assert_eq!(args.names().collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(args.command, ["sh", "-c", "x", "--wait"]);
        assert_eq!(args.wait, Some(Duration::from_millis(2500)));
        assert_eq!(args.on_lost, OnLost::Signal(Signal::INT));
        assert_eq!(args.kind.word(), "fenced");
        assert_eq!(args.repeated_lock(), None);
        let repeated = exec("a b b -- true").unwrap().repeated_lock();
        assert_eq!(repeated.as_deref(), Some("b"));
        for bad in ["a", "-- true", "a -- ", "--try --wait 1 a -- true", "--lease 1ms a -- true"] {
            assert!(exec(bad).is_err(), "{bad}");
        }
        for (args, words) in [
            ("--on-lost sleep a -- true", "expected term, kill, ignore"),
            ("--wait soon a -- true", "expected a duration"),
            ("--wait 9000h a -- true", "a year"),
        ] {
            let error = exec(args).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_command_without_dashes_is_answered_with_where_they_belong() {
        for (args, suggested) in
            [("a", true), ("a ls -la", true), ("a ./report", true), ("--nonsense a -- ls", false)]
        {
            let line = || ["lockctl", "exec"].into_iter().chain(args.split_whitespace());
            let mut error = Cli::try_parse_from(line()).unwrap_err();
            suggest_dashes(&mut error, line().map(OsString::from));
            let text = error.to_string();
            assert_eq!(text.contains("lockctl exec LOCK -- COMMAND"), suggested, "{text}");
            assert!(!text.contains("as a value"), "{text}");
        }
    }

    #[test]
    fn a_name_that_begins_with_a_dash_follows_dashes() {
        for (args, names, command) in [
            ("-- -x -- ls -- -la", &["-x"][..], &["ls", "--", "-la"][..]),
            ("--try -- --help b -- true", &["--help", "b"], &["true"]),
            ("a -- -x -- true", &["a"], &["-x", "--", "true"]),
        ] {
            let exec = exec(args).unwrap();
            assert_eq!(exec.locks, names, "{args}");
            assert_eq!(exec.command, command, "{args}");
        }
        // A lock may have been forgotten here.
        for bad in ["-- git checkout -- file", "-- -- -- true", "-- -x", "-- -x --"] {
            assert!(exec(bad).is_err(), "{bad}");
        }
        for verb in ["ls", "show", "watch", "tail", "unlock --force", "kick"] {
            for name in ["-x", "--", "--help"] {
                let line = format!("lockctl {verb} -- {name}");
                let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
                let parsed = parse_cli(&words).unwrap();
                assert!(format!("{parsed:?}").contains(&format!("\"{name}\"")), "{parsed:?}");
            }
            let line = format!("lockctl {verb} -x");
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err().to_string();
            assert!(error.contains("'-- -x'"), "{error}");
        }
        let line = "lockctl exec -x -- true";
        let mut error = Cli::try_parse_from(line.split(' ')).unwrap_err();
        suggest_dashes(&mut error, line.split(' ').map(OsString::from));
        assert!(error.to_string().contains("lockctl exec -- LOCK -- COMMAND"), "{error}");
        let misspelt = "lockctl exec --wiat 5s a -- true";
        let mut error = Cli::try_parse_from(misspelt.split(' ')).unwrap_err();
        suggest_dashes(&mut error, misspelt.split(' ').map(OsString::from));
        assert!(!error.to_string().contains("begins with a dash"), "{error}");
    }

    #[test]
    fn the_status_for_bad_usage_is_configurable() {
        let status = |line: &str, env: Option<&str>| {
            usage_status(line.split(' ').map(OsString::from), env.map(OsString::from).as_ref())
        };
        assert_eq!(status("exec", None), 64);
        assert_eq!(status("exec --exit-usage 3 --nonsense", None), 3);
        assert_eq!(status("exec --exit-usage=3", Some("4")), 3);
        assert_eq!(status("exec -- x --exit-usage 3", Some("4")), 4);
        assert_eq!(status("exec --exit-usage three", None), 64);
    }

    #[test]
    fn help_has_a_command_too() {
        let help = |words: &[&str]| Cli::command().try_get_matches_from(words).unwrap_err();
        for words in [&["lockctl", "help"][..], &["lockctl", "help", "exec"]] {
            assert_eq!(help(words).kind(), ErrorKind::DisplayHelp, "{words:?}");
        }
        let unknown = help(&["lockctl", "help", "nope"]);
        assert!(unknown.to_string().contains("unrecognized subcommand 'nope'"), "{unknown}");
    }
}
