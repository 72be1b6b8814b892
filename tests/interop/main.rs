//! The agent beside the real Redisson, on one Redis and the same names: who holds what, who is woken, and what each
//! side says of the other.
//!
//! `make interop` builds the Java side, says by `LOCKSCOPE_REDISSON` and `LOCKSCOPE_REDISSON_OTHER` which versions
//! there are, and runs this.

mod bed;
mod cluster;
mod contract;
mod exclusion;
mod fair;
mod fenced;
mod multi;
mod names;
mod readers;
mod red;
mod release;
mod sections;
mod settings;
mod throughput;
mod truth;
mod upstream;
mod versions;
mod wakeup;

use bed::{Bed, JavaLock, Kind, LEASE};
