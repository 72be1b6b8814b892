//! How a hold is kept, and until when.

use redisson::{Lease, Moment};

/// The way a hold's lease ends or continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum LeaseMode {
    /// The watchdog renews it.
    Renewed,
    /// Nothing renews it; it ends when its lease does. The watchdog verifies that Redis still has it.
    Fixed,
}

/// The lease terms that EXTEND changes.
#[derive(Debug, Clone)]
pub(in crate::core) struct LeaseTerms {
    pub(super) mode: LeaseMode,
    pub(super) lease: Lease,
    pub(super) valid_until: Moment,
    pub(super) earlier_leases: Vec<(Lease, Moment)>,
}
