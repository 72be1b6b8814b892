//! The signals that are forwarded to the command, and access to the terminal from the background.

use std::io;

use nix::sys::signal::SigSet;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The forwarded signals: all that can be caught and have no meaning for `lockctl` itself.
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

/// Parses a signal by name or number, with or without `SIG`, ignoring case.
pub(crate) fn by_name(text: &str) -> Option<Signal> {
    if let Ok(number) = text.parse() {
        return Signal::from_named_raw(number);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let others = [("KILL", Signal::KILL), ("ABRT", Signal::ABORT), ("STOP", Signal::STOP)];
    FORWARDED.iter().chain(&others).find(|(known, _)| *known == name).map(|(_, signal)| *signal)
}

/// Returns whether a signal asks the command to terminate.
pub(crate) fn terminates(number: i32) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM]
        .iter()
        .any(|signal| signal.as_raw() == number)
}

/// The stream of signals to this process.
#[derive(Debug)]
pub(crate) struct Signals(mpsc::Receiver<i32>);

impl Signals {
    /// Catches the forwarded signals, except those that this process inherited as ignored (as under `nohup`), which the
    /// command ignores too. Also catches the signals in `and`.
    ///
    /// # Errors
    /// Fails if the kernel rejects a handler.
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

    /// Waits for the next signal and returns its number.
    pub(crate) async fn next(&mut self) -> i32 {
        match self.0.recv().await {
            Some(number) => number,
            // The runtime is shutting down.
            None => std::future::pending().await,
        }
    }
}

/// Returns the ignored signals as a bit set, according to /proc; empty if it is unavailable.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

/// Lets this thread write to the terminal and change its foreground group from the background. Programs that it starts
/// begin with no signal blocked.
///
/// # Errors
/// Fails if the kernel rejects the signal mask.
pub(crate) fn allow_terminal_access() -> io::Result<()> {
    let mut stops = SigSet::empty();
    stops.add(nix::sys::signal::SIGTTOU);
    stops.add(nix::sys::signal::SIGTTIN);
    Ok(stops.thread_block()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_by_name_and_number() {
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
    fn ignored_signals_are_read_from_proc() {
        // Every Rust program ignores SIGPIPE.
        assert!(ignored() & (1 << (Signal::PIPE.as_raw() - 1)) != 0);
    }
}
