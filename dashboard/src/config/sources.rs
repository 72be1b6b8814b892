//! The settings of the sources.

use std::time::Duration;

use super::ByteSize;

/// The server from which locks are read.
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
    /// The number of commands a second from which a server counts as busy.
    pub max_ops: u64,
    /// The memory that unread output may use in the server.
    pub budget: ByteSize,
    /// True if MONITOR is used even if the server sets no limit for a reader that stalls.
    pub unbounded: bool,
}

/// The settings of scans of all keys.
#[derive(Debug, Clone)]
pub struct ScanSettings {
    /// The maximum number of keys a second.
    pub rate: u32,
    /// The longest time from the start of one scan to that of the next.
    pub every: Duration,
    /// The Redis pattern of the keys to scan, if not all are scanned.
    pub pattern: Option<String>,
    /// The maximum number of possible locks that are read in one scan.
    pub max_possible: usize,
}
