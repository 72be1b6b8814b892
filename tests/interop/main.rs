//! Tests of the agent and the real Redisson on one Redis and the same names: mutual exclusion, wake-ups, and what each
//! side reports about the other.
//!
//! `make interop` builds the Java side, names the installed versions in `LOCKSCOPE_REDISSON` and
//! `LOCKSCOPE_REDISSON_OTHER`, and runs these tests.

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
