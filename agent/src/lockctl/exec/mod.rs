//! `lockctl exec`: runs a command while holding its locks.
//!
//! ```text
//! shell ── front ── guard ── command ── its own children …
//!            │        └─ session ─ agent
//!            └─ signals, terminal, exit status
//! ```
//!
//! The **front** is the process that the shell started. It forwards signals, holds the terminal while the command does
//! not, and exits with the status of the guard. The **guard** opens the session, so that the locks live as long as it
//! does; it has a separate process group and is the command's parent and subreaper, so that no descendant of the
//! command can escape it. If the front is killed, the guard ends the command with all its descendants and only then
//! releases the locks. If the guard is killed, the kernel kills the command, and the front its descendants.

/// The program name (`argv[0]`) of the guard.
pub(crate) const GUARD: &str = "lockctl-guard";
/// The program name (`argv[0]`) of the command before it executes.
pub(crate) const LAUNCH: &str = "lockctl-launch";
/// The program name (`argv[0]`) of a front that ends by SIGINT.
pub(crate) const INTERRUPTED: &str = "lockctl-interrupted";

mod acquire;
mod command;
mod control;
mod environment;
pub(crate) mod front;
mod grant;
pub(crate) mod guard;
pub(crate) mod launch;
mod process_tree;
mod successor;
mod supervisor;
mod terminal;
