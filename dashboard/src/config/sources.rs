//! The settings of the sources.

use std::time::Duration;

use super::ByteSize;

/// One deployment to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReadFrom {
    /// The server itself.
    Master,
    /// A replica of it, while one is up to date.
    Replica,
}

/// The mode of MONITOR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MonitorMode {
    /// Never.
    Off,
    /// Always.
    On,
    /// While the server is quiet, and on request.
    Auto,
}

/// The settings of MONITOR.
#[derive(Debug, Clone, Copy)]
pub struct MonitorSettings {
    /// The mode.
    pub mode: MonitorMode,
    /// Commands a second from which on a server is busy.
    pub max_ops: u64,
    /// The memory that unread output may take in the server.
    pub budget: ByteSize,
    /// Even where the server sets no bound to a reader that stalls.
    pub unbounded: bool,
}

/// The settings of passes over all keys.
#[derive(Debug, Clone)]
pub struct ScanSettings {
    /// Keys a second, at most.
    pub rate: u32,
    /// From the start of one pass to that of the next, at most.
    pub every: Duration,
    /// Redis' pattern for the keys, where not all are looked at.
    pub pattern: Option<String>,
    /// The most possible locks that are read in one pass.
    pub max_possible: usize,
}
