//! Tests of the core against a small model of Redis.

mod delay;
mod early_hand_over;
mod failures;
mod fair;
mod force;
mod frozen;
mod grace;
mod journal;
mod locks;
mod multi;
mod published;
mod read_write;
mod red;
mod replicas;
mod replicated_leases;
mod restart;
pub(super) mod settings;
mod unknown_outcomes;
mod world;
