//! What the sources are told.

use std::time::Duration;

/// What is looked at of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReadFrom {
    /// The server itself.
    Master,
    /// A replica of it, while one is up to date.
    Replica,
}

/// When MONITOR is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MonitorMode {
    /// Never.
    Off,
    /// Always.
    On,
    /// While the server is quiet, and when somebody asks for it.
    Auto,
}

/// How MONITOR is used.
#[derive(Debug, Clone, Copy)]
pub struct MonitorSettings {
    /// When.
    pub mode: MonitorMode,
    /// Commands a second from which on a server is busy.
    pub max_ops: u64,
    /// Even where the server sets no bound to a reader that stalls.
    pub unbounded: bool,
}

/// How passes over all keys are made.
#[derive(Debug, Clone)]
pub struct ScanSettings {
    /// Keys a second, at most.
    pub rate: u32,
    /// From the start of one pass to that of the next, at most.
    pub every: Duration,
    /// Redis' pattern for the keys, where not all are looked at.
    pub pattern: Option<String>,
}
