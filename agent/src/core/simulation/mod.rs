//! The core under simulated networks, hosts and Redis servers that fail in every way.
//!
//! A seed determines a run: what the workers do, what fails, and when. Agents run the real core; Redis is a model
//! ([`redis`]) that runs the shipped Lua scripts. After every event the invariants are checked. There are three worlds:
//!
//! - [`plain`]: plain and fenced locks, sessions with grace; every kind of fault;
//! - [`kinds`]: read-write, fair and plain locks, one or two at once;
//! - [`red`]: red locks on three or five servers.
//!
//! `kinds` and `red` share the agents, servers and connections of [`world`].
//!
//! A seed that fails prints the end of its trace and the command that repeats it:
//!
//! ```sh
//! LOCKSCOPE_SEEDS=1234 cargo test -p lockscope-agent --lib simulation -- --nocapture   # one, with its whole trace
//! LOCKSCOPE_SEEDS=5000..90000 cargo test -p lockscope-agent --lib simulation           # many more
//! ```

pub(in crate::core) mod kinds;
mod plain;
pub(in crate::core) mod red;
pub(in crate::core) mod redis;
mod requests;
mod rng;
mod schedule;
mod seeds;
pub(in crate::core) mod world;

use crate::core::Core;
use crate::core::lease::hold::Hold;
use crate::core::ops::verb::Verb;
use crate::types::Number;

/// Returns numbers of which Redis has at least one while a hold is valid: its own or, until an early hold is there,
/// those of the hand-over in flight.
fn numbers_in_redis(core: &Core, hold: &Hold) -> impl Iterator<Item = Number> {
    let state = core.locks.get(&hold.name).filter(|_| hold.early);
    let op = state.and_then(|state| core.ops.get(state.early?));
    let handed = op.and_then(|op| match &op.verb {
        Verb::EarlyHandOver(early) => Some([early.from.number, early.to]),
        _ => None,
    });
    std::iter::once(hold.number).chain(handed.into_iter().flatten())
}

/// Returns the first number of an agent's run, of a size that occurs in practice: scripts recognize agents by it.
fn first_number(run: u64) -> Number {
    i64::try_from((1_800_000_000 + run) << 30).expect("few runs")
}
