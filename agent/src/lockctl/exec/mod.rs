//! `lockctl exec`: a command runs while its locks are held.
//!
//! ```text
//! shell ── front ── guard ── command ── its own children …
//!            │        └─ session ─ agent
//!            └─ signals, terminal, exit status
//! ```
//!
//! The **front** is what the shell started. It passes signals on, has the terminal while nothing else has it, and ends
//! with the status that the guard tells. The **guard** opens the session, so that the locks live as long as it does;
//! it has a process group of its own and is the command's parent and subreaper, so that nothing which the command
//! starts can escape it. Where the front is killed, the guard ends the command and all that came of it, and releases
//! only then. Where the guard is killed, the kernel kills the command, and the front the rest.

/// What the guard is called when it is started, in place of the program's name.
pub(crate) const GUARD: &str = "lockctl-guard";
/// What the command is called before it is itself.
pub(crate) const LAUNCH: &str = "lockctl-launch";

mod control;
mod environment;
pub(crate) mod front;
mod grant;
mod group;
pub(crate) mod guard;
pub(crate) mod launch;
mod mind;
pub(crate) mod signals;
mod terminal;
mod tree;
mod waiting;
