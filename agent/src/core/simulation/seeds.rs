//! Runs of many seeds, and a report of the first one that fails.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The outcome of a check or a run: an error describes the invariant that was violated.
pub(super) type CheckResult<T = ()> = Result<T, String>;

/// The lines of the trace that a failure prints.
const LINES_SHOWN: usize = 60;

/// Returns the seeds in `LOCKSCOPE_SEEDS` (one, or `from..to`), by default those given.
pub(super) fn chosen(default: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("LOCKSCOPE_SEEDS") else { return default };
    let number =
        |text: &str| text.parse::<u64>().expect("LOCKSCOPE_SEEDS is a number, or from..to");
    match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&text)..number(&text) + 1,
    }
}

/// Reports whether a single seed was chosen. Its whole trace is printed.
pub(super) fn is_single(seeds: &Range<u64>) -> bool {
    seeds.end - seeds.start == 1
}

/// Plays a run to its end. A panic is a violation.
pub(super) fn guard(play: impl FnOnce() -> CheckResult) -> CheckResult {
    catch_unwind(AssertUnwindSafe(play)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("without a message")))
    })
}

/// A run whose events can be read.
pub(super) trait Traced {
    fn trace(&self) -> &[String];
}

/// Runs each seed, and fails on the first violation with the end of its trace. `module` is the module of the tests below
/// `simulation`.
pub(super) fn run_each<R: Traced>(
    seeds: impl IntoIterator<Item = u64>,
    single: bool,
    module: &str,
    run: impl Fn(u64, bool) -> (R, CheckResult),
    mut finished: impl FnMut(&R),
) {
    for seed in seeds {
        let (world, verdict) = run(seed, single);
        finished(&world);
        if single {
            println!("{}", world.trace().join("\n"));
        }
        if let Err(violation) = verdict {
            let (world, _) = run(seed, true);
            let trace = world.trace();
            panic!(
                "{}\n\n{violation}\n\nthe end of the trace of seed {seed}; to print all of it:\n\
                 LOCKSCOPE_SEEDS={seed} cargo test -p lockscope-agent --lib simulation::{module} -- --nocapture\n",
                trace[trace.len().saturating_sub(LINES_SHOWN)..].join("\n"),
            );
        }
    }
}

/// Runs each seed twice and compares the traces.
pub(super) fn assert_repeatable<R: Traced>(
    seeds: Range<u64>,
    run: impl Fn(u64, bool) -> (R, CheckResult),
) {
    for seed in seeds {
        let (first, second) = (run(seed, true).0, run(seed, true).0);
        assert!(first.trace().len() > 50, "seed {seed}: almost nothing happens");
        assert_eq!(first.trace(), second.trace(), "seed {seed}");
    }
}
