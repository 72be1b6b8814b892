//! Signals that are passed on to the command, and those that stop who writes to another's terminal.

use std::io;

use nix::sys::signal::SigSet;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// By name, what may be passed on: all that has no meaning for `lockctl` itself and can be caught.
const FORWARDED: [(&str, Signal); 17] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("TERM", Signal::TERM),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("CONT", Signal::CONT),
    ("TSTP", Signal::TSTP),
    ("URG", Signal::URG),
    ("VTALRM", Signal::VTALARM),
    ("PROF", Signal::PROF),
    ("WINCH", Signal::WINCH),
    ("IO", Signal::IO),
    ("PWR", Signal::POWER),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
];

/// The signal of that name or number, with or without `SIG`, in any case.
pub(crate) fn by_name(text: &str) -> Option<Signal> {
    if let Ok(number) = text.parse() {
        return Signal::from_named_raw(number);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let others = [("KILL", Signal::KILL), ("ABRT", Signal::ABORT), ("STOP", Signal::STOP)];
    FORWARDED.iter().chain(&others).find(|(known, _)| *known == name).map(|(_, signal)| *signal)
}

/// Whether whoever sends it wants the command to end.
pub(crate) fn ends(number: i32) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM]
        .iter()
        .any(|signal| signal.as_raw() == number)
}

/// The signals that come to this process.
#[derive(Debug)]
pub(crate) struct Signals(mpsc::Receiver<i32>);

impl Signals {
    /// Catches from now on all that are passed on, but those that this process was told to ignore (as by `nohup`):
    /// these the command ignores too. `and` is caught besides.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn catch(and: &[Signal]) -> io::Result<Self> {
        let ignored = ignored();
        let (sender, caught) = mpsc::channel(64);
        for caught in FORWARDED.iter().map(|(_, signal)| signal).chain(and) {
            let number = caught.as_raw();
            if !and.contains(caught) && ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            let mut stream = signal(SignalKind::from_raw(number))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if sender.send(number).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self(caught))
    }

    /// The next one's number.
    pub(crate) async fn next(&mut self) -> i32 {
        match self.0.recv().await {
            Some(number) => number,
            // The runtime ends.
            None => std::future::pending().await,
        }
    }
}

/// The ignored signals as a set of bits, as /proc tells; none where it does not.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

/// From now on this thread may write to a terminal, and say whose it is, from the background. Programs that it starts
/// begin with no signal blocked.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn may_use_terminal() -> io::Result<()> {
    let mut stops = SigSet::empty();
    stops.add(nix::sys::signal::SIGTTOU);
    stops.add(nix::sys::signal::SIGTTIN);
    Ok(stops.thread_block()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_go_by_name_and_by_number() {
        for (text, signal) in [
            ("term", Signal::TERM),
            ("SIGINT", Signal::INT),
            ("9", Signal::KILL),
            ("kill", Signal::KILL),
            ("Usr1", Signal::USR1),
        ] {
            assert_eq!(by_name(text), Some(signal), "{text}");
        }
        for text in ["", "0", "99", "SIG", "sleep"] {
            assert_eq!(by_name(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_ignored_is_read_from_proc() {
        // The runtime of every Rust program ignores it.
        assert!(ignored() & (1 << (Signal::PIPE.as_raw() - 1)) != 0);
    }
}
