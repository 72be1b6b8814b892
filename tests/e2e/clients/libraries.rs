//! The client libraries under test, and the known properties of each. clients.md says the same to users.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use harness::process::{self, on_path};
use harness::programs::once;

const INSTALL: &str = "`make deps` installs what the tests need";

/// The configuration of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settings {
    /// The settings that docs/howto/clients.md advises.
    Advised,
    Default,
    /// A time-out of five seconds (Lettuce), which counts for the handshake too.
    Hasty,
}

impl Settings {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Advised => "advised",
            Self::Default => "default",
            Self::Hasty => "hasty",
        }
    }
}

/// The handling of pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushes {
    /// A listener receives them as they arrive.
    AtOnce,
    /// A listener receives them at the next use of the connection.
    AtNextUse,
    /// A program cannot receive them.
    Never,
}

#[derive(Debug)]
pub(super) struct Library {
    pub(super) name: &'static str,
    /// Returns the command of the program that drives the library.
    pub(super) program: fn() -> Result<Command>,
    /// Several tasks may share one connection, each with a command under way.
    pub(super) shares: bool,
    pub(super) pushes: Pushes,
    /// With default settings, it gives up on a command that takes a few seconds.
    pub(super) impatient: bool,
    /// The commands that it sends on a new connection; a trailing `*` stands for versions and addresses.
    pub(super) startup: &'static [&'static str],
}

pub(super) const REDIS_PY: Library = Library {
    name: "redis-py",
    program: || script(python()?, "driver.py"),
    shares: false,
    pushes: Pushes::Never,
    impatient: true,
    startup: &["HELLO 3", "CLIENT SETINFO LIB-NAME redis-py", "CLIENT SETINFO LIB-VER *"],
};

pub(super) const REDIS_PY_ASYNCIO: Library = Library {
    name: "redis-py-asyncio",
    program: || script(python()?, "driver.py"),
    shares: false,
    pushes: Pushes::Never,
    impatient: true,
    startup: &[
        "HELLO 3",
        "CLIENT SETINFO LIB-NAME redis-py",
        "CLIENT SETINFO LIB-VER *",
        "HELLO 3",
        "CLIENT SETINFO LIB-NAME redis-py",
        "CLIENT SETINFO LIB-VER *",
    ],
};

pub(super) const IOREDIS: Library = Library {
    name: "ioredis",
    program: || script(node()?, "driver.js"),
    shares: true,
    pushes: Pushes::Never,
    impatient: false,
    startup: &["hello 3", "client SETINFO LIB-VER *", "client SETINFO LIB-NAME ioredis", "info"],
};

pub(super) const NODE_REDIS: Library = Library {
    name: "node-redis",
    program: || script(node()?, "driver.js"),
    shares: true,
    pushes: Pushes::Never,
    impatient: false,
    startup: &["HELLO 3", "CLIENT SETINFO LIB-VER *", "CLIENT SETINFO LIB-NAME node-redis"],
};

pub(super) const GO_REDIS: Library = Library {
    name: "go-redis",
    program: go_driver,
    shares: false,
    pushes: Pushes::AtNextUse,
    impatient: true,
    startup: &[
        "hello 3",
        "client maint_notifications on moving-endpoint-type *",
        "client setinfo LIB-NAME go-redis(*",
        "client setinfo LIB-VER *",
    ],
};

pub(super) const LETTUCE: Library = Library {
    name: "lettuce",
    program: java_driver,
    shares: true,
    pushes: Pushes::AtOnce,
    impatient: false,
    startup: &[
        "HELLO 3",
        "CLIENT SETINFO lib-name Lettuce",
        "CLIENT SETINFO lib-ver *",
        "CLIENT MAINT_NOTIFICATIONS on moving-endpoint-type *",
    ],
};

pub(super) const JEDIS: Library = Library {
    name: "jedis",
    program: java_driver,
    shares: false,
    pushes: Pushes::Never,
    impatient: true,
    startup: &["HELLO 3", "CLIENT SETINFO LIB-NAME jedis", "CLIENT SETINFO LIB-VER *"],
};

/// Returns the folder of the drivers and of their dependencies from `make deps`.
pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

fn script(mut interpreter: Command, file: &str) -> Result<Command> {
    interpreter.arg(folder().join(file));
    Ok(interpreter)
}

pub(super) fn python() -> Result<Command> {
    let python = folder().join(".venv/bin/python");
    ensure!(python.exists(), "no {}: {INSTALL}", python.display());
    Ok(process::command(&python))
}

pub(crate) fn node() -> Result<Command> {
    let modules = folder().join("node_modules");
    ensure!(modules.exists(), "no {}: {INSTALL}", modules.display());
    let mut command = process::command(&installed("node")?);
    command.env("NODE_PATH", modules);
    Ok(command)
}

/// Returns a command of Go: the one installed with the Python packages if there is one, else that of the system.
pub(crate) fn go() -> Result<Command> {
    let ours = folder().join(".venv/bin/go");
    Ok(process::command(&if ours.exists() { ours } else { installed("go")? }))
}

/// Returns a command of Java with the libraries on its class path.
pub(crate) fn java() -> Result<Command> {
    let target = folder().join("java/target");
    ensure!(target.join("lib").exists(), "no {}/lib: {INSTALL}", target.display());
    let mut command = process::command(&installed("java")?);
    let class_path = format!("{0}/classes:{0}/lib/*", target.display());
    // Small and quick to start, because many run at the same time.
    command.args(["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", &class_path]);
    Ok(command)
}

pub(crate) fn installed(program: &str) -> Result<PathBuf> {
    on_path(program).with_context(|| format!("no {program}: {INSTALL}"))
}

fn java_driver() -> Result<Command> {
    let mut command = java()?;
    command.arg("Driver");
    Ok(command)
}

fn go_driver() -> Result<Command> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || build_go(&folder().join("go"), "./driver", "go-driver");
    Ok(process::command(&once(&BUILT, build)?))
}

/// Builds a driver from a package in `folder`, and returns its path, which ends with `name`.
pub(crate) fn build_go(folder: &Path, package: &str, name: &str) -> Result<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut build = go()?;
    build.current_dir(folder).args(["build", "-o"]).arg(&program).arg(package);
    process::succeed(&mut build, "the driver in Go cannot be built")?;
    Ok(program)
}
